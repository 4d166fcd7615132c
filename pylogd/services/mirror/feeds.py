"""The copying loop's view of a route: its reader, and the batches that were read and not appended yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

from pylogd.client.core.model import TopicPartition
from pylogd.services.mirror.batches import BatchCopy
from pylogd.services.mirror.partition_copy import PartitionCopy, PartitionRoute
from pylogd.services.mirror.source import BatchReader, OnError
from pylogd.services.mirror.starting import SourceState, StartAt


class RouteMeter:
    """Totals of a route since the worker started. Times are in seconds.

    lost_records: records that the source deleted before they were copied.
    throttled_seconds: how long batches have waited for a throttle.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.records = 0
        self.lost_records = 0
        self.throttled_seconds = 0.0
        self._held_since: float | None = None

    def appended(self, size: int, records: int) -> None:
        """Count batches that the target has accepted."""
        self.bytes += size
        self.records += records

    def lost(self, records: int) -> None:
        """Count records that can't be copied any more."""
        self.lost_records += records

    def held(self, is_held: bool, now: float) -> None:
        """Record whether batches wait for a throttle now. If they do, the time until the next call is counted."""
        if self._held_since is not None:
            self.throttled_seconds += now - self._held_since
        self._held_since = now if is_held else None


_BURST_SECONDS: Final = 1.0


class ByteRateLimit:
    """A limit of `rate` bytes per second; 0 means no limit. Times are in seconds of one monotonic clock.

    Use beyond the limit is a debt, which the limit pays off; during a debt nothing may be used. So a batch of any size
    passes, and the average is exact. Unused capacity is kept for one second.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._debt = 0.0
        self._at = 0.0

    def used(self, size: int, now: float) -> None:
        """Record that `size` bytes were used."""
        if self.rate:
            self._pay(now)
            self._debt += size

    def wait(self, now: float) -> float:
        """Return the seconds for which nothing may be used; 0.0 if bytes may be used now."""
        if not self.rate:
            return 0.0
        self._pay(now)
        return max(0.0, self._debt / self.rate)

    def _pay(self, now: float) -> None:
        self._debt = max(-_BURST_SECONDS * self.rate, self._debt - (now - self._at) * self.rate)
        self._at = now


class CopiedRoute(Protocol):
    """The copying loop's view of a route.

    name: the name, which is unique in a mirror.
    start: where the copying of new topics begins.
    """

    name: str
    start: StartAt
    throttle: ByteRateLimit
    meter: RouteMeter

    def reader(self, on_ready: Callable[[], None], on_error: OnError) -> BatchReader:
        """Return a new reader of the route's source."""
        ...

    async def look_up(self, partitions: Sequence[TopicPartition]) -> SourceState:
        """Ask the source for the data that is needed to start partitions. Raises PylogdError."""
        ...


class RouteFeed:
    """A route that is being copied.

    paths: the route's partitions, by the partition at the source.
    waiting: batches that are not appended yet.
    """

    def __init__(self, route: CopiedRoute, reader: BatchReader) -> None:
        """`reader` is that of the route's source, and reads nothing yet."""
        self.route = route
        self.reader = reader
        self.paths: dict[TopicPartition, PartitionRoute] = {}
        #: (partition, batch, offset after it, its leader epoch); the batch is None at the end of the fetched data
        self.waiting: deque[tuple[PartitionCopy, BatchCopy | None, int, int]] = deque()

    @property
    def has_batches(self) -> bool:
        """Whether a batch waits here or in the reader."""
        return bool(self.waiting) or self.reader.is_ready

    def drop(self, copy: PartitionCopy) -> None:
        """Stop reading a partition, and drop its waiting batches."""
        self.paths.pop(copy.path.source, None)
        self.reader.forget(copy.path.source)
        self.waiting = deque(each for each in self.waiting if each[0] is not copy)


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
