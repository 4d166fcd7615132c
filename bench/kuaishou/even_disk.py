"""A slow disk that serves evenly: one request after the other, each in the time that a disk of its speed takes.

The kernel's limit on what a group reads (`lab.slow_down`) works by tenths of a second: it serves a tenth's bytes at
once, and then nobody for up to 90 ms. No disk does that. Here the image below the loop device is a file of a FUSE file
system, whose server is this module:

    python -m bench.kuaishou.even_disk BACKING MOUNT CONTROL

It takes the requests of the loop device in their order, and answers each after its size divided by `rate`, for reads
and writes alike. The bytes are in BACKING, a file in the page cache of the machine (outside of all control groups).
CONTROL has the rate in bytes a second, a double, which may change at any time; 0 means no delay.

Rules: the root of the file system is the image itself, so MOUNT is a file. No more of FUSE's protocol is served than a
loop device needs; everything else is answered with ENOSYS. The server ends when the file system is unmounted.

Source: include/uapi/linux/fuse.h, protocol 7.31.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from bench.kuaishou.cgroups import Unavailable
from bench.kuaishou.disks import Disk, attach, run

_MAX_WRITE: Final = 1 << 20
_BUFFER: Final = _MAX_WRITE + (64 << 10)
_RATE: Final = struct.Struct("<d")
_IN: Final = struct.Struct("<IIQQIIII")  # length, opcode, unique, node, uid, gid, pid, padding
_OUT: Final = struct.Struct("<IiQ")  # length, error, unique
_TRANSFER: Final = struct.Struct("<QQIIQII")  # of reads and writes: handle, offset, size, and what is not used here
_INIT_OUT: Final = struct.Struct("<IIIIHHIIHHI28x")
_ATTRIBUTES: Final = struct.Struct("<QII" + "QQQQQQ" + "IIIIIIIIII")
_OPEN_OUT: Final = struct.Struct("<QIi")
_STATFS_OUT: Final = struct.Struct("<QQQQQIII28x")
_FORGET, _GETATTR, _OPEN, _READ, _WRITE, _STATFS, _RELEASE, _FSYNC = 2, 3, 14, 15, 16, 17, 18, 20
_FLUSH, _INIT, _INTERRUPT, _DESTROY, _BATCH_FORGET = 25, 26, 36, 38, 42
_NO_REPLY: Final = (_FORGET, _BATCH_FORGET, _INTERRUPT)
_DONE: Final = (_RELEASE, _FSYNC, _FLUSH, _DESTROY)
#: ASYNC_READ, BIG_WRITES, ASYNC_DIO, MAX_PAGES.
_FLAGS: Final = 1 | 1 << 5 | 1 << 15 | 1 << 22
#: DIRECT_IO, PARALLEL_DIRECT_WRITES: the loop device has no page cache of its own below it.
_OPEN_FLAGS: Final = 1 | 1 << 6
#: Sleeps end late, and the server has work to do: what it is late by, up to this, is made good at the next request.
_LATE_SECONDS: Final = 0.003
_END_SECONDS: Final = 10.0


class Server:
    """Answers the kernel's requests. fuse: an open /dev/fuse. backing: an open file with the bytes."""

    def __init__(self, fuse: int, backing: int, control: mmap.mmap) -> None:
        self._fuse = fuse
        self._backing = backing
        self._control = control
        self._size = os.fstat(backing).st_size
        self._free_at = 0.0

    def run(self) -> None:
        """Serve until the file system is unmounted."""
        buffer = bytearray(_BUFFER)
        while True:
            try:
                request = memoryview(buffer)[: os.readv(self._fuse, [buffer])]
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno != errno.ENOENT:  # the request was taken back
                    raise
                continue
            _, opcode, unique, *_ = _IN.unpack_from(request)
            if opcode not in _NO_REPLY:
                self._reply(unique, self._answer(opcode, request[_IN.size :]))

    def _reply(self, unique: int, answer: bytes | int) -> None:
        """answer: the body, or the number of an error."""
        body = b"" if isinstance(answer, int) else answer
        code = -answer if isinstance(answer, int) else 0
        try:
            os.writev(self._fuse, [_OUT.pack(_OUT.size + len(body), code, unique), body])
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise

    def _answer(self, opcode: int, request: memoryview) -> bytes | int:
        if opcode in (_READ, _WRITE):
            return self._transfer(opcode, request)
        if opcode in _DONE:
            return b""
        if opcode == _INIT:
            pages = _MAX_WRITE // mmap.PAGESIZE
            return _INIT_OUT.pack(7, 31, 0, _FLAGS, 64, 48, _MAX_WRITE, 1, pages, 0, 0)
        if opcode == _GETATTR:
            mode, times = stat.S_IFREG | 0o600, (0,) * 3
            return _ATTRIBUTES.pack(
                3600, 0, 0, 1, self._size, self._size >> 9, *times, *times, mode, 1, 0, 0, 0, mmap.PAGESIZE, 0
            )
        if opcode == _OPEN:
            return _OPEN_OUT.pack(1, _OPEN_FLAGS, 0)
        if opcode == _STATFS:
            blocks = self._size // mmap.PAGESIZE
            return _STATFS_OUT.pack(blocks, 0, 0, 1, 0, mmap.PAGESIZE, 255, mmap.PAGESIZE)
        return errno.ENOSYS

    def _transfer(self, opcode: int, request: memoryview) -> bytes | int:
        _, offset, size, *_ = _TRANSFER.unpack_from(request)
        self._wait(size)
        if opcode == _READ:
            return os.pread(self._backing, size, offset)
        written = os.pwrite(self._backing, request[_TRANSFER.size : _TRANSFER.size + size], offset)
        return struct.pack("<II", written, 0)

    def _wait(self, size: int) -> None:
        """Wait for as long as the disk is busy with a request."""
        (rate,) = _RATE.unpack_from(self._control)
        if rate:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - _LATE_SECONDS) + size / rate
            time.sleep(max(self._free_at - now, 0.0))


