"""A member of a consumer group, as a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

#: The id of a topic (16 bytes) and the index of one of its partitions.
TopicPartition: TypeAlias = tuple[bytes, int]
#: Partitions, each with the assignment epoch at which the member got it.
Assigned: TypeAlias = Mapping[TopicPartition, int]

#: Member epochs with a meaning of their own in a heartbeat.
JOINING: Final = 0
LEAVING: Final = -1
LEAVING_FOR_A_WHILE: Final = -2  # a static member, which will come back under another member id


class MemberState(IntEnum):
    """A member's progress towards its target assignment; the numbers are those in Kafka's records."""

    STABLE = 0  #: It has what it is to have.
    UNREVOKED_PARTITIONS = 1  #: It has to give up partitions first, and to say so.
    UNRELEASED_PARTITIONS = 2  #: It waits for partitions which other members have not given up.


class ClassicProtocol(NamedTuple):
    """The JoinGroup request of a classic member: session timeout, and (name, metadata) of its protocols."""

    session_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member of a consumer group.

    epoch: its member epoch; previous_epoch: the one before, with which it comes back if an answer was lost.
    topics: the names that it subscribes to. regex: a regular expression for further topics; None or empty for none.
    assignor: the assignor that it asks for. rebalance_ms: how long it may take to give up partitions.
    assigned: the partitions that it may use. revoking: those that it has been told to give up.
    classic: set for a member that speaks the classic protocol, None for one of the newer protocol.
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
