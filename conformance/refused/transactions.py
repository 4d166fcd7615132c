"""Refused requests about producer ids and transactions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from conformance.refused.model import ALICE, ANYONE, PRODUCER, READER, Case, Peer, Step, case
from pylogd.wire.records import TRANSACTIONAL, encode_batch

_MINUTE: Final = 60_000


def _initialize(
    name: str, errors: str, id: str | None, timeout: int = _MINUTE, known: Any = (-1, -1), by: str = "anyone",
    before: Any = (), version: int = 4,
) -> Case:  # fmt: skip
    return case("init_producer_id", name, version, errors, by, before, **_begin(id, timeout, known))


def _begin(id: str | None, timeout: int = _MINUTE, known: Any = (-1, -1)) -> dict[str, Any]:
    return {
        "transactional_id": id, "transaction_timeout_ms": timeout, "producer_id": known[0], "producer_epoch": known[1],
    }  # fmt: skip


def _opened(id: str) -> tuple[Step, ...]:
    """Return the request that gives a transactional id a producer id."""
    return (("init_producer_id", 4, _begin(id)),)


def producer(by: int = 0) -> Callable[[Peer], int]:
    """Return a function that returns the producer id of the first answer before. by: added to it."""
    return lambda peer: int(peer.answers[0].producer_id) + by


def epoch(by: int = 0) -> Callable[[Peer], int]:
    """Return the same for the producer epoch."""
    return lambda peer: int(peer.answers[0].producer_epoch) + by


PRODUCERS: Final = (
    _initialize("an empty transactional id", "INVALID_REQUEST", ""),
    _initialize("a long transactional id", "INVALID_REQUEST", "t" * 1100),
    _initialize("a timeout of 0", "INVALID_TRANSACTION_TIMEOUT", "i1", 0),
    _initialize("a negative timeout", "INVALID_TRANSACTION_TIMEOUT", "i1", -1),
    _initialize("too long a timeout", "INVALID_TRANSACTION_TIMEOUT", "i1", 1 << 30),
    _initialize("an epoch without a producer id", "INVALID_REQUEST", "i2", known=(-1, 3)),
    _initialize("a producer id without an epoch", "INVALID_REQUEST", "i2", known=(3, -1)),
    _initialize("a producer id for an unknown transactional id", "", "i3", known=(4711, 3)),
    _initialize("another producer's id", "PRODUCER_FENCED", "i4", known=(producer(1), 0), before=_opened("i4")),
    _initialize("an epoch that is to come", "PRODUCER_FENCED", "i5", known=(producer(), 99), before=_opened("i5")),
    _initialize(
        "an epoch that is to come",
        "INVALID_PRODUCER_EPOCH",
        "i6",
        known=(producer(), 99),
        before=_opened("i6"),
        version=3,
    ),
    _initialize("without transactional id, an epoch without an id", "INVALID_REQUEST", None, known=(-1, 3)),
    _initialize("the id, without permission", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "i1", by=ALICE),
    _initialize("no id, without permission", "CLUSTER_AUTHORIZATION_FAILED", None, by=ALICE),
)


def _add(
    name: str, errors: str, id: str, *topics: tuple[str, int], by: str = "anyone", who: int = 0, later: int = 0,
    known: bool = True, version: int = 3,
) -> Case:  # fmt: skip
    listed = [{"name": topic, "partitions": [index]} for topic, index in topics]
    return case(
        "add_partitions_to_txn", name, version, errors, by, _opened(id) if known else (),
        v3_and_below_transactional_id=id, v3_and_below_producer_id=producer(who) if known else 4711,
        v3_and_below_producer_epoch=epoch(later) if known else 0, v3_and_below_topics=listed,
    )  # fmt: skip


def _added(id: str) -> tuple[Step, ...]:
    """Return the requests after which a transaction is open."""
    body = {
        "v3_and_below_transactional_id": id, "v3_and_below_producer_id": producer(),
        "v3_and_below_producer_epoch": epoch(), "v3_and_below_topics": [{"name": "one", "partitions": [0]}],
    }  # fmt: skip
    return (*_opened(id), ("add_partitions_to_txn", 3, body))


def _end(
    name: str, errors: str, id: str, committed: bool, *, before: Any = None, by: str = "anyone", who: int = 0,
    later: int = 0, version: int = 3,
) -> Case:  # fmt: skip
    steps = _opened(id) if before is None else before
    return case(
        "end_txn", name, version, errors, by, steps, transactional_id=id,
        producer_id=producer(who) if steps else 4711, producer_epoch=epoch(later) if steps else 0,
        committed=committed,
    )  # fmt: skip


def _verify(name: str, errors: str, id: str, topic: str, before: Any, *, who: int = 0, later: int = 0) -> Case:
    transaction = {
        "transactional_id": id, "producer_id": producer(who) if before else 4711,
        "producer_epoch": epoch(later) if before else 0, "verify_only": True,
        "topics": [{"name": topic, "partitions": [0]}],
    }  # fmt: skip
    return case("add_partitions_to_txn", name, 4, errors, before=before, transactions=[transaction])


PARTITIONS: Final = (
    _add("an unknown transactional id", "INVALID_PRODUCER_ID_MAPPING", "p0", ("one", 0), known=False),
    _add("an unknown topic", "UNKNOWN_TOPIC_OR_PARTITION", "p1", ("nothing", 0)),
    _add("an unknown partition", "UNKNOWN_TOPIC_OR_PARTITION", "p1", ("one", 9)),
    _add(
        "an unknown topic beside a known one",
        "OPERATION_NOT_ATTEMPTED UNKNOWN_TOPIC_OR_PARTITION",
        "p1",
        ("one", 0),
        ("nothing", 0),
    ),
    _add("an internal topic", "TOPIC_AUTHORIZATION_FAILED", "p1", ("__consumer_offsets", 0)),
    _add("another producer's id", "INVALID_PRODUCER_ID_MAPPING", "p2", ("one", 0), who=1),
    _add("another epoch", "PRODUCER_FENCED", "p2", ("one", 0), later=5),
    _add("another epoch", "INVALID_PRODUCER_EPOCH", "p2", ("one", 0), later=5, version=1),
    _add("no topics", "", "p3"),
    _add("an empty transactional id", "INVALID_REQUEST", "", ("one", 0), known=False),
    _add("without permission", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "p2", ("one", 0), by=ALICE, known=False),
    _verify("verifying an unknown transactional id", "INVALID_PRODUCER_ID_MAPPING", "p4", "one", ()),
    _verify("verifying what was not added", "TRANSACTION_ABORTABLE", "p5", "four", _added("p5")),
    _verify("verifying another producer's id", "INVALID_PRODUCER_ID_MAPPING", "p6", "one", _added("p6"), who=1),
    _verify("verifying another epoch", "PRODUCER_FENCED", "p7", "one", _added("p7"), later=5),
    case(
        "add_partitions_to_txn",
        "brokers' version, without permission",
        4,
        "CLUSTER_AUTHORIZATION_FAILED",
        ALICE,
        transactions=[
            {
                "transactional_id": "p8",
                "producer_id": 1,
                "producer_epoch": 0,
                "topics": [{"name": "one", "partitions": [0]}],
            }
        ],
    ),
    _end("an unknown transactional id", "INVALID_PRODUCER_ID_MAPPING", "e0", True, before=()),
    _end("an empty transactional id", "INVALID_REQUEST", "", True, before=()),
    _end("commit of nothing", "INVALID_TXN_STATE", "e1", True),
    _end("abort of nothing", "INVALID_TXN_STATE", "e2", False),
    _end("another producer's id", "INVALID_PRODUCER_ID_MAPPING", "e3", True, before=_added("e3"), who=1),
    _end("an epoch that is to come", "PRODUCER_FENCED", "e4", True, before=_added("e4"), later=5),
    _end("an epoch that is to come", "INVALID_PRODUCER_EPOCH", "e5", True, before=_added("e5"), later=5, version=1),
    _end("without permission", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "e6", True, before=(), by=ALICE),
)


def _offsets(
    name: str, errors: str, id: str, group: str, by: str = "anyone", *, who: int = 0, later: int = 0, known: bool = True
) -> Case:
    return case(
        "add_offsets_to_txn", name, 3, errors, by, _opened(id) if known else (), transactional_id=id,
        producer_id=producer(who) if known else 4711, producer_epoch=epoch(later) if known else 0, group_id=group,
    )  # fmt: skip


def _stage(
    name: str, errors: str, id: str, group: str, topic: str = "one", by: str = "anyone", *, index: int = 0,
    text: str = "", version: int = 3, before: Any = None, later: int = 0, **more: Any,
) -> Case:  # fmt: skip
    steps = _with_group(id, group) if before is None else before
    partition = {"partition_index": index, "committed_offset": 1, "committed_metadata": text}
    return case(
        "txn_offset_commit", name, version, errors, by, steps, transactional_id=id, group_id=group,
        producer_id=producer() if steps else 4711, producer_epoch=epoch(later) if steps else 0,
        topics=[{"name": topic, "partitions": [partition]}], **more,
    )  # fmt: skip


def _with_group(id: str, group: str) -> tuple[Step, ...]:
    """Return the requests after which a group's offsets are part of a transaction."""
    body = {"transactional_id": id, "producer_id": producer(), "producer_epoch": epoch(), "group_id": group}
    return (*_opened(id), ("add_offsets_to_txn", 3, body))


