"""A member of a consumer group, as a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

#: A partition: the id of its topic (16 bytes) and its index.
TopicPartition: TypeAlias = tuple[bytes, int]
#: Partitions, each with the assignment epoch in which the member got it.
Assigned: TypeAlias = Mapping[TopicPartition, int]

#: Member epochs with a special meaning in a heartbeat.
JOINING: Final = 0
LEAVING: Final = -1
LEAVING_FOR_A_WHILE: Final = -2  # a static member, which will come back under another member id


class MemberState(IntEnum):
    """A member's progress towards its target assignment. The numbers are those in Kafka's records."""

    STABLE = 0  # The member has its target assignment.
    UNREVOKED_PARTITIONS = 1  # The member has to give up partitions first, and to confirm that.
    UNRELEASED_PARTITIONS = 2  # The member waits for partitions that other members have not given up.


class ClassicProtocol(NamedTuple):
    """The JoinGroup request of a classic member: session timeout, and (name, metadata) of its protocols."""

    session_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member of a consumer group.

    epoch: its member epoch.
    previous_epoch: the epoch before, which it sends again if an answer was lost.
    topics: the names of the topics to which it subscribes.
    regex: a regular expression for further topics; None or empty for none.
    assignor: the assignor that it asks for.
    rebalance_ms: how long it may take to give up partitions.
    assigned: the partitions that it may use.
    revoking: the partitions that it has been told to give up.
    classic: set for a member that uses the classic protocol; None for the newer protocol.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str | None = None
    assignor: str | None = None
    rebalance_ms: int = -1
    epoch: int = JOINING
    previous_epoch: int = JOINING
    state: MemberState = MemberState.STABLE
    assigned: Assigned = field(default_factory=dict)
    revoking: Assigned = field(default_factory=dict)
    classic: ClassicProtocol | None = None

    @property
    def has_left_for_a_while(self) -> bool:
        """Whether the member is a static member that announced its return."""
        return self.epoch == LEAVING_FOR_A_WHILE


def partitions_by_topic(partitions: Iterable[TopicPartition]) -> dict[bytes, list[int]]:
    """Return the indexes of partitions by topic id, both in order."""
    found: dict[bytes, list[int]] = {}
    for topic, index in partitions:
        if (indexes := found.get(topic)) is None:
            found[topic] = [index]
        else:
            indexes.append(index)
    return {topic: sorted(found[topic]) for topic in sorted(found)}
