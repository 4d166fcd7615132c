"""Files as storage uses them: a file system that is passed in, and segment files that outlive their names.

`FileSystem` is the short list of calls that storage makes, on plain integer descriptors. The real one costs nothing,
since its methods are the functions of `os`; a faulty one in memory is small. A `SegmentFile` owns one descriptor, which
is closed with the last reference to the object: a reader that holds a `FileSlice` is not affected when retention
deletes the segment. The files of older segments are opened when they are needed, and kept in a bounded cache of the
most recently used ones (`storage`).

Rules: a symbolic link in place of a file or of a partition's directory is not followed (`ELOOP`): whoever can write to
a data directory must not be able to make the broker write elsewhere. Files can be written by their owner and read by
their group. Each OSError is passed on as it is; callers that know the operation turn it into a StorageFailure.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
from collections.abc import Callable, Sequence
from typing import Protocol

from pylogd.broker.log.residency import missing_bytes, send_resident
from pylogd.broker.log.volume_sync import can_sync_volume, sync_volume

_log = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview

#: Flag of `preadv`: fail with EAGAIN instead of waiting for the disk. It is 0 if the system does not have the flag.
NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)

#: Errors by which a kernel says that a file system (tmpfs, some network file systems) does not support the flag.
_NOWAIT_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS})

#: The suffix of a file that is going to replace another one.
TEMPORARY_SUFFIX = ".tmp"

#: Descriptors for the cache of older segments (at least 256), the metadata store, the event loop, and threads.
_OTHER_DESCRIPTORS = 384
#: The least and the most files of older segments that are kept open.
_CACHED_FILES = 256, 1 << 16
#: The sizes of the first read of a file and of further reads. A megabyte has to be mapped by the kernel, and most files
#: are small.
_FIRST_BYTES = 1 << 14
_READ_BYTES = 1 << 20
_MODE = 0o640
_DIRECTORY_MODE = 0o750


def most_partitions(descriptors: int) -> int:
    """Return how many partitions a process that can open `descriptors` files may have.

    Each partition keeps its active segment open. Some descriptors are reserved for older segments, for connections, and
    for files that are open only briefly: otherwise a broker could create more partitions than it can start with.
    """
    return max((descriptors - _OTHER_DESCRIPTORS) * 3 // 4, descriptors // 4)


def most_cached_files(descriptors: int) -> int:
    """Return how many older segments a process that can open `descriptors` files may keep open: a sixteenth of them."""
    least, most = _CACHED_FILES
    return min(max(descriptors // 16, least), most)


class FileSystem(Protocol):
    """The file system calls of the storage. Paths are absolute, descriptors come from `open`, errors are OSErrors."""

    def open(self, path: str, flags: int) -> int:
        """Open a file with the flags of `os`, and return its descriptor. Raises ELOOP if it is a symbolic link."""

    def close(self, fd: int) -> None:
        """Close a descriptor."""

    def pread(self, fd: int, length: int, position: int) -> bytes:
        """Read up to `length` bytes from `position` on."""

    def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], position: int, flags: int = 0) -> int:
        """Read into the buffers; return how many bytes were read. With `NOWAIT` it raises EAGAIN instead of waiting."""

    def missing(self, fd: int, position: int, length: int) -> int:
        """Return how many bytes of a range of a file are not in memory; 0 if this is unknown."""

    def send_resident(self, socket: int, head: bytes, fd: int, position: int, length: int) -> int:
        """Send bytes and then a range of a file to a socket; see `pylogd.broker.log.residency`."""

    def never_read_ahead(self, fd: int) -> None:
        """Prevent read-ahead for reads by this descriptor, since read-ahead may wait for the disk."""

    def open_direct(self, fd: int) -> int | None:
        """Open a file a second time, to read past the page cache. Return None if that is not possible.

        Positions, lengths and addresses of such reads are multiples of 4096 (but EINVAL may still be raised).
        """

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write the buffers one after another at `position`; return how many bytes were written."""

    def fsync(self, fd: int) -> None:
        """Make the contents and the size of a file durable."""

    def fsync_dir(self, path: str) -> None:
        """Make the entries of a directory durable."""

    def can_sync_volume(self, fd: int) -> bool:
        """Return whether `sync_volume` is available for the volume that contains an open file."""

    def sync_volume(self, fd: int) -> None:
        """Make everything durable that was written to a volume, including names. `fd` is any file on it.

        Raises OSError if anything could not be written since `fd` was opened.
        """

    def ftruncate(self, fd: int, size: int) -> None:
        """Truncate a file, or extend it with zeros, to `size` bytes."""

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""

    def mtime_ms(self, path: str) -> int:
        """Return when a file was last written, in milliseconds since 1970."""

    def stamp(self, path: str) -> tuple[int, int] | None:
        """Return the size and the time of the last change (in nanoseconds) of a file; None if it does not exist.

        A symbolic link is not followed. The time of a directory changes with the names in it.
        """

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory atomically, replacing a file of that name."""

    def unlink(self, path: str) -> None:
        """Remove a file."""

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, in no particular order."""

    def isdir(self, path: str) -> bool:
        """Return whether the path is a directory, and not a link to one."""

    def islink(self, path: str) -> bool:
        """Return whether the path is a symbolic link."""

    def exists(self, path: str) -> bool:
        """Return whether a file or directory exists at the path."""

    def identity(self, path: str) -> tuple[int, int]:
        """Return device and inode of the file or directory that is at the path now."""

    def mkdir(self, path: str) -> None:
        """Create a directory and its parents, where they do not exist."""

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""

    def space(self, path: str) -> tuple[int, int]:
        """Return (total, usable) bytes of the volume that contains the path."""

    def lock(self, path: str) -> int | None:
        """Lock a file. Return the descriptor that holds the lock until it is closed; None if it is already locked."""


