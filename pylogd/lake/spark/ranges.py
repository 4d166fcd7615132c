"""Compute the ranges of offsets that a query reads.

Strategy: a query, or a micro-batch, reads a half-open range of offsets of each partition. A limit on the records of a
trigger is divided among the partitions in proportion to their lag, as in Spark's Kafka source. Ranges are then split
into enough tasks of a limited size, or small ranges are grouped so that a task is worth its cost. Must not know:
brokers, Spark.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pylogd.lake.spark.errors import PlanError
from pylogd.lake.tables.position import ByPartition


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The offsets of a partition that a task reads: from `start` up to, but not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets. There may be fewer records, because of compaction."""
        return max(self.end - self.start, 0)


def ranges_between(start: Mapping[tuple[str, int], int], end: Mapping[tuple[str, int], int]) -> list[OffsetRange]:
    """Return the range of each partition in `end` that is not empty. Raises PlanError if a partition has no start."""
    ranges = []
    for (topic, partition), last in sorted(end.items()):
        first = start.get((topic, partition))
        if first is None:
            raise PlanError(f"{topic}-{partition} has the end offset {last}, but no start offset")
        if last > first:
            ranges.append(OffsetRange(topic, partition, first, last))
    return ranges


def limit_records(start: ByPartition, latest: ByPartition, limit: int) -> ByPartition:
    """Return end offsets so that about `limit` records are read, divided in proportion to each partition's lag.

    At least one record is read of each partition with records.
    """
    waiting = {partition: max(latest[partition] - start.get(partition, 0), 0) for partition in latest}
    total = sum(waiting.values())
    if total <= limit:
        return dict(latest)
    ends = {}
    for partition, count in waiting.items():
        first = start.get(partition, 0)
        share = count * limit / total
        give = math.ceil(share) if share < 1 else math.floor(share)
        ends[partition] = min(first + give, latest[partition])
    return ends


def split(
    ranges: Sequence[OffsetRange], *, least_tasks: int | None = None, most_records: int | None = None
) -> list[OffsetRange]:
    """Split ranges: at most `most_records` offsets in each, and at least `least_tasks` ranges if there are enough."""
    whole = [piece for piece in ranges if piece.size > 0]
    if most_records is not None:
        whole = [part for piece in whole for part in _cut(piece, math.ceil(piece.size / most_records))]
    if least_tasks is None or len(whole) >= least_tasks:
        return whole
    total = sum(piece.size for piece in whole)
    parts = []
    for piece in whole:
        parts.append(min(max(round(piece.size / total * least_tasks), 1), piece.size))
    missing = min(least_tasks, total) - sum(parts)
    for at in sorted(range(len(whole)), key=lambda at: -whole[at].size / parts[at]):
        if missing <= 0:
            break
        more = min(missing, whole[at].size - parts[at])
        parts[at] += more
        missing -= more
    return [part for piece, count in zip(whole, parts, strict=True) for part in _cut(piece, count)]


def _cut(piece: OffsetRange, count: int) -> list[OffsetRange]:
    bounds = [piece.start + piece.size * at // count for at in range(count + 1)]
    return [
        OffsetRange(piece.topic, piece.partition, first, last)
        for first, last in itertools.pairwise(bounds)
        if last > first
    ]


def grouped(ranges: Sequence[OffsetRange], least: int) -> list[list[OffsetRange]]:
    """Return groups of ranges, in order. Each group except the last has at least `least` offsets."""
    groups: list[list[OffsetRange]] = []
    size = least
    for piece in ranges:
        if size >= least:
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += piece.size
    return groups


def lag(consumed: ByPartition, latest: ByPartition) -> ByPartition:
    """Return each partition's lag: the number of offsets between the consumed ones and its end."""
    return {partition: max(end - consumed.get(partition, 0), 0) for partition, end in latest.items()}
