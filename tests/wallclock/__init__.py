"""A wall clock that a test can step, for brokers in processes of their own, without privileges and without a compiler.

A process that is started behind `WallClock.prefix` reads the time of day through `sitecustomize.py` beside this file,
which Python imports before anything else. `step` then does to it what `date --set`, NTP or a virtual machine's host do.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent


class WallClock:
    """The wall clock of one process, or of several. `prefix` is a command that runs another command with it."""

    def __init__(self, path: Path) -> None:
        """`path`: a file to make, through which the processes are told."""
        self._path = path
        path.write_bytes(bytes(8))
        before = os.environ.get("PYTHONPATH")
        search = os.pathsep.join([str(_FOLDER), *([before] if before else [])])
        self.prefix = ["env", f"PYTHONPATH={search}", f"PYLOGD_TEST_WALL_CLOCK={path}"]

    def step(self, seconds: float) -> None:
        """Put the clock so far ahead of the machine's; negative: behind it."""
        with self._path.open("r+b", buffering=0) as file:
            file.write(struct.pack("=q", round(seconds * 1e9)))
