"""Appends: which batches are accepted, which are refused, and that a refused append changes nothing."""

from __future__ import annotations

import errno
import re

import pytest

from pylogd.broker.log.config import LogConfig, TimestampType
from pylogd.broker.log.errors import (
    CorruptRecord,
    InvalidAppend,
    InvalidRecord,
    InvalidTimestamp,
    LogClosed,
    OffsetsOutOfOrder,
    RecordListTooLarge,
    RecordTooLarge,
    StorageFailure,
    UnsupportedCompressionType,
)
from pylogd.broker.log.validator import AppendOrigin
from pylogd.wire.compression import CompressionType
from pylogd.wire.records import CONTROL, HEADER_SIZE, LOG_APPEND_TIME, parse_header
from tests.fakes.storage import START_MS, MemoryStorage, append, batch, fix_crc, read_all, values, with_header
from tests.layers import PACKAGE

HOUR_MS = 3_600_000


def test_one_place_accounts_for_appends() -> None:
    """Only `log.append.commit` moves the end of a log, besides the log itself when it is made or truncated."""
    moves = re.compile(r"\blog_end_offset(?:, [\w.]+)* = |\.note_batch\(|\.note_run\(|producers\.wrote\(")
    broker = PACKAGE / "broker"
    found = {str(path.relative_to(broker)) for path in broker.rglob("*.py") if moves.search(path.read_text("utf-8"))}
    made_anew = {"log/segment.py", "log/compaction/passes.py"}  # the indexes of a file, and a compacted segment
    assert found == {"log/log.py", "log/append/commit.py", *made_anew}


def test_offsets_and_epoch_are_written_into_the_batch() -> None:
    storage = MemoryStorage()
    log = storage.create()
    assert append(log, b"a", b"b", epoch=3)[:2] == (0, 1)
    result = append(log, b"c", epoch=3)
    assert result == (2, 2, -1, 0, False)
    found = log.read(2, 1000)
    assert found is not None
    header = parse_header(found.read())
    assert (header.base_offset, header.leader_epoch) == (2, 3)
    assert values(log) == [b"a", b"b", b"c"]
    storage.check()


def test_batches_of_a_leader_are_written_together() -> None:
    storage = MemoryStorage()
    log = storage.create()
    append(log, b"first")
    storage.fs.calls.clear()
    records = b"".join(
        with_header(one, base_offset=base, leader_epoch=0) for one, base in ((batch(b"a", b"b"), 1), (batch(b"c"), 3))
    )
    result = log.append(records, leader_epoch=0, origin=AppendOrigin.REPLICATION)
    assert (result.base_offset, result.last_offset) == (1, 3)
    assert [call.split()[0] for call in storage.fs.calls] == ["pwritev"]
    assert values(log, 1) == [b"a", b"b", b"c"]
    storage.check()


