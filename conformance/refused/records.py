"""Refused requests that write and read records: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch."""

from __future__ import annotations

import struct
import time
from typing import Any, Final

from conformance.refused.model import ALICE, Case, case
from conformance.refused.topics import id_of
from pylogd.wire.compression import CompressionType
from pylogd.wire.records import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    crc32c,
    encode_batch,
)

_BEFORE_IDS, _NEWEST = 12, 13
_UNKNOWN_ID: Final = bytes(15) + b"\7"
_CRC_AT, _COVERED_AT, _COUNT_AT, _MAGIC_AT = 17, 21, 57, 16
_WEEK_MS: Final = 7 * 24 * 3600 * 1000


def _batch(*values: bytes, key: bytes | None = b"k", later_ms: int = 0, **options: Any) -> bytes:
    now = int(time.time() * 1000) + later_ms
    return encode_batch([(key, value, now, ()) for value in values or (b"v",)], **options)


def _with_crc(batch: bytes) -> bytes:
    """Return a batch that was changed with the checksum that it has to have."""
    return batch[:_CRC_AT] + struct.pack(">I", crc32c(batch[_COVERED_AT:])) + batch[_COVERED_AT:]


def _counting(batch: bytes, count: int) -> bytes:
    """Return a batch whose header says that it has so many records."""
    return _with_crc(batch[:_COUNT_AT] + struct.pack(">i", count) + batch[_COUNT_AT + 4 :])


def _produce(
    name: str, errors: str, topic: str, records: Any, by: str = "anyone", *, index: int = 0, version: int = _BEFORE_IDS,
    acks: int = -1, transactional: str | None = None,
) -> Case:  # fmt: skip
    data = [{"name": topic, "partition_data": [{"index": index, "records": records}]}]
    return case(
        "produce", name, version, errors, by, transactional_id=transactional, acks=acks, timeout_ms=10000,
        topic_data=data,
    )  # fmt: skip


def _by_id(name: str, errors: str, topic_id: Any, by: str = "anyone") -> Case:
    data = [{"topic_id": topic_id, "partition_data": [{"index": 0, "records": lambda _: _batch()}]}]
    return case("produce", name, _NEWEST, errors, by, acks=-1, timeout_ms=10000, topic_data=data)


_ZSTD: Final = CompressionType.ZSTD

