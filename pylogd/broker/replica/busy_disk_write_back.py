"""Write new data to a disk early while the disk is busy and lagging consumers are throttled.

Strategy: ten times a second a thread of each such disk begins to write new data (`pylogd.broker.log.early_write_back`).
So appends don't wait for the locks of pages that the kernel wants to write after the reads of lagging consumers, and
the kernel finds clean pages when it needs memory.

Rules: nothing is done for disks that are not busy, nor with a block cache, which starts the writes of its data itself.
"""

from __future__ import annotations

import os
from collections import defaultdict

from twisted.internet.defer import DeferredList
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.broker.isolation.laggards import LaggardThrottle
from pylogd.broker.log.early_write_back import EarlyWriteBack
from pylogd.broker.log.errors import StorageError
from pylogd.broker.log.manager import LogManager
from pylogd.broker.replica.disk_calls import DiskCalls

_log = Logger()

INTERVAL = 0.1  # seconds from the end of a pass to the next one


class BusyDiskWriteBack:
    """See the module."""

    def __init__(self, laggards: LaggardThrottle, logs: LogManager, calls: DiskCalls, clock: IReactorTime) -> None:
        self._laggards = laggards
        self._logs = logs
        self._calls = calls
        self._clock = clock
        self._writers: dict[str, EarlyWriteBack] = defaultdict(EarlyWriteBack)
        self._directories: list[str] = []
        self._call: IDelayedCall | None = None
        self._writing = False

    def start(self) -> None:
        """Begin to write whenever a disk is busy."""
        self._laggards.on_sample = self._sampled

    def _sampled(self, directories: list[str]) -> None:
        self._directories = directories
        if not directories and self._call is not None:
            self._call.cancel()
            self._call = None
        elif directories and self._call is None and not self._writing:
            self._call = self._clock.callLater(INTERVAL, self._write)

    def _write(self) -> None:
        self._call = None
        self._writing = True
        writes = [self._calls.at(path, self._write_to, path) for path in self._directories]
        DeferredList([write.addErrback(self._failed) for write in writes]).addCallback(self._written)

    def _write_to(self, directory: str) -> None:
        # Runs in a thread of the directory.
        logs = [log for log in list(self._logs.logs.values()) if os.path.dirname(log.directory) == directory]
        self._writers[directory].write(logs)

    def _failed(self, failure: Failure) -> None:
        if not failure.check(StorageError):  # other errors are expected of a directory that was given up
            _log.failure("Unexpected error while what was appended was handed to a busy disk", failure)

    def _written(self, _: object) -> None:
        self._writing = False
        self._sampled(self._directories)
