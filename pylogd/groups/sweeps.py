"""Delete expired offsets and empty groups of the groups that this broker coordinates.

Strategy: from time to time all groups are searched for expired offsets, and for groups that are empty and have none;
when a topic is deleted, for its offsets. A few groups at a time, so that the reactor is not held up.

Must not know: requests, how offsets are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from pylogd.config import Settings
from pylogd.groups import transactions
from pylogd.groups.consumer.group import ConsumerGroup
from pylogd.groups.group import ClassicGroup
from pylogd.groups.offsets import expired
from pylogd.groups.records import PartitionId
from pylogd.groups.states import GroupState
from pylogd.metadata.image import TopicChange

#: How many groups are searched in one turn of the reactor.
_AT_ONCE: Final = 100
_MINUTE_MS: Final = 60_000

#: What keeps a group's offsets, and its members if it is one of the newer protocol.
_Found = tuple[ClassicGroup, "ConsumerGroup | None"]
_Choice = Callable[[ClassicGroup, "ConsumerGroup | None"], list[PartitionId]]


class OffsetSweeps:
    """The searches of one coordinator."""

    def __init__(
        self,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        settings: Settings,
        groups: Callable[[], Iterable[_Found]],
        drop_offsets: Callable[[ClassicGroup, Sequence[PartitionId]], object],
        delete: Callable[[ClassicGroup], object],
    ) -> None:
        """`groups` returns all groups, `drop_offsets` deletes offsets of one, and `delete` deletes one."""
        self._clock = clock
        self._now_ms = now_ms
        self._settings = settings
        self._groups = groups
        self._drop_offsets = drop_offsets
        self._delete = delete
        self._next: IDelayedCall | None = None
        self._under_way: list[IDelayedCall] = []  # the next turn of each sweep
        self._running = False

    def start(self) -> None:
        """Sweep at intervals from now on."""
        self._running = True
        interval_ms = self._settings.integer("offsets.retention.check.interval.ms")
        self._next = self._clock.callLater(interval_ms / 1000, self._sweep_old)

    def stop(self) -> None:
        """Sweep no more."""
        self._running = False
        for call in (self._next, *self._under_way):
            if call is not None and call.active():
                call.cancel()

    def _sweep_old(self) -> None:
        self.start()
        now_ms = self._now_ms()
        retention_ms = self._settings.integer("offsets.retention.minutes") * _MINUTE_MS
        self._sweep(lambda group, consumers: list(expired(group, consumers, now_ms, retention_ms)), forget_idle=True)

    def topic_changed(self, change: TopicChange) -> None:
        """Delete the offsets of a topic if it was deleted, including offsets in open transactions."""
        if change.after is not None or change.before is None:
            return
        name, now_ms = change.before.name, self._now_ms()

        def of_topic(group: ClassicGroup, consumers: ConsumerGroup | None) -> list[PartitionId]:
            committed = (p for p, found in group.offsets.items() if found.committed_ms <= now_ms)
            found = transactions.all_partitions(committed, group.transactions)
            return [partition for partition in found if partition[0] == name]

        self._sweep(of_topic, forget_idle=False)

    def _sweep(self, to_delete: _Choice, *, forget_idle: bool) -> None:
        """Delete the offsets that `to_delete` returns for each group; with `forget_idle` also groups without any."""
        self._sweep_some(iter(list(self._groups())), to_delete, forget_idle)

    def _sweep_some(self, groups: Iterator[_Found], to_delete: _Choice, forget_idle: bool) -> None:
        some = list(islice(groups, _AT_ONCE))
        for group, consumers in some:
            if group.state is GroupState.DEAD:
                continue
            self._drop_offsets(group, to_delete(group, consumers))
            empty = group.state is GroupState.EMPTY and not (consumers is not None and consumers.members)
            if forget_idle and empty and not (group.has_offsets or group.pending):
                self._delete(group)
        self._under_way = [call for call in self._under_way if call.active()]
        if len(some) == _AT_ONCE and self._running:
            self._under_way.append(self._clock.callLater(0, self._sweep_some, groups, to_delete, forget_idle))
