"""Refused requests about users, ACLs, delegation tokens and authentication."""

from __future__ import annotations

from typing import Any, Final

from conformance.refused.model import ADMIN, ALICE, LEARN, OPEN, STRANGER, Case, Peer, case

_SHA_256, _SHA_512 = 1, 2
_BYTES: Final = bytes(range(32))


def _upsert(
    user: str, mechanism: int = _SHA_256, iterations: int = 8192, salt: bytes = b"salt", password: bytes = _BYTES
) -> Any:
    return {
        "name": user, "mechanism": mechanism, "iterations": iterations, "salt": salt, "salted_password": password,
    }  # fmt: skip


def _scram(name: str, errors: str, *upsertions: Any, deletions: Any = (), by: str = "anyone") -> Case:
    return case(
        "alter_user_scram_credentials", name, 0, errors, by, upsertions=list(upsertions), deletions=list(deletions)
    )


def _users(name: str, errors: str, *users: str, by: str = "anyone") -> Case:
    return case("describe_user_scram_credentials", name, 0, errors, by, users=[{"name": user} for user in users])


SCRAM: Final = (
    _scram("an empty name", "UNACCEPTABLE_CREDENTIAL", _upsert("")),
    _scram("an unknown mechanism", "UNSUPPORTED_SASL_MECHANISM", _upsert("bob", 9)),
    _scram("mechanism 0", "UNSUPPORTED_SASL_MECHANISM", _upsert("bob", 0)),
    _scram("too few iterations", "UNACCEPTABLE_CREDENTIAL", _upsert("bob", iterations=4095)),
    _scram("too few iterations for SHA-512", "UNACCEPTABLE_CREDENTIAL", _upsert("bob", _SHA_512, iterations=4095)),
    _scram("too many iterations", "UNACCEPTABLE_CREDENTIAL", _upsert("bob", iterations=16385)),
    _scram("an empty salt", "", _upsert("bob", salt=b"")),
    _scram("an empty salted password", "UNACCEPTABLE_CREDENTIAL", _upsert("bob", password=b"")),
    _scram("a short salted password", "", _upsert("short", password=b"abc")),
    _scram("a long salted password", "", _upsert("long", password=b"a" * 100)),
    _scram("a long salt", "", _upsert("salty", salt=b"a" * 2000)),
    _scram("a credential twice", "DUPLICATE_RESOURCE", _upsert("bob"), _upsert("bob")),
    _scram("two credentials of a user", "", _upsert("bob"), _upsert("bob", _SHA_512)),
    _scram("set and deleted", "DUPLICATE_RESOURCE", _upsert("bob"), deletions=[{"name": "bob", "mechanism": _SHA_256}]),
    _scram("deleting what is not there", "RESOURCE_NOT_FOUND", deletions=[{"name": "nobody", "mechanism": 1}]),
    _scram("deleting an unknown mechanism", "UNSUPPORTED_SASL_MECHANISM", deletions=[{"name": "bob", "mechanism": 9}]),
    _scram("deleting of an empty name", "UNACCEPTABLE_CREDENTIAL", deletions=[{"name": "", "mechanism": 1}]),
    _scram("a user without permission", "CLUSTER_AUTHORIZATION_FAILED", _upsert("bob"), by=ALICE),
    _users("a user without credentials", "RESOURCE_NOT_FOUND", "nobody"),
    _users("a user twice", "DUPLICATE_RESOURCE", "nobody", "nobody"),
    _users("an empty name", "RESOURCE_NOT_FOUND", ""),
    _users("a user without permission", "CLUSTER_AUTHORIZATION_FAILED", "nobody", by=ALICE),
)

_ANY, _TOPIC, _CLUSTER, _LITERAL, _MATCH, _READ, _ALLOW = 1, 2, 4, 3, 2, 3, 3


def _acl(name: str, errors: str, by: str = "anyone", **changes: Any) -> Case:
    creation = {
        "resource_type": _TOPIC, "resource_name": "t", "resource_pattern_type": _LITERAL, "principal": "User:bob",
        "host": "*", "operation": _READ, "permission_type": _ALLOW, **changes,
    }  # fmt: skip
    return case("create_acls", name, 3, errors, by, creations=[creation])


_FILTER: Final[dict[str, Any]] = {
    "resource_type_filter": _TOPIC, "resource_name_filter": "none", "pattern_type_filter": _LITERAL,
    "principal_filter": "User:bob", "host_filter": "*", "operation": _READ, "permission_type": _ALLOW,
}  # fmt: skip


