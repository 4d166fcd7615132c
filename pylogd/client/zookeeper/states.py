"""The states of a consumer in its group, in words, and what leads from one to the next.

Must not know: how anything is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class State(Enum):
    """What a consumer is busy with. It fetches what it holds in all of them, as long as its lease holds."""

    JOINING = "registers itself"
    READING = "reads the registries and works out its share"
    RELEASING = "lets go of what is no longer its own, once the caller has stopped and committed"
    CLAIMING = "claims what is newly its own, and reads where to start"
    WAITING = "collided with an owner, and waits until that one lets go or the back-off is over"
    OWNING = "has its share, and waits for news"
    INTERRUPTED = "has lost the connection, and waits for it to find out what its last write did"
    SURRENDERING = "has lost its session, and waits until the caller has stopped"
    LEAVING = "lets go of everything"
    CLOSED = "is no member"


class Event(Enum):
    """How what a state is busy with comes out."""

    REGISTERED = "registered"
    TOO_MUCH = "it holds what is not in its share"
    TOO_LITTLE = "it does not hold all of its share"
    SETTLED = "it holds its share"
    RELEASED = "released"
    CLAIMED = "claimed"
    COLLIDED = "a partition has another owner"
    AGAIN = "news, or it is time"
    UNREGISTERED = "its registration is gone"
    CUT = "the connection was lost, or is new"
    RESUMED = "what the last writes did is known"
    EXPIRED = "the session is gone"
    SURRENDERED = "the caller has stopped"
    CLOSE = "it is to leave"
    LEFT = "left"


#: From each state, by what came of it, to the next one.
MOVES: Final[Mapping[State, Mapping[Event, State]]] = {
    State.JOINING: {Event.REGISTERED: State.READING},
    State.READING: {
        Event.TOO_MUCH: State.RELEASING,
        Event.TOO_LITTLE: State.CLAIMING,
        Event.SETTLED: State.OWNING,
    },
    State.RELEASING: {Event.RELEASED: State.READING},
    State.CLAIMING: {Event.CLAIMED: State.READING, Event.COLLIDED: State.WAITING},
    State.WAITING: {Event.AGAIN: State.READING},
    State.OWNING: {Event.AGAIN: State.READING},
    State.INTERRUPTED: {Event.RESUMED: State.READING},
    State.SURRENDERING: {Event.SURRENDERED: State.JOINING},
    State.LEAVING: {Event.LEFT: State.CLOSED},
}
#: The same from every state but the last two.
ALWAYS: Final[Mapping[Event, State]] = {
    Event.UNREGISTERED: State.JOINING,
    Event.CUT: State.INTERRUPTED,
    Event.EXPIRED: State.SURRENDERING,
    Event.CLOSE: State.LEAVING,
}


def follow(state: State, event: Event) -> State:
    """The next state; a KeyError is a fault of the program."""
    if state is not State.LEAVING and event in ALWAYS:
        return ALWAYS[event]
    return MOVES[state][event]
