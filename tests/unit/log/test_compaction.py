"""Compaction of a log on the memory file system: what stays, where, and what readers see meanwhile."""

from __future__ import annotations

import errno

import pytest

from pylogd.log.cleaner import Cleaner, CleanerConfig, CleanerStopped, Throttle, cleanable
from pylogd.log.compaction import SourcesChanged, compact
from pylogd.log.errors import InvalidRecord, KeylessRecords, LogClosed
from pylogd.log.keymap import ENTRY_BYTES, NOT_FOUND, KeyMap
from pylogd.log.log import Log
from pylogd.log.rewrite import delete_horizon
from pylogd.log.truncation import truncate_to
from pylogd.log.validator import AppendOrigin
from pylogd.wire.records import CONTROL, HEADER_SIZE, TRANSACTIONAL, BatchHeader, encode_batch, iter_batches
from tests.fakes.compaction import CompactedHouse, contents_of, final, put
from tests.fakes.storage import DATA, append, fix_crc, flip_byte, names, read_all, values


def batches(log: Log) -> list[BatchHeader]:
    """The headers of all batches, empty ones too."""
    return [header for segment in log.segments for _, header in segment.headers(0, allow_cold=True)]


def roll(house: CompactedHouse, log: Log) -> None:
    """Seal what was appended, so that it may be compacted."""
    with log.lock:
        log.roll(log.log_end_offset, house.now_ms)


class TestKeyMap:
    def test_is_a_dict_of_the_last_offsets(self) -> None:
        keys = KeyMap(ENTRY_BYTES * 5000)
        names = [b"%d" % (n % 1500) for n in range(4000)]
        keys.put_all(names, range(4000))
        model = {name: at for at, name in enumerate(names)}
        assert keys.latest([*model, b"other", None]) == [*model.values(), NOT_FOUND, NOT_FOUND]
        assert len(keys) == 1500
        keys.clear()
        assert keys.latest(model) == [NOT_FOUND] * 1500
        assert not len(keys)

    def test_takes_24_bytes_an_entry_in_one_block(self) -> None:
        keys = KeyMap(1 << 20)
        assert keys.nbytes == keys.slots * 24 <= 1 << 20
        assert keys.slots > (1 << 20) / 24 - 100
        assert keys.capacity == int(keys.slots * 0.9)

    def test_is_full_at_its_load_factor(self) -> None:
        keys = KeyMap(ENTRY_BYTES * 101, 0.99)
        keys.put_all([b"%d" % n for n in range(keys.room)], range(100))
        assert keys.room == 0
        keys.put_all([b"0"], [7])
        assert keys.latest([b"0"]) == [7]
        with pytest.raises(MemoryError):
            keys.put_all([b"one more"], [8])


def test_the_last_value_of_each_key_stays_at_its_offset() -> None:
    house = CompactedHouse()
    log = house.create()
    for at in range(30):
        put(house, log, (b"k%d" % (at % 4), b"v%d" % at), (b"once%d" % at, b"w"))
    before = contents_of(log)
    end = log.log_end_offset
    (cleaned,) = house.clean()
    after = contents_of(log)
    assert set(after) < set(before)
    assert after == sorted(after)
    assert final(read_all(log)) == {key: value for _, key, value in before}
    assert log.log_end_offset == end
    assert cleaned.bytes_written < cleaned.bytes_read
    assert log.cleaned_offset == cleaned.end == log.active.base_offset
    house.check()
    assert contents_of(house.restart()) == after
    assert house.manager.logs["t", 0].cleaned_offset == cleaned.end
    assert house.clean() == []
    house.check()


def test_a_read_inside_a_hole_gets_the_next_higher_batch() -> None:
    house = CompactedHouse()
    log = house.create()
    for at in range(40):
        put(house, log, (b"same", b"%d" % at))
    house.clean()
    left = [offset for offset, _, _ in contents_of(log)]
    assert len(left) < 20
    for offset in range(log.log_end_offset):
        piece = log.read(offset, 1 << 20, allow_cold=True)
        assert piece is not None
        header, _ = next(iter_batches(piece.read()))
        assert header.last_offset >= offset
        assert header.record_count  # an answer of nothing but empty batches makes librdkafka give up
        assert read_all(log, offset)[0].offset == min(other for other in left if other >= offset)


def test_small_segments_are_put_together() -> None:
    house = CompactedHouse()
    log = house.create()
    for at in range(60):
        put(house, log, (b"k%d" % (at % 3), b"%d" % at))
    count = len(log.segments)
    house.clean()
    for _ in range(3):
        put(house, log, (b"a", b"x" * 250))
        house.clean()
    assert len(log.segments) <= count / 2
    assert len(names(house.fs, ".snapshot")) <= len(log.segments)
    house.check()


