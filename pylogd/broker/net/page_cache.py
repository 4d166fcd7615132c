"""Read parts of files into the kernel's page cache, so that a `sendfile` of them does not wait for the disk."""

from __future__ import annotations

import contextlib
import os
from threading import Lock
from typing import Final, cast

from pylogd.broker.net.sender import BlockSlice, Slice

_CHUNK_BYTES = 1 << 17
#: How much is read ahead after a cold chunk: a multiple of its size, at most `_MOST_AHEAD` bytes.
AHEAD: Final = 8
_MOST_AHEAD: Final = 1 << 23
#: A file counts as read in order if the byte this far before a chunk is in memory. A look-up of an offset does not read
#: that byte: it reads batch headers from the last index entry on, which is nearer to the chunk.
_BEFORE: Final = 1 << 16


class ByteCount:
    """A sum of bytes that threads add to."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = Lock()

    def add(self, count: int) -> None:
        """Add `size` bytes."""
        with self._lock:
            self.total += count


#: The bytes that `read_ahead` was asked to read in this process.
READ_AHEAD: Final = ByteCount()


def read_ahead(source: Slice, position: int, length: int) -> None:
    """Read a chunk of a slice for a `Sender`. Waits for the disk: run it in a thread."""
    READ_AHEAD.add(length)
    if source.in_blocks:
        cast(BlockSlice, source).load(position, length)
    else:
        read_into_page_cache(source, position, length)


def read_into_page_cache(source: Slice, position: int, length: int) -> None:
    """Read `length` bytes of a slice into the page cache. Waits for the disk: run it in a thread.

    If the file seems to be read in order, the disk starts to read the next bytes, up to `AHEAD` times as many, while
    this part is sent. Nobody waits for that, and the next parts need no thread.
    """
    scratch = bytearray(_CHUNK_BYTES)
    fd = source.fileno()
    end = position + length
    in_order = position < _BEFORE or not source.missing(position - _BEFORE, 1)
    _ask_for(fd, position, length)
    ahead = min(AHEAD * length, _MOST_AHEAD, os.fstat(fd).st_size - end)
    if in_order and ahead > 0 and source.missing(end, ahead) > ahead // 2:
        READ_AHEAD.add(ahead)
        _ask_for(fd, end, ahead)
    while position < end:
        count = os.preadv(fd, [memoryview(scratch)[: end - position]], position)
        if not count:
            return  # the file is shorter; the sender will find that out
        position += count


def _ask_for(fd: int, position: int, length: int) -> None:
    """Have the kernel read a part of a file, without waiting: segment files have no read-ahead of their own.

    A call for more bytes than fit into one request to the device (often 128 KB) would be cut short.
    """
    with contextlib.suppress(OSError):
        for at in range(position, position + length, _CHUNK_BYTES):
            os.posix_fadvise(fd, at, min(_CHUNK_BYTES, position + length - at), os.POSIX_FADV_WILLNEED)
