"""Move a group with its members from the classic protocol to the newer one, and back.

A group moves when the first member of the newer protocol joins it, and moves back when the last such member leaves. Its
offsets are not touched. In both cases one batch deletes the records of one form and writes those of the other, so a
coordinator that loads them finds the group in one form, never in both or in none.

Rules: an upgraded group begins in the state of the classic one. The last assignment becomes the target and the
partitions of each member, and the generation becomes the epoch. A cooperative member that had more partitions when it
joined may still use them, as it may not know of the assignment, so it has to give them up first. (Kafka treats such
partitions as free.) A group that moves back has to rebalance, because its last member's partitions are free. Its record
names no leader, so that a coordinator that loads it before that rebalance begins one (`needs_rebalance`).
Source: KIP-848; Kafka's ConsumerGroup.fromClassicGroup and ClassicGroup.fromConsumerGroup.
Must not know: requests, logs, the reactor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import Final, NamedTuple

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.consumer.classic import all_classic, encode_assignment, ids_of
from pylogd.broker.groups.consumer.embedded import CONSUMER, Subscription, read_assignment, read_subscription
from pylogd.broker.groups.consumer.group import ConsumerGroup
from pylogd.broker.groups.consumer.heartbeats import FindTopic, HeartbeatRefused, current, delete, removal
from pylogd.broker.groups.consumer.members import ClassicProtocol, ConsumerMember, MemberState, TopicPartition
from pylogd.broker.groups.consumer.records import (
    AssignmentEpoch,
    GroupEpoch,
    MemberMetadata,
    Record,
    TargetAssignment,
    encode,
)
from pylogd.broker.groups.group import ClassicGroup, Member
from pylogd.broker.groups.records import StoredGroup, StoredMember, group_key, group_value
from pylogd.broker.groups.states import GroupState
from pylogd.broker.metadata.image import Topic
from pylogd.broker.replica.internal_records import InvalidRecord
from pylogd.broker.replica.internal_topic import KeyValue
from pylogd.config import Settings


class MigrationPolicy(Enum):
    """The allowed conversions; the values are those of `group.consumer.migration.policy`."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        """Whether classic groups become groups of the newer protocol."""
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        """Whether groups of the newer protocol become classic ones."""
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


_POLICY: Final = "group.consumer.migration.policy"
#: Assignors that need no user data in assignments. librdkafka returns in them the user data of the subscriptions.
_STATELESS: Final = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})


def policy(settings: Settings) -> MigrationPolicy:
    """Return the policy in the present settings."""
    return MigrationPolicy(settings.text(_POLICY))


# -- from the classic protocol


def upgraded(group: ClassicGroup, settings: Settings, find: FindTopic) -> Sequence[Record]:
    """Return the records of a classic group with members, converted to the newer protocol.

    Raises HeartbeatRefused with GROUP_ID_NOT_FOUND if the group can't move.
    """
    if not policy(settings).upgrades:
        raise _stays(group, f"{_POLICY} does not allow it")
    if group.protocol_type != CONSUMER:
        raise _stays(group, "its members are no consumers")
    if len(group.members) > settings.integer("group.consumer.max.size"):
        raise _stays(group, "it has more members than group.consumer.max.size allows")
    members = _upgraded_members(group, find)
    group_id, epoch = group.group_id, group.generation
    return [
        *(MemberMetadata(group_id, member) for member in members),
        GroupEpoch(group_id, epoch),
        *(TargetAssignment(group_id, member.member_id, frozenset(member.assigned)) for member in members),
        AssignmentEpoch(group_id, epoch),
        *(current(group_id, member) for member in members),
    ]


def _stays(group: ClassicGroup, why: str) -> HeartbeatRefused:
    text = f"Group {group.group_id!r} has members of the classic protocol, and can't move to the newer one: {why}."
    return HeartbeatRefused(ErrorCode.GROUP_ID_NOT_FOUND, text)


def _upgraded_members(group: ClassicGroup, find: FindTopic) -> list[ConsumerMember]:
    """Return the members with their last assignments, and with the partitions they still have to give up.

    If a leader assigned a partition to two members, it goes to the first one. Raises HeartbeatRefused.
    """
    said = [(member, *_read(group, member, find)) for member in group.members.values()]
    taken: set[TopicPartition] = set()
    given = []
    for _, _, assigned, _ in said:
        given.append(assigned - taken)
        taken |= assigned
    members = []
    for (member, subscription, _, owned), assigned in zip(said, given, strict=True):
        revoking = owned - taken
        taken |= revoking
        members.append(_upgraded_member(member, subscription, group.generation, assigned, revoking))
    return members


def _upgraded_member(
    member: Member,
    subscription: Subscription,
    epoch: int,
    assigned: frozenset[TopicPartition],
    revoking: frozenset[TopicPartition],
) -> ConsumerMember:
    return ConsumerMember(
        member.member_id,
        member.instance_id,
        subscription.rack,
        member.client_id,
        member.client_host,
        subscription.topics,
        rebalance_ms=round(member.rebalance * 1000),
        epoch=epoch,
        previous_epoch=epoch,
        state=MemberState.UNREVOKED_PARTITIONS if revoking else MemberState.STABLE,
        assigned=dict.fromkeys(assigned, epoch),
        revoking=dict.fromkeys(revoking, epoch),
        classic=ClassicProtocol(round(member.session * 1000), member.protocols),
    )


def _read(
    group: ClassicGroup, member: Member, find: FindTopic
) -> tuple[Subscription, frozenset[TopicPartition], frozenset[TopicPartition]]:
    """Return a member's subscription, its assignment, and its partitions when it joined. Raises HeartbeatRefused."""
    metadata = member.metadata(group.protocol) or member.protocols[0][1]
    try:
        subscription = read_subscription(metadata)
        assigned, user_data = read_assignment(member.assignment)
    except InvalidRecord as error:
        raise _stays(group, f"what member {member.member_id!r} has sent can't be read ({error})") from error
    if user_data and group.protocol not in _STATELESS:
        raise _stays(group, "its assignor keeps data of its own in assignments, which would be lost")
    return subscription, ids_of(assigned, find), ids_of(subscription.owned, find)


