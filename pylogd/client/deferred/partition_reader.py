"""Partitions that are read, on Twisted: where, from which offset on, and the loop that reads them.

Strategy: this is all of a consumer that has nothing to do with groups. `_read` hands out what has come; when there is
nothing, it sees to requests and errors, and waits for something to happen.

Rules: nothing but `_read` hands out records; it runs once at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from pylogd.client.core.admin.calls import refresh
from pylogd.client.core.admin.offsets import EARLIEST, LATEST, find_offsets
from pylogd.client.core.consumer.assigned import Patience, Positions, is_out_of_range
from pylogd.client.core.consumer.fetcher import FetchSettings, Place
from pylogd.client.core.consumer.options import ResetTo
from pylogd.client.core.consumer.reader import Reader
from pylogd.client.core.errors import ClientError, Closed, RequestTimedOut
from pylogd.client.core.model import OffsetAndTime, TopicPartition
from pylogd.client.deferred.cluster import Cluster
from pylogd.client.deferred.fetch_loop import Fetcher
from pylogd.client.deferred.start_offsets import LookUp, Placing
from pylogd.client.deferred.tasks import Bell, Tasks

T = TypeVar("T")

_LOOK_SECONDS = 0.2  # how often to look whether records may be handed out again


class PartitionReader(Positions):
    """Reads partitions from positions."""

    _placing: Placing

    def __init__(
        self,
        cluster: Cluster,
        fetch: FetchSettings,
        *,
        reset_to: ResetTo,
        look_up: LookUp | None,
        check_crcs: bool,
        request_timeout: float,
        retry_timeout: float,
    ) -> None:
        """Nothing is read yet. `retry_timeout` is how long a partition may fail before that is raised."""
        self.cluster = cluster
        self._retry_timeout = retry_timeout
        self._reset_to = reset_to
        self._bell = Bell(cluster.reactor)
        self._tasks = Tasks()
        self._fetcher = Fetcher(cluster, fetch, request_timeout=request_timeout, changed=self._wake)
        self._reader = Reader(self._fetcher.fetching, self._fetcher.take, check_crcs=check_crcs)
        self._placing = Placing(cluster, reset_to, look_up, retry_timeout, self._tasks, self._placed)
        self._patience = Patience(retry_timeout)
        self._woken = self._closing = self._polling = False

    @property
    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return self._reader.paused()

    def wakeup(self) -> None:
        """End the `poll` that is under way, or else the next one, as if its time were over."""
        self._woken = True
        self._wake()

    def _wake(self) -> None:
        self._bell.ring()

    def _stop(self) -> None:
        self._tasks.stop()
        self._fetcher.close()
        self._wake()

    # Places

    async def _partitions(self, topic: str) -> list[TopicPartition]:
        [found] = await self.cluster.call(lambda: refresh(self.cluster, [topic]))
        return [TopicPartition(topic, partition.index) for partition in found.partitions]

    async def _assign(self, wanted: list[TopicPartition], given: Mapping[TopicPartition, int]) -> None:
        before = self._reader.positions
        for gone in {*before, *self._placing.waiting} - set(wanted):
            self._forget(gone)
        for partition, offset in given.items():
            if before.get(partition) != offset:
                self._move(partition, offset)
        self._placing.add(p for p in wanted if p not in before and p not in given)
        if not self._knows_committed:  # what there is to know is known when this is done
            await self._wait_for_places(wanted)

    @property
    def _knows_committed(self) -> bool:
        return self._placing.knows_committed

    def _seek(self, partition: tuple[str, int], offset: int) -> None:
        place = TopicPartition(*partition)
        self._check_seek(place, offset)
        self._move(place, offset)

    async def _pause(self, partitions: Sequence[tuple[str, int]], paused: bool) -> None:
        for partition in [TopicPartition(*p) for p in partitions] or self.assignment:
            self._check_assigned(partition)
            await self._position(partition)
            self._reader.pause(partition, paused)
        self._fetcher.send()
        self._wake()

    async def _position(self, place: TopicPartition) -> int:
        self._check_assigned(place)
        await self._wait_for_places([place])
        return self._reader.position(place)

    async def _wait_for_places(self, places: list[TopicPartition]) -> None:
        deadline = self.cluster.seconds() + self._retry_timeout
        while not self._placing.waiting.isdisjoint(places) and self.cluster.seconds() < deadline:
            self._check_open()
            self._raise_placing_error()
            self._placing.begin()
            await self._bell.wait(deadline)

    def _placed(self, committed: dict[TopicPartition, int], reset: dict[TopicPartition, int]) -> None:
        self._are_committed(committed)
        for partition, offset in (committed | reset).items():
            self._move(partition, offset)
        self._fetcher.send()
        self._wake()

    def _raise_placing_error(self) -> None:
        error, self._placing.error = self._placing.error, None
        if error is not None:
            raise error

    # Offsets

    async def _find(self, wanted: Mapping[tuple[str, int], int]) -> dict[TopicPartition, OffsetAndTime]:
        return await find_offsets(self.cluster, {TopicPartition(*p): when for p, when in wanted.items()})

    async def _ends(self, partitions: Iterable[tuple[str, int]], *, first: bool) -> dict[TopicPartition, int]:
        found = await self._find(dict.fromkeys(partitions, EARLIEST if first else LATEST))
        return {partition: answer.offset for partition, answer in found.items()}

    def _in_time(self, waiting: Deferred[T], timeout: float, what: str) -> Deferred[T]:
        def late(*_: Any) -> Any:
            raise RequestTimedOut(what)

        waiting.addTimeout(timeout, self.cluster.reactor, late)
        return waiting

    # Reading

    def _check_open(self) -> None:
        if self._closing:
            raise Closed("the consumer is closed")

    def _begin_poll(self) -> None:
        self._check_open()
        if self._polling:
            raise ClientError("another poll of this consumer is under way")
        self._polling = True

    def _end_poll(self) -> None:
        self._polling = False

    async def _look_around(self) -> None:
        """Done whenever nothing is handed out: what is not reading."""

    async def _read(self, deadline: float, gather: Callable[[], list[T]]) -> list[T]:
        """What `gather` has, as soon as that is anything; nothing at the deadline, or when woken."""
        while True:
            self._check_open()
            await self._look_around()
            self._raise_placing_error()
            self._placing.begin()
            chunks = gather() if self._may_hand_out else []
            if chunks:
                return chunks
            await self._deal_with_errors()
            self._fetcher.send()
            if self._woken or self.cluster.seconds() >= deadline:
                self._woken = False
                return []
            until = deadline if self._may_hand_out else min(deadline, self.cluster.seconds() + _LOOK_SECONDS)
            fetching = self._fetcher.fetching
            if fetching.failed_place() is None and not (fetching.ready and self._may_hand_out):
                await self._bell.wait(until)

    async def _deal_with_errors(self) -> None:
        while (place := self._fetcher.fetching.failed_place()) is not None:
            await self._deal_with(place)

    async def _deal_with(self, place: Place) -> None:
        """An answer that was an error: reset the position, wait and try again, or raise."""
        error, place.error = place.error, None
        assert error is not None
        if is_out_of_range(error) and self._reset_to != "none":
            found = await self._placing.reset_offsets([place.partition])
            if self._fetcher.fetching.current(place, place.generation):
                self._move(place.partition, found[place.partition])
            return
        self._patience.bear(place, error, self.cluster.seconds())
