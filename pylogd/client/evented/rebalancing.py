"""Carry out the decisions of a group's coordinator: give up and take on partitions, and commit offsets meanwhile.

Rules: everything happens in the application's own calls, one event at a time. Before partitions are given up, processed
records are committed and the listener is called; the group is told only after that.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pylogd.base.errors import PylogdError
from pylogd.client.core.consumer.partitions import PartitionsCore
from pylogd.client.core.group.assignment import COMMIT_SECONDS, GroupAssignment, RebalanceCallback
from pylogd.client.core.group.member_model import Failed, Revoke
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.client.evented.group import ConsumerGroup


class Rebalancing:
    """The part of a consumer that follows its group. Times are in seconds."""

    def __init__(
        self,
        group: ConsumerGroup,
        assignment: GroupAssignment,
        core: PartitionsCore,
        call: Callable[[RebalanceCallback, list[TopicPartition]], Awaitable[Any] | None],
        warn: Callable[[str], None],
    ) -> None:
        """`call` calls a listener of the application, `warn` logs a line."""
        self.group = group
        self.assignment = assignment
        self._core = core
        self._commits_after = core.options.auto_commit == "after"
        self._commits_before = core.options.auto_commit == "before"
        self._call = call
        self._warn = warn

    async def handle_events(self, now: float) -> None:
        """Carry out the events that the group has, and commit from time to time. Raises the group's error."""
        group, assignment = self.group, self.assignment
        while group.has_event and (event := group.next_event()) is not None:
            if isinstance(event, Failed):
                group.done(event)
                raise event.error
            try:
                if isinstance(event, Revoke):
                    await self.give_up(sorted(event.partitions), lost=event.lost)
                else:
                    added = sorted(event.added)
                    assignment.take_on(added)
                    self._core.hold_unwanted()
                    await self.tell(assignment.listener.assigned, added)
            finally:
                group.done(event)
        assignment.commit_if_due(now)

    async def give_up(self, partitions: list[TopicPartition], *, lost: bool = False) -> None:
        """Stop reading partitions, after a commit and a call of the listener.

        lost: whether other members may read them already.
        """
        assignment = self.assignment
        try:
            if not lost:
                positions = self.processed()
                offsets = assignment.unsaved({p: positions[p] for p in partitions if p in positions})
                try:
                    if offsets:
                        await self.group.commit(offsets, COMMIT_SECONDS)
                        assignment.note_committed(offsets)
                except PylogdError as error:
                    self._warn(f"partitions were given up with offsets that could not be committed: {error}; "
                               f"their next owner reads from what was committed before")  # fmt: skip
            await self.tell(assignment.listener.when_gone(lost), partitions)
        finally:
            for partition in partitions:
                self.forget(partition)

    def processed(self, *, polled: bool = True) -> Mapping[TopicPartition, int]:
        """Return the offsets to commit before partitions are given up.

        With auto_commit "before", records may be committed that an iteration or a stream has not handed out. Then the
        positions are committed again, so that the next owner reads these records.
        polled: whether the records of the last poll are processed.
        """
        if self._commits_after:
            return self.assignment.processed(polled=polled)
        return self.assignment.positions() if self._commits_before else {}

    def forget(self, partition: TopicPartition) -> None:
        """Stop reading a partition."""
        self._core.forget(partition)
        self.assignment.forget([partition])

    async def tell(self, callback: RebalanceCallback | None, partitions: list[TopicPartition]) -> None:
        """Call the application's listener, which may be a coroutine function."""
        if callback is not None:
            outcome = self._call(callback, partitions)
            if inspect.isawaitable(outcome):
                await outcome

    async def commit_before(self, offsets: Mapping[TopicPartition, int], timeout: float) -> None:
        """With auto_commit "before": commit the offsets after the records that are about to be handed out."""
        if self._commits_before and offsets:
            chosen = self.assignment.unsaved(offsets)
            if chosen:
                await self.group.commit(chosen, timeout)
                self.assignment.note_committed(chosen)

    def note_start(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata], reset: Mapping[TopicPartition, int]
    ) -> None:
        """Record the offsets at which partitions start: the committed ones, and the others."""
        assignment = self.assignment
        assignment.note_committed(committed)
        if assignment.subscribed and not self.group.wakes and reset:  # so that a later owner starts at the same offset
            assignment.commit_soon({partition: OffsetAndMetadata(offset) for partition, offset in reset.items()})
