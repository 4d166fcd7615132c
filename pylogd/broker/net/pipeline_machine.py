"""The state machine of a connection's pipeline; `pipeline` does the work of each state."""

from __future__ import annotations

from enum import Enum

from pylogd.base.machine import MachineTable


class PipelineState(Enum):
    """Whether a connection takes requests, and what it still does before it is closed."""

    READING = "Requests are taken, and the connection is read from."
    PAUSED = (
        "The connection is not read from until a reply was sent: too many requests wait, or a request has to be held."
    )
    WAITING = "As PAUSED, until the connection's next turn: it has sent more requests than may be started in one turn."
    MUTED = "As PAUSED, until a time that a handler has set, because the client is over its quota."
    FINISHING = "No further request is taken; earlier ones are still being answered."
    DRAINING = "No further reply is made; the existing replies are being sent."
    CLOSED = "Nothing is received or sent any more."


class PipelineEvent(Enum):
    """An event of a connection."""

    PAUSE = "No further request may be started for now."
    RESUME = "All received requests have been taken."
    WAIT = "Other connections have their turn."
    TURN = "It is this connection's turn."
    MUTE = "A client has used more than its quota."
    UNMUTE = "The client has waited long enough."
    FINISH = "The broker stops, or a request can't be answered: no later request is taken."
    CLOSE = "The replies that may still be sent have been made."
    SENT = "The last reply was sent."
    LOST = "The peer has closed the connection, or the connection failed."


_S, _E = PipelineState, PipelineEvent

PIPELINE = MachineTable(
    "Connection pipeline",
    "Takes the requests of one connection and sends the replies.",
    _S.READING,
    {
        _S.READING: {
            _E.PAUSE: _S.PAUSED,
            _E.WAIT: _S.WAITING,
            _E.MUTE: _S.MUTED,
            _E.FINISH: _S.FINISHING,
            _E.CLOSE: _S.DRAINING,
        },
        _S.PAUSED: {
            _E.PAUSE: _S.PAUSED,
            _E.RESUME: _S.READING,
            _E.WAIT: _S.WAITING,
            _E.MUTE: _S.MUTED,
            _E.FINISH: _S.FINISHING,
            _E.CLOSE: _S.DRAINING,
        },
        _S.WAITING: {
            _E.TURN: _S.PAUSED,
            _E.MUTE: _S.MUTED,
            _E.FINISH: _S.FINISHING,
            _E.CLOSE: _S.DRAINING,
        },
        _S.MUTED: {_E.UNMUTE: _S.PAUSED, _E.FINISH: _S.FINISHING, _E.CLOSE: _S.DRAINING},
        _S.FINISHING: {_E.FINISH: _S.FINISHING, _E.CLOSE: _S.DRAINING, _E.SENT: _S.CLOSED},
        _S.DRAINING: {_E.SENT: _S.CLOSED},
        _S.CLOSED: {},
    },
    everywhere={_E.LOST: _S.CLOSED},
)
