"""Run a broker whose reactor writes down how long its turns take: `python -m tests.extreme.turns FILE COMMAND ...`.

COMMAND is a Python script with its arguments, which runs in this process. A turn is what the reactor does between two
waits for events. A line in FILE, for each turn that used at least `LEAST_MS` of the processor: its milliseconds, and
those of them in which the garbage collector ran. Time of the processor, not of the clock: others on the machine do not
count, nor do the broker's own threads.
"""

from __future__ import annotations

import gc
import os
import runpy
import select
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

LEAST_MS: Final = 1.0


class Turn(NamedTuple):
    """A turn: how long it took, and how much of that the garbage collector did. Milliseconds."""

    held: float
    collecting: float


class Turns:
    """The file, as the driver of a measurement reads it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new(self) -> list[Turn]:
        """Return the turns that ended since the last call."""
        data = self._path.read_bytes() if self._path.exists() else b""
        lines, self._read = data[self._read :].splitlines(), len(data)
        return [Turn(*map(float, line.split())) for line in lines]


class _Collections:
    """How long the garbage collector ran in the reactor's thread."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._thread = threading.get_ident()
        self._began = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, _: object) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.seconds += time.thread_time() - self._began


class _MeasuredPoll:
    """An epoll object that notes how long its caller did something else between two calls of `poll`."""

    def __init__(self, made: Any, file: int) -> None:
        self._made = made
        self._file = file
        self._began: float | None = None
        self._collections = _Collections()

    def poll(self, *args: Any) -> Any:
        """See `select.epoll`."""
        if self._began is not None:
            took = (time.thread_time() - self._began) * 1000
            if took >= LEAST_MS:
                os.write(self._file, b"%.1f %.1f\n" % (took, self._collections.seconds * 1000))
        found = self._made.poll(*args)
        self._collections.seconds = 0.0
        self._began = time.thread_time()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)


def main() -> None:
    """Run the command."""
    file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    make = select.epoll
    select.epoll = lambda *args: _MeasuredPoll(make(*args), file)  # type: ignore[assignment, misc]
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
