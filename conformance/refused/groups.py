"""Refused requests about offsets of groups, about groups as a whole, and about members of the newer protocol."""

from __future__ import annotations

from typing import Any, Final

from conformance.refused.classic_groups import LONG, STATIC, joined_alone, joining, member, stable_group
from conformance.refused.model import ALICE, ANYONE, OPEN, READER, Case, Step, case
from conformance.refused.topics import id_of

_UNKNOWN_ID: Final = bytes(15) + b"\7"


def _committed(index: int, offset: int = 1, text: str | None = "") -> Any:
    return {"partition_index": index, "committed_offset": offset, "committed_metadata": text}


def _commit(
    name: str, errors: str, group: str, topic: Any = "one", index: int = 0, by: str = "anyone", *, before: Any = (),
    version: int = 9, offset: int = 1, text: str | None = "", **more: Any,
) -> Case:  # fmt: skip
    named = {"name": topic} if isinstance(topic, str) else {"topic_id": topic}
    topics = [{**named, "partitions": [_committed(index, offset, text)]}]
    return case("offset_commit", name, version, errors, by, before, **{"group_id": group, "topics": topics, **more})


def _fetched(name: str, errors: str, group: str, topic: Any = "one", by: str = "anyone", **more: Any) -> Case:
    named = {"name": topic} if isinstance(topic, str) else {"topic_id": topic}
    asked = {"group_id": group, "topics": [{**named, "partition_indexes": [0]}], **more}
    return case("offset_fetch", name, 9 if isinstance(topic, str) else 10, errors, by, groups=[asked])


def _forget(
    name: str, errors: str, group: str, topic: str, index: int, before: Any = (), by: str = "anyone", first_by: str = ""
) -> Case:
    topics = [{"name": topic, "partitions": [{"partition_index": index}]}]
    return case("offset_delete", name, 0, errors, by, before, first_by=first_by, group_id=group, topics=topics)


def _stored(group: str) -> tuple[Step, ...]:
    """Return the request after which a group without members has an offset."""
    topics = [{"name": "one", "partitions": [_committed(0)]}]
    return (("offset_commit", 9, {"group_id": group, "topics": topics}),)


_CONSUMING: Final[dict[str, Any]] = {
    "group_id": "", "member_id": "AAAAAAAAAAAAAAAAAAAAAA", "member_epoch": 0, "rebalance_timeout_ms": 30000,
    "subscribed_topic_names": ["one"], "topic_partitions": [],
}  # fmt: skip


def _consumers(group: str) -> tuple[Step, ...]:
    """Return the request that makes a group of the newer protocol with one member."""
    return (("consumer_group_heartbeat", 1, {**_CONSUMING, "group_id": group}),)


_MEMBER: Final = _CONSUMING["member_id"]

