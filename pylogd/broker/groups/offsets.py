"""Decide who may commit or delete offsets of a group, which offsets have expired, and which belong to deleted topics.

Rules (Kafka's group coordinator; KIP-211 for expiry):
- An offset is bound to the id of its topic. Once the topic is deleted the offset no longer counts, even if another
  topic gets the name: readers get only offsets of topics that exist, whether or not the others were removed yet.
- A member may commit with the current generation in every state but CompletingRebalance. A client without a group
  sends generation -1 and may commit while the group is Empty.
- An offset of an Empty group expires once both the group has been Empty and the offset is older than the retention
  time. In other states only offsets of topics that no member subscribes to expire, and only in groups of consumers.
- An expiry time that the client set with the offset takes precedence over both.
- In a transaction, a member must belong to the current generation, whatever the group's state; a client that names no
  member may commit at any time (KIP-447). An offset that an open transaction may change does not expire.
Must not know: the clock, how offsets are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Final

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.consumer.group import ConsumerGroup
from pylogd.broker.groups.consumer.members import TopicPartition
from pylogd.broker.groups.group import ClassicGroup
from pylogd.broker.groups.records import NEVER, NO_TOPIC_ID, Committed, PartitionId
from pylogd.broker.groups.states import GroupState
from pylogd.broker.groups.values import NO_GENERATION


def may_commit(group: ClassicGroup, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
    """Return NONE if this client may commit offsets, else the error code to answer with."""
    if generation <= NO_GENERATION and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    found = group.check(member_id, instance_id)
    if isinstance(found, ErrorCode):
        return found
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.COMPLETING else ErrorCode.NONE


def may_commit_in_transaction(
    group: ClassicGroup, member_id: str, instance_id: str | None, generation: int
) -> ErrorCode:
    """Return NONE if this client may commit offsets in a transaction, else the error code to answer with."""
    if generation <= NO_GENERATION and (group.state is GroupState.EMPTY or (not member_id and instance_id is None)):
        return ErrorCode.NONE
    found = group.check(member_id, instance_id)
    if isinstance(found, ErrorCode):
        return found
    return ErrorCode.ILLEGAL_GENERATION if generation != group.generation else ErrorCode.NONE


def may_commit_as_consumer(
    group: ConsumerGroup, member_id: str, epoch: int, partitions: Iterable[TopicPartition], *, knows_epochs: bool = True
) -> ErrorCode:
    """Return NONE if a member of a group of the newer protocol may commit offsets of partitions.

    An epoch before the member's is valid for partitions that the member has had since then, as it may not know its new
    epoch yet (KIP-1251). A member of the classic protocol sends its generation.
    knows_epochs: whether the request can have an epoch.
    """
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not knows_epochs and member.classic is None:
        return ErrorCode.UNSUPPORTED_VERSION
    if epoch == member.epoch:
        return ErrorCode.NONE
    if member.classic is not None:
        return ErrorCode.ILLEGAL_GENERATION
    has = {**member.revoking, **member.assigned}
    in_time = NO_GENERATION < epoch < member.epoch and all(has.get(one, epoch + 1) <= epoch for one in partitions)
    return ErrorCode.NONE if in_time else ErrorCode.STALE_MEMBER_EPOCH


def may_fetch_as_consumer(group: ConsumerGroup, member_id: str | None, epoch: int) -> ErrorCode:
    """Return NONE if a client may read the offsets of a group of the newer protocol; it may if it names no member."""
    if member_id is None and epoch <= NO_GENERATION:
        return ErrorCode.NONE
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if epoch == member.epoch:
        return ErrorCode.NONE
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION


def may_delete(group: ClassicGroup, consumers: ConsumerGroup | None, topic: str) -> ErrorCode:
    """Return NONE if the group's offsets of a topic may be deleted, else the error code to answer with.

    consumers: the group's members, if it is a group of the newer protocol.
    """
    if consumers is not None:
        used = any(topic in consumers.subscribed(member) for member in consumers.members.values())
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if used else ErrorCode.NONE
    if group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    subscribed = group.topics
    if subscribed is None:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if topic in subscribed else ErrorCode.NONE


def expired(
    group: ClassicGroup, consumers: ConsumerGroup | None, now_ms: int, retention_ms: int
) -> Iterator[PartitionId]:
    """Yield the (topic, partition) of each offset that has expired.

    consumers: the group's members, if it is a group of the newer protocol.
    """
    empty = group.state is GroupState.EMPTY and not (consumers is not None and consumers.members)
    since_ms = group.since_ms if empty and group.protocol_type else 0
    subscribed = _subscribed(group, consumers)
    unstable = frozenset(group.offsets.pending())
    for key, committed in group.offsets.committed.items():
        if key in unstable:
            continue
        if committed.expires_ms != NEVER:
            if now_ms >= committed.expires_ms:
                yield key
            continue
        if not empty and (subscribed is None or key[0] in subscribed):
            continue
        if now_ms - max(since_ms, committed.committed_ms) >= retention_ms:
            yield key


#: Stands for the id of a topic that was deleted before its id became known. No topic has it.
DELETED_TOPIC: Final = b"\xff" * 16
#: Returns whether the topic with a name and an id was deleted.
WasDeleted = Callable[[str, bytes], bool]


class CurrentOffsets(Mapping[PartitionId, Committed]):
    """The offsets of topics that exist, as a view of all offsets in memory. It follows changes of both."""

    __slots__ = ("_offsets", "_was_deleted")

    def __init__(self, offsets: Mapping[PartitionId, Committed], was_deleted: WasDeleted) -> None:
        self._offsets = offsets
        self._was_deleted = was_deleted

    def __getitem__(self, partition: PartitionId) -> Committed:
        found = self._offsets[partition]
        if _is_outdated(partition, found, self._was_deleted):
            raise KeyError(partition)
        return found

    def __iter__(self) -> Iterator[PartitionId]:
        for partition, found in self._offsets.items():
            if not _is_outdated(partition, found, self._was_deleted):
                yield partition

    def __len__(self) -> int:
        return sum(1 for _ in self)


def unstable(group: ClassicGroup, was_deleted: WasDeleted) -> frozenset[PartitionId]:
    """Return the partitions whose offset an open transaction may still change."""
    return frozenset(
        partition
        for transaction in group.offsets.transactions.values()
        for partition, (_, found) in transaction.items()
        if found is None or not _is_outdated(partition, found, was_deleted)
    )


def any_outdated(offsets: Sequence[tuple[PartitionId, Committed]], was_deleted: WasDeleted) -> bool:
    """Return whether any of the offsets belongs to a deleted topic."""
    return any(_is_outdated(partition, committed, was_deleted) for partition, committed in offsets)


def outdated(group: ClassicGroup, was_deleted: WasDeleted) -> Iterator[PartitionId]:
    """Yield the partitions with an offset of a deleted topic, committed or in an open transaction.

    A partition that also has an offset of a later topic is left out, since a deletion would remove both.
    """
    found: dict[PartitionId, bool] = {}
    entries = [*group.offsets.committed.items()]
    for transaction in group.offsets.transactions.values():
        entries += [(partition, staged) for partition, (_, staged) in transaction.items() if staged is not None]
    for partition, committed in entries:
        found[partition] = _is_outdated(partition, committed, was_deleted) and found.get(partition, True)
    return (partition for partition, is_outdated in found.items() if is_outdated)


def bind(group: ClassicGroup, topic_id: Callable[[str], bytes]) -> bool:
    """Bind offsets that earlier releases stored without topic ids to these ids. Return whether any was committed.

    topic_id: returns the id of the topic that has a name, or `DELETED_TOPIC`, or NO_TOPIC_ID if it is not known.
    """
    committed = group.offsets.committed
    unbound = [partition for partition, found in committed.items() if found.topic_id == NO_TOPIC_ID]
    for partition in unbound:
        committed[partition] = committed[partition]._replace(topic_id=topic_id(partition[0]))
    for transaction in group.offsets.transactions.values():
        for partition, (record, staged) in transaction.items():
            if staged is not None and staged.topic_id == NO_TOPIC_ID:
                transaction[partition] = record, staged._replace(topic_id=topic_id(partition[0]))
    return bool(unbound)


def _is_outdated(partition: PartitionId, committed: Committed, was_deleted: WasDeleted) -> bool:
    topic_id = committed.topic_id
    return topic_id != NO_TOPIC_ID and was_deleted(partition[0], topic_id)


def _subscribed(group: ClassicGroup, consumers: ConsumerGroup | None) -> Set[str] | None:
    """Return the topics to which members subscribe; None if they are not known."""
    if consumers is not None:
        return {name for member in consumers.members.values() for name in consumers.subscribed(member)}
    return group.topics if group.state is GroupState.STABLE else None
