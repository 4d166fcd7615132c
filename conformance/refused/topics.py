"""Refused requests about topics, their partitions, settings and replicas.

The topics of every run: `one` with one partition, `four` with four, `compacted`, and `zstd`, whose `compression.type`
is zstd.
"""

from __future__ import annotations

from typing import Any, Final

from conformance.refused.model import ALICE, LIMITED, OPEN, Case, Peer, Step, case

_UNKNOWN_ID: Final = bytes(15) + b"\7"
_LONG: Final = "a" * 250


def id_of(name: str) -> Any:
    """Return a function that returns the id of a topic."""

    def find(peer: Peer) -> bytes:
        return peer.ids[name]

    return find


def _topic(name: str, count: int = 1, factor: int = 1, *assigned: tuple[int, list[int]], **configs: Any) -> Any:
    return {
        "name": name,
        "num_partitions": count,
        "replication_factor": factor,
        "assignments": [{"partition_index": index, "broker_ids": brokers} for index, brokers in assigned],
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }


def _create(name: str, errors: str, *topics: Any, by: str = "anyone", version: int = 7) -> Case:
    return case("create_topics", name, version, errors, by, topics=list(topics))


_REPEATED: Final = {
    "name": "c2", "num_partitions": 1, "replication_factor": 1,
    "configs": [{"name": "retention.ms", "value": "1000"}, {"name": "retention.ms", "value": "2000"}],
}  # fmt: skip

_NAMELESS: Final[dict[str, Any]] = {"": "1"}

CREATE: Final = (
    _create("a topic that exists", "TOPIC_ALREADY_EXISTS", _topic("one")),
    _create("an empty name", "INVALID_TOPIC_EXCEPTION", _topic("")),
    _create("a name of two dots", "INVALID_TOPIC_EXCEPTION", _topic("..")),
    _create("a name with a space", "INVALID_TOPIC_EXCEPTION", _topic("a b")),
    _create("a name of 250 characters", "INVALID_TOPIC_EXCEPTION", _topic(_LONG)),
    _create("a name that collides with another", "INVALID_TOPIC_EXCEPTION", _topic("dotted_name")),
    _create("names that collide within the request", "INVALID_TOPIC_EXCEPTION", _topic("x.y"), _topic("x_y")),
    _create("no partitions", "INVALID_PARTITIONS", _topic("c1", 0)),
    _create("-2 partitions", "INVALID_PARTITIONS", _topic("c1", -2)),
    _create("no replicas", "INVALID_REPLICATION_FACTOR", _topic("c1", 1, 0)),
    _create("-2 replicas", "INVALID_REPLICATION_FACTOR", _topic("c1", 1, -2)),
    _create("more replicas than brokers", "INVALID_REPLICATION_FACTOR", _topic("c1", 1, 3)),
    _create("assigned replicas beside a number of partitions", "INVALID_REQUEST", _topic("c1", 1, -1, (0, [0]))),
    _create("assigned replicas beside a number of replicas", "INVALID_REQUEST", _topic("c1", -1, 1, (0, [0]))),
    _create("an unknown broker", "INVALID_REPLICA_ASSIGNMENT", _topic("c1", -1, -1, (0, [7]))),
    _create("a negative broker", "INVALID_REPLICA_ASSIGNMENT", _topic("c1", -1, -1, (0, [-1]))),
    _create("a broker twice", "INVALID_REPLICA_ASSIGNMENT", _topic("c1", -1, -1, (0, [0, 0]))),
    _create("a partition without brokers", "INVALID_REPLICA_ASSIGNMENT", _topic("c1", -1, -1, (0, []))),
    _create("a gap between partitions", "INVALID_REPLICA_ASSIGNMENT", _topic("c1", -1, -1, (0, [0]), (2, [0]))),
    _create("no partition 0", "INVALID_REPLICA_ASSIGNMENT", _topic("c1", -1, -1, (1, [0]))),
    _create("a partition twice", "INVALID_REPLICA_ASSIGNMENT", _topic("c1", -1, -1, (0, [0]), (0, [0]))),
    _create("lists of different lengths", "INVALID_REPLICA_ASSIGNMENT", _topic("c1", -1, -1, (0, [0]), (1, [0, 7]))),
    _create("an unknown setting", "INVALID_CONFIG", _topic("c1", no_such_setting="1")),
    _create("a setting that is not a number", "INVALID_CONFIG", _topic("c1", retention_ms="soon")),
    _create("a setting out of range", "INVALID_CONFIG", _topic("c1", min_insync_replicas="0")),
    _create("a cleanup.policy that does not exist", "INVALID_CONFIG", _topic("c1", cleanup_policy="nonsense")),
    _create("an empty cleanup.policy", "", _topic("c-empty", cleanup_policy="")),
    _create("a setting without a value", "INVALID_CONFIG", _topic("c1", retention_ms=None)),
    _create("a setting with an empty name", "INVALID_CONFIG", _topic("c1", **_NAMELESS)),
    _create("a setting twice", "", _REPEATED),
    _create("a topic twice", "INVALID_REQUEST", _topic("c1"), _topic("c1")),
    _create("an internal topic that exists", "TOPIC_ALREADY_EXISTS", _topic("__consumer_offsets")),
    _create("the topic of Kafka's own metadata", "INVALID_REQUEST", _topic("__cluster_metadata")),
    _create("a user without permission", "TOPIC_AUTHORIZATION_FAILED", _topic("c1"), by=ALICE),
    _create("without permission, an invalid name", "TOPIC_AUTHORIZATION_FAILED", _topic("a b"), by=ALICE),
    _create("no topics", ""),
    _create("an older version, -1 partitions", "", _topic("c-older", -1, -1), version=4),
)


