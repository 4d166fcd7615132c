"""The states of a member by the classic protocol, and the inputs that change them."""

from __future__ import annotations

from enum import Enum

from pylogd.base.machine import MachineTable


class MemberState(Enum):
    """Where a member stands."""

    OUT = "Not in the group, and does not want to be."
    PREPARING = "Wants to join. Unless the assignor is cooperative, the application gives up its partitions first."
    SURRENDERING = "Wants to join as a new member. The application gives up its partitions, which are lost."
    JOINING = "Sends JoinGroup, and waits until the other members have joined."
    ASSIGNING = "Is the leader. It assigns partitions to the members when it knows the partitions of the topics."
    SYNCING = "Sends SyncGroup, and waits for its assignment."
    ASSIGNED = "Is a member. The application does not know its assignment yet."
    RELEASED = (
        "As ASSIGNED, and has given up partitions that other members wait for: when the application knows the "
        "assignment, the member joins again."
    )
    STABLE = "Is a member, and the application knows its assignment."
    LEAVING = "Sends LeaveGroup, because the consumer unsubscribed or was closed."
    WITHDRAWING = "Sends LeaveGroup, because the application does not poll."
    AWAY = "Not in the group until the application polls again."
    FAILED = "Not in the group, because of an error that the application has to know of."


class MemberInput(Enum):
    """An event of a member."""

    JOIN = (
        "The member has to join, or to join again: its subscription changed, the group rebalances, or topics have "
        "new partitions."
    )
    UNSUBSCRIBED = "The consumer no longer subscribes to any topic."
    LOST = "The coordinator no longer knows this consumer as a member."
    GAVE_UP = "The application has given up the partitions that it must give up before the member joins."
    JOINED = "JoinGroup was answered; another member is the leader."
    ELECTED = "JoinGroup was answered; this member is the leader and has to assign partitions."
    ASSIGNED_ALL = "The leader has assigned partitions to the members."
    SYNCED = "SyncGroup was answered with its assignment."
    REVOKED_SOME = "The application has given up partitions that are not in the new assignment."
    TOLD = "The application is told of the assignment."
    LEAVE = "The consumer unsubscribes or is closed."
    NOT_POLLED = "The application has not polled for max_poll_interval."
    LEFT = "LeaveGroup was answered or failed, or is not needed."
    FAILED = "An error that a retry can't solve."


_IN = {
    MemberInput.JOIN: MemberState.PREPARING,
    MemberInput.LOST: MemberState.SURRENDERING,
    MemberInput.NOT_POLLED: MemberState.WITHDRAWING,
}

MEMBER = MachineTable(
    "Group member, classic protocol",
    "A consumer's membership in a group that a broker coordinates, by the classic protocol.",
    MemberState.OUT,
    {
        MemberState.OUT: {MemberInput.JOIN: MemberState.PREPARING},
        MemberState.PREPARING: {**_IN, MemberInput.GAVE_UP: MemberState.JOINING},
        MemberState.SURRENDERING: {
            **_IN,
            MemberInput.JOIN: MemberState.SURRENDERING,
            MemberInput.GAVE_UP: MemberState.JOINING,
        },
        MemberState.JOINING: {
            **_IN,
            MemberInput.JOINED: MemberState.SYNCING,
            MemberInput.ELECTED: MemberState.ASSIGNING,
        },
        MemberState.ASSIGNING: {**_IN, MemberInput.ASSIGNED_ALL: MemberState.SYNCING},
        MemberState.SYNCING: {**_IN, MemberInput.SYNCED: MemberState.ASSIGNED},
        MemberState.ASSIGNED: {
            **_IN,
            MemberInput.TOLD: MemberState.STABLE,
            MemberInput.REVOKED_SOME: MemberState.RELEASED,
        },
        MemberState.RELEASED: {**_IN, MemberInput.TOLD: MemberState.RELEASED},
        MemberState.STABLE: {**_IN},
        MemberState.LEAVING: {MemberInput.LEFT: MemberState.OUT},
        MemberState.WITHDRAWING: {MemberInput.LEFT: MemberState.AWAY},
        MemberState.AWAY: {MemberInput.JOIN: MemberState.SURRENDERING},
        MemberState.FAILED: {MemberInput.JOIN: MemberState.SURRENDERING},
    },
    {
        MemberInput.LEAVE: MemberState.LEAVING,
        MemberInput.FAILED: MemberState.FAILED,
        MemberInput.UNSUBSCRIBED: MemberState.OUT,
    },
)

#: The member has no assignment and does not want one.
OUTSIDE = frozenset(
    {MemberState.OUT, MemberState.LEAVING, MemberState.WITHDRAWING, MemberState.AWAY, MemberState.FAILED}
)
#: The member has an assignment or wants one.
INSIDE = frozenset(MemberState) - OUTSIDE
#: The member sends LeaveGroup.
LEAVING = frozenset({MemberState.LEAVING, MemberState.WITHDRAWING})
#: The member has a request for the coordinator.
ACTIVE = INSIDE | LEAVING
#: The member has the assignment of the present generation.
SETTLED = frozenset({MemberState.ASSIGNED, MemberState.RELEASED, MemberState.STABLE})
#: No rebalance can have overtaken a commit.
SETTLED_OR_PREPARING = SETTLED | {MemberState.PREPARING}
#: Other members may already read partitions that the application still holds.
LOSING = frozenset({MemberState.SURRENDERING, MemberState.WITHDRAWING, MemberState.AWAY, MemberState.FAILED})
#: The end of the rebalance may overtake a commit that is sent now.
REBALANCING = frozenset({MemberState.JOINING, MemberState.ASSIGNING, MemberState.SYNCING})
