"""Many logs are closed and recovered with one sync of their volume, and as durably as with a sync of each."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pylogd.broker.log.bulk_loader import SYNCED_TOGETHER
from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.log.volume_sync import can_sync_volume, sync_volume
from tests.fakes.storage import DATA, MemoryStorage, append, values

MARKER = f"{DATA}/.kafka_cleanshutdown"


def filled(partitions: int = SYNCED_TOGETHER) -> MemoryStorage:
    """Return a storage with so many logs, each with two segments and nothing of its end synced."""
    storage = MemoryStorage(segment_bytes=200)
    for index in range(partitions):
        log = storage.create(partition=index)
        for value in (b"1", b"2", b"3"):
            append(log, value, epoch=1)
    storage.fs.calls.clear()
    return storage


def assert_all_there(storage: MemoryStorage, partitions: int = SYNCED_TOGETHER) -> None:
    """Check that every log has its records, in this process and after it is killed."""
    for index in range(partitions):
        assert values(storage.manager.logs["t", index]) == [b"1", b"2", b"3"]
    storage.check()


def calls(storage: MemoryStorage, operation: str, end: str = "") -> list[str]:
    """Return the calls of an operation on paths that end so."""
    return [call for call in storage.fs.calls if call.startswith(f"{operation} ") and call.endswith(end)]


def test_a_stop_with_many_logs_syncs_their_volume_once() -> None:
    storage = filled()
    storage.manager.close()
    assert calls(storage, "sync_volume") == [f"sync_volume {DATA}/.lock"]
    assert not calls(storage, "fsync", "3.snapshot.tmp"), "that of the end"
    storage.fs.calls.clear()
    storage.lose_power()
    assert not calls(storage, "pread", "0.log")[2 * SYNCED_TOGETHER :], "nothing but the ends was read"
    assert not calls(storage, "sync_volume"), "nothing had to be recovered"
    assert_all_there(storage)


def test_a_stop_with_few_logs_syncs_only_their_files() -> None:
    storage = filled(SYNCED_TOGETHER - 1)
    storage.manager.close()
    assert not calls(storage, "sync_volume")
    storage.lose_power()
    assert_all_there(storage, SYNCED_TOGETHER - 1)


def test_each_file_is_synced_where_the_volume_can_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = filled()
    monkeypatch.setattr(storage.fs, "can_sync_volume", lambda fd: False)
    storage.manager.close()
    assert not calls(storage, "sync_volume")
    storage.lose_power()
    assert_all_there(storage)


def test_a_second_stop_without_appends_syncs_nothing() -> None:
    storage = filled()
    storage.restart()
    storage.fs.calls.clear()
    storage.manager.close()
    assert not calls(storage, "sync_volume")
    assert not calls(storage, "fsync", ".log")


def test_a_volume_that_can_not_be_synced_is_not_marked_as_clean(caplog: pytest.LogCaptureFixture) -> None:
    storage = filled()
    with storage.fs.failing("sync_volume", errno.EIO):
        storage.manager.close()
    assert not storage.fs.exists(MARKER)
    assert "the next start recovers its logs" in caplog.text
    storage.kill()
    assert calls(storage, "sync_volume")
    assert_all_there(storage)


def test_recovered_logs_are_durable_before_the_checkpoint_says_so() -> None:
    storage = filled()
    storage.kill()
    assert len(calls(storage, "sync_volume")) == 1
    own = [at for at, call in enumerate(storage.fs.calls) if call.startswith("sync_volume")]
    points = [at for at, call in enumerate(storage.fs.calls) if "recovery-point" in call and "rename" in call]
    assert own[0] < points[0]
    storage.lose_power()
    assert_all_there(storage)


def test_a_power_loss_during_a_recovery_that_was_not_synced_loses_nothing_that_was() -> None:
    storage = filled()
    storage.manager.close()
    storage.fs.unlink(MARKER)
    storage.fs.kill()
    with storage.fs.failing("sync_volume", errno.EIO), pytest.raises(StorageFailure, match="sync failed"):
        storage.start()
    storage.lose_power(torn=7)
    assert_all_there(storage)


def test_logs_without_records_leave_no_files_at_a_stop() -> None:
    storage = MemoryStorage()
    for index in range(SYNCED_TOGETHER):
        storage.create(partition=index)
    storage.manager.close()
    assert len(storage.fs.listdir(f"{DATA}/t-0")) == len(["00000000000000000000.log", "partition.metadata"])
    storage.lose_power()
    assert len(storage.manager.logs) == SYNCED_TOGETHER
    append(storage.manager.logs["t", 0], b"1")
    assert values(storage.restart()) == [b"1"]


def test_the_system_s_own(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        if can_sync_volume(fd):
            sync_volume(fd)
    finally:
        os.close(fd)
    assert not can_sync_volume(fd), "the descriptor is closed"
    process = os.open("/proc/self/status", os.O_RDONLY) if os.path.exists("/proc/self/status") else fd
    assert not can_sync_volume(process), "nothing is known of this file system"