def _extend(
    name: str, errors: str, topic: str, count: int, *assigned: list[int], by: str = "anyone", twice: bool = False
) -> Case:
    topics = [{"name": topic, "count": count, "assignments": [{"broker_ids": one} for one in assigned] or None}]
    return case("create_partitions", name, 3, errors, by, topics=topics * (1 + twice), timeout_ms=10000)


EXTEND: Final = (
    _extend("an unknown topic", "UNKNOWN_TOPIC_OR_PARTITION", "nothing", 2),
    _extend("an invalid name", "UNKNOWN_TOPIC_OR_PARTITION", "a b", 2),
    _extend("the number that it has", "INVALID_PARTITIONS", "four", 4),
    _extend("fewer than it has", "INVALID_PARTITIONS", "four", 3),
    _extend("no partitions", "INVALID_PARTITIONS", "four", 0),
    _extend("-1 partitions", "INVALID_PARTITIONS", "four", -1),
    _extend("too few assignments", "INVALID_REPLICA_ASSIGNMENT", "four", 6, [0]),
    _extend("too many assignments", "INVALID_REPLICA_ASSIGNMENT", "four", 5, [0], [0]),
    _extend("an assignment without brokers", "INVALID_REPLICA_ASSIGNMENT", "four", 5, []),
    _extend("an unknown broker", "INVALID_REPLICA_ASSIGNMENT", "four", 5, [7]),
    _extend("a broker twice", "INVALID_REPLICA_ASSIGNMENT", "four", 5, [0, 0]),
    _extend("another number of replicas", "INVALID_REPLICA_ASSIGNMENT", "four", 5, [0, 7]),
    _extend("a topic twice", "INVALID_REQUEST", "four", 5, twice=True),
    _extend("a user without permission", "TOPIC_AUTHORIZATION_FAILED", "four", 5, by=ALICE),
    case(
        "create_partitions",
        "an empty list of assignments",
        3,
        "INVALID_REPLICA_ASSIGNMENT",
        timeout_ms=10000,
        topics=[{"name": "four", "count": 5, "assignments": []}],
        validate_only=True,
    ),
    case(
        "create_partitions",
        "more partitions than a topic may have",
        3,
        "POLICY_VIOLATION",
        timeout_ms=10000,
        topics=[{"name": "four", "count": 2_000_000, "assignments": None}],
        validate_only=True,
    ),
)


def _delete(name: str, errors: str, *topics: Any, by: str = "anyone") -> Case:
    return case("delete_topics", name, 6, errors, by, topics=list(topics), timeout_ms=10000)


_BY_ID: Final = {"name": None, "topic_id": id_of("one")}

