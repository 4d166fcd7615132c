"""A log that is appended to in one step while its disk is quick, and in three steps (`append.staged`) while it is slow.

Rules: `Log.writing` excludes both kinds of appends from each other, and from what changes the active segment's files.
An append in one step first tries to take it. If a staged write, a roll or a truncation holds it, the append has to wait
for its turn, and is made in three steps. The reactor never waits for it. The compiled function for repeated requests
(`api/fast/_repeated.c`) does the same by itself.
"""

from __future__ import annotations

from typing import Any, Final

from pylogd.broker.log.append.direct import BatchRun
from pylogd.broker.log.append.result import AppendResult
from pylogd.broker.log.errors import AppendInTurn
from pylogd.broker.log.files import Buffer
from pylogd.broker.log.log import Log
from pylogd.broker.log.storage import Storage

#: Appends that took less time are not reported: the page cache takes them in microseconds.
NOTED_SECONDS: Final = 0.01


class PacedLog(Log):
    """A log that reports to `Storage.appended` each append in one step that took `NOTED_SECONDS` or longer."""

    __slots__ = ()

    # These two methods are called for each append. Their common code is written twice, to save a call.

    def append(self, records: Buffer, **how: Any) -> AppendResult:
        """See `Log.append`. Raises AppendInTurn."""
        writing, seconds = self._writing or self.writing, self.storage.seconds
        if not writing.acquire(False):
            raise self._taken()
        began = seconds()
        try:
            return Log.append(self, records, **how)
        finally:
            writing.release()
            if (took := seconds() - began) >= NOTED_SECONDS:
                self._note(took)

    def append_batches(self, run: BatchRun, *, leader_epoch: int) -> int:
        """See `Log.append_batches`. Raises AppendInTurn."""
        writing, seconds = self._writing or self.writing, self.storage.seconds
        if not writing.acquire(False):
            raise self._taken()
        began = seconds()
        try:
            return Log.append_batches(self, run, leader_epoch=leader_epoch)
        finally:
            writing.release()
            if (took := seconds() - began) >= NOTED_SECONDS:
                self._note(took)

    def _taken(self) -> AppendInTurn:
        # Waiting for a staged write would be a deadlock: this thread is the one that finishes it.
        return AppendInTurn(f"{self.topic}-{self.partition} is being written in a thread")

    def _note(self, took: float) -> None:
        if self.storage.appended is not None:
            self.storage.appended(self.directory, took)


def log_class(storage: Storage) -> type[Log]:
    """Return the class of a broker's logs: PacedLog if only some appends are staged, else Log."""
    return Log if storage.appended is None else PacedLog
