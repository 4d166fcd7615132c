"""What the contract tests of the client share."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

from pylogd.client import (
    Record,
    TopicPartition,
    UnknownTopic,
)
from tests.faces import Face

T = 1_700_000_000_000


_NUMBERS = itertools.count(1)


def name(kind: str) -> str:
    return f"{kind}-{os.getpid()}-{next(_NUMBERS)}"


def fill(face: Face, topic: str, count: int, partitions: int = 2, **options: Any) -> None:
    """Records whose values are their numbers, with time stamps T, T + 1, ..., in turns to each partition."""
    producer = face.producer(**options)
    for n in range(count):
        producer.send(topic, b"%d" % n, partition=n % partitions, timestamp=T + n)
    producer.flush()


def numbers(records: list[Record]) -> list[int]:
    return [int(record.value or b"") for record in records]


def keys(records: list[Record]) -> list[Any]:
    return [record.key for record in records]


def values(records: list[Record]) -> list[Any]:
    return [record.value for record in records]


def places(topic: str, count: int = 2) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(count)]


def eventually(holds: Callable[[], bool], seconds: float = 120.0) -> bool:
    """Whether it holds within so many seconds: a cluster of several processes knows of a new topic a little later."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if holds():
                return True
        except UnknownTopic:
            pass
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
