"""Delete expired offsets, offsets of deleted topics, and groups that have neither members nor offsets.

Strategy: a sweep goes through all groups, a few in each turn of the reactor.
Must not know: how offsets are stored, requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeAlias

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from pylogd.config import Settings
from pylogd.groups.consumer.group import ConsumerGroup
from pylogd.groups.group import ClassicGroup
from pylogd.groups.offsets import expired
from pylogd.groups.records import PartitionId
from pylogd.groups.states import GroupState

#: How many groups are searched in one turn of the reactor.
_SWEPT_AT_ONCE: Final = 100
_MINUTE_MS: Final = 60_000

#: What holds a group's offsets, and its members if it is one of the newer protocol.
Sweepable: TypeAlias = tuple[ClassicGroup, "ConsumerGroup | None"]
ToDelete: TypeAlias = Callable[[ClassicGroup, "ConsumerGroup | None"], Sequence[PartitionId]]


class OffsetSweeper:
    """Deletes what groups no longer need."""

    def __init__(
        self,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        settings: Settings,
        groups: Callable[[], Sequence[Sweepable]],
        drop_offsets: Callable[[ClassicGroup, Sequence[PartitionId]], object],
        drop_idle: Callable[[ClassicGroup], object],
    ) -> None:
        """`clock` times sweeps; `now_ms` is the wall clock, for the age of offsets."""
        self._clock = clock
        self._now_ms = now_ms
        self._settings = settings
        self._groups = groups
        self._drop_offsets = drop_offsets
        self._drop_idle = drop_idle
        self._next: IDelayedCall | None = None
        self._sweeps: list[IDelayedCall] = []  # the next turn of each sweep under way

    def start(self) -> None:
        """Sweep every `offsets.retention.check.interval.ms`."""
        interval_ms = self._settings.integer("offsets.retention.check.interval.ms")
        self._next = self._clock.callLater(interval_ms / 1000, self._sweep_old)

    def stop(self) -> None:
        """End all sweeps."""
        for call in (self._next, *self._sweeps):
            if call is not None and call.active():
                call.cancel()
        self._next = None

    def topic_deleted(self, name: str) -> None:
        """Delete the offsets of a topic that was deleted."""
        now_ms = self._now_ms()

        def to_delete(group: ClassicGroup, consumers: ConsumerGroup | None) -> list[PartitionId]:
            found = group.offsets.items()
            return [one for one, committed in found if one[0] == name and committed.committed_ms <= now_ms]

        self._sweep(iter(self._groups()), to_delete, forget_idle=False)

    def _sweep_old(self) -> None:
        self.start()
        now_ms = self._now_ms()
        retention_ms = self._settings.integer("offsets.retention.minutes") * _MINUTE_MS

        def to_delete(group: ClassicGroup, consumers: ConsumerGroup | None) -> list[PartitionId]:
            return list(expired(group, consumers, now_ms, retention_ms))

        self._sweep(iter(self._groups()), to_delete, forget_idle=True)

    def _sweep(self, groups: Iterator[Sweepable], to_delete: ToDelete, *, forget_idle: bool) -> None:
        """Delete the offsets that `to_delete` returns for each group; with `forget_idle` also groups without any."""
        some = list(islice(groups, _SWEPT_AT_ONCE))
        for group, consumers in some:
            if group.state is GroupState.DEAD:
                continue
            self._drop_offsets(group, to_delete(group, consumers))
            empty = group.state is GroupState.EMPTY and not (consumers is not None and consumers.members)
            if forget_idle and empty and not (group.offsets or group.pending):
                self._drop_idle(group)
        self._sweeps = [call for call in self._sweeps if call.active()]
        if len(some) == _SWEPT_AT_ONCE and self._next is not None:
            self._sweeps.append(self._clock.callLater(0, self._sweep, groups, to_delete, forget_idle=forget_idle))