OFFSETS: Final = (
    _offsets("an unknown transactional id", "INVALID_PRODUCER_ID_MAPPING", "a0", "ga", known=False),
    _offsets("another producer's id", "INVALID_PRODUCER_ID_MAPPING", "a1", "ga", who=1),
    _offsets("another epoch", "PRODUCER_FENCED", "a2", "ga", later=5),
    _offsets("no group", "", "a3", ""),
    _offsets("a long group", "INVALID_GROUP_ID", "a4", "g" * 1025),
    _offsets("the id, without permission", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "a2", "ga", ALICE, known=False),
    _stage("an unknown topic", "UNKNOWN_TOPIC_OR_PARTITION", "b1", "gb1", "nothing"),
    _stage("an unknown partition", "UNKNOWN_TOPIC_OR_PARTITION", "b1", "gb1", index=9),
    _stage("metadata that is too long", "OFFSET_METADATA_TOO_LARGE", "b2", "gb2", text="x" * 5000),
    _stage("no transaction, an unknown transactional id", "INVALID_PRODUCER_ID_MAPPING", "b3", "gb3", before=()),
    _stage("no transaction", "INVALID_TXN_STATE", "b4", "gb4", before=_opened("b4")),
    _stage("no transaction", "TRANSACTION_ABORTABLE", "b5", "gb5", before=_opened("b5"), version=4),
    _stage("an older epoch", "INVALID_PRODUCER_EPOCH", "b6", "gb6", later=5),
    _stage(
        "a generation of a group without members", "ILLEGAL_GENERATION", "b7", "gb7", generation_id=3, member_id="x"
    ),
    _stage("no group", "INVALID_GROUP_ID", "b8", ""),
    _stage("the id, without permission", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "b9", "gb9", by=ALICE, before=()),
)