def _select(name: str, describes: str, deletes: str, by: str = "anyone", **changes: Any) -> tuple[Case, Case]:
    """Return a filter in both requests that have one."""
    wanted = {**_FILTER, **changes}
    return (
        case("describe_acls", name, 3, describes, by, **wanted),
        case("delete_acls", name, 3, deletes, by, filters=[wanted]),
    )


ACLS: Final = (
    _acl("resource type 0", "INVALID_REQUEST", resource_type=0),
    _acl("any resource type", "INVALID_REQUEST", resource_type=_ANY),
    _acl("an unknown resource type", "INVALID_REQUEST", resource_type=99),
    _acl("an empty name", "INVALID_REQUEST", resource_name=""),
    _acl("an invalid topic name", "", resource_name="a b"),
    _acl("another name of the cluster", "INVALID_REQUEST", resource_type=_CLUSTER, resource_name="mine", operation=4),
    _acl("a pattern that only filters have", "INVALID_REQUEST", resource_pattern_type=_MATCH),
    _acl("an unknown pattern type", "INVALID_REQUEST", resource_pattern_type=99),
    _acl("an empty principal", "INVALID_REQUEST", principal=""),
    _acl("a principal without a type", "INVALID_REQUEST", principal="bob"),
    _acl("a principal of another type", "", principal="Group:bob"),
    _acl("an empty host", "INVALID_REQUEST", host=""),
    _acl("a host that is not an address", "INVALID_REQUEST", host="host.example"),
    _acl("any operation", "INVALID_REQUEST", operation=_ANY),
    _acl("an unknown operation", "INVALID_REQUEST", operation=99),
    _acl("an operation that topics don't have", "", operation=9),
    _acl("any permission", "INVALID_REQUEST", permission_type=_ANY),
    _acl("an unknown permission", "INVALID_REQUEST", permission_type=99),
    _acl("a user without permission", "CLUSTER_AUTHORIZATION_FAILED", ALICE),
    *_select("nothing that matches", "", ""),
    *_select("an unknown resource type", "", "INVALID_REQUEST", resource_type_filter=99),
    *_select("resource type 0", "INVALID_REQUEST", "INVALID_REQUEST", resource_type_filter=0),
    *_select("an unknown pattern type", "", "INVALID_REQUEST", pattern_type_filter=99),
    *_select("an unknown operation", "", "INVALID_REQUEST", operation=99),
    *_select("an unknown permission", "", "INVALID_REQUEST", permission_type=99),
    *_select("a principal without a type", "", "", principal_filter="bob"),
    *_select("an empty name", "", "", resource_name_filter=""),
    *_select("a user without permission", "CLUSTER_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", ALICE),
)


def _hmac(peer: Peer) -> bytes:
    """Return the secret of the token that was created before."""
    return bytes(peer.answers[0].hmac)


_TOKEN: Final = (("create_delegation_token", 3, {"max_lifetime_ms": -1}), LEARN)


def _token(name: str, errors: str, by: str = ADMIN, **more: Any) -> Case:
    return case("create_delegation_token", name, 3, errors, by, **{"max_lifetime_ms": -1, **more})


