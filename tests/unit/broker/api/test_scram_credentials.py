"""DescribeUserScramCredentials and AlterUserScramCredentials, and their effect on authentication."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.metadata.entity_configs import Entity, EntityConfigs
from pylogd.broker.metadata.layout import decode_configs
from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.broker.security.scram_users import StoredUsers
from pylogd.credentials.principal import Principal
from pylogd.credentials.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    Algorithm,
    credential_of,
    make_credential,
    salted_password,
)
from pylogd.store.paths import SCRAM_DECOY_SECRET
from pylogd.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from pylogd.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from pylogd.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts

SALT = b"salt of sixteen!"


def upsertion(
    name: str, password: str = "secret", algorithm: Algorithm = SCRAM_SHA_256, iterations: int = MIN_ITERATIONS
) -> ScramCredentialUpsertion:
    salted = salted_password(algorithm, password, SALT, MIN_ITERATIONS)
    return ScramCredentialUpsertion(name, algorithm.code, iterations, SALT, salted)


def alter(parts: Parts, *upsertions: ScramCredentialUpsertion, **deletions: int) -> dict[str, int]:
    """Change credentials; return the error codes by user."""
    removed = [ScramCredentialDeletion(name, code) for name, code in deletions.items()]
    response = parts.call(AlterUserScramCredentialsRequest(removed, list(upsertions)))
    return {result.user: result.error_code for result in response.results}


def describe(parts: Parts, *names: str) -> dict[str, Any]:
    """Return the credentials as (mechanism, iterations) by user, or the error code."""
    response = parts.call(DescribeUserScramCredentialsRequest([UserName(name) for name in names] or None))
    assert response.error_code == 0
    return {
        result.user: result.error_code or [(info.mechanism, info.iterations) for info in result.credential_infos]
        for result in response.results
    }


def test_credentials_are_set_listed_and_deleted(parts: Parts) -> None:
    assert alter(parts, upsertion("alice"), upsertion("alice", algorithm=SCRAM_SHA_512), upsertion("Bob")) == {
        "alice": 0, "Bob": 0,
    }  # fmt: skip
    assert describe(parts) == {"Bob": [(1, 4096)], "alice": [(1, 4096), (2, 4096)]}
    found = parts.security.scram_users.user(SCRAM_SHA_256, "alice")
    assert found is not None and found.credential == make_credential(SCRAM_SHA_256, "secret", SALT)
    assert parts.security.scram_users.user(SCRAM_SHA_512, "Bob") is None
    assert parts.security.scram_users.user(SCRAM_SHA_256, "bob") is None
    assert alter(parts, alice=1) == {"alice": 0}
    assert parts.security.scram_users.user(SCRAM_SHA_256, "alice") is None
    assert describe(parts, "alice", "nobody") == {"alice": [(2, 4096)], "nobody": ErrorCode.RESOURCE_NOT_FOUND}
    assert alter(parts, upsertion("Bob", "changed")) == {"Bob": 0}
    changed = parts.security.scram_users.user(SCRAM_SHA_256, "Bob")
    assert changed is not None and changed.credential == make_credential(SCRAM_SHA_256, "changed", SALT)


def test_they_are_stored_as_kafka_does(parts: Parts) -> None:
    alter(parts, upsertion("a/b c*~"))
    node = result_of(parts.metadata.store.get("/config/users/a%2Fb%20c%2A%7E"))
    stored = decode_configs("", node.data)["SCRAM-SHA-256"]
    assert stored.startswith("salt=") and stored.endswith(",iterations=4096")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("alice", iterations=MIN_ITERATIONS - 1), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("alice", iterations=MAX_ITERATIONS + 1), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (ScramCredentialUpsertion("alice", 1, 4096, bytes(8193), bytes(32)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (ScramCredentialUpsertion("alice", 1, 4096, SALT, b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (ScramCredentialUpsertion("alice", 0, 4096, SALT, bytes(32)), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (ScramCredentialUpsertion("alice", 3, 4096, SALT, bytes(32)), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
)
def test_what_is_refused(parts: Parts, change: ScramCredentialUpsertion, code: ErrorCode) -> None:
    """An invalid change refuses all changes of its user, but not those of other users."""
    assert alter(parts, upsertion(change.name, algorithm=SCRAM_SHA_512), change, upsertion("bob")) == {
        change.name: code if change.mechanism != SCRAM_SHA_512.code else ErrorCode.DUPLICATE_RESOURCE, "bob": 0,
    }  # fmt: skip
    assert list(describe(parts)) == ["bob"]


@pytest.mark.parametrize(("salt", "salted"), [(b"", bytes(32)), (bytes(2000), b"abc"), (SALT, bytes(100))])
def test_any_salt_and_length_of_a_salted_password(parts: Parts, salt: bytes, salted: bytes) -> None:
    """Kafka computes the keys of whatever it is given."""
    assert alter(parts, ScramCredentialUpsertion("alice", 1, 4096, salt, salted)) == {"alice": 0}
    found = parts.security.scram_users.user(SCRAM_SHA_256, "alice")
    assert found is not None
    assert found.credential == credential_of(SCRAM_SHA_256, salted, salt, 4096)


def test_the_same_credential_twice(parts: Parts) -> None:
    alter(parts, upsertion("alice"))
    assert alter(parts, upsertion("alice", "other"), alice=1) == {"alice": ErrorCode.DUPLICATE_RESOURCE}
    assert alter(parts, alice=2) == {"alice": ErrorCode.RESOURCE_NOT_FOUND}
    assert describe(parts, "alice", "alice") == {"alice": ErrorCode.DUPLICATE_RESOURCE}
    assert describe(parts) == {"alice": [(1, 4096)]}


class Deny:
    """An authorizer that denies one operation on the cluster."""

    def __init__(self, operation: AclOperation) -> None:
        self.operation = operation

    def authorize(
        self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType, name: str
    ) -> bool:
        assert (resource, name) == (ResourceType.CLUSTER, "kafka-cluster")
        return operation is not self.operation


def test_authorization(parts: Parts) -> None:
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    authorizer: Any = Deny(AclOperation.ALTER)
    parts.authorizer = authorizer
    assert alter(parts, upsertion("alice")) == {"alice": refused}
    assert describe(parts) == {}
    parts.authorizer = None
    alter(parts, upsertion("alice"))
    authorizer = Deny(AclOperation.DESCRIBE)
    parts.authorizer = authorizer
    response = parts.call(DescribeUserScramCredentialsRequest(None))
    assert (response.error_code, response.results) == (refused, [])
    parts.authorizer = None


def test_describe_configs_does_not_show_them(parts: Parts) -> None:
    alter(parts, upsertion("alice"))
    for kind in range(1, 64):
        response = parts.call(DescribeConfigsRequest([DescribeConfigsResource(kind, "alice", None)]))
        assert "salt" not in repr(response)


def test_other_brokers_see_a_change(parts: Parts) -> None:
    other = StoredUsers(EntityConfigs(parts.metadata.store, parts.metadata.feed), parts.security.delegation_tokens.find)
    alter(parts, upsertion("alice"))
    assert other.user(SCRAM_SHA_256, "alice") is not None


def test_a_credential_that_can_not_be_read_lets_nobody_in(parts: Parts) -> None:
    alter(parts, upsertion("alice"), upsertion("alice", algorithm=SCRAM_SHA_512))
    result_of(
        parts.metadata.entity_configs.alter(Entity("alice"), {"SCRAM-SHA-256": "broken", "producer_byte_rate": "1"})
    )
    assert parts.security.scram_users.user(SCRAM_SHA_256, "alice") is None
    assert parts.security.scram_users.user(SCRAM_SHA_512, "alice") is not None
    result_of(parts.metadata.entity_configs.alter(Entity("alice", "client"), {"producer_byte_rate": "1"}))
    assert describe(parts) == {"alice": [(2, 4096)]}


def test_decoys_are_like_users(parts: Parts) -> None:
    first = parts.security.scram_users.decoy(SCRAM_SHA_256, "nobody")
    assert first == parts.security.scram_users.decoy(SCRAM_SHA_256, "nobody")
    assert (first.iterations, len(first.salt), len(first.stored_key)) == (4096, 24, 32)
    assert first.salt != parts.security.scram_users.decoy(SCRAM_SHA_256, "nobody2").salt
    assert first.salt != parts.security.scram_users.decoy(SCRAM_SHA_512, "nobody").salt
    for name in ("a", "b", "c"):
        alter(parts, ScramCredentialUpsertion(name, 1, 8192, bytes(100), bytes(32)))
    alter(parts, upsertion("d"))
    common = parts.security.scram_users.decoy(SCRAM_SHA_256, "nobody")
    assert (common.iterations, len(common.salt)) == (8192, 100)
    assert parts.security.scram_users.decoy(SCRAM_SHA_512, "nobody").iterations == 4096


def test_all_brokers_have_the_same_decoys(parts: Parts) -> None:
    brokers = [StoredUsers(parts.metadata.entity_configs, parts.security.delegation_tokens.find) for _ in range(2)]
    salts = {users.decoy(SCRAM_SHA_256, "nobody").salt for users in brokers}
    assert len(salts) == 2
    for users in brokers:
        result_of(Deferred.fromCoroutine(users.start(parts.metadata.store)))
    salts = {users.decoy(SCRAM_SHA_256, "nobody").salt for users in brokers}
    assert len(salts) == 1
    assert len(result_of(parts.metadata.store.get(SCRAM_DECOY_SECRET)).data) == 44
