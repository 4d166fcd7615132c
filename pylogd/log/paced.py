"""A log that is appended to in one step while its disk is quick, and in three steps (`staged_append`) while it is slow.

Rules: `Log.writing` excludes both kinds of appends from each other, and from what changes the active segment's files.
Whoever appends in one step looks first whether it is held: if so, the append has to wait its turn, in three steps. If
it is taken just then, for a roll or a truncation, the append waits for that, but not for long.
"""

from __future__ import annotations

from typing import Any, Final

from pylogd.log.append_result import AppendResult
from pylogd.log.batch_runs import BatchRun
from pylogd.log.errors import AppendInTurn
from pylogd.log.files import Buffer
from pylogd.log.log import Log
from pylogd.log.storage import Storage

#: Appends that took less are not reported: the page cache takes them in microseconds.
NOTED_SECONDS: Final = 0.01
#: The longest wait for a thread that has taken the log since the caller looked, to roll or truncate it.
_WAIT_SECONDS: Final = 0.5


class PacedLog(Log):
    """Tells `Storage.appended` of appends in one step that took `NOTED_SECONDS` or longer."""

    __slots__ = ()

    def append(self, records: Buffer, **how: Any) -> AppendResult:
        """See `Log.append`. Raises AppendInTurn."""
        began = self._begin()
        try:
            return super().append(records, **how)
        finally:
            self._end(began)

    def append_batches(self, run: BatchRun, *, leader_epoch: int) -> int:
        """See `Log.append_batches`. Raises AppendInTurn."""
        began = self._begin()
        try:
            return super().append_batches(run, leader_epoch=leader_epoch)
        finally:
            self._end(began)

    def _begin(self) -> float:
        # Waiting for a staged write would be a deadlock: this thread is the one that finishes it.
        if not self.writing.acquire(timeout=_WAIT_SECONDS):
            raise AppendInTurn(f"{self.topic}-{self.partition} is being written in a thread")
        return self.storage.seconds()

    def _end(self, began: float) -> None:
        self.writing.release()
        if (took := self.storage.seconds() - began) >= NOTED_SECONDS:
            self._note(took)

    def _note(self, took: float) -> None:
        if self.storage.appended is not None:
            self.storage.appended(self.directory, took)


def log_class(storage: Storage) -> type[Log]:
    """Return the class of a broker's logs: `Log`, unless some of its appends are made in one step and some in three."""
    return Log if storage.appended is None else PacedLog