DELETE: Final = (
    _delete("an unknown name", "UNKNOWN_TOPIC_OR_PARTITION", {"name": "nothing"}),
    _delete("an invalid name", "UNKNOWN_TOPIC_OR_PARTITION", {"name": "a b"}),
    _delete("an unknown id", "UNKNOWN_TOPIC_ID", {"topic_id": _UNKNOWN_ID}),
    _delete("name and id", "INVALID_REQUEST", {"name": "one", "topic_id": id_of("one")}),
    _delete("neither name nor id", "INVALID_REQUEST", {"name": None}),
    _delete("a name twice", "INVALID_REQUEST", {"name": "one"}, {"name": "one"}),
    _delete("an id twice", "INVALID_REQUEST", _BY_ID, _BY_ID),
    _delete("an unknown name twice", "INVALID_REQUEST", {"name": "nothing"}, {"name": "nothing"}),
    _delete("by name and by id", "INVALID_REQUEST", {"name": "doomed"}, {"name": None, "topic_id": id_of("doomed")}),
    _delete("a user without permission", "TOPIC_AUTHORIZATION_FAILED", {"name": "one"}, by=ALICE),
    _delete("without permission, an unknown name", "TOPIC_AUTHORIZATION_FAILED", {"name": "nothing"}, by=ALICE),
    _delete("without permission, by id", "TOPIC_AUTHORIZATION_FAILED", _BY_ID, by=ALICE),
    _delete("without permission, an unknown id", "UNKNOWN_TOPIC_ID", {"topic_id": _UNKNOWN_ID}, by=ALICE),
    case("delete_topics", "an unknown name", 1, "UNKNOWN_TOPIC_OR_PARTITION", topic_names=["nothing"], timeout_ms=9000),
)


def _records(name: str, errors: str, topic: str, partition: int, offset: int, by: str = "anyone") -> Case:
    topics = [{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}]
    return case("delete_records", name, 2, errors, by, topics=topics, timeout_ms=10000)


DELETE_RECORDS: Final = (
    _records("an unknown topic", "UNKNOWN_TOPIC_OR_PARTITION", "nothing", 0, 0),
    _records("an unknown partition", "UNKNOWN_TOPIC_OR_PARTITION", "one", 9, 0),
    _records("a negative partition", "UNKNOWN_TOPIC_OR_PARTITION", "one", -1, 0),
    _records("an offset beyond the end", "OFFSET_OUT_OF_RANGE", "one", 0, 1 << 40),
    _records("offset -2", "OFFSET_OUT_OF_RANGE", "one", 0, -2),
    _records("offset -1", "", "four", 0, -1),
    _records("a compacted topic", "POLICY_VIOLATION", "compacted", 0, 0),
    _records("a compacted topic, beyond the end", "POLICY_VIOLATION", "compacted", 0, 99),
    _records("an internal topic", "INVALID_TOPIC_EXCEPTION", "__consumer_offsets", 0, 0),
    _records("a user without permission", "TOPIC_AUTHORIZATION_FAILED", "one", 0, 0, ALICE),
    _records("without permission, an unknown topic", "TOPIC_AUTHORIZATION_FAILED", "nothing", 0, 0, ALICE),
)


def _metadata(name: str, version: int, errors: str, *topics: Any, by: str = "anyone") -> Case:
    return case("metadata", name, version, errors, by, topics=list(topics), allow_auto_topic_creation=False)


METADATA: Final = (
    _metadata("an unknown name", 12, "UNKNOWN_TOPIC_OR_PARTITION", {"name": "nothing"}),
    _metadata("an invalid name", 12, "INVALID_TOPIC_EXCEPTION", {"name": "a b"}),
    _metadata("an empty name", 12, "INVALID_TOPIC_EXCEPTION", {"name": ""}),
    _metadata("an empty name", 4, "INVALID_TOPIC_EXCEPTION", {"name": ""}),
    _metadata("a long name", 9, "INVALID_TOPIC_EXCEPTION", {"name": _LONG}),
    _metadata("an unknown id", 12, "UNKNOWN_TOPIC_ID", {"name": None, "topic_id": _UNKNOWN_ID}),
    _metadata("name and id", 12, "", {"name": "one", "topic_id": id_of("one")}),
    _metadata("name and another id", 12, "UNKNOWN_TOPIC_ID", {"name": "one", "topic_id": _UNKNOWN_ID}),
    _metadata("neither name nor id", 12, "INVALID_REQUEST", {"name": None}),
    _metadata("no name", 10, "INVALID_REQUEST", {"name": None}),
    _metadata("an id, before version 12", 10, "INVALID_REQUEST", {"name": "one", "topic_id": id_of("one")}),
    _metadata("a user without permission", 12, "TOPIC_AUTHORIZATION_FAILED", {"name": "one"}, by=ALICE),
    _metadata("without permission, an unknown name", 12, "TOPIC_AUTHORIZATION_FAILED", {"name": "nothing"}, by=ALICE),
    _metadata(
        "without permission, by id",
        12,
        "TOPIC_AUTHORIZATION_FAILED",
        {"name": None, "topic_id": id_of("one")},
        by=ALICE,
    ),
    _metadata(
        "without permission, an unknown id",
        12,
        "UNKNOWN_TOPIC_ID",
        {"name": None, "topic_id": _UNKNOWN_ID},
        by=ALICE,
    ),
    case("metadata", "to be created, an invalid name", 12, "INVALID_TOPIC_EXCEPTION", topics=[{"name": "a b"}]),
    case("metadata", "nothing", 12, "", topics=[]),
)