def test_more_batches_than_one_call_takes() -> None:
    storage = MemoryStorage()
    log = storage.create()
    result = log.append(batch(b"x") * 700, leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    assert result.last_offset == 699
    assert len(read_all(log)) == 700
    storage.check()


DAMAGED = {
    "no batch": (b"", InvalidRecord),
    "too short": (batch(b"x")[:40], InvalidRecord),
    "cut": (batch(b"x" * 50)[:-1], InvalidRecord),
    "bytes left over": (batch(b"x") + b"\0", CorruptRecord),
    "length below a header": (with_header(batch(), batch_length=10), CorruptRecord),
    "negative length": (with_header(batch(), batch_length=-5), CorruptRecord),
    "CRC": (batch()[:-1] + b"\x7f", CorruptRecord),
    "magic 1": (with_header(batch(), magic=1), InvalidRecord),
    "magic 3": (with_header(batch(), magic=3), CorruptRecord),
    "magic 0, short": (bytes(8) + (14).to_bytes(4, "big") + bytes(14), InvalidRecord),
    "codec 5": (with_header(batch(), attributes=5), UnsupportedCompressionType),
    "count": (with_header(batch(), record_count=2), InvalidRecord),
    "no records": (with_header(batch(), record_count=0, last_offset_delta=-1), InvalidRecord),
    "base offset": (with_header(batch(), base_offset=7), InvalidRecord),
    "negative base offset": (with_header(batch(), base_offset=-1), InvalidRecord),
    "control batch": (with_header(batch(), attributes=CONTROL), InvalidRecord),
    "producer without sequence": (with_header(batch(), producer_id=1, producer_epoch=0), InvalidRecord),
    "time stamp type": (with_header(batch(), attributes=LOG_APPEND_TIME), InvalidTimestamp),
    "far ahead": (batch(timestamp=START_MS + HOUR_MS + 1), InvalidTimestamp),
    "too large": (batch(b"x" * 2000), RecordTooLarge),
    "two": (batch() * 2, InvalidRecord),
    "second of two": (batch() + batch()[:-1] + b"\x7f", InvalidRecord),
    "an older one behind it": (batch() + with_header(batch(), magic=1), InvalidRecord),
}


@pytest.mark.parametrize(("data", "error"), DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("before", [0, 1], ids=["empty", "written"])
def test_a_bad_batch_is_refused_and_leaves_nothing(data: bytes, error: type[InvalidAppend], before: int) -> None:
    storage = MemoryStorage(max_message_bytes=1000)
    log = storage.create()
    for _ in range(before):
        append(log, b"good")
    size = log.size
    with pytest.raises(error):
        log.append(memoryview(data), leader_epoch=0)
    assert (log.log_end_offset, log.size) == (before, size)
    append(log, b"good")
    assert values(log) == [b"good"] * (before + 1)
    storage.check()


@pytest.mark.parametrize("policy", [{"compact"}, {"compact", "delete"}])
@pytest.mark.parametrize("codec", CompressionType)
def test_a_compacted_log_refuses_records_without_keys(policy: set[str], codec: CompressionType) -> None:
    storage = MemoryStorage(cleanup_policy=frozenset(policy), max_message_bytes=1000)
    log = storage.create()
    for _ in range(2):  # to an empty segment, and to one where the fast path applies
        log.append(batch(b"a" * 200, b"b", key=b"", compression=codec), leader_epoch=0)
        with pytest.raises(InvalidRecord, match="without a key"):
            log.append(batch(b"c", key=None, compression=codec), leader_epoch=0)
    assert values(log) == [b"a" * 200, b"b"] * 2
    log.config = log.config._replace(cleanup_policy=frozenset({"delete"}))
    log.append(batch(b"c", key=None), leader_epoch=0)
    log.config = log.config._replace(cleanup_policy=frozenset({"compact"}))
    with pytest.raises(InvalidRecord):
        log.append(batch(b"d", key=None), leader_epoch=0)
    storage.check()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (fix_crc(batch(b"a")[:HEADER_SIZE] + b"\x7e" + batch(b"a")[HEADER_SIZE + 1 :]), InvalidRecord),
        (with_header(batch(b"a"), record_count=2, last_offset_delta=1), InvalidRecord),
        (with_header(batch(b"a", b"b"), record_count=1, last_offset_delta=0), InvalidRecord),
        (with_header(batch(b"a"), attributes=CompressionType.GZIP), InvalidRecord),
        (batch(b"x" * 20_000, compression=CompressionType.ZSTD), RecordTooLarge),
    ],
    ids=["cut", "too few", "too many", "not compressed", "a bomb"],
)
def test_a_compacted_log_refuses_records_that_can_not_be_decoded(data: bytes, error: type[InvalidAppend]) -> None:
    storage = MemoryStorage(cleanup_policy=frozenset({"compact"}), max_message_bytes=1000)
    log = storage.create()
    with pytest.raises(error):
        log.append(data, leader_epoch=0)
    assert log.log_end_offset == 0


def test_a_time_stamp_too_old() -> None:
    storage = MemoryStorage(message_timestamp_before_max_ms=1000)
    log = storage.create()
    append(log, timestamp=START_MS - 1000)
    for _ in range(2):
        with pytest.raises(InvalidTimestamp):
            append(log, timestamp=START_MS - 1001)
    storage.check()


def test_records_without_time_stamps_are_accepted() -> None:
    storage = MemoryStorage(message_timestamp_before_max_ms=1000)
    log = storage.create()
    for _ in range(3):
        log.append(with_header(batch(), base_timestamp=-1, max_timestamp=-1), leader_epoch=0)
    assert log.log_end_offset == 3
    assert log.max_timestamp() is None
    storage.check()


def test_a_batch_larger_than_a_segment() -> None:
    storage = MemoryStorage(segment_bytes=500)
    log = storage.create()
    with pytest.raises(RecordListTooLarge):
        log.append(batch(b"x" * 600), leader_epoch=0)
    assert log.size == 0
    storage.check()


