"""Helpers for tests of the lake: fill a topic with records of several hours, and compare a lake with the topic."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import Result

from pylogd.client import Consumer, Producer

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


#: Runs `pylogd` with these arguments.
Command = Callable[..., Result]


class Row(NamedTuple):
    """A record as it is compared between lake and topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    time_ms: int


def documents(result: Result) -> list[dict[str, Any]]:
    """Return the JSON documents that a command printed."""
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def fill(address: str, topic: str, numbers: Iterable[int], partitions: int = 2, *, step_ms: int = 60_000) -> None:
    """Write records of these numbers to the partitions in turn, `step_ms` apart. Every seventh has a null value."""
    with Producer(address) as producer:
        for number in numbers:
            producer.send(
                topic, None if number % 7 == 6 else b"value %d" % number, key=b"key %d" % (number % 5),
                partition=number % partitions, timestamp=START_MS + number * step_ms, headers=[("n", b"%d" % number)],
            )  # fmt: skip


def log_of(address: str, topic: str) -> list[Row]:
    """Read all records of a topic, sorted by partition and offset, with the blocking consumer."""
    found: list[Row] = []
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        partitions = consumer.partitions(topic)
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            found += [
                Row(each.partition, each.offset, each.key, each.value, each.timestamp) for each in consumer.poll(1.0)
            ]
    return sorted(found, key=lambda row: row[:2])


def lake_of(spark: Any, root: Path, topic: str) -> list[Row]:
    """Read all rows of a topic in a lake as plain Parquet files, sorted by partition and offset."""
    rows = spark.read.parquet(str(root)).where(f"topic = '{topic}'")
    found = rows.selectExpr("partition", "offset", "key", "value", "unix_millis(timestamp)").collect()
    # Spark returns bytearrays, or strings if the lake has strings
    return sorted(
        (Row(row[0], row[1], _bytes(row[2]), _bytes(row[3]), row[4]) for row in found), key=lambda row: row[:2]
    )


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else None if value is None else bytes(value)
