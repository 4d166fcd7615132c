"""Statistics for operators: the partitions that a worker copies to one target, added up by route."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pylogd.services.mirror.feeds import RouteFeed
from pylogd.services.mirror.partition_copy import PartitionCopy, PartitionRoute

#: The most partitions whose errors are listed.
_MOST_REASONS: Final = 20


@dataclass(slots=True)
class RouteFigures:
    """A route at one worker. Totals count since the worker or the route began.

    partitions: the number of copied partitions.
    starting: the number of assigned partitions that are not copied yet.
    set_aside: the number of those that had an error.
    measured: the number of copied partitions whose end at the source is known; only they have a lag.
    lag, lag_max: the records that are not committed at the target yet: of all partitions, and of the partition with
    most.
    lag_seconds: how long records have waited, in the partition where they have waited longest.
    throttled_seconds: how long batches have waited for a throttle.
    failed: the errors of some partitions.
    """

    partitions: int = 0
    starting: int = 0
    set_aside: int = 0
    measured: int = 0
    lag: int = 0
    lag_max: int = 0
    lag_seconds: float = 0.0
    bytes: int = 0
    records: int = 0
    lost_records: int = 0
    throttled_seconds: float = 0.0
    failed: dict[str, str] = field(default_factory=dict)

    def as_document(self) -> dict[str, Any]:
        """Return the figures as a JSON document."""
        return asdict(self)


def figures_of(
    feeds: Mapping[str, RouteFeed], copies: Mapping[PartitionRoute, PartitionCopy], wanted: Iterable[PartitionRoute],
    failed: Mapping[PartitionRoute, str], now: float,
) -> dict[str, RouteFigures]:  # fmt: skip
    """Return the figures of each route that has partitions.

    failed: the errors of partitions that are set aside.
    """
    found: dict[str, RouteFigures] = {}
    for path in wanted:
        route = found.setdefault(path.route, RouteFigures())
        route.starting += path not in copies
    for path, copy in copies.items():
        feed = feeds.get(path.route)
        if feed is not None:
            _add(found.setdefault(path.route, RouteFigures()), copy, feed.reader.end(path.source), now)
    for name, feed in feeds.items():
        meter, route = feed.route.meter, found.setdefault(name, RouteFigures())
        route.bytes, route.records, route.lost_records = meter.bytes, meter.records, meter.lost_records
        route.throttled_seconds = meter.throttled_seconds
    for path, reason in failed.items():
        route = found.setdefault(path.route, RouteFigures())
        route.set_aside += 1
        if len(route.failed) < _MOST_REASONS:
            route.failed[str(path.source)] = reason
    return found


def _add(route: RouteFigures, copy: PartitionCopy, end: int, now: float) -> None:
    route.partitions += 1
    if end < 0:
        return  # the end is unknown: nothing was fetched yet
    lag = max(0, end - copy.checkpoint.offset)
    route.measured += 1
    route.lag += lag
    route.lag_max = max(route.lag_max, lag)
    route.lag_seconds = max(route.lag_seconds, copy.lag.look(copy.checkpoint.offset, end, now))