def serve(backing: Path, mount: Path, control: Path) -> None:
    """Mount the file system at `mount`, say so on standard output, and serve it. Raises OSError."""
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode={stat.S_IFREG | 0o600:o},user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"fuse", os.fsencode(mount), b"fuse", 0, options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(mount))
    print("mounted", flush=True)
    with control.open("r+b") as file, mmap.mmap(file.fileno(), _RATE.size) as shared:
        Server(fuse, os.open(backing, os.O_RDWR), shared).run()


class EvenDisk(Disk):
    """A disk whose speed is set by `limit_rate`."""

    def __init__(self, image: Path, mount: Path, device: str, server: subprocess.Popen[str]) -> None:
        super().__init__(image, mount, device)
        self._server = server

    def limit_rate(self, rate: float) -> None:
        """Have the disk read and write together at most `rate` bytes a second from now on; 0: as fast as it can."""
        control = _beside(self.image, "control")
        with control.open("r+b") as file:
            file.write(_RATE.pack(rate))

    def remove(self) -> None:
        """Unmount and detach the disk, and delete its image."""
        self.limit_rate(0)
        self.detach()
        _unmount(self.image)
        self._server.wait(_END_SECONDS)
        for path in (self.image, _beside(self.image, "backing"), _beside(self.image, "control")):
            path.unlink(missing_ok=True)


def make_even_disk(folder: Path, name: str, size: int) -> EvenDisk:
    """Make a disk of `size` bytes that serves evenly. Raises Unavailable."""
    image, mount = folder / f"{name}.img", folder / name
    backing, control = _beside(image, "backing"), _beside(image, "control")
    if not os.path.exists("/dev/fuse"):
        raise Unavailable("there is no /dev/fuse")
    image.touch()
    control.write_bytes(_RATE.pack(0))
    with backing.open("wb") as file:
        file.truncate(size)
    command = [sys.executable, "-m", "bench.kuaishou.even_disk", str(backing), str(image), str(control)]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        start_new_session=True,
    )  # fmt: skip
    assert server.stdout is not None
    assert server.stderr is not None
    if server.stdout.readline().strip() != "mounted":
        raise Unavailable(f"a FUSE file system can't be mounted here: {server.stderr.read().strip().splitlines()[-1:]}")
    try:
        return EvenDisk(image, mount, attach(image, mount), server)
    except BaseException:
        _unmount(image)
        raise


def _unmount(path: Path) -> None:
    """Unmount a file system; a loop device may use it for a moment after it was detached."""
    deadline = time.monotonic() + _END_SECONDS
    while True:
        try:
            run("umount", str(path))
            return
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _beside(image: Path, what: str) -> Path:
    return image.with_suffix(f".{what}")


if __name__ == "__main__":
    serve(*map(Path, sys.argv[1:]))
