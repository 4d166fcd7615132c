"""What of a file is in memory, as the kernel tells it.

A kernel short of memory may drop pages at any moment, and keep for a moment those that it was told to drop. So a test
repeats what it did until the kernel has followed (`eventually`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pylogd.broker.log import residency
from pylogd.broker.log.files import FileSlice, RealFileSystem, SegmentFile
from pylogd.broker.log.residency import missing_bytes

PAGE = os.sysconf("SC_PAGE_SIZE")
SIZE = 64 * PAGE
ATTEMPTS = 10_000


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    yield fd
    os.close(fd)


def eventually(attempt: Callable[[], bool]) -> bool:
    """Return whether one of many attempts succeeds."""
    return any(attempt() for _ in range(ATTEMPTS))


def drop(fd: int) -> None:
    """Have the kernel forget a file's pages, or skip a test on a file system in memory."""

    def dropped() -> bool:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return missing_bytes(fd, 0, SIZE) == SIZE

    if not dropped() and not missing_bytes(fd, 0, SIZE):
        pytest.skip("the temporary directory is in memory")
    assert eventually(dropped)


def read_again(file: SegmentFile) -> bytes:
    """Read a file, so that it is in memory. Return what the tests send before it."""
    file.read(0, SIZE)
    return b"head"


def leave_only(fd: int, position: int, length: int) -> None:
    """Drop a file's pages, and read a part without reading ahead."""
    drop(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(fd, length, position)


def test_what_was_just_written_is_in_memory(file: int) -> None:
    def resident() -> bool:
        os.pwrite(file, bytes(SIZE), 0)
        return missing_bytes(file, 0, SIZE) == missing_bytes(file, 100, 1) == 0

    assert eventually(resident)
    assert missing_bytes(file, 0, 0) == 0


def test_pages_that_were_dropped_are_missing(file: int) -> None:
    drop(file)
    assert missing_bytes(file, 0, SIZE) == SIZE
    assert missing_bytes(file, PAGE - 1, 2) == 2 * PAGE
    assert missing_bytes(file, 0, SIZE) == SIZE  # asking has nothing read


def test_a_part_that_was_read_is_not_missing(file: int) -> None:
    def part_is_there() -> bool:
        leave_only(file, 8 * PAGE, PAGE)
        return (missing_bytes(file, 8 * PAGE, PAGE), missing_bytes(file, 7 * PAGE, 3 * PAGE)) == (0, 2 * PAGE)

    assert eventually(part_is_there)


def test_a_slice_with_both_ends_in_memory_is_cold_if_the_middle_is_not(tmp_path: Path) -> None:
    """Look-ups read the ends: a sendfile of such a slice would stop the reactor until the rest is read."""
    fs, path = RealFileSystem(), str(tmp_path / "segment")
    Path(path).write_bytes(bytes(SIZE))
    file = SegmentFile(fs, path, os.O_RDWR)
    os.fsync(file.fd)
    found = FileSlice(file, 0, SIZE)
    assert eventually(lambda: len(file.read(0, SIZE)) == SIZE and found.is_warm(0, SIZE))
    drop(file.fd)
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_RANDOM)
    file.read(0, 1)
    file.read(SIZE - 1, 1)
    assert not found.is_warm(0, SIZE)
    assert eventually(lambda: len(file.read(0, SIZE)) == SIZE and found.is_warm(0, SIZE))


def test_only_what_is_in_memory_is_sent(tmp_path: Path) -> None:
    if residency.send_resident is residency.leave:
        pytest.skip("there was no compiler")
    path, contents = tmp_path / "segment", os.urandom(SIZE)
    path.write_bytes(contents)
    file = SegmentFile(RealFileSystem(), str(path), os.O_RDWR)
    os.fsync(file.fd)
    found = FileSlice(file, 5, 2 * PAGE)
    ours, peer = socket.socketpair()
    with ours, peer:
        ours.setblocking(False)
        peer.setblocking(False)
        assert eventually(lambda: found.send_resident(ours.fileno(), read_again(file), PAGE) == PAGE + 4)
        assert peer.recv(SIZE) == b"head" + contents[5 : PAGE + 5]
        for head in (b"", b"head"):
            assert FileSlice(file, SIZE - 5, 5).send_resident(ours.fileno(), head, 6) == -1  # the file ends before
        drop(file.fd)
        os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_RANDOM)
        file.read(0, 1)
        file.read(2 * PAGE + 4, 1)
        assert found.send_resident(ours.fileno(), b"head", 2 * PAGE) == -1  # the middle is missing
        with pytest.raises(BlockingIOError):
            peer.recv(1)
        file.read(0, SIZE)
        sent, full = 0, bytes(1 << 16)
        while (count := found.send_resident(ours.fileno(), full, 2 * PAGE)) == len(full) + 2 * PAGE:
            sent += count
        assert 0 <= count < len(full) + 2 * PAGE  # the socket is full
        peer.close()
        assert found.send_resident(ours.fileno(), b"head", 1) == 0  # who sends the rest finds out
    for arguments in ((0, 5, -1, 1), (0, 5, 1, 0), (0, 5, (1 << 63) - 1, 1)):
        with pytest.raises(ValueError, match="out of range"):
            residency.send_resident(arguments[0], b"head", *arguments[1:])
    with pytest.raises(TypeError):
        residency.send_resident(0, bytearray(), 5, 0, 1)  # type: ignore[arg-type]


def test_a_file_that_ends_before_its_range_is_sent_to_its_end(tmp_path: Path) -> None:
    """If the end was just written; else nothing is sent. Whoever sends the rest finds out in both cases."""
    if residency.send_resident is residency.leave:
        pytest.skip("there was no compiler")
    path = tmp_path / "segment"
    path.write_bytes(b"12345")
    found = FileSlice(SegmentFile(RealFileSystem(), str(path), os.O_RDWR), 0, 9)
    ours, peer = socket.socketpair()
    with ours, peer:
        sent = found.send_resident(ours.fileno(), b"head", 9)
        ours.close()
        assert peer.recv(SIZE) == b"head12345"[: max(sent, 0)]


def test_a_descriptor_that_is_none_tells_nothing() -> None:
    assert missing_bytes(-1, 0, PAGE) == 0


def test_kernels_without_cachestat_are_asked_by_mincore(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "pages_in_memory", lambda *_: None)
    assert eventually(lambda: os.pwrite(file, bytes(SIZE), 0) == SIZE and missing_bytes(file, 0, SIZE) == 0)
    os.fsync(file)
    drop(file)
    assert missing_bytes(file, 0, SIZE) == SIZE
    assert missing_bytes(file, PAGE - 1, 2) == 2 * PAGE


def test_both_ways_to_ask_agree(file: int) -> None:
    ranges = [(0, SIZE), (0, PAGE), (8 * PAGE, PAGE), (7 * PAGE, 100), (9 * PAGE, 5 * PAGE), (SIZE, PAGE), (1 << 40, 1)]

    def agree() -> bool:
        leave_only(file, 8 * PAGE, 3 * PAGE)
        found = [residency.pages_in_memory(file, *part) for part in ranges]
        by_ctypes = [residency.ask_by_ctypes(file, *part) for part in ranges]
        return found == by_ctypes and found in ([3, 0, 1, 0, 2, 0, 0], [None] * 7)  # None: a kernel before 6.5

    assert eventually(agree)
    assert residency.pages_in_memory(-1, 0, PAGE) is None
