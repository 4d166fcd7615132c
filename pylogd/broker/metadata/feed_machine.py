"""The state machine of a broker's metadata feed; `changes` does the work."""

from __future__ import annotations

from enum import Enum

from pylogd.base.machine import MachineTable


class FeedState(Enum):
    """The knowledge about `/changes`, and whether it is being read."""

    STOPPED = "Nothing is read."
    WATCHED = "The readers have what was last written; a watch tells when to read again, perhaps after a pause."
    READING = "A round of reading is under way, and the watch is set."
    OUTDATED = "The watch is not set: a round is due that sets it, after the one under way, if any."
    FAILED = "A round failed; the next write or session begins another one."


class FeedEvent(Enum):
    """An event of a feed."""

    START = "The broker reads its metadata for the first time."
    CHANGED = "The watch was triggered, or the session is a new one, in which there may be no watch."
    WRITTEN = "Somebody waits until a write has been read."
    ROUND = "A round begins."
    DONE = "Nobody waits for a newer version."
    BROKE = "A round failed."
    STOP = "The broker stops."


_S, _E = FeedState, FeedEvent

FEED = MachineTable(
    "Change feed",
    "How a broker keeps up with the node `/changes`, which every metadata write sets.",
    _S.STOPPED,
    {
        _S.STOPPED: {
            _E.START: _S.OUTDATED,
            _E.CHANGED: _S.STOPPED,
            _E.WRITTEN: _S.STOPPED,
            _E.DONE: _S.STOPPED,
            _E.BROKE: _S.STOPPED,
        },
        _S.WATCHED: {_E.CHANGED: _S.OUTDATED, _E.WRITTEN: _S.READING},
        _S.READING: {
            _E.CHANGED: _S.OUTDATED,
            _E.WRITTEN: _S.READING,
            _E.ROUND: _S.READING,
            _E.DONE: _S.WATCHED,
            _E.BROKE: _S.FAILED,
        },
        _S.OUTDATED: {
            _E.CHANGED: _S.OUTDATED,
            _E.WRITTEN: _S.OUTDATED,
            _E.ROUND: _S.READING,
            _E.BROKE: _S.FAILED,
        },
        _S.FAILED: {_E.CHANGED: _S.OUTDATED, _E.WRITTEN: _S.OUTDATED},
    },
    everywhere={_E.STOP: _S.STOPPED},
)
