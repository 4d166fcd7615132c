"""Files as storage sees them: a file system that is passed in, and segment files that outlive their names.

Strategy: `FileSystem` is the short list of calls that storage makes, on plain integer descriptors, so that the real one
costs nothing (its methods are the functions of `os`) and a faulty one in memory is small. A `SegmentFile` owns one
descriptor and closes it when the last reference goes: a reader that holds a `FileSlice` is undisturbed when retention
deletes the segment under it. Descriptors of older segments are opened when they are asked for and kept in a bounded
least-recently-used cache.

Rules: no symbolic link is followed in the place of a file (`ELOOP`) or of a partition's directory: who can write to a
data directory must not make the broker write elsewhere. Files are the owner's to write and the group's to read.
Every `OSError` leaves here as it is; who knows the operation turns it into a `StorageFailure`. Nothing in this
module knows what the bytes mean.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

_log = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview

#: `preadv` flag: fail with EAGAIN instead of waiting for the disk. 0 where the system has no such thing.
NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)

#: What a kernel answers when it can't do without waiting on this file system (tmpfs, some network ones).
_NOWAIT_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS})

#: Of a file that is written to take another's place.
TEMPORARY_SUFFIX = ".tmp"

#: For the cache of older segments (256), the metadata store, the event loop, threads.
_OTHER_DESCRIPTORS = 384
_MODE = 0o640
_DIRECTORY_MODE = 0o750


def most_partitions(descriptors: int) -> int:
    """How many partitions a process may hold that can open so many files.

    Each keeps its newest segment open. A part is left for older segments, for connections and for what opens files for
    a moment: without it a broker could make partitions with which it can't start again.
    """
    return max((descriptors - _OTHER_DESCRIPTORS) * 3 // 4, descriptors // 4)


class FileSystem(Protocol):
    """The calls that storage makes. Paths are absolute; descriptors are those of `open`; errors are `OSError`s."""

    def open(self, path: str, flags: int) -> int:
        """A descriptor of the file, opened with the flags of `os`; ELOOP if the file is a symbolic link."""

    def close(self, fd: int) -> None:
        """Give the descriptor back."""

    def pread(self, fd: int, length: int, position: int) -> bytes:
        """Up to `length` bytes from `position`."""

    def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], position: int, flags: int = 0) -> int:
        """Read into the buffers; how many bytes there were. With `NOWAIT`, EAGAIN rather than wait for the disk."""

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write the buffers one after the other at `position`; how many bytes were written, which may be fewer."""

    def fsync(self, fd: int) -> None:
        """Return once the file's bytes and size are on stable storage."""

    def fsync_dir(self, path: str) -> None:
        """Return once the directory's entries are on stable storage."""

    def ftruncate(self, fd: int, size: int) -> None:
        """Cut, or extend with zeros, to `size` bytes."""

    def size(self, path: str) -> int:
        """The file's size in bytes."""

    def mtime_ms(self, path: str) -> int:
        """When the file was last written, in milliseconds since 1970."""

    def rename(self, source: str, target: str) -> None:
        """Give a file or directory another name, atomically, replacing a file of that name."""

    def unlink(self, path: str) -> None:
        """Remove a file."""

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, in no order."""

    def isdir(self, path: str) -> bool:
        """Whether the path is a directory, and no link to one."""

    def islink(self, path: str) -> bool:
        """Whether the path is a symbolic link."""

    def exists(self, path: str) -> bool:
        """Whether there is anything of that name."""

    def identity(self, path: str) -> tuple[int, int]:
        """Device and inode of what the path names now."""

    def mkdir(self, path: str) -> None:
        """Make the directory and those above it; it may be there already."""

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""

    def space(self, path: str) -> tuple[int, int]:
        """Total and usable bytes of the volume that holds `path`."""

    def lock(self, path: str) -> int | None:
        """A descriptor that holds the lock on the file until it is closed; `None` if another process has it."""


class RealFileSystem:
    """The operating system's. The hot calls are the functions of `os` themselves."""

    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    preadv = staticmethod(os.preadv)
    pwritev = staticmethod(os.pwritev)
    fsync = staticmethod(os.fdatasync if hasattr(os, "fdatasync") else os.fsync)
    ftruncate = staticmethod(os.ftruncate)
    size = staticmethod(os.path.getsize)
    rename = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)
    islink = staticmethod(os.path.islink)
    exists = staticmethod(os.path.lexists)
    rmdir = staticmethod(os.rmdir)

    def open(self, path: str, flags: int) -> int:
        """A descriptor that child processes don't inherit."""
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)

    def isdir(self, path: str) -> bool:
        """Whether the path is a directory, and no link to one."""
        return os.path.isdir(path) and not os.path.islink(path)

    def mtime_ms(self, path: str) -> int:
        """When the file was last written."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, in no order."""
        return os.listdir(path)

    def identity(self, path: str) -> tuple[int, int]:
        """Device and inode of what the path names now."""
        status = os.stat(path)
        return status.st_dev, status.st_ino

    def mkdir(self, path: str) -> None:
        """Make the directory and those above it."""
        os.makedirs(path, _DIRECTORY_MODE, exist_ok=True)

    def fsync_dir(self, path: str) -> None:
        """Return once the directory's entries are on stable storage."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def space(self, path: str) -> tuple[int, int]:
        """Total and usable bytes of the volume."""
        status = os.statvfs(path)
        return status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail

    def lock(self, path: str) -> int | None:
        """An `flock`: the kernel lets go of it however the process ends."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return None
            raise
        return fd


