"""Delegation tokens: who may create, renew, expire and describe them, and authentication with one."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.base.errors import ErrorCode
from pylogd.broker.metadata.delegation_tokens import DelegationToken, decode_token, encode_token
from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.credentials.conversation import AuthenticationFailed, Challenge, Success
from pylogd.credentials.principal import ANONYMOUS, USER, Principal
from pylogd.credentials.scram import SCRAM_SHA_256, SCRAM_SHA_512, Algorithm, ScramClient, ScramMechanism
from pylogd.store.errors import CorruptMetadata
from pylogd.store.paths import DELEGATION_TOKENS
from pylogd.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from pylogd.wire.messages.describe_delegation_token import DescribeDelegationTokenOwner, DescribeDelegationTokenRequest
from pylogd.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from pylogd.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path, delegation_token_secret_key="key")
    yield made
    made.close()


def be(parts: Parts, name: str) -> Principal:
    """Send the next requests as this user."""
    connection: Any = parts.connection
    connection.principal = Principal(USER, name)
    principal: Principal = connection.principal
    return principal


def create(parts: Parts, *renewers: str, owner: str | None = None, lifetime_ms: int = -1) -> Any:
    kind = None if owner is None else USER
    wanted = [CreatableRenewers(USER, renewer) for renewer in renewers]
    return parts.call(CreateDelegationTokenRequest(kind, owner, wanted, lifetime_ms))


def renew(parts: Parts, secret: bytes, period_ms: int = -1) -> Any:
    return parts.call(RenewDelegationTokenRequest(secret, period_ms))


def expire(parts: Parts, secret: bytes, period_ms: int = -1) -> Any:
    return parts.call(ExpireDelegationTokenRequest(secret, period_ms))


def describe(parts: Parts, *owners: str) -> list[str]:
    """Return the ids of the tokens that the client sees."""
    named = [DescribeDelegationTokenOwner(USER, owner) for owner in owners] or None
    response = parts.call(DescribeDelegationTokenRequest(named))
    assert response.error_code == 0
    return [token.token_id for token in response.tokens]


def log_in(parts: Parts, token: Any, algorithm: Algorithm = SCRAM_SHA_256, password: str | None = None) -> Success:
    """Authenticate with a token."""
    server = ScramMechanism(algorithm, parts.security.scram_users).start()
    client = ScramClient(algorithm, token.token_id, password or b64encode(token.hmac).decode(), token=True)
    challenge = server.step(client.first())
    assert isinstance(challenge, Challenge)
    success = server.step(client.step(challenge.message) or b"")
    assert isinstance(success, Success)
    assert client.step(success.message) is None
    return success


def test_a_token_is_made_and_used(parts: Parts) -> None:
    alice = be(parts, "alice")
    token = create(parts, "bob")
    now = parts.now_ms()
    assert token.error_code == 0
    assert (token.principal_name, token.token_requester_principal_name) == ("alice", "alice")
    assert (token.issue_timestamp_ms, token.expiry_timestamp_ms, token.max_timestamp_ms) == (
        now, now + DAY_MS, now + 7 * DAY_MS,
    )  # fmt: skip
    for algorithm in (SCRAM_SHA_256, SCRAM_SHA_512):
        success = log_in(parts, token, algorithm)
        assert (success.principal, success.expires_ms, success.by_token) == (alice, now + DAY_MS, True)
    with pytest.raises(AuthenticationFailed):
        log_in(parts, token, password="wrong")
    parts.time.advance(DAY_MS / 1000)
    with pytest.raises(AuthenticationFailed):
        log_in(parts, token)


def test_an_unknown_token_looks_like_a_known_one(parts: Parts) -> None:
    be(parts, "alice")
    known = create(parts)
    server = ScramMechanism(SCRAM_SHA_256, parts.security.scram_users, lambda: "n").start()
    first = server.step(f"n,,n={known.token_id},r=c,tokenauth=true".encode())
    unknown = ScramMechanism(SCRAM_SHA_256, parts.security.scram_users, lambda: "n").start()
    second = unknown.step(b"n,,n=unknown,r=c,tokenauth=true")
    assert len(first.message) == len(second.message)
    identity = parts.security.scram_users.token(SCRAM_SHA_256, known.token_id)
    assert identity is not None
    assert identity.credential.salt == parts.security.scram_users.decoy(SCRAM_SHA_256, known.token_id).salt


def test_lifetimes_have_limits(parts: Parts) -> None:
    be(parts, "alice")
    now = parts.now_ms()
    assert create(parts, lifetime_ms=HOUR_MS).expiry_timestamp_ms == now + HOUR_MS
    long = create(parts, lifetime_ms=1 << 62)
    assert long.max_timestamp_ms == now + 7 * DAY_MS
    assert renew(parts, long.hmac, 2 * DAY_MS).expiry_timestamp_ms == now + 2 * DAY_MS
    assert renew(parts, long.hmac, 1 << 62).expiry_timestamp_ms == now + 7 * DAY_MS
    assert renew(parts, long.hmac).expiry_timestamp_ms == now + DAY_MS
    assert expire(parts, long.hmac, HOUR_MS).expiry_timestamp_ms == now + HOUR_MS
    assert log_in(parts, long).expires_ms == now + HOUR_MS
    parts.time.advance(HOUR_MS / 1000)
    assert renew(parts, long.hmac).error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert expire(parts, long.hmac, 1).error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert describe(parts) == []


def test_a_token_ends_at_once(parts: Parts) -> None:
    be(parts, "alice")
    token = create(parts)
    assert expire(parts, token.hmac).expiry_timestamp_ms == parts.now_ms()
    assert renew(parts, token.hmac).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    with pytest.raises(AuthenticationFailed):
        log_in(parts, token)


def test_who_may_renew(parts: Parts) -> None:
    be(parts, "alice")
    token = create(parts, "bob")
    for name, code in (("bob", 0), ("Bob", ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)):
        be(parts, name)
        assert renew(parts, token.hmac).error_code == code
        assert expire(parts, token.hmac, DAY_MS).error_code == code
        assert describe(parts) == ([] if code else [token.token_id])
    assert renew(parts, b"no such secret").error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_strangers_see_no_tokens_even_without_an_authorizer(parts: Parts) -> None:
    be(parts, "alice")
    token = create(parts)
    assert describe(parts, "alice", "bob") == [token.token_id]
    assert parts.call(DescribeDelegationTokenRequest([])).tokens == []
    be(parts, "bob")
    assert describe(parts) == []
    assert create(parts, owner="alice").error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED


class Allow:
    """An authorizer that allows one operation on one resource."""

    def __init__(self, operation: AclOperation, resource: ResourceType, name: str) -> None:
        self.wanted = (operation, resource, name)

    def authorize(
        self, principal: Principal, host: str, operation: AclOperation, resource: ResourceType, name: str
    ) -> bool:
        return (operation, resource, name) == self.wanted


def test_authorization(parts: Parts) -> None:
    be(parts, "alice")
    token = create(parts)
    be(parts, "admin")
    for operation, resource, name, seen in (
        (AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id, [token.token_id]),
        (AclOperation.DESCRIBE_TOKENS, ResourceType.USER, "User:alice", [token.token_id]),
        (AclOperation.DESCRIBE_TOKENS, ResourceType.USER, "User:bob", []),
    ):
        authorizer: Any = Allow(operation, resource, name)
        parts.authorizer = authorizer
        assert describe(parts) == seen
    authorizer = Allow(AclOperation.CREATE_TOKENS, ResourceType.USER, "User:alice")
    parts.authorizer = authorizer
    assert create(parts, owner="bob").error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    other = create(parts, owner="alice")
    assert (other.principal_name, other.token_requester_principal_name) == ("alice", "admin")
    assert log_in(parts, other).principal.name == "alice"
    # who asked for it is neither owner nor renewer (Apache Kafka refuses it too: conformance/RESULTS.md)
    assert renew(parts, other.hmac).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert expire(parts, other.hmac).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    be(parts, "alice")
    assert renew(parts, other.hmac).error_code == 0


def test_anonymous_clients_get_no_token(parts: Parts) -> None:
    connection: Any = parts.connection
    be(parts, "alice")
    token = create(parts)

    class ByToken:
        by_token = True

    for principal, authentication in ((ANONYMOUS, None), (Principal(USER, "alice"), ByToken())):
        connection.principal, connection.authentication = principal, authentication
        refused = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert create(parts).error_code == refused
        assert renew(parts, token.hmac).error_code == refused
        assert expire(parts, token.hmac).error_code == refused
        assert parts.call(DescribeDelegationTokenRequest(None)).error_code == refused
    connection.authentication = None


def test_without_a_key_there_are_no_tokens(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "other")
    be(parts, "alice")
    off = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert create(parts).error_code == off
    assert renew(parts, b"x").error_code == off
    assert expire(parts, b"x").error_code == off
    assert parts.call(DescribeDelegationTokenRequest(None)).error_code == off
    parts.close()


def test_renewers_are_users(parts: Parts) -> None:
    be(parts, "alice")
    request = CreateDelegationTokenRequest(None, None, [CreatableRenewers("Group", "staff")], -1)
    assert parts.call(request).error_code == ErrorCode.INVALID_PRINCIPAL_TYPE


def test_names_that_no_principal_has_are_refused(parts: Parts) -> None:
    be(parts, "alice")
    assert create(parts, "").error_code == ErrorCode.INVALID_REQUEST
    assert create(parts, "bob", "").error_code == ErrorCode.INVALID_REQUEST
    be(parts, "")  # a certificate without a subject
    assert create(parts).error_code == ErrorCode.INVALID_REQUEST
    assert not parts.metadata.delegation_tokens.tokens


def test_a_token_has_few_renewers(parts: Parts) -> None:
    be(parts, "alice")
    assert create(parts, *(f"renewer{number}" for number in range(10_000))).error_code == ErrorCode.INVALID_REQUEST
    assert create(parts, *(f"renewer{number}" for number in range(100))).error_code == ErrorCode.NONE


def test_a_user_has_so_many_tokens(tmp_path: Path) -> None:
    parts = Parts(tmp_path, delegation_token_secret_key="key", delegation_token_max_per_requester=2)
    be(parts, "alice")
    first = create(parts, lifetime_ms=HOUR_MS)
    assert [create(parts).error_code, create(parts).error_code] == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
    be(parts, "bob")
    assert create(parts).error_code == ErrorCode.NONE
    be(parts, "alice")
    parts.time.advance(HOUR_MS / 1000)
    assert first.error_code == ErrorCode.NONE
    assert create(parts).error_code == ErrorCode.NONE, "the first has ended"
    parts.close()


def test_a_list_without_the_tokens_of_others_is_no_denial(tmp_path: Path) -> None:
    parts = Parts(
        tmp_path, delegation_token_secret_key="key", authorizer_class_name="kafka.security.authorizer.AclAuthorizer"
    )
    be(parts, "alice")
    assert create(parts).error_code == ErrorCode.NONE
    denials: list[object] = []
    parts.security.audit = SimpleNamespace(denied=lambda *what: denials.append(what))  # type: ignore[assignment]
    be(parts, "bob")
    assert describe(parts) == [] and not denials
    parts.close()


def test_where_everybody_may_use_what_no_acl_is_about_tokens_are_still_private(tmp_path: Path) -> None:
    """A token of another user is as good as its password: with one of a super user's, anybody could do anything."""
    parts = Parts(
        tmp_path, delegation_token_secret_key="key", authorizer_class_name="kafka.security.authorizer.AclAuthorizer",
        allow_everyone_if_no_acl_found=True, super_users="User:admin",
    )  # fmt: skip
    be(parts, "admin")
    own = create(parts)
    assert own.error_code == ErrorCode.NONE
    be(parts, "bob")
    assert parts.authorizer is not None
    assert parts.authorizer.authorize(Principal(USER, "bob"), "h", AclOperation.WRITE, ResourceType.TOPIC, "t"), (
        "no ACL is about the topic"
    )
    assert create(parts, owner="admin").error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert describe(parts) == []
    be(parts, "admin")
    assert describe(parts) == [own.token_id]
    parts.close()


