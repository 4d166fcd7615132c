"""How much of a file the kernel's page cache holds. Reading it to find out would change that: kernels read ahead."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path


def cached_share(path: Path) -> float:
    """Return the share of a file's pages that are in the page cache (mincore(2))."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    resident = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        start = ctypes.c_char.from_buffer(mapped)
        failed = libc.mincore(ctypes.byref(start), ctypes.c_size_t(size), resident)
        del start
    if failed:
        raise OSError(ctypes.get_errno(), "mincore failed", str(path))
    return sum(flags & 1 for flags in resident) / pages


def can_be_dropped(path: Path) -> bool:
    """Return whether the file system of a new file at `path` drops pages when it is told to; tmpfs does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(1 << 20))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return cached_share(path) < 0.5