class SegmentFile:
    """One open file. The descriptor is closed when the last reference to this object goes."""

    __slots__ = ("__weakref__", "_close", "fd", "fs", "path")

    def __init__(self, fs: FileSystem, path: str, flags: int = os.O_RDONLY) -> None:
        self._close: Callable[[int], None] | None = None
        self.fs = fs
        self.path = path
        self.fd = fs.open(path, flags)
        self._close = fs.close

    def __del__(self) -> None:
        if self._close is not None:
            self._close(self.fd)
            self._close = None

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes, fewer only at the file's end. May wait for the disk."""
        return self.fs.pread(self.fd, length, position)

    def read_warm(self, position: int, length: int) -> bytearray | None:
        """The bytes if the page cache has them, `None` if the disk would have to be waited for.

        A file system that can't tell (tmpfs lives in memory) counts as warm. Fewer bytes mean the end of the file or
        that the rest is cold: the caller knows the file's size.
        """
        buffer = bytearray(length)
        try:
            count = self.fs.preadv(self.fd, [buffer], position, NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _NOWAIT_UNSUPPORTED:
                raise
            count = self.fs.preadv(self.fd, [buffer], position)
        if count != length:
            del buffer[count:]
        return buffer


class FileSlice:
    """A run of bytes in a segment file, ready for `sendfile`. Holding it keeps the file readable."""

    __slots__ = ("file", "length", "position")

    def __init__(self, file: SegmentFile, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"FileSlice({self.file.path!r}, {self.position}, {self.length})"

    def fileno(self) -> int:
        """The descriptor, valid as long as this object is."""
        return self.file.fd

    def read(self) -> bytes:
        """All of it, copied; fewer bytes if the file was cut. May wait for the disk."""
        position, left = self.position, self.length
        parts = []
        while left:
            part = self.file.read(position, left)
            if not part:
                break
            parts.append(part)
            position += len(part)
            left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def copy(self) -> bytearray | None:
        """All of it, `None` where that would wait for the disk, or the file was cut."""
        data = self.file.read_warm(self.position, self.length)
        return data if data is not None and len(data) == self.length else None

    def is_warm(self, position: int, length: int) -> bool:
        """Whether the page cache has `length` bytes at the file's `position`: its first and last byte are tried.

        Each try reads one byte without waiting. A file system that can't tell counts as warm.
        """
        read_warm = self.file.read_warm
        return bool(read_warm(position, 1)) and (length <= 1 or bool(read_warm(position + length - 1, 1)))


V = TypeVar("V")


class LruCache(Generic[V]):
    """Values by path, the longest unused dropped once their weights sum to more than `capacity`. Thread-safe."""

    def __init__(self, capacity: int, weigh: Callable[[V], int]) -> None:
        self.capacity = capacity
        self.weight = 0
        self._weigh = weigh
        self._entries: OrderedDict[str, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str) -> V | None:
        """The value, which is now the last to be dropped, or `None`."""
        with self._lock:
            value = self._entries.get(path)
            if value is not None:
                self._entries.move_to_end(path)
            return value

    def put(self, path: str, value: V) -> None:
        """Keep the value; one value is always kept, however heavy."""
        with self._lock:
            self._drop(path)
            self._entries[path] = value
            self.weight += self._weigh(value)
            while self.weight > self.capacity and len(self._entries) > 1:
                _, old = self._entries.popitem(last=False)
                self.weight -= self._weigh(old)

    def discard(self, path: str) -> None:
        """Forget the value, if there is one."""
        with self._lock:
            self._drop(path)

    def _drop(self, path: str) -> None:
        old = self._entries.pop(path, None)
        if old is not None:
            self.weight -= self._weigh(old)


class SyncFailed(OSError):
    """A sync failed: what was written before may be lost, and a further sync that succeeds says nothing about it."""


def sync_file(fs: FileSystem, fd: int, path: str) -> None:
    """Return once the file's bytes are on stable storage; `SyncFailed` if that can't be said."""
    try:
        fs.fsync(fd)
    except OSError as error:
        raise SyncFailed(error.errno, f"sync failed: {error.strerror}", path) from error


def sync_directory(fs: FileSystem, path: str) -> None:
    """Return once the directory's entries are on stable storage; `SyncFailed` if that can't be said."""
    try:
        fs.fsync_dir(path)
    except OSError as error:
        raise SyncFailed(error.errno, f"sync failed: {error.strerror}", path) from error


def write_all(fs: FileSystem, fd: int, data: Buffer, position: int = 0) -> None:
    """Write all of `data`, however many calls it takes."""
    view = memoryview(data)
    while view:
        count = fs.pwritev(fd, [view], position)
        if count <= 0:
            raise OSError(errno.EIO, "nothing was written")
        position += count
        view = view[count:]


def write_atomically(fs: FileSystem, path: str, data: bytes) -> None:
    """Replace the file by one that holds `data`: a reader, or a crash, sees the old one or the new one."""
    temporary = path + TEMPORARY_SUFFIX
    try:
        write_file(fs, temporary, data, sync=True)
        fs.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            fs.unlink(temporary)
        raise
    sync_directory(fs, os.path.dirname(path))


def replace_file(fs: FileSystem, path: str, data: bytes, *, sync: bool) -> None:
    """Write the file whole or not at all, for what can be rebuilt: the directory is left for the caller to sync."""
    temporary = path + TEMPORARY_SUFFIX
    write_file(fs, temporary, data, sync=sync)
    fs.rename(temporary, path)


def write_file(fs: FileSystem, path: str, data: bytes, *, sync: bool) -> None:
    """Write the file in place. A symbolic link of that name is removed, not followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        fd = fs.open(path, flags)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        _log.warning("%s was a symbolic link, which is not followed: it is replaced by a file", path)
        fs.unlink(path)
        fd = fs.open(path, flags)
    try:
        write_all(fs, fd, data)
        if sync:
            sync_file(fs, fd, path)
    finally:
        fs.close(fd)


def read_file(fs: FileSystem, path: str) -> bytes:
    """The whole file."""
    fd = fs.open(path, os.O_RDONLY)
    try:
        parts = []
        position = 0
        while part := fs.pread(fd, 1 << 20, position):
            parts.append(part)
            position += len(part)
        return b"".join(parts)
    finally:
        fs.close(fd)


def remove_tree(fs: FileSystem, path: str) -> None:
    """Remove a directory and all that is in it."""
    for name in fs.listdir(path):
        child = os.path.join(path, name)
        if fs.isdir(child):
            remove_tree(fs, child)
        else:
            fs.unlink(child)
    fs.rmdir(path)
