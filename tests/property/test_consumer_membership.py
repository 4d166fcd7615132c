"""Simulate members of a group of the newer protocol (KIP-848) and their coordinator, in simulated time.

Whatever happens, no two members that the coordinator knows read the same partition. Once nothing happens any more, the
group becomes stable and each partition is read by one member.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.consumer.group import ConsumerGroupState
from pylogd.client.core.group.assignors import find_assignors
from pylogd.client.core.group.consumer_member import ConsumerMember
from pylogd.client.core.group.consumer_states import ConsumerState
from pylogd.client.core.group.member_model import MemberSettings
from pylogd.client.core.group.membership import GroupMember
from pylogd.client.core.model import TopicPartition
from pylogd.wire.messages import find_coordinator, metadata
from tests.fakes.consumer_coordinator import FakeConsumerGroups, fake_topic, named
from tests.fakes.group_coordinator import FakeGroups
from tests.fakes.member_world import STEP, App, MemberWorld, perform


class ConsumerWorld(MemberWorld):
    """Members of the newer protocol."""

    def __init__(self, assignor: str | None, topics: dict[str, int], seed: int) -> None:
        super().__init__(topics, seed)
        self.assignor = assignor
        self.versions = dict.fromkeys(topics, 0)
        self.coordinator = FakeConsumerGroups({})

    def member(self, instance: str | None) -> GroupMember:
        return ConsumerMember(
            MemberSettings(
                "g", find_assignors(["range"]), instance, max_poll_interval=20.0, protocol="consumer",
                remote_assignor=self.assignor,
            ),
            self.random,
        )  # fmt: skip

    def tick(self) -> None:
        self.coordinator.topics = {
            name: fake_topic(name, count, f"{name}{self.versions[name]}".encode().ljust(16))
            for name, count in self.topics.items()
        }
        self.coordinator.tick(self.now)

    def arrives(self, request: Any, answer: Any) -> None:
        if isinstance(request, find_coordinator.FindCoordinatorRequest):
            answer(FakeGroups().find(request, 1, "localhost", 9092))
        elif isinstance(request, metadata.MetadataRequest):
            answer(
                metadata.MetadataResponse(topics=[self._described(topic.topic_id) for topic in request.topics or ()])
            )
        else:
            answer(self.coordinator.handle(request, self.now))

    def _described(self, topic_id: bytes) -> metadata.MetadataResponseTopic:
        name = named(self.coordinator.topics, topic_id)
        error = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.NONE
        return metadata.MetadataResponseTopic(error, name, topic_id)

    def known(self) -> Container[str]:
        """Without those that left for a while, which have lost what they were to give up."""
        members = self.coordinator.group("g").members
        return {member_id for member_id, member in members.items() if not member.has_left_for_a_while}

    def same(self, one: App, other: App, partition: TopicPartition) -> bool:
        """A topic that was deleted and made again is not the same topic."""
        return one.member.topic_ids.get(partition.topic) == other.member.topic_ids.get(partition.topic)

    def settled(self) -> bool:
        alive = self.alive()
        members = {app.member.member_id: app.member for app in alive}
        group = self.coordinator.group("g")
        return (
            members.keys() == set(group.members)
            and (not alive or group.state is ConsumerGroupState.STABLE)
            and all(isinstance(m, ConsumerMember) and m.state is ConsumerState.STABLE for m in members.values())
            and all(app.reads == app.member.assignment for app in alive if isinstance(app.member, ConsumerMember))
            and all(app.reads == app.member.owned for app in alive)
            and sum(len(app.reads) for app in alive) == (sum(self.topics.values()) if alive else 0)
        )


CODES = [
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_ASSIGNOR,
    ErrorCode.FENCED_INSTANCE_ID,
]
APP = st.integers(0, 5)
ACTS = st.one_of(
    st.tuples(st.just("start"), st.integers(0, 3)),
    st.tuples(
        st.sampled_from(
            ["leave", "crash", "restart", "stop polling", "poll", "start beside", "lose session", "pattern", "stale"]
        ),
        APP,
    ),
    st.tuples(st.just("refuse"), st.sampled_from(CODES)),
    st.tuples(st.sampled_from(["down", "up", "grow", "make anew"]), st.just(0)),
    st.tuples(st.just("wait"), st.sampled_from([0.2, 1.0, 3.0, 12.0, 25.0])),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    assignor=st.sampled_from([None, "uniform", "range"]),
    acts=st.lists(ACTS, max_size=25),
    seed=st.integers(0, 1 << 16),
)
@example(assignor=None, acts=[("wait", 3.0), ("start beside", 4), ("wait", 12.0)], seed=1)
@example(assignor=None, acts=[("restart", 0), ("start beside", 1), ("wait", 25.0)], seed=0)
@example(
    assignor=None,
    acts=[*[("start", 0)] * 5, ("wait", 0.2), ("refuse", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)],
    seed=1,
)
def test_no_partition_is_read_twice_and_the_group_settles(
    assignor: str | None, acts: list[tuple[str, Any]], seed: int
) -> None:
    world = ConsumerWorld(assignor, {"t": 5, "u": 3}, seed)
    world.start()
    for act, which in acts:
        app = world.apps[which % len(world.apps)] if isinstance(which, int) else world.apps[0]
        member = app.member
        if act == "lose session":
            world.coordinator.end_session("g", member.member_id)
        elif act == "make anew":
            world.versions["t"] += 1
        elif act == "pattern" and not member.is_out:
            member.subscribe_pattern(re.compile("t|u"), world.now)
        elif act == "stale":
            member.commit_refused(ErrorCode.STALE_MEMBER_EPOCH, member.identity, world.now)
        else:
            perform(world, act, which)
        world.advance(STEP)
    world.settle()
