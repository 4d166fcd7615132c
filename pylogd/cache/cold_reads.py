"""Read bytes that the block cache does not hold, past the kernel's page cache, into reused buffers.

Strategy: the file is opened a second time with O_DIRECT, so that the disk writes into the buffer itself: no pages are
found, filled, copied and given up again, which costs the processor several times as much as the read. What is all in
the page cache (written just now, or before a restart) is copied from there. Where there is no O_DIRECT (other systems,
some file systems) every read is one of the page cache.

Rules: files that are written to are not read by O_DIRECT, since ext4 makes writers of a file wait for such reads of it
(`inode_lock_shared`, for as long as the disk takes). Positions, lengths and memory are aligned for disks with blocks of
4 KiB. A buffer belongs to what was read into it until that is forgotten, by a slow client's slice after a long time: so
only a few are large, and the others small.

Threads: `read` runs in any; buffers come back from any.
"""

from __future__ import annotations

import errno
import mmap
from typing import Final

from pylogd.log.files import SegmentFile

#: The size of a large buffer, and so of one read. When all of them are in use, readers get small buffers.
LARGE_BYTES: Final = 1 << 20
SMALL_BYTES: Final = 1 << 17
_LARGE_BUFFERS: Final = 8
_KEPT: Final = 8  # buffers of a size that wait to be used again; more are freed
_ALIGNMENT: Final = 4096
_NOT_DIRECT: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP})


class LoadedBytes:
    """Bytes that were read from a file. position: of the first byte; end: after the last one."""

    __slots__ = ("_free", "_memory", "_start", "end", "position")

    def __init__(self, free: list[memoryview], memory: memoryview, position: int, start: int, count: int) -> None:
        """free: the list that gets the buffer back at the end.

        start, count: the position of the bytes in the buffer.
        """
        self._free = free
        self._memory = memory
        self._start = start
        self.position = position
        self.end = position + count

    def __del__(self) -> None:
        if len(self._free) < _KEPT:
            self._free.append(self._memory)

    def view(self, position: int, length: int) -> memoryview:
        """Return a view of at most `length` bytes from `position` on, to be used while this object exists."""
        at = self._start + position - self.position
        return self._memory[at : at + min(length, self.end - position)]


class ReadBuffers:
    """The buffers of a broker. They are made when they are needed; see the module."""

    def __init__(self, large_buffers: int = _LARGE_BUFFERS) -> None:
        """large_buffers: how many at most; `_KEPT` or fewer."""
        self._large: list[memoryview] = []
        self._small: list[memoryview] = []
        self._large_left = large_buffers  # to be made

    def read(self, file: SegmentFile, position: int, length: int, *, direct: bool) -> LoadedBytes:
        """Return bytes from `position` on: `length`, or what a buffer holds; none at the end of the file.

        direct: whether to read past the page cache, if anything is missing there: not for a file that is written to.
        Waits for the disk. Raises OSError.
        """
        free, memory, size = self._take(length)
        start = position % _ALIGNMENT
        count = min(length, size)
        try:
            found = None
            if direct and file.fs.missing(file.fd, position, count):
                found = _read_direct(file, memory[: -(-(start + count) // _ALIGNMENT) * _ALIGNMENT], position - start)
            if found is None:
                found = start + file.fs.preadv(file.fd, [memory[start : start + count]], position)
        except BaseException:
            free.append(memory)
            raise
        return LoadedBytes(free, memory, position, start, min(max(found - start, 0), count))

    def _take(self, length: int) -> tuple[list[memoryview], memoryview, int]:
        """Return a free buffer, the list to which it is given back, and its size."""
        if length > SMALL_BYTES:
            try:
                return self._large, self._large.pop(), LARGE_BYTES
            except IndexError:
                if self._large_left > 0:
                    self._large_left -= 1
                    return self._large, _new_buffer(LARGE_BYTES), LARGE_BYTES
        try:
            return self._small, self._small.pop(), SMALL_BYTES
        except IndexError:
            return self._small, _new_buffer(SMALL_BYTES), SMALL_BYTES


def _new_buffer(size: int) -> memoryview:
    """Return aligned memory for `size` bytes that begin anywhere in a block of the disk."""
    return memoryview(mmap.mmap(-1, size + _ALIGNMENT, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def _read_direct(file: SegmentFile, memory: memoryview, position: int) -> int | None:
    """Fill `memory` from the disk. Return how many bytes that were, None if this file can't be read so."""
    fd = file.fs.open_direct(file.fd)
    if fd is None:
        return None
    try:
        return file.fs.preadv(fd, [memory], position)
    except OSError as error:
        if error.errno not in _NOT_DIRECT:
            raise
        return None
    finally:
        file.fs.close(fd)
