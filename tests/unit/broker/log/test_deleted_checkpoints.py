"""What a crash finds of a partition that was deleted and created again, in the checkpoints and in its directory."""

from __future__ import annotations

import errno

import pytest

from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.log.manager import LogManager
from tests.fakes.compaction import CompactedStorage, put
from tests.fakes.filesystem import MemoryFileSystem
from tests.fakes.storage import START_MS, TOPIC_ID, MemoryStorage, append, values


def fill(storage: MemoryStorage) -> None:
    """Create a log of ten records."""
    log = storage.create()
    for at in range(10):
        append(log, b"%d" % at)


def test_a_log_created_again_has_nothing_of_the_deleted_one_after_a_crash() -> None:
    storage = MemoryStorage(segment_bytes=200)
    fill(storage)
    log = storage.manager.logs["t", 0]
    log.delete_records_before(5)
    log.flush()
    storage.manager.checkpoint()
    storage.manager.checkpoint_high_watermarks({("t", 0): 10})
    storage.manager.delete("t", 0)
    append(storage.create(), b"a")
    log = storage.kill()
    assert (log.log_start_offset, log.log_end_offset) == (0, 1)
    assert values(log) == [b"a"]
    assert storage.manager.high_watermarks == {}
    storage.check()


def test_a_crash_during_a_deletion_leaves_no_checkpoint_for_the_next_log_of_that_name() -> None:
    storage = CompactedStorage()
    log = storage.create()
    for at in range(60):
        put(storage, log, (b"k%d" % (at % 3), b"%d" % at))
    storage.clean()
    assert log.cleaned_offset > 20
    storage.manager.checkpoint_high_watermarks({("t", 0): 60})
    storage.manager.delete("t", 0)
    storage.fs.kill()
    storage.start()
    log = storage.create()
    for at in range(20):
        put(storage, log, (b"k", b"%d" % at))
    assert storage.kill().cleaned_offset == 0
    assert storage.manager.high_watermarks == {}
    storage.check()


def test_a_log_created_again_has_nothing_of_the_deleted_one_after_a_power_loss() -> None:
    storage = MemoryStorage(segment_bytes=200)
    storage.create()
    storage.manager.begin_at("t", 0, 7)
    storage.manager.logs["t", 0].flush()
    storage.manager.delete("t", 0)
    storage.create()
    storage.manager.checkpoint()  # makes the names of directories durable, not those of the files in them
    storage.lose_power()
    log = storage.manager.logs["t", 0]
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    assert storage.kill().log_end_offset == 0
    storage.check()


def test_checkpoints_of_other_partitions_outlive_a_deletion() -> None:
    storage = MemoryStorage(segment_bytes=200)
    fill(storage)
    append(storage.create("t", 1), *[b"1"] * 5)
    storage.manager.logs["t", 1].delete_records_before(2)
    storage.manager.checkpoint()
    storage.manager.checkpoint_high_watermarks({("t", 0): 10, ("t", 1): 4})
    storage.manager.delete("t", 0)
    storage.create()
    storage.kill()
    assert storage.manager.logs["t", 1].log_start_offset == 2
    assert storage.manager.high_watermarks == {("t", 1): 4}
    storage.check()


def test_a_log_created_in_another_directory_has_nothing_of_the_deleted_one() -> None:
    fs = MemoryFileSystem()
    paths = ["/a", "/b"]

    def start() -> LogManager:
        manager = LogManager(paths, fs=fs, now_ms=lambda: START_MS, node_id=1, cluster_id="c", recovery_threads=1)
        manager.load()
        return manager

    manager = start()
    append(manager.create("t", 0, TOPIC_ID, directory="/a"), b"1")
    manager.checkpoint_high_watermarks({("t", 0): 1})
    manager.delete("t", 0)
    append(manager.create("t", 0, TOPIC_ID, directory="/b"), b"2")
    fs.kill()
    manager = start()
    assert manager.high_watermarks == {}
    assert values(manager.logs["t", 0]) == [b"2"]


def test_a_checkpoint_that_can_not_be_purged_prevents_the_creation() -> None:
    storage = MemoryStorage(segment_bytes=200)
    fill(storage)
    storage.manager.checkpoint()
    storage.manager.delete("t", 0)
    with storage.fs.failing("pwritev", errno.ENOSPC, path="checkpoint"), pytest.raises(StorageFailure):
        storage.create()
    assert storage.create().log_end_offset == 0
    storage.check()
