"""Group members and their applications in simulated time, with a network that loses what it should carry.

What is common to both group protocols: the coordinator is what `MemberWorld` leaves out.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from pylogd.base.errors import ErrorCode
from pylogd.client.core.errors import BrokerUnavailable
from pylogd.client.core.group.member_model import Assign, Event, Failed, MemberRequest, Revoke
from pylogd.client.core.group.membership import GroupMember
from pylogd.client.core.model import TopicPartition
from pylogd.wire.messages import (
    consumer_group_heartbeat,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    metadata,
    sync_group,
)

STEP = 0.2
RESPONSES: dict[type[Any], type[Any]] = {
    consumer_group_heartbeat.ConsumerGroupHeartbeatRequest: consumer_group_heartbeat.ConsumerGroupHeartbeatResponse,
    find_coordinator.FindCoordinatorRequest: find_coordinator.FindCoordinatorResponse,
    heartbeat.HeartbeatRequest: heartbeat.HeartbeatResponse,
    join_group.JoinGroupRequest: join_group.JoinGroupResponse,
    leave_group.LeaveGroupRequest: leave_group.LeaveGroupResponse,
    sync_group.SyncGroupRequest: sync_group.SyncGroupResponse,
}
VERSIONS: dict[type[Any], int] = {join_group.JoinGroupRequest: 9, metadata.MetadataRequest: 12}


@dataclass(eq=False)
class App:
    """An application with a member: which partitions it reads, and how it handles events."""

    member: GroupMember
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


class MemberWorld(ABC):
    """The members, and the network between them and their coordinator."""

    def __init__(self, topics: dict[str, int], seed: int) -> None:
        self.now = 100.0
        self.topics = topics
        self.apps: list[App] = []
        self.random = random.Random(seed)
        self.network: list[tuple[float, Any]] = []  # what happens at which time
        self.refuse: list[ErrorCode] = []
        self.down = False

    @abstractmethod
    def member(self, instance: str | None) -> GroupMember:
        """A new member that has not subscribed."""

    def start(self, *, instance: str | None = None, slow: int = 0) -> App:
        app = App(self.member(instance), slow=slow)
        self.subscribe(app)
        self.apps.append(app)
        return app

    def subscribe(self, app: App) -> None:
        app.member.subscribe(self.topics, self.now)

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += STEP
            self.tick()
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
        assert when is None or when > self.now, (app.member, when, self.now)

    def later(self, act: Any) -> None:
        self.network.append((self.now + self.random.choice((0.1, 0.3, 0.7)), act))

    def _send(self, app: App, ask: MemberRequest) -> None:
        request = ask.build(VERSIONS.get(ask.api, 4))

        def lost() -> None:
            if app.alive:
                app.member.failed(ask, BrokerUnavailable("the connection was lost"), self.now)

        def answer(response: Any) -> None:
            def arrives() -> None:
                if app.alive:
                    app.member.answered(ask, response, self.now)

            self.later(lost if self.down else arrives)

        if self.down:
            self.later(lost)
        elif self.refuse and ask.api in RESPONSES:
            answer(_refusal(ask, self.refuse.pop()))
        else:
            self.later(lambda: self.arrives(request, answer))
        if ask.waits:  # a response that never comes ends by the timeout
            self.network.append((self.now + ask.timeout, lost))

    @abstractmethod
    def tick(self) -> None:
        """Let time pass for the coordinator."""

    @abstractmethod
    def arrives(self, request: Any, answer: Any) -> None:
        """A request has arrived at the broker."""

    @abstractmethod
    def known(self) -> Container[str]:
        """The ids of the members that the coordinator knows."""

    def same(self, one: App, other: App, partition: TopicPartition) -> bool:
        """Whether a partition that two members read is the same for both."""
        return True

    def check(self) -> None:
        """Check that of two members that read the same partition, one has left the group or is about to be told."""
        known = self.known()
        for index, one in enumerate(self.apps):
            for other in self.apps[index + 1 :]:
                if one.alive and other.alive and one.member.member_id in known and other.member.member_id in known:
                    both = [p for p in one.reads & other.reads if self.same(one, other, p)]
                    assert not both, f"both read {sorted(both)}"

    def settle(self) -> None:
        """Stop all faults, and check the state that the group reaches."""
        self.down, self.refuse = False, []
        for app in self.apps:
            app.polls = True
        for _ in range(60):
            for app in self.apps:
                if app.alive and app.member.error is not None:
                    self.subscribe(app)
            self.advance(5.0)
            if self.settled():
                break
        alive = self.alive()
        assert self.settled(), [(app.member, sorted(app.reads)) for app in alive]
        if alive:
            everything = sorted(TopicPartition(t, i) for t, count in self.topics.items() for i in range(count))
            assert sorted(partition for app in alive for partition in app.reads) == everything
            loads = [len(app.reads) for app in alive]
            assert max(loads) - min(loads) <= len(self.topics)

    def alive(self) -> list[App]:
        """The applications that are, or want to be, members."""
        return [app for app in self.apps if app.alive and not app.member.is_out]

    @abstractmethod
    def settled(self) -> bool:
        """Whether every partition is read, and nobody has anything left to do."""


def _refusal(ask: MemberRequest, code: ErrorCode) -> Any:
    response = RESPONSES[ask.api](error_code=code)
    if ask.api is find_coordinator.FindCoordinatorRequest:
        response.coordinators = [find_coordinator.Coordinator("g", -1, "", -1, code)]
    return response


def perform(world: MemberWorld, act: str, which: Any) -> None:
    """Let one thing happen that can happen with either protocol."""
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
    elif act == "refuse":
        world.refuse.append(which)
    elif act in ("down", "up"):
        world.down = act == "down"
    elif act == "grow":
        world.topics["t"] += 1
    elif act == "wait":
        world.advance(which)