class RealFileSystem:
    """The operating system's file system. The frequent calls are the functions of `os` themselves."""

    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    preadv = staticmethod(os.preadv)
    missing = staticmethod(missing_bytes)
    send_resident = staticmethod(send_resident)
    pwritev = staticmethod(os.pwritev)
    fsync = staticmethod(os.fdatasync if hasattr(os, "fdatasync") else os.fsync)
    can_sync_volume = staticmethod(can_sync_volume)
    sync_volume = staticmethod(sync_volume)
    ftruncate = staticmethod(os.ftruncate)
    size = staticmethod(os.path.getsize)
    rename = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)
    islink = staticmethod(os.path.islink)
    exists = staticmethod(os.path.lexists)
    rmdir = staticmethod(os.rmdir)

    def never_read_ahead(self, fd: int) -> None:
        """See `FileSystem`."""
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def open_direct(self, fd: int) -> int | None:
        """See `FileSystem`. The file is opened by its descriptor, since another file may have the path by now."""
        if not hasattr(os, "O_DIRECT"):
            return None
        try:
            return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        except OSError:
            return None  # a file system without O_DIRECT, or no /proc

    def open(self, path: str, flags: int) -> int:
        """Open a file; child processes do not inherit the descriptor."""
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)

    def isdir(self, path: str) -> bool:
        """Return whether the path is a directory, and not a link to one."""
        try:
            return stat.S_ISDIR(os.lstat(path).st_mode)
        except (OSError, ValueError):
            return False

    def mtime_ms(self, path: str) -> int:
        """Return when a file was last written, in milliseconds since 1970."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def stamp(self, path: str) -> tuple[int, int] | None:
        """Return size and time of the last change of the file at the path; None if it does not exist."""
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return None
        return status.st_size, status.st_mtime_ns

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, in no particular order."""
        return os.listdir(path)

    def identity(self, path: str) -> tuple[int, int]:
        """Return device and inode of the file or directory that is at the path now."""
        status = os.stat(path)
        return status.st_dev, status.st_ino

    def mkdir(self, path: str) -> None:
        """Create a directory and its parents, where they do not exist."""
        try:
            os.mkdir(path, _DIRECTORY_MODE)
        except OSError:
            os.makedirs(path, _DIRECTORY_MODE, exist_ok=True)

    def fsync_dir(self, path: str) -> None:
        """Make the entries of a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def space(self, path: str) -> tuple[int, int]:
        """Return (total, usable) bytes of the volume that contains the path."""
        status = os.statvfs(path)
        return status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail

    def lock(self, path: str) -> int | None:
        """Lock a file by `flock`, which the kernel releases however the process ends."""
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
    """An open file. The descriptor is closed with the last reference to this object."""

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
        """Read up to `length` bytes; fewer only at the end of the file. May wait for the disk."""
        return self.fs.pread(self.fd, length, position)

    def read_warm(self, position: int, length: int) -> bytearray | None:
        """Read bytes from the page cache. Return None if the read would wait for the disk.

        File systems that can't tell (tmpfs) are read anyway. If fewer bytes than requested are returned, the file ends
        there, or the rest is not in the page cache: the caller knows the size of the file.
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
    """A range of bytes in a segment file, for `sendfile`. The file stays readable as long as this object exists.

    zeros: how many zero bytes are known to follow in the file.
    """

    __slots__ = ("file", "length", "position", "zeros")

    #: Whether a block cache may hold the bytes: see `pylogd.broker.cache.ranges.BlockSlice`.
    in_blocks = False

    def __init__(self, file: SegmentFile, position: int, length: int, zeros: int = 0) -> None:
        self.file = file
        self.position = position
        self.length = length
        self.zeros = zeros

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"FileSlice({self.file.path!r}, {self.position}, {self.length})"

    def fileno(self) -> int:
        """Return the descriptor, which is valid as long as this object exists."""
        return self.file.fd

    def read(self) -> bytes:
        """Return a copy of the bytes; fewer if the file was truncated. May wait for the disk."""
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

    def copy(self) -> bytes | bytearray | None:
        """Return a copy of the bytes; None if that would wait for the disk, or if the file was truncated."""
        data = self.file.read_warm(self.position, self.length)
        return data if data is not None and len(data) == self.length else None

    def is_warm(self, position: int, length: int) -> bool:
        """Return whether `length` bytes at `position` of the file are in the page cache.

        Trying the first and the last byte is not enough. Look-ups read them, and a read that does not wait makes the
        kernel begin to read at its position, so that the next read finds that byte but nothing after it. The last byte
        tells whether pages that count as present are still being read.
        """
        file = self.file
        return not file.fs.missing(file.fd, position, length) and file.read_warm(position + length - 1, 1) is not None

    def send_resident(self, socket: int, head: bytes, length: int) -> int:
        """Send `head` to a socket, then the first `length` bytes of the slice. Return how many bytes were sent.

        The result is -1 if nothing was sent, because the bytes are not in the page cache or that can't be told.
        `length` may include `zeros`.
        """
        file = self.file
        return file.fs.send_resident(socket, head, file.fd, self.position, length)

    def missing(self, position: int, length: int) -> int:
        """Return how many of `length` bytes at `position` of the file have to be read from the disk."""
        file = self.file
        return file.fs.missing(file.fd, position, length)


