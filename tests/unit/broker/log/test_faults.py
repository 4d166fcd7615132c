"""Disk failures: which take a data directory offline and which are temporary; none loses what was synced."""

from __future__ import annotations

import errno
import os

import pytest

from pylogd.broker.log.config import LogConfig
from pylogd.broker.log.errors import LogClosed, NoLogDirectory, StorageFailure
from pylogd.broker.log.log import Log
from pylogd.broker.log.manager import LogManager
from pylogd.broker.log.verify import verify_log_dir
from tests.fakes.filesystem import MemoryFileSystem
from tests.fakes.storage import DATA, START_MS, TOPIC_ID, MemoryStorage, append, is_bad, names, values


class Disks:
    """A manager with two data directories, and a log in each."""

    def __init__(self) -> None:
        self.fs = MemoryFileSystem()
        self.config = LogConfig(segment_bytes=400, flush_messages=1)
        self.failed: list[tuple[str, list[tuple[str, int]]]] = []
        self.manager = self.start()
        self.a, self.b = (self.manager.create("t", index, TOPIC_ID, self.config) for index in (0, 1))

    def start(self) -> LogManager:
        self.manager = LogManager(
            ["/a", "/b"], config=self.config, fs=self.fs, now_ms=lambda: START_MS, recovery_threads=1
        )
        self.manager.on_directory_failed = lambda path, keys: self.failed.append((path, keys))
        self.manager.load()
        return self.manager

    def writes_to(self, path: str) -> list[str]:
        """Return the calls that would change something below `path`."""
        changing = ("pwritev", "fsync", "ftruncate", "rename", "unlink", "rmdir", "mkdir")
        return [call for call in self.fs.calls if call.startswith(changing) and f" {path}" in call]


def test_a_sync_that_fails_takes_its_directory_offline_alone() -> None:
    disks = Disks()
    append(disks.a, b"1")
    append(disks.b, b"1")
    with disks.fs.failing("fsync", errno.EIO, path="/a/t-0"):
        disks.manager.tick()
    assert disks.failed == [("/a", [("t", 0)])]
    assert disks.manager.healthy == ["/b"]
    assert list(disks.manager.logs) == [("t", 1)]
    assert disks.a.recovery_point == 0
    with pytest.raises(LogClosed):
        append(disks.a, b"2")
    append(disks.b, b"2")
    disks.fs.calls.clear()
    disks.manager.tick()
    disks.manager.close()
    assert not disks.writes_to("/a"), "nothing is tried again, and the stop is not marked as clean"
    assert not disks.fs.exists("/a/.kafka_cleanshutdown")
    assert disks.fs.exists("/b/.kafka_cleanshutdown")
    logs = disks.start().logs
    assert [values(logs["t", index]) for index in (0, 1)] == [[b"1"], [b"1", b"2"]]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("operation", ["fsync", "fsync_dir"])
def test_a_failed_sync_is_fatal_whatever_its_error(operation: str, error: int) -> None:
    disks = Disks()
    append(disks.a, b"1")
    with disks.fs.failing(operation, error, path="/a/t-0"), pytest.raises(StorageFailure) as caught:
        disks.a.flush()
    assert caught.value.is_fatal
    assert disks.a.recovery_point == 0
    assert disks.manager.storage_failed(caught.value)
    assert disks.manager.storage_failed(caught.value), "it is told once, and stays so"
    assert len(disks.failed) == 1
    kept = disks.manager.offline["t", 0]
    assert isinstance(kept, StorageFailure)
    assert (str(kept), kept.is_fatal) == (str(caught.value), True)
    assert (kept.__traceback__, kept.cause.__traceback__) == (None, None), "tracebacks hold what was being written"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE])
def test_temporary_errors_take_no_directory_offline(error: int) -> None:
    disks = Disks()
    append(disks.a, b"1")
    with disks.fs.failing("pwritev", error, path="/a", partial=20), pytest.raises(StorageFailure) as caught:
        append(disks.a, b"2")
    assert not disks.manager.storage_failed(caught.value)
    append(disks.a, b"3")
    assert values(disks.a) == [b"1", b"3"]


def test_a_log_recovers_from_a_full_disk_at_a_roll_and_at_a_flush() -> None:
    storage = MemoryStorage(segment_bytes=200)
    log = storage.create()
    append(log, b"1" * 60)
    append(log, b"2" * 60)
    with storage.fs.failing("open", errno.ENOSPC, path=".log", lasting=True), pytest.raises(StorageFailure):
        append(log, b"3" * 60)
    append(log, b"3" * 60, epoch=1)
    for suffix in (".index", ".snapshot", "epoch-checkpoint"):
        with (
            storage.fs.failing("open", errno.ENOSPC, path=suffix, lasting=True),
            pytest.raises(StorageFailure) as caught,
        ):
            log.flush()
        assert not caught.value.is_fatal
    log.flush()
    assert log.recovery_point == 3
    assert "leader-epoch-checkpoint" in storage.fs.listdir(log.directory)
    assert len(names(storage.fs, ".snapshot")) == len(log.segments) - 1
    storage.check()
    storage.lose_power()
    assert values(storage.manager.logs["t", 0]) == [b"1" * 60, b"2" * 60, b"3" * 60]


