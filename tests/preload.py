"""Simulate faults of the machine for one process: steps of the clock, a bad or slow disk, a loss of power, a halt.

Strategy: a small library (`preload.c`), compiled at its first use, stands between a process and the C library
(`LD_PRELOAD`). It shifts what the wall clock says, fails, holds or delays writes and syncs below one directory, has the
first thread stand still, and notes which bytes of a file have been synced. All but the last are controlled through a
small mapped file, while the process runs.

Linux only, and it needs a C compiler: `why_not` says what is missing.
"""

from __future__ import annotations

import atexit
import functools
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

_SOURCE = Path(__file__).with_name("preload.c")
_CONTROL = struct.Struct("=qq")
_NS = 1_000_000_000
_FINE, _FAILS, _HANGS, _SLOW, _ALL_HANG, _STANDS = range(6)


def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def why_not() -> str:
    """Return why these faults can't be simulated here; "" if they can."""
    if not sys.platform.startswith("linux"):
        return "LD_PRELOAD is used as Linux has it"
    return "" if _compiler() else "there is no C compiler (cc, gcc or clang)"


@functools.cache
def _library() -> Path:
    """Return the compiled library, which is removed when this process ends."""
    compiler = _compiler()
    assert compiler is not None
    folder = tempfile.mkdtemp(prefix="pylogd-preload-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = Path(folder) / "preload.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(target), str(_SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"{_SOURCE} can't be compiled: {done.stderr}")
    return target


class Preload:
    """The faults of one process and its children. They stay the same over restarts."""

    def __init__(self, folder: Path, name: str, failing: Path | None = None, disks: Sequence[Path] = ()) -> None:
        """Keep the library's files in `folder`, named after `name`. failing: the disk of `fail`, `hang` and `slow`.

        disks: those of `freeze`.
        """
        self._control = folder / f"{name}.control"
        self._synced = folder / f"{name}.synced"
        self._failing = failing
        self._disks = ":".join(map(str, disks)) or None
        self.step_seconds = 0.0
        self._disk = _FINE
        self._control.write_bytes(_CONTROL.pack(0, 0))

    @property
    def prefix(self) -> list[str]:
        """Return the command that runs another command with these faults, in the same process."""
        named = {
            "LD_PRELOAD": _library(), "PYLOGD_TEST_CONTROL": self._control, "PYLOGD_TEST_SYNCED": self._synced,
            "PYLOGD_TEST_FAILING": self._failing, "PYLOGD_TEST_DISKS": self._disks,
        }  # fmt: skip
        return ["env", *(f"{key}={value}" for key, value in named.items() if value is not None)]

    def step(self, seconds: float) -> None:
        """Set how many seconds the wall clock of the process is ahead of the machine's; negative for behind."""
        self.step_seconds = seconds
        self._write()

    def fail(self, failing: bool) -> None:
        """Let writes and syncs below the directory fail with EIO from now on, or succeed again."""
        self._disk = _FAILS if failing else _FINE
        self._write()

    def hang(self, hanging: bool) -> None:
        """Let writes and syncs below the directory not return from now on, or succeed, those that hang included."""
        self._disk = _HANGS if hanging else _FINE
        self._write()

    def freeze(self, frozen: bool) -> None:
        """Let writes and syncs below all of the disks not return from now on, or succeed, those that hang included."""
        self._disk = _ALL_HANG if frozen else _FINE
        self._write()

    def stand_still(self, still: bool) -> None:
        """Let the process's first thread not return from its next wait for events (epoll_wait), or continue.

        The reactor stands still then, and all other threads go on.
        """
        self._disk = _STANDS if still else _FINE
        self._write()

    def slow(self, slow: bool) -> None:
        """Let each write and sync below the directory take 0.3 s from now on, or as long as it needs."""
        self._disk = _SLOW if slow else _FINE
        self._write()

    def _write(self) -> None:
        fd = os.open(self._control, os.O_WRONLY)
        try:
            os.pwrite(fd, _CONTROL.pack(int(self.step_seconds * _NS), self._disk), 0)
        finally:
            os.close(fd)

    def lose_power(self, folders: list[Path], rng: random.Random) -> int:
        """Truncate the files of a killed process as a loss of power may leave them. Return how many bytes are lost.


        Synced bytes and names of files are kept. Of later bytes a random part is kept, from the file's start on; mostly
        none. A real failure may keep less. Afterwards everything that is left counts as synced.
        """
        durable = self._durable()
        lost = 0
        with self._synced.open("a") as notes:
            for path, status in _files(folders):
                kept = min(durable.get(status.st_ino, 0), status.st_size)
                if rng.random() < 0.3:
                    kept = rng.randint(kept, status.st_size)
                if kept < status.st_size:
                    os.truncate(path, kept)
                    lost += status.st_size - kept
                notes.write(f"s {status.st_ino} {kept}\n")
        return lost

    def _durable(self) -> dict[int, int]:
        """Return by inode how many bytes from a file's start have been synced."""
        durable: dict[int, int] = {}
        if self._synced.exists():
            for line in self._synced.read_text().splitlines():
                what, inode, size = line.split()
                known = durable.get(int(inode), 0)
                durable[int(inode)] = int(size) if what == "s" else min(known, int(size))
        return durable


def _files(folders: list[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield path, path.stat()
