"""Disk space that is kept for the metadata: a file that is removed when the disk is full.

Without it a broker whose disk is full could neither register itself at a start nor note that a topic is deleted, so
that nothing could be deleted through it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

SUFFIX: Final = "-spare"
_BYTES: Final = 2 << 20
#: The file is made only if this much more is free, so that it does not take the space for which it was given up.
_LEAST_FREE: Final = 8 * _BYTES


class SpareRoom:
    """The spare file of another file."""

    def __init__(self, beside: Path) -> None:
        self._path = beside.with_name(beside.name + SUFFIX)
        self._kept = False

    def keep(self) -> None:
        """Make the file if it is missing and there is space for it. If that fails, there is no spare file."""
        if self._kept:
            return
        with suppress(OSError):
            self._kept = self._path.exists() or self._make()

    def give_up(self) -> bool:
        """Remove the file. Return False if there is none."""
        self._kept = False
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def give_up_if_full(self) -> None:
        """At a start, remove the file if next to nothing is free on its disk."""
        with suppress(OSError):
            volume = os.statvfs(self._path.parent)
            if volume.f_bavail * volume.f_frsize < _BYTES // 2:
                self.give_up()

    def _make(self) -> bool:
        volume = os.statvfs(self._path.parent)
        if volume.f_bavail * volume.f_frsize < _LEAST_FREE:
            return False
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(fd, 0, _BYTES)
        except OSError:
            self._path.unlink()
            raise
        finally:
            os.close(fd)
        return True
