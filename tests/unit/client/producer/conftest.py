"""A fake broker, and producers on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pylogd.client import (
    Cluster,
    Producer,
)
from tests.fakes.broker import FakeBroker
from tests.unit.client.producer.helpers import Make


@pytest.fixture
def server() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=3) as server:
        yield server


@pytest.fixture
def make(server: FakeBroker) -> Iterator[Make]:
    producers = []

    def make(**options: Any) -> Producer:
        producers.append(
            Producer(Cluster(server.address), **{"retry_backoff": 0.001, "retry_backoff_max": 0.01} | options)
        )
        return producers[-1]

    yield make
    for producer in producers:
        producer.abandon()