def test_batches_with_nothing_to_drop_are_copied_as_they_are() -> None:
    house = CompactedHouse()
    log = house.create()
    put(house, log, (b"a", b"1" * 150), (b"b", b"2" * 150), compression=4)
    kept = log.read(0, 1 << 20, allow_cold=True)
    assert kept is not None
    old = kept.read()
    for at in range(20):
        put(house, log, (b"c", b"%d" % at))
    house.clean()
    again = log.read(0, 1 << 20, allow_cold=True)
    assert again is not None
    assert again.read()[: len(old)] == old


@pytest.mark.parametrize("codec", range(5))
def test_codecs_and_headers_are_kept(codec: int) -> None:
    house = CompactedHouse(segment_bytes=4000)
    log = house.create()
    put(house, log, *((b"k%d" % at, b"old" * 30) for at in range(9)), compression=codec, producer_id=5,
        producer_epoch=1, base_sequence=0)  # fmt: skip
    put(house, log, *((b"k%d" % at, b"new" * 99) for at in range(7)))
    roll(house, log)
    house.clean()
    first = batches(log)[0]
    assert (first.base_offset, first.last_offset_delta, first.record_count) == (0, 8, 2)
    assert (first.compression, first.producer_id, first.producer_epoch, first.base_sequence) == (codec, 5, 1, 0)
    assert first.max_timestamp == house.now_ms + 8
    assert [key for offset, key, _ in contents_of(log) if offset < 9] == [b"k7", b"k8"]
    house.check()


def test_delete_markers_stay_for_their_time_and_then_go() -> None:
    house = CompactedHouse(delete_retention_ms=1000)
    log = house.create()
    put(house, log, (b"a", b"1"), (b"b", b"2"))
    put(house, log, (b"a", None))
    roll(house, log)
    house.clean()
    assert contents_of(log) == [(1, b"b", b"2"), (2, b"a", None)]
    assert read_all(log)[1].timestamp == house.now_ms
    assert delete_horizon(batches(log)[1]) == house.now_ms + 1000
    house.check()
    for wait, left in ((999, 3), (2, 2)):
        house.pass_time(wait)
        put(house, log, (b"c", b"%d" % wait))
        roll(house, log)
        house.clean()
        assert len(contents_of(log)) == left
        house.check()
    assert final(read_all(log)) == {b"b": b"2", b"c": b"2"}


def test_producers_are_known_after_their_records_are_gone() -> None:
    house = CompactedHouse()
    log = house.create()
    ids = {"producer_id": 9, "producer_epoch": 0}
    put(house, log, (b"a", b"1"), base_sequence=0, **ids)
    result = put(house, log, (b"a", b"2"), base_sequence=1, **ids)
    for at in range(10):
        put(house, log, (b"a", b"%d" % at))
    house.clean()
    kept = batches(log)[0]
    assert (kept.base_offset, kept.record_count, kept.base_sequence) == (1, 0, 1)
    house.manager.close()
    for name in names(house.fs, ".snapshot"):
        house.fs.files[f"{DATA}/t-0/{name}"].data.clear()
    log = house.start().logs["t", 0]
    assert put(house, log, (b"a", b"2"), base_sequence=1, **ids)[:2] == result[:2]
    house.check()


def test_transactions_that_were_aborted_go_and_open_ones_are_not_passed() -> None:
    house = CompactedHouse(delete_retention_ms=10)
    log = house.create()
    put(house, log, (b"a", b"kept"))

    def write(pid: int, value: bytes, sequence: int) -> None:
        put(house, log, (b"a", value), producer_id=pid, producer_epoch=0, base_sequence=sequence,
            attributes=TRANSACTIONAL, origin=AppendOrigin.COORDINATOR)  # fmt: skip

    def mark(pid: int, kind: int) -> None:
        key = b"\0\0" + kind.to_bytes(2, "big")
        log.append(
            encode_batch(
                [(key, b"\0" * 6, house.now_ms, ())], attributes=TRANSACTIONAL | CONTROL, producer_id=pid,
                producer_epoch=0,
            ),
            leader_epoch=0, origin=AppendOrigin.COORDINATOR,
        )  # fmt: skip

    write(1, b"aborted", 0)
    mark(1, 0)
    put(house, log, (b"b", b"0"))
    write(2, b"open", 0)
    put(house, log, (b"b", b"1"))
    roll(house, log)
    house.clean()
    values_left = [value for _, _, value in contents_of(log)]
    assert b"kept" in values_left
    assert b"aborted" not in values_left
    assert values_left[-3:] == [b"0", b"open", b"1"]
    assert log.cleaned_offset == 4
    mark(2, 1)
    roll(house, log)
    house.pass_time(100_000)
    house.clean()
    values_left = [value for offset, _, value in contents_of(log)]
    assert values_left[-3:-1] == [b"open", b"1"]
    assert b"kept" not in values_left
    house.check()


