"""Where to begin in a partition: at what the group committed, else where `auto_offset_reset` says.

Rules: partitions wait here until they have a position; whoever polls has them placed, a little at a time, so that a
poll ends in time though the coordinator or a leader does not answer. What stays in the way for too long is raised.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from pylogd.client.blocking.cluster import Cluster
from pylogd.client.blocking.offsets import list_offsets
from pylogd.client.core.admin.offsets import EARLIEST, LATEST
from pylogd.client.core.consumer.options import ResetTo
from pylogd.client.core.errors import is_retriable
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.errors import ErrorCode, KafkaError, PylogdError


class Lookup(Protocol):
    """Committed offsets that were asked for. `wait` says whether they have come; `found` has them, or raises."""

    def wait(self, timeout: float) -> bool:
        """Wait up to so many seconds."""
        ...

    @property
    def found(self) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What came. Raises what went wrong."""
        ...


class Committed(Protocol):
    """Who knows what a group has committed."""

    def look_up(self, partitions: Iterable[TopicPartition] | None) -> Lookup:
        """Ask for it."""
        ...


class Placing:
    """The partitions that are read and have no position yet."""

    def __init__(self, cluster: Cluster, reset_to: ResetTo, committed: Committed | None, patience: float) -> None:
        """`patience`: how many seconds a retriable error may go on before it is raised."""
        self.waiting: set[TopicPartition] = set()
        self._cluster = cluster
        self._reset_to = reset_to
        self._committed = committed
        self._patience = patience
        self._lookup: Lookup | None = None
        self._fresh: set[TopicPartition] = set()  # nothing is committed for them
        self._failing_since: float | None = None

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """These are to be placed."""
        self.waiting.update(partitions)

    def discard(self, partition: TopicPartition) -> None:
        """It has a position, or is not read any more."""
        self.waiting.discard(partition)
        self._fresh.discard(partition)

    def place(
        self, timeout: float, *, wait: bool = False
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Positions for some of those that wait, which then wait no more: of committed ones, and of the others.

        `wait`: for the coordinator too; else it says when it has answered, by the group's `on_event`.

        Raises KafkaError: OFFSET_OUT_OF_RANGE where nothing is committed and auto_offset_reset is "none".
        """
        try:
            committed = self._look_up(timeout if wait else 0.0)
            reset = self._reset(timeout)
        except PylogdError as error:
            now = self._cluster.clock.monotonic()
            self._failing_since = since = now if self._failing_since is None else self._failing_since
            if is_retriable(error) and now - since < self._patience:
                self._cluster.clock.sleep(max(0.0, min(timeout, 0.1)))
                return {}, {}
            self._failing_since = None
            raise
        if committed or reset:
            self._failing_since = None
        self.waiting -= committed.keys() | reset.keys()
        return committed, reset

    def _look_up(self, timeout: float) -> dict[TopicPartition, int]:
        if self._committed is None:
            self._fresh |= self.waiting
            return {}
        asked_for = self.waiting - self._fresh
        if not asked_for:
            return {}
        if self._lookup is None:
            self._lookup = self._committed.look_up(sorted(asked_for))
        if not self._lookup.wait(timeout):
            return {}
        lookup, self._lookup = self._lookup, None
        found = {p: offset for p, offset in lookup.found.items() if p in self.waiting}
        self._fresh |= {partition for partition, offset in found.items() if offset is None}
        return {partition: offset.offset for partition, offset in found.items() if offset is not None}

    def _reset(self, timeout: float) -> dict[TopicPartition, int]:
        if not self._fresh:
            return {}
        found = self.reset_offsets(sorted(self._fresh), timeout)
        self._fresh.clear()
        return found

    def reset_offsets(
        self, partitions: list[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Where `auto_offset_reset` says to begin. Raises KafkaError."""
        if self._reset_to == "none":
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{partitions[0]}: no offset is given to read from")
        when = EARLIEST if self._reset_to == "earliest" else LATEST
        found = list_offsets(self._cluster, dict.fromkeys(partitions, when), timeout=timeout)
        return {partition: answer.offset for partition, answer in found.items()}
