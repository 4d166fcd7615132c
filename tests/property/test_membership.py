"""Simulate members of a group of the classic protocol and their coordinator, in simulated time.

Whatever happens, no two members of a generation read the same partition. Once nothing happens any more, the group
becomes stable and each partition is read by one member.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pylogd.base.errors import ErrorCode
from pylogd.client.core.group.assignors import find_assignors
from pylogd.client.core.group.classic_member import ClassicMember
from pylogd.client.core.group.classic_states import MemberState
from pylogd.client.core.group.member_model import MemberSettings
from pylogd.client.core.group.membership import GroupMember
from pylogd.wire.messages import find_coordinator, metadata
from tests.fakes.group_coordinator import FakeGroups
from tests.fakes.member_world import STEP, App, MemberWorld, perform


class ClassicWorld(MemberWorld):
    """Members of the classic protocol."""

    def __init__(self, assignor: str, topics: dict[str, int], seed: int) -> None:
        super().__init__(topics, seed)
        self.assignor = assignor
        self.coordinator = FakeGroups()

    def member(self, instance: str | None) -> GroupMember:
        settings = MemberSettings("g", find_assignors([self.assignor]), instance, 10.0, 1.0, 20.0, metadata_max_age=5.0)
        return ClassicMember(settings, self.random)

    def tick(self) -> None:
        self.coordinator.tick(self.now)

    def arrives(self, request: Any, answer: Any) -> None:
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

    def known(self) -> Container[str]:
        return self.coordinator.group("g").members

    def end_session(self, app: App) -> None:
        if found := self.coordinator.group("g").members.get(app.member.member_id):
            found.seen -= 1000

    def settled(self) -> bool:
        alive = self.alive()
        members = {app.member.member_id: app.member for app in alive}
        return (
            members.keys() == set(self.coordinator.group("g").members)
            and all(isinstance(m, ClassicMember) and m.state is MemberState.STABLE for m in members.values())
            and all(app.reads == app.member.assignment for app in alive if isinstance(app.member, ClassicMember))
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
    world = ClassicWorld(assignor, {"t": 5, "u": 3}, seed)
    world.start()
    for act, which in acts:
        if act == "lose session":
            world.end_session(world.apps[which % len(world.apps)])
        else:
            perform(world, act, which)
        world.advance(STEP)
    world.settle()
