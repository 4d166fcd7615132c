"""The copying loop's view of a route: its reader, and the batches that were read and not appended yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from pylogd.client.core.model import TopicPartition
from pylogd.services.mirror.batches import BatchCopy
from pylogd.services.mirror.partition_copy import PartitionCopy, PartitionRoute
from pylogd.services.mirror.rate_limit import ByteRateLimit
from pylogd.services.mirror.route_meter import RouteMeter
from pylogd.services.mirror.source import BatchReader, OnError
from pylogd.services.mirror.starting import SourceState, StartAt


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
