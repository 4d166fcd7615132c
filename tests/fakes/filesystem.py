"""A file system in memory that fails on cue: storage tests run on it without a disk, and see what a crash leaves.

It has two states of everything: what a running process sees, and what is on stable storage. `kill` drops what a process
holds (descriptors, locks); `lose_power` also drops everything that was not synced, names included.

Several threads may use it. `_call`, in which a test may let a thread hang, is never called with the lock held.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

Buffer = bytes | bytearray | memoryview


def _directly_in(path: str, names: Iterable[str]) -> list[str]:
    """Return those files and directories that are in a directory, without those in directories below it."""
    prefix = path if path == "/" else f"{path}/"
    start = len(prefix)
    return [name for name in names if name.startswith(prefix) and name != prefix and "/" not in name[start:]]


class Inode:
    """A file's bytes, and those of them that are on stable storage."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.mtime_ms = 0


@dataclass(slots=True)
class Fault:
    """`error` at the call of `operation` after `after` good ones, on paths that contain `path`; for ever if `lasting`.

    For `pwritev`, `partial` bytes are written before the failure; with `error` 0 that is an ordinary short write.
    """

    operation: str
    error: int
    path: str = ""
    after: int = 0
    partial: int | None = None
    lasting: bool = False
    hits: int = field(default=0, init=False)