def test_retention_makes_room_on_a_full_disk() -> None:
    """What it needs to write for the newest segments must not keep it from deleting the oldest ones."""
    storage = MemoryStorage(segment_bytes=200, retention_bytes=200, file_delete_delay_ms=500)
    log = storage.create()
    expected = [b"%03d" % number + b"x" * 20 for number in range(10)]
    for number, value in enumerate(expected):
        append(log, value, timestamp=START_MS, epoch=number // 3)
    log.flush()
    durable = log.recovery_point
    for number in range(4):
        append(log, b"%03d" % number + b"y" * 20, timestamp=START_MS, epoch=9)
    with storage.fs.failing("open", errno.ENOSPC, path=f"{DATA}/t-0", lasting=True):
        storage.manager.tick()
        assert 0 < log.log_start_offset <= durable, "what is not durable yet stays"
        assert values(log)[: 10 - log.log_start_offset] == expected[log.log_start_offset :]
        storage.pass_time(500)
        storage.manager.tick()
        assert not [name for name in names(storage.fs, ".deleted") if name.startswith("0" * 20)], "there is room"
    before = values(log)
    storage.lose_power()
    again = storage.manager.logs["t", 0]
    assert values(again) == before[: len(values(again))] and again.log_end_offset >= durable
    storage.check()


def test_new_partitions_go_to_online_directories() -> None:
    disks = Disks()
    with disks.fs.failing("mkdir", errno.EROFS, path="/a/u-0"), pytest.raises(StorageFailure):
        disks.manager.create("u", 0, TOPIC_ID)
    assert disks.manager.healthy == ["/b"]
    assert disks.manager.create("u", 0, TOPIC_ID).directory == "/b/u-0"
    disks.manager.storage_failed(StorageFailure("/b/u-0/x", OSError(errno.EIO, "gone")))
    with pytest.raises(NoLogDirectory):
        disks.manager.create("u", 1, TOPIC_ID)


def test_a_directory_that_fails_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    disks = Disks()
    append(disks.a, b"1")
    append(disks.b, b"1")
    disks.manager.close()
    with disks.fs.failing("listdir", errno.EIO, path="/a", lasting=True):
        disks.start()
    assert list(disks.manager.logs) == [("t", 1)]
    assert "/a" in caplog.text
    usage = disks.manager.usage()
    assert [(entry.path, entry.failed, len(entry.partitions)) for entry in usage] == [("/a", True, 0), ("/b", False, 1)]
    disks.manager.close()
    assert len(disks.start().logs) == 2


def test_a_log_whose_disk_fails_in_recovery() -> None:
    disks = Disks()
    append(disks.a, b"1")
    append(disks.b, b"1")
    disks.fs.kill()
    with disks.fs.failing("pread", errno.EIO, path="/a/t-0", lasting=True):
        disks.start()
    assert disks.manager.healthy == ["/b"]
    assert list(disks.manager.logs) == [("t", 1)]
    disks.fs.kill()
    assert values(disks.start().logs["t", 0]) == [b"1"]


def test_a_start_without_a_working_directory_fails() -> None:
    disks = Disks()
    disks.manager.close()
    with disks.fs.failing("listdir", errno.EIO, lasting=True), pytest.raises(StorageFailure, match="/a"):
        disks.start()
    assert not disks.fs.open_paths()


def test_a_flush_fails_if_its_directory_goes_offline_meanwhile() -> None:
    disks = Disks()
    append(disks.a, b"1")
    fsync = disks.fs.fsync

    def fail_meanwhile(fd: int) -> None:
        fsync(fd)
        disks.manager.storage_failed(StorageFailure("/a", OSError(errno.EIO, os.strerror(errno.EIO))))

    disks.fs.fsync = fail_meanwhile  # type: ignore[method-assign]
    with pytest.raises(LogClosed):
        disks.a.flush()
    assert disks.a.recovery_point == 0


@pytest.mark.parametrize("operation", ["pwritev", "fsync", "rename", "open"])
@pytest.mark.parametrize("after", range(0, 12, 2))
def test_flushed_records_survive_a_disk_failure_at_any_call(operation: str, after: int) -> None:
    """All calls of one kind fail from some moment on; then the power is lost as well."""
    storage = MemoryStorage(segment_bytes=300, index_interval_bytes=50)
    log: Log = storage.create()
    append(log, b"0" * 30)
    log.flush()
    storage.manager.checkpoint()
    flushed = 1
    with storage.fs.failing(operation, errno.EIO, path="/t-0/", after=after, lasting=True):
        try:
            for at in range(1, 8):
                append(log, b"%d" % at * 30)
                log.flush()
                flushed = at + 1
        except StorageFailure as error:
            assert storage.manager.storage_failed(error)
    storage.lose_power()
    kept = values(storage.manager.logs["t", 0])
    assert kept[:flushed] == [b"%d" % at * 30 for at in range(flushed)]
    assert not [finding for finding in verify_log_dir(DATA, fs=storage.fs) if is_bad(finding)]


def test_a_directory_that_fails_in_the_last_checkpoint_is_not_marked_clean() -> None:
    storage = MemoryStorage()
    append(storage.create(), b"a")
    with storage.fs.failing("fsync", errno.EIO, path="recovery-point-offset-checkpoint", lasting=True):
        storage.manager.close()
    assert not storage.fs.exists("/data/.kafka_cleanshutdown")
