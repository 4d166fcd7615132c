"""The cache that the settings ask for, and what operators are told of it."""

from __future__ import annotations

from typing import cast

import pytest
from twisted.internet.task import Clock
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher

from pylogd.broker.cache.blocks import BLOCK_BYTES
from pylogd.broker.cache.service import make_block_cache
from pylogd.broker.log.errors import StorageFailure
from pylogd.config import ConfigError, Settings

MIB = 1 << 20


def no_failure(failure: StorageFailure) -> None:
    raise AssertionError(failure)


def settings(size: int) -> Settings:
    return Settings({"log.block.cache.bytes": size})


def test_there_is_none_by_default() -> None:
    assert make_block_cache(Settings({}), Clock(), no_failure) is None


def test_the_blocks_have_the_size_of_the_setting_together() -> None:
    service = make_block_cache(settings(10 * MIB + 5), Clock(), no_failure)
    assert service is not None
    assert service.cache.blocks * service.cache.block_bytes == 10 * MIB
    assert len(service.cache.memory) == 10 * MIB


def test_less_than_a_block_is_none() -> None:
    assert make_block_cache(settings(BLOCK_BYTES - 1), Clock(), no_failure) is None


def test_more_memory_than_there_can_be_is_a_mistake_in_the_settings() -> None:
    with pytest.raises(ConfigError, match=r"log\.block\.cache\.bytes"):
        make_block_cache(settings(1 << 62), Clock(), no_failure)


def test_the_counters_are_logged_at_intervals_if_they_have_changed_and_at_the_stop() -> None:
    clock = Clock()
    service = make_block_cache(settings(MIB), clock, no_failure)
    assert service is not None
    events: list[LogEvent] = []
    observer = cast(ILogObserver, events.append)
    globalLogPublisher.addObserver(observer)
    try:
        service.start()
        service.counters.hits, service.counters.misses, service.counters.hit_bytes = 3, 1, 3 * MIB
        clock.advance(600)
        clock.advance(600)
        service.counters.misses = 2
        service.stop_reports()
        service.stop_threads()
    finally:
        globalLogPublisher.removeObserver(observer)
    texts = [event["text"] for event in events if "text" in event]
    assert [text.split(",")[0] for text in texts] == [
        "75.0 % of 4 reads were sent from the block cache",
        "60.0 % of 5 reads were sent from the block cache",
    ]
    assert "3.0 MiB from it" in texts[0]
    assert not clock.getDelayedCalls()
