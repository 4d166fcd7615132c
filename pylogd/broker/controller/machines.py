"""The state machines of the controller; `election` and `controller` do the work."""

from __future__ import annotations

from enum import Enum

from pylogd.base.machine import MachineTable


class TermState(Enum):
    """This broker's part in the election of the controller."""

    STOPPED = "This broker takes no part in elections."
    STANDBY = "Another broker is the controller, or none is known."
    ACTIVE = "This broker is the controller."


class TermEvent(Enum):
    """An event that begins or ends a controller's term."""

    START = "The broker has registered."
    ELECTED = "The controller's node in the metadata store is this broker's."
    DEPOSED = "The node is gone or another broker's, or this broker's session has expired."
    STOP = "The broker stops."


TERM = MachineTable(
    "Controller: term",
    "Whether a broker is the cluster's controller.",
    TermState.STOPPED,
    {
        TermState.STOPPED: {TermEvent.START: TermState.STANDBY},
        TermState.STANDBY: {TermEvent.ELECTED: TermState.ACTIVE},
        TermState.ACTIVE: {TermEvent.DEPOSED: TermState.STANDBY},
    },
    everywhere={TermEvent.STOP: TermState.STOPPED},
)


class NodeState(Enum):
    """The knowledge about the controller's node in the metadata store."""

    WATCHED = "The node was read; a watch, or a timer after an error, says when to read it again."
    READING = "The node is being read, or created because it does not exist."
    OUTDATED = "The node is being read and may have changed since: it is read again afterwards."


class NodeEvent(Enum):
    """An event that makes a broker read the controller's node."""

    CHANGED = "The watch was triggered, the session is a new one, or a write found another controller."
    READ_AGAIN = "An outdated read has ended."
    DONE = "A read has ended, or failed."


NODE = MachineTable(
    "Controller: its node",
    "How a broker keeps up with the node `/controller`: one read at a time.",
    NodeState.WATCHED,
    {
        NodeState.WATCHED: {NodeEvent.CHANGED: NodeState.READING},
        NodeState.READING: {NodeEvent.CHANGED: NodeState.OUTDATED, NodeEvent.DONE: NodeState.WATCHED},
        NodeState.OUTDATED: {
            NodeEvent.CHANGED: NodeState.OUTDATED,
            NodeEvent.READ_AGAIN: NodeState.READING,
            NodeEvent.DONE: NodeState.WATCHED,
        },
    },
)


class WorkState(Enum):
    """The present work of an active controller."""

    IDLE = "All that has happened has been decided on."
    DUE = "A round of decisions is scheduled: for the next turn of the reactor, or later after an error."
    DECIDING = "Rounds of decisions are made and written until there is nothing left to decide."


class WorkEvent(Enum):
    """An event that makes a controller decide."""

    NEWS = "Brokers, topics, settings or the session have changed."
    BEGIN = "The scheduled time has come."
    DONE = "There is nothing left to decide, or the term has ended."
    FAILED = "A round failed; it is tried again."
    STOP = "The broker stops: what is scheduled is cancelled."


WORK = MachineTable(
    "Controller: decisions",
    "How an active controller collects what happens, and decides on it in rounds.",
    WorkState.IDLE,
    {
        WorkState.IDLE: {WorkEvent.NEWS: WorkState.DUE, WorkEvent.STOP: WorkState.IDLE},
        WorkState.DUE: {
            WorkEvent.NEWS: WorkState.DUE,
            WorkEvent.BEGIN: WorkState.DECIDING,
            WorkEvent.STOP: WorkState.IDLE,
        },
        WorkState.DECIDING: {
            WorkEvent.NEWS: WorkState.DECIDING,
            WorkEvent.DONE: WorkState.IDLE,
            WorkEvent.FAILED: WorkState.DUE,
            WorkEvent.STOP: WorkState.DECIDING,
        },
    },
)
