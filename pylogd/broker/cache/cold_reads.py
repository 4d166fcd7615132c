"""Read bytes that are not in the block cache into reused buffers, bypassing the kernel's page cache.

Strategy: the file is opened a second time with O_DIRECT, so that the disk writes directly to the buffer. The page cache
would find, fill, copy and drop pages, which costs the processor several times as much as the read. Bytes that are all
in the page cache (just written, or from before a restart) are copied from there. Without O_DIRECT (other systems, some
file systems) every read uses the page cache.

Rules: files that are written to are not read by O_DIRECT, since ext4 makes writers of a file wait for such reads of it
(`inode_lock_shared`, for as long as the disk takes). Positions, lengths and memory are aligned for disks with blocks of
4 KiB. A buffer is in use until nothing refers to the bytes that were read into it; a slow client may refer to them for
a long time. So only a few buffers are large.

Threads: any thread may call `read`, and buffers come back from any thread.
"""

from __future__ import annotations

import errno
import mmap
from typing import Final

from pylogd.broker.log.files import SegmentFile

#: The size of a large buffer, and so of one read. When all large buffers are in use, readers get small ones.
LARGE_BYTES: Final = 1 << 20
SMALL_BYTES: Final = 1 << 17
_LARGE_BUFFERS: Final = 8
_KEPT: Final = 8  # the most unused buffers of a size; more are freed
_ALIGNMENT: Final = 4096
_NOT_DIRECT: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP})


class LoadedBytes:
    """Bytes that were read from a file.

    position: the position of the first byte.
    end: the position after the last byte.
    """

    __slots__ = ("_free", "_memory", "_start", "end", "position")

    def __init__(self, free: list[memoryview], memory: memoryview, position: int, start: int, count: int) -> None:
        """`free` is the list to which the buffer is given back in the end.

        start, count: the position and the number of the bytes in the buffer.
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
    """The buffers of a broker, which are made when they are needed. See the module."""

    def __init__(self, large_buffers: int = _LARGE_BUFFERS) -> None:
        """`large_buffers` is their largest number, at most `_KEPT`."""
        self._large: list[memoryview] = []
        self._small: list[memoryview] = []
        self._large_left = large_buffers  # the large buffers that are not made yet

    def read(self, file: SegmentFile, position: int, length: int, *, direct: bool) -> LoadedBytes:
        """Return up to `length` bytes from `position` on, as far as they fit in a buffer; none at the end of the file.

        direct: whether to bypass the page cache if it lacks bytes; not allowed for a file that is written to. Blocks on
        the disk.

        Raises OSError.
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
    """Fill `memory` from the disk. Return the number of bytes; None if this file can't be read directly."""
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