def _describe(name: str, errors: str, *topics: str, by: str = "anyone", **more: Any) -> Case:
    asked = [{"name": topic} for topic in topics]
    return case("describe_topic_partitions", name, 0, errors, by, topics=asked, **more)


def _cursor(topic: str, index: int) -> Any:
    return {"topic_name": topic, "partition_index": index}


DESCRIBE: Final = (
    _describe("an unknown name", "UNKNOWN_TOPIC_OR_PARTITION", "nothing"),
    _describe("an invalid name", "INVALID_TOPIC_EXCEPTION", "a b"),
    _describe("an empty name", "INVALID_TOPIC_EXCEPTION", ""),
    _describe("a cursor before the first partition", "INVALID_REQUEST", "one", cursor=_cursor("one", -1)),
    _describe("a cursor behind the last partition", "", "one", cursor=_cursor("one", 9)),
    _describe("no partitions at all", "", "one", response_partition_limit=0),
    _describe("a user without permission", "TOPIC_AUTHORIZATION_FAILED", "one", by=ALICE),
    _describe("without permission, an unknown name", "TOPIC_AUTHORIZATION_FAILED", "nothing", by=ALICE),
)


def _elect(name: str, errors: str, kind: int, topic: str, index: int, by: str = "anyone") -> Case:
    topics = [{"topic": topic, "partitions": [index]}]
    return case("elect_leaders", name, 2, errors, by, election_type=kind, topic_partitions=topics, timeout_ms=10000)


def _move(name: str, errors: str, topic: str, index: int, brokers: Any, by: str = "anyone") -> Case:
    partitions = [{"partition_index": index, "replicas": brokers}]
    topics = [{"name": topic, "partitions": partitions}]
    return case("alter_partition_reassignments", name, 0, errors, by, topics=topics, timeout_ms=10000)


def _directory(name: str, errors: str, path: str, topic: str, index: int = 0, by: str = "anyone") -> Case:
    dirs = [{"path": path, "topics": [{"name": topic, "partitions": [index]}]}]
    return case("alter_replica_log_dirs", name, 2, errors, by, dirs=dirs)


