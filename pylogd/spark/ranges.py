"""Which offsets a query reads: plain arithmetic on offsets by partition.

Strategy: a query, or a micro-batch, is a half-open range of offsets for each partition. A limit of records for a
trigger is shared out by how much each partition has waiting, as Spark's Kafka source does it; ranges are then split so
that there are enough tasks, and none reads too much.
Must not know: brokers, Spark.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pylogd.spark.errors import PlanError
from pylogd.spark.options import ByPartition


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The offsets from `start` to before `end` of a partition: what one task reads."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets; compaction may have left fewer records."""
        return max(self.end - self.start, 0)


def between(start: Mapping[tuple[str, int], int], end: Mapping[tuple[str, int], int]) -> list[OffsetRange]:
    """What lies between two sets of offsets, of the partitions in `end`, without empty ranges; `PlanError`."""
    ranges = []
    for (topic, partition), last in sorted(end.items()):
        first = start.get((topic, partition))
        if first is None:
            raise PlanError(f"{topic}-{partition} has an end, {last}, and no start")
        if last > first:
            ranges.append(OffsetRange(topic, partition, first, last))
    return ranges


def limited(start: ByPartition, latest: ByPartition, limit: int) -> ByPartition:
    """Where to end so that about `limit` records are read: each partition gives in proportion to what it has.

    A partition that has anything gives at least one record, so none starves.
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
    """The same offsets in more pieces: at most `most_records` in each, at least `least_tasks` if there are enough."""
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


def lag(consumed: ByPartition, latest: ByPartition) -> ByPartition:
    """How many offsets each partition is behind."""
    return {partition: max(end - consumed.get(partition, 0), 0) for partition, end in latest.items()}


def recreated(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """By the ids of topics, those that were deleted and created again, in order. One whose id is not known is not."""
    return sorted(topic for topic, known in before.items() if now.get(topic, known) != known)