TOKENS: Final = (
    _token("without authentication", "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", "anyone"),
    _token(
        "a renewer of another type",
        "INVALID_PRINCIPAL_TYPE",
        renewers=[{"principal_type": "Group", "principal_name": "x"}],
    ),
    _token("a renewer without a name", "INVALID_REQUEST", renewers=[{"principal_type": "User", "principal_name": ""}]),
    _token(
        "for another user, without permission",
        "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
        ALICE,
        owner_principal_type="User",
        owner_principal_name="erin",
    ),
    _token("a life of 0 ms", "", max_lifetime_ms=0),
    case("describe_delegation_token", "without authentication", 3, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", owners=None),
    case(
        "describe_delegation_token",
        "of others, without permission",
        3,
        "",
        ALICE,
        owners=[{"principal_type": "User", "principal_name": ADMIN}],
    ),
    case("renew_delegation_token", "without authentication", 2, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", hmac=b"x"),
    case(
        "renew_delegation_token",
        "an unknown token",
        2,
        "DELEGATION_TOKEN_NOT_FOUND",
        ADMIN,
        hmac=b"x",
        renew_period_ms=-1,
    ),
    case("expire_delegation_token", "without authentication", 2, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", hmac=b"x"),
    case(
        "expire_delegation_token",
        "an unknown token",
        2,
        "DELEGATION_TOKEN_NOT_FOUND",
        ADMIN,
        hmac=b"x",
        expiry_time_period_ms=-1,
    ),
)

_PLAIN: Final = (("sasl_handshake", 1, {"mechanism": "PLAIN"}),)

AUTHENTICATION: Final = (
    case("sasl_handshake", "on a listener without authentication", 1, "ILLEGAL_SASL_STATE", mechanism="PLAIN"),
    case("sasl_handshake", "an unknown mechanism", 1, "UNSUPPORTED_SASL_MECHANISM", STRANGER, mechanism="NONSENSE"),
    case(
        "sasl_handshake",
        "a mechanism that is not enabled",
        1,
        "UNSUPPORTED_SASL_MECHANISM",
        STRANGER,
        mechanism="SCRAM-SHA-256",
    ),
    case("sasl_handshake", "again, by an authenticated client", 0, "ILLEGAL_SASL_STATE", ALICE, mechanism="PLAIN"),
    case(
        "sasl_authenticate", "on a listener without authentication", 2, "ILLEGAL_SASL_STATE", auth_bytes=b"\0alice\0x"
    ),
    case(
        "sasl_authenticate",
        "a wrong password",
        2,
        "SASL_AUTHENTICATION_FAILED",
        STRANGER,
        _PLAIN,
        auth_bytes=b"\0alice\0wrong",
    ),
    case(
        "sasl_authenticate",
        "an unknown user",
        2,
        "SASL_AUTHENTICATION_FAILED",
        STRANGER,
        _PLAIN,
        auth_bytes=b"\0nobody\0x",
    ),
    case(
        "sasl_authenticate",
        "bytes that can't be read",
        2,
        "SASL_AUTHENTICATION_FAILED",
        STRANGER,
        _PLAIN,
        auth_bytes=b"nonsense",
    ),
    case("sasl_authenticate", "nothing", 2, "SASL_AUTHENTICATION_FAILED", STRANGER, _PLAIN, auth_bytes=b""),
    case(
        "sasl_authenticate", "before a mechanism is chosen", 2, "ILLEGAL_SASL_STATE", STRANGER, auth_bytes=b"\0alice\0x"
    ),
    case("metadata", "before authentication", 12, "connection_closed", STRANGER, topics=[]),
)

_CREATION: Final[dict[str, Any]] = {
    "resource_type": _TOPIC, "resource_name": "t", "resource_pattern_type": _LITERAL, "principal": "User:bob",
    "host": "*", "operation": _READ, "permission_type": _ALLOW,
}  # fmt: skip

#: Of others' tokens, and of brokers without ACLs and tokens.
OTHERS: Final = (
    case(
        "renew_delegation_token",
        "another's token",
        2,
        "DELEGATION_TOKEN_OWNER_MISMATCH",
        ALICE,
        _TOKEN,
        first_by=ADMIN,
        hmac=_hmac,
        renew_period_ms=-1,
    ),
    case(
        "expire_delegation_token",
        "another's token",
        2,
        "DELEGATION_TOKEN_OWNER_MISMATCH",
        ALICE,
        _TOKEN,
        first_by=ADMIN,
        hmac=_hmac,
        expiry_time_period_ms=-1,
    ),
    case(
        "create_delegation_token",
        "brokers without tokens",
        3,
        "DELEGATION_TOKEN_AUTH_DISABLED",
        ADMIN,
        brokers=OPEN,
        max_lifetime_ms=-1,
    ),
    case(
        "describe_delegation_token",
        "brokers without tokens",
        3,
        "DELEGATION_TOKEN_AUTH_DISABLED",
        ADMIN,
        brokers=OPEN,
        owners=None,
    ),
    case(
        "renew_delegation_token",
        "brokers without tokens",
        2,
        "DELEGATION_TOKEN_AUTH_DISABLED",
        ADMIN,
        brokers=OPEN,
        hmac=b"x",
    ),
    case(
        "expire_delegation_token",
        "brokers without tokens",
        2,
        "DELEGATION_TOKEN_AUTH_DISABLED",
        ADMIN,
        brokers=OPEN,
        hmac=b"x",
    ),
    case("create_acls", "brokers without ACLs", 3, "SECURITY_DISABLED", brokers=OPEN, creations=[_CREATION]),
    case("describe_acls", "brokers without ACLs", 3, "SECURITY_DISABLED", brokers=OPEN, **_FILTER),
    case("delete_acls", "brokers without ACLs", 3, "SECURITY_DISABLED", brokers=OPEN, filters=[_FILTER]),
)

CASES: Final = (*OTHERS, *SCRAM, *ACLS, *TOKENS, *AUTHENTICATION)
