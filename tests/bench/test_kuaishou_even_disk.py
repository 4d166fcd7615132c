"""The FUSE server below the disk that serves evenly: its answers, and how long it is busy. Mounting needs root."""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.kuaishou import even_disk
from bench.kuaishou.even_disk import Server

SIZE = 1 << 20
READ, WRITE, INIT, GETATTR, STATFS, OPEN, FSYNC, IOCTL = 15, 16, 26, 3, 17, 14, 20, 39


class Time:
    """A clock that sleeping moves on."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(even_disk, "time", made)
    return made


@pytest.fixture
def control() -> mmap.mmap:
    return mmap.mmap(-1, mmap.PAGESIZE)


@pytest.fixture
def server(tmp_path: Path, control: mmap.mmap) -> Iterator[Server]:
    path = tmp_path / "backing"
    path.write_bytes(bytes(SIZE))
    fd = os.open(path, os.O_RDWR)
    yield Server(-1, fd, control)
    os.close(fd)


def transfer(offset: int, size: int, data: bytes = b"") -> memoryview:
    return memoryview(struct.pack("<QQIIQII", 1, offset, size, 0, 0, 0, 0) + data)


def test_what_is_written_is_read(server: Server) -> None:
    assert server._answer(WRITE, transfer(4096, 5, b"hello")) == struct.pack("<II", 5, 0)
    assert server._answer(READ, transfer(4095, 7)) == b"\0hello\0"
    assert server._answer(READ, transfer(SIZE - 2, 7)) == b"\0\0"
    assert server._answer(FSYNC, memoryview(b"")) == b""


def test_answers_have_the_sizes_of_the_protocol(server: Server) -> None:
    for opcode, size in ((INIT, 64), (GETATTR, 104), (OPEN, 16), (STATFS, 80)):
        answer = server._answer(opcode, memoryview(b""))
        assert isinstance(answer, bytes) and len(answer) == size
    attributes = server._answer(GETATTR, memoryview(b""))
    assert isinstance(attributes, bytes)
    assert struct.unpack_from("<Q", attributes, 24) == (SIZE,)
    assert server._answer(IOCTL, memoryview(b"")) == errno.ENOSYS


def test_requests_are_served_one_after_the_other_at_the_rate(server: Server, control: mmap.mmap, clock: Time) -> None:
    server._answer(READ, transfer(0, 65536))
    assert clock.now == 100.0
    control[:8] = struct.pack("<d", 1_000_000.0)
    for _ in range(5):
        server._answer(READ, transfer(0, 20_000))
        server._answer(WRITE, transfer(0, 20_000, bytes(20_000)))
    assert clock.now == pytest.approx(100.2, abs=0.004)
    clock.now += 10.0  # an idle disk does not save up
    server._answer(READ, transfer(0, 100_000))
    assert clock.now == pytest.approx(110.3, abs=0.008)
