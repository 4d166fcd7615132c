"""The consumer groups of the newer protocol that this broker coordinates: one change at a time, sessions, time-outs.

Strategy: a group's change is appended to the offsets topic, takes effect in memory once it is in the log, and is
answered once it is committed. Where the append has to wait for its turn, further heartbeats of the group wait in line.
An answer that changes nothing waits too for the last change to be committed, so nobody is told what could be lost.

Rules: the memory is what the log says. A member whose session ends is removed, and so is one that does not give up its
partitions within its rebalance time-out.
Must not know: requests of the protocol, offsets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from pylogd.config import Settings
from pylogd.errors import ErrorCode
from pylogd.groups.consumer.group import ConsumerGroup, ConsumerGroupState
from pylogd.groups.consumer.heartbeats import (
    Change,
    FindTopic,
    Heartbeat,
    HeartbeatRefused,
    Match,
    beat,
    delete,
    leave,
    remove,
)
from pylogd.groups.consumer.members import JOINING, MemberState, TopicPartition
from pylogd.groups.consumer.records import encode

log = Logger()

KeyValue = tuple[bytes, bytes | None]
#: Appends records for a group: calls the last argument once they are in the log, and returns NONE once they are
#: committed, or why they were not.
Append = Callable[[str, Sequence[KeyValue], Callable[[], object]], "ErrorCode | Deferred[ErrorCode]"]

_NEVER: Final = float("inf")
#: From so many characters of topic names in a heartbeat on it is checked how much all members have.
_LARGE_SUBSCRIPTION: Final = 1 << 14


class HeartbeatAnswer(NamedTuple):
    """The answer to a heartbeat. text: what is wrong, for people. assignment: None if it has not changed."""

    error: ErrorCode
    text: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assignment: frozenset[TopicPartition] | None = None


class _Held:
    """A group, and what goes on with it.

    appending: whether a change waits for its turn to be appended. line: heartbeats that wait for that. committed: fires
    when the last change is committed. deadlines: when each member's session ends; revoke_by: until when a member has to
    have given up partitions; both in the clock's seconds. stale: whether topics may have changed since its last change.
    """

    __slots__ = ("appending", "committed", "deadlines", "group", "line", "revoke_by", "stale", "timer")

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        self.appending = False
        self.line: deque[tuple[Heartbeat, Match, Deferred[HeartbeatAnswer]]] = deque()
        self.committed: Deferred[ErrorCode] | None = None
        self.deadlines: dict[str, float] = {}
        self.revoke_by: dict[str, float] = {}
        self.stale = True
        self.timer: IDelayedCall | None = None


class ConsumerGroups:
    """All groups of the newer protocol that this broker coordinates."""

    def __init__(
        self, clock: IReactorTime, now_ms: Callable[[], int], append: Append, find: FindTopic, settings: Settings
    ) -> None:
        """`clock` times sessions; `now_ms` is the wall clock, for time stamps."""
        self._clock = clock
        self._now_ms = now_ms
        self._append = append
        self._find = find
        self._settings = settings
        self._held: dict[str, _Held] = {}

    # -- loading and unloading

    def load(self, groups: Iterable[ConsumerGroup]) -> None:
        """Take over groups that were read from the offsets topic: the sessions of their members begin anew."""
        for group in groups:
            held = self._held[group.group_id] = _Held(group)
            for member_id in group.members:
                self._renew(held, member_id)

    def unload(self, belongs: Callable[[str], bool]) -> None:
        """Forget the groups whose ids `belongs` returns true for; heartbeats that wait are answered NOT_COORDINATOR."""
        for group_id in [group_id for group_id in self._held if belongs(group_id)]:
            held = self._held.pop(group_id)
            if held.timer is not None and held.timer.active():
                held.timer.cancel()
            while held.line:
                held.line.popleft()[-1].callback(HeartbeatAnswer(ErrorCode.NOT_COORDINATOR))

    def topics_changed(self) -> None:
        """Have groups look at the topics again with their next heartbeats."""
        for held in self._held.values():
            held.stale = True

    # -- looking

    def get(self, group_id: str) -> ConsumerGroup | None:
        """Return a group, None if there is none of this protocol."""
        held = self._held.get(group_id)
        return held.group if held is not None else None

    def groups(self) -> list[ConsumerGroup]:
        """Return all groups."""
        return [held.group for held in self._held.values()]

    # -- heartbeats

    def heartbeat(self, group_id: str, request: Heartbeat, match: Match) -> HeartbeatAnswer | Deferred[HeartbeatAnswer]:
        """Handle a heartbeat, of which `check` found no fault. `match` finds topics by a regular expression."""
        held = self._held.get(group_id)
        if held is None:
            if request.epoch != JOINING:
                return HeartbeatAnswer(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no consumer group {group_id!r}.")
            held = self._held[group_id] = _Held(ConsumerGroup(group_id))
        if held.appending:
            waiting: Deferred[HeartbeatAnswer] = Deferred()
            held.line.append((request, match, waiting))
            return waiting
        return self._take(held, request, match)

    def _take(self, held: _Held, request: Heartbeat, match: Match) -> HeartbeatAnswer | Deferred[HeartbeatAnswer]:
        try:
            change = self._change(held, request, match)
        except HeartbeatRefused as refused:
            self._forget_if_unused(held)
            return HeartbeatAnswer(refused.code, str(refused), request.member_id)
        answer = self._answer(request, change)
        if change.records:
            result = self._write(held, change)
        else:
            result = ErrorCode.NONE if held.committed is None else _follow(held.committed)
        if change.member is not None:
            self._renew(held, request.member_id)
        if isinstance(result, Deferred):
            return result.addCallback(partial(_settled, answer))
        return _settled(answer, result)

    def _change(self, held: _Held, request: Heartbeat, match: Match) -> Change:
        if request.epoch < JOINING:
            return leave(held.group, request)
        most = self._settings.integer("group.consumer.max.size")
        if request.member_id not in held.group.members and request.epoch == JOINING:
            replaces = request.instance_id is not None and request.instance_id in held.group.instances
            if not replaces and len(held.group.members) >= most:
                raise HeartbeatRefused(
                    ErrorCode.GROUP_MAX_SIZE_REACHED, f"The group has {most} members, as many as it may have."
                )
        self._check_size(request)
        stale, held.stale = held.stale, False
        return beat(held.group, request, self._find, match, self._now_ms(), topics_changed=stale)

    def _check_size(self, request: Heartbeat) -> None:
        """Raise HeartbeatRefused if the members of all groups would name more topics than there is room for."""
        size = sum(map(len, request.topics or ()))
        if size <= _LARGE_SUBSCRIPTION:
            return
        members = (member for held in self._held.values() for member in held.group.members.values())
        kept = sum(len(name) for member in members for name in member.topics)
        if kept + size > self._settings.integer("group.metadata.max.bytes"):
            raise HeartbeatRefused(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "The groups of this broker have no room for so many topic names."
            )

    def _answer(self, request: Heartbeat, change: Change) -> HeartbeatAnswer:
        if change.member is None or request.epoch < JOINING:
            return HeartbeatAnswer(ErrorCode.NONE, None, request.member_id, request.epoch)
        interval_ms = self._settings.integer("group.consumer.heartbeat.interval.ms")
        assignment = None if change.assignment is None else frozenset(change.assignment)
        return HeartbeatAnswer(ErrorCode.NONE, None, request.member_id, change.member.epoch, interval_ms, assignment)

    # -- changes

    def _write(self, held: _Held, change: Change) -> ErrorCode | Deferred[ErrorCode]:
        """Append a change. It takes effect when it is in the log, and is answered when it is committed."""
        held.appending = True
        result = self._append(
            held.group.group_id,
            [encode(record) for record in change.records],
            partial(self._appended, held, change.group),
        )
        if not isinstance(result, Deferred):
            self._go_on(held)
            return result
        held.committed = result
        return _follow(result.addBoth(self._committed, held, result))

    def _appended(self, held: _Held, group: ConsumerGroup) -> None:
        held.group = group
        for member_id in held.deadlines.keys() - group.members.keys():
            del held.deadlines[member_id]
        self._watch_revocations(held)
        self._go_on(held)

    def _committed(self, error: ErrorCode, held: _Held, result: Deferred[ErrorCode]) -> ErrorCode:
        if held.committed is result:
            held.committed = None
        self._go_on(held)
        return error

    def _go_on(self, held: _Held) -> None:
        """Take the heartbeats that wait for a change to be in the log."""
        held.appending = False
        self._forget_if_unused(held)
        while held.line and not held.appending:
            request, match, waiting = held.line.popleft()
            result = self._take(held, request, match)
            if isinstance(result, Deferred):
                result.chainDeferred(waiting)
            else:
                waiting.callback(result)

    def _forget_if_unused(self, held: _Held) -> None:
        """Forget a group that never was: its first member was refused."""
        if not held.group.epoch and not held.line and self._held.get(held.group.group_id) is held:
            del self._held[held.group.group_id]

    def delete(self, group_id: str) -> ErrorCode | Deferred[ErrorCode]:
        """Delete a group that has no members."""
        held = self._held[group_id]
        if held.group.state is not ConsumerGroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        records = delete(held.group)
        return self._write(held, Change(held.group.with_records(records), records))

    # -- time

    def _renew(self, held: _Held, member_id: str) -> None:
        """Begin a member's session anew."""
        at = self._clock.seconds() + self._settings.integer("group.consumer.session.timeout.ms") / 1000
        held.deadlines[member_id] = at
        self._watch_revocations(held)
        self._set_timer(held, at)

    def _watch_revocations(self, held: _Held) -> None:
        now = self._clock.seconds()
        revoking = {
            member_id: member
            for member_id, member in held.group.members.items()
            if member.state is MemberState.UNREVOKED_PARTITIONS
        }
        held.revoke_by = {
            member_id: held.revoke_by.get(member_id, now + member.rebalance_ms / 1000)
            for member_id, member in revoking.items()
        }
        for at in held.revoke_by.values():
            self._set_timer(held, at)

    def _set_timer(self, held: _Held, at: float) -> None:
        """See that `_timed_out` is called at `at` or before."""
        timer = held.timer
        if timer is not None and timer.active():
            if timer.getTime() <= at:
                return
            timer.cancel()
        held.timer = self._clock.callLater(max(0.0, at - self._clock.seconds()), self._timed_out, held)

    def _timed_out(self, held: _Held) -> None:
        if self._held.get(held.group.group_id) is not held:
            return
        now = self._clock.seconds()
        late = [
            member_id
            for member_id in held.group.members
            if min(held.deadlines.get(member_id, _NEVER), held.revoke_by.get(member_id, _NEVER)) <= now
        ]
        if late and not held.appending:
            log.info(
                "Consumer group {group}: removing {count} members that sent no heartbeat or did not give up their "
                "partitions in time: {members}",
                group=held.group.group_id, count=len(late), members=", ".join(late[:10]),
            )  # fmt: skip
            change = remove(held.group, late)
            self._write(held, change)
        times = [*held.deadlines.values(), *held.revoke_by.values()]
        if times:
            self._set_timer(held, max(min(times), now + 1) if late else min(times))


def _settled(answer: HeartbeatAnswer, error: ErrorCode) -> HeartbeatAnswer:
    return HeartbeatAnswer(error, None, answer.member_id) if error else answer


def _follow(source: Deferred[ErrorCode]) -> Deferred[ErrorCode]:
    """Return a Deferred that fires with the result of another one, which keeps it."""
    following: Deferred[ErrorCode] = Deferred()

    def passed_on(result: ErrorCode) -> ErrorCode:
        following.callback(result)
        return result

    source.addCallback(passed_on)
    return following
