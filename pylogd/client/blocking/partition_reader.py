"""Partitions that are read: where, from which offset on, and the loop that reads them.

Strategy: this is all of a consumer that has nothing to do with groups. `_read` hands out what has come; when there is
nothing, it sees to requests, answers and errors, and waits.

Rules: whoever uses the fetcher, the reader or the cluster holds `_lock`, for a thread may prefetch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from pylogd.client.blocking import offsets
from pylogd.client.blocking.cluster import Cluster
from pylogd.client.blocking.fetch_loop import Fetcher
from pylogd.client.blocking.start_offsets import Committed, Placing
from pylogd.client.core.consumer.assigned import Patience, Positions, is_out_of_range
from pylogd.client.core.consumer.fetcher import FetchSettings, Place
from pylogd.client.core.consumer.options import ResetTo
from pylogd.client.core.consumer.reader import Reader
from pylogd.client.core.errors import Closed
from pylogd.client.core.model import OffsetAndTime, TopicPartition

Partitions = Iterable[tuple[str, int]]
T = TypeVar("T")


class PartitionReader(Positions):
    """Reads partitions from positions. Not for several threads at a time."""

    #: no wait is longer, so that what nobody wakes it for is looked for now and then
    _longest_wait = float("inf")
    _placing: Placing

    def __init__(
        self,
        cluster: Cluster,
        fetch: FetchSettings,
        *,
        reset_to: ResetTo,
        committed: Committed | None,
        check_crcs: bool,
        request_timeout: float,
        retry_timeout: float,
    ) -> None:
        """Nothing is read yet. `retry_timeout` is how long a partition may fail before that is raised."""
        self.cluster = cluster
        self._clock = cluster.clock
        self._retry_timeout = retry_timeout
        self._reset_to = reset_to
        self._lock = threading.RLock()
        self._fetcher = Fetcher(cluster, fetch, request_timeout=request_timeout)
        self._reader = Reader(self._fetcher.fetching, self._fetcher.take, check_crcs=check_crcs)
        self._placing = Placing(cluster, reset_to, committed, retry_timeout)
        self._patience = Patience(retry_timeout)
        self._woken = self._closing = False

    def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic. Raises KafkaError if there is none."""
        with self._lock:
            return self.cluster.partitions(topic)

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Go on at `offset` in a partition that is assigned."""
        place = TopicPartition(*partition)
        with self._lock:
            self._check_seek(place, offset)
            self._move(place, offset)

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Go to the first record that there still is, in these partitions or in all."""
        for partition, offset in self.beginning_offsets(partitions or self.assignment).items():
            self.seek(partition, offset)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Go behind the last record, in these partitions or in all."""
        for partition, offset in self.end_offsets(partitions or self.assignment).items():
            self.seek(partition, offset)

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Hand out nothing of these partitions, or of all, until `resume`. What has come of them is kept."""
        self._pause(partitions, True)

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Go on with these partitions, or with all."""
        self._pause(partitions, False)

    def _pause(self, partitions: Sequence[tuple[str, int]], paused: bool) -> None:
        with self._lock:
            for partition in [TopicPartition(*p) for p in partitions] or self.assignment:
                self._check_assigned(partition)
                if partition not in self._reader.positions:
                    self.position(partition)
                self._reader.pause(partition, paused)

    @property
    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        with self._lock:
            return self._reader.paused()

    def position(self, partition: tuple[str, int]) -> int:
        """The offset of the next record that `poll` hands out, or that would be if it were there.

        Raises ValueError for a partition that is not assigned, and RequestTimedOut.
        """
        place = TopicPartition(*partition)
        with self._lock:
            self._check_assigned(place)
            deadline = self._clock.monotonic() + self._retry_timeout
            while place in self._placing.waiting and (left := deadline - self._clock.monotonic()) > 0:
                self._place(left, wait=True)
            return self._reader.position(place)

    def _place(self, timeout: float, *, wait: bool = False) -> None:
        """Find positions for partitions that have none."""
        committed, reset = self._placing.place(timeout, wait=wait)
        self._are_committed(committed)
        self._begin(reset)
        for partition, offset in (committed | reset).items():
            self._move(partition, offset)

    def _begin(self, positions: Mapping[TopicPartition, int]) -> None:
        """These are where partitions begin for which it has committed nothing."""

    # Offsets

    def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The first offset that each partition still has."""
        with self._lock:
            return offsets.beginning_offsets(self.cluster, [TopicPartition(*p) for p in partitions])

    def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The offset that the next record of each partition will have."""
        with self._lock:
            return offsets.end_offsets(self.cluster, [TopicPartition(*p) for p in partitions])

    def offsets_for_times(self, times: Mapping[tuple[str, int], int]) -> dict[TopicPartition, OffsetAndTime | None]:
        """The first offset in each partition at or after a time in milliseconds since 1970; None if there is none."""
        with self._lock:
            found = offsets.list_offsets(self.cluster, {TopicPartition(*p): time for p, time in times.items()})
        return {partition: (answer if answer.offset >= 0 else None) for partition, answer in found.items()}

    # Reading

    def wakeup(self) -> None:
        """End the `poll` that another thread is in, or else the next one, as if its time were over."""
        self._woken = True
        self._fetcher.wakeup.set()

    def _look_around(self) -> None:
        """Done whenever nothing is handed out: what is not reading."""

    def _read(self, deadline: float, gather: Callable[[], list[T]]) -> list[T]:
        """What `gather` has, as soon as that is anything; nothing at the deadline, or when woken."""
        while True:
            if self._closing:
                raise Closed("the consumer is closed")
            self._look_around()
            if self._placing.waiting:
                self._place(max(0.0, deadline - self._clock.monotonic()))
            chunks = gather() if self._may_hand_out else []
            if chunks:
                return chunks
            self._fetcher.send()
            self._fetcher.receive(min(max(0.0, deadline - self._clock.monotonic()), self._longest_wait))
            self._deal_with_errors()
            chunks = gather() if self._may_hand_out else []
            if chunks or self._woken or self._clock.monotonic() >= deadline:
                self._woken = False
                return chunks

    def _deal_with_errors(self) -> None:
        while (place := self._fetcher.fetching.failed_place()) is not None:
            self._deal_with(place)

    def _deal_with(self, place: Place) -> None:
        """An answer that was an error: reset the position, wait and try again, or raise."""
        error, place.error = place.error, None
        assert error is not None
        if is_out_of_range(error) and self._reset_to != "none":
            self._move(place.partition, self._placing.reset_offsets([place.partition])[place.partition])
            return
        self._patience.bear(place, error, self._clock.monotonic())