# -- back to the classic protocol


class Downgrade(NamedTuple):
    """A group that moves back: its members, protocol and generation, and the records to write."""

    members: Sequence[Member]
    protocol: str | None
    generation: int
    records: Sequence[KeyValue]


def downgraded(
    group: ConsumerGroup,
    without: Collection[str],
    settings: Settings,
    topic_of: Callable[[bytes], Topic | None],
    now_ms: int,
    *,
    replaced: bool = False,
) -> Downgrade | None:
    """Return a group without some members as a classic group; None if it stays, or has no members left.

    replaced: whether a classic member replaces the member that leaves, so that the group is not left without members.
    """
    left = [member for member_id, member in group.members.items() if member_id not in without]
    if not all_classic(group, without) or not (left or replaced) or not policy(settings).downgrades:
        return None
    if len(left) + replaced > settings.integer("group.max.size"):
        return None
    gone: list[Record] = [record for member_id in group.members for record in removal(group.group_id, member_id)]
    gone += delete(group)
    members = [_downgraded_member(group, member, topic_of) for member in left]
    protocol = _common_protocol(members)
    entries = tuple(_stored(member, protocol) for member in members)
    stored = StoredGroup(CONSUMER, group.epoch, protocol, None, now_ms, entries)
    records = [*map(encode, gone), (group_key(group.group_id), group_value(stored))]
    return Downgrade(members, protocol, group.epoch, records)


def _common_protocol(members: Sequence[Member]) -> str | None:
    """Return the protocol that the first member prefers among those that all members support; None without one."""
    supported = [{name for name, _ in member.protocols} for member in members]
    names = [name for name, _ in members[0].protocols] if members else []
    return next((name for name in names if all(name in theirs for theirs in supported)), None)


def _downgraded_member(
    group: ConsumerGroup, member: ConsumerMember, topic_of: Callable[[bytes], Topic | None]
) -> Member:
    assert member.classic is not None
    protocols = member.classic.protocols
    made = Member(
        member.member_id, member.instance_id, member.client_id, member.client_host, member.classic.session_ms / 1000,
        member.rebalance_ms / 1000, protocols,
    )  # fmt: skip
    made.assignment = encode_assignment(group.target_of(member.member_id), protocols[0][1], topic_of)
    made.is_new = False
    return made


def _stored(member: Member, protocol: str | None) -> StoredMember:
    return StoredMember(
        member.member_id, member.instance_id, member.client_id, member.client_host, round(member.rebalance * 1000),
        round(member.session * 1000), member.metadata(protocol), member.assignment,
    )  # fmt: skip


def needs_rebalance(group: ClassicGroup) -> bool:
    """Return whether a loaded group was converted back, and has not assigned its partitions since."""
    return group.state is GroupState.STABLE and group.leader not in group.members
