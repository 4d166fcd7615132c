"""Reading parts of files into the kernel's page cache, so that a `sendfile` of them does not wait for the disk."""

from __future__ import annotations

import contextlib
import os
from threading import Lock
from typing import Final, cast

from pylogd.net.sender import BlockSlice, Slice

_CHUNK_BYTES = 1 << 17


class ByteCount:
    """A sum of bytes that threads add to."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = Lock()

    def add(self, count: int) -> None:
        """Add `size` bytes."""
        with self._lock:
            self.total += count


#: What `read_ahead` was asked for in this process.
READ_AHEAD: Final = ByteCount()


def read_ahead(source: Slice, position: int, length: int) -> None:
    """Read a chunk of a slice as `Sender` asks for. Waits for the disk: run it in a thread."""
    READ_AHEAD.add(length)
    if source.in_blocks:
        cast(BlockSlice, source).load(position, length)
    else:
        read_into_page_cache(source, position, length)


def read_into_page_cache(source: Slice, position: int, length: int) -> None:
    """Read `length` bytes of a slice and forget them; the kernel keeps them. Waits for the disk: run it in a thread."""
    scratch = bytearray(_CHUNK_BYTES)
    fd = source.fileno()
    end = position + length
    with contextlib.suppress(OSError):  # the descriptors of old segments do not read ahead by themselves
        os.posix_fadvise(fd, position, length, os.POSIX_FADV_WILLNEED)
    while position < end:
        count = os.preadv(fd, [memoryview(scratch)[: end - position]], position)
        if not count:
            return  # the file is shorter; the sender finds that out
        position += count
