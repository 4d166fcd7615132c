"""How the loader handles files that a crash or a person has damaged."""

from __future__ import annotations

import errno
import logging

import pytest

from pylogd.broker.log.config import LogConfig
from pylogd.broker.log.errors import CorruptLog, LoadCancelled, StorageFailure
from pylogd.broker.log.files import replace_file
from pylogd.broker.log.log import Log
from pylogd.broker.log.manager import LogManager
from tests.fakes.storage import (
    DATA,
    START_MS,
    MemoryStorage,
    append,
    contents,
    flip_byte,
    names,
    overwrite,
    truncate,
    values,
)

PARTITION = f"{DATA}/t-0"


def filled(count: int = 10) -> tuple[MemoryStorage, list[bytes]]:
    """Return a storage whose one log has `count` batches of one record, in segments of two batches."""
    storage = MemoryStorage(LogConfig(segment_bytes=200, index_interval_bytes=50))
    log = storage.create()
    expected = [b"%03d" % at + b"x" * 20 for at in range(count)]
    for at, value in enumerate(expected):
        append(log, value, timestamp=START_MS + at, epoch=at // 3)
    return storage, expected


def segment(log: Log, at: int) -> str:
    """Return the path of the log file of a segment."""
    return log.segments[at].path


def test_a_killed_process_loses_nothing() -> None:
    storage, expected = filled()
    assert values(storage.kill()) == expected
    storage.check()
    assert storage.manager.logs["t", 0].epochs.entries() == [(0, 0), (1, 3), (2, 6), (3, 9)]


def test_leader_epochs_survive_several_crashes() -> None:
    """The first recovery moved the recovery point behind epochs that were in no file: the second one lost them.

    A follower then truncated thousands of records that its leader had too, or a leader let its followers do so.
    """
    storage, expected = filled()
    for at in range(3):
        storage.manager.checkpoint()
        assert values(storage.kill()) == expected
        log = storage.manager.logs["t", 0]
        assert log.epochs.entries() == [(0, 0), (1, 3), (2, 6), (3, 9), *((4 + n, 10 + n) for n in range(at))]
        expected.append(b"more")
        append(log, b"more", timestamp=START_MS, epoch=4 + at)
    log.flush()
    storage.manager.checkpoint()
    before = log.epochs.entries()
    storage.kill()
    assert storage.manager.logs["t", 0].epochs.entries() == before


@pytest.mark.parametrize("cut", range(1, 92, 7))
def test_an_incomplete_end_is_truncated_at_the_batch(cut: int, caplog: pytest.LogCaptureFixture) -> None:
    storage, expected = filled()
    path = segment(storage.manager.logs["t", 0], -1)
    truncate(storage.fs, path, storage.fs.size(path) - cut)
    log = storage.kill()
    assert values(log) == expected[:9]
    assert "Truncating" in caplog.text
    append(log, b"new", epoch=5)
    assert values(storage.restart()) == [*expected[:9], b"new"]
    storage.check()


@pytest.mark.parametrize("position", range(0, 90, 8))
def test_a_damaged_end_is_truncated_at_the_batch(position: int) -> None:
    storage, expected = filled()
    path = segment(storage.manager.logs["t", 0], -1)
    damaged = storage.fs.size(path) // 2 + position
    flip_byte(storage.fs, path, damaged)
    # base offset and leader epoch are not covered by the CRC
    log = storage.kill() if position // 4 not in (0, 3) else None
    if log is not None:
        assert values(log) == expected[:9]
        storage.check()


def test_zeros_at_the_end_are_truncated() -> None:
    storage, expected = filled()
    path = segment(storage.manager.logs["t", 0], -1)
    storage.fs.files[path].data += bytes(4096)
    assert values(storage.kill()) == expected
    storage.check()


def test_segments_after_damage_are_set_aside(caplog: pytest.LogCaptureFixture) -> None:
    storage, expected = filled()
    log = storage.manager.logs["t", 0]
    path, lost = segment(log, 2), segment(log, 3)
    kept = contents(storage.fs, lost)
    flip_byte(storage.fs, path, storage.fs.size(path) - 1)
    log = storage.kill()
    assert values(log) == expected[:5]
    assert contents(storage.fs, f"{lost}.orphaned") == kept
    assert "can't be served" in caplog.text
    append(log, b"new", epoch=5)
    assert values(storage.kill()) == [*expected[:5], b"new"]


def test_segments_before_the_recovery_point_are_not_scanned() -> None:
    storage, expected = filled()
    log = storage.manager.logs["t", 0]
    log.flush()
    storage.manager.checkpoint()
    append(log, b"more", epoch=9)
    path = segment(log, 0)
    storage.fs.calls.clear()
    assert values(storage.kill(), 2) == [*expected[2:], b"more"]
    before_reading = storage.fs.calls.index(f"open {segment(storage.manager.logs['t', 0], -1)}")
    assert f"open {path}" not in storage.fs.calls[:before_reading]
    storage.check()


def test_a_cancelled_start_ends_between_two_segments() -> None:
    storage, expected = filled()
    second = segment(storage.manager.logs["t", 0], 1)
    storage.fs.kill()
    manager = LogManager(
        [DATA], config=storage.config, fs=storage.fs, now_ms=lambda: storage.now_ms, node_id=1, cluster_id="c"
    )
    call = storage.fs._call

    def call_off(operation: str, path: str) -> None:
        if (operation, path) == ("pread", second):
            manager.cancel_load()
        call(operation, path)

    storage.fs._call = call_off  # type: ignore[method-assign]
    with pytest.raises(LoadCancelled):
        manager.load()
    assert manager.logs == {}
    assert f"pread {second}" == [call for call in storage.fs.calls if call.startswith("pread")][-1]
    storage.fs._call = call  # type: ignore[method-assign]
    assert values(storage.start().logs["t", 0]) == expected
    storage.check()


def test_a_clean_stop_needs_no_scan() -> None:
    storage, expected = filled()
    storage.manager.close()
    storage.fs.calls.clear()
    log = storage.start().logs["t", 0]
    reads = [call for call in storage.fs.calls if call.startswith("pread ") and call.endswith(".log")]
    assert len(reads) <= 4
    assert all(call.endswith(log.active.path) for call in reads)
    assert values(log) == expected
    storage.check()


def test_the_marker_is_gone_while_the_broker_runs() -> None:
    storage, _ = filled()
    storage.manager.close()
    assert storage.fs.exists(f"{DATA}/.kafka_cleanshutdown")
    storage.start()
    assert not storage.fs.exists(f"{DATA}/.kafka_cleanshutdown")
    storage.check()


def test_power_loss_keeps_what_was_flushed() -> None:
    storage, expected = filled()
    storage.manager.logs["t", 0].flush()
    storage.manager.checkpoint()
    append(storage.manager.logs["t", 0], b"unflushed", epoch=9)
    storage.lose_power()
    assert values(storage.manager.logs["t", 0]) == expected
    storage.check()


def test_power_loss_before_the_first_flush() -> None:
    storage, _ = filled()
    storage.lose_power()
    assert storage.manager.logs == {} or values(storage.manager.logs["t", 0]) == []


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("harm", ["missing", "cut", "empty", "garbage", "beyond"])
def test_a_damaged_index_is_rebuilt(suffix: str, harm: str) -> None:
    storage, expected = filled()
    storage.manager.close()
    for name in names(storage.fs, suffix):
        path = f"{PARTITION}/{name}"
        data = contents(storage.fs, path)
        if harm == "missing":
            storage.fs.unlink(path)
        else:
            harmed = {"cut": data[:-1], "empty": b"", "garbage": b"\xff" * len(data) * 2, "beyond": data * 2}
            overwrite(storage.fs, path, harmed[harm])
    log = storage.start().logs["t", 0]
    assert values(log) == expected
    for at in range(10):
        assert log.offset_for_timestamp(START_MS + at, allow_cold=True) == (START_MS + at, at, at // 3)
    if harm != "empty":  # an index without entries is valid, so it is not rebuilt
        storage.check()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("operation", ["open", "pwritev", "rename"])
def test_a_crash_while_an_index_is_rebuilt_leaves_no_incomplete_one(operation: str, suffix: str) -> None:
    storage, expected = filled()
    log = storage.manager.logs["t", 0]
    log.flush()
    storage.manager.checkpoint()
    storage.fs.unlink(segment(log, 0).replace(".log", suffix))
    storage.fs.kill()
    with storage.fs.failing(operation, errno.EIO, path=f"{suffix}.tmp"), pytest.raises(StorageFailure):
        storage.start()
    assert values(storage.kill()) == expected
    assert names(storage.fs, ".tmp") == []
    storage.check()


def test_overlapping_segments_are_refused_and_untouched(caplog: pytest.LogCaptureFixture) -> None:
    storage, _ = filled()
    log = storage.manager.logs["t", 0]
    data = contents(storage.fs, segment(log, 1))
    storage.fs.rename(segment(log, 2), f"{PARTITION}/{3:020d}.log")
    overwrite(storage.fs, segment(log, 1), data)
    before = {name: contents(storage.fs, f"{PARTITION}/{name}") for name in names(storage.fs, ".log")}
    storage.fs.kill()
    manager = storage.start()
    assert manager.logs == {}
    assert isinstance(manager.offline["t", 0], CorruptLog)
    assert "overlap" in str(manager.offline["t", 0])
    assert {name: contents(storage.fs, f"{PARTITION}/{name}") for name in names(storage.fs, ".log")} == before


def test_a_segment_under_the_wrong_name_is_refused() -> None:
    storage, _ = filled()
    log = storage.manager.logs["t", 0]
    storage.fs.rename(segment(log, -1), f"{PARTITION}/{50:020d}.log")
    storage.fs.kill()
    assert "does not belong to this log" in str(storage.start().offline["t", 0])


def test_a_gap_is_logged_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    storage, expected = filled()
    storage.fs.unlink(segment(storage.manager.logs["t", 0], 2))
    log = storage.kill()
    assert values(log) == expected[:4] + expected[6:]
    assert "no records from offset 4 to 5" in caplog.text


def test_an_offline_log_is_scanned_again_after_a_clean_stop() -> None:
    storage, _ = filled()
    log = storage.manager.logs["t", 0]
    right = segment(log, -1)
    storage.fs.rename(right, f"{PARTITION}/{50:020d}.log")
    storage.fs.kill()
    storage.start()
    storage.manager.close()
    assert not storage.fs.exists(f"{DATA}/.kafka_cleanshutdown")
    storage.fs.rename(f"{PARTITION}/{50:020d}.log", right)
    assert len(values(storage.start().logs["t", 0])) == 10


def test_a_zero_length_file_is_an_empty_segment() -> None:
    storage, expected = filled()
    overwrite(storage.fs, f"{PARTITION}/{10:020d}.log", b"")
    log = storage.kill()
    assert values(log) == expected
    append(log, b"new", epoch=5)
    assert values(storage.kill()) == [*expected, b"new"]
    storage.check()


def test_unknown_files_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    storage, expected = filled()
    for path in (f"{PARTITION}/notes.txt", f"{DATA}/lost+found", f"{PARTITION}/12.log"):
        overwrite(storage.fs, path, b"mine")
    assert values(storage.restart()) == expected
    for path in (f"{PARTITION}/notes.txt", f"{DATA}/lost+found", f"{PARTITION}/12.log"):
        assert contents(storage.fs, path) == b"mine"
        assert path in caplog.text


@pytest.mark.parametrize(
    "name", ["t-0/leader-epoch-checkpoint", "recovery-point-offset-checkpoint", "log-start-offset-checkpoint"]
)
@pytest.mark.parametrize(
    "garbage", [b"", b"\xff\xfe", b"9\n0\n", b"0\n5\nx y z\n", b"0\n1\nt 0 many\n", b"0\n1\n1 x\n"]
)
def test_a_checkpoint_of_garbage(name: str, garbage: bytes) -> None:
    storage, expected = filled()
    storage.manager.close()
    replace_file(storage.fs, f"{DATA}/{name}", garbage, sync=False)
    log = storage.start().logs["t", 0]
    assert values(log) == expected
    assert log.epochs.entries() == [(0, 0), (1, 3), (2, 6), (3, 9)]
    storage.check()


def test_the_loss_of_all_segments_is_logged_and_offsets_are_not_reused(caplog: pytest.LogCaptureFixture) -> None:
    storage, _ = filled()
    storage.manager.close()
    for name in names(storage.fs, ".log"):
        storage.fs.unlink(f"{PARTITION}/{name}")
    with caplog.at_level(logging.ERROR):
        log = storage.start().logs["t", 0]
    assert (log.log_start_offset, log.log_end_offset) == (10, 10)
    assert "these are lost" in caplog.text
    storage.check()


def test_a_log_that_ends_before_its_start_offset_continues_there() -> None:
    storage, _ = filled()
    log = storage.manager.logs["t", 0]
    log.delete_records_before(9)
    storage.manager.checkpoint()
    path = segment(log, 3)
    truncate(storage.fs, path, 10)
    log = storage.kill()
    assert (log.log_start_offset, log.log_end_offset) == (9, 9)
    append(log, b"new", epoch=5)
    assert values(storage.kill()) == [b"new"]


def test_a_damaged_end_after_a_clean_stop_is_recovered() -> None:
    storage, expected = filled()
    storage.manager.close()
    path = f"{PARTITION}/{8:020d}.log"
    truncate(storage.fs, path, storage.fs.size(path) - 5)
    log = storage.start().logs["t", 0]
    assert values(log) == expected[:9]
    storage.check()
