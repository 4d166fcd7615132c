"""The states of a consumer whose group is in ZooKeeper, and the events that change them.

Must not know: how the work of a state is done.
"""

from __future__ import annotations

from enum import Enum

from pylogd.base.machine import MachineTable


class CoordinatorState(Enum):
    """The state of a consumer. The consumer fetches its partitions in all states except CLOSED, while its lease is
    valid.
    """

    JOINING = "Registers itself."
    READING = "Reads the registries, and computes its share."
    RELEASING = (
        "Releases partitions that are no longer in its share, when the caller has stopped reading them and "
        "has committed."
    )
    CLAIMING = "Claims partitions that are new in its share, and reads where to start."
    WAITING = "Found a partition with another owner, and waits until the owner releases it or the back-off is over."
    OWNING = "Has its share, and waits for changes."
    INTERRUPTED = "Lost the connection. When it is restored, the member finds out whether its last write took effect."
    SURRENDERING = "Lost its session, and waits until the caller has stopped reading."
    LEAVING = "Releases all partitions and its registration."
    CLOSED = "Is not a member."


class Event(Enum):
    """The outcome of the work in a state, or an event that ends it."""

    STARTED = "The caller joins the group."
    REGISTERED = "The member is registered."
    TOO_MUCH = "The member holds partitions that are not in its share."
    TOO_LITTLE = "The member does not hold all partitions of its share."
    SETTLED = "The member holds exactly its share."
    RELEASED = "The partitions are released."
    CLAIMED = "The partitions are claimed."
    COLLIDED = "A partition has another owner."
    AGAIN = "Something changed, or the back-off is over."
    UNREGISTERED = "Its registration is gone."
    CUT = "The connection was lost, or is new."
    RESUMED = "The outcome of the last writes is known."
    EXPIRED = "The session has expired."
    SURRENDERED = "The caller has stopped reading."
    CLOSE = "The caller leaves the group."
    LEFT = "The member has left the group, or could not."
    CRASHED = "An error of the program."


class ConnectionState(Enum):
    """The connection with ZooKeeper, as far as the member has taken notice of it."""

    CONNECTED = "The member is connected, and knows what became of its writes."
    RECONNECTED = "The connection is new: the outcome of the last writes has to be found out."
    LOST = "The member is not connected."


class ConnectionEvent(Enum):
    """An event that changes the connection."""

    CONNECTED = "The session is connected again."
    LOST = "The connection was lost, or the session has expired."
    NOTICED = "The member begins to find out the outcome of its last writes."


CONNECTION = MachineTable(
    "Connection of a member with ZooKeeper",
    "Whether a consumer whose group is in ZooKeeper is connected.",
    ConnectionState.CONNECTED,
    {
        ConnectionState.CONNECTED: {ConnectionEvent.NOTICED: ConnectionState.CONNECTED},
        ConnectionState.RECONNECTED: {ConnectionEvent.NOTICED: ConnectionState.CONNECTED},
        ConnectionState.LOST: {},
    },
    {ConnectionEvent.CONNECTED: ConnectionState.RECONNECTED, ConnectionEvent.LOST: ConnectionState.LOST},
)

#: Events in every state of a member.
_ALWAYS = {
    Event.UNREGISTERED: CoordinatorState.JOINING,
    Event.CUT: CoordinatorState.INTERRUPTED,
    Event.EXPIRED: CoordinatorState.SURRENDERING,
    Event.CLOSE: CoordinatorState.LEAVING,
}

COORDINATOR = MachineTable(
    "Member of a group in ZooKeeper",
    "A consumer's membership in a group that its members coordinate among themselves.",
    CoordinatorState.CLOSED,
    {
        CoordinatorState.CLOSED: {Event.STARTED: CoordinatorState.JOINING},
        CoordinatorState.JOINING: {**_ALWAYS, Event.REGISTERED: CoordinatorState.READING},
        CoordinatorState.READING: {
            **_ALWAYS,
            Event.TOO_MUCH: CoordinatorState.RELEASING,
            Event.TOO_LITTLE: CoordinatorState.CLAIMING,
            Event.SETTLED: CoordinatorState.OWNING,
        },
        CoordinatorState.RELEASING: {**_ALWAYS, Event.RELEASED: CoordinatorState.READING},
        CoordinatorState.CLAIMING: {
            **_ALWAYS,
            Event.CLAIMED: CoordinatorState.READING,
            Event.COLLIDED: CoordinatorState.WAITING,
        },
        CoordinatorState.WAITING: {**_ALWAYS, Event.AGAIN: CoordinatorState.READING},
        CoordinatorState.OWNING: {**_ALWAYS, Event.AGAIN: CoordinatorState.READING},
        CoordinatorState.INTERRUPTED: {**_ALWAYS, Event.RESUMED: CoordinatorState.READING},
        CoordinatorState.SURRENDERING: {**_ALWAYS, Event.SURRENDERED: CoordinatorState.JOINING},
        CoordinatorState.LEAVING: {Event.LEFT: CoordinatorState.CLOSED},
    },
    {Event.CRASHED: CoordinatorState.CLOSED},
)
