"""The state machine of a replica fetcher; `fetcher` does the work of each state."""

from __future__ import annotations

from enum import Enum

from pylogd.base.machine import MachineTable


class FetcherState(Enum):
    """The state of a fetcher."""

    STARTING = "Partitions are collected for one turn of the reactor, so that all are in the first request."
    CONNECTING = "A connection to the leader is being opened."
    LOCATING = "The leader is asked for the start and end of the logs of partitions whose position is not valid."
    PREPARING = "The next Fetch request is made from what changed since the last one."
    FETCHING = "A Fetch request is at the leader, which may hold it until there are records."
    APPLYING = "An answer is applied: records are appended, positions corrected."
    NUDGING = (
        "The fetcher waits for the answer to a second Fetch request, which was sent so that the leader answers "
        "the first."
    )
    IDLE = "No partition can be fetched at present."
    BACKING_OFF = "The connection failed; the fetcher waits before it opens another one."
    STOPPED = "Nothing is fetched or appended any more."


class FetcherEvent(Enum):
    """An event of a fetcher."""

    STARTED = "The first turn of the reactor is over."
    CONNECTED = "The connection to the leader is open."
    LOCATED = "All positions are valid, or the partitions in question are paused."
    REQUEST_MADE = "There are partitions to fetch."
    NOTHING_TO_FETCH = "Every partition is paused or gone."
    WOKEN = "A partition was added, or a pause is over."
    ANSWERED = "The leader has answered."
    UNANSWERED = "The second request failed, which does not matter."
    APPLIED = "The answer has been applied."
    POSITION_LOST = "The answer has been applied, and the leader does not have the offset of a partition."
    NUDGED = "The answer has been applied, and the answer to the second request is still to come."
    FAILED = "The connection failed, or the leader answered with an error."
    BACKED_OFF = "The wait is over."
    STOP = "The fetcher has no partitions left, or the broker stops."


_S, _E = FetcherState, FetcherEvent

FETCHER = MachineTable(
    "Replica fetcher",
    "Fetches the partitions that a broker follows from one leader.",
    _S.STARTING,
    {
        _S.STARTING: {_E.STARTED: _S.CONNECTING},
        _S.CONNECTING: {_E.CONNECTED: _S.LOCATING, _E.FAILED: _S.BACKING_OFF},
        _S.LOCATING: {_E.LOCATED: _S.PREPARING, _E.FAILED: _S.BACKING_OFF},
        _S.PREPARING: {
            _E.REQUEST_MADE: _S.FETCHING,
            _E.NOTHING_TO_FETCH: _S.IDLE,
            _E.FAILED: _S.BACKING_OFF,
        },
        _S.FETCHING: {_E.ANSWERED: _S.APPLYING, _E.FAILED: _S.BACKING_OFF},
        _S.APPLYING: {
            _E.APPLIED: _S.PREPARING,
            _E.POSITION_LOST: _S.LOCATING,
            _E.NUDGED: _S.NUDGING,
            _E.FAILED: _S.BACKING_OFF,
        },
        _S.NUDGING: {_E.ANSWERED: _S.APPLYING, _E.UNANSWERED: _S.LOCATING, _E.FAILED: _S.BACKING_OFF},
        _S.IDLE: {_E.WOKEN: _S.LOCATING, _E.FAILED: _S.BACKING_OFF},
        _S.BACKING_OFF: {_E.BACKED_OFF: _S.CONNECTING, _E.FAILED: _S.BACKING_OFF},
        _S.STOPPED: {},
    },
    everywhere={_E.STOP: _S.STOPPED},
)
