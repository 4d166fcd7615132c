"""Sync a whole volume with one call, in place of thousands of files one by one.

A broker that closes or recovers 10,000 logs has some 50,000 files and directories to make durable. A sync of each waits
for the disk, and each commits the journal of the file system. `syncfs` writes all that is dirty and commits once.

Rules: `syncfs` is used only where it is known to write everything and to report what could not be written: on Linux 5.8
and newer, and on the file systems below. The errors reported are those since the descriptor was opened; a data
directory's lock is open as long as the directory is in use, so that none is missed. An error may be that of another
program's file: the logs count as not synced then, which costs a recovery and loses nothing.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable
from typing import Final

#: The types of ext2 to ext4, XFS, Btrfs and F2FS in the result of `fstatfs` (linux/magic.h).
_KNOWN_TYPES: Final = frozenset({0xEF53, 0x58465342, 0x9123683E, 0xF2F52010})
_REPORTS_ERRORS: Final = (5, 8)
_STATFS_BYTES: Final = 256  # more than the size of the structure on any architecture; it begins with the type, a long


def _find_functions() -> tuple[Callable[..., int], Callable[..., int]] | None:
    """Return `syncfs` and `fstatfs` if this is a Linux whose `syncfs` reports errors; None on other systems."""
    release = platform.release().split(".")
    if platform.system() != "Linux" or tuple(int(part) for part in release[:2] if part.isdigit()) < _REPORTS_ERRORS:
        return None
    try:
        library = ctypes.CDLL(None, use_errno=True)
        return library.syncfs, library.fstatfs
    except (OSError, AttributeError):
        return None


_functions: Final = _find_functions()


def can_sync_volume(fd: int) -> bool:
    """Return whether `sync_volume` makes everything durable on the volume that contains an open file."""
    if _functions is None:
        return False
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if _functions[1](fd, buffer):
        return False
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF in _KNOWN_TYPES


def sync_volume(fd: int) -> None:
    """Make everything durable that was written to the volume of `fd`. Waits for the disk.

    Raises OSError if anything on the volume could not be written since `fd` was opened.
    """
    assert _functions is not None, "can_sync_volume says whether this may be called"
    if _functions[0](fd):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
