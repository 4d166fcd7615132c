"""Helpers for tests of consumers in a group."""

from __future__ import annotations

import time
from collections.abc import Callable

from pylogd.client import Consumer, Record, TopicPartition
from tests.fakes.group_broker import GroupBroker

Make = Callable[..., Consumer]


SECONDS = 120.0


TP = [TopicPartition("t", index) for index in range(4)]


def until(consumers: list[Consumer], condition: Callable[[], object]) -> list[Record]:
    """Poll until the condition holds; return the records."""
    records: list[Record] = []
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        for consumer in consumers:
            records += consumer.poll(0.02)
    return records


def read(consumer: Consumer, count: int) -> list[Record]:
    records: list[Record] = []
    deadline = time.monotonic() + SECONDS
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count}"
        records += consumer.poll(0.02)
    return records


def committed(server: GroupBroker) -> dict[tuple[str, int], int]:
    with server.lock:
        return {partition: offset for partition, (offset, _) in server.groups.group("g").offsets.items()}