PRODUCE: Final = (
    _produce("an unknown topic", "UNKNOWN_TOPIC_OR_PARTITION", "nothing", lambda _: _batch()),
    _produce("an invalid topic", "UNKNOWN_TOPIC_OR_PARTITION", "a b", lambda _: _batch()),
    _produce("an unknown partition", "UNKNOWN_TOPIC_OR_PARTITION", "one", lambda _: _batch(), index=9),
    _produce("a negative partition", "UNKNOWN_TOPIC_OR_PARTITION", "one", lambda _: _batch(), index=-1),
    _by_id("an unknown id", "UNKNOWN_TOPIC_ID", _UNKNOWN_ID),
    _by_id("without permission, by id", "TOPIC_AUTHORIZATION_FAILED", id_of("one"), ALICE),
    _by_id("without permission, an unknown id", "UNKNOWN_TOPIC_ID", _UNKNOWN_ID, ALICE),
    _produce("acks of 2", "INVALID_REQUIRED_ACKS", "one", lambda _: _batch(), acks=2),
    _produce("acks of -2", "INVALID_REQUIRED_ACKS", "one", lambda _: _batch(), acks=-2),
    _produce("acks of 2, an unknown topic", "INVALID_REQUIRED_ACKS", "nothing", lambda _: _batch(), acks=2),
    _produce("an internal topic", "INVALID_TOPIC_EXCEPTION", "__consumer_offsets", lambda _: _batch()),
    _produce("too few replicas in sync", "", "two-in-sync", lambda _: _batch()),
    _produce("too few replicas in sync, acks of 1", "", "two-in-sync", lambda _: _batch(), acks=1),
    _produce("a base offset", "INVALID_RECORD", "one", lambda _: _batch(base_offset=5)),
    _produce("a time of appending", "INVALID_TIMESTAMP", "one", lambda _: _batch(attributes=LOG_APPEND_TIME)),
    _produce("a delete horizon", "INVALID_RECORD", "one", lambda _: _batch(attributes=DELETE_HORIZON)),
    _produce("unknown attributes", "INVALID_RECORD", "one", lambda _: _batch(attributes=1 << 9)),
    _produce("bytes behind a batch", "CORRUPT_MESSAGE", "one", lambda _: _batch() + b"more"),
    _produce(
        "a length that is too small",
        "CORRUPT_MESSAGE",
        "one",
        lambda _: _batch()[:8] + struct.pack(">i", 20) + _batch()[12:],
    ),
    _produce(
        "a codec that is not that of the records",
        "INVALID_RECORD",
        "one",
        lambda _: _with_crc(_batch(b"x" * 80)[:22] + b"\1" + _batch(b"x" * 80)[23:]),
    ),
    _produce("a batch that is too large", "MESSAGE_TOO_LARGE", "one", lambda _: _batch(b"x" * (2 << 20))),
    _produce("a batch larger than a segment", "RECORD_LIST_TOO_LARGE", "segments", lambda _: _batch(b"x" * (2 << 20))),
    _produce("a wrong checksum", "CORRUPT_MESSAGE", "one", lambda _: _batch()[:-1] + b"\7"),
    _produce("no bytes", "INVALID_RECORD", "one", b""),
    _produce("a cut batch", "INVALID_RECORD", "one", lambda _: _batch()[:-1]),
    _produce("a cut header", "INVALID_RECORD", "one", lambda _: _batch()[:30]),
    _produce("two batches", "INVALID_RECORD", "one", lambda _: _batch() + _batch()),
    _produce("a batch of format 1", "INVALID_RECORD", "one", lambda _: _batch()[:16] + b"\1" + _batch()[17:]),
    _produce("a batch of format 3", "CORRUPT_MESSAGE", "one", lambda _: _batch()[:16] + b"\3" + _batch()[17:]),
    _produce("more records in the header than there are", "INVALID_RECORD", "one", lambda _: _counting(_batch(), 2)),
    _produce("no records by the header", "INVALID_RECORD", "one", lambda _: _counting(_batch(), 0)),
    _produce(
        "records that can't be read",
        "INVALID_RECORD",
        "one",
        lambda _: _with_crc(_batch(b"x" * 40)[:HEADER_SIZE] + b"\xfe" * 48),
    ),
    _produce("a record without key", "INVALID_RECORD", "compacted", lambda _: _batch(key=None)),
    _produce(
        "a compressed record without key", "INVALID_RECORD", "compacted", lambda _: _batch(key=None, compression=1)
    ),
    _produce("a time stamp in a week", "INVALID_TIMESTAMP", "one", lambda _: _batch(later_ms=_WEEK_MS)),
    _produce("a control batch", "INVALID_RECORD", "one", lambda _: _batch(attributes=CONTROL)),
    _produce("zstd", "UNSUPPORTED_COMPRESSION_TYPE", "one", lambda _: _batch(compression=_ZSTD), version=6),
    _produce("zstd", "", "one", lambda _: _batch(compression=_ZSTD), version=7),
    _produce("codec 5", "UNSUPPORTED_COMPRESSION_TYPE", "one", lambda _: _with_crc(_batch(attributes=5))),
    _produce(
        "a first sequence that is not 0",
        "",
        "one",
        lambda _: _batch(producer_id=777, producer_epoch=0, base_sequence=5),
    ),
    _produce(
        "a producer without sequence", "INVALID_RECORD", "one", lambda _: _batch(producer_id=779, producer_epoch=0)
    ),
    _produce(
        "a producer with a negative epoch", "INVALID_RECORD", "one", lambda _: _batch(producer_id=780, base_sequence=0)
    ),
    _produce(
        "a transaction without producer",
        "INVALID_RECORD",
        "one",
        lambda _: _batch(attributes=TRANSACTIONAL),
        transactional="tx",
    ),
    _produce(
        "a transaction that was not begun",
        "INVALID_PRODUCER_ID_MAPPING",
        "one",
        transactional="nothing-begun",
        version=11,
        records=lambda _: _batch(attributes=TRANSACTIONAL, producer_id=781, producer_epoch=0, base_sequence=0),
    ),
    _produce(
        "a transaction without id",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "one",
        version=11,
        records=lambda _: _batch(attributes=TRANSACTIONAL, producer_id=782, producer_epoch=0, base_sequence=0),
    ),
    _produce(
        "a transaction, without permission",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "one",
        by=ALICE,
        version=11,
        transactional="tx",
        records=lambda _: _batch(attributes=TRANSACTIONAL, producer_id=783, producer_epoch=0, base_sequence=0),
    ),
    _produce("a user without permission", "TOPIC_AUTHORIZATION_FAILED", "one", lambda _: _batch(), ALICE),
    _produce(
        "without permission, an unknown topic", "TOPIC_AUTHORIZATION_FAILED", "nothing", lambda _: _batch(), ALICE
    ),
)