def test_log_append_time_is_the_brokers() -> None:
    storage = MemoryStorage(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    log = storage.create()
    storage.pass_time(5)
    for _ in range(2):
        assert append(log, b"a", b"b", timestamp=1).log_append_time == START_MS + 5
    records = read_all(log)
    assert {record.timestamp for record in records} == {START_MS + 5}
    assert log.offset_for_timestamp(START_MS + 5) == (START_MS + 5, 0, 0)
    storage.check()


def test_settings_change_while_the_log_is_in_use() -> None:
    storage = MemoryStorage()
    log = storage.create()
    append(log, b"x" * 100)
    log.config = log.config._replace(max_message_bytes=100)
    with pytest.raises(RecordTooLarge):
        append(log, b"x" * 100)
    log.config = log.config._replace(max_message_bytes=1000, message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert append(log, b"x" * 100).log_append_time == START_MS
    storage.check()


def test_a_replica_keeps_offsets_and_epochs() -> None:
    storage = MemoryStorage()
    log = storage.create()
    copied = with_header(batch(b"a", b"b"), base_offset=5, leader_epoch=2)
    result = log.append(copied, leader_epoch=2, origin=AppendOrigin.REPLICATION)
    assert (result.base_offset, result.last_offset, log.log_end_offset) == (5, 6, 7)
    assert log.epochs.entries() == [(2, 5)]
    with pytest.raises(OffsetsOutOfOrder):
        log.append(copied, leader_epoch=2, origin=AppendOrigin.REPLICATION)
    storage.check()


def test_a_coordinator_may_write_control_batches() -> None:
    storage = MemoryStorage()
    log = storage.create()
    log.append(with_header(batch(), attributes=CONTROL), leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    assert log.log_end_offset == 1
    storage.check()


def test_a_full_disk_appends_nothing_until_there_is_space() -> None:
    storage = MemoryStorage()
    log = storage.create()
    append(log, b"a")
    with storage.fs.failing("pwritev", errno.ENOSPC, partial=30), pytest.raises(StorageFailure) as caught:
        append(log, b"b")
    assert caught.value.cause.errno == errno.ENOSPC
    assert log.log_end_offset == 1
    assert storage.fs.size(log.active.path) == log.size
    append(log, b"c")
    assert values(log) == [b"a", b"c"]
    assert values(storage.kill()) == [b"a", b"c"]
    storage.check()


def test_a_short_write_is_finished() -> None:
    storage = MemoryStorage()
    log = storage.create()
    append(log, b"a")
    with storage.fs.failing("pwritev", 0, partial=10):
        append(log, b"b")
    assert values(log) == [b"a", b"b"]
    storage.check()


def test_a_short_write_that_can_not_be_finished_is_truncated() -> None:
    storage = MemoryStorage()
    log = storage.create()
    append(log, b"a")
    with (
        storage.fs.failing("pwritev", 0, partial=10),
        storage.fs.failing("pwritev", errno.EIO),
        pytest.raises(StorageFailure),
    ):
        append(log, b"b")
    assert storage.fs.size(log.active.path) == log.size
    storage.check()


def test_a_failed_write_that_can_not_be_truncated_is_overwritten() -> None:
    storage = MemoryStorage()
    log = storage.create()
    append(log, b"a")
    with (
        storage.fs.failing("pwritev", errno.EIO, partial=40),
        storage.fs.failing("ftruncate", errno.EIO),
        pytest.raises(StorageFailure),
    ):
        append(log, b"b" * 100)
    assert values(log) == [b"a"]
    append(log, b"c")
    assert values(log) == [b"a", b"c"]
    assert values(storage.restart()) == [b"a", b"c"]
    storage.check()


def test_a_closed_log_refuses_appends() -> None:
    storage = MemoryStorage()
    log = storage.create()
    append(log, b"a")
    log.close()
    with pytest.raises(LogClosed):
        append(log, b"b")
    storage.check()


def test_segments_roll_by_size() -> None:
    storage = MemoryStorage(segment_bytes=200)
    log = storage.create()
    for at in range(10):
        append(log, b"%d" % at + b"x" * 20)
    assert len(log.segments) == 5
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4, 6, 8]
    assert len(read_all(log)) == 10
    log.flush()
    storage.check()


def test_segments_roll_by_the_age_of_their_time_stamps() -> None:
    storage = MemoryStorage(segment_ms=1000)
    log = storage.create()
    append(log, timestamp=START_MS)
    append(log, timestamp=START_MS + 1000)
    assert len(log.segments) == 1
    append(log, timestamp=START_MS + 1001)
    assert len(log.segments) == 2
    log.flush()
    storage.check()


def test_segments_without_time_stamps_roll_by_the_clock() -> None:
    storage = MemoryStorage(segment_ms=1000)
    log = storage.create()
    data = with_header(batch(), base_timestamp=-1, max_timestamp=-1)
    log.append(data, leader_epoch=0)
    storage.pass_time(1001)
    log.append(data, leader_epoch=0)
    assert len(log.segments) == 2
    log.flush()
    storage.check()


def test_segments_roll_before_relative_offsets_overflow() -> None:
    storage = MemoryStorage()
    log = storage.create()
    for base in (0, (1 << 31) - 1, 1 << 31, 1 << 33):
        log.append(with_header(batch(), base_offset=base), leader_epoch=0, origin=AppendOrigin.REPLICATION)
    assert [segment.base_offset for segment in log.segments] == [0, 1 << 31, 1 << 33]
    assert [record.offset for record in read_all(log)] == [0, (1 << 31) - 1, 1 << 31, 1 << 33]
    append(log, b"x")
    assert log.log_end_offset == (1 << 33) + 2


def test_segments_roll_when_their_index_is_full() -> None:
    storage = MemoryStorage(LogConfig(index_interval_bytes=0, segment_index_bytes=36))
    log = storage.create()
    for _ in range(6):
        append(log, b"x")
    assert [segment.base_offset for segment in log.segments] == [0, 4]
    log.flush()
    storage.check()


def test_a_roll_that_fails_appends_nothing() -> None:
    storage = MemoryStorage(segment_bytes=200)
    log = storage.create()
    append(log, b"x" * 100)
    with storage.fs.failing("open", errno.ENOSPC), pytest.raises(StorageFailure):
        append(log, b"x" * 100)
    assert (log.log_end_offset, len(log.segments)) == (1, 1)
    append(log, b"x" * 100)
    assert len(log.segments) == 2
    log.flush()
    storage.check()
