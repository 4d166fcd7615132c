"""Where to begin in a partition, on Twisted: at what the group committed, else where `auto_offset_reset` says.

Strategy: partitions wait here until they have a position; one task at a time finds positions for all of them, and tries
again after retriable errors, until those have gone on for `patience` seconds: then `error` has the last of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from pylogd.client.core.admin.offsets import EARLIEST, LATEST, find_offsets
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.consumer.options import ResetTo
from pylogd.client.core.errors import is_retriable
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.client.deferred.cluster import Cluster
from pylogd.client.deferred.tasks import Tasks
from pylogd.errors import ErrorCode, KafkaError, PylogdError

LookUp = Callable[[list[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata | None]]]
#: told of positions: committed ones, and others
Placed = Callable[[dict[TopicPartition, int], dict[TopicPartition, int]], None]


class Placing:
    """The partitions that are read and have no position yet."""

    def __init__(
        self, cluster: Cluster, reset_to: ResetTo, look_up: LookUp | None, patience: float, tasks: Tasks, placed: Placed
    ) -> None:
        """`look_up` knows what the group committed. `placed` is also called when there is an `error`."""
        self.waiting: set[TopicPartition] = set()
        self.error: PylogdError | None = None
        self._cluster = cluster
        self._reset_to = reset_to
        self._look_up = look_up
        self._patience = patience
        self._tasks = tasks
        self._placed = placed
        self._running = False

    @property
    def knows_committed(self) -> bool:
        """Whether a group has a say in where to begin."""
        return self._look_up is not None

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """These are to be placed."""
        self.waiting.update(partitions)
        self.begin()

    def discard(self, partition: TopicPartition) -> None:
        """It has a position, or is not read any more."""
        self.waiting.discard(partition)

    def begin(self) -> None:
        """Find positions for those that wait, if nobody does: also after an error."""
        if self.waiting and not self._running:
            self._running = True
            self._tasks.start(self._run())

    async def _run(self) -> None:
        began, backoff = self._cluster.seconds(), Backoff()
        try:
            while self.waiting:
                try:
                    committed, reset = await self._find(sorted(self.waiting))
                except PylogdError as error:
                    self._cluster.metadata.note(error)
                    pause = backoff.next()
                    if not is_retriable(error) or self._cluster.seconds() + pause > began + self._patience:
                        self.error = error
                        self._placed({}, {})
                        return
                    await self._cluster.sleep(pause)
                else:
                    self._placed(
                        {p: offset for p, offset in committed.items() if p in self.waiting},
                        {p: offset for p, offset in reset.items() if p in self.waiting},
                    )
        finally:
            self._running = False

    async def _find(
        self, partitions: list[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        committed: dict[TopicPartition, int] = {}
        if self._look_up is not None:
            found = await self._look_up(partitions)
            committed = {p: offset.offset for p, offset in found.items() if offset is not None}
        fresh = [partition for partition in partitions if partition not in committed]
        return committed, await self.reset_offsets(fresh) if fresh else {}

    async def reset_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Where `auto_offset_reset` says to begin. Raises KafkaError."""
        if self._reset_to == "none":
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{partitions[0]}: no offset is given to read from")
        when = EARLIEST if self._reset_to == "earliest" else LATEST
        found = await find_offsets(self._cluster, dict.fromkeys(partitions, when))
        return {partition: answer.offset for partition, answer in found.items()}