OFFSETS: Final = (
    _commit("no group", "", ""),
    _commit("an unknown topic", "UNKNOWN_TOPIC_OR_PARTITION", "o1", "nothing"),
    _commit("an unknown partition", "UNKNOWN_TOPIC_OR_PARTITION", "o1", index=9),
    _commit("a negative partition", "UNKNOWN_TOPIC_OR_PARTITION", "o1", index=-1),
    _commit("an unknown id", "UNKNOWN_TOPIC_ID", "o1", _UNKNOWN_ID, version=10),
    _commit("a negative offset", "", "o1", offset=-5),
    _commit("metadata that is too long", "OFFSET_METADATA_TOO_LARGE", "o1", text="x" * 5000),
    _commit("no metadata", "", "o1", text=None),
    _commit(
        "a generation of an unknown group",
        "ILLEGAL_GENERATION",
        "o2",
        version=8,
        generation_id_or_member_epoch=3,
        member_id="x",
    ),
    _commit(
        "a generation of an unknown group", "GROUP_ID_NOT_FOUND", "o2", generation_id_or_member_epoch=3, member_id="x"
    ),
    _commit("no member, but the group has some", "UNKNOWN_MEMBER_ID", "o3", before=stable_group("o3")),
    _commit(
        "an unknown member",
        "UNKNOWN_MEMBER_ID",
        "o4",
        before=stable_group("o4"),
        generation_id_or_member_epoch=1,
        member_id="x",
    ),
    _commit(
        "another generation",
        "ILLEGAL_GENERATION",
        "o5",
        before=stable_group("o5"),
        generation_id_or_member_epoch=9,
        member_id=member(1),
    ),
    _commit(
        "during a rebalance",
        "REBALANCE_IN_PROGRESS",
        "o6",
        before=joined_alone("o6"),
        generation_id_or_member_epoch=1,
        member_id=member(1),
    ),
    _commit(
        "an instance of another member",
        "FENCED_INSTANCE_ID",
        "static",
        before=STATIC,
        generation_id_or_member_epoch=1,
        member_id="x",
        group_instance_id="i",
    ),
    _commit(
        "a member of the newer protocol that is unknown",
        "UNKNOWN_MEMBER_ID",
        "o7",
        before=_consumers("o7"),
        generation_id_or_member_epoch=1,
        member_id="x",
    ),
    _commit(
        "an old epoch of a member",
        "STALE_MEMBER_EPOCH",
        "o7",
        before=_consumers("o7"),
        generation_id_or_member_epoch=99,
        member_id=_MEMBER,
    ),
    _commit(
        "an old client in a group of the newer protocol",
        "UNSUPPORTED_VERSION",
        "o7",
        before=_consumers("o7"),
        version=8,
        generation_id_or_member_epoch=99,
        member_id=_MEMBER,
    ),
    _commit("the group, without permission", "GROUP_AUTHORIZATION_FAILED", "o1", by=ALICE),
    _commit(
        "the group, without permission, an unknown id",
        "GROUP_AUTHORIZATION_FAILED",
        "o1",
        _UNKNOWN_ID,
        by=ALICE,
        version=10,
    ),
    _fetched("an unknown group", "", "nothing"),
    _fetched("an unknown topic", "", "nothing", "nothing"),
    _fetched("an unknown id", "UNKNOWN_TOPIC_ID", "nothing", _UNKNOWN_ID),
    _fetched("no group", "", ""),
    _fetched("an unknown member of an unknown group", "", "nothing", member_id="x", member_epoch=3),
    _fetched("the group, without permission", "GROUP_AUTHORIZATION_FAILED", "nothing", by=ALICE),
    case(
        "offset_fetch",
        "an unknown member",
        9,
        "UNKNOWN_MEMBER_ID",
        before=_consumers("o8"),
        groups=[{"group_id": "o8", "member_id": "x", "member_epoch": 1, "topics": None}],
    ),
    case(
        "offset_fetch",
        "an old epoch of a member",
        9,
        "STALE_MEMBER_EPOCH",
        before=_consumers("o8"),
        groups=[{"group_id": "o8", "member_id": _MEMBER, "member_epoch": 99, "topics": None}],
    ),
    case(
        "offset_fetch",
        "the group, without permission",
        1,
        "GROUP_AUTHORIZATION_FAILED",
        ALICE,
        group_id="o1",
        topics=[{"name": "one", "partition_indexes": [0]}],
    ),
    case(
        "offset_fetch",
        "the group, without permission",
        7,
        "GROUP_AUTHORIZATION_FAILED",
        ALICE,
        group_id="o1",
        topics=[{"name": "one", "partition_indexes": [0]}],
    ),
    _forget("an unknown group", "GROUP_ID_NOT_FOUND", "nothing", "one", 0),
    _forget("no group", "INVALID_GROUP_ID", "", "one", 0),
    _forget("an unknown topic", "UNKNOWN_TOPIC_OR_PARTITION", "f1", "nothing", 0, _stored("f1")),
    _forget("an unknown partition", "UNKNOWN_TOPIC_OR_PARTITION", "f1", "one", 9, _stored("f1")),
    _forget("a topic that a member reads", "", "f2", "one", 0, stable_group("f2")),
    _forget(
        "a topic that a member of the newer protocol reads",
        "GROUP_SUBSCRIBED_TO_TOPIC",
        "f3",
        "one",
        0,
        _consumers("f3"),
    ),
    _forget("the group, without permission", "GROUP_AUTHORIZATION_FAILED", "f1", "one", 0, by=ALICE),
)


def _described(name: str, errors: str, group: str, version: int = 6, before: Any = (), by: str = "anyone") -> Case:
    return case("describe_groups", name, version, errors, by, before, groups=[group])


