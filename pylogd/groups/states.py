"""The states of a classic consumer group, and the transitions that are allowed between them.

- Empty: the group has no members; it may have offsets.
- PreparingRebalance: members are told to join again; the joins that have arrived wait for the others.
- CompletingRebalance: the members that joined form the new generation and wait for the leader's assignment.
- Stable: every member has its assignment.
- Dead: removed from memory, because the group was deleted or expired, or another broker coordinates it now.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class GroupState(Enum):
    """The state of a group. The values are the names that clients are sent."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: Mapping[GroupState, frozenset[GroupState]] = MappingProxyType(
    {
        GroupState.EMPTY: frozenset({GroupState.PREPARING, GroupState.DEAD}),
        # To Empty if no member joins again in time.
        GroupState.PREPARING: frozenset({GroupState.COMPLETING, GroupState.EMPTY, GroupState.DEAD}),
        # Back to PreparingRebalance if a member joins, leaves or expires before the leader has sent the assignment.
        GroupState.COMPLETING: frozenset({GroupState.STABLE, GroupState.PREPARING, GroupState.DEAD}),
        GroupState.STABLE: frozenset({GroupState.PREPARING, GroupState.DEAD}),
        GroupState.DEAD: frozenset(),
    }
)
