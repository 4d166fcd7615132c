"""The offsets of a consumer on an event loop: looked up, committed, and handed over to transactions.

Rules: times are in seconds. Methods that wait are coroutines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pylogd.base.errors import PylogdError
from pylogd.client.core.admin.calls import Calls
from pylogd.client.core.admin.offsets import EARLIEST, LATEST, find_offsets
from pylogd.client.core.consumer.options import ConsumerOptions, Offsets
from pylogd.client.core.consumer.partitions import PartitionsCore
from pylogd.client.core.errors import RequestTimedOut
from pylogd.client.core.group.assignment import GroupAssignment
from pylogd.client.core.group.member_model import GroupMetadata
from pylogd.client.core.model import OffsetAndMetadata, OffsetAndTime, TopicPartition
from pylogd.client.evented.driver import Driver
from pylogd.client.evented.group import ConsumerGroup
from pylogd.client.evented.loop import Loop, Promise

Partitions = Iterable[tuple[str, int]]


class OffsetMethods:
    """The methods of a consumer that concern offsets."""

    options: ConsumerOptions
    core: PartitionsCore
    _calls: Calls
    _driver: Driver
    _loop: Loop

    def in_group(self) -> tuple[GroupAssignment, ConsumerGroup]:
        """Return the group and its assignment. Raises ValueError without a group, and Closed."""
        raise NotImplementedError

    async def ends(self, partitions: Partitions, *, first: bool) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition, or its end offset for the isolation level."""
        wanted = {TopicPartition(*partition): EARLIEST if first else LATEST for partition in partitions}
        found = await find_offsets(self._calls, wanted, committed=self.options.read_committed)
        return {partition: answer.offset for partition, answer in found.items()}

    async def offsets_for_times(
        self, times: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTime | None]:
        """Return each partition's first offset at or after a time in milliseconds since 1970; None if there is none."""
        wanted = {TopicPartition(*partition): time for partition, time in times.items()}
        found = await find_offsets(self._calls, wanted, committed=self.options.read_committed)
        return {partition: (answer if answer.offset >= 0 else None) for partition, answer in found.items()}

    async def committed(self, partitions: Partitions, timeout: float) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offset of each partition, or None if it has not committed any."""
        _, group = self.in_group()
        promise: Promise[Any] = self._loop.promise()

        def done(found: Any, error: PylogdError | None) -> None:
            if error is not None:
                promise.fail(error)
            else:
                promise.succeed(dict(found))

        timer = self._loop.later(
            timeout, lambda: promise.fail(RequestTimedOut(f"no committed offsets in {timeout:g} s"))
        )
        try:
            group.look_up([TopicPartition(*partition) for partition in partitions], done)
            found: dict[TopicPartition, OffsetAndMetadata | None] = await promise
        finally:
            timer.cancel()
        return found

    async def commit(self, offsets: Offsets | None, *, wait: bool, timeout: float) -> None:
        """Commit these offsets, or those of all returned records; in an iteration, including the current record."""
        assignment, group = self.in_group()
        chosen = self._to_commit(assignment, offsets)
        if not wait:
            assignment.commit_soon(chosen)
        elif chosen:
            await group.commit(chosen, timeout)
            assignment.note_committed(chosen)

    def _to_commit(
        self, assignment: GroupAssignment, offsets: Offsets | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            return assignment.unsaved(self._progress(assignment))
        return {
            TopicPartition(*p): offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
            for p, offset in offsets.items()
        }

    def _progress(self, assignment: GroupAssignment) -> Mapping[TopicPartition, int]:
        """Return the offsets after all returned records; in an iteration, including the current record.

        With auto_commit "before", return the committed offsets, which are ahead of an iteration.
        """
        return assignment.progress() if self.options.auto_commit != "before" else self.core.reader.positions

    # Transactions

    def group_metadata(self) -> GroupMetadata:
        """Return the group member with which offsets are committed now. Raises ValueError, Closed."""
        return self.in_group()[1].metadata()

    def offsets_to_send(self) -> tuple[dict[TopicPartition, OffsetAndMetadata], GroupMetadata]:
        """Return the offsets after the returned records, for a transaction to commit, and the group member that commits
        them.
        """
        if self.options.auto_commit in ("after", "before"):
            raise ValueError(
                f'a consumer with auto_commit="{self.options.auto_commit}" commits by itself, also what a transaction '
                f'then aborts: make it with auto_commit="transaction"'
            )
        assignment, group = self.in_group()
        return assignment.with_epochs(self._progress(assignment)), group.metadata()

    async def seek_to_committed(self) -> None:
        """Seek all assigned partitions to the group's committed offsets: records returned since then are read again.

        A partition without a committed offset starts as with a new assignment.
        """
        self.in_group()
        # With auto_commit "before", records that were not handed out are committed already.
        waiting = self.core.reader.buffer.positions() if self.options.auto_commit == "before" else {}
        self.core.start_again([partition for partition in self.core.assignment if partition not in waiting])
        for partition, offset in waiting.items():
            self.core.rewind(partition, offset)
        self._driver.soon()