def test_expired_tokens_are_deleted(parts: Parts) -> None:
    be(parts, "alice")
    create(parts, lifetime_ms=HOUR_MS)
    kept = create(parts)
    parts.security.delegation_tokens.start(parts.clock)
    parts.time.advance(HOUR_MS / 1000)
    assert result_of(parts.metadata.store.children(DELEGATION_TOKENS)) == [kept.token_id]
    parts.security.delegation_tokens.stop()


def test_secrets_are_not_stored(parts: Parts) -> None:
    be(parts, "alice")
    token = create(parts, "bob")
    node = result_of(parts.metadata.store.get(f"{DELEGATION_TOKENS}/{token.token_id}"))
    assert b64encode(token.hmac) not in node.data and token.hmac not in node.data
    assert decode_token(token.token_id, node.data).owner == "User:alice"
    assert b'"tokenRequester":"User:alice"' in node.data and b'"version":3' in node.data
    assert "key" not in repr(parts.security.delegation_tokens)


def test_a_node_that_can_not_be_read_is_no_token(parts: Parts) -> None:
    be(parts, "alice")
    token = create(parts)
    result_of(parts.metadata.store.create(f"{DELEGATION_TOKENS}/broken", b"{}"))
    create(parts)
    assert token.token_id in describe(parts) and "broken" not in describe(parts)


@given(st.binary() | st.just(b"{}") | st.text().map(str.encode))
def test_any_node_raises_corrupt_metadata_only(data: bytes) -> None:
    with pytest.raises(CorruptMetadata):
        decode_token("t", data)


def test_a_token_survives_its_node() -> None:
    token = DelegationToken("t", "User:alice", "User:admin", ("User:bob",), 1, 2, 3)
    assert decode_token("t", encode_token(token)) == token
