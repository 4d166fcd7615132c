"""Logs that are created together share one sync, and are as durable as those that are created one by one."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pylogd.broker.log.bulk_loader import SYNCED_TOGETHER
from pylogd.broker.log.errors import StorageError, StorageFailure, TooManyPartitions
from pylogd.broker.log.log import Log
from pylogd.broker.log.manager import LogManager
from tests.fakes.parts import NOW_MS
from tests.fakes.storage import DATA, TOPIC_ID, MemoryStorage, append, values

MANY = range(2 * SYNCED_TOGETHER)
TEMPORARY = "partition.metadata.tmp"


def create_all(storage: MemoryStorage, partitions: Iterable[int] = MANY) -> list[Log | StorageError]:
    storage.fs.calls.clear()
    return storage.manager.create_all("t", list(partitions), TOPIC_ID, storage.config)


def calls(storage: MemoryStorage, operation: str, end: str = "") -> list[int]:
    """Return the positions of the calls of an operation on paths that end so."""
    return [
        at for at, call in enumerate(storage.fs.calls) if call.startswith(f"{operation} ") and call.endswith(end)
    ]  # fmt: skip


def syncs(storage: MemoryStorage) -> tuple[int, int]:
    """Return how often the volume was synced, and how often a single file."""
    return len(calls(storage, "sync_volume")), len(calls(storage, "fsync"))


def test_many_logs_are_made_durable_by_one_sync() -> None:
    storage = MemoryStorage()
    made = create_all(storage)
    assert made == [storage.manager.logs["t", partition] for partition in MANY]
    assert syncs(storage) == (1, 0)
    (sync,) = calls(storage, "sync_volume")
    renamed = [at for at, call in enumerate(storage.fs.calls) if call.startswith("rename") and TEMPORARY in call]
    assert len(renamed) == len(MANY)
    assert sync < min(renamed), "a file gets its name when it is durable"
    storage.check()


@pytest.mark.parametrize("zeros", [False, True])
def test_a_power_loss_leaves_whole_topic_ids_or_none(zeros: bool) -> None:
    storage = MemoryStorage()
    create_all(storage)
    append(storage.manager.logs["t", 3], b"1")
    storage.manager.logs["t", 3].flush()
    storage.lose_power(torn=7, zeros=zeros)
    assert {log.topic_id for log in storage.manager.logs.values()} == {TOPIC_ID}
    assert values(storage.manager.logs["t", 3]) == [b"1"]


def test_few_logs_sync_their_own_files() -> None:
    storage = MemoryStorage()
    create_all(storage, range(SYNCED_TOGETHER - 1))
    assert syncs(storage) == (0, SYNCED_TOGETHER - 1)


def test_each_file_is_synced_where_the_volume_can_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    monkeypatch.setattr(storage.fs, "can_sync_volume", lambda fd: False)
    create_all(storage)
    assert syncs(storage) == (0, len(MANY))


def test_a_failed_sync_of_the_volume_may_be_about_other_files(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    with storage.fs.failing("sync_volume", errno.EIO):
        made = create_all(storage)
    assert all(isinstance(one, Log) for one in made)
    assert syncs(storage) == (1, len(MANY))
    assert storage.manager.healthy == [DATA]
    assert "each new file there is synced instead" in caplog.text


def test_a_disk_that_can_not_sync_goes_offline() -> None:
    storage = MemoryStorage()
    with storage.fs.failing("sync_volume", errno.EIO), storage.fs.failing("fsync", errno.EIO):
        made = create_all(storage)
    assert all(isinstance(one, StorageFailure) for one in made)
    assert not storage.manager.healthy
    assert not storage.manager.logs
    assert not calls(storage, "rename"), "no file got its name"


def test_a_log_that_can_not_be_created_does_not_stop_the_others() -> None:
    storage = MemoryStorage()
    storage.create(partition=5)
    storage.manager.partition_limit = len(MANY) - 1
    made = create_all(storage)
    assert isinstance(made[-1], TooManyPartitions)
    assert made[:-1] == [storage.manager.logs["t", partition] for partition in MANY[:-1]]
    (entry,) = storage.manager.directories
    assert entry.open_logs == len(MANY) - 1
    storage.manager.partition_limit = len(MANY)
    assert create_all(storage) == [storage.manager.logs["t", partition] for partition in MANY]


def test_threads_that_create_the_same_logs_get_the_same_ones(tmp_path: Path) -> None:
    manager = LogManager([str(tmp_path)], now_ms=lambda: NOW_MS)
    manager.load()
    orders = [list(MANY), list(reversed(MANY))] * 2
    with ThreadPoolExecutor(len(orders)) as pool:
        made = list(pool.map(lambda order: manager.create_all("t", order, TOPIC_ID), orders))
    for order, logs in zip(orders, made, strict=True):
        assert logs == [manager.logs["t", partition] for partition in order]
    manager.close()
