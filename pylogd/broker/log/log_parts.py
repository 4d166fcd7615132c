"""The parts of a log that are made at their first use, to save memory.

Three locks take 280 bytes, and most logs of a large broker are never used.
"""

from __future__ import annotations

import threading

from pylogd.broker.log.write_failures import WriteFailures

_making = threading.Lock()  # is held while a part is made


class LogParts:
    """Makes the parts. `_lock` is `lock`, or None: appends look at `_lock` first, since a property costs a call."""

    __slots__ = ("_lock", "_maintenance", "_write_failures", "_writing")

    def __init__(self) -> None:
        self._lock: threading.RLock | None = None
        self._maintenance: threading.Lock | None = None
        self._writing: threading.Lock | None = None
        self._write_failures: WriteFailures | None = None

    @property
    def lock(self) -> threading.RLock:
        """Held by every change of the log."""
        if self._lock is None:
            with _making:
                self._lock = self._lock or threading.RLock()
        return self._lock

    @property
    def writing(self) -> threading.Lock:
        """Held during a staged append and by code that excludes staged appends; taken before `lock`."""
        if self._writing is None:
            with _making:
                self._writing = self._writing or threading.Lock()
        return self._writing

    @property
    def maintenance(self) -> threading.Lock:
        """Held by flush, truncation and removal; taken before `lock`."""
        if self._maintenance is None:
            with _making:
                self._maintenance = self._maintenance or threading.Lock()
        return self._maintenance

    @property
    def write_failures(self) -> WriteFailures:
        """The last write that failed. The caller holds `lock`."""
        if self._write_failures is None:
            self._write_failures = WriteFailures()
        return self._write_failures