class MemoryFileSystem:
    """The `FileSystem` of storage, in memory."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards all that follows
        self.files: dict[str, Inode] = {}
        self.directories: set[str] = {"/"}
        #: The durable contents of each directory, and the same for those whose own names are durable. A directory
        #: keeps its contents when it is renamed; another one that gets its old name begins empty.
        self._contents: dict[str, dict[str, Inode]] = {"/": {}}
        self._durable: dict[str, dict[str, Inode]] = dict(self._contents)
        self.faults: list[Fault] = []
        self.cold: set[str] = set()  # paths that are not in the page cache
        self.calls: list[str] = []
        self.identities: dict[str, int] = {}  # inode numbers other than 1
        self.now_ms = 0
        self._changed: dict[str, int] = {}  # the number of the last change of each path
        self._changes = 0
        self.usable_bytes = 1 << 39
        self._fds: dict[int, tuple[str, Inode]] = {}
        self._direct: set[int] = set()  # descriptors that read past the page cache
        self._next_fd = 1000
        self._locks: dict[str, int] = {}

    # Controls ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def failing(self, operation: str, error: int, **how: object) -> Iterator[Fault]:
        """Fail while the block runs; see `Fault`."""
        fault = Fault(operation, error, **how)  # type: ignore[arg-type]
        self.faults.append(fault)
        try:
            yield fault
        finally:
            self.faults.remove(fault)

    def kill(self) -> None:
        """The process is gone; the kernel wrote, or will write, all that it was given."""
        with self._lock:
            self._fds.clear()
            self._locks.clear()
            self.faults.clear()

    def lose_power(self, torn: int = 0, *, zeros: bool = False) -> None:
        """The machine is gone: what was never synced never was.


        Of each file, up to `torn` bytes after the synced part reached the disk; with `zeros` they are zeros.
        """
        with self._lock:
            self.kill()
            before = {path: (inode, bytes(inode.data)) for path, inode in self.files.items()}
            self._contents = dict(self._durable)
            self.directories = set(self._contents)
            self.files = {
                os.path.join(path, name): inode
                for path, names in self._contents.items()
                for name, inode in names.items()
            }
            for inode in self.files.values():
                synced = inode.durable
                tail = bytes(inode.data[len(synced) :][:torn]) if inode.data.startswith(synced) else b""
                inode.data = bytearray(synced) + (bytes(len(tail)) if zeros else tail)
            after = {path: (inode, bytes(inode.data)) for path, inode in self.files.items()}
            changed = [path for path in {*before, *after} if before.get(path) != after.get(path)]
            self.note_change(*changed, *map(os.path.dirname, changed))

    def open_paths(self) -> list[str]:
        """The paths of all open descriptors."""
        with self._lock:
            return [path for path, _ in self._fds.values()]

    def _call(self, operation: str, path: str) -> Fault | None:
        self.calls.append(f"{operation} {path}")
        for fault in [*self.faults]:
            if fault.operation != operation or fault.path not in path:
                continue
            fault.hits += 1
            if fault.hits == fault.after + 1 or (fault.lasting and fault.hits > fault.after):
                if fault.partial is None:
                    raise OSError(fault.error, os.strerror(fault.error), path)
                return fault
        return None

    # FileSystem ----------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        self._call("open", path)
        with self._lock:
            inode = self.files.get(path)
            if inode is None:
                if not flags & os.O_CREAT:
                    raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
                if os.path.dirname(path) not in self.directories:
                    raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
                inode = self.files[path] = Inode()
                inode.mtime_ms = self.now_ms
                self.note_change(os.path.dirname(path), path)
            if flags & os.O_TRUNC:
                inode.data.clear()
                self.note_change(path)
            return self._descriptor(path, inode)

    def open_direct(self, fd: int) -> int | None:
        with self._lock:
            direct = self._descriptor(*self._file(fd))
            self._direct.add(direct)
            return direct

    def _descriptor(self, path: str, inode: Inode) -> int:
        self._next_fd += 1
        self._fds[self._next_fd] = path, inode
        return self._next_fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._fds.pop(fd, None)
            self._locks = {path: holder for path, holder in self._locks.items() if holder != fd}

    def pread(self, fd: int, length: int, position: int) -> bytes:
        path, inode = self._file(fd)
        self._call("pread", path)
        return bytes(inode.data[position : position + length])

    def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], position: int, flags: int = 0) -> int:
        path, inode = self._file(fd)
        self._call("preadv", path)
        if fd in self._direct and (position % 4096 or any(len(buffer) % 4096 for buffer in buffers)):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        if flags and path in self.cold:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        count = 0
        for buffer in buffers:
            part = inode.data[position : position + len(buffer)]
            buffer[: len(part)] = part
            count += len(part)
            position += len(part)
        return count

    def missing(self, fd: int, position: int, length: int) -> int:
        path, inode = self._file(fd)
        return length if path in self.cold else max(position + length - len(inode.data), 0)

    def send_resident(self, socket: int, head: bytes, fd: int, position: int, length: int) -> int:
        return -1  # such a file is not the kernel's

    def never_read_ahead(self, fd: int) -> None:
        self._file(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        path, inode = self._file(fd)
        data = b"".join(buffers)
        fault = self._call("pwritev", path)
        if fault is not None:
            data = data[: fault.partial]
        with self._lock:
            if position > len(inode.data):
                inode.data += bytes(position - len(inode.data))
            inode.data[position : position + len(data)] = data
            inode.mtime_ms = self.now_ms
            self.note_change(path)
        if fault is not None and fault.error:
            raise OSError(fault.error, os.strerror(fault.error), path)
        return len(data)

    def fsync(self, fd: int) -> None:
        path, inode = self._file(fd)
        self._call("fsync", path)
        with self._lock:
            inode.durable = bytes(inode.data)

    def fsync_dir(self, path: str) -> None:
        self._call("fsync_dir", path)
        with self._lock:
            self._sync_entries(path)

    def _sync_entries(self, path: str) -> None:
        contents = self._contents.setdefault(path, {})
        contents.clear()
        contents.update({os.path.basename(name): self.files[name] for name in _directly_in(path, self.files)})
        for name in _directly_in(path, self._durable):
            del self._durable[name]
        self._durable.update({name: self._contents[name] for name in _directly_in(path, self.directories)})

    def can_sync_volume(self, fd: int) -> bool:
        return True

    def sync_volume(self, fd: int) -> None:
        path, _ = self._file(fd)
        self._call("sync_volume", path)
        with self._lock:
            for inode in self.files.values():
                inode.durable = bytes(inode.data)
            for directory in self.directories:
                self._contents.setdefault(directory, {}).clear()
            for name, inode in self.files.items():
                folder, base = os.path.split(name)
                self._contents[folder][base] = inode
            gone = [name for name in self._durable if os.path.dirname(name) in self.directories and name != "/"]
            for name in gone:
                del self._durable[name]
            self._durable.update({name: self._contents[name] for name in self.directories})

    def ftruncate(self, fd: int, size: int) -> None:
        path, inode = self._file(fd)
        self._call("ftruncate", path)
        with self._lock:
            self.note_change(path)
            del inode.data[size:]
            inode.data += bytes(size - len(inode.data))

    def size(self, path: str) -> int:
        return len(self._inode(path).data)

    def mtime_ms(self, path: str) -> int:
        return self._inode(path).mtime_ms

    def stamp(self, path: str) -> tuple[int, int] | None:
        self._call("stamp", path)
        with self._lock:
            if not self.exists(path):
                return None
            inode = self.files.get(path)
            return 4096 if inode is None else len(inode.data), self._changed.get(path, 0)

    def note_change(self, *paths: str) -> None:
        """Give files, or directories whose names changed, another stamp."""
        with self._lock:
            self._changes += 1
            self._changed.update(dict.fromkeys(paths, self._changes))

    def rename(self, source: str, target: str) -> None:
        self._call("rename", source)
        with self._lock:
            self.note_change(os.path.dirname(source), os.path.dirname(target))
            self._changed[target] = self._changed.pop(source, 0)
            if source in self.directories:
                self._move(lambda path: target + path[len(source) :], source)
                return
            self.files[target] = self._inode(source)
            del self.files[source]

    def _move(self, renamed: Callable[[str], str], source: str) -> None:
        def new(path: str) -> str:
            return renamed(path) if path == source or path.startswith(source + "/") else path

        self.directories = {new(path) for path in self.directories}
        self._contents = {new(path): names for path, names in self._contents.items()}
        self.files = {new(path): inode for path, inode in self.files.items()}

    def unlink(self, path: str) -> None:
        self._call("unlink", path)
        with self._lock:
            self._inode(path)
            self.note_change(os.path.dirname(path))
            del self.files[path]

    def listdir(self, path: str) -> list[str]:
        self._call("listdir", path)
        with self._lock:
            if path not in self.directories:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            names = [*self.files, *self.directories]
        return [os.path.basename(name) for name in _directly_in(path, names)]

    def isdir(self, path: str) -> bool:
        return path in self.directories

    def islink(self, path: str) -> bool:
        return False

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.directories

    def mkdir(self, path: str) -> None:
        self._call("mkdir", path)
        with self._lock:
            while path not in self.directories:
                self.directories.add(path)
                self._contents[path] = {}
                self.note_change(path)
                path = os.path.dirname(path)

    def identity(self, path: str) -> tuple[int, int]:
        self._call("identity", path)
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return 1, self.identities.get(path, 1)

    def rmdir(self, path: str) -> None:
        self._call("rmdir", path)
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        with self._lock:
            self.directories.remove(path)
            del self._contents[path]

    def space(self, path: str) -> tuple[int, int]:
        self._call("space", path)
        return 1 << 40, self.usable_bytes

    def lock(self, path: str) -> int | None:
        fd = self.open(path, os.O_RDWR | os.O_CREAT)
        with self._lock:
            if path not in self._locks:
                self._locks[path] = fd
                return fd
        self.close(fd)
        return None

    def _file(self, fd: int) -> tuple[str, Inode]:
        found = self._fds.get(fd)
        if found is None:
            raise OSError(errno.EBADF, "Bad file descriptor")
        return found

    def _inode(self, path: str) -> Inode:
        found = self.files.get(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return found
