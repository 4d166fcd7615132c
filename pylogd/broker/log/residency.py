"""Ask the kernel how much of a range of a file is not in memory, without starting read-ahead.

`preadv` with RWF_NOWAIT says whether it would wait for one position of a file, and makes the kernel begin to read ahead
from there. The next such call for the same position then finds it in memory, whatever is missing after it. `cachestat`
(Linux 6.5) and `mincore` only look. `cachestat` takes 2 us for a range of any size, and counts a page that is still
being read as present. `mincore`, for older kernels, takes 30 us for 1 MiB, and counts such a page as missing.

Python has no function for either, and none that gives the address of a read-only mapping. A fetch of records that were
not just written asks twice, so the compiled `_residency` makes the call. ctypes is used only where `_residency` is
not loaded.

Source: cachestat and mincore(2), mm/filemap.c and mm/mincore.c of Linux.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Final

from pylogd.base.compiled import load

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

    The kernel tells this only to the owner of a file and to those who may write to it.
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
    """Ask `cachestat` how many pages of a range are in memory. Return None if the kernel does not say."""
    found = _Statistics()
    return None if _syscall(_CACHESTAT, fd, _Range(start, size), found, 0) else int(found[0])


def _not_in_core(fd: int, start: int, size: int) -> int:
    """Do the work of `missing_bytes` with `mincore`.

    start: the first byte of a page.
    """
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
#: Sends bytes (2) to a socket (1: descriptor), and after them a range of a file (3: descriptor, 4: position, 5: length)
#: that is in memory, as far as the socket takes them. Returns how many bytes were sent in total. It sends nothing and
#: returns -1 if the range is not in memory, or if that can't be told.
send_resident: Callable[[int, bytes, int, int, int], int] = leave
_residency = load("pylogd.broker.log._residency")
if _residency is not None:
    pages_in_memory, send_resident = _residency.pages_in_memory, _residency.send_resident
