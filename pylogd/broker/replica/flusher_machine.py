"""The state machine of a partition's flusher; `flushing` does the work."""

from __future__ import annotations

from enum import Enum

from pylogd.base.machine import MachineTable


class FlusherState(Enum):
    """The state of a flusher: what it waits for."""

    IDLE = "No flush is due before another append."
    SCHEDULED = "A flush is due at a certain time: after `flush.ms`, or after a flush that failed."
    FLUSHING = "A thread flushes the log, or seals its segments."
    STOPPED = "Nothing is flushed any more."


class FlusherEvent(Enum):
    """An event of a flusher."""

    SCHEDULE = "Records were appended that may wait for `flush.ms`."
    CANCEL = "The settings have changed."
    FLUSH = "A flush is due now."
    DONE = "The thread has finished."
    FAILED = "The disk was full; the flush is tried again."
    GIVE_UP = "The log was closed, or a flush failed, so that it is unknown what is on the disk."
    CLOSE = "The partition is removed, or the broker stops and flushes all logs itself."


_S, _E = FlusherState, FlusherEvent

FLUSHER = MachineTable(
    "Partition flusher",
    "Flushes one partition's log, one flush at a time.",
    _S.IDLE,
    {
        _S.IDLE: {_E.SCHEDULE: _S.SCHEDULED, _E.FLUSH: _S.FLUSHING, _E.CANCEL: _S.IDLE},
        _S.SCHEDULED: {_E.FLUSH: _S.FLUSHING, _E.CANCEL: _S.IDLE},
        _S.FLUSHING: {
            _E.DONE: _S.IDLE,
            _E.FAILED: _S.SCHEDULED,
            _E.GIVE_UP: _S.STOPPED,
            _E.CANCEL: _S.FLUSHING,
        },
        _S.STOPPED: {_E.DONE: _S.STOPPED, _E.FAILED: _S.STOPPED, _E.GIVE_UP: _S.STOPPED, _E.CANCEL: _S.STOPPED},
    },
    everywhere={_E.CLOSE: _S.STOPPED},
)
