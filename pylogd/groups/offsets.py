"""Who may commit offsets, and when they are old: pure decisions about one group.

Rules (Kafka's group coordinator; KIP-211 for the ages):
- A member commits in its own generation, whatever the group is doing but for the moment in which the leader assigns. A
  consumer without a group sends generation -1 and may do so as long as the group is Empty.
- Offsets of an Empty group expire when it has been so for the retention time, and none of them is younger. In a group
  that is not of consumers, or is not Empty, they stay, except those of topics that no member subscribes to any more. A
  time of expiry that a client has set goes before all that.
Must not know: the clock, how offsets are stored.
"""

from __future__ import annotations

from collections.abc import Iterator

from pylogd.errors import ErrorCode
from pylogd.groups.group import Group
from pylogd.groups.records import NEVER
from pylogd.groups.states import GroupState
from pylogd.groups.values import NO_GENERATION


def may_commit(group: Group, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
    """NONE, or why this client may not commit."""
    if generation <= NO_GENERATION and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    found = group.check(member_id, instance_id)
    if isinstance(found, ErrorCode):
        return found
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.COMPLETING else ErrorCode.NONE


def may_delete(group: Group, topic: str) -> ErrorCode:
    """NONE, or why the group's offsets of a topic may not be deleted."""
    if group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    subscribed = group.topics
    if subscribed is None:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if topic in subscribed else ErrorCode.NONE


def expired(group: Group, now_ms: int, retention_ms: int) -> Iterator[tuple[str, int]]:
    """The (topic, partition) of each offset that is too old."""
    empty = group.state is GroupState.EMPTY
    since_ms = group.since_ms if empty and group.protocol_type else 0
    subscribed = group.topics if group.state is GroupState.STABLE else None
    for key, committed in group.offsets.items():
        if committed.expires_ms != NEVER:
            if now_ms >= committed.expires_ms:
                yield key
            continue
        if not empty and (subscribed is None or key[0] in subscribed):
            continue
        if now_ms - max(since_ms, committed.committed_ms) >= retention_ms:
            yield key