def _deleted(name: str, errors: str, group: str, before: Any = (), by: str = "anyone") -> Case:
    return case("delete_groups", name, 2, errors, by, before, groups_names=[group])


def _consumed(name: str, errors: str, group: str, before: Any = (), by: str = "anyone") -> Case:
    return case("consumer_group_describe", name, 1, errors, by, before, group_ids=[group])


DESCRIBED: Final = (
    _described("an unknown group", "GROUP_ID_NOT_FOUND", "nothing"),
    _described("an unknown group", "", "nothing", 5),
    _described("no group", "", ""),
    _described("a group of the newer protocol", "GROUP_ID_NOT_FOUND", "d1", 6, _consumers("d1")),
    _described("without permission", "GROUP_AUTHORIZATION_FAILED", "d1", by=ALICE),
    _deleted("an unknown group", "GROUP_ID_NOT_FOUND", "nothing"),
    _deleted("no group", "", ""),
    _deleted("a group with members", "NON_EMPTY_GROUP", "d2", stable_group("d2")),
    _deleted("a group of the newer protocol with members", "NON_EMPTY_GROUP", "d1", _consumers("d1")),
    _deleted("without permission", "GROUP_AUTHORIZATION_FAILED", "d1", by=ALICE),
    _consumed("an unknown group", "GROUP_ID_NOT_FOUND", "nothing"),
    _consumed("a classic group", "GROUP_ID_NOT_FOUND", "d3", stable_group("d3")),
    _consumed("no group", "INVALID_GROUP_ID", ""),
    _consumed("without permission", "GROUP_AUTHORIZATION_FAILED", "d1", by=ALICE),
    case("list_groups", "an unknown state", 5, "", states_filter=["nonsense"]),
    case("list_groups", "an unknown type", 5, "", types_filter=["nonsense"]),
)


def _consume(name: str, errors: str, group: str = "k1", before: Any = (), by: str = "anyone", **more: Any) -> Case:
    version = more.pop("version", 1)
    body = {**_CONSUMING, "group_id": group, **more}
    return case("consumer_group_heartbeat", name, version, errors, by, before, **body)


_BEAT: Final[dict[str, Any]] = {"rebalance_timeout_ms": -1, "subscribed_topic_names": None, "topic_partitions": None}

CONSUMERS: Final = (
    _consume("no group", "INVALID_REQUEST", ""),
    _consume("a group of spaces", "INVALID_REQUEST", "  "),
    _consume("no member id", "INVALID_REQUEST", member_id=""),
    _consume("no member id", "", "k0", member_id="", version=0),
    _consume("an empty instance id", "INVALID_REQUEST", instance_id=""),
    _consume("an empty rack", "INVALID_REQUEST", rack_id=""),
    _consume("no rebalance timeout", "INVALID_REQUEST", rebalance_timeout_ms=-1),
    _consume("no list of owned partitions", "INVALID_REQUEST", topic_partitions=None),
    _consume("owned partitions", "INVALID_REQUEST", topic_partitions=[{"topic_id": id_of("one"), "partitions": [0]}]),
    _consume("no subscription", "INVALID_REQUEST", subscribed_topic_names=None),
    _consume("an empty subscription", "", "k2", subscribed_topic_names=[]),
    _consume("an unknown assignor", "UNSUPPORTED_ASSIGNOR", server_assignor="nonsense"),
    _consume("an empty assignor", "UNSUPPORTED_ASSIGNOR", server_assignor=""),
    _consume(
        "a faulty expression", "INVALID_REGULAR_EXPRESSION", subscribed_topic_names=None, subscribed_topic_regex="(["
    ),
    _consume("an unknown topic", "", "k3", subscribed_topic_names=["nothing"]),
    _consume("an invalid topic", "", "k4", subscribed_topic_names=["a b"]),
    _consume("an epoch below -2", "INVALID_REQUEST", member_epoch=-3),
    _consume("leaving as an instance without its id", "INVALID_REQUEST", member_epoch=-2),
    _consume("a heartbeat to an unknown group", "GROUP_ID_NOT_FOUND", "nothing", member_epoch=5, **_BEAT),
    _consume("leaving an unknown group", "GROUP_ID_NOT_FOUND", "nothing", member_epoch=-1, **_BEAT),
    _consume(
        "an unknown member",
        "UNKNOWN_MEMBER_ID",
        "k5",
        _consumers("k5"),
        member_id="BBBBBBBBBBBBBBBBBBBBBB",
        member_epoch=1,
        **_BEAT,
    ),
    _consume("an epoch that is to come", "FENCED_MEMBER_EPOCH", "k5", _consumers("k5"), member_epoch=99, **_BEAT),
    _consume(
        "an instance that another member has",
        "UNRELEASED_INSTANCE_ID",
        "k6",
        (("consumer_group_heartbeat", 1, {**_CONSUMING, "group_id": "k6", "instance_id": "i"}),),
        member_id="BBBBBBBBBBBBBBBBBBBBBB",
        instance_id="i",
    ),
    _consume(
        "an instance of another member",
        "FENCED_INSTANCE_ID",
        "k6",
        member_id="BBBBBBBBBBBBBBBBBBBBBB",
        instance_id="i",
        member_epoch=1,
        **_BEAT,
    ),
    _consume(
        "an unknown instance",
        "UNKNOWN_MEMBER_ID",
        "k6",
        member_id="BBBBBBBBBBBBBBBBBBBBBB",
        instance_id="j",
        member_epoch=1,
        **_BEAT,
    ),
    _consume("a long instance id", "", "k7", instance_id="i" * 300),
    _consume(
        "a classic group of another type",
        "GROUP_ID_NOT_FOUND",
        "k8",
        (
            ("join_group", 9, joining("k8", protocol_type="connect")),
            ("join_group", 9, joining("k8", protocol_type="connect", member_id=member(0))),
        ),
    ),
    _consume("the group, without permission", "GROUP_AUTHORIZATION_FAILED", by=ALICE),
)

