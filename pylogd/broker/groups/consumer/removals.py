"""Remove late members of few groups at a time.

Each removal is an append. If thousands of sessions end together, as after a flood of groups, and the disk is slow, its
queue refuses most of these appends; to try all of them again each second took the processor from the writes that they
waited for. So groups take turns, by the addresses of their
late members: a flood does not keep others' groups waiting. One that was refused keeps its turn for a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from pylogd.base.errors import ErrorCode
from pylogd.base.limits.log_lines import LimitedLog
from pylogd.base.limits.shares import Turns, share_of
from pylogd.broker.groups.consumer.active_group import ActiveGroup

limited = LimitedLog(Logger())  # strangers can have groups whose members never come again

#: Groups whose removals may be in the queue of a disk, which has room for many more.
AT_ONCE: Final = 32
_RETRY_SECONDS: Final = 1.0


class Removals:
    """The groups that have late members. They take turns by the addresses of these members.

    remove: removes the late members that a group still has in its turn, and returns the outcome.
    """

    def __init__(self, clock: IReactorTime, remove: Callable[[ActiveGroup], ErrorCode | Deferred[ErrorCode]]) -> None:
        self._clock = clock
        self._remove = remove
        self._waiting: Turns[ActiveGroup] = Turns()
        self._running = 0
        self._is_due = False

    def enter(self, held: ActiveGroup, late: Sequence[str]) -> None:
        """Have the late members of a group removed when it is its turn."""
        self._waiting.add(share_of(held.group.members[late[0]].client_host.removeprefix("/")), held)
        self._serve_soon()

    def _serve_soon(self) -> None:
        if not self._is_due and self._waiting.count and self._running < AT_ONCE:
            self._is_due = True
            self._clock.callLater(0, self._serve)

    def _serve(self) -> None:
        """Begin removals, of so few groups that the reactor's turn is short."""
        self._is_due = False
        for _ in range(min(AT_ONCE - self._running, self._waiting.count)):
            self._running += 1
            removed: Deferred[Any] = maybeDeferred(self._remove, self._waiting.next())
            removed.addCallback(self._pause).addErrback(_failed).addBoth(self._ended)

    def _ended(self, _: object) -> None:
        self._running -= 1
        self._serve_soon()

    def _pause(self, error: ErrorCode) -> Deferred[None] | None:
        if not error:
            return None
        over: Deferred[None] = Deferred()
        self._clock.callLater(_RETRY_SECONDS, over.callback, None)
        return over


def _failed(failure: Any) -> None:
    limited.warn(
        "Late members of a group were not removed: {error}", event="removals of members that failed",
        error=failure.getErrorMessage(),
    )  # fmt: skip


def tell(held: ActiveGroup, late: Sequence[str]) -> None:
    """Log that members are removed."""
    limited.info(
        "Consumer group {group}: removing {count} members that sent no heartbeat, or did not give up their "
        "partitions or join again in time: {members}",
        event="groups with late members", group=held.group.group_id, count=len(late), members=", ".join(late[:10]),
    )  # fmt: skip