REPLICAS: Final = (
    _elect("an unknown topic", "UNKNOWN_TOPIC_OR_PARTITION", 0, "nothing", 0),
    _elect("an unknown partition", "UNKNOWN_TOPIC_OR_PARTITION", 0, "one", 9),
    _elect("the preferred leader leads", "ELECTION_NOT_NEEDED", 0, "one", 0),
    _elect("an unclean one, there is a leader", "ELECTION_NOT_NEEDED", 1, "one", 0),
    _elect("an unknown type", "INVALID_REQUEST", 2, "one", 0),
    _elect("a user without permission", "CLUSTER_AUTHORIZATION_FAILED", 0, "one", 0, ALICE),
    _move("an unknown topic", "UNKNOWN_TOPIC_OR_PARTITION", "nothing", 0, [0]),
    _move("an unknown partition", "UNKNOWN_TOPIC_OR_PARTITION", "one", 9, [0]),
    _move("no brokers", "INVALID_REPLICA_ASSIGNMENT", "one", 0, []),
    _move("a broker twice", "INVALID_REPLICA_ASSIGNMENT", "one", 0, [0, 0]),
    _move("an unknown broker", "INVALID_REPLICA_ASSIGNMENT", "one", 0, [7]),
    _move("a negative broker", "INVALID_REPLICA_ASSIGNMENT", "one", 0, [-1]),
    _move("the brokers that it has", "", "one", 0, [0]),
    _move("nothing to cancel", "NO_REASSIGNMENT_IN_PROGRESS", "one", 0, None),
    _move("nothing to cancel, an unknown topic", "UNKNOWN_TOPIC_OR_PARTITION", "nothing", 0, None),
    _move("a user without permission", "CLUSTER_AUTHORIZATION_FAILED", "one", 0, [0], ALICE),
    case(
        "list_partition_reassignments",
        "an unknown topic",
        0,
        "",
        topics=[{"name": "nothing", "partition_indexes": [0]}],
    ),
    case(
        "list_partition_reassignments",
        "a user without permission",
        0,
        "CLUSTER_AUTHORIZATION_FAILED",
        ALICE,
        topics=None,
    ),
    _directory("an unknown directory", "LOG_DIR_NOT_FOUND", "/no/such/directory", "one"),
    _directory("a relative path", "LOG_DIR_NOT_FOUND", "relative", "one"),
    _directory("an unknown directory and topic", "LOG_DIR_NOT_FOUND", "/no/such/directory", "nothing"),
    _directory("a user without permission", "CLUSTER_AUTHORIZATION_FAILED", "/no/such/directory", "one", by=ALICE),
    case("describe_log_dirs", "an unknown topic", 4, "", topics=[{"topic": "nothing", "partitions": [0]}]),
    case("describe_log_dirs", "a user without permission", 4, "CLUSTER_AUTHORIZATION_FAILED", ALICE, topics=None),
    case("describe_log_dirs", "a user without permission", 2, "", ALICE, topics=None),
    case(
        "describe_producers",
        "an unknown topic",
        0,
        "UNKNOWN_TOPIC_OR_PARTITION",
        topics=[{"name": "nothing", "partition_indexes": [0]}],
    ),
    case(
        "describe_producers",
        "an invalid name",
        0,
        "INVALID_TOPIC_EXCEPTION",
        topics=[{"name": "a b", "partition_indexes": [0]}],
    ),
    case(
        "describe_producers",
        "an unknown partition",
        0,
        "UNKNOWN_TOPIC_OR_PARTITION",
        topics=[{"name": "one", "partition_indexes": [9]}],
    ),
    case(
        "describe_producers",
        "a user without permission",
        0,
        "TOPIC_AUTHORIZATION_FAILED",
        ALICE,
        topics=[{"name": "one", "partition_indexes": [0]}],
    ),
)


def _spend(name: str) -> tuple[Step, ...]:
    """Return a request that uses more than the quota of the user who may make few topics allows for long."""
    return (("create_topics", 7, {"topics": [_topic(name, 20)]}),)


#: Of a user with a quota, and of brokers that delete no topics.
LIMITS: Final = (
    case(
        "create_topics",
        "over the quota",
        7,
        "THROTTLING_QUOTA_EXCEEDED",
        LIMITED,
        _spend("q1"),
        topics=[_topic("q2", 5)],
    ),
    case(
        "create_partitions",
        "over the quota",
        3,
        "THROTTLING_QUOTA_EXCEEDED",
        LIMITED,
        topics=[{"name": "four", "count": 9, "assignments": None}],
        timeout_ms=10000,
    ),
    case(
        "delete_topics",
        "over the quota",
        6,
        "THROTTLING_QUOTA_EXCEEDED",
        LIMITED,
        topics=[{"name": "four"}],
        timeout_ms=10000,
    ),
    case(
        "delete_topics",
        "where none may be deleted",
        6,
        "TOPIC_DELETION_DISABLED",
        brokers=OPEN,
        topics=[{"name": "one"}],
        timeout_ms=10000,
    ),
    case(
        "delete_topics",
        "where none may be deleted, an unknown one",
        6,
        "TOPIC_DELETION_DISABLED",
        brokers=OPEN,
        topics=[{"name": "nothing"}],
        timeout_ms=10000,
    ),
    case(
        "delete_topics",
        "where none may be deleted",
        2,
        "INVALID_REQUEST",
        brokers=OPEN,
        topic_names=["one"],
        timeout_ms=10000,
    ),
    case(
        "alter_replica_log_dirs",
        "an unknown topic",
        2,
        "UNKNOWN_TOPIC_OR_PARTITION",
        dirs=lambda peer: [{"path": peer.directory, "topics": [{"name": "nothing", "partitions": [0]}]}],
    ),
    case(
        "alter_replica_log_dirs",
        "the directory that it is in",
        2,
        "",
        dirs=lambda peer: [{"path": peer.directory, "topics": [{"name": "one", "partitions": [0]}]}],
    ),
)

CASES: Final = (*LIMITS, *CREATE, *EXTEND, *DELETE, *DELETE_RECORDS, *METADATA, *DESCRIBE, *REPLICAS)
