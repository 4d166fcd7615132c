"""A coordinator of groups of the newer protocol (KIP-848) for the client's tests, with time passed in.

What a heartbeat changes is decided by the broker's own rules (`pylogd.broker.groups.consumer.heartbeats`); sessions,
and the time that giving up partitions may take, are kept here. Topics are in `topics`, by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.consumer.group import ConsumerGroup
from pylogd.broker.groups.consumer.heartbeats import Heartbeat, HeartbeatRefused, beat, check, leave, remove
from pylogd.broker.groups.consumer.members import JOINING, LEAVING, MemberState, TopicPartition, partitions_by_topic
from pylogd.broker.groups.offsets import may_commit_as_consumer, may_fetch_as_consumer
from pylogd.broker.metadata.image import PartitionState, Topic
from pylogd.wire.messages.consumer_group_heartbeat import (
    AssignedTopicPartitions,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
)


def fake_topic(name: str, partitions: int, topic_id: bytes) -> Topic:
    """A topic of so many partitions."""
    return Topic(name, topic_id, (PartitionState(0, (1,), (1,), 1),) * partitions, {})


class FakeConsumerGroups:
    """Groups by id. Times in seconds; `interval` is what members are told."""

    def __init__(self, topics: dict[str, Topic], *, interval: float = 1.0, session: float = 10.0) -> None:
        self.topics = topics
        self.groups: dict[str, ConsumerGroup] = {}
        self.interval = interval
        self.session = session
        self.most_members = 1000
        self.seen: dict[tuple[str, str], float] = {}  # when a heartbeat came, by group and member
        self._revoking_since: dict[tuple[str, str], float] = {}

    def group(self, name: str) -> ConsumerGroup:
        return self.groups.setdefault(name, ConsumerGroup(name))

    def handle(self, request: ConsumerGroupHeartbeatRequest, now: float) -> ConsumerGroupHeartbeatResponse:
        """The answer to a heartbeat of version 1."""
        self.tick(now)
        owned = request.topic_partitions
        names = request.subscribed_topic_names
        heartbeat = Heartbeat(
            request.member_id, request.member_epoch, request.instance_id, request.rack_id,
            request.rebalance_timeout_ms, None if names is None else frozenset(names), request.subscribed_topic_regex,
            request.server_assignor,
            None if owned is None else frozenset((bytes(t.topic_id), index) for t in owned for index in t.partitions),
        )  # fmt: skip
        try:
            return self._beat(self.group(request.group_id), heartbeat, now)
        except HeartbeatRefused as refused:
            return ConsumerGroupHeartbeatResponse(error_code=refused.code, error_message=str(refused))

    def _beat(self, group: ConsumerGroup, heartbeat: Heartbeat, now: float) -> ConsumerGroupHeartbeatResponse:
        check(heartbeat, group.group_id, may_name_itself=False)
        if heartbeat.epoch <= LEAVING:
            self.groups[group.group_id] = leave(group, heartbeat).group
            return ConsumerGroupHeartbeatResponse(member_id=heartbeat.member_id, member_epoch=heartbeat.epoch)
        known = heartbeat.member_id in group.members or heartbeat.instance_id in group.instances
        if heartbeat.epoch == JOINING and not known and len(group.members) >= self.most_members:
            raise HeartbeatRefused(ErrorCode.GROUP_MAX_SIZE_REACHED, "full")
        change = beat(group, heartbeat, self.topics.get, self._match, 0, topics_changed=True)
        self.groups[group.group_id] = change.group
        self.seen[group.group_id, heartbeat.member_id] = now
        assert change.member is not None
        assignment = None
        if change.assignment is not None:
            by_topic = partitions_by_topic(change.assignment).items()
            assignment = HeartbeatAssignment([AssignedTopicPartitions(topic, found) for topic, found in by_topic])
        return ConsumerGroupHeartbeatResponse(
            0, 0, None, heartbeat.member_id, change.member.epoch, round(self.interval * 1000), assignment
        )

    def _match(self, expression: str) -> frozenset[str]:
        try:
            return frozenset(name for name in self.topics if re.fullmatch(expression, name))
        except re.error as error:
            raise HeartbeatRefused(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from None

    def tick(self, now: float) -> None:
        """Let time pass: sessions end, and members that do not give up partitions in time are removed."""
        for name, group in self.groups.items():
            self.groups[name] = self._without_late(group, now)

    def _without_late(self, group: ConsumerGroup, now: float) -> ConsumerGroup:
        late = []
        for member_id, member in group.members.items():
            key = group.group_id, member_id
            if member.state is not MemberState.UNREVOKED_PARTITIONS:
                self._revoking_since.pop(key, None)
            since = self._revoking_since.setdefault(key, now) if member.revoking else now
            if now >= self.seen.get(key, now) + self.session or now >= since + member.rebalance_ms / 1000:
                late.append(member_id)
        return remove(group, late).group if late else group

    def end_session(self, group: str, member_id: str) -> None:
        """Take a member for dead."""
        self.seen[group, member_id] = -1e9

    def check_commit(
        self, group_id: str, member_id: str, epoch: int, partitions: Iterable[TopicPartition]
    ) -> ErrorCode:
        """Whether these may be committed in the name of a member, or of nobody."""
        group = self.groups.get(group_id)
        if group is None or (not member_id and not group.members):
            return ErrorCode.NONE
        return may_commit_as_consumer(group, member_id, epoch, partitions)

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether offsets may be looked up in the name of a member, or of nobody."""
        group = self.groups.get(group_id)
        return ErrorCode.NONE if group is None else may_fetch_as_consumer(group, member_id, epoch)


def named(topics: dict[str, Topic], topic_id: bytes) -> str | None:
    """The name of a topic, None if there is none of this id."""
    return next((name for name, topic in topics.items() if topic.topic_id == topic_id), None)
