"""Elections of a leader among members of a group, with a coordinator in memory in place of brokers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.client.core.admin.calls import Question
from pylogd.services.registry.election import Identity, LeaderElection
from pylogd.services.registry.errors import UnknownLeader
from pylogd.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from pylogd.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from pylogd.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tests.fakes.metadata import result_of

SESSION = 9.0


class GroupCoordinator:
    """The group: members, generations, and the assignment that the first member makes."""

    def __init__(self) -> None:
        self.members: dict[str, bytes] = {}
        self.joining: dict[str, tuple[bytes, Deferred[Any]]] = {}
        self.generation = 0
        self.syncing: dict[str, Deferred[Any]] = {}
        self.assigned: dict[str, bytes] = {}
        self.rebalancing = False

    def join(self, request: JoinGroupRequest) -> Any:
        assert (request.protocol_type, request.protocols[0].name) == ("sr", "v0")
        if not request.member_id:
            name = f"member-{len(self.members) + len(self.joining) + self.generation}-{id(request)}"
            return JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=name)
        done: Deferred[Any] = Deferred()
        self.joining[request.member_id] = request.protocols[0].metadata, done
        self.members.setdefault(request.member_id, b"")
        self.rebalancing = True
        if set(self.members) <= set(self.joining):
            self.complete()
        return done

    def complete(self) -> None:
        self.generation += 1
        self.rebalancing = False
        joined, self.joining = self.joining, {}
        self.members = {name: metadata for name, (metadata, _) in joined.items()}
        self.assigned, self.syncing = {}, {}
        leader = min(joined)
        members = [JoinGroupResponseMember(name, None, metadata) for name, metadata in self.members.items()]
        for name, (_, done) in joined.items():
            mine = members if name == leader else []
            done.callback(JoinGroupResponse(generation_id=self.generation, leader=leader, member_id=name, members=mine))

    def sync(self, request: SyncGroupRequest) -> Any:
        done: Deferred[Any] = Deferred()
        self.syncing[request.member_id] = done
        self.assigned.update({each.member_id: each.assignment for each in request.assignments})
        if self.assigned:
            for name, waiting in list(self.syncing.items()):
                del self.syncing[name]
                waiting.callback(SyncGroupResponse(assignment=self.assigned[name]))
        return done

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        if request.member_id not in self.members:
            return HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        code = ErrorCode.REBALANCE_IN_PROGRESS if self.rebalancing else ErrorCode.NONE
        return HeartbeatResponse(error_code=code)

    def remove(self, name: str) -> None:
        """Remove a member; the others have to join again."""
        del self.members[name]
        self.rebalancing = True
        if self.members and set(self.members) <= set(self.joining):
            self.complete()

    def leave(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        self.remove(request.members[0].member_id)
        return LeaveGroupResponse()


class Connection:
    """What an election knows of a cluster."""

    def __init__(self, coordinator: GroupCoordinator, clock: Clock) -> None:
        self.reactor = clock
        self.cut = False
        self.metadata = SimpleNamespace(request=lambda *_: MetadataRequest(), learn=lambda _: [])
        node = FindCoordinatorResponse(coordinators=[Coordinator("g", 1, "h", 9092)])
        self._answers: dict[type[Any], Callable[[Any], Any]] = {
            MetadataRequest: lambda _: None,
            FindCoordinatorRequest: lambda _: node,
            JoinGroupRequest: coordinator.join,
            SyncGroupRequest: coordinator.sync,
            HeartbeatRequest: coordinator.heartbeat,
            LeaveGroupRequest: coordinator.leave,
        }

    def send(self, question: Question) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        if self.cut:
            done.errback(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return done
        answer = self._answers[question.api](question.build(9))
        return answer if isinstance(answer, Deferred) else succeed(answer)

    def close(self) -> None:
        """Do nothing: there are no connections."""


class World:
    """Registries with their elections on one clock."""

    def __init__(self, count: int) -> None:
        self.clock = Clock()
        self.coordinator = GroupCoordinator()
        self.caught_up: list[int] = []
        self.connections = [Connection(self.coordinator, self.clock) for _ in range(count)]
        self.elections = [self.member(number) for number in range(count)]
        for election in self.elections:
            election.start()
        self.run(SESSION)

    def member(self, number: int) -> LeaderElection:
        cluster: Any = self.connections[number]
        return LeaderElection(cluster, "g", Identity(f"h{number}", 1), lambda: self.catch_up(number), SESSION)

    def catch_up(self, number: int) -> Deferred[None]:
        self.caught_up.append(number)
        return succeed(None)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            self.clock.advance(0.5)

    def leaders(self) -> list[int]:
        return [number for number, election in enumerate(self.elections) if election.is_leader]


def test_one_leads_and_all_know_it() -> None:
    world = World(3)
    assert world.leaders() == [0]
    assert world.caught_up == [0], "a leader reads the topic to its end before it makes changes"
    for election in world.elections:
        assert election.leader is not None and election.leader.url == "http://h0:1"
        assert result_of(Deferred.fromCoroutine(election.wait(1))).url == "http://h0:1"


def test_a_leader_that_leaves_is_followed_by_another() -> None:
    world = World(3)
    result_of(Deferred.fromCoroutine(world.elections[0].stop()))
    assert world.elections[0].leader is None
    world.run(SESSION)
    assert world.leaders() == [1]
    assert world.caught_up == [0, 1]


def test_a_leader_without_coordinator_stops_to_lead_in_time() -> None:
    """At the latest when the coordinator removes it, so that there are not two."""
    world = World(2)
    world.connections[0].cut = True
    world.run(SESSION + 1)
    assert world.leaders() == []
    world.coordinator.remove(world.elections[0]._member)
    world.run(SESSION)
    assert world.leaders() == [1]
    world.connections[0].cut = False
    world.run(2 * SESSION)
    assert world.leaders() == [1], "a leader stays, although another one has a smaller URL"
    assert world.elections[0].leader is not None and world.elections[0].leader.url == "http://h1:1"


def test_who_waits_for_a_leader_is_told_in_time_or_refused() -> None:
    world = World(1)
    world.connections[0].cut = True
    world.run(2 * SESSION)
    early = Deferred.fromCoroutine(world.elections[0].wait(60.0))
    late = Deferred.fromCoroutine(world.elections[0].wait(1.0))
    world.run(2)
    with pytest.raises(UnknownLeader, match="Leader not known"):
        result_of(late)
    assert not early.called
    world.connections[0].cut = False
    world.run(2 * SESSION)
    assert result_of(early).url == "http://h0:1"
