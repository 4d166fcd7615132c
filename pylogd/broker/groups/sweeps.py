"""Delete expired offsets and empty groups of the groups that this broker coordinates.

Strategy: periodically all groups are searched for expired offsets, for offsets of deleted topics, and for empty groups
without offsets. When a topic is deleted, and when groups are loaded, they are searched for offsets of deleted topics
only. A few groups are searched at a time, so that the reactor is not held up.

Rules: offsets of deleted topics are found by the topics' ids, so it does not matter when they are removed, nor whether
this broker ran when the topic was deleted. A group with changes that are not committed yet waits for a later sweep,
since a deletion would also remove an offset that is committed after the one found here.
Must not know: requests, how offsets are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.consumer.group import ConsumerGroup
from pylogd.broker.groups.group import ClassicGroup
from pylogd.broker.groups.offsets import expired, outdated
from pylogd.broker.groups.records import PartitionId
from pylogd.broker.groups.states import GroupState
from pylogd.broker.metadata.topics import TopicRegistry
from pylogd.config import Settings

#: How many groups are searched in one turn of the reactor.
_AT_ONCE: Final = 100
_EMPTY_SECONDS: Final = 10.0  # between two searches for empty groups to make space
_MINUTE_MS: Final = 60_000

#: The objects that keep a group's offsets, and its members if it has the newer protocol.
_Found = tuple[ClassicGroup, "ConsumerGroup | None"]
_Choice = Callable[[ClassicGroup, "ConsumerGroup | None"], list[PartitionId]]


class OffsetSweeps:
    """The searches of one coordinator."""

    def __init__(
        self,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        settings: Settings,
        topics: TopicRegistry,
        groups: Callable[[], Iterable[_Found]],
        drop_offsets: Callable[[ClassicGroup, Sequence[PartitionId]], Coroutine[Any, Any, ErrorCode]],
        delete: Callable[[ClassicGroup], Coroutine[Any, Any, ErrorCode]],
    ) -> None:
        """Arguments:

        groups: returns all groups.
        drop_offsets: deletes offsets of a group.
        delete: deletes a group.
        """
        self._clock = clock
        self._now_ms = now_ms
        self._settings = settings
        self._groups = groups
        self._was_deleted = topics.was_deleted
        self._drop_offsets = drop_offsets
        self._delete = delete
        self._next: IDelayedCall | None = None
        self._next_outdated: IDelayedCall | None = None
        self._under_way: list[IDelayedCall] = []  # the next turn of each sweep
        self._next_empty = float("-inf")
        self._running = False

    def start(self) -> None:
        """Start to sweep at intervals."""
        self._running = True
        interval_ms = self._settings.integer("offsets.retention.check.interval.ms")
        self._next = self._clock.callLater(interval_ms / 1000, self._sweep_old)

    def stop(self) -> None:
        """Stop sweeping."""
        self._running = False
        for call in (self._next, self._next_outdated, *self._under_way):
            if call is not None and call.active():
                call.cancel()

    def _sweep_old(self) -> None:
        self.start()
        now_ms = self._now_ms()
        retention_ms = self._settings.integer("offsets.retention.minutes") * _MINUTE_MS

        def to_delete(group: ClassicGroup, consumers: ConsumerGroup | None) -> list[PartitionId]:
            return [*outdated(group, self._was_deleted), *expired(group, consumers, now_ms, retention_ms)]

        self._sweep(to_delete, forget_idle=True)

    def sweep_outdated(self) -> None:
        """Delete the offsets of topics that were deleted, including offsets in open transactions, in a later turn.

        One sweep serves all topics that are deleted until it begins.
        """
        if self._running and (self._next_outdated is None or not self._next_outdated.active()):
            self._next_outdated = self._clock.callLater(0, self._sweep_outdated)

    def _sweep_outdated(self) -> None:
        self._sweep(lambda group, consumers: list(outdated(group, self._was_deleted)), forget_idle=False)

    def sweep_empty(self) -> None:
        """Delete empty groups without offsets, in a later turn, since there is no space for more groups."""
        if self._running and self._clock.seconds() >= self._next_empty:
            self._next_empty = self._clock.seconds() + _EMPTY_SECONDS
            self._under_way.append(self._clock.callLater(0, self._sweep, lambda *_: [], forget_idle=True))

    def store_again(self, groups: Iterable[ClassicGroup], store: Callable[[ClassicGroup], object]) -> None:
        """Call `store` for each of these groups, a few in a turn, if nothing else of the group is being stored."""
        self._visit(iter([(group, None) for group in groups]), lambda group, _: store(group))

    def _sweep(self, to_delete: _Choice, *, forget_idle: bool) -> None:
        """Delete the offsets that `to_delete` returns for each group; with `forget_idle` also unused groups."""

        def clean(group: ClassicGroup, consumers: ConsumerGroup | None) -> None:
            found = dict.fromkeys(to_delete(group, consumers))
            if found:
                Deferred.fromCoroutine(self._drop_offsets(group, list(found)))
            empty = group.state is GroupState.EMPTY and not (consumers is not None and consumers.members)
            if forget_idle and empty and not (group.offsets or group.pending):
                Deferred.fromCoroutine(self._delete(group))

        self._visit(iter(list(self._groups())), clean)

    def _visit(self, groups: Iterator[_Found], work: Callable[[ClassicGroup, ConsumerGroup | None], object]) -> None:
        """Call `work` for some groups now, and for the others in later turns."""
        some = list(islice(groups, _AT_ONCE))
        for group, consumers in some:
            if group.state is not GroupState.DEAD and not group.uncommitted:
                work(group, consumers)
        self._under_way = [call for call in self._under_way if call.active()]
        if len(some) == _AT_ONCE and self._running:
            self._under_way.append(self._clock.callLater(0, self._visit, groups, work))
