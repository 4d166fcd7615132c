"""A file system that kills its own process with SIGKILL at a chosen call.

`tests/crash/child.py` passes it to a broker; there is no setting for it.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pylogd.broker.log.files import Buffer, RealFileSystem

BEFORE, HALF, AFTER = "before", "half", "after"

#: Kinds of kill points. For each: calls of `FileSystem` with the end of the path (of a rename: the old one), and how
#: many such calls may pass before at most. "recovery": what a start after a crash does to the files.
KINDS: Mapping[str, tuple[Sequence[tuple[str, str]], int]] = {
    "write": ([("pwritev", ".log")], 150),
    "roll": ([("create", ".log")], 3),
    "sync": ([("fsync", ".log"), ("fsync_dir", "")], 4),
    "index": ([("pwritev", "index.tmp"), ("create", "index.tmp"), ("rename", "index.tmp"), ("unlink", ".index")], 3),
    "snapshot": ([("pwritev", ".snapshot.tmp"), ("rename", ".snapshot.tmp"), ("unlink", ".snapshot")], 2),
    "checkpoint": ([("pwritev", "checkpoint.tmp"), ("fsync", "checkpoint.tmp"), ("rename", "checkpoint.tmp")], 5),
    "rename": ([("rename", "")], 6),
    "retention": ([("rename", ".log"), ("rename", "index"), ("unlink", ".deleted")], 2),
    "compaction": (
        [
            ("create", ".log.cleaned"),
            ("pwritev", ".log.cleaned"),
            ("fsync", ".cleaned"),
            ("pwritev", "index.cleaned.tmp"),
            ("rename", ".cleaned"),
            ("rename", ".swap"),
            ("rename", ".log"),
        ],
        6,
    ),
    "recovery": ([("ftruncate", ""), ("pwritev", "index.tmp"), ("fsync", ""), ("unlink", ""), ("rename", "")], 6),
}


@dataclass(slots=True, frozen=True)
class KillPoint:
    """Kill the process at the `count`-th call of `operation` on a path that ends with `suffix`.

    when: BEFORE or AFTER the call; HALF writes half of the bytes of a write.
    """

    kind: str
    operation: str
    suffix: str
    count: int
    when: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.when} call {self.count} of {self.operation} *{self.suffix}"

    def as_json(self) -> dict[str, Any]:
        """Return the fields, to send them to the child process."""
        return asdict(self)


def choose(kind: str, rng: random.Random) -> KillPoint:
    """Choose a random point of a kind."""
    calls, most = KINDS[kind]
    operation, suffix = rng.choice(calls)
    when = rng.choice([BEFORE, HALF, AFTER] if operation == "pwritev" else [BEFORE, AFTER])
    return KillPoint(kind, operation, suffix, rng.randint(1, most), when)


class KillingFileSystem:
    """The operating system's file system, until the kill point is reached."""

    def __init__(self, point: KillPoint) -> None:
        self._real = RealFileSystem()
        self._point = point
        self._left = point.count
        self._paths: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def _hit(self, operation: str, path: str) -> bool:
        point = self._point
        if operation != point.operation or not path.endswith(point.suffix):
            return False
        self._left -= 1
        return self._left == 0

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _around(self, operation: str, path: str, call: Any, *arguments: Any) -> Any:
        hit = self._hit(operation, path)
        if hit and self._point.when == BEFORE:
            self._die()
        result = call(*arguments)
        if hit:
            self._die()
        return result

    def open(self, path: str, flags: int) -> int:
        operation = "create" if flags & os.O_CREAT else "open"
        fd: int = self._around(operation, path, self._real.open, path, flags)
        self._paths[fd] = path
        return fd

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        path = self._paths[fd]
        if self._hit("pwritev", path):
            data = b"".join(buffers)
            if self._point.when != BEFORE:
                os.pwrite(fd, data if self._point.when == AFTER else data[: len(data) // 2], position)
            self._die()
        return self._real.pwritev(fd, buffers, position)

    def fsync(self, fd: int) -> None:
        self._around("fsync", self._paths[fd], self._real.fsync, fd)

    def fsync_dir(self, path: str) -> None:
        self._around("fsync_dir", path, self._real.fsync_dir, path)

    def ftruncate(self, fd: int, size: int) -> None:
        self._around("ftruncate", self._paths[fd], self._real.ftruncate, fd, size)

    def rename(self, source: str, target: str) -> None:
        self._around("rename", source, self._real.rename, source, target)

    def unlink(self, path: str) -> None:
        self._around("unlink", path, self._real.unlink, path)
