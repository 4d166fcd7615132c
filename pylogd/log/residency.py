"""Ask the kernel how much of a part of a file is not in memory, without having it read ahead.

`preadv` with RWF_NOWAIT says whether it would wait for one place in a file, and has the kernel begin to read ahead from
there: the next one who asks for the same place is told that it is in memory, whatever is missing behind it. `mincore`
only looks, and counts a page that is still being read as missing. Python has no function for it, and none that gives
the address of a mapping that can't be written.

Source: mincore(2), mm/mincore.c of Linux.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

_PAGE: Final = mmap.PAGESIZE
_FAILED: Final = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_map = _libc.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong)
_unmap = _libc.munmap
_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_mincore = _libc.mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)


def missing_bytes(fd: int, position: int, length: int) -> int:
    """Return how many bytes of a range of a file are not in memory, in whole pages; 0 if the kernel can't tell.

    It tells only the owner of a file, or who may write to it.
    """
    if length <= 0:
        return 0
    start = position - position % _PAGE
    size = position + length - start
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
