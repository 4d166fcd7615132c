"""Sample the free space of the data directories, each disk in its own thread, because it may hang; and the bytes that
the process has read from and written to disks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.broker.log.manager import LogManager
from pylogd.broker.replica.disk_calls import DiskCalls

log = Logger()

#: Seconds between two samples.
SECONDS: Final = 15.0


_COUNTED: Final = Path("/proc/self/io")


def disk_bytes(file: Path = _COUNTED) -> Mapping[str, int]:
    """Return the bytes that this process has had read from disks and written to them: `read_bytes`, `write_bytes`.

    Return an empty result if they can't be read, as on other systems. Call it in a thread.

    file: the file in which Linux has them.
    """
    try:
        lines = file.read_text("ascii").splitlines()
    except OSError:
        return {}
    found = dict(line.split(": ", 1) for line in lines if ": " in line)
    return {name: int(found[name]) for name in ("read_bytes", "write_bytes") if name in found}


class Space(NamedTuple):
    """The size of a volume, and the space that is free for this process, in bytes."""

    total: int
    free: int


class DiskSpace:
    """Samples free space periodically.

    spaces: the last sample of each data directory that is online.
    """

    def __init__(self, logs: LogManager, calls: DiskCalls, clock: IReactorTime) -> None:
        self._logs = logs
        self._calls = calls
        self._clock = clock
        self._asked: set[str] = set()  # directories that have not answered yet
        self._timer: IDelayedCall | None = None
        self.spaces: dict[str, Space] = {}

    def start(self) -> None:
        """Take a sample now, and then one every `SECONDS`."""
        healthy = list(self._logs.healthy)
        self.spaces = {path: space for path, space in self.spaces.items() if path in healthy}
        for path in healthy:
            if path not in self._asked:
                self._asked.add(path)
                asked = self._calls.at(self._directory(path), self._logs.fs.space, path)
                asked.addCallbacks(self._answered, self._failed, callbackArgs=(path,), errbackArgs=(path,))
        self._timer = self._clock.callLater(SECONDS, self.start)

    def stop(self) -> None:
        """Take no further samples. The last figures stay."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def _directory(self, path: str) -> str | None:
        return path if self._calls.separate else None

    def _answered(self, found: tuple[int, int], path: str) -> None:
        self._asked.discard(path)
        self.spaces[path] = Space(*found)

    def _failed(self, failure: Failure, path: str) -> None:
        self._asked.discard(path)
        log.debug("Can't read the free space of {path}: {error}", path=path, error=failure.getErrorMessage())
