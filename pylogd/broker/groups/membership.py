"""Membership rules of consumer groups: joining, rebalancing, leaving and expiring (Kafka's classic protocol).

Strategy: when a member joins, leaves or expires, the group prepares a rebalance. Members learn of it from their next
heartbeat and join again; each join waits as a Deferred until all members have joined or the rebalance timeout is over.
Then a new generation begins. Its leader is sent the list of members and returns the assignment with its SyncGroup
request; the assignment is stored, and every waiting sync is answered with its part. `states` has the states, `group`
the bookkeeping.

Time: a group has at most one timer, set to the first time at which something may be due. A heartbeat only moves the
member's deadline; a timer that fires too early is set again. So a heartbeat costs one look-up and one assignment.

Rules:
- A member's session can't expire while one of its joins or syncs waits, since a lost connection would be noticed. When
  the connection is lost, a member that was never part of a generation is removed at once; any other member has one
  session timeout to come back.
- A request is removed from the group's dicts before it is answered, and the state changes before any answer, since an
  answer may run the next request of the same connection at once.
- A static member (KIP-345) that comes back under a new id replaces the old id, which is fenced from then on.
- A group that was never stored and has neither members nor offsets is removed from memory.

Must not know: requests, the offsets topic, how groups are stored (`store` does it).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.group import NEVER, ClassicGroup, JoinWait, Member, SyncWait
from pylogd.broker.groups.pending import PendingIds
from pylogd.broker.groups.states import GroupEvent, GroupState
from pylogd.broker.groups.values import JoinAnswer, JoinRequest, LeavingMember, SyncAnswer, SyncRequest, next_generation
from pylogd.broker.replica.waiting import then

log = Logger()

_NONE = ErrorCode.NONE
_STABLE = GroupState.STABLE
_COMPLETING = GroupState.COMPLETING
_PREPARING = GroupState.PREPARING

#: Stores the current generation with the assignment of each member by its id. Returns NONE or an error; never fails.
Store = Callable[[ClassicGroup, dict[str, bytes]], "ErrorCode | Deferred[ErrorCode]"]


class Membership:
    """Applies the rules above to all groups of a broker."""

    def __init__(
        self,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        store: Store,
        forget: Callable[[ClassicGroup], object],
        first_delay: Callable[[], float],
        most_members: Callable[[], int],
        is_kept: Callable[[str], bool] = lambda group_id: False,
    ) -> None:
        """Arguments:

        clock: times sessions and rebalances.
        now_ms: the wall clock, for the time stamps of states.
        forget: called with each group that becomes Dead.
        first_delay: returns for how many seconds a new group waits for more members.
        most_members: returns how many members a group may have.
        is_kept: returns whether a group is kept even if it has neither members nor offsets.
        """
        self._clock = clock
        self._now_ms = now_ms
        self._store = store
        self._forget = forget
        self._first_delay = first_delay
        self._most_members = most_members
        self._is_kept = is_kept
        self._pending = PendingIds()

    # -- joining

    def join(self, group: ClassicGroup, request: JoinRequest) -> JoinAnswer | Deferred[JoinAnswer]:
        """Handle a JoinGroup request. Return the answer, or a Deferred of it while the group rebalances."""
        known = group.members.get(request.member_id)
        if request.instance_id is not None and known is None and not request.member_id:
            known = group.members.get(group.instances.get(request.instance_id, ""))
        if not group.supports(request.protocol_type, request.protocols, known):
            return self._refused(group, request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not request.member_id:
            return self._join_new(group, request)
        if request.instance_id is None and self._pending.take(group, request.member_id):
            return self._add_member(group, request, request.member_id)
        member = group.check(request.member_id, request.instance_id)
        if isinstance(member, ErrorCode):
            return self._refused(group, request, member)
        return self._join_again(group, member, request)

    def _join_new(self, group: ClassicGroup, request: JoinRequest) -> JoinAnswer | Deferred[JoinAnswer]:
        stem = request.instance_id if request.instance_id is not None else request.client_id
        member_id = f"{stem}-{uuid.uuid4()}"
        if request.instance_id is not None and request.instance_id in group.instances:
            return self._rejoin_static(group, request, member_id)
        if len(group.members) + len(group.pending) >= self._most_members():
            return self._refused(group, request, ErrorCode.GROUP_MAX_SIZE_REACHED)
        if request.needs_known_id and request.instance_id is None:
            deadline = self._clock.seconds() + request.session
            self._pending.add(group, member_id, deadline, request.share)
            self.set_timer(group, deadline)
            return JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        return self._add_member(group, request, member_id)

    def _refused(self, group: ClassicGroup, request: JoinRequest, error: ErrorCode) -> JoinAnswer:
        self.forget_unused(group)
        return JoinAnswer(error, request.member_id)

    def _add_member(self, group: ClassicGroup, request: JoinRequest, member_id: str) -> Deferred[JoinAnswer]:
        member = Member(
            member_id, request.instance_id, request.client_id, request.client_host, request.session,
            request.rebalance, request.protocols,
        )  # fmt: skip
        if not group.members:
            group.protocol_type = request.protocol_type
        group.add(member)
        if group.join_wait is not None:
            group.join_wait.newcomers = True
        return self._wait_for_join(group, member)

    def _join_again(
        self, group: ClassicGroup, member: Member, request: JoinRequest
    ) -> JoinAnswer | Deferred[JoinAnswer]:
        same = member.protocols == request.protocols
        if (group.state is _COMPLETING and same) or (
            group.state is _STABLE and same and group.leader != member.member_id
        ):
            # The client did not receive the first answer, and nothing has changed since then.
            self._renew_session(group, member)
            return group.answer_join(member)
        group.update(member, request)
        return self._wait_for_join(group, member)

    def _rejoin_static(
        self, group: ClassicGroup, request: JoinRequest, member_id: str
    ) -> JoinAnswer | Deferred[JoinAnswer]:
        """Let a restarted static member join again. In a Stable group only its member id changes."""
        assert request.instance_id is not None
        old_id, old_leader = group.instances[request.instance_id], group.leader
        fenced = ErrorCode.FENCED_INSTANCE_ID
        waiting = [group.waiting_joins.pop(old_id, None), group.waiting_syncs.pop(old_id, None)]
        member = group.replace(old_id, member_id)
        group.update(member, request)
        if group.state is not _STABLE or group.choose_protocol() != group.protocol:
            answer: JoinAnswer | Deferred[JoinAnswer] = self._wait_for_join(group, member)
        else:
            self._renew_session(group, member)
            answer = self._answer_static(group, member, old_leader, request.can_skip)
        self._answer(waiting[0], JoinAnswer(fenced, old_id))
        self._answer(waiting[1], SyncAnswer(fenced))
        return answer

    def _answer_static(
        self, group: ClassicGroup, member: Member, old_leader: str | None, can_skip: bool
    ) -> JoinAnswer | Deferred[JoinAnswer]:
        """Store the new id of a static member of a Stable group, then answer with the present generation.

        The leader must not assign again. If its client does not understand `skip_assignment`, it gets the old id as the
        leader's, so that it acts as a follower.
        """
        leads = group.leader == member.member_id
        answer = group.answer_join(member)
        if leads and can_skip:
            answer = answer._replace(skip_assignment=True)
        elif leads:
            answer = answer._replace(leader=old_leader or "", members=())
        stored = self._store(group, {one.member_id: one.assignment for one in group.members.values()})
        return then(stored, lambda error: JoinAnswer(error, member.member_id) if error else answer)

    def _wait_for_join(self, group: ClassicGroup, member: Member) -> Deferred[JoinAnswer]:
        """Let the member's join wait, and begin a rebalance unless one is under way."""
        waiting: Deferred[JoinAnswer] = Deferred(partial(self._join_lost, group, member))
        superseded = group.waiting_joins.pop(member.member_id, None)
        group.waiting_joins[member.member_id] = waiting
        if group.state is _PREPARING:
            self._complete_if_all_joined(group)
        else:
            self._prepare(group)
        self._answer(superseded, JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        return waiting

    def _join_lost(self, group: ClassicGroup, member: Member, waiting: Deferred[JoinAnswer]) -> None:
        """Handle the loss of the connection while the join waited."""
        if group.waiting_joins.get(member.member_id) is not waiting:
            return
        del group.waiting_joins[member.member_id]
        if member.is_new:
            self._remove_members(group, [member])
        else:
            self._renew_session(group, member)

    # -- rebalancing

    def _prepare(self, group: ClassicGroup) -> None:
        """Begin a rebalance. SyncGroup requests that wait for the last generation's assignment are answered at once."""
        was_empty = group.state is GroupState.EMPTY
        syncs, group.waiting_syncs = group.waiting_syncs, {}
        if group.state is _COMPLETING:
            for member in group.members.values():
                member.assignment = b""
        group.handle(GroupEvent.REBALANCE, self._now_ms())
        group.sync_wait = None
        longest, now = group.longest_rebalance, self._clock.seconds()
        delay = min(self._first_delay(), longest) if was_empty else 0.0
        group.join_wait = JoinWait(now + delay, max(longest - delay, 0.0)) if delay > 0 else JoinWait(now + longest)
        self.set_timer(group, group.join_wait.until)
        self._complete_if_all_joined(group)
        for member_id, waiting in syncs.items():
            if member_id in group.members:
                self._renew_session(group, group.members[member_id])
            self._answer(waiting, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))

    def _complete_if_all_joined(self, group: ClassicGroup) -> None:
        wait = group.join_wait
        if wait is None or len(group.waiting_joins) < len(group.members):
            return
        if not group.members or (wait.extensible is None and not group.pending):
            self._complete(group)

    def _rebalance_timed_out(self, group: ClassicGroup, wait: JoinWait) -> None:
        """End the wait for joins, or extend it if the group is new and members keep joining."""
        if wait.extensible and wait.newcomers:
            delay = min(self._first_delay(), wait.extensible)
            wait.extensible -= delay
            wait.newcomers = False
            wait.until = self._clock.seconds() + delay
            self.set_timer(group, wait.until)
        else:
            self._complete(group)

    def _complete(self, group: ClassicGroup) -> None:
        """Begin a new generation with the members that have joined. Static members that have not joined stay."""
        for member in list(group.members.values()):
            if member.instance_id is None and member.member_id not in group.waiting_joins:
                group.remove(member)
        longest_until = self._clock.seconds() + group.longest_rebalance
        if group.members and not group.waiting_joins:
            group.join_wait = JoinWait(longest_until)
            self.set_timer(group, longest_until)
            return
        group.join_wait = None
        if not group.members:
            self._become_empty(group)
            return
        group.generation = next_generation(group.generation)
        joins, group.waiting_joins = group.waiting_joins, {}
        if group.leader not in joins:
            group.leader = next(iter(joins))
        group.protocol = group.choose_protocol()
        group.handle(GroupEvent.JOINED, self._now_ms())
        group.sync_wait = SyncWait(longest_until, set(group.members))
        self.set_timer(group, longest_until)
        answers = []
        for member_id, waiting in joins.items():
            member = group.members[member_id]
            member.is_new = False
            self._renew_session(group, member)
            answers.append((waiting, group.answer_join(member)))
        for waiting, answer in answers:
            self._answer(waiting, answer)

    def _become_empty(self, group: ClassicGroup) -> None:
        group.handle(GroupEvent.EMPTIED, self._now_ms())
        group.protocol = group.leader = None
        if not (group.generation or group.stored):  # no rebalance of the group was ever completed
            self.forget_unused(group)
            return
        group.generation = next_generation(group.generation)
        then(self._store(group, {}), partial(self._emptied, group))

    @staticmethod
    def _emptied(group: ClassicGroup, error: ErrorCode) -> None:
        if error != _NONE:
            log.warn(
                "Could not store that group {group} is empty ({error}): after a restart its members must expire again",
                group=group.group_id, error=error.name,
            )  # fmt: skip

    # -- assigning

    def sync(self, group: ClassicGroup, request: SyncRequest) -> SyncAnswer | Deferred[SyncAnswer]:
        """Handle a SyncGroup request: answer with the member's assignment once the leader's has been stored."""
        member_id = request.member_id
        member = group.check(member_id, request.instance_id)
        if isinstance(member, ErrorCode):
            return SyncAnswer(member)
        if request.generation != group.generation:
            return SyncAnswer(ErrorCode.ILLEGAL_GENERATION)
        if (request.protocol_type or group.protocol_type) != group.protocol_type or (
            request.protocol is not None and request.protocol != group.protocol
        ):
            return SyncAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is _PREPARING:
            return SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS)
        if group.sync_wait is not None:
            group.sync_wait.missing.discard(member_id)
        self._renew_session(group, member)
        if group.state is _STABLE:
            return group.answer_sync(member)
        waiting: Deferred[SyncAnswer] = Deferred(partial(self._sync_lost, group, member))
        superseded = group.waiting_syncs.pop(member_id, None)
        group.waiting_syncs[member_id] = waiting
        if group.leader == member_id and group.sync_wait is not None and not group.sync_wait.storing:
            group.sync_wait.storing = True
            self._assign(group, request.assignments)
        self._answer(superseded, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
        return waiting

    def _sync_lost(self, group: ClassicGroup, member: Member, waiting: Deferred[SyncAnswer]) -> None:
        if group.waiting_syncs.get(member.member_id) is waiting:
            del group.waiting_syncs[member.member_id]
            self._renew_session(group, member)

    def _assign(self, group: ClassicGroup, wanted: Mapping[str, bytes]) -> None:
        """Store the leader's assignment, which takes effect when it is stored."""
        assignments = {member_id: wanted.get(member_id, b"") for member_id in group.members}
        then(self._store(group, assignments), partial(self._assigned, group, group.generation, assignments))

    def _assigned(self, group: ClassicGroup, generation: int, assignments: dict[str, bytes], error: ErrorCode) -> None:
        if group.state is not _COMPLETING or group.generation != generation:
            return  # another rebalance has begun meanwhile, and has answered all waiting requests
        assert group.sync_wait is not None
        group.sync_wait.storing = False
        if error != _NONE:
            syncs, group.waiting_syncs = group.waiting_syncs, {}
            self._prepare(group)
            for waiting in syncs.values():
                self._answer(waiting, SyncAnswer(error))
            return
        for member_id, member in group.members.items():
            member.assignment = assignments.get(member_id, b"")
        group.handle(GroupEvent.ASSIGNED, self._now_ms())
        syncs, group.waiting_syncs = group.waiting_syncs, {}
        answers = []
        for member_id, waiting in syncs.items():
            self._renew_session(group, group.members[member_id])
            answers.append((waiting, group.answer_sync(group.members[member_id])))
        for waiting, answer in answers:
            self._answer(waiting, answer)

    # -- heartbeats, leaving, expiring

    def heartbeat(self, group: ClassicGroup, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Renew a member's session. Returns REBALANCE_IN_PROGRESS if the member has to join again."""
        member = group.members.get(member_id)
        if member is None or member.instance_id != instance_id:
            found = group.check(member_id, instance_id)
            if isinstance(found, ErrorCode):
                return found
            member = found
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        member.deadline = self._clock.seconds() + member.session
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is _PREPARING else _NONE

    def leave(self, group: ClassicGroup, leavers: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Remove members and rebalance once. Returns NONE or an error for each."""
        results: list[ErrorCode] = []
        leaving: dict[Member, None] = {}
        for leaver in leavers:
            if self._pending.take(group, leaver.member_id):
                results.append(_NONE)
                continue
            member_id = leaver.member_id
            if not member_id and leaver.instance_id is not None:
                member_id = group.instances.get(leaver.instance_id, "")
            found = group.check(member_id, leaver.instance_id)
            if isinstance(found, Member):
                leaving[found] = None
                results.append(_NONE)
            else:
                results.append(found)
        self._remove_members(group, list(leaving))
        return results

    def _remove_members(self, group: ClassicGroup, members: Sequence[Member]) -> None:
        """Remove members, answer the requests that wait under their ids, and rebalance the group."""
        gone = []
        for member in members:
            member_id = member.member_id
            gone.append((member_id, group.waiting_joins.pop(member_id, None), group.waiting_syncs.pop(member_id, None)))
            group.remove(member)
        if members and group.state in (_STABLE, _COMPLETING):
            self._prepare(group)
        else:
            self._complete_if_all_joined(group)
        self.forget_unused(group)
        for member_id, join, sync in gone:
            self._answer(join, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
            self._answer(sync, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))

    def unload(self, group: ClassicGroup, error: ErrorCode) -> None:
        """Make a group Dead, since it was deleted or moved to another broker. Answer waiting requests with `error`."""
        self.stop_timer(group)
        group.handle(GroupEvent.REMOVED, self._now_ms())
        self.forget_ids(group)
        self._forget(group)
        self.answer_all(group, error)

    def forget_ids(self, group: ClassicGroup) -> None:
        """Forget the member ids of clients that have still to join with them."""
        self._pending.expire(group, NEVER)

    def answer_all(self, group: ClassicGroup, error: ErrorCode) -> None:
        """Answer all requests that wait for a group with an error."""
        joins, group.waiting_joins = group.waiting_joins, {}
        syncs, group.waiting_syncs = group.waiting_syncs, {}
        for member_id, join in joins.items():
            self._answer(join, JoinAnswer(error, member_id))
        for sync in syncs.values():
            self._answer(sync, SyncAnswer(error))

    def forget_unused(self, group: ClassicGroup) -> None:
        """Forget a group that is empty, and for which nothing is being stored."""
        if group.unused and not group.uncommitted and not self._is_kept(group.group_id):
            self.unload(group, ErrorCode.UNKNOWN_MEMBER_ID)

    @staticmethod
    def _answer(waiting: Deferred[Any] | None, answer: Any) -> None:
        if waiting is not None:
            waiting.callback(answer)

    # -- time

    def renew_sessions(self, group: ClassicGroup) -> None:
        """Start the sessions of all members again, as when the group was read from the offsets topic."""
        for member in group.members.values():
            self._renew_session(group, member)

    def rebalance(self, group: ClassicGroup) -> None:
        """Begin a rebalance of a group that has no requests of members to begin it."""
        self.renew_sessions(group)
        self._prepare(group)

    def _renew_session(self, group: ClassicGroup, member: Member) -> None:
        member.deadline = self._clock.seconds() + member.session
        self.set_timer(group, member.deadline)

    def set_timer(self, group: ClassicGroup, at: float) -> None:
        """Set the group's timer so that it fires at `at` at the latest."""
        timer = group.timer
        if timer is not None and timer.active():
            if timer.getTime() <= at:
                return
            timer.cancel()
        group.timer = self._clock.callLater(max(at - self._clock.seconds(), 0.0), self._timer_fired, group)

    def stop_timer(self, group: ClassicGroup) -> None:
        """Let nothing become due in a group."""
        if group.timer is not None and group.timer.active():
            group.timer.cancel()
        group.timer = None

    def _timer_fired(self, group: ClassicGroup) -> None:
        """Handle everything that is due, then set the timer to the next deadline."""
        group.timer = None
        now = self._clock.seconds()
        self._pending.expire(group, now)
        late: list[Member] = []
        if group.sync_wait is not None and group.sync_wait.until <= now:
            group.sync_wait.until = NEVER
            late = [group.members[member_id] for member_id in sorted(group.sync_wait.missing)]
        expired = [member for member in group.members.values() if group.is_expired(member, now)]
        self._remove_members(group, list(dict.fromkeys([*late, *expired])))
        if group.state is _PREPARING and group.join_wait is not None and group.join_wait.until <= now:
            self._rebalance_timed_out(group, group.join_wait)
        if group.state is not GroupState.DEAD:
            self.set_next_timer(group)

    def set_next_timer(self, group: ClassicGroup) -> None:
        """Set the group's timer to the first time at which something may be due."""
        at = group.next_deadline()
        if at < NEVER:
            self.set_timer(group, at)
