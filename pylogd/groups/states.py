"""The states of a consumer group, and every way between them.

Empty: no members; offsets may be there. PreparingRebalance: the members are told to join again, and those that did
wait. CompletingRebalance: who joined is the new generation; it waits for what the leader assigns. Stable: every member
has its share. Dead: forgotten here, because it was deleted, expired, or this broker coordinates it no longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class GroupState(Enum):
    """What a group is doing, by the names that clients are told."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: Mapping[GroupState, frozenset[GroupState]] = MappingProxyType(
    {
        GroupState.EMPTY: frozenset({GroupState.PREPARING, GroupState.DEAD}),
        # To Empty when nobody came back.
        GroupState.PREPARING: frozenset({GroupState.COMPLETING, GroupState.EMPTY, GroupState.DEAD}),
        # Back to PreparingRebalance when a member joins, leaves or dies before the leader has assigned.
        GroupState.COMPLETING: frozenset({GroupState.STABLE, GroupState.PREPARING, GroupState.DEAD}),
        GroupState.STABLE: frozenset({GroupState.PREPARING, GroupState.DEAD}),
        GroupState.DEAD: frozenset(),
    }
)
