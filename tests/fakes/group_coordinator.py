"""A group coordinator for the client's tests: the classic protocol in memory, with time passed in.

It keeps any number of groups. `handle` takes a request and a function for its answer, which may be called later: a
JoinGroup is answered when every member has joined or `tick` finds that the rebalance has taken too long. What real
coordinators check is checked; committed offsets are in `offsets`. `members` of a group are in the order of joining.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pylogd.base.errors import ErrorCode
from pylogd.wire.messages import find_coordinator, heartbeat, join_group, leave_group, sync_group

Answer = Callable[[Any], None]


@dataclass(eq=False)
class Member:
    """A member as the coordinator has it."""

    id: str
    instance_id: str | None
    protocols: list[join_group.JoinGroupRequestProtocol]
    session: float
    rebalance: float
    seen: float
    joining: Answer | None = None
    syncing: Answer | None = None

    def metadata(self, protocol: str) -> bytes:
        return next(bytes(p.metadata) for p in self.protocols if p.name == protocol)


@dataclass(eq=False)
class FakeGroup:
    """One group."""

    generation: int = 0
    state: str = "Empty"
    protocol: str = ""
    leader: str = ""
    began: float = 0.0
    members: dict[str, Member] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    shares: dict[str, bytes] = field(default_factory=dict)
    offsets: dict[tuple[str, int], tuple[int, str | None]] = field(default_factory=dict)


class FakeGroups:
    """Groups by id. `needs_member_id` as KIP-394 has it."""

    def __init__(self, *, needs_member_id: bool = True) -> None:
        self.groups: dict[str, FakeGroup] = {}
        self.needs_member_id = needs_member_id
        self._number = 0

    def group(self, name: str) -> FakeGroup:
        return self.groups.setdefault(name, FakeGroup())

    def handle(self, request: Any, answer: Answer, now: float) -> None:
        """One of JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""
        self.tick(now)
        {
            join_group.JoinGroupRequest: self._join,
            sync_group.SyncGroupRequest: self._sync,
            heartbeat.HeartbeatRequest: self._heartbeat,
            leave_group.LeaveGroupRequest: self._leave,
        }[type(request)](self.group(request.group_id), request, answer, now)

    def tick(self, now: float) -> None:
        """Let time pass: sessions end, rebalances run out."""
        for group in self.groups.values():
            for member in list(group.members.values()):
                if member.joining is None and member.syncing is None and now >= member.seen + member.session:
                    self._remove(group, member, now)
            if group.state == "PreparingRebalance" and group.members:
                patience = max(member.rebalance for member in group.members.values())
                if now >= group.began + patience:
                    for member in [m for m in group.members.values() if m.joining is None]:
                        del group.members[member.id]
                self._complete(group, now)

    def check(self, group: FakeGroup, request: Any, generation: int | None) -> ErrorCode:
        """What a coordinator says to a member's request, at first."""
        member = group.members.get(request.member_id)
        instance = request.group_instance_id
        if instance is not None:
            holder = next((m for m in group.members.values() if m.instance_id == instance), None)
            if holder is not None and holder.id != request.member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation is not None and generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE

    def _join(self, group: FakeGroup, request: Any, answer: Answer, now: float) -> None:
        instance = request.group_instance_id
        member = group.members.get(request.member_id)
        if not request.member_id:
            holder = next((m for m in group.members.values() if instance and m.instance_id == instance), None)
            self._number += 1
            identity = f"member-{self._number:04}"
            if holder is not None:  # KIP-345: the newcomer replaces it, and whoever uses the old id is fenced
                self._refuse(holder, ErrorCode.FENCED_INSTANCE_ID)
                del group.members[holder.id]
            elif self.needs_member_id and instance is None:
                group.pending.add(identity)
                answer(join_group.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=identity))
                return
        elif member is None and request.member_id in group.pending:
            identity = request.member_id
            group.pending.discard(identity)
        else:
            if error := self.check(group, request, None):
                answer(join_group.JoinGroupResponse(error_code=error, member_id=request.member_id))
                return
            assert member is not None
            identity = member.id
        if member is None:
            member = group.members[identity] = Member(identity, instance, [], 0, 0, now)
        member.protocols = request.protocols
        member.session = request.session_timeout_ms / 1000
        member.rebalance = request.rebalance_timeout_ms / 1000
        member.seen = now
        member.joining = answer
        self._prepare(group, now)
        self._complete(group, now)

    def _prepare(self, group: FakeGroup, now: float) -> None:
        if group.state != "PreparingRebalance":
            group.state, group.began = "PreparingRebalance", now
            for member in group.members.values():
                if member.syncing is not None:
                    answer, member.syncing = member.syncing, None
                    member.seen = now
                    answer(sync_group.SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))

    def _complete(self, group: FakeGroup, now: float) -> None:
        """Begin a generation, if every member has joined."""
        if group.state != "PreparingRebalance" or any(m.joining is None for m in group.members.values()):
            return
        group.generation += 1
        if not group.members:
            group.state = "Empty"
            return
        group.state, group.shares = "CompletingRebalance", {}
        if group.leader not in group.members:
            group.leader = next(iter(group.members))
        common = set.intersection(*({p.name for p in m.protocols} for m in group.members.values()))
        group.protocol = next(p.name for p in group.members[group.leader].protocols if p.name in common)
        everybody = [
            join_group.JoinGroupResponseMember(m.id, m.instance_id, m.metadata(group.protocol))
            for m in group.members.values()
        ]
        for member in list(group.members.values()):
            answer, member.joining = member.joining, None
            member.seen = now
            assert answer is not None
            answer(
                join_group.JoinGroupResponse(
                    generation_id=group.generation,
                    protocol_type="consumer",
                    protocol_name=group.protocol,
                    leader=group.leader,
                    member_id=member.id,
                    members=everybody if member.id == group.leader else [],
                )
            )

    def _sync(self, group: FakeGroup, request: Any, answer: Answer, now: float) -> None:
        error = self.check(group, request, request.generation_id)
        if not error and group.state == "PreparingRebalance":
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error:
            answer(sync_group.SyncGroupResponse(error_code=error))
            return
        member = group.members[request.member_id]
        member.seen = now
        member.syncing = answer
        if group.state == "CompletingRebalance" and request.member_id == group.leader:
            group.shares = {a.member_id: bytes(a.assignment) for a in request.assignments}
            group.state = "Stable"
        if group.state == "Stable":
            for member in group.members.values():
                if member.syncing is not None:
                    reply, member.syncing = member.syncing, None
                    member.seen = now
                    reply(sync_group.SyncGroupResponse(assignment=group.shares.get(member.id, b"")))

    def _heartbeat(self, group: FakeGroup, request: Any, answer: Answer, now: float) -> None:
        error = self.check(group, request, request.generation_id)
        if not error:
            group.members[request.member_id].seen = now
            if group.state == "PreparingRebalance":
                error = ErrorCode.REBALANCE_IN_PROGRESS
        answer(heartbeat.HeartbeatResponse(error_code=error))

    def _leave(self, group: FakeGroup, request: Any, answer: Answer, now: float) -> None:
        response = leave_group.LeaveGroupResponse()
        ids = [m.member_id for m in request.members] or [request.member_id]
        for identity in ids:
            error = ErrorCode.NONE if identity in group.members else ErrorCode.UNKNOWN_MEMBER_ID
            response.members.append(leave_group.MemberResponse(identity, None, error))
        answer(response)
        for identity in ids:
            if identity in group.members:
                self._remove(group, group.members[identity], now)

    def _remove(self, group: FakeGroup, member: Member, now: float) -> None:
        del group.members[member.id]
        self._refuse(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._prepare(group, now)
        self._complete(group, now)

    def _refuse(self, member: Member, code: ErrorCode) -> None:
        if member.joining is not None:
            member.joining(join_group.JoinGroupResponse(error_code=code))
        if member.syncing is not None:
            member.syncing(sync_group.SyncGroupResponse(error_code=code))
        member.joining = member.syncing = None

    def find(self, request: Any, node_id: int, host: str, port: int) -> find_coordinator.FindCoordinatorResponse:
        """That this broker coordinates whatever is asked for."""
        if not request.coordinator_keys:
            return find_coordinator.FindCoordinatorResponse(node_id=node_id, host=host, port=port)
        found = [find_coordinator.Coordinator(key, node_id, host, port) for key in request.coordinator_keys]
        return find_coordinator.FindCoordinatorResponse(coordinators=found)