def test_min_lag_holds_records_back_and_max_lag_brings_them_on() -> None:
    house = CompactedHouse(min_compaction_lag_ms=500, min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=900)
    log = house.create()
    for at in range(10):
        put(house, log, (b"a", b"%d" % at))
    roll(house, log)
    assert house.clean() == []
    house.pass_time(600)
    put(house, log, (b"a", b"x"))
    assert len(house.clean()) == 1  # all of it is dirty
    roll(house, log)
    house.pass_time(600)
    put(house, log, (b"b", b"y" * 300))
    found = cleanable(log, house.now_ms)
    log.seal()
    found = cleanable(log, house.now_ms)
    assert found is not None and not found.is_due
    house.pass_time(301)
    found = cleanable(log, house.now_ms)
    assert found is not None and found.overdue and found.is_due
    assert len(house.clean()) == 1


def test_the_dirtiest_log_comes_first() -> None:
    house = CompactedHouse()
    logs = [house.create("t", at) for at in range(3)]
    for log, count in zip(logs, (10, 10, 10), strict=True):
        for at in range(count):
            put(house, log, (b"a%d" % at, b"x" * 50))
        roll(house, log)
    house.clean()
    for log, count in zip(logs, (2, 9, 5), strict=True):
        for at in range(count):
            put(house, log, (b"b%d" % at, b"x" * 50))
        roll(house, log)
        log.seal()
    cleaner = Cleaner(house.manager, house.cleaner_config, now_ms=lambda: house.now_ms)
    worker = cleaner.worker()
    order = []
    while cleaner.clean_one(worker) is not None:
        order.append([log.partition for log in logs if log.cleaned_offset == log.log_end_offset])
    assert order == [[1], [1, 2], [0, 1, 2]]


def test_a_small_key_map_takes_several_rounds() -> None:
    house = CompactedHouse(keys=8)
    log = house.create()
    for at in range(50):
        put(house, log, (b"k%d" % (at % 25), b"%d" % at))
    rounds = house.clean()
    assert len(rounds) > 3
    assert final(read_all(log)) == {b"k%d" % (at % 25): b"%d" % at for at in range(50)}
    house.check()


def test_a_batch_that_no_map_holds_leaves_the_log_as_it_is() -> None:
    house = CompactedHouse(keys=5)
    log = house.create()
    put(house, log, *((b"k%d" % at, b"v") for at in range(9)))
    put(house, log, (b"a", b"v" * 300))
    before = contents_of(log)
    assert house.clean() == []
    assert contents_of(log) == before


def test_readers_in_flight_are_undisturbed() -> None:
    house = CompactedHouse()
    log = house.create()
    for at in range(30):
        put(house, log, (b"same", b"%d" % at))
    log.seal()
    pieces = [log.read(offset, 1 << 20, allow_cold=True) for offset in range(0, 30, 3)]
    old = list(log.segments)
    expected = [piece.read() for piece in pieces if piece]
    house.clean()
    assert [piece.read() for piece in pieces if piece] == expected
    found = old[0].locate(2, allow_cold=True)
    assert found is not None
    assert found.base_offset == 2
    house.pass_time(100_000)
    house.manager.tick()
    assert not names(house.fs, ".deleted")
    house.check()


def test_damage_stops_the_compaction_of_that_log_alone() -> None:
    house = CompactedHouse()
    for partition in range(2):
        log = house.create("t", partition)
        for at in range(20):
            put(house, log, (b"a", b"%d" % at))
        log.seal()
    flip_byte(house.fs, f"{DATA}/t-0/{0:020d}.log", 70)
    house.clean()
    assert house.manager.logs["t", 0].cleaned_offset == 0
    assert house.manager.logs["t", 1].cleaned_offset > 0
    assert not names(house.fs, ".cleaned")


@pytest.mark.parametrize("change", ["truncate", "delete", "close"])
def test_a_log_that_changes_under_the_cleaner(change: str) -> None:
    house = CompactedHouse(cleanup_policy=frozenset({"compact", "delete"}))
    log = house.create()
    for at in range(30):
        put(house, log, (b"a", b"%d" % at))
    log.seal()
    found = cleanable(log, house.now_ms)
    assert found is not None
    worker = Cleaner(house.manager, house.cleaner_config, now_ms=lambda: house.now_ms).worker()
    done = []

    def meddle(_count: int) -> None:
        if names(house.fs, ".cleaned") and not done:
            done.append(1)
            if change == "truncate":
                truncate_to(log, 3)
            elif change == "delete":
                log.delete_records_before(29)
                house.manager.tick()
            else:
                log.close()

    with pytest.raises(LogClosed if change == "close" else SourcesChanged):
        compact(log, found.first_dirty, found.end, worker.passes, now_ms=house.now_ms, check=meddle)
    assert not names(house.fs, ".cleaned")
    if change == "close":
        log = house.restart()
    assert values(log)[-1] == (b"2" if change == "truncate" else b"29")
    house.check()