_MARKER: Final[dict[str, Any]] = {
    "producer_id": 990, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0,
}  # fmt: skip


def _marker(name: str, errors: str, topic: str, index: int = 0, by: str = "anyone", **more: Any) -> Case:
    marker = {**_MARKER, "topics": [{"name": topic, "partition_indexes": [index]}], **more}
    return case("write_txn_markers", name, 1, errors, by, markers=[marker])


REST: Final = (
    case("describe_transactions", "an unknown id", 0, "TRANSACTIONAL_ID_NOT_FOUND", transactional_ids=["nothing"]),
    case("describe_transactions", "an empty id", 0, "INVALID_REQUEST", transactional_ids=[""]),
    case(
        "describe_transactions",
        "without permission",
        0,
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        ALICE,
        transactional_ids=["x"],
    ),
    case("list_transactions", "an unknown state", 1, "", state_filters=["nonsense"]),
    case("list_transactions", "a faulty expression", 2, "INVALID_REGULAR_EXPRESSION", transactional_id_pattern="(["),
    _marker("an unknown topic", "UNKNOWN_TOPIC_OR_PARTITION", "nothing"),
    _marker("an unknown partition", "UNKNOWN_TOPIC_OR_PARTITION", "one", 9),
    _marker(
        "a coordinator's epoch that is to come",
        "UNKNOWN_LEADER_EPOCH",
        "four",
        3,
        coordinator_epoch=99,
        producer_id=991,
    ),
    _marker("without permission", "CLUSTER_AUTHORIZATION_FAILED", "one", by=ALICE),
)


