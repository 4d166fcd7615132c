"""The leader's part of a group member: assign partitions to all members. Without I/O.

Rules: a member whose subscription can't be decoded gets no partitions. After an assignment the leader watches the
topics, as long as it leads: partitions that are added later have to be assigned too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pylogd.client.core.errors import InvalidReply
from pylogd.client.core.group.assignors import Assignor
from pylogd.client.core.group.consumer_protocol import Subscription, decode_subscription
from pylogd.client.core.model import TopicPartition


class Leadership:
    """The members and topics of a group that this member leads. It is false if another member leads the group."""

    def __init__(self) -> None:
        """Another member leads."""
        self.shares: dict[str, list[TopicPartition]] = {}
        self._members: dict[str, Subscription] = {}
        self._counts: dict[str, int] = {}  # the number of partitions of each topic at the last assignment

    def __bool__(self) -> bool:
        return bool(self._members)

    def begin(self, members: Iterable[Any]) -> None:
        """Lead these members, from the answer to JoinGroup."""
        self._members = {member.member_id: _read_subscription(member) for member in members}

    def end(self) -> None:
        """End the leadership. `shares` stay, for SyncGroup."""
        self._members = {}

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the members subscribe to."""
        return tuple(sorted({topic for member in self._members.values() for topic in member.topics}))

    def misses(self, counts: Mapping[str, int]) -> bool:
        """Return whether the number of partitions of a topic is missing."""
        return any(topic not in counts for topic in self.topics)

    def differs(self, counts: Mapping[str, int]) -> bool:
        """Return whether the numbers of partitions have changed since the last assignment."""
        return self._of_topics(counts) != self._counts

    def share_out(self, assignor: Assignor, counts: Mapping[str, int]) -> None:
        """Make `shares`, the assignment of each member. `counts` has the number of partitions of each topic."""
        self._counts = self._of_topics(counts)
        self.shares = assignor.assign(self._members, self._counts)

    def _of_topics(self, counts: Mapping[str, int]) -> dict[str, int]:
        wanted = self.topics
        return {topic: count for topic, count in counts.items() if topic in wanted}


def _read_subscription(member: Any) -> Subscription:
    try:
        return decode_subscription(member.metadata, member.group_instance_id)
    except InvalidReply:
        return Subscription((), instance_id=member.group_instance_id)
