"""A fake broker with a group coordinator, and consumers on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pylogd.client import Consumer
from tests.fakes.group_broker import GroupBroker, fill
from tests.unit.client.group_consumer.helpers import Make


@pytest.fixture
def server() -> Iterator[GroupBroker]:
    with GroupBroker(partitions=4) as server:
        for partition in range(4):
            fill(server, partition, 10)
        yield server


@pytest.fixture
def make(server: GroupBroker) -> Iterator[Make]:
    made = []

    def make(**options: Any) -> Consumer:
        options = {
            "group_id": "g", "heartbeat_interval": 0.05, "auto_commit_interval": 0.05, "request_timeout": 5.0,
            "fetch_max_wait_ms": 20, "session_timeout": 30.0, **options,
        }  # fmt: skip
        made.append(Consumer(server.address, **options))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()
