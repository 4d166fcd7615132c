"""A consumer group of the newer protocol with its current activity: changes, waiting requests, timers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.consumer.group import ConsumerGroup
from pylogd.broker.groups.consumer.heartbeats import Change
from pylogd.broker.replica.internal_topic import KeyValue

_NEVER: Final = float("inf")


class Made(NamedTuple):
    """A change, and its records as they are stored."""

    change: Change
    records: Sequence[KeyValue]


class ActiveGroup:
    """A group with its current activity.

    changing: whether a change is being made in a thread, or waits for its turn to be appended.
    changes: how many changes were appended.
    line: requests that wait for the current change. Each has its handler, the waiting Deferred, and the answer if the
        group is unloaded.
    committed: fires when the last change is committed.
    unsure: whether the last change in the log was not committed in time.
    deadlines: when each member's session ends, in the clock's seconds.
    revoke_by: until when a member must have given up partitions, in the clock's seconds.
    join_by: until when a classic member must have joined again, in the clock's seconds.
    sync_by: until when a classic member must have synced, in the clock's seconds.
    stale: whether topics may have changed since the group's last change.
    """

    __slots__ = (
        "changes", "changing", "committed", "deadlines", "group", "join_by", "line", "revoke_by", "stale", "sync_by",
        "timer", "unsure",
    )  # fmt: skip

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        self.changing = False
        self.changes = 0
        self.line: deque[tuple[Callable[[], Any], Deferred[Any], Any]] = deque()
        self.committed: Deferred[ErrorCode] | None = None
        self.unsure = False
        self.deadlines: dict[str, float] = {}
        self.revoke_by: dict[str, float] = {}
        self.join_by: dict[str, float] = {}
        self.sync_by: dict[str, float] = {}
        self.stale = True
        self.timer: IDelayedCall | None = None

    @property
    def times(self) -> tuple[dict[str, float], ...]:
        """The dicts of all times at which members are late, by member id."""
        return self.deadlines, self.revoke_by, self.join_by, self.sync_by

    def late(self, now: float) -> list[str]:
        """Return the members whose time is up."""
        return [
            member_id
            for member_id in self.group.members
            if any(times.get(member_id, _NEVER) <= now for times in self.times)
        ]

    def first_time(self) -> float | None:
        """Return when the first member is late; None if there is no such time."""
        return min((at for times in self.times for at in times.values()), default=None)

    def waited(self, since: float, clock: IReactorTime) -> bool:
        """Add the time for which the group has waited for other groups to its members' times. Return True."""
        for times in self.times:
            for member_id in times:
                times[member_id] += clock.seconds() - since
        return True