def _written(topic: str, *batches: Any, index: int = 0) -> Any:
    """Return a request that appends a batch, for each of the batches."""
    return tuple(
        (
            "produce", _BEFORE_IDS,
            {"acks": -1, "timeout_ms": 10000,
             "topic_data": [{"name": topic, "partition_data": [{"index": index, "records": one}]}]},
        )
        for one in batches
    )  # fmt: skip


def _sequence(name: str, errors: str, producer: int, index: int, first: Any, second: Any) -> Case:
    """Append a batch, and then another one of the same producer. first, second: epoch and sequence."""

    def of(epoch: int, sequence: int) -> Any:
        return lambda _: _batch(producer_id=producer, producer_epoch=epoch, base_sequence=sequence)

    data = [{"name": "four", "partition_data": [{"index": index, "records": of(*second)}]}]
    return case(
        "produce", name, _BEFORE_IDS, errors, before=_written("four", of(*first), index=index), acks=-1,
        timeout_ms=10000, topic_data=data,
    )  # fmt: skip


SEQUENCES: Final = (
    _sequence("a batch again", "", 801, 1, (0, 0), (0, 0)),
    _sequence("a gap", "OUT_OF_ORDER_SEQUENCE_NUMBER", 802, 1, (0, 0), (0, 5)),
    _sequence("an older epoch", "INVALID_PRODUCER_EPOCH", 803, 1, (3, 0), (2, 0)),
    _sequence("a newer epoch that does not begin with 0", "OUT_OF_ORDER_SEQUENCE_NUMBER", 804, 1, (3, 0), (4, 1)),
)


def _fetch(
    name: str, errors: str, topic: Any, version: int = _BEFORE_IDS, by: str = "anyone", *, index: int = 0,
    before: Any = (), offset: int = 0, epoch: int = -1, **more: Any,
) -> Case:  # fmt: skip
    partition = {
        "partition": index, "fetch_offset": offset, "current_leader_epoch": epoch, "partition_max_bytes": 1 << 20,
    }  # fmt: skip
    named = {"topic": topic} if isinstance(topic, str) else {"topic_id": topic}
    topics = [{**named, "partitions": [partition]}] if topic else []
    return case("fetch", name, version, errors, by, before, **{"max_wait_ms": 0, "topics": topics, **more})


def _session(topic: Any, version: int) -> Any:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    named = {"topic": topic} if isinstance(topic, str) else {"topic_id": topic}
    topics = [{**named, "partitions": [partition]}]
    return (("fetch", version, {"max_wait_ms": 0, "session_epoch": 0, "topics": topics}),)


def _opened(peer: Any) -> int:
    return int(peer.answers[0].session_id)


FETCH: Final = (
    _fetch("an unknown topic", "UNKNOWN_TOPIC_OR_PARTITION", "nothing"),
    _fetch("an unknown partition", "UNKNOWN_TOPIC_OR_PARTITION", "one", index=9),
    _fetch("a negative partition", "UNKNOWN_TOPIC_OR_PARTITION", "one", index=-1),
    _fetch("an unknown id", "UNKNOWN_TOPIC_ID", _UNKNOWN_ID, _NEWEST),
    _fetch("an unknown partition, by id", "UNKNOWN_TOPIC_OR_PARTITION", id_of("one"), _NEWEST, index=9),
    _fetch("beyond the end", "OFFSET_OUT_OF_RANGE", "one", offset=1 << 40),
    _fetch("a negative offset", "OFFSET_OUT_OF_RANGE", "one", offset=-2),
    _fetch("an epoch that is to come", "UNKNOWN_LEADER_EPOCH", "one", epoch=99),
    _fetch("an unknown session", "FETCH_SESSION_ID_NOT_FOUND", "one", session_id=4711, session_epoch=1),
    _fetch("an unknown session, begun anew", "", "one", session_id=4711, session_epoch=0),
    _fetch(
        "a wrong epoch of a session",
        "INVALID_FETCH_SESSION_EPOCH",
        "one",
        before=_session("one", _BEFORE_IDS),
        session_id=_opened,
        session_epoch=5,
    ),
    _fetch(
        "ids in a session with names",
        "FETCH_SESSION_TOPIC_ID_ERROR",
        id_of("one"),
        _NEWEST,
        before=_session("one", _BEFORE_IDS),
        session_id=_opened,
        session_epoch=1,
    ),
    _fetch("another cluster's id", "", "one", cluster_id="another"),
    _fetch("a topic of zstd, by an old client", "", "zstd", 9, before=_written("zstd", lambda _: _batch())),
    _fetch("a topic of zstd, by an old client", "", "zstd", 4),
    _fetch("a topic of zstd", "", "zstd", 10),
    _fetch("as a follower of another cluster", "INCONSISTENT_CLUSTER_ID", "one", replica_id=0, cluster_id="another"),
    _fetch(
        "zstd that a producer has compressed",
        "",
        "four",
        4,
        index=2,
        before=_written("four", lambda _: _batch(compression=_ZSTD), index=2),
    ),
    _fetch("as a follower that is no replica", "CLUSTER_AUTHORIZATION_FAILED", "one", replica_id=7),
    _fetch("a user without permission", "TOPIC_AUTHORIZATION_FAILED", "one", by=ALICE),
    _fetch("without permission, an unknown topic", "TOPIC_AUTHORIZATION_FAILED", "nothing", by=ALICE),
    _fetch("without permission, by id", "TOPIC_AUTHORIZATION_FAILED", id_of("one"), _NEWEST, ALICE),
    _fetch("without permission, an unknown id", "UNKNOWN_TOPIC_ID", _UNKNOWN_ID, _NEWEST, ALICE),
    _fetch("as a follower, without permission", "CLUSTER_AUTHORIZATION_FAILED", "one", by=ALICE, replica_id=0),
)


