"""A consumer group of the newer protocol in memory: the records of the offsets topic, applied in order.

Strategy: `with_records` returns the group after some records and does not change the old one, so a change that could
not be written is simply dropped. The same method loads a group. Derived data is kept beside the members and in step
with them (`member_table`): the owners of partitions, and the static members by their instance id.

Must not know: clocks, the reactor, logs, requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import cast

from pylogd.broker.groups.consumer.members import ConsumerMember, MemberState, TopicPartition
from pylogd.broker.groups.consumer.records import (
    AssignmentEpoch,
    CurrentAssignment,
    GroupEpoch,
    MemberMetadata,
    Record,
    RecordType,
    RegularExpression,
    Removed,
    TargetAssignment,
)
from pylogd.broker.groups.member_table import MemberTable

_NOTHING: frozenset[TopicPartition] = frozenset()


class ConsumerGroupState(Enum):
    """The state of a group as clients see it; the values are Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class _Members(MemberTable[ConsumerMember]):
    """The members, with the index `owners`: the member id of each partition that a member has or gives up."""

    __slots__ = ("_owners", "owners")

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[TopicPartition, str] = {}
        self.owners: Mapping[TopicPartition, str] = self._owners

    def copy_from(self, other: MemberTable[ConsumerMember]) -> None:
        super().copy_from(other)
        self._owners.update(cast(_Members, other)._owners)

    def _enter(self, member: ConsumerMember) -> None:
        super()._enter(member)
        for partitions in (member.assigned, member.revoking):
            if partitions:
                self._owners.update(dict.fromkeys(partitions, member.member_id))

    def _leave(self, member: ConsumerMember) -> None:
        super()._leave(member)
        for partition in (*member.assigned, *member.revoking):
            if self._owners.get(partition) == member.member_id:
                del self._owners[partition]


class ConsumerGroup:
    """A consumer group. It never changes; a change makes a copy (`with_records`).

    epoch: the group epoch.
    metadata_hash: changes with the topics to which the group subscribes.
    assignment_epoch: the group epoch for which `target` was made.
    assigned_ms: when `target` was made, in ms since 1970; 0 if that is not known.
    members: the members by member id.
    instances: the member id by instance id of static members.
    target: the target assignment by member id.
    owners: the member id by partition, for all partitions that members have or give up.
    matched: the topics that each regular expression matched.
    """

    __slots__ = (
        "_table", "assigned_ms", "assignment_epoch", "epoch", "group_id", "instances", "matched", "members",
        "metadata_hash", "owners", "target",
    )  # fmt: skip

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assigned_ms = 0
        self._table = _Members()
        self.members = self._table.members
        self.instances = self._table.instances
        self.owners = self._table.owners
        self.target: dict[str, frozenset[TopicPartition]] = {}
        self.matched: dict[str, RegularExpression] = {}

    @property
    def state(self) -> ConsumerGroupState:
        """The state of the group."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch != self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(self.is_settled(member) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def is_settled(self, member: ConsumerMember) -> bool:
        """Return whether a member has its target assignment. A member that has left for a while does not have it."""
        return member.state is MemberState.STABLE and member.epoch == self.assignment_epoch

    def target_of(self, member_id: str) -> frozenset[TopicPartition]:
        """Return a member's target assignment."""
        return self.target.get(member_id, _NOTHING)

    def subscribed(self, member: ConsumerMember) -> frozenset[str]:
        """Return the names of the topics that a member subscribes to, by name or by a regular expression."""
        found = self.matched.get(member.regex) if member.regex else None
        return member.topics if found is None else member.topics | found.topics

    def with_records(self, records: Iterable[Record]) -> ConsumerGroup:
        """Return the group after these records."""
        group = ConsumerGroup(self.group_id)
        group.epoch, group.metadata_hash = self.epoch, self.metadata_hash
        group.assignment_epoch, group.assigned_ms = self.assignment_epoch, self.assigned_ms
        group._table.copy_from(self._table)
        group.target, group.matched = self.target.copy(), self.matched.copy()
        group.apply(records)
        return group

    def apply(self, records: Iterable[Record]) -> None:
        """Change this group in place. This is only allowed for a copy that is not shared yet."""
        for record in records:
            self._apply(record)

    def _apply(self, record: Record) -> None:
        match record:
            case GroupEpoch():
                self.epoch, self.metadata_hash = record.epoch, record.metadata_hash
            case AssignmentEpoch():
                self.assignment_epoch, self.assigned_ms = record.epoch, record.made_ms
            case MemberMetadata():
                self._put_metadata(record.member)
            case TargetAssignment():
                self.target[record.member_id] = record.partitions
            case CurrentAssignment():
                self._put_current(record)
            case RegularExpression():
                self.matched[record.expression] = record
            case Removed():
                self._remove(record)

    def _put_metadata(self, told: ConsumerMember) -> None:
        known = self.members.get(told.member_id)
        if known is not None:
            told = replace(
                told,
                epoch=known.epoch,
                previous_epoch=known.previous_epoch,
                state=known.state,
                assigned=known.assigned,
                revoking=known.revoking,
            )
        self._table.put(told)

    def _put_current(self, record: CurrentAssignment) -> None:
        member = self.members.get(record.member_id, ConsumerMember(record.member_id))
        self._table.put(
            replace(
                member,
                epoch=record.epoch,
                previous_epoch=record.previous_epoch,
                state=record.state,
                assigned=record.assigned,
                revoking=record.revoking,
            )
        )

    def _remove(self, record: Removed) -> None:
        match record.kind:
            case RecordType.GROUP:
                self.epoch = self.metadata_hash = 0
            case RecordType.TARGET:
                self.assignment_epoch = self.assigned_ms = 0
            case RecordType.MEMBER:
                self._table.remove(record.name)
            case RecordType.TARGET_OF_MEMBER:
                self.target.pop(record.name, None)
            case RecordType.CURRENT_OF_MEMBER:
                self._reset(record.name)
            case RecordType.REGULAR_EXPRESSION:
                self.matched.pop(record.name, None)
            case RecordType.PARTITIONS:
                pass

    def _reset(self, member_id: str) -> None:
        """Take all partitions from a member; its subscription stays."""
        member = self.members.get(member_id)
        if member is not None:
            self._table.put(
                replace(member, epoch=0, previous_epoch=0, state=MemberState.STABLE, assigned={}, revoking={})
            )


def replay(records: Iterable[Record]) -> dict[str, ConsumerGroup]:
    """Return the groups that records describe, by group id, without groups that are empty afterwards."""
    by_group: dict[str, list[Record]] = {}
    for record in records:
        by_group.setdefault(record.group_id, []).append(record)
    groups = {group_id: ConsumerGroup(group_id).with_records(found) for group_id, found in by_group.items()}
    return {group_id: group for group_id, group in groups.items() if group.epoch or group.members}
