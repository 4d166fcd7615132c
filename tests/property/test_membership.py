"""Simulate group members and their coordinator, in simulated time.

Whatever happens, no two members of a generation read the same partition. Once nothing happens any more, the group
becomes stable and each partition is read by one member.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pylogd.client.core.errors import BrokerUnavailable
from pylogd.client.core.group.assignors import find_assignors
from pylogd.client.core.group.member import Membership
from pylogd.client.core.group.member_model import Assign, Event, Failed, MemberRequest, MemberSettings, Revoke
from pylogd.client.core.group.member_states import MemberState
from pylogd.client.core.model import TopicPartition
from pylogd.errors import ErrorCode
from pylogd.wire.messages import (
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    metadata,
    sync_group,
)
from tests.fakes.group_coordinator import FakeGroups

STEP = 0.2
RESPONSES: dict[type[Any], type[Any]] = {
    find_coordinator.FindCoordinatorRequest: find_coordinator.FindCoordinatorResponse,
    heartbeat.HeartbeatRequest: heartbeat.HeartbeatResponse,
    join_group.JoinGroupRequest: join_group.JoinGroupResponse,
    leave_group.LeaveGroupRequest: leave_group.LeaveGroupResponse,
    sync_group.SyncGroupRequest: sync_group.SyncGroupResponse,
}


@dataclass(eq=False)
class App:
    """An application with a member: which partitions it reads, and how it handles events."""

    member: Membership
    reads: set[TopicPartition] = field(default_factory=set)
    polls: bool = True
    alive: bool = True
    slow: int = 0  # steps until it handles an event
    event: Event | None = None
    left: int = 0
    errors: list[Failed] = field(default_factory=list)

    def step(self, now: float) -> None:
        if not self.polls:
            return
        self.member.polled(now)
        if self.event is None:
            self.event = self.member.next_event()
            self.left = self.slow
            if isinstance(self.event, Revoke):  # it stops reading before it does anything else
                self.reads -= self.event.partitions
        if self.event is not None:
            self.left -= 1
            if self.left < 0:
                if isinstance(self.event, Assign):
                    self.reads |= self.event.added
                elif isinstance(self.event, Failed):
                    self.errors.append(self.event)
                event, self.event = self.event, None
                self.member.done(event, now)


class World:
    """The members, the coordinator, and the network between them."""

    def __init__(self, assignor: str, topics: dict[str, int], seed: int) -> None:
        self.now = 100.0
        self.topics = topics
        self.assignor = assignor
        self.coordinator = FakeGroups()
        self.apps: list[App] = []
        self.random = random.Random(seed)
        self.network: list[tuple[float, Any]] = []  # what happens at which time
        self.refuse: list[ErrorCode] = []
        self.down = False

    def start(self, *, instance: str | None = None, slow: int = 0) -> App:
        settings = MemberSettings("g", find_assignors([self.assignor]), instance, 10.0, 1.0, 20.0, metadata_max_age=5.0)
        app = App(Membership(settings, self.random), slow=slow)
        app.member.subscribe(self.topics, self.now)
        self.apps.append(app)
        return app

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += STEP
            self.coordinator.tick(self.now)
            due = [act for when, act in self.network if when <= self.now]
            self.network = [(when, act) for when, act in self.network if when > self.now]
            for act in due:
                act()
            for app in self.apps:
                if app.alive:
                    app.step(self.now)
                    while (ask := app.member.next_request(self.now)) is not None:
                        self._send(app, ask)
                    self._never_spins(app)
            self.check()

    def _never_spins(self, app: App) -> None:
        """Check that `next_time` is never in the past, which would make the caller spin."""
        when = app.member.next_time()
        assert when is None or when > self.now, (app.member.state, when, self.now)

    def _later(self, act: Any) -> None:
        self.network.append((self.now + self.random.choice((0.1, 0.3, 0.7)), act))

    def _send(self, app: App, ask: MemberRequest) -> None:
        request = ask.build({join_group.JoinGroupRequest: 9, metadata.MetadataRequest: 12}.get(ask.api, 4))

        def lost() -> None:
            if app.alive:
                app.member.failed(ask, BrokerUnavailable("the connection was lost"), self.now)

        def answer(response: Any) -> None:
            def arrives() -> None:
                if app.alive:
                    app.member.answered(ask, response, self.now)

            self._later(lost if self.down else arrives)

        if self.down:
            self._later(lost)
        elif self.refuse and ask.api in RESPONSES:
            answer(self._refusal(ask, self.refuse.pop()))
        else:
            self._later(lambda: self._arrives(request, answer))
        if ask.waits:  # a response that never comes ends by the timeout
            self.network.append((self.now + ask.timeout, lost))

    def _refusal(self, ask: MemberRequest, code: ErrorCode) -> Any:
        response = RESPONSES[ask.api](error_code=code)
        if ask.api is find_coordinator.FindCoordinatorRequest:
            response.coordinators = [find_coordinator.Coordinator("g", -1, "", -1, code)]
        return response

    def _arrives(self, request: Any, answer: Any) -> None:
        if isinstance(request, find_coordinator.FindCoordinatorRequest):
            answer(self.coordinator.find(request, 1, "localhost", 9092))
        elif isinstance(request, metadata.MetadataRequest):
            found = [
                metadata.MetadataResponseTopic(
                    0, name, partitions=[metadata.MetadataResponsePartition(0, i) for i in range(count)]
                )
                for name, count in self.topics.items()
            ]
            answer(metadata.MetadataResponse(topics=found))
        else:
            self.coordinator.handle(request, answer, self.now)

    def check(self) -> None:
        """Check that of two members that read the same partition, one has left the group or is about to be told."""
        members = self.coordinator.group("g").members
        for index, one in enumerate(self.apps):
            for other in self.apps[index + 1 :]:
                if one.alive and other.alive and one.reads & other.reads:
                    inside = [app for app in (one, other) if app.member.member_id in members]
                    assert len(inside) < 2, f"both read {sorted(one.reads & other.reads)}"

    def settle(self) -> None:
        """Stop all faults, and check the state that the group reaches."""
        self.down, self.refuse = False, []
        for app in self.apps:
            app.polls = True
            if app.member.state is MemberState.FAILED:
                app.member.subscribe(self.topics, self.now)
        for _ in range(60):
            self.advance(5.0)
            if self.settled():
                break
        alive = [app for app in self.apps if app.alive and app.member.state is not MemberState.OUT]
        assert self.settled(), [(app.member.state, sorted(app.reads)) for app in alive]
        if alive:
            everything = sorted(TopicPartition(t, i) for t, count in self.topics.items() for i in range(count))
            assert sorted(partition for app in alive for partition in app.reads) == everything
            loads = [len(app.reads) for app in alive]
            assert max(loads) - min(loads) <= len(self.topics)

    def settled(self) -> bool:
        alive = [app for app in self.apps if app.alive and app.member.state is not MemberState.OUT]
        group = self.coordinator.group("g")
        return (
            {app.member.member_id for app in alive} == set(group.members)
            and all(app.member.state is MemberState.STABLE and app.reads == app.member.assignment for app in alive)
            and len({app.member.generation for app in alive}) <= 1
            and sum(len(app.reads) for app in alive) == (sum(self.topics.values()) if alive else 0)
        )


CODES = [
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
]
ACTS = st.one_of(
    st.tuples(st.just("start"), st.integers(0, 3)),
    st.tuples(
        st.sampled_from(["leave", "crash", "restart", "stop polling", "poll", "start beside", "lose session"]),
        st.integers(0, 5),
    ),
    st.tuples(st.just("refuse"), st.sampled_from(CODES)),
    st.tuples(st.sampled_from(["down", "up"]), st.just(0)),
    st.tuples(st.just("grow"), st.just(0)),
    st.tuples(st.just("wait"), st.sampled_from([0.2, 1.0, 3.0, 12.0, 25.0])),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    assignor=st.sampled_from(["range", "roundrobin", "sticky", "cooperative-sticky"]),
    acts=st.lists(ACTS, max_size=25),
    seed=st.integers(0, 1 << 16),
)
def test_no_partition_is_read_twice_and_the_group_settles(
    assignor: str, acts: list[tuple[str, Any]], seed: int
) -> None:
    world = World(assignor, {"t": 5, "u": 3}, seed)
    world.start()
    for act, which in acts:
        app = world.apps[which % len(world.apps)] if isinstance(which, int) else world.apps[0]
        if act == "start":
            world.start(slow=which)
        elif act == "leave" and app.alive:
            app.reads.clear()
            app.event = None
            app.member.leave(world.now)
        elif act == "crash":
            app.alive = False
            app.reads.clear()
        elif act == "restart" and app.alive:
            app.alive = False
            world.start(instance=app.member.settings.instance_id or f"static-{len(world.apps)}")
        elif act in ("poll", "stop polling"):
            app.polls = act == "poll"
        elif act == "start beside":  # a member that does not look
            world.advance(8.0)
            app.polls = False
            world.start()
            world.advance(which)
        elif act == "lose session" and (found := world.coordinator.group("g").members.get(app.member.member_id)):
            found.seen -= 1000
        elif act == "refuse":
            world.refuse.append(which)
        elif act in ("down", "up"):
            world.down = act == "down"
        elif act == "grow":
            world.topics["t"] += 1
        elif act == "wait":
            world.advance(which)
        world.advance(STEP)
    world.settle()
