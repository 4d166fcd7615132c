"""The role of this broker for a partition, as a machine."""

from __future__ import annotations

from enum import Enum

from pylogd.base.machine import MachineTable


class Role(Enum):
    """The role of this broker for a partition."""

    __hash__ = object.__hash__  # Enum's method is written in Python, and many partitions change their roles

    LEADING = "This broker takes the partition's appends and serves its reads."
    FOLLOWING = "This broker copies the leader's log, or waits for a leader."
    OFFLINE = "The log could not be opened, or its log directory has failed."
    DELETED = "The partition is no longer hosted here."


class RoleEvent(Enum):
    """An event that changes the role."""

    __hash__ = object.__hash__

    LEAD = "The metadata names this broker as the leader."
    FOLLOW = "The metadata names another leader, or none."
    FAIL = "The log directory has failed."
    REMOVE = "The topic was deleted, the replica was moved, or the log directory is opened again."


ROLES = MachineTable(
    "Partition: role",
    "The role of a broker for a partition. A partition whose log can't be opened begins offline.",
    Role.FOLLOWING,
    {
        Role.LEADING: {RoleEvent.FOLLOW: Role.FOLLOWING, RoleEvent.FAIL: Role.OFFLINE, RoleEvent.REMOVE: Role.DELETED},
        Role.FOLLOWING: {RoleEvent.LEAD: Role.LEADING, RoleEvent.FAIL: Role.OFFLINE, RoleEvent.REMOVE: Role.DELETED},
        Role.OFFLINE: {RoleEvent.REMOVE: Role.DELETED},
        Role.DELETED: {},
    },
)
