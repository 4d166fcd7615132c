"""What the loader does with files that a crash or a person has damaged."""

from __future__ import annotations

import errno
import logging

import pytest

from pylogd.log.config import LogConfig
from pylogd.log.errors import CorruptLog, LoadCancelled, StorageFailure
from pylogd.log.log import Log
from pylogd.log.manager import LogManager
from tests.fakes.storage import (
    DATA,
    START_MS,
    House,
    append,
    contents,
    flip_byte,
    names,
    overwrite,
    truncate,
    values,
)

PARTITION = f"{DATA}/t-0"


def filled(count: int = 10) -> tuple[House, list[bytes]]:
    """A house whose one log has `count` one-record batches in segments of two."""
    house = House(LogConfig(segment_bytes=200, index_interval_bytes=50))
    log = house.create()
    expected = [b"%03d" % at + b"x" * 20 for at in range(count)]
    for at, value in enumerate(expected):
        append(log, value, timestamp=START_MS + at, epoch=at // 3)
    return house, expected


def segment(log: Log, at: int) -> str:
    """Return the path of the log file of a segment."""
    return log.segments[at].path


def test_a_killed_process_loses_nothing() -> None:
    house, expected = filled()
    assert values(house.kill()) == expected
    house.check()
    assert house.manager.logs["t", 0].epochs.entries() == [(0, 0), (1, 3), (2, 6), (3, 9)]


@pytest.mark.parametrize("cut", range(1, 92, 7))
def test_an_incomplete_end_is_truncated_at_the_batch(cut: int, caplog: pytest.LogCaptureFixture) -> None:
    house, expected = filled()
    path = segment(house.manager.logs["t", 0], -1)
    truncate(house.fs, path, house.fs.size(path) - cut)
    log = house.kill()
    assert values(log) == expected[:9]
    assert "Truncating" in caplog.text
    append(log, b"new", epoch=5)
    assert values(house.restart()) == [*expected[:9], b"new"]
    house.check()


@pytest.mark.parametrize("position", range(0, 90, 8))
def test_a_damaged_end_is_truncated_at_the_batch(position: int) -> None:
    house, expected = filled()
    path = segment(house.manager.logs["t", 0], -1)
    damaged = house.fs.size(path) // 2 + position
    flip_byte(house.fs, path, damaged)
    log = house.kill() if position // 4 not in (0, 3) else None  # base offset and epoch are not under the CRC
    if log is not None:
        assert values(log) == expected[:9]
        house.check()


def test_zeros_at_the_end_are_truncated() -> None:
    house, expected = filled()
    path = segment(house.manager.logs["t", 0], -1)
    house.fs.files[path].data += bytes(4096)
    assert values(house.kill()) == expected
    house.check()


def test_segments_after_damage_are_set_aside(caplog: pytest.LogCaptureFixture) -> None:
    house, expected = filled()
    log = house.manager.logs["t", 0]
    path, lost = segment(log, 2), segment(log, 3)
    kept = contents(house.fs, lost)
    flip_byte(house.fs, path, house.fs.size(path) - 1)
    log = house.kill()
    assert values(log) == expected[:5]
    assert contents(house.fs, f"{lost}.orphaned") == kept
    assert "can't be served" in caplog.text
    append(log, b"new", epoch=5)
    assert values(house.kill()) == [*expected[:5], b"new"]


def test_segments_before_the_recovery_point_are_not_scanned() -> None:
    house, expected = filled()
    log = house.manager.logs["t", 0]
    log.flush()
    house.manager.checkpoint()
    append(log, b"more", epoch=9)
    path = segment(log, 0)
    house.fs.calls.clear()
    assert values(house.kill(), 2) == [*expected[2:], b"more"]
    before_reading = house.fs.calls.index(f"open {segment(house.manager.logs['t', 0], -1)}")
    assert f"open {path}" not in house.fs.calls[:before_reading]
    house.check()


def test_a_cancelled_start_ends_between_two_segments() -> None:
    house, expected = filled()
    second = segment(house.manager.logs["t", 0], 1)
    house.fs.kill()
    manager = LogManager(
        [DATA], config=house.config, fs=house.fs, now_ms=lambda: house.now_ms, node_id=1, cluster_id="c"
    )
    call = house.fs._call

    def call_off(operation: str, path: str) -> None:
        if (operation, path) == ("pread", second):
            manager.cancel_load()
        call(operation, path)

    house.fs._call = call_off  # type: ignore[method-assign]
    with pytest.raises(LoadCancelled):
        manager.load()
    assert manager.logs == {}
    assert f"pread {second}" == [call for call in house.fs.calls if call.startswith("pread")][-1]
    house.fs._call = call  # type: ignore[method-assign]
    assert values(house.start().logs["t", 0]) == expected
    house.check()


def test_a_clean_stop_needs_no_scan() -> None:
    house, expected = filled()
    house.manager.close()
    house.fs.calls.clear()
    log = house.start().logs["t", 0]
    reads = [call for call in house.fs.calls if call.startswith("pread ") and call.endswith(".log")]
    assert len(reads) <= 4
    assert all(call.endswith(log.active.path) for call in reads)
    assert values(log) == expected
    house.check()


def test_the_marker_is_gone_while_the_broker_runs() -> None:
    house, _ = filled()
    house.manager.close()
    assert house.fs.exists(f"{DATA}/.kafka_cleanshutdown")
    house.start()
    assert not house.fs.exists(f"{DATA}/.kafka_cleanshutdown")
    house.check()


def test_power_loss_keeps_what_was_flushed() -> None:
    house, expected = filled()
    house.manager.logs["t", 0].flush()
    house.manager.checkpoint()
    append(house.manager.logs["t", 0], b"unflushed", epoch=9)
    house.lose_power()
    assert values(house.manager.logs["t", 0]) == expected
    house.check()


def test_power_loss_before_the_first_flush() -> None:
    house, _ = filled()
    house.lose_power()
    assert house.manager.logs == {} or values(house.manager.logs["t", 0]) == []


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("harm", ["missing", "cut", "empty", "garbage", "beyond"])
def test_a_damaged_index_is_rebuilt(suffix: str, harm: str) -> None:
    house, expected = filled()
    house.manager.close()
    for name in names(house.fs, suffix):
        path = f"{PARTITION}/{name}"
        data = contents(house.fs, path)
        if harm == "missing":
            house.fs.unlink(path)
        else:
            harmed = {"cut": data[:-1], "empty": b"", "garbage": b"\xff" * len(data) * 2, "beyond": data * 2}
            overwrite(house.fs, path, harmed[harm])
    log = house.start().logs["t", 0]
    assert values(log) == expected
    for at in range(10):
        assert log.offset_for_timestamp(START_MS + at, allow_cold=True) == (START_MS + at, at, at // 3)
    if harm != "empty":  # an index without entries is valid, so it is not rebuilt
        house.check()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("operation", ["open", "pwritev", "rename"])
def test_a_crash_while_an_index_is_rebuilt_leaves_no_incomplete_one(operation: str, suffix: str) -> None:
    house, expected = filled()
    log = house.manager.logs["t", 0]
    log.flush()
    house.manager.checkpoint()
    house.fs.unlink(segment(log, 0).replace(".log", suffix))
    house.fs.kill()
    with house.fs.failing(operation, errno.EIO, path=f"{suffix}.tmp"), pytest.raises(StorageFailure):
        house.start()
    assert values(house.kill()) == expected
    assert names(house.fs, ".tmp") == []
    house.check()


def test_overlapping_segments_are_refused_and_untouched(caplog: pytest.LogCaptureFixture) -> None:
    house, _ = filled()
    log = house.manager.logs["t", 0]
    data = contents(house.fs, segment(log, 1))
    house.fs.rename(segment(log, 2), f"{PARTITION}/{3:020d}.log")
    overwrite(house.fs, segment(log, 1), data)
    before = {name: contents(house.fs, f"{PARTITION}/{name}") for name in names(house.fs, ".log")}
    house.fs.kill()
    manager = house.start()
    assert manager.logs == {}
    assert isinstance(manager.offline["t", 0], CorruptLog)
    assert "overlap" in str(manager.offline["t", 0])
    assert {name: contents(house.fs, f"{PARTITION}/{name}") for name in names(house.fs, ".log")} == before


def test_a_segment_under_the_wrong_name_is_refused() -> None:
    house, _ = filled()
    log = house.manager.logs["t", 0]
    house.fs.rename(segment(log, -1), f"{PARTITION}/{50:020d}.log")
    house.fs.kill()
    assert "does not belong to this log" in str(house.start().offline["t", 0])


def test_a_gap_is_logged_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    house, expected = filled()
    house.fs.unlink(segment(house.manager.logs["t", 0], 2))
    log = house.kill()
    assert values(log) == expected[:4] + expected[6:]
    assert "no records from offset 4 to 5" in caplog.text


def test_an_offline_log_is_scanned_again_after_a_clean_stop() -> None:
    house, _ = filled()
    log = house.manager.logs["t", 0]
    right = segment(log, -1)
    house.fs.rename(right, f"{PARTITION}/{50:020d}.log")
    house.fs.kill()
    house.start()
    house.manager.close()
    assert not house.fs.exists(f"{DATA}/.kafka_cleanshutdown")
    house.fs.rename(f"{PARTITION}/{50:020d}.log", right)
    assert len(values(house.start().logs["t", 0])) == 10


def test_a_zero_length_file_is_an_empty_segment() -> None:
    house, expected = filled()
    overwrite(house.fs, f"{PARTITION}/{10:020d}.log", b"")
    log = house.kill()
    assert values(log) == expected
    append(log, b"new", epoch=5)
    assert values(house.kill()) == [*expected, b"new"]
    house.check()


def test_unknown_files_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    house, expected = filled()
    for path in (f"{PARTITION}/notes.txt", f"{DATA}/lost+found", f"{PARTITION}/12.log"):
        overwrite(house.fs, path, b"mine")
    assert values(house.restart()) == expected
    for path in (f"{PARTITION}/notes.txt", f"{DATA}/lost+found", f"{PARTITION}/12.log"):
        assert contents(house.fs, path) == b"mine"
        assert path in caplog.text


@pytest.mark.parametrize(
    "name", ["t-0/leader-epoch-checkpoint", "recovery-point-offset-checkpoint", "log-start-offset-checkpoint"]
)
@pytest.mark.parametrize(
    "garbage", [b"", b"\xff\xfe", b"9\n0\n", b"0\n5\nx y z\n", b"0\n1\nt 0 many\n", b"0\n1\n1 x\n"]
)
def test_a_checkpoint_of_garbage(name: str, garbage: bytes) -> None:
    house, expected = filled()
    house.manager.close()
    overwrite(house.fs, f"{DATA}/{name}", garbage)
    log = house.start().logs["t", 0]
    assert values(log) == expected
    assert log.epochs.entries() == [(0, 0), (1, 3), (2, 6), (3, 9)]
    house.check()


def test_the_loss_of_all_segments_is_logged_and_offsets_are_not_reused(caplog: pytest.LogCaptureFixture) -> None:
    house, _ = filled()
    house.manager.close()
    for name in names(house.fs, ".log"):
        house.fs.unlink(f"{PARTITION}/{name}")
    with caplog.at_level(logging.ERROR):
        log = house.start().logs["t", 0]
    assert (log.log_start_offset, log.log_end_offset) == (10, 10)
    assert "these are lost" in caplog.text
    house.check()


def test_a_log_that_ends_before_its_start_offset_continues_there() -> None:
    house, _ = filled()
    log = house.manager.logs["t", 0]
    log.delete_records_before(9)
    house.manager.checkpoint()
    path = segment(log, 3)
    truncate(house.fs, path, 10)
    log = house.kill()
    assert (log.log_start_offset, log.log_end_offset) == (9, 9)
    append(log, b"new", epoch=5)
    assert values(house.kill()) == [b"new"]


def test_a_damaged_end_after_a_clean_stop_is_recovered() -> None:
    house, expected = filled()
    house.manager.close()
    path = f"{PARTITION}/{8:020d}.log"
    truncate(house.fs, path, house.fs.size(path) - 5)
    log = house.start().logs["t", 0]
    assert values(log) == expected[:9]
    house.check()
