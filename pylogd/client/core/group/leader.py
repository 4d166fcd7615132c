"""The leader of a group shares its partitions out: whose they are to be, and of which topics. Without I/O.

Rules: a member whose subscription can't be read gets nothing, which harms only itself. After a share-out the leader
goes on to watch the topics, for as long as it leads: partitions that come later are to be shared out too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pylogd.client.core.errors import InvalidReply
from pylogd.client.core.group.assignors import Assignor
from pylogd.client.core.group.consumer_protocol import Subscription, decode_subscription
from pylogd.client.core.model import TopicPartition


class Leadership:
    """True while this member leads its group."""

    def __init__(self) -> None:
        """Another member leads."""
        self.shares: dict[str, list[TopicPartition]] = {}
        self._members: dict[str, Subscription] = {}
        self._counts: dict[str, int] = {}  # partitions of the topics that were last shared out

    def __bool__(self) -> bool:
        return bool(self._members)

    def begin(self, members: Iterable[Any]) -> None:
        """Lead these members, as JoinGroup names them."""
        self._members = {member.member_id: _read_subscription(member) for member in members}

    def end(self) -> None:
        """Lead no more; what was shared out may still be on its way."""
        self._members = {}

    @property
    def topics(self) -> tuple[str, ...]:
        """What the members read, of which the partitions have to be known."""
        return tuple(sorted({topic for member in self._members.values() for topic in member.topics}))

    def misses(self, counts: Mapping[str, int]) -> bool:
        """Whether one of the topics is not among those whose partitions were counted."""
        return any(topic not in counts for topic in self.topics)

    def differs(self, counts: Mapping[str, int]) -> bool:
        """Whether the last share-out went by other partitions of the topics than these."""
        return self._of_topics(counts) != self._counts

    def share_out(self, assignor: Assignor, counts: Mapping[str, int]) -> None:
        """Make `shares`, by member. `counts`: the partitions of each topic."""
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
