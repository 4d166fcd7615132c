"""How groups form, rebalance and lose members: the classic protocol of Kafka's consumer groups.

Strategy: a member that joins, leaves or dies makes the group prepare a rebalance. Members hear of it at their next
heartbeat and join again; each join waits as a Deferred until all have come or the rebalance time-out is over. Then a
new generation begins: the leader is told who is in it, assigns, and brings the assignment with its sync; it is stored,
and every waiting sync is answered with its share. `states` has the states, `group` the bookkeeping.

Time: a group has at most one timer, set to the first moment at which something of it may be due. A heartbeat only
notes the member's new deadline; the timer finds out when it fires, and sets itself anew. So a heartbeat costs a
look-up and a store, and a group of any size a timer.

Rules:
- A member is alive while a join or sync of it waits: its connection would tell. When that connection is lost, a member
  that was never part of a generation goes at once, any other has a session time-out to come back.
- Whoever waits is taken out of the group's dicts before its Deferred fires, and the state is settled before anyone is
  answered: an answer may bring the next request of the same connection in the same call.
- A static member (KIP-345) that comes back under a new id takes the old one's place, which is fenced from then on.
- A group that was never stored and has nobody and nothing in it is forgotten.

It must not know requests, the offsets topic, or how anything is stored: `store` does that.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from pylogd.errors import ErrorCode
from pylogd.groups.group import NEVER, Group, Member
from pylogd.groups.states import GroupState
from pylogd.groups.values import JoinAnswer, JoinRequest, Leaver, SyncAnswer

log = Logger()

_MOST_CLIENT_ID: Final = 255  # characters of it that go into a member id
_NONE = ErrorCode.NONE
_STABLE = GroupState.STABLE
_COMPLETING = GroupState.COMPLETING
_PREPARING = GroupState.PREPARING

#: Stores a generation with these shares; how that went, at once or later.
Store = Callable[[Group, dict[str, bytes]], "ErrorCode | Deferred[ErrorCode]"]


class Membership:
    """The rules above, for all groups of a broker. `forget` is told which group is Dead."""

    def __init__(
        self,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        store: Store,
        forget: Callable[[Group], object],
        first_delay: Callable[[], float],
        most_members: Callable[[], int],
    ) -> None:
        """`clock` times sessions and rebalances; `now_ms` is the wall clock, for the time stamps of states.

        `first_delay`: seconds that a new group waits for more members. `most_members`: how many a group may have."""
        self._clock = clock
        self._now_ms = now_ms
        self._store = store
        self._forget = forget
        self._first_delay = first_delay
        self._most_members = most_members

    # -- joining

    def join(self, group: Group, request: JoinRequest) -> JoinAnswer | Deferred[JoinAnswer]:
        """A client joins, or joins again."""
        known = group.members.get(request.member_id)
        if request.instance_id is not None and known is None and not request.member_id:
            known = group.members.get(group.instances.get(request.instance_id, ""))
        if not group.supports(request.protocol_type, request.protocols, known):
            return self._refused(group, request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not request.member_id:
            return self._join_new(group, request)
        if request.member_id in group.pending and request.instance_id is None:
            del group.pending[request.member_id]
            return self._admit(group, request, request.member_id)
        member = group.check(request.member_id, request.instance_id)
        if isinstance(member, ErrorCode):
            return self._refused(group, request, member)
        return self._join_again(group, member, request)

    def _join_new(self, group: Group, request: JoinRequest) -> JoinAnswer | Deferred[JoinAnswer]:
        stem = request.instance_id if request.instance_id is not None else request.client_id[:_MOST_CLIENT_ID]
        member_id = f"{stem}-{uuid.uuid4()}"
        if request.instance_id is not None and request.instance_id in group.instances:
            return self._come_back(group, request, member_id)
        if len(group.members) + len(group.pending) >= self._most_members():
            return self._refused(group, request, ErrorCode.GROUP_MAX_SIZE_REACHED)
        if request.needs_known_id and request.instance_id is None:
            deadline = self._clock.seconds() + request.session
            group.pending[member_id] = deadline
            self._wake_by(group, deadline)
            return JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        return self._admit(group, request, member_id)

    def _refused(self, group: Group, request: JoinRequest, error: ErrorCode) -> JoinAnswer:
        self._forget_unused(group)
        return JoinAnswer(error, request.member_id)

    def _admit(self, group: Group, request: JoinRequest, member_id: str) -> Deferred[JoinAnswer]:
        """A new member."""
        member = Member(
            member_id, request.instance_id, request.client_id, request.client_host, request.session,
            request.rebalance, request.protocols,
        )  # fmt: skip
        if not group.members:
            group.protocol_type = request.protocol_type
        group.add(member)
        group.newcomers = group.state is _PREPARING
        return self._wait_for_join(group, member)

    def _join_again(self, group: Group, member: Member, request: JoinRequest) -> JoinAnswer | Deferred[JoinAnswer]:
        same = member.protocols == request.protocols
        if (group.state is _COMPLETING and same) or (
            group.state is _STABLE and same and group.leader != member.member_id
        ):
            # It did not get the answer: nothing has changed since.
            self._touch(group, member)
            return self._generation_for(group, member)
        self._refresh(group, member, request)
        return self._wait_for_join(group, member)

    def _come_back(self, group: Group, request: JoinRequest, member_id: str) -> JoinAnswer | Deferred[JoinAnswer]:
        """A static member was started again. In a Stable group nothing changes but its id."""
        assert request.instance_id is not None
        old_id, old_leader = group.instances[request.instance_id], group.leader
        fenced = ErrorCode.FENCED_INSTANCE_ID
        waiting = [group.waiting_joins.pop(old_id, None), group.waiting_syncs.pop(old_id, None)]
        member = group.replace(old_id, member_id)
        self._refresh(group, member, request)
        if group.state is not _STABLE or group.choose_protocol() != group.protocol:
            answer: JoinAnswer | Deferred[JoinAnswer] = self._wait_for_join(group, member)
        else:
            self._touch(group, member)
            answer = self._unchanged(group, member, old_leader, request.can_skip)
        self._answer(waiting[0], JoinAnswer(fenced, old_id))
        self._answer(waiting[1], SyncAnswer(fenced))
        return answer

    def _unchanged(
        self, group: Group, member: Member, old_leader: str | None, can_skip: bool
    ) -> JoinAnswer | Deferred[JoinAnswer]:
        """The answer to a static member that comes back to a Stable group, once its new id is stored.

        A leader must not assign anew. A client that can be told so is; any other is told of a leader that it is not.
        """
        leads = group.leader == member.member_id
        answer = self._generation_for(group, member)
        if leads and can_skip:
            answer = answer._replace(skip_assignment=True)
        elif leads:
            answer = answer._replace(leader=old_leader or "", members=())
        stored = self._store(group, {one.member_id: one.assignment for one in group.members.values()})
        if not isinstance(stored, Deferred):
            return answer if stored == _NONE else JoinAnswer(stored, member.member_id)
        return stored.addCallback(lambda error: answer if error == _NONE else JoinAnswer(error, member.member_id))

    @staticmethod
    def _refresh(group: Group, member: Member, request: JoinRequest) -> None:
        if len(group.members) == 1:
            group.protocol_type = request.protocol_type
        group.set_protocols(member, request.protocols)
        member.client_id, member.client_host = request.client_id, request.client_host
        member.session, member.rebalance = request.session, request.rebalance

    def _wait_for_join(self, group: Group, member: Member) -> Deferred[JoinAnswer]:
        """The member's join waits from now on, and the group rebalances if it does not already."""
        waiting: Deferred[JoinAnswer] = Deferred(partial(self._join_lost, group, member))
        superseded = group.waiting_joins.pop(member.member_id, None)
        group.waiting_joins[member.member_id] = waiting
        if group.state is _PREPARING:
            self._complete_if_all_joined(group)
        else:
            self._prepare(group)
        self._answer(superseded, JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        return waiting

    def _join_lost(self, group: Group, member: Member, waiting: Deferred[JoinAnswer]) -> None:
        """The connection went while the join waited."""
        if group.waiting_joins.get(member.member_id) is not waiting:
            return
        del group.waiting_joins[member.member_id]
        if member.is_new:
            self._take_out(group, [member])
        else:
            self._touch(group, member)

    def _generation_for(self, group: Group, member: Member) -> JoinAnswer:
        leader = group.leader or ""
        members = group.roster() if leader == member.member_id else ()
        return JoinAnswer(
            _NONE, member.member_id, group.generation, group.protocol_type, group.protocol, leader, members
        )

    # -- rebalancing

    def _prepare(self, group: Group) -> None:
        """Begin a rebalance. Members that wait for the last one's shares hear of it at once."""
        was_empty = group.state is GroupState.EMPTY
        syncs, group.waiting_syncs = group.waiting_syncs, {}
        if group.state is _COMPLETING:
            for member in group.members.values():
                member.assignment = b""
        group.become(_PREPARING, self._now_ms())
        group.sync_at, group.unsynced, group.storing = NEVER, set(), False
        longest = group.longest_rebalance
        delay = min(self._first_delay(), longest) if was_empty else 0.0
        group.first_wait = delay > 0
        group.delay_left = max(longest - delay, 0.0)
        group.newcomers = False
        self._wait_until(group, self._clock.seconds() + (delay if group.first_wait else longest))
        self._complete_if_all_joined(group)
        for member_id, waiting in syncs.items():
            if member_id in group.members:
                self._touch(group, group.members[member_id])
            self._answer(waiting, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))

    def _wait_until(self, group: Group, at: float) -> None:
        group.rebalance_at = at
        self._wake_by(group, at)

    def _complete_if_all_joined(self, group: Group) -> None:
        if group.state is not _PREPARING or len(group.waiting_joins) < len(group.members):
            return
        if not group.members or not (group.first_wait or group.pending):
            self._complete(group)

    def _wait_is_over(self, group: Group) -> None:
        """The time for joins is up; a new group takes more of it as long as members come in."""
        if group.first_wait and group.newcomers and group.delay_left > 0:
            delay = min(self._first_delay(), group.delay_left)
            group.delay_left -= delay
            group.newcomers = False
            self._wait_until(group, self._clock.seconds() + delay)
        else:
            self._complete(group)

    def _complete(self, group: Group) -> None:
        """Go on with the members that have joined, as a new generation. Static ones may still come back."""
        for member in list(group.members.values()):
            if member.instance_id is None and member.member_id not in group.waiting_joins:
                group.remove(member)
        group.first_wait = False
        if group.members and not group.waiting_joins:
            self._wait_until(group, self._clock.seconds() + group.longest_rebalance)
            return
        group.rebalance_at = NEVER
        if not group.members:
            self._become_empty(group)
            return
        group.generation += 1
        joins, group.waiting_joins = group.waiting_joins, {}
        if group.leader not in joins:
            group.leader = next(iter(joins))
        group.protocol = group.choose_protocol()
        group.become(_COMPLETING, self._now_ms())
        group.unsynced = set(group.members)
        group.sync_at = self._clock.seconds() + group.longest_rebalance
        self._wake_by(group, group.sync_at)
        answers = []
        for member_id, waiting in joins.items():
            member = group.members[member_id]
            member.is_new = False
            self._touch(group, member)
            answers.append((waiting, self._generation_for(group, member)))
        for waiting, answer in answers:
            self._answer(waiting, answer)

    def _become_empty(self, group: Group) -> None:
        group.become(GroupState.EMPTY, self._now_ms())
        group.protocol = group.leader = None
        if not (group.generation or group.stored):  # it never was more than an attempt
            self._forget_unused(group)
            return
        group.generation += 1
        stored = self._store(group, {})
        if isinstance(stored, Deferred):
            stored.addCallback(self._emptied, group)
        else:
            self._emptied(stored, group)

    def _emptied(self, error: ErrorCode, group: Group) -> None:
        if error != _NONE:
            log.warn("that group {group} is empty could not be stored: {error}", group=group.group_id, error=error.name)

    # -- sharing out

    def sync(
        self,
        group: Group,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol: str | None,
        assignments: dict[str, bytes],
    ) -> SyncAnswer | Deferred[SyncAnswer]:
        """A member asks for its share; the leader brings everybody's."""
        member = group.check(member_id, instance_id)
        if isinstance(member, ErrorCode):
            return SyncAnswer(member)
        if generation != group.generation:
            return SyncAnswer(ErrorCode.ILLEGAL_GENERATION)
        if (protocol_type or group.protocol_type) != group.protocol_type or (
            protocol is not None and protocol != group.protocol
        ):
            return SyncAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is _PREPARING:
            return SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS)
        group.unsynced.discard(member_id)
        self._touch(group, member)
        if group.state is _STABLE:
            return self._share(group, member)
        waiting: Deferred[SyncAnswer] = Deferred(partial(self._sync_lost, group, member))
        superseded = group.waiting_syncs.pop(member_id, None)
        group.waiting_syncs[member_id] = waiting
        if group.leader == member_id and not group.storing:
            self._assign(group, assignments)
        self._answer(superseded, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
        return waiting

    def _sync_lost(self, group: Group, member: Member, waiting: Deferred[SyncAnswer]) -> None:
        if group.waiting_syncs.get(member.member_id) is waiting:
            del group.waiting_syncs[member.member_id]
            self._touch(group, member)

    def _assign(self, group: Group, assignments: dict[str, bytes]) -> None:
        """Store what the leader has assigned; it counts once that is done."""
        group.storing = True
        shares = {member_id: assignments.get(member_id, b"") for member_id in group.members}
        stored = self._store(group, shares)
        if isinstance(stored, Deferred):
            stored.addCallback(self._assigned, group, group.generation, shares)
        else:
            self._assigned(stored, group, group.generation, shares)

    def _assigned(self, error: ErrorCode, group: Group, generation: int, shares: dict[str, bytes]) -> None:
        if group.state is not _COMPLETING or group.generation != generation:
            return  # a member came or went meanwhile, and its rebalance has answered everybody
        group.storing = False
        if error != _NONE:
            syncs, group.waiting_syncs = group.waiting_syncs, {}
            self._prepare(group)
            for waiting in syncs.values():
                self._answer(waiting, SyncAnswer(error))
            return
        for member_id, member in group.members.items():
            member.assignment = shares.get(member_id, b"")
        group.become(_STABLE, self._now_ms())
        syncs, group.waiting_syncs = group.waiting_syncs, {}
        answers = []
        for member_id, waiting in syncs.items():
            self._touch(group, group.members[member_id])
            answers.append((waiting, self._share(group, group.members[member_id])))
        for waiting, answer in answers:
            self._answer(waiting, answer)

    def _share(self, group: Group, member: Member) -> SyncAnswer:
        return SyncAnswer(_NONE, group.protocol_type, group.protocol, member.assignment)

    # -- living, leaving, dying

    def heartbeat(self, group: Group, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """A member says that it lives, and hears whether it has to join again."""
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

    def leave(self, group: Group, leavers: Sequence[Leaver]) -> list[ErrorCode]:
        """Members leave, and the group rebalances once. What became of each."""
        results, leaving = [], []
        for leaver in leavers:
            if group.pending.pop(leaver.member_id, None) is not None:
                results.append(_NONE)
                continue
            member_id = leaver.member_id
            if not member_id and leaver.instance_id is not None:
                member_id = group.instances.get(leaver.instance_id, "")
            found = group.check(member_id, leaver.instance_id)
            if isinstance(found, Member):
                if found not in leaving:
                    leaving.append(found)
                results.append(_NONE)
            else:
                results.append(found)
        self._take_out(group, leaving)
        return results

    def _take_out(self, group: Group, members: Sequence[Member]) -> None:
        """Members are gone: tell whoever waits under their ids, and let the others share their work."""
        gone = []
        for member in members:
            member_id = member.member_id
            gone.append((member_id, group.waiting_joins.pop(member_id, None), group.waiting_syncs.pop(member_id, None)))
            group.remove(member)
        if members and group.state in (_STABLE, _COMPLETING):
            self._prepare(group)
        else:
            self._complete_if_all_joined(group)
        self._forget_unused(group)
        for member_id, join, sync in gone:
            self._answer(join, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
            self._answer(sync, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))

    def unload(self, group: Group, error: ErrorCode) -> None:
        """The group is no longer coordinated here, or is no more: it is Dead, and whoever waits is told `error`."""
        if group.timer is not None and group.timer.active():
            group.timer.cancel()
        group.timer = None
        group.become(GroupState.DEAD, self._now_ms())
        joins, group.waiting_joins = group.waiting_joins, {}
        syncs, group.waiting_syncs = group.waiting_syncs, {}
        group.pending.clear()
        self._forget(group)
        for member_id, join in joins.items():
            self._answer(join, JoinAnswer(error, member_id))
        for sync in syncs.values():
            self._answer(sync, SyncAnswer(error))

    def _forget_unused(self, group: Group) -> None:
        if group.unused:
            self.unload(group, ErrorCode.UNKNOWN_MEMBER_ID)

    @staticmethod
    def _answer(waiting: Deferred[Any] | None, answer: Any) -> None:
        if waiting is not None:
            waiting.callback(answer)

    # -- time

    def loaded(self, group: Group) -> None:
        """A group was read from the offsets topic: its members have a session's time to show that they live."""
        for member in group.members.values():
            self._touch(group, member)

    def _touch(self, group: Group, member: Member) -> None:
        """The member lives now."""
        member.deadline = self._clock.seconds() + member.session
        self._wake_by(group, member.deadline)

    def _wake_by(self, group: Group, at: float) -> None:
        """See that the group's timer fires no later than `at`."""
        timer = group.timer
        if timer is not None and timer.active():
            if group.timer_at <= at:
                return
            timer.cancel()
        group.timer_at = at
        group.timer = self._clock.callLater(max(at - self._clock.seconds(), 0.0), self._woken, group)

    def _woken(self, group: Group) -> None:
        """Do what is due, and set the timer to what comes next."""
        group.timer = None
        now = self._clock.seconds()
        group.pending = {member_id: at for member_id, at in group.pending.items() if at > now}
        if group.sync_at <= now:
            group.sync_at = NEVER
            late = [group.members[member_id] for member_id in sorted(group.unsynced)]
        else:
            late = []
        dead = [member for member in group.members.values() if self._is_dead(group, member, now)]
        self._take_out(group, list(dict.fromkeys([*late, *dead])))
        if group.state is _PREPARING and group.rebalance_at <= now:
            self._wait_is_over(group)
        if group.state is not GroupState.DEAD:
            at = self._next_due(group)
            if at < NEVER:
                self._wake_by(group, at)

    @staticmethod
    def _is_dead(group: Group, member: Member, now: float) -> bool:
        waits = member.member_id in group.waiting_joins or member.member_id in group.waiting_syncs
        return member.deadline <= now and not waits

    @staticmethod
    def _next_due(group: Group) -> float:
        waiting_joins, waiting_syncs = group.waiting_joins, group.waiting_syncs
        at = min(group.rebalance_at, group.sync_at, *group.pending.values())
        for member_id, member in group.members.items():
            if member.deadline < at and member_id not in waiting_joins and member_id not in waiting_syncs:
                at = member.deadline
        return at
