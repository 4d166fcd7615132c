"""The states of a member by the newer protocol, and the inputs that change them."""

from __future__ import annotations

from enum import Enum

from pylogd.base.machine import MachineTable


class ConsumerState(Enum):
    """The state of a member."""

    OUT = "Not in the group, and does not want to be."
    SURRENDERING = "Wants to join. The application first gives up its partitions, which are lost."
    JOINING = "Sends heartbeats with epoch 0 and all fields, until the coordinator accepts one."
    RECONCILING = "Is a member. The application has to give up partitions, or has to be told of new partitions."
    STABLE = "Is a member, and the application has all partitions that are assigned so far."
    LEAVING = "Sends its last heartbeat, because the consumer unsubscribed or was closed."
    WITHDRAWING = "Sends its last heartbeat, because the application does not poll."
    AWAY = "Not in the group until the application polls again."
    FAILED = "Not in the group, because of an error that the application has to know of."


class ConsumerInput(Enum):
    """An event that changes the state of a member."""

    JOIN = "The consumer has to join."
    GAVE_UP = "The application has given up all lost partitions."
    ACCEPTED = "The coordinator has accepted the member and given it an epoch."
    DIFFERS = "The application's partitions differ from the assigned ones."
    FOLLOWED = "The application's partitions are the assigned ones."
    LOST = "The coordinator no longer knows this consumer as a member of this epoch."
    UNSUBSCRIBED = "The consumer no longer subscribes to any topic."
    LEAVE = "The consumer unsubscribes or is closed."
    NOT_POLLED = "The application has not polled for max_poll_interval."
    LEFT = "The last heartbeat was answered or failed, or is not needed."
    FAILED = "An error that a retry can't solve."


_IN = {
    ConsumerInput.LOST: ConsumerState.SURRENDERING,
    ConsumerInput.NOT_POLLED: ConsumerState.WITHDRAWING,
}
_MEMBER = {
    **_IN,
    ConsumerInput.DIFFERS: ConsumerState.RECONCILING,
    ConsumerInput.FOLLOWED: ConsumerState.STABLE,
}
_JOINS = {ConsumerInput.JOIN: ConsumerState.SURRENDERING}

CONSUMER_MEMBER = MachineTable(
    "Group member, newer protocol",
    "A consumer's membership in a group that a broker coordinates, by the newer protocol (KIP-848).",
    ConsumerState.OUT,
    {
        ConsumerState.OUT: _JOINS,
        ConsumerState.SURRENDERING: {**_IN, ConsumerInput.GAVE_UP: ConsumerState.JOINING},
        ConsumerState.JOINING: {**_IN, ConsumerInput.ACCEPTED: ConsumerState.RECONCILING},
        ConsumerState.RECONCILING: _MEMBER,
        ConsumerState.STABLE: _MEMBER,
        ConsumerState.LEAVING: {ConsumerInput.LEFT: ConsumerState.OUT},
        ConsumerState.WITHDRAWING: {ConsumerInput.LEFT: ConsumerState.AWAY},
        ConsumerState.AWAY: _JOINS,
        ConsumerState.FAILED: _JOINS,
    },
    {
        ConsumerInput.LEAVE: ConsumerState.LEAVING,
        ConsumerInput.FAILED: ConsumerState.FAILED,
        ConsumerInput.UNSUBSCRIBED: ConsumerState.OUT,
    },
)

#: The coordinator has given the member an epoch.
MEMBERS = frozenset({ConsumerState.RECONCILING, ConsumerState.STABLE})
#: The member has an assignment or wants one.
INSIDE = MEMBERS | {ConsumerState.SURRENDERING, ConsumerState.JOINING}
#: The member sends its last heartbeat.
LEAVING = frozenset({ConsumerState.LEAVING, ConsumerState.WITHDRAWING})
#: Other members may already read partitions that the application still holds.
LOSING = frozenset({ConsumerState.SURRENDERING, ConsumerState.WITHDRAWING, ConsumerState.AWAY, ConsumerState.FAILED})
