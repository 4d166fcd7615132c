"""What the loop that copies takes from a route: its reader, and what was taken and is not appended yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from pylogd.client.core.model import TopicPartition
from pylogd.mirror.batches import BatchCopy
from pylogd.mirror.partition_copy import PartitionCopy, PartitionRoute
from pylogd.mirror.route_meter import RouteMeter
from pylogd.mirror.source import BatchReader, OnError
from pylogd.mirror.starting import SourceState, StartAt
from pylogd.mirror.throttle import Throttle


class CopiedRoute(Protocol):
    """What the loop has to know of a route, and does with it. `name` is unique in a mirror."""

    name: str
    start: StartAt
    throttle: Throttle
    meter: RouteMeter

    def reader(self, on_ready: Callable[[], None], on_error: OnError) -> BatchReader:
        """Return a new reader of the route's source."""
        ...

    async def look_up(self, partitions: Sequence[TopicPartition]) -> SourceState:
        """Return what the source says of partitions that are to be started. Raises PylogdError."""
        ...


class RouteFeed:
    """See the module."""

    def __init__(self, route: CopiedRoute, reader: BatchReader) -> None:
        """Nothing is read yet."""
        self.route = route
        self.reader = reader
        self.paths: dict[TopicPartition, PartitionRoute] = {}
        #: a batch, or None at the end of a chunk; and the offset and epoch behind it
        self.waiting: deque[tuple[PartitionCopy, BatchCopy | None, int, int]] = deque()

    @property
    def has_batches(self) -> bool:
        """Whether there is something to append."""
        return bool(self.waiting) or self.reader.is_ready

    def drop(self, copy: PartitionCopy) -> None:
        """Read a partition no more, and append nothing more of it."""
        self.paths.pop(copy.path.source, None)
        self.reader.forget(copy.path.source)
        self.waiting = deque(each for each in self.waiting if each[0] is not copy)
