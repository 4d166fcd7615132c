"""The states of a classic consumer group, as a machine; `membership` does the work of each state."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from pylogd.base.machine import MachineTable


class GroupState(Enum):
    """The state of a group: what the group and its members wait for."""

    EMPTY = "The group has no members; it may have offsets."
    PREPARING = "Members are told to join again. Requests to join wait until all members have sent one."
    COMPLETING = "The members that joined form the new generation and wait for the leader's assignment."
    STABLE = "Every member has its assignment."
    DEAD = "The group was removed from memory."

    @property
    def kafka_name(self) -> str:
        """The state's name in answers to clients."""
        return _KAFKA_NAMES[self]


_KAFKA_NAMES: Mapping[GroupState, str] = MappingProxyType(
    {
        GroupState.EMPTY: "Empty",
        GroupState.PREPARING: "PreparingRebalance",
        GroupState.COMPLETING: "CompletingRebalance",
        GroupState.STABLE: "Stable",
        GroupState.DEAD: "Dead",
    }
)


class GroupEvent(Enum):
    """An event of a group."""

    REBALANCE = "A member joins, leaves, expires or changes its subscription."
    JOINED = "All members have joined, or the time to join is over."
    EMPTIED = "No member has joined in time."
    ASSIGNED = "The leader has sent the assignment, and it is stored."
    UPGRADED = "A member of the newer protocol has joined: the group is now a group of the newer protocol."
    DOWNGRADED = "The last member of the newer protocol has left: the group is a classic group again."
    REMOVED = "The group was deleted or expired, or another broker coordinates it now."


_S, _E = GroupState, GroupEvent

CLASSIC_GROUP = MachineTable(
    "Classic consumer group",
    "A group in which one member, the leader, assigns partitions to the members.",
    _S.EMPTY,
    {
        _S.EMPTY: {
            _E.REBALANCE: _S.PREPARING,
            _E.UPGRADED: _S.EMPTY,
            _E.DOWNGRADED: _S.STABLE,
            _E.REMOVED: _S.DEAD,
        },
        _S.PREPARING: {
            _E.JOINED: _S.COMPLETING,
            _E.EMPTIED: _S.EMPTY,
            _E.UPGRADED: _S.EMPTY,
            _E.REMOVED: _S.DEAD,
        },
        _S.COMPLETING: {
            _E.ASSIGNED: _S.STABLE,
            _E.REBALANCE: _S.PREPARING,
            _E.UPGRADED: _S.EMPTY,
            _E.REMOVED: _S.DEAD,
        },
        _S.STABLE: {_E.REBALANCE: _S.PREPARING, _E.UPGRADED: _S.EMPTY, _E.REMOVED: _S.DEAD},
        _S.DEAD: {},
    },
)