def _staged(id: str, group: str) -> tuple[Step, ...]:
    """Return the requests after which an open transaction has an offset of a group."""
    body = {
        "transactional_id": id, "group_id": group, "producer_id": producer(), "producer_epoch": epoch(),
        "topics": [{"name": "one", "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    }  # fmt: skip
    return (*_with_group(id, group), ("txn_offset_commit", 3, body))


_STABLE: Final[dict[str, Any]] = {"require_stable": True}
_ASKED: Final = [{"group_id": "gs1", "topics": [{"name": "one", "partition_indexes": [0]}]}]


def _not_begun(name: str, errors: str, id: str, version: int) -> Case:
    """Write a batch of a producer whose transaction does not have the partition."""

    def batch(peer: Peer) -> bytes:
        record = (b"k", b"v", int(time.time() * 1000), ())
        return encode_batch(
            [record], attributes=TRANSACTIONAL, producer_id=producer()(peer), producer_epoch=epoch()(peer),
            base_sequence=0,
        )  # fmt: skip

    data = [{"name": "four", "partition_data": [{"index": 0, "records": batch}]}]
    return case(
        "produce", name, version, errors, before=_opened(id), transactional_id=id, acks=-1, timeout_ms=10000,
        topic_data=data,
    )  # fmt: skip


#: Of users who may use transactional ids, but no topics or no groups; and of offsets in open transactions.
LIMITS: Final = (
    _not_begun("a partition that was not added", "INVALID_TXN_STATE", "w1", 10),
    _not_begun("a partition that is added by it", "", "w2", 12),
    _offsets("the group, without permission", "GROUP_AUTHORIZATION_FAILED", "n1", "gn1", PRODUCER),
    _stage("the group, without permission", "GROUP_AUTHORIZATION_FAILED", "n2", "gn2", by=PRODUCER, before=()),
    _stage("a topic, without permission", "TOPIC_AUTHORIZATION_FAILED", "n3", "gn3", by=READER),
    _add("a topic, without permission", "TOPIC_AUTHORIZATION_FAILED", "n4", ("one", 0), by=READER),
    _stage(
        "a topic beside one that does not exist, without permission",
        "TOPIC_AUTHORIZATION_FAILED",
        "n5",
        "gn5",
        "nothing",
        by=READER,
    ),
    case(
        "offset_fetch",
        "an offset in an open transaction",
        9,
        "UNSTABLE_OFFSET_COMMIT",
        ANYONE,
        _staged("s1", "gs1"),
        groups=_ASKED,
        **_STABLE,
    ),
    case("offset_fetch", "an offset in an open transaction, which may be missing", 9, "", groups=_ASKED),
)

CASES: Final = (*LIMITS, *PRODUCERS, *PARTITIONS, *OFFSETS, *REST)