def _offsets(
    name: str, errors: str, topic: str, timestamp: int, by: str = "anyone", *, index: int = 0, version: int = 10,
    epoch: int = -1, replica: int = -1, twice: bool = False,
) -> Case:  # fmt: skip
    partition = {"partition_index": index, "timestamp": timestamp, "current_leader_epoch": epoch}
    topics = [{"name": topic, "partitions": [partition] * (1 + twice)}]
    return case("list_offsets", name, version, errors, by, replica_id=replica, topics=topics)


def _epoch(
    name: str, errors: str, topic: str, index: int = 0, by: str = "anyone", *, current: int = -1, wanted: int = 0
) -> Case:
    partition = {"partition": index, "current_leader_epoch": current, "leader_epoch": wanted}
    topics = [{"topic": topic, "partitions": [partition]}]
    return case("offset_for_leader_epoch", name, 4, errors, by, topics=topics)


OFFSETS: Final = (
    _offsets("an unknown topic", "UNKNOWN_TOPIC_OR_PARTITION", "nothing", -1),
    _offsets("an unknown partition", "UNKNOWN_TOPIC_OR_PARTITION", "one", -1, index=9),
    _offsets("a negative partition", "UNKNOWN_TOPIC_OR_PARTITION", "one", -1, index=-1),
    _offsets("a partition twice", "INVALID_REQUEST", "one", -1, twice=True),
    _offsets("an epoch that is to come", "UNKNOWN_LEADER_EPOCH", "one", -1, epoch=99),
    _offsets("the latest time stamp, before version 7", "UNSUPPORTED_VERSION", "one", -3, version=6),
    _offsets("the earliest local offset, before version 8", "UNSUPPORTED_VERSION", "one", -4, version=7),
    _offsets("the latest tiered offset", "", "one", -5),
    _offsets("the latest tiered offset, before version 9", "UNSUPPORTED_VERSION", "one", -5, version=8),
    _offsets("position -6, before version 11", "UNSUPPORTED_VERSION", "one", -6),
    _offsets("position -99", "UNSUPPORTED_VERSION", "one", -99),
    _offsets("position -99", "UNSUPPORTED_VERSION", "one", -99, version=1),
    _offsets("as a follower that is no replica", "CLUSTER_AUTHORIZATION_FAILED", "one", -1, replica=7),
    _offsets("as a debugging client", "", "one", -1, replica=-2),
    _offsets("a user without permission", "TOPIC_AUTHORIZATION_FAILED", "one", -1, ALICE),
    _offsets("without permission, an unknown topic", "TOPIC_AUTHORIZATION_FAILED", "nothing", -1, ALICE),
    _epoch("an unknown topic", "UNKNOWN_TOPIC_OR_PARTITION", "nothing"),
    _epoch("an unknown partition", "UNKNOWN_TOPIC_OR_PARTITION", "one", 9),
    _epoch("an epoch that is to come", "UNKNOWN_LEADER_EPOCH", "one", current=99),
    _epoch("an unknown epoch", "", "one", wanted=99),
    _epoch("a negative epoch", "", "one", wanted=-5),
    _epoch("a user without permission", "TOPIC_AUTHORIZATION_FAILED", "one", by=ALICE),
    _epoch("without permission, an unknown topic", "TOPIC_AUTHORIZATION_FAILED", "nothing", by=ALICE),
)

CASES: Final = (*PRODUCE, *SEQUENCES, *FETCH, *OFFSETS)
