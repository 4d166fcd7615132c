"""Ask the kernel how much of a part of a file is not in the page cache, without having it read ahead.

`preadv` with RWF_NOWAIT answers for one page, and has the kernel begin to read what is missing: asking would use the
disk that is to be spared. `cachestat` (Linux 6.5) only counts. Python has no function for it.

Source: mm/filemap.c of Linux, `cachestat(2)`.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

_CACHESTAT: Final = 451  # the number of the system call, the same on all architectures but Alpha
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


_syscall = ctypes.CDLL(None, use_errno=True).syscall


def missing_bytes(fd: int, position: int, length: int) -> int | None:
    """Return how many bytes of a range of a file have to be read from the disk, in whole pages.

    None if the kernel can't tell: before Linux 6.5, or for a file that is not ours.
    """
    if length <= 0:
        return 0
    counts = _Counts()
    wanted = _Range(position, length)
    if _syscall(_CACHESTAT, fd, ctypes.byref(wanted), ctypes.byref(counts), 0):
        return None
    pages = (position + length - 1) // _PAGE - position // _PAGE + 1
    return max(pages - int(counts.cached), 0) * _PAGE
