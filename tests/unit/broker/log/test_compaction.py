"""Compaction of a log on the memory file system: which records are kept, and what readers see meanwhile."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from pylogd.broker.log.compaction.candidates import log_to_clean
from pylogd.broker.log.compaction.cleaner import Cleaner, CleanerConfig
from pylogd.broker.log.compaction.jobs import CleanerStopped, SourcesChanged
from pylogd.broker.log.compaction.log_compaction import compact
from pylogd.broker.log.compaction.offset_map import ENTRY_BYTES, NOT_FOUND, OffsetMap
from pylogd.broker.log.compaction.rewrite import delete_horizon
from pylogd.broker.log.errors import InvalidRecord, KeylessRecords, LogClosed
from pylogd.broker.log.log import Log
from pylogd.broker.log.truncation import truncate_to
from pylogd.broker.log.validator import AppendOrigin
from pylogd.wire.records import CONTROL, HEADER_SIZE, TRANSACTIONAL, BatchHeader, encode_batch, iter_batches
from tests.fakes.compaction import CompactedStorage, contents_of, final, put
from tests.fakes.storage import DATA, append, fix_crc, flip_byte, names, read_all, values


def batches(log: Log) -> list[BatchHeader]:
    """Return the headers of all batches, including empty ones."""
    return [header for segment in log.segments for _, header in segment.headers(0, allow_cold=True)]


def roll(storage: CompactedStorage, log: Log) -> None:
    """Seal the active segment, so that it may be compacted."""
    with log.lock:
        log.roll(log.log_end_offset, storage.now_ms)


class TestOffsetMap:
    def test_returns_the_last_offset_of_each_key(self) -> None:
        keys = OffsetMap(ENTRY_BYTES * 5000)
        names = [b"%d" % (n % 1500) for n in range(4000)]
        keys.put_all(names, range(4000))
        model = {name: at for at, name in enumerate(names)}
        assert keys.latest([*model, b"other", None]) == [*model.values(), NOT_FOUND, NOT_FOUND]
        assert len(keys) == 1500
        keys.clear()
        assert keys.latest(model) == [NOT_FOUND] * 1500
        assert not len(keys)

    def test_takes_24_bytes_per_entry(self) -> None:
        keys = OffsetMap(1 << 20)
        assert keys.nbytes == keys.slots * 24 <= 1 << 20
        assert keys.slots > (1 << 20) / 24 - 100
        assert keys.capacity == int(keys.slots * 0.9)

    def test_is_full_at_its_load_factor(self) -> None:
        keys = OffsetMap(ENTRY_BYTES * 101, 0.99)
        keys.put_all([b"%d" % n for n in range(keys.available)], range(100))
        assert keys.available == 0
        keys.put_all([b"0"], [7])
        assert keys.latest([b"0"]) == [7]
        with pytest.raises(MemoryError):
            keys.put_all([b"one more"], [8])


def test_the_last_record_of_each_key_keeps_its_offset() -> None:
    storage = CompactedStorage()
    log = storage.create()
    for at in range(30):
        put(storage, log, (b"k%d" % (at % 4), b"v%d" % at), (b"once%d" % at, b"w"))
    before = contents_of(log)
    end = log.log_end_offset
    (cleaned,) = storage.clean()
    after = contents_of(log)
    assert set(after) < set(before)
    assert after == sorted(after)
    assert final(read_all(log)) == {key: value for _, key, value in before}
    assert log.log_end_offset == end
    assert cleaned.bytes_written < cleaned.bytes_read
    assert log.cleaned_offset == cleaned.end_offset == log.active.base_offset
    storage.check()
    assert contents_of(storage.restart()) == after
    assert storage.manager.logs["t", 0].cleaned_offset == cleaned.end_offset
    assert storage.clean() == []
    storage.check()


def test_a_read_inside_a_hole_gets_the_next_higher_batch() -> None:
    storage = CompactedStorage()
    log = storage.create()
    for at in range(40):
        put(storage, log, (b"same", b"%d" % at))
    storage.clean()
    left = [offset for offset, _, _ in contents_of(log)]
    assert len(left) < 20
    for offset in range(log.log_end_offset):
        piece = log.read(offset, 1 << 20, allow_cold=True)
        assert piece is not None
        header, _ = next(iter_batches(piece.read()))
        assert header.last_offset >= offset
        assert header.record_count  # librdkafka fails on a response with only empty batches
        assert read_all(log, offset)[0].offset == min(other for other in left if other >= offset)


def test_small_segments_are_merged() -> None:
    storage = CompactedStorage()
    log = storage.create()
    for at in range(60):
        put(storage, log, (b"k%d" % (at % 3), b"%d" % at))
    count = len(log.segments)
    storage.clean()
    for _ in range(3):
        put(storage, log, (b"a", b"x" * 250))
        storage.clean()
    assert len(log.segments) <= count / 2
    assert len(names(storage.fs, ".snapshot")) <= len(log.segments)
    storage.check()


def test_batches_that_keep_all_records_are_copied_unchanged() -> None:
    storage = CompactedStorage()
    log = storage.create()
    put(storage, log, (b"a", b"1" * 150), (b"b", b"2" * 150), compression=4)
    kept = log.read(0, 1 << 20, allow_cold=True)
    assert kept is not None
    old = kept.read()
    for at in range(20):
        put(storage, log, (b"c", b"%d" % at))
    storage.clean()
    again = log.read(0, 1 << 20, allow_cold=True)
    assert again is not None
    assert again.read()[: len(old)] == old


@pytest.mark.parametrize("codec", range(5))
def test_codecs_and_headers_are_kept(codec: int) -> None:
    storage = CompactedStorage(segment_bytes=4000)
    log = storage.create()
    put(storage, log, *((b"k%d" % at, b"old" * 30) for at in range(9)), compression=codec, producer_id=5,
        producer_epoch=1, base_sequence=0)  # fmt: skip
    put(storage, log, *((b"k%d" % at, b"new" * 99) for at in range(7)))
    roll(storage, log)
    storage.clean()
    first = batches(log)[0]
    assert (first.base_offset, first.last_offset_delta, first.record_count) == (0, 8, 2)
    assert (first.compression, first.producer_id, first.producer_epoch, first.base_sequence) == (codec, 5, 1, 0)
    assert first.max_timestamp == storage.now_ms + 8
    assert [key for offset, key, _ in contents_of(log) if offset < 9] == [b"k7", b"k8"]
    storage.check()


def test_tombstones_are_removed_after_delete_retention_ms() -> None:
    storage = CompactedStorage(delete_retention_ms=1000)
    log = storage.create()
    put(storage, log, (b"a", b"1"), (b"b", b"2"))
    put(storage, log, (b"a", None))
    roll(storage, log)
    storage.clean()
    assert contents_of(log) == [(1, b"b", b"2"), (2, b"a", None)]
    assert read_all(log)[1].timestamp == storage.now_ms
    assert delete_horizon(batches(log)[1]) == storage.now_ms + 1000
    storage.check()
    for wait, left in ((999, 3), (2, 2)):
        storage.pass_time(wait)
        put(storage, log, (b"c", b"%d" % wait))
        roll(storage, log)
        storage.clean()
        assert len(contents_of(log)) == left
        storage.check()
    assert final(read_all(log)) == {b"b": b"2", b"c": b"2"}


def test_producers_are_known_after_their_records_were_removed() -> None:
    storage = CompactedStorage()
    log = storage.create()
    ids: dict[str, Any] = {"producer_id": 9, "producer_epoch": 0}
    put(storage, log, (b"a", b"1"), base_sequence=0, **ids)
    result = put(storage, log, (b"a", b"2"), base_sequence=1, **ids)
    for at in range(10):
        put(storage, log, (b"a", b"%d" % at))
    storage.clean()
    kept = batches(log)[0]
    assert (kept.base_offset, kept.record_count, kept.base_sequence) == (1, 0, 1)
    storage.manager.close()
    for name in names(storage.fs, ".snapshot"):
        storage.fs.files[f"{DATA}/t-0/{name}"].data.clear()
    log = storage.start().logs["t", 0]
    assert put(storage, log, (b"a", b"2"), base_sequence=1, **ids)[:2] == result[:2]
    storage.check()


def test_aborted_transactions_are_removed_and_compaction_ends_at_open_ones() -> None:
    storage = CompactedStorage(delete_retention_ms=10)
    log = storage.create()
    put(storage, log, (b"a", b"kept"))

    def write(pid: int, value: bytes, sequence: int) -> None:
        put(storage, log, (b"a", value), producer_id=pid, producer_epoch=0, base_sequence=sequence,
            attributes=TRANSACTIONAL, origin=AppendOrigin.COORDINATOR)  # fmt: skip

    def mark(pid: int, kind: int) -> None:
        key = b"\0\0" + kind.to_bytes(2, "big")
        log.append(
            encode_batch(
                [(key, b"\0" * 6, storage.now_ms, ())], attributes=TRANSACTIONAL | CONTROL, producer_id=pid,
                producer_epoch=0,
            ),
            leader_epoch=0, origin=AppendOrigin.COORDINATOR,
        )  # fmt: skip

    write(1, b"aborted", 0)
    mark(1, 0)
    put(storage, log, (b"b", b"0"))
    write(2, b"open", 0)
    put(storage, log, (b"b", b"1"))
    roll(storage, log)
    storage.clean()
    values_left = [value for _, _, value in contents_of(log)]
    assert b"kept" in values_left
    assert b"aborted" not in values_left
    assert values_left[-3:] == [b"0", b"open", b"1"]
    assert log.cleaned_offset == 4
    mark(2, 1)
    roll(storage, log)
    storage.pass_time(100_000)
    storage.clean()
    values_left = [value for offset, _, value in contents_of(log)]
    assert values_left[-3:-1] == [b"open", b"1"]
    assert b"kept" not in values_left
    storage.check()


def test_min_lag_delays_compaction_and_max_lag_forces_it() -> None:
    storage = CompactedStorage(min_compaction_lag_ms=500, min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=900)
    log = storage.create()
    for at in range(10):
        put(storage, log, (b"a", b"%d" % at))
    roll(storage, log)
    assert storage.clean() == []
    storage.pass_time(600)
    put(storage, log, (b"a", b"x"))
    assert len(storage.clean()) == 1  # all of it is dirty
    roll(storage, log)
    storage.pass_time(600)
    put(storage, log, (b"b", b"y" * 300))
    found = log_to_clean(log, storage.now_ms)
    log.seal()
    found = log_to_clean(log, storage.now_ms)
    assert found is not None and not found.is_due
    storage.pass_time(301)
    found = log_to_clean(log, storage.now_ms)
    assert found is not None and found.overdue and found.is_due
    assert len(storage.clean()) == 1


def test_the_dirtiest_log_comes_first() -> None:
    storage = CompactedStorage()
    logs = [storage.create("t", at) for at in range(3)]
    for log, count in zip(logs, (10, 10, 10), strict=True):
        for at in range(count):
            put(storage, log, (b"a%d" % at, b"x" * 50))
        roll(storage, log)
    storage.clean()
    for log, count in zip(logs, (2, 9, 5), strict=True):
        for at in range(count):
            put(storage, log, (b"b%d" % at, b"x" * 50))
        roll(storage, log)
        log.seal()
    cleaner = Cleaner(storage.manager, storage.cleaner_config, now_ms=lambda: storage.now_ms)
    runner = cleaner.new_runner()
    order, waiting = [], []
    while cleaner.clean_one(runner) is not None:
        order.append([log.partition for log in logs if log.cleaned_offset == log.log_end_offset])
        waiting.append(cleaner.most_dirty)
    assert order == [[1], [1, 2], [0, 1, 2]]
    assert 1 > waiting[0] > waiting[1] > waiting[2] > cleaner.most_dirty == 0


def test_a_small_offset_map_takes_several_rounds() -> None:
    storage = CompactedStorage(keys=8)
    log = storage.create()
    for at in range(50):
        put(storage, log, (b"k%d" % (at % 25), b"%d" % at))
    rounds = storage.clean()
    assert len(rounds) > 3
    assert final(read_all(log)) == {b"k%d" % (at % 25): b"%d" % at for at in range(50)}
    storage.check()


def test_a_batch_larger_than_the_offset_map_leaves_the_log_unchanged() -> None:
    storage = CompactedStorage(keys=5)
    log = storage.create()
    put(storage, log, *((b"k%d" % at, b"v") for at in range(9)))
    put(storage, log, (b"a", b"v" * 300))
    before = contents_of(log)
    assert storage.clean() == []
    assert contents_of(log) == before


def test_readers_are_not_affected() -> None:
    storage = CompactedStorage()
    log = storage.create()
    for at in range(30):
        put(storage, log, (b"same", b"%d" % at))
    log.seal()
    pieces = [log.read(offset, 1 << 20, allow_cold=True) for offset in range(0, 30, 3)]
    old = list(log.segments)
    expected = [piece.read() for piece in pieces if piece]
    storage.clean()
    assert [piece.read() for piece in pieces if piece] == expected
    found = old[0].locate(2, allow_cold=True)
    assert found is not None
    assert found.base_offset == 2
    storage.pass_time(100_000)
    storage.manager.tick()
    assert not names(storage.fs, ".deleted")
    storage.check()


def test_damage_stops_only_the_compaction_of_that_log() -> None:
    storage = CompactedStorage()
    for partition in range(2):
        log = storage.create("t", partition)
        for at in range(20):
            put(storage, log, (b"a", b"%d" % at))
        log.seal()
    flip_byte(storage.fs, f"{DATA}/t-0/{0:020d}.log", 70)
    done = storage.clean()
    assert storage.cleaner.given_up == 1
    assert storage.cleaner.read_bytes == sum(one.bytes_read for one in done) > 0
    assert storage.cleaner.written_bytes == sum(one.bytes_written for one in done) > 0
    assert storage.manager.logs["t", 0].cleaned_offset == 0
    assert storage.manager.logs["t", 1].cleaned_offset > 0
    assert not names(storage.fs, ".cleaned")


@pytest.mark.parametrize("change", ["truncate", "delete", "close"])
def test_a_log_that_changes_during_compaction(change: str) -> None:
    storage = CompactedStorage(cleanup_policy=frozenset({"compact", "delete"}))
    log = storage.create()
    for at in range(30):
        put(storage, log, (b"a", b"%d" % at))
    log.seal()
    found = log_to_clean(log, storage.now_ms)
    assert found is not None
    runner = Cleaner(storage.manager, storage.cleaner_config, now_ms=lambda: storage.now_ms).new_runner()
    done: list[int] = []

    def meddle(_count: int) -> None:
        if names(storage.fs, ".cleaned") and not done:
            done.append(1)
            if change == "truncate":
                truncate_to(log, 3)
            elif change == "delete":
                log.delete_records_before(29)
                storage.manager.tick()
            else:
                log.close()

    with pytest.raises(LogClosed if change == "close" else SourcesChanged):
        compact(log, found.first_dirty_offset, found.end_offset, runner.run, now_ms=storage.now_ms, on_progress=meddle)
    assert not names(storage.fs, ".cleaned")
    if change == "close":
        log = storage.restart()
    assert values(log)[-1] == (b"2" if change == "truncate" else b"29")
    storage.check()


def test_a_segment_deleted_by_retention_is_not_a_disk_failure() -> None:
    """The segment is deleted after the log was chosen and before the cleaner opens its file."""
    storage = CompactedStorage(cleanup_policy=frozenset({"compact", "delete"}), file_delete_delay_ms=0)
    log = storage.create()
    for at in range(30):
        put(storage, log, (b"a", b"%d" % at))
    log.seal()
    first = log.segments[0].path
    call = storage.fs._call
    taken: list[str] = []

    def take(operation: str, path: str) -> None:
        if operation == "open" and path == first and not taken:
            taken.append(path)
            log.delete_records_before(20)
            storage.manager.tick()
        call(operation, path)

    storage.fs._call = take  # type: ignore[method-assign]
    assert storage.clean() == []
    assert taken and not storage.fs.exists(first)
    assert storage.manager.healthy and not log.closed
    storage.pass_time(100_000)
    assert len(storage.clean()) == 1
    assert values(log)[-1] == b"29"
    storage.check()


def test_missing_files_during_a_swap_are_a_disk_failure() -> None:
    """After the commit only the swap changes these files: if they are missing, the contents of the log are unknown."""
    storage = CompactedStorage()
    log = storage.create()
    for at in range(30):
        put(storage, log, (b"a", b"%d" % at))
    log.seal()
    with storage.fs.failing("rename", errno.ENOENT, path=".log.swap"):
        assert storage.clean() == []
    assert log.closed and not storage.manager.healthy


def test_a_full_disk_changes_nothing_and_the_compaction_is_repeated() -> None:
    storage = CompactedStorage()
    log = storage.create()
    for at in range(30):
        put(storage, log, (b"a", b"%d" % at))
    before = contents_of(log)
    log.seal()
    with storage.fs.failing("pwritev", errno.ENOSPC, path=".cleaned", partial=10):
        assert storage.clean() == []
    assert contents_of(log) == before
    assert not names(storage.fs, ".cleaned")
    assert len(storage.clean()) == 1
    storage.check()


def test_stopping_the_cleaner_leaves_no_incomplete_files() -> None:
    storage = CompactedStorage()
    log = storage.create()
    for at in range(30):
        put(storage, log, (b"a", b"%d" % at))
    log.seal()
    cleaner = Cleaner(storage.manager, storage.cleaner_config, now_ms=lambda: storage.now_ms)
    cleaner.stop()
    with pytest.raises(CleanerStopped):
        cleaner.clean_one(cleaner.new_runner())
    assert not names(storage.fs, ".cleaned")
    assert not log.cleaned_offset


def test_threads_start_compact_and_stop() -> None:
    storage = CompactedStorage()
    log = storage.create()
    for at in range(30):
        put(storage, log, (b"a", b"%d" % at))
    log.seal()
    config = CleanerConfig(threads=2, dedupe_buffer_bytes=1 << 16, backoff_ms=1)
    cleaner = Cleaner(storage.manager, config, now_ms=lambda: 0)
    cleaner.start()
    while not cleaner.completed:
        pass
    cleaner.stop()
    assert log.cleaned_offset
    idle = Cleaner(storage.manager, CleanerConfig(enabled=False), now_ms=lambda: 0)
    idle.start()
    idle.stop()
    storage.check()


def test_keyless_records_are_refused_where_the_log_is_compacted() -> None:
    storage = CompactedStorage()
    log = storage.create()
    rows = [(b"k", b"v", storage.now_ms, ()), (None, b"v", storage.now_ms, ()), (b"", b"v", storage.now_ms, ())]
    for codec in range(5):
        with pytest.raises(KeylessRecords) as caught:
            log.append(encode_batch(rows, compression=codec), leader_epoch=0)
        assert caught.value.record_indexes == [1]
    with pytest.raises(InvalidRecord):
        good = encode_batch([rows[0]])
        log.append(fix_crc(good[:HEADER_SIZE] + b"\x20" + good[HEADER_SIZE + 1 :]), leader_epoch=0)
    assert log.log_end_offset == 0
    append(log, b"v")
    storage.configure(log, cleanup_policy=frozenset({"delete"}))
    append(log, b"v", key=None)
    storage.configure(log, cleanup_policy=frozenset({"compact"}))
    put(storage, log, (b"z", b"z" * 300))
    storage.clean()
    assert None not in [key for _, key, _ in contents_of(log)]
    storage.check()
