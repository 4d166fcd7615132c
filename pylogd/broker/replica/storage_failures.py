"""Handle logs that can't be read or written: take the directory offline if needed, and inform the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.logger import Logger

from pylogd.broker.log.errors import StorageError

if TYPE_CHECKING:
    from pylogd.broker.log.manager import LogManager

log = Logger()


class StorageFailures:
    """Passes storage errors on to the log manager. Of those not fatal, only the 1st, 2nd, 4th, 8th ... is logged."""

    def __init__(self, logs: LogManager) -> None:
        self._logs = logs
        self._count = 0

    def report(self, error: StorageError) -> bool:
        """Handle an error of the storage, in any thread. Return whether its directory is offline."""
        offline = self._logs.storage_failed(error)
        if not offline:
            self._count += 1
            if self._count.bit_count() == 1:
                log.error("storage failed ({count} times so far): {error}", count=self._count, error=error)
        return offline