#: Of a user who may use groups, but no topics; and of groups that may have one member.
LIMITS: Final = (
    _commit("a topic, without permission", "TOPIC_AUTHORIZATION_FAILED", "u1", by=READER),
    _commit("an unknown topic, without permission", "TOPIC_AUTHORIZATION_FAILED", "u1", "nothing", by=READER),
    _commit(
        "a topic by id, without permission", "TOPIC_AUTHORIZATION_FAILED", "u1", id_of("one"), by=READER, version=10
    ),
    _commit("an unknown id, without permission", "UNKNOWN_TOPIC_ID", "u1", _UNKNOWN_ID, by=READER, version=10),
    _commit("a long group", "INVALID_GROUP_ID", LONG),
    _fetched("a topic, without permission", "TOPIC_AUTHORIZATION_FAILED", "u1", by=READER),
    _fetched("a topic by id, without permission", "TOPIC_AUTHORIZATION_FAILED", "u1", id_of("one"), READER),
    _fetched("an unknown id, without permission", "UNKNOWN_TOPIC_ID", "u1", _UNKNOWN_ID, READER),
    _forget("a topic, without permission", "TOPIC_AUTHORIZATION_FAILED", "u2", "one", 0, _stored("u2"), READER, ANYONE),
    _consume("a topic, without permission", "TOPIC_AUTHORIZATION_FAILED", "u3", by=READER),
    _consume(
        "an unknown topic, without permission",
        "TOPIC_AUTHORIZATION_FAILED",
        "u3",
        by=READER,
        subscribed_topic_names=["nothing"],
    ),
    _consume("an instance id of 1025 characters", "INVALID_REQUEST", "u4", instance_id="i" * 1025),
    case(
        "consumer_group_describe",
        "a group whose topics one may not describe",
        1,
        "TOPIC_AUTHORIZATION_FAILED",
        READER,
        _consumers("u6"),
        first_by=ANYONE,
        group_ids=["u6"],
    ),
    case(
        "consumer_group_heartbeat",
        "a group that is full",
        1,
        "GROUP_MAX_SIZE_REACHED",
        before=_consumers("u8"),
        brokers=OPEN,
        **{**_CONSUMING, "group_id": "u8", "member_id": "BBBBBBBBBBBBBBBBBBBBBB"},
    ),
)

CASES: Final = (*LIMITS, *OFFSETS, *DESCRIBED, *CONSUMERS)
