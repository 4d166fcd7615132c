"""Decide who may commit offsets of a group, who may delete them, and which have expired.

Rules (Kafka's group coordinator; KIP-211 for expiry):
- A member may commit with the current generation in every state but CompletingRebalance. A client without a group
  sends generation -1 and may commit while the group is Empty.
- An offset of an Empty group expires once both the group has been Empty and the offset is older than the retention
  time. In other states only offsets of topics that no member subscribes to expire, and only in groups of consumers.
- An expiry time that the client set with the offset takes precedence over both.
- In a transaction, a member has to be of the current generation, in whatever state its group is; a client that names no
  member may commit at any time (KIP-447). An offset that an open transaction may change does not expire.
Must not know: the clock, how offsets are stored.
"""

from __future__ import annotations

from collections.abc import Iterator

from pylogd.errors import ErrorCode
from pylogd.groups.group import ClassicGroup
from pylogd.groups.records import NEVER, PartitionId
from pylogd.groups.states import GroupState
from pylogd.groups.transactions import pending
from pylogd.groups.values import NO_GENERATION


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


def may_delete(group: ClassicGroup, topic: str) -> ErrorCode:
    """Return NONE if the group's offsets of a topic may be deleted, else the error code to answer with."""
    if group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    subscribed = group.topics
    if subscribed is None:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if topic in subscribed else ErrorCode.NONE


def expired(group: ClassicGroup, now_ms: int, retention_ms: int) -> Iterator[PartitionId]:
    """Yield the (topic, partition) of each offset that has expired."""
    empty = group.state is GroupState.EMPTY
    since_ms = group.since_ms if empty and group.protocol_type else 0
    subscribed = group.topics if group.state is GroupState.STABLE else None
    unstable = frozenset(pending(group.transactions))
    for key, committed in group.offsets.items():
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
