"""Refused requests about coordinators and the members of classic groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from conformance.refused.model import ALICE, OPEN, Case, Peer, Step, case

_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
LONG: Final = "g" * 1025


def _find(name: str, errors: str, kind: int, key: str, by: str = "anyone") -> Case:
    return case("find_coordinator", name, 4, errors, by, key_type=kind, coordinator_keys=[key])


COORDINATORS: Final = (
    _find("an unknown type", "INVALID_REQUEST", 9, "g"),
    _find("a group without a name", "", _GROUP, ""),
    _find("a transaction without a name", "", _TRANSACTION, ""),
    _find("share groups, before version 6", "INVALID_REQUEST", _SHARE, "g"),
    _find("a group, without permission", "GROUP_AUTHORIZATION_FAILED", _GROUP, "g", ALICE),
    _find("a transaction, without permission", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", _TRANSACTION, "tx", ALICE),
    case("find_coordinator", "an unknown type", 2, "INVALID_REQUEST", key="g", key_type=9),
)

_RANGE: Final = [{"name": "range", "metadata": b"\0\1\0\0\0\0\0\0\0\0\0\0"}]


def joining(group: str, **more: Any) -> dict[str, Any]:
    return {
        "group_id": group, "session_timeout_ms": 10000, "rebalance_timeout_ms": 10000, "protocol_type": "consumer",
        "protocols": _RANGE, **more,
    }  # fmt: skip


def _join(name: str, errors: str, group: str, by: str = "anyone", before: Any = (), **more: Any) -> Case:
    return case("join_group", name, 9, errors, by, before, **joining(group, **more))


def member(number: int = -1) -> Callable[[Peer], str]:
    """Return a function that returns the member id of one of the answers before."""
    return lambda peer: str(peer.answers[number].member_id)


def joined_alone(group: str) -> tuple[Step, ...]:
    """Return the requests of a member that joins a group alone, which waits for its SyncGroup then."""
    return (("join_group", 9, joining(group)), ("join_group", 9, joining(group, member_id=member(0))))


def stable_group(group: str) -> tuple[Step, ...]:
    """Return the requests after which a group is stable."""
    sync = {
        "group_id": group, "generation_id": 1, "member_id": member(1), "protocol_type": "consumer",
        "protocol_name": "range", "assignments": [{"member_id": member(1), "assignment": b""}],
    }  # fmt: skip
    return (*joined_alone(group), ("sync_group", 5, sync))


JOIN: Final = (
    _join("an instance id of 1025 characters", "INVALID_REQUEST", "u5", group_instance_id="i" * 1025),
    case(
        "join_group",
        "a group that is full",
        9,
        "GROUP_MAX_SIZE_REACHED",
        before=stable_group("u7"),
        brokers=OPEN,
        **joining("u7"),
    ),
    _join("no group", "INVALID_GROUP_ID", ""),
    _join("a long group", "INVALID_GROUP_ID", LONG),
    _join("too short a session", "INVALID_SESSION_TIMEOUT", "j1", session_timeout_ms=1),
    _join("too long a session", "INVALID_SESSION_TIMEOUT", "j1", session_timeout_ms=1 << 30),
    _join("a member without id", "MEMBER_ID_REQUIRED", "j1"),
    _join("an unknown member", "UNKNOWN_MEMBER_ID", "j2", member_id="unknown"),
    _join(
        "an unknown member of a group with members", "UNKNOWN_MEMBER_ID", "j3", before=joined_alone("j3"), member_id="x"
    ),
    _join("an empty instance id", "", "j4", group_instance_id=""),
    _join("an instance id with a space", "", "j4a", group_instance_id="a b"),
    _join("an instance id of 250 characters", "", "j4b", group_instance_id="i" * 250),
    _join("an instance id of two dots", "", "j4c", group_instance_id=".."),
    _join("no protocols", "INCONSISTENT_GROUP_PROTOCOL", "j5", protocols=[]),
    _join("no type of protocol", "INCONSISTENT_GROUP_PROTOCOL", "j5", protocol_type=""),
    _join("a long name of a protocol", "MEMBER_ID_REQUIRED", "j5b", protocols=[{"name": "p" * 250}]),
    _join("a long type of protocol", "MEMBER_ID_REQUIRED", "j5c", protocol_type="p" * 250),
    _join(
        "another type of protocol",
        "INCONSISTENT_GROUP_PROTOCOL",
        "j6",
        before=stable_group("j6"),
        protocol_type="connect",
    ),
    _join(
        "a protocol that others don't have",
        "INCONSISTENT_GROUP_PROTOCOL",
        "j7",
        before=stable_group("j7"),
        protocols=[{"name": "mine"}],
    ),
    _join(
        "an instance that another member has",
        "FENCED_INSTANCE_ID",
        "j8",
        group_instance_id="i",
        member_id="other",
        before=(("join_group", 9, joining("j8", group_instance_id="i")),),
    ),
    _join("a user without permission", "GROUP_AUTHORIZATION_FAILED", "j1", ALICE),
    case("join_group", "a member without id", 3, "", **joining("j9")),
)


def _sync(name: str, errors: str, group: str, before: Any = (), by: str = "anyone", **more: Any) -> Case:
    body = {
        "group_id": group, "generation_id": 1, "member_id": member(1) if before else "unknown",
        "protocol_type": "consumer", "protocol_name": "range", **more,
    }  # fmt: skip
    return case("sync_group", name, 5, errors, by, before, **body)


def _beat(name: str, errors: str, group: str, before: Any = (), by: str = "anyone", **more: Any) -> Case:
    body = {"group_id": group, "generation_id": 1, "member_id": member(1) if before else "unknown", **more}
    return case("heartbeat", name, 4, errors, by, before, **body)


def _leave(name: str, errors: str, group: str, before: Any = (), by: str = "anyone", **more: Any) -> Case:
    return case("leave_group", name, 5, errors, by, before, group_id=group, members=[{"member_id": "unknown", **more}])


STATIC: Final = (("join_group", 9, joining("static", group_instance_id="i")),)

MEMBERS: Final = (
    _sync("no group", "INVALID_GROUP_ID", ""),
    _sync("an unknown group", "UNKNOWN_MEMBER_ID", "nothing"),
    _sync("an unknown member", "UNKNOWN_MEMBER_ID", "s1", joined_alone("s1"), member_id="unknown"),
    _sync("another generation", "ILLEGAL_GENERATION", "s2", joined_alone("s2"), generation_id=7),
    _sync("another type of protocol", "INCONSISTENT_GROUP_PROTOCOL", "s3", joined_alone("s3"), protocol_type="connect"),
    _sync("another protocol", "INCONSISTENT_GROUP_PROTOCOL", "s4", joined_alone("s4"), protocol_name="sticky"),
    _sync(
        "no protocol", "INCONSISTENT_GROUP_PROTOCOL", "s5", joined_alone("s5"), protocol_name=None, protocol_type=None
    ),
    _sync(
        "an instance of another member", "FENCED_INSTANCE_ID", "static", STATIC, member_id="x", group_instance_id="i"
    ),
    _sync("an unknown instance", "UNKNOWN_MEMBER_ID", "static", STATIC, member_id="x", group_instance_id="y"),
    _sync("a user without permission", "GROUP_AUTHORIZATION_FAILED", "s1", by=ALICE),
    _beat("no group", "INVALID_GROUP_ID", ""),
    _beat("an unknown group", "UNKNOWN_MEMBER_ID", "nothing"),
    _beat("an unknown member", "UNKNOWN_MEMBER_ID", "h1", joined_alone("h1"), member_id="unknown"),
    _beat("another generation", "ILLEGAL_GENERATION", "h2", joined_alone("h2"), generation_id=7),
    _beat(
        "an instance of another member", "FENCED_INSTANCE_ID", "static", STATIC, member_id="x", group_instance_id="i"
    ),
    _beat("an unknown instance", "UNKNOWN_MEMBER_ID", "static", STATIC, member_id="x", group_instance_id="y"),
    _beat("a user without permission", "GROUP_AUTHORIZATION_FAILED", "h1", by=ALICE),
    _leave("no group", "INVALID_GROUP_ID", ""),
    _leave("an unknown group", "UNKNOWN_MEMBER_ID", "nothing"),
    _leave("an unknown member", "UNKNOWN_MEMBER_ID", "l1", joined_alone("l1")),
    _leave("an instance of another member", "FENCED_INSTANCE_ID", "static", STATIC, group_instance_id="i"),
    _leave("an unknown instance", "UNKNOWN_MEMBER_ID", "static", STATIC, member_id="", group_instance_id="y"),
    _leave("a user without permission", "GROUP_AUTHORIZATION_FAILED", "l1", by=ALICE),
    case("leave_group", "an unknown member", 2, "UNKNOWN_MEMBER_ID", group_id="nothing", member_id="unknown"),
)

CASES: Final = (*COORDINATORS, *JOIN, *MEMBERS)
