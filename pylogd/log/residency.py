"""Ask the kernel how much of a part of a file is not in memory, without having it read ahead.

`preadv` with RWF_NOWAIT says whether it would wait for one place in a file, and has the kernel begin to read ahead from
there: the next one who asks for the same place is told that it is in memory, whatever is missing behind it. `cachestat`
(Linux 6.5) and `mincore` only look. `cachestat` takes 2 us for a range of any size, and counts a page that is still
being read as there; `mincore`, for older kernels, takes 30 us for 1 MiB, and counts it as missing. Python has no
function for either, and none that gives the address of a mapping that can't be written. A fetch of records that were
not just written asks twice, so the compiled `_residency` makes the call, and ctypes only where that is missing.

Source: cachestat and mincore(2), mm/filemap.c and mm/mincore.c of Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Callable
from typing import Final

_PAGE: Final = mmap.PAGESIZE
_FAILED: Final = ctypes.c_void_p(-1).value
_CACHESTAT: Final = 451  # the system call's number on all machines but Alpha
_libc = ctypes.CDLL(None, use_errno=True)
_map = _libc.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong)
_unmap = _libc.munmap
_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_mincore = _libc.mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_Range = ctypes.c_uint64 * 2  # position, length
_Statistics = ctypes.c_uint64 * 5  # pages in memory, dirty, being written back, evicted, evicted recently


def missing_bytes(fd: int, position: int, length: int) -> int:
    """Return how many bytes of a range of a file are not in memory, in whole pages; 0 if the kernel can't tell.

    It tells only the owner of a file, or who may write to it.
    """
    if length <= 0:
        return 0
    start = position - position % _PAGE
    size = position + length - start
    there = pages_in_memory(fd, start, size)
    if there is None:
        return _not_in_core(fd, start, size)
    missing = (size + _PAGE - 1) // _PAGE - there
    return missing * _PAGE if missing > 0 else 0


def ask_by_ctypes(fd: int, start: int, size: int) -> int | None:
    """Return how many pages of a range are in memory, by `cachestat`; None if the kernel does not say."""
    found = _Statistics()
    return None if _syscall(_CACHESTAT, fd, _Range(start, size), found, 0) else int(found[0])


def _not_in_core(fd: int, start: int, size: int) -> int:
    """Do as `missing_bytes`, by `mincore`. start: the first byte of a page."""
    address = _map(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, start)
    if address == _FAILED:
        return 0
    pages = ctypes.create_string_buffer((size + _PAGE - 1) // _PAGE)
    try:
        if _mincore(address, size, pages):
            return 0
    finally:
        _unmap(address, size)
    return pages.raw.count(b"\0") * _PAGE


def leave(_socket: int, _head: bytes, _fd: int, _position: int, _length: int) -> int:
    """Return -1: nothing was sent."""
    return -1


pages_in_memory: Callable[[int, int, int], int | None] = ask_by_ctypes
#: Sends bytes (2) and, behind them, a range of a file (3: descriptor, 4: position, 5: length) that is in memory, as far
#: as a socket (1: descriptor) takes them. Returns how many bytes of both left, -1 if it sent nothing because the range
#: is not in memory, or it can't tell.
send_resident: Callable[[int, bytes, int, int, int], int] = leave
with contextlib.suppress(ImportError):  # it could not be compiled
    from pylogd.log import _residency

    pages_in_memory, send_resident = _residency.pages_in_memory, _residency.send_resident
