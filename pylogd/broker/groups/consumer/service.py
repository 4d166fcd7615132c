"""The consumer groups of the newer protocol that this broker coordinates: one change at a time, sessions, timeouts.

Strategy: a group's change is appended to the offsets topic, takes effect in memory once it is in the log, and is
answered once it is committed. A large change is made in a thread, one at a time (`work`). Until a change is in the log,
further requests of the group wait in line. An answer without a change also waits until the last change is committed, so
no client is told what could still be lost.

Rules: the state in memory is that of the log. A member is removed when its session ends, or if it does not give up its
partitions within its rebalance timeout.
Must not know: requests of the protocol, offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, Final, TypeVar, cast

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from pylogd.base.errors import ErrorCode
from pylogd.base.limits.shares import Crowded, FairWork, share_of
from pylogd.broker.groups.consumer.active_group import ActiveGroup, Made
from pylogd.broker.groups.consumer.answers import HeartbeatAnswer, settled
from pylogd.broker.groups.consumer.group import ConsumerGroup, ConsumerGroupState
from pylogd.broker.groups.consumer.heartbeats import (
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
from pylogd.broker.groups.consumer.members import JOINING, LEAVING_FOR_A_WHILE, MemberState
from pylogd.broker.groups.consumer.records import encode
from pylogd.broker.groups.consumer.removals import Removals, tell
from pylogd.broker.groups.consumer.work import MUCH_WORK, make_change, matched, work
from pylogd.broker.groups.values import JoinRequest
from pylogd.broker.replica.disk_calls import InThread
from pylogd.broker.replica.internal_topic import KeyValue
from pylogd.broker.replica.waiting import branch, then
from pylogd.config import Settings
from pylogd.config.group import ASSIGNMENT_INTERVAL, HEARTBEAT_INTERVAL, SESSION_TIMEOUT

#: Appends records for a group. It calls the last argument once they are in the log, and returns NONE once they are
#: committed, or an error code.
Append = Callable[[str, Sequence[KeyValue], Callable[[], object]], "ErrorCode | Deferred[ErrorCode]"]

T = TypeVar("T")

#: Writes and answers a change, or a refusal.
Use = Callable[[Made | HeartbeatRefused], "T | Deferred[T]"]
#: Returns NONE once all records of a group in the log are committed, or an error code.
AllCommitted = Callable[[str], "ErrorCode | Deferred[ErrorCode]"]
#: Returns the value of a setting for a group, by the setting's name.
GroupOption = Callable[[str, str], int]

#: If the topic names in a heartbeat have this many characters, the total of all members is checked.
_LARGE_SUBSCRIPTION: Final = 1 << 14


class ConsumerGroups:
    """All groups of the newer protocol that this broker coordinates."""

    def __init__(
        self,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        append: Append,
        find: FindTopic,
        settings: Settings,
        option: GroupOption | None = None,
        all_committed: AllCommitted = lambda group_id: ErrorCode.NONE,
        in_thread: InThread | None = None,
    ) -> None:
        """Make the groups. `option` is None for the broker's values; `in_thread` makes large changes, if given."""
        self._clock = clock
        self._now_ms = now_ms
        self._append = append
        self._find = find
        self._settings = settings
        self._option = option or (lambda group_id, name: settings.group_value({}, name))
        self._all_committed = all_committed
        self._work = FairWork(in_thread, 1) if in_thread else None  # one at a time, else clients would take all threads
        self._held: dict[str, ActiveGroup] = {}
        self._removals = Removals(clock, self._remove_late)

    # -- loading and unloading

    def load(self, groups: Iterable[ConsumerGroup]) -> None:
        """Add groups that were read from the offsets topic. The sessions of their members start again."""
        for group in groups:
            held = self._held[group.group_id] = ActiveGroup(group)
            for member_id in group.members:
                self._renew(held, member_id)

    def unload(self, belongs: Callable[[str], bool]) -> None:
        """Forget the groups whose ids `belongs` returns true for. Waiting heartbeats are answered NOT_COORDINATOR."""
        for group_id in [group_id for group_id in self._held if belongs(group_id)]:
            held = self._held.pop(group_id)
            if held.timer is not None and held.timer.active():
                held.timer.cancel()
            while held.line:
                _, waiting, unloaded = held.line.popleft()
                waiting.callback(unloaded)

    def topics_changed(self) -> None:
        """Make groups check the topics again at their next heartbeats."""
        for held in self._held.values():
            held.stale = True

    # -- looking

    def get(self, group_id: str) -> ConsumerGroup | None:
        """Return a group, or None if there is no group of this protocol with this id."""
        held = self._held.get(group_id)
        return held.group if held is not None and held.group.epoch else None

    def __contains__(self, group_id: object) -> bool:
        """Return whether there is a group with this id, or a group whose first member is joining."""
        return group_id in self._held

    def groups(self) -> list[ConsumerGroup]:
        """Return all groups."""
        return [held.group for held in self._held.values() if held.group.epoch]

    # -- requests in line

    def in_line(self, group_id: str, handle: Callable[[], T | Deferred[T]], unloaded: T) -> Deferred[T] | None:
        """Have a request of a group wait while a change of the group is made or appended; None if it need not.

        handle: called when its turn has come.
        unloaded: the answer if the group is unloaded before.
        """
        held = self._held.get(group_id)
        if held is None or not held.changing:
            return None
        waiting: Deferred[T] = Deferred()
        held.line.append((handle, waiting, unloaded))
        return waiting

    # -- heartbeats

    def heartbeat(self, group_id: str, request: Heartbeat, match: Match) -> HeartbeatAnswer | Deferred[HeartbeatAnswer]:
        """Handle a heartbeat that `check` accepts. `match` finds topics. Not during a change: see `in_line`."""
        held = self._held.get(group_id)
        if held is None:
            if request.epoch != JOINING:
                return HeartbeatAnswer(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no consumer group {group_id!r}.")
            held = self._held[group_id] = ActiveGroup(ConsumerGroup(group_id))
        if request.epoch < JOINING:
            return self._leave(held, request)
        try:
            self._check_joining(held.group, request)
            matches = matched(held.group, request, match, topics_changed=held.stale)
        except HeartbeatRefused as refused:
            return self._refused(held, request, refused)
        wanted = None
        if request.epoch == JOINING or request.topics is not None or request.regex is not None:
            wanted = (request.topics or frozenset()).union(*matches.values())
        interval_ms = self._option(group_id, ASSIGNMENT_INTERVAL)
        make = partial(
            beat, held.group, request, match=matches.__getitem__, now_ms=self._now_ms(), interval_ms=interval_ms
        )
        use, unloaded = partial(self._beaten, held, request), HeartbeatAnswer(ErrorCode.NOT_COORDINATOR)
        return self.change(held, request, wanted, make, use, unloaded)

    def keep_alive(self, group_id: str, request: Heartbeat) -> None:
        """Restart the session of a member with this epoch. Its heartbeat is answered later."""
        held = self._held.get(group_id)
        member = None if held is None else held.group.members.get(request.member_id)
        if held is not None and member is not None and member.classic is None and request.epoch == member.epoch:
            self._renew(held, request.member_id)

    def _beaten(
        self, held: ActiveGroup, request: Heartbeat, made: Made | HeartbeatRefused
    ) -> HeartbeatAnswer | Deferred[HeartbeatAnswer]:
        """Store the effect of a heartbeat of a member that joins or stays, and answer the heartbeat."""
        if isinstance(made, HeartbeatRefused):
            return self._refused(held, request, made)
        result = self.write_or_wait(held, made)
        self._renew(held, request.member_id)
        return settled(self._answer(request, made.change), result)

    def _refused(self, held: ActiveGroup, request: Heartbeat, refused: HeartbeatRefused) -> HeartbeatAnswer:
        self._forget_if_unused(held)
        return HeartbeatAnswer(refused.code, str(refused), request.member_id)

    def _leave(self, held: ActiveGroup, request: Heartbeat) -> HeartbeatAnswer | Deferred[HeartbeatAnswer]:
        """Handle the last heartbeat of a member."""
        try:
            change = leave(held.group, request)
        except HeartbeatRefused as refused:
            return HeartbeatAnswer(refused.code, str(refused), request.member_id)
        answer = HeartbeatAnswer(ErrorCode.NONE, None, request.member_id, request.epoch)
        if request.epoch == LEAVING_FOR_A_WHILE:
            return settled(answer, self._write(held, change))
        return settled(answer, self._remove(held, [request.member_id]))

    def _remove(self, held: ActiveGroup, member_ids: Sequence[str]) -> ErrorCode | Deferred[ErrorCode]:
        """Take members out of a group."""
        return self._write(held, remove(held.group, member_ids))

    def write_or_wait(
        self, held: ActiveGroup, made: Made, in_effect: Callable[[], object] = lambda: None
    ) -> ErrorCode | Deferred[ErrorCode]:
        """Write a change; call `in_effect` once it is. If it changes nothing, wait until the last one is committed."""
        if not made.records:
            in_effect()
            return self._last_commit(held)

        def appended() -> None:
            self._appended(held, made.change.group)
            in_effect()

        return self._log(held, made.records, appended)

    def _last_commit(self, held: ActiveGroup) -> ErrorCode | Deferred[ErrorCode]:
        """Return the outcome of the last change, for which an answer without a change waits."""
        if held.committed is not None:
            return branch(held.committed)
        if not held.unsure:
            return ErrorCode.NONE
        changes = held.changes

        def outcome(error: ErrorCode) -> ErrorCode:
            held.unsure = bool(error) or changes != held.changes
            return error

        return then(self._all_committed(held.group.group_id), outcome)

    def _check_joining(self, group: ConsumerGroup, request: Heartbeat) -> None:
        """Check the limits on members and topics for a member. Raises HeartbeatRefused if one is exceeded."""
        most = self._settings.integer("group.consumer.max.size")
        if request.member_id not in group.members and request.epoch == JOINING:
            replaces = request.instance_id is not None and request.instance_id in group.instances
            if not replaces and len(group.members) >= most:
                raise HeartbeatRefused(
                    ErrorCode.GROUP_MAX_SIZE_REACHED, f"The group has {most} members, as many as it may have."
                )
        self._check_size(request)

    def _check_size(self, request: Heartbeat) -> None:
        """Raise HeartbeatRefused if the members of all groups would name more topics than the limit."""
        size = sum(map(len, request.topics or ()))
        if size <= _LARGE_SUBSCRIPTION:
            return
        members = (member for held in self._held.values() for member in held.group.members.values())
        kept = sum(len(name) for member in members for name in member.topics)
        if kept + size > self._settings.integer("group.metadata.max.bytes"):
            raise HeartbeatRefused(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "The groups of this broker can't store so many topic names."
            )

    def _answer(self, request: Heartbeat, change: Change) -> HeartbeatAnswer:
        assert change.member is not None
        interval_ms = self._option(change.group.group_id, HEARTBEAT_INTERVAL)
        assignment = None if change.assignment is None else frozenset(change.assignment)
        return HeartbeatAnswer(ErrorCode.NONE, None, request.member_id, change.member.epoch, interval_ms, assignment)

    # -- changes

    def change(
        self,
        held: ActiveGroup,
        request: Heartbeat | JoinRequest,
        wanted: frozenset[str] | None,
        make: Callable[..., Change],
        use: Use[T],
        unloaded: T,
    ) -> T | Deferred[T]:
        """Make the change of a member's request, in a thread if it is large. Return the result of `use` for it.

        Addresses take turns with large changes. The time until the group's turn is added to its members' times.
        wanted: the names of topics to which the member now subscribes; None if unchanged.
        unloaded: the answer if the group is unloaded meanwhile.
        """
        stale, held.stale = held.stale, False
        much = work(held.group, request.member_id, wanted, self._find, topics_changed=stale) > MUCH_WORK
        if self._work is None or not much:
            try:
                return self._made(held, stale, use, make_change(make, self._find, stale))
            except Exception:
                held.stale = True  # nobody knows which topics were looked at
                self._forget_if_unused(held)
                raise
        held.changing = True

        def made(result: Made | HeartbeatRefused) -> T | Deferred[T]:
            if self._held.get(held.group.group_id) is not held:
                return unloaded
            held.changing = False
            try:
                return self._made(held, stale, use, result)
            finally:
                self._serve_line(held)

        def failed(failure: Failure) -> Failure | T:
            held.changing, held.stale = False, True
            self._forget_if_unused(held)
            self._serve_line(held)
            return unloaded if failure.check(Crowded) else failure  # the client will try again

        found = cache(self._find)  # it always gives the same answer, though topics may change meanwhile
        share = share_of(request.client_host.removeprefix("/"))
        its_turn = partial(held.waited, self._clock.seconds(), self._clock)
        return self._work.run(share, make_change, make, found, stale, wanted=its_turn).addCallbacks(made, failed)

    @staticmethod
    def _made(held: ActiveGroup, stale: bool, use: Use[T], made: Made | HeartbeatRefused) -> T | Deferred[T]:
        if isinstance(made, HeartbeatRefused):
            held.stale = held.stale or stale  # no change has looked at the topics
        return use(made)

    def _write(self, held: ActiveGroup, change: Change) -> ErrorCode | Deferred[ErrorCode]:
        """Append a change. It takes effect when it is in the log, and is answered when it is committed."""
        return self._log(held, [*map(encode, change.records)], partial(self._appended, held, change.group))

    def _log(
        self,
        held: ActiveGroup,
        records: Sequence[KeyValue],
        appended: Callable[[], object],
        refused: Callable[[], object] = lambda: None,
    ) -> ErrorCode | Deferred[ErrorCode]:
        """Append records, then call `appended` to apply them to the group. Requests of the group wait until then.

        refused: called instead of `appended` if the records will never be in the log.
        """
        held.changes += 1
        held.changing = True
        change, logged, appending = held.changes, False, True

        def in_log() -> None:
            nonlocal logged
            logged = True
            try:
                appended()
            finally:
                if not appending:
                    self._go_on(held, change)

        def outcome(error: ErrorCode) -> ErrorCode:
            if held.committed is result:
                held.committed = None
            if logged:
                held.unsure = bool(error)
            if not logged:
                refused()
                self._go_on(held, change)
            return error

        result = self._append(held.group.group_id, records, in_log)
        appending = False
        answer: ErrorCode | Deferred[ErrorCode]
        if isinstance(result, Deferred):
            held.committed = result
            answer = branch(result.addCallback(outcome))
        else:
            answer = outcome(result)
        if logged:  # only now: a request in line may set `held.committed` after this one
            self._go_on(held, change)
        return answer

    def _appended(self, held: ActiveGroup, group: ConsumerGroup) -> None:
        """Put a change into effect. The members' times follow, even for a member that now uses another protocol."""
        held.group = group
        for times in held.times:
            for member_id in times.keys() - group.members.keys():
                del times[member_id]
        for times in (held.join_by, held.sync_by):
            for member_id in [one for one in times if group.members[one].classic is None]:
                del times[member_id]
        for member_id in group.members.keys() - held.deadlines.keys():
            self._renew(held, member_id)
        self._watch_revocations(held)

    def _go_on(self, held: ActiveGroup, change: int) -> None:
        """Handle the requests that waited for a change to be appended, unless a later change is being appended."""
        if change == held.changes:
            held.changing = False
            self._forget_if_unused(held)
            self._serve_line(held)

    @staticmethod
    def _serve_line(held: ActiveGroup) -> None:
        while held.line and not held.changing:
            handle, waiting, _ = held.line.popleft()
            maybeDeferred(handle).chainDeferred(waiting)  # only the waiting request fails, not those after it

    def _forget_if_unused(self, held: ActiveGroup) -> None:
        """Forget a group that does not exist: its first member was refused, or it was deleted."""
        if not held.group.epoch and not held.changing and self._held.get(held.group.group_id) is held:
            del self._held[held.group.group_id]

    def delete(self, group_id: str) -> ErrorCode | Deferred[ErrorCode]:
        """Delete a group that has no members."""
        held = self._held[group_id]
        if held.changing or held.group.state is not ConsumerGroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP  # even while its first member joins
        records = delete(held.group)
        return self._write(held, Change(held.group.with_records(records), records))

    # -- time

    def _renew(self, held: ActiveGroup, member_id: str) -> None:
        """Restart a member's session. If its join is still being written, the session begins when that is in effect."""
        member = held.group.members.get(member_id)
        if member is None:
            return
        if member.classic is not None:
            session_ms = member.classic.session_ms
        else:
            session_ms = self._option(held.group.group_id, SESSION_TIMEOUT)
        held.deadlines[member_id] = at = self._clock.seconds() + session_ms / 1000
        self._watch_revocations(held)
        self._set_timer(held, at)

    def _watch_revocations(self, held: ActiveGroup) -> None:
        now = self._clock.seconds()
        revoking = {
            member_id: member
            for member_id, member in held.group.members.items()
            if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None
        }
        held.revoke_by = {
            member_id: held.revoke_by.get(member_id, now + member.rebalance_ms / 1000)
            for member_id, member in revoking.items()
        }
        for at in held.revoke_by.values():
            self._set_timer(held, at)

    def _set_timer(self, held: ActiveGroup, at: float) -> None:
        """Make sure that `_timed_out` is called at `at` or before, unless the group was unloaded meanwhile."""
        if self._held.get(held.group.group_id) is not held:
            return
        timer = held.timer
        if timer is not None and timer.active():
            if timer.getTime() <= at:
                return
            timer.cancel()
        held.timer = self._clock.callLater(max(0.0, at - self._clock.seconds()), self._timed_out, held)

    def _timed_out(self, held: ActiveGroup) -> None:
        held.timer = None  # it refers to the group, which only the garbage collector could free then
        if self._held.get(held.group.group_id) is not held:
            return
        if late := held.late(self._clock.seconds()):
            self._removals.enter(held, late)
        elif (at := held.first_time()) is not None:
            self._set_timer(held, at)

    def _remove_late(self, held: ActiveGroup) -> ErrorCode | Deferred[ErrorCode]:
        """Remove the members of a group that are late in its turn, and set its timer again."""
        outcome: ErrorCode | Deferred[ErrorCode] = ErrorCode.NONE
        if self._held.get(held.group.group_id) is not held:
            return outcome
        if held.changing:  # in line, or a group that always changes would keep its late members
            waiting: Any = self.in_line(held.group.group_id, partial(self._remove_late, held), outcome)
            return outcome if waiting is None else cast("Deferred[ErrorCode]", waiting)
        now = self._clock.seconds()
        late = held.late(now)
        if late:
            tell(held, late)
            outcome = self._remove(held, late)
        at = held.first_time()
        if at is not None:
            self._set_timer(held, max(at, now + 1) if late else at)
        return outcome