class SyncFailed(OSError):
    """A sync failed. Earlier writes may be lost, even if a later sync succeeds."""


def sync_file(fs: FileSystem, fd: int, path: str) -> None:
    """Make the contents of a file durable. Raises SyncFailed."""
    try:
        fs.fsync(fd)
    except OSError as error:
        raise SyncFailed(error.errno, f"sync failed: {error.strerror}", path) from error


def sync_directory(fs: FileSystem, path: str) -> None:
    """Make the entries of a directory durable. Raises SyncFailed."""
    try:
        fs.fsync_dir(path)
    except OSError as error:
        raise SyncFailed(error.errno, f"sync failed: {error.strerror}", path) from error


def write_all(fs: FileSystem, fd: int, data: Buffer, position: int = 0) -> None:
    """Write all of `data`, with as many calls as needed. Raises OSError."""
    view = memoryview(data)
    while view:
        count = fs.pwritev(fd, [view], position)
        if count <= 0:
            raise OSError(errno.EIO, "the file system wrote nothing")
        position += count
        view = view[count:]


def write_atomically(fs: FileSystem, path: str, data: bytes) -> None:
    """Replace a file durably: readers, even after a crash, find the old file or the new one. Raises OSError."""
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
    """Replace a file that can be rebuilt. The caller syncs the directory if need be. Raises OSError."""
    temporary = path + TEMPORARY_SUFFIX
    write_file(fs, temporary, data, sync=sync)
    fs.rename(temporary, path)


def write_file(fs: FileSystem, path: str, data: bytes, *, sync: bool) -> None:
    """Write a file in place. A symbolic link of that name is removed, not followed. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        fd = fs.open(path, flags)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        _log.warning("%s was a symbolic link; links are not followed: replacing it by a file", path)
        fs.unlink(path)
        fd = fs.open(path, flags)
    try:
        write_all(fs, fd, data)
        if sync:
            sync_file(fs, fd, path)
    finally:
        fs.close(fd)


def read_file(fs: FileSystem, path: str) -> bytes:
    """Return the contents of a file. Raises OSError."""
    fd = fs.open(path, os.O_RDONLY)
    try:
        data = fs.pread(fd, _FIRST_BYTES, 0)
        if len(data) < _FIRST_BYTES:
            return data
        part = data
        while part:
            part = fs.pread(fd, _READ_BYTES, len(data))
            data += part
        return data
    finally:
        fs.close(fd)


def remove_tree(fs: FileSystem, path: str) -> None:
    """Remove a directory and everything in it. Raises OSError."""
    for name in fs.listdir(path):
        child = os.path.join(path, name)
        if fs.isdir(child):
            remove_tree(fs, child)
        else:
            fs.unlink(child)
    fs.rmdir(path)
