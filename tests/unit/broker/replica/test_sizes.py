"""Threads and cleaners follow their settings, also those that were set at run time before the start."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pylogd.broker.log.compaction.cleaner import CleanerConfig
from pylogd.broker.log.compaction.cleaners import Cleaners
from pylogd.broker.log.log import Log
from pylogd.broker.log.manager import LogManager
from pylogd.broker.replica.configs import follow_settings
from pylogd.config import Settings
from tests.fakes.storage import TOPIC_ID, MemoryStorage, batch


class Threads:
    """What has threads."""

    def __init__(self) -> None:
        self.most = 0

    def resize(self, most: int, /) -> None:
        self.most = most


class World:
    def __init__(self, manager: LogManager, **dynamic: str) -> None:
        self.settings = Settings({"log.dirs": "/data"})
        self.settings.set_dynamic({name.replace("_", "."): value for name, value in dynamic.items()}, {})
        self.cleaners = Cleaners(manager, CleanerConfig(), [None], lambda: 0)
        self.threads = Threads()
        self.forget = follow_settings(self.settings, self.cleaners, manager, [self.threads, None])

    @property
    def cleaner(self) -> CleanerConfig:
        return self.cleaners.all[0].config


@pytest.fixture
def storage() -> Iterator[MemoryStorage]:
    made = MemoryStorage()
    yield made
    made.manager.close()


def test_values_that_were_set_before_the_start_hold(storage: MemoryStorage) -> None:
    world = World(storage.manager, log_cleaner_threads="3", background_threads="17")
    assert world.cleaner.threads == 3 and world.threads.most == 17


def test_all_settings_of_the_cleaner_follow(storage: MemoryStorage) -> None:
    world = World(storage.manager)
    assert world.cleaner == CleanerConfig(dedupe_buffer_bytes=128 << 20)
    world.settings.set_dynamic(
        {
            "log.cleaner.threads": "2", "log.cleaner.dedupe.buffer.size": "1000000", "log.cleaner.backoff.ms": "5",
            "log.cleaner.io.buffer.size": "1000", "log.cleaner.io.buffer.load.factor": "0.5",
            "log.cleaner.io.max.bytes.per.second": "7.5",
        },
        {"log.cleaner.threads": "4"},
    )  # fmt: skip
    assert world.cleaner == CleanerConfig(True, 4, 1_000_000, 0.5, 1000, 7.5, 5)
    world.settings.set_dynamic({}, {})
    assert world.cleaner == CleanerConfig(dedupe_buffer_bytes=128 << 20)
    world.forget()
    world.settings.set_dynamic({}, {"log.cleaner.threads": "4"})
    assert world.cleaner.threads == 1


def test_logs_are_closed_in_as_many_threads(storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(4)
    close = Log.close

    def meet(log: Log, *, sync: bool = True) -> None:
        together.wait(60)  # which needs four threads at the same time
        close(log, sync=sync)

    monkeypatch.setattr(Log, "close", meet)
    world = World(storage.manager)
    world.settings.set_dynamic({"num.recovery.threads.per.data.dir": "4"}, {})
    for partition in range(4):
        log = storage.manager.create("t", partition, TOPIC_ID, storage.config)
        log.append(batch(b"v"), leader_epoch=0)
    storage.manager.close()
    assert all(directory.failure is None for directory in storage.manager.directories)
    manager = storage.start()
    assert [manager.logs["t", partition].log_end_offset for partition in range(4)] == [1] * 4
    monkeypatch.undo()
