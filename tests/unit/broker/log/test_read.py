"""Reads: they start with the right batch, respect the limits, and wait for the disk only if that is allowed."""

from __future__ import annotations

import gc
import os
from unittest.mock import patch

import pytest

from pylogd.broker.log.config import LogConfig
from pylogd.broker.log.errors import ColdRead, LogClosed, OffsetOutOfRange
from pylogd.broker.log.files import SegmentFile
from pylogd.broker.log.log import Log
from pylogd.broker.log.segment import Segment
from pylogd.broker.log.truncation import truncate_to
from pylogd.broker.log.validator import AppendOrigin
from pylogd.wire.records import iter_batches, parse_header
from tests.fakes.storage import START_MS, MemoryStorage, append, batch, read_all, values, with_header


def first_offset(log: Log, offset: int, max_bytes: int = 1 << 20, *, end_offset: int | None = None) -> int | None:
    """Return the base offset of the first batch of a read."""
    found = log.read(offset, max_bytes, allow_cold=True, end_offset=end_offset)
    return None if found is None else parse_header(found.read()).base_offset


def filled(storage: MemoryStorage, batches: int = 30) -> Log:
    """Create a log of batches with three records each, in segments of four batches."""
    log = storage.create()
    for at in range(batches):
        append(log, b"%d" % at, b"x" * 10, b"y")
    return log


def test_every_offset_is_found_in_its_batch() -> None:
    storage = MemoryStorage(LogConfig(index_interval_bytes=150, segment_bytes=460))
    log = filled(storage)
    assert len(log.segments) > 5
    for _ in range(2):
        for offset in range(log.log_end_offset):
            assert first_offset(log, offset) == offset // 3 * 3
        log.seal()  # the second time the index files are used
    storage.check()


def test_the_end_and_beyond() -> None:
    storage = MemoryStorage()
    log = filled(storage, 2)
    assert log.read(6, 1000) is None
    for offset in (7, -1):
        with pytest.raises(OffsetOutOfRange) as caught:
            log.read(offset, 1000)
        assert (caught.value.offset, caught.value.start, caught.value.end) == (offset, 0, 6)
    storage.check()


def test_a_reader_at_the_end_continues_where_it_stopped() -> None:
    storage = MemoryStorage()
    log = filled(storage, 2)
    offset = 3
    for at in range(5):
        found = log.read(offset, 1 << 20)
        assert found is not None
        assert parse_header(found.read()).base_offset == offset
        offset = log.log_end_offset
        assert log.read(offset, 1 << 20) is None
        append(log, b"new %d" % at)
        if at == 3:
            truncate_to(log, offset)
            append(log, b"other")
    assert first_offset(log, offset) == offset
    storage.check()


def test_the_first_batch_is_whole_whatever_the_limit_and_others_fit_whole() -> None:
    storage = MemoryStorage()
    log = filled(storage, 3)
    size = log.size // 3
    found = log.read(0, 1)
    assert found is not None
    assert len(found) == len(found.read()) == size
    assert log.read(0, 1, min_one=False) is None
    found = log.read(1, 2 * size - 1, min_one=False)
    assert found is not None
    assert [header.base_offset for header, _ in iter_batches(found.read())] == [0]
    found = log.read(1, 2 * size, min_one=False)
    assert found is not None
    assert [header.base_offset for header, _ in iter_batches(found.read())] == [0, 3]
    storage.check()


@pytest.mark.parametrize("max_bytes", [1, 250, 1000])
def test_a_reader_that_continues_needs_no_look_up(max_bytes: int) -> None:
    storage = MemoryStorage(LogConfig(index_interval_bytes=100))
    log = filled(storage, 30)
    found = log.read(0, max_bytes)
    with patch.object(Segment, "locate", side_effect=AssertionError("looked up")):
        offset = 0
        while found is not None:
            headers = [header for header, _ in iter_batches(found.read())]
            assert headers[0].base_offset == offset
            offset = headers[-1].next_offset
            found = log.read(offset, max_bytes)
    assert offset == log.log_end_offset
    storage.check()


