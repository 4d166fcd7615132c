"""What of a file is in memory, as the kernel tells it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pylogd.log import residency
from pylogd.log.files import FileSlice, RealFileSystem, SegmentFile
from pylogd.log.residency import missing_bytes

PAGE = os.sysconf("SC_PAGE_SIZE")
SIZE = 64 * PAGE


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    yield fd
    os.close(fd)


def drop(fd: int) -> None:
    """Have the kernel forget a file's pages, or skip a test on a file system in memory."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if not missing_bytes(fd, 0, SIZE):
        pytest.skip("the temporary directory is in memory")


def test_what_was_just_written_is_in_memory(file: int) -> None:
    assert missing_bytes(file, 0, SIZE) == 0
    assert missing_bytes(file, 100, 1) == 0
    assert missing_bytes(file, 0, 0) == 0


def test_pages_that_were_dropped_are_missing(file: int) -> None:
    drop(file)
    assert missing_bytes(file, 0, SIZE) == SIZE
    assert missing_bytes(file, PAGE - 1, 2) == 2 * PAGE
    assert missing_bytes(file, 0, SIZE) == SIZE  # asking has nothing read


def test_a_part_that_was_read_is_not_missing(file: int) -> None:
    drop(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(file, PAGE, 8 * PAGE)
    assert missing_bytes(file, 8 * PAGE, PAGE) == 0
    assert missing_bytes(file, 7 * PAGE, 3 * PAGE) == 2 * PAGE


def test_a_slice_with_both_ends_in_memory_is_cold_if_the_middle_is_not(tmp_path: Path) -> None:
    """Look-ups read the ends: a sendfile of such a slice would stop the reactor until the rest is read."""
    fs, path = RealFileSystem(), str(tmp_path / "segment")
    Path(path).write_bytes(bytes(SIZE))
    file = SegmentFile(fs, path, os.O_RDWR)
    os.fsync(file.fd)
    found = FileSlice(file, 0, SIZE)
    assert found.is_warm(0, SIZE)
    drop(file.fd)
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_RANDOM)
    file.read(0, 1)
    file.read(SIZE - 1, 1)
    assert not found.is_warm(0, SIZE)
    file.read(0, SIZE)
    assert found.is_warm(0, SIZE)


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
        assert found.send_resident(ours.fileno(), b"head", PAGE) == PAGE + 4
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


def test_a_descriptor_that_is_none_tells_nothing() -> None:
    assert missing_bytes(-1, 0, PAGE) == 0


def test_kernels_without_cachestat_are_asked_by_mincore(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "pages_in_memory", lambda *_: None)
    assert missing_bytes(file, 0, SIZE) == 0
    drop(file)
    assert missing_bytes(file, 0, SIZE) == SIZE
    assert missing_bytes(file, PAGE - 1, 2) == 2 * PAGE


def test_both_ways_to_ask_agree(file: int) -> None:
    drop(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(file, 3 * PAGE, 8 * PAGE)
    ranges = [(0, SIZE), (0, PAGE), (8 * PAGE, PAGE), (7 * PAGE, 100), (9 * PAGE, 5 * PAGE), (SIZE, PAGE), (1 << 40, 1)]
    found = [residency.pages_in_memory(file, *part) for part in ranges]
    assert found == [residency.ask_by_ctypes(file, *part) for part in ranges]
    assert found in ([3, 0, 1, 0, 2, 0, 0], [None] * 7)  # None: a kernel before 6.5
    assert residency.pages_in_memory(-1, 0, PAGE) is None