def test_a_segment_that_retention_took_is_no_failing_disk() -> None:
    """Between the choice of a log and the reading of its first segment that is deleted: its file is not there."""
    house = CompactedHouse(cleanup_policy=frozenset({"compact", "delete"}), file_delete_delay_ms=0)
    log = house.create()
    for at in range(30):
        put(house, log, (b"a", b"%d" % at))
    log.seal()
    first = log.segments[0].path
    call, taken = house.fs._call, []

    def take(operation: str, path: str) -> None:
        if operation == "open" and path == first and not taken:
            taken.append(path)
            log.delete_records_before(20)
            house.manager.tick()
        call(operation, path)

    house.fs._call = take  # type: ignore[method-assign]
    assert house.clean() == []
    assert taken and not house.fs.exists(first)
    assert house.manager.healthy and not log.closed
    house.pass_time(100_000)
    assert len(house.clean()) == 1
    assert values(log)[-1] == b"29"
    house.check()


def test_a_swap_that_finds_its_files_gone_is_a_failing_disk() -> None:
    """Nothing but the swap may touch the files from its commit on: without them nobody knows what the log holds."""
    house = CompactedHouse()
    log = house.create()
    for at in range(30):
        put(house, log, (b"a", b"%d" % at))
    log.seal()
    with house.fs.failing("rename", errno.ENOENT, path=".log.swap"):
        assert house.clean() == []
    assert log.closed and not house.manager.healthy


def test_a_full_disk_changes_nothing_and_it_goes_on_later() -> None:
    house = CompactedHouse()
    log = house.create()
    for at in range(30):
        put(house, log, (b"a", b"%d" % at))
    before = contents_of(log)
    log.seal()
    with house.fs.failing("pwritev", errno.ENOSPC, path=".cleaned", partial=10):
        assert house.clean() == []
    assert contents_of(log) == before
    assert not names(house.fs, ".cleaned")
    assert len(house.clean()) == 1
    house.check()


def test_stopping_leaves_nothing_half_done() -> None:
    house = CompactedHouse()
    log = house.create()
    for at in range(30):
        put(house, log, (b"a", b"%d" % at))
    log.seal()
    cleaner = Cleaner(house.manager, house.cleaner_config, now_ms=lambda: house.now_ms)
    cleaner.stop()
    with pytest.raises(CleanerStopped):
        cleaner.clean_one(cleaner.worker())
    assert not names(house.fs, ".cleaned")
    assert not log.cleaned_offset


def test_threads_start_clean_and_stop() -> None:
    house = CompactedHouse()
    log = house.create()
    for at in range(30):
        put(house, log, (b"a", b"%d" % at))
    log.seal()
    config = CleanerConfig(threads=2, dedupe_buffer_bytes=1 << 16, backoff_ms=1)
    cleaner = Cleaner(house.manager, config, now_ms=lambda: 0)
    cleaner.start()
    while not cleaner.cleaned:
        pass
    cleaner.stop()
    assert log.cleaned_offset
    idle = Cleaner(house.manager, CleanerConfig(enabled=False), now_ms=lambda: 0)
    idle.start()
    idle.stop()
    house.check()


def test_the_throttle_pays_for_every_byte() -> None:
    now, pauses = [0.0], []

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    throttle = Throttle(100.0, lambda: now[0], wait)
    throttle.take(50)
    throttle.take(0)
    throttle.take(200)
    assert pauses == [0.5, 2.0]


def test_keyless_records_are_refused_where_the_log_is_compacted() -> None:
    house = CompactedHouse()
    log = house.create()
    rows = [(b"k", b"v", house.now_ms, ()), (None, b"v", house.now_ms, ()), (b"", b"v", house.now_ms, ())]
    for codec in range(5):
        with pytest.raises(KeylessRecords) as caught:
            log.append(encode_batch(rows, compression=codec), leader_epoch=0)
        assert caught.value.places == [1]
    with pytest.raises(InvalidRecord):
        good = encode_batch([rows[0]])
        log.append(fix_crc(good[:HEADER_SIZE] + b"\x20" + good[HEADER_SIZE + 1 :]), leader_epoch=0)
    assert log.log_end_offset == 0
    append(log, b"v")
    house.configure(log, cleanup_policy=frozenset({"delete"}))
    append(log, b"v", key=None)
    house.configure(log, cleanup_policy=frozenset({"compact"}))
    put(house, log, (b"z", b"z" * 300))
    house.clean()
    assert None not in [key for _, key, _ in contents_of(log)]
    house.check()