def test_what_one_reader_got_another_gets_without_a_look_up() -> None:
    storage = MemoryStorage(LogConfig(index_interval_bytes=100))
    log = filled(storage, 9)
    size = log.size // 9
    first = log.read(3, 4 * size)
    assert first is not None
    append(log, b"more")
    with patch.object(Segment, "read_at", side_effect=AssertionError("looked up")):
        again = log.read(3, 4 * size)
        assert again is not None
        assert again.read() == first.read()
    for max_bytes, end, batches in (
        (4 * size, 14, 3),
        (4 * size, 15, 4),
        (4 * size, 27, 4),
        (3 * size, 27, 3),
        (1, 27, 1),
    ):
        found = log.read(3, max_bytes, end_offset=end)
        assert found is not None
        assert [header.base_offset for header, _ in iter_batches(found.read())] == [3 * n + 3 for n in range(batches)]
    assert log.read(3, 1, min_one=False) is None
    assert log.read(3, 4 * size) is not None
    for max_bytes, end, there in ((4 * size, 15, True), (4 * size, 14, False), (4 * size - 1, 27, False)):
        found = log.read_again(3, max_bytes, end)
        assert (found is not None) is there
        assert found is None or found.read() == first.read()
    assert log.read_again(4, 4 * size, 27) is None
    log.delete_records_before(4)
    assert log.read_again(3, 4 * size, 27) is None
    truncate_to(log, 12)
    found = log.read(4, 4 * size)
    assert found is not None
    assert len(found) == 3 * size
    storage.check()


def test_a_closed_log_keeps_no_file_for_readers_to_come() -> None:
    storage = MemoryStorage(LogConfig(index_interval_bytes=100))
    log = filled(storage, 9)
    size = log.size // 9
    assert log.read(3, 4 * size) is not None
    assert log.read_again(3, 4 * size, 27) is not None
    log.close()
    gc.collect()
    assert [path for path, _ in storage.fs._fds.values() if not path.endswith(".lock")] == []
    assert log.read_again(3, 4 * size, 27) is None
    storage.check(records=False)


def test_a_sealed_segment_is_left_to_the_cache_of_files() -> None:
    storage = MemoryStorage(LogConfig(index_interval_bytes=100, segment_bytes=900))
    log = filled(storage, 9)
    size = log.segments[0].size // 9
    assert log.read(3, 4 * size) is not None
    for _ in range(9):
        append(log, b"1", b"x" * 10, b"y")
    assert len(log.segments) > 1
    for _ in range(2):
        assert log.read(3, 4 * size) is not None
        assert log.read_again(3, 4 * size, 27) is None
    storage.check()


@pytest.mark.parametrize(("base", "zeros"), [(1000, 3), ((1 << 40) - 1, 3), (1 << 40, 0)])
def test_a_range_knows_of_the_zeros_behind_it(base: int, zeros: int) -> None:
    """The bytes that a batch begins with: none where nothing follows, or a batch with a high offset."""
    log = MemoryStorage().create()  # not checked: its first offset is not 0
    for offset in (base - 1, base):
        log.append(with_header(batch(b"v"), base_offset=offset), leader_epoch=0, origin=AppendOrigin.REPLICATION)
    size = log.size // 2
    found = log.read(base - 1, size)
    assert found is not None
    assert (len(found), found.zeros) == (size, zeros)
    assert not any(found.file.read(found.position + size, zeros))
    for whole in (log.read(base - 1, 1 << 20), log.read(base, 1 << 20)):
        assert whole is not None
        assert whole.zeros == 0


def test_truncation_forgets_where_readers_continue() -> None:
    storage = MemoryStorage(LogConfig(index_interval_bytes=100))
    log = filled(storage, 9)
    size = log.size // 9
    first = log.read(0, 3 * size)
    assert first is not None
    truncate_to(log, 9)
    assert log.read(9, 1 << 20) is None
    append(log, b"another")
    found = log.read(9, 1 << 20)
    assert found is not None
    assert [header.record_count for header, _ in iter_batches(found.read())] == [1]
    storage.check()


