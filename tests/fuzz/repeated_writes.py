"""Produce requests that repeat the last batch, appended to real files: the compiled write against that in Python.

Strategy: what `repeated_batches` does, with two brokers whose files are in the temporary folder. Only there does the
compiled function write by itself, because the file system's call is `os.pwritev`. The operating system makes writes
fail, on both brokers alike: the volume is full (/dev/full), the file may not grow, or only by a part of the write
(RLIMIT_FSIZE), or its descriptor can't be written. A segment may also have no file, or one with an odd descriptor.

The interpreter's profiling hook notes which functions in Python the compiled one calls: `RepeatedWrites.outcomes`
counts by them how its writes ended.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

from pylogd.broker.api.fast import produce
from pylogd.broker.log.files import RealFileSystem, read_file
from pylogd.broker.log.segment import Segment
from pylogd.wire.session import ServerSession
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts
from tests.fuzz.repeated_batches import Change, RepeatedBatches, Side, odd_attribute

_ODD_DESCRIPTORS: tuple[object, ...] = (-1, (1 << 31) - 1, 1 << 31, 1 << 63, None, "text")
_ROOM = (0, 1, 30, 700)  # bytes by which a file may still grow

#: What is noted when the compiled function calls it, directly or not.
_NOTED = {
    produce.answer_repeated_batch.__code__: "left to Python",
    Segment.write.__code__: "Segment.write",
    Segment.write_failed.__code__: "failed",
}
_WRITTEN = "written"
#: How writes of the compiled function end. In the last two, `Segment.write` writes again what was cut short at a limit,
#: and finds that there is no file.
OUTCOMES = (
    _WRITTEN, "failed ENOSPC", "failed EFBIG", "failed EBADF", "Segment.write > failed EFBIG", "Segment.write",
)  # fmt: skip


class _Unsynced(RealFileSystem):
    """Real files that nobody makes durable: each sync takes milliseconds, and is none of the compiled function's."""

    @staticmethod
    def fsync(fd: Any) -> None:
        """See `FileSystem`."""

    @staticmethod
    def sync_volume(fd: int) -> None:
        """See `FileSystem`."""

    def fsync_dir(self, path: str) -> None:
        """See `FileSystem`."""


class _RealParts(Parts):
    """The broker's parts on such files."""

    def boot(self) -> None:
        """See `Parts`."""
        self.fs = _Unsynced()  # type: ignore[assignment]
        assert self.fs.pwritev is os.pwritev
        super().boot()


class _DiskSide(Side):
    """A broker whose files are in a folder."""

    def _make_parts(self, folder: Path) -> Parts:
        self._logs = str(folder / "logs")
        # With queues for slow disks, a disk that is slow for a moment would leave all later writes to Python.
        return _RealParts(
            folder, log_dirs=self._logs, log_cleaner_enable=False, log_write_queues="off", log_validate_records="true"
        )

    def begin(self, name: str) -> None:
        """See `Side`. If the last input took the directory offline, use it again."""
        if self.offline:
            result_of(self.parts.hosting.reopen(self._logs))
        super().begin(name)

    def contents(self) -> object:
        """Return the names and the contents of all files of the log's segments."""
        fs, paths = self.parts.fs, [path for segment in self.log.segments for path in segment.file_paths()]
        return [(os.path.basename(path), read_file(fs, path)) for path in paths if fs.exists(path)]

    def fail_write(self, stack: ExitStack, partial_bytes: int | None, after: int) -> None:
        """See `Side`. after: ignored, all writes fail."""
        if partial_bytes is None:
            stack.enter_context(_descriptor_of(self, "/dev/full", os.O_RDWR))
        else:
            stack.enter_context(_limited(self, partial_bytes))


class RepeatedWrites(RepeatedBatches):
    """Two brokers that have files. outcomes: how many reads ended in which way; see `OUTCOMES` for those of writes."""

    make_side = _DiskSide

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: Counter[str] = Counter()

    def agree(self, number: int, module: Any) -> bool:
        """Assert that `module` handles input `number` as Python does; return whether it has written by itself."""
        before = self.outcomes[_WRITTEN]
        super().agree(number, module)
        return self.outcomes[_WRITTEN] > before

    def pick_change(self, chance: random.Random) -> tuple[Change, bool]:
        """See `RepeatedBatches`. Writes fail more often."""
        return (_failure(chance), False) if chance.random() < 0.25 else super().pick_change(chance)

    def append(self, function: Callable[..., Any], connection: Any, data: bytes, session: ServerSession) -> Any:
        """See `RepeatedBatches`. Count how it ended."""
        log, noted = self.sides[0].log, []
        end = log.log_end_offset

        def note(frame: FrameType, event: str, _: Any) -> None:
            name = _NOTED.get(frame.f_code) if event == "call" else None
            if name == "failed":
                number = frame.f_locals["error"].errno
                name = f"{name} {errno.errorcode.get(number, number)}"
            if name is not None:
                noted.append(name)

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            return function(connection, data, session)
        finally:
            sys.setprofile(before)
            self.outcomes[" > ".join(noted) or (_WRITTEN if log.log_end_offset > end else "refused")] += 1


# How writes fail ------------------------------------------------------------------------------------------------------


def _failure(chance: random.Random) -> Change:
    """Return a change because of which a write may fail."""
    room, odd = chance.choice(_ROOM), chance.choice(_ODD_DESCRIPTORS)
    match chance.randrange(12):
        case 0:
            return lambda side, stack: stack.enter_context(_descriptor_of(side, side.log.active.path, os.O_RDONLY))
        case 1:
            return lambda side, stack: stack.enter_context(
                odd_attribute(side, "segment", "file", SimpleNamespace(fd=odd))
            )
        case 2 | 3:
            return lambda side, stack: stack.enter_context(odd_attribute(side, "segment", "file", None))
        case 4 | 5 | 6:
            return lambda side, stack: side.fail_write(stack, None, 0)
    return lambda side, stack: side.fail_write(stack, room, 0)


@contextmanager
def _descriptor_of(side: Side, path: str, flags: int) -> Iterator[None]:
    """Have the active segment's descriptor be one of another file, or with other flags, until the end of the read."""
    file = side.log.active.file  # is not closed before the end
    before, other = os.dup(file.fd), os.open(path, flags)
    os.dup2(other, file.fd, inheritable=False)
    os.close(other)
    try:
        yield
    finally:
        os.dup2(before, file.fd, inheritable=False)
        os.close(before)


@contextmanager
def _limited(side: Side, room: int) -> Iterator[None]:
    """Let no file grow beyond the size of the active segment and so many bytes. Python ignores the signal SIGXFSZ."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (side.log.active.size + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