@pytest.mark.parametrize("end", range(31))
def test_batches_after_the_end_offset_are_not_returned(end: int) -> None:
    storage = MemoryStorage(LogConfig(index_interval_bytes=100, segment_bytes=460))
    log = filled(storage, 10)
    offset = seen = 0
    while (found := log.read(offset, 1 << 20, end_offset=end)) is not None:
        for header, _ in iter_batches(found.read()):
            offset = header.next_offset
            seen += 1
    assert offset == end // 3 * 3
    assert seen == end // 3
    storage.check()


def test_a_gap_is_skipped() -> None:
    storage = MemoryStorage(segment_bytes=200)
    log = storage.create()
    for base in (0, 10, 20, 30, 40):
        data = with_header(batch(b"%d" % base), base_offset=base)
        log.append(data, leader_epoch=0, origin=AppendOrigin.REPLICATION)
    assert [first_offset(log, offset) for offset in range(41)] == [-(-offset // 10) * 10 for offset in range(41)]
    assert first_offset(log, 5, end_offset=11) == 10
    assert log.read(5, 1000, end_offset=10) is None


def test_a_slice_outlives_its_segment() -> None:
    storage = MemoryStorage(segment_bytes=200, retention_ms=0)
    log = filled(storage, 5)
    found = log.read(0, 1000)
    assert found is not None
    path = found.file.path
    log.seal()
    storage.pass_time(10)
    storage.manager.tick()
    storage.pass_time(log.config.file_delete_delay_ms)
    storage.manager.tick()
    assert not storage.fs.exists(path)
    assert parse_header(found.read()).base_offset == 0
    assert path in storage.fs.open_paths()
    del found
    assert path not in storage.fs.open_paths()
    storage.check()


def test_a_read_of_a_deleted_segment_is_out_of_range(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage(segment_bytes=200)
    log = filled(storage, 5)
    path = log.segments[0].path

    def overtaken(segment: Segment, *, allow_cold: bool) -> SegmentFile:
        log.delete_records_before(9)
        storage.manager.tick()
        storage.pass_time(log.config.file_delete_delay_ms)
        storage.manager.tick()
        assert not storage.fs.exists(path)
        return reader(segment, allow_cold=allow_cold)

    reader = Segment.reader
    monkeypatch.setattr(Segment, "reader", overtaken)
    with pytest.raises(OffsetOutOfRange):
        log.read(0, 1000, allow_cold=True)
    monkeypatch.undo()
    storage.check()


def test_a_closed_log_refuses_reads() -> None:
    storage = MemoryStorage()
    log = filled(storage, 2)
    storage.manager.delete("t", 0)
    append(storage.create(), b"another topic's")
    with pytest.raises(LogClosed):
        log.read(0, 1000, allow_cold=True)
    storage.check()


def test_a_read_does_not_wait_for_a_cold_page() -> None:
    storage = MemoryStorage()
    log = filled(storage, 5)
    storage.fs.cold.add(log.active.path)
    with pytest.raises(ColdRead):
        log.read(3, 1000)
    found = log.read(3, 1000, allow_cold=True)
    assert found is not None
    assert not found.is_warm(found.position, found.length)
    storage.fs.cold.clear()
    assert found.is_warm(found.position, found.length)
    assert log.read(3, 1000) is not None
    storage.check()


def test_a_cold_page_of_a_sealed_segment_is_not_tried() -> None:
    """The kernel would begin to read it, and the reactor wait until a busy disk takes the request."""
    storage = MemoryStorage(segment_bytes=300)
    log = filled(storage, 10)
    log.flush()
    assert log.read(0, 1000, allow_cold=True) is not None  # opened
    storage.fs.cold.add(log.segments[0].path)
    storage.fs.calls.clear()
    with pytest.raises(ColdRead):
        log.read(1, 1000)
    assert not [call for call in storage.fs.calls if call.startswith("pread")]
    storage.check()


def test_a_closed_file_is_opened_in_a_thread_and_then_kept() -> None:
    storage = MemoryStorage(segment_bytes=300)
    filled(storage, 10)
    log = storage.restart()
    with pytest.raises(ColdRead):
        log.read(0, 1000)
    assert log.read(0, 1000, allow_cold=True) is not None
    assert log.read(0, 1000) is not None
    log = storage.restart()
    with pytest.raises(ColdRead):
        log.offset_for_timestamp(START_MS + 2)
    found = log.offset_for_timestamp(START_MS + 2, allow_cold=True)
    assert found is not None
    assert log.offset_for_timestamp(START_MS + 2) == found
    storage.check()


def test_descriptors_of_old_segments_are_bounded() -> None:
    storage = MemoryStorage(segment_bytes=300)
    log = filled(storage, 40)
    storage.manager.storage.files.capacity = 3
    log.flush()
    assert len(read_all(log)) == 120
    opened = [path for path in storage.fs.open_paths() if path.endswith(".log")]
    assert len(opened) <= 4
    storage.check()


def test_time_stamps_are_found() -> None:
    storage = MemoryStorage(LogConfig(index_interval_bytes=100, segment_bytes=600))
    log = storage.create()
    for at in range(20):
        append(log, b"a", b"b", b"c", timestamp=START_MS + at * 100, epoch=at // 10)
    for _ in range(2):
        for at in range(20):
            stamp = START_MS + at * 100
            assert log.offset_for_timestamp(stamp) == (stamp, at * 3, at // 10)
            assert log.offset_for_timestamp(stamp + 1) == (stamp + 1, at * 3 + 1, at // 10)
            assert log.offset_for_timestamp(stamp - 50) == (stamp, at * 3, at // 10)
        assert log.offset_for_timestamp(0) == (START_MS, 0, 0)
        assert log.offset_for_timestamp(START_MS + 1903) is None
        assert log.max_timestamp() == (START_MS + 1902, 59, 1)
        log.flush()
    log.delete_records_before(31)
    assert log.offset_for_timestamp(0) == (START_MS + 1001, 31, 1)
    storage.check()


def test_time_stamps_that_go_back_and_compressed_batches() -> None:
    storage = MemoryStorage(LogConfig(index_interval_bytes=0, segment_bytes=2000))
    log = storage.create()
    for at, stamp in enumerate((500, 100, 300, 700, 600)):
        append(log, b"a", b"b", timestamp=START_MS + stamp, compression=at)
    assert log.offset_for_timestamp(START_MS + 50) == (START_MS + 500, 0, 0)
    assert log.offset_for_timestamp(START_MS + 502, allow_cold=True) == (START_MS + 700, 6, 0)
    assert log.max_timestamp(allow_cold=True) == (START_MS + 701, 7, 0)
    for look_up in (lambda: log.offset_for_timestamp(START_MS + 502), log.max_timestamp):
        with pytest.raises(ColdRead):  # the records have to be decompressed
            look_up()
    assert len(values(log)) == 10
    storage.check()


def test_epochs_end_where_the_next_one_starts() -> None:
    storage = MemoryStorage()
    log = storage.create()
    assert log.end_offset_for_epoch(0) == (-1, -1)
    for epoch in (1, 1, 3, 6):
        append(log, epoch=epoch)
    answers = {epoch: log.end_offset_for_epoch(epoch) for epoch in range(8)}
    assert answers == {
        0: (0, 0), 1: (1, 2), 2: (1, 2), 3: (3, 3), 4: (3, 3), 5: (3, 3), 6: (6, 4), 7: (-1, -1),
    }  # fmt: skip
    assert [log.epochs.epoch_of(offset) for offset in range(4)] == [1, 1, 3, 6]
    assert log.end_offset_for_epoch(-1) == (-1, -1)
    storage.check()


def test_a_read_in_the_active_segment_costs_one_call() -> None:
    storage = MemoryStorage()
    log = filled(storage, 30)
    storage.fs.calls.clear()
    log.read(50, 1 << 20)
    assert [call.split()[0] for call in storage.fs.calls] == ["preadv"]
    storage.fs.calls.clear()
    log.read(log.log_end_offset, 1 << 20)
    assert storage.fs.calls == []
    storage.check()


def test_paths_are_kafkas() -> None:
    storage = MemoryStorage()
    log = filled(storage, 1)
    assert os.path.relpath(log.active.path, "/data") == "t-0/00000000000000000000.log"
    storage.check()
