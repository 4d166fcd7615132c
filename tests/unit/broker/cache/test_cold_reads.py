"""Reads past the page cache on a real file system, and buffers that are used again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pylogd.broker.cache.cold_reads import LARGE_BYTES, SMALL_BYTES, LoadedBytes, ReadBuffers
from pylogd.broker.log.files import RealFileSystem, SegmentFile
from tests.fakes.page_cache import cached_share, can_be_dropped

SIZE = 3 * LARGE_BYTES + 777


class CountingFileSystem(RealFileSystem):
    """Counts the files that are opened for reads past the page cache. refuses: whether these reads fail."""

    opened = 0
    refuses = False

    def open_direct(self, fd: int) -> int | None:
        self.opened += 1
        return super().open_direct(fd)

    def preadv(self, fd, buffers, position, flags=0):  # type: ignore[no-untyped-def]
        if self.refuses and len(buffers[0]) % 4096 == 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return os.preadv(fd, buffers, position, flags)


def make_file(path: Path, size: int = SIZE) -> tuple[SegmentFile, CountingFileSystem, bytes]:
    content = os.urandom(size)
    path.write_bytes(content)
    fs = CountingFileSystem()
    return SegmentFile(fs, str(path), os.O_RDWR), fs, content


def drop(file: SegmentFile) -> None:
    """Have nothing of a file in the page cache."""
    os.fsync(file.fd)
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)


def bytes_of(loaded: LoadedBytes) -> bytes:
    return bytes(loaded.view(loaded.position, LARGE_BYTES))


def needs_a_disk(path: Path) -> None:
    if not can_be_dropped(path / "probe"):
        pytest.skip("this file system keeps its pages")


@pytest.mark.parametrize(
    ("position", "length"),
    [(0, 4096), (1, 10), (4095, 2), (100_001, 777), (12_345, LARGE_BYTES), (SIZE - 5, 5), (8192, SMALL_BYTES)],
)
def test_any_part_of_a_file_is_read_past_the_page_cache(tmp_path: Path, position: int, length: int) -> None:
    needs_a_disk(tmp_path)
    file, fs, content = make_file(tmp_path / "file")
    drop(file)
    assert bytes_of(ReadBuffers().read(file, position, length, direct=True)) == content[position : position + length]
    assert fs.opened == 1
    assert cached_share(tmp_path / "file") == 0


def test_a_read_ends_with_the_file_and_with_the_buffer(tmp_path: Path) -> None:
    file, _, content = make_file(tmp_path / "file")
    drop(file)
    buffers = ReadBuffers(large_buffers=1)
    assert bytes_of(buffers.read(file, SIZE - 5, 100, direct=True)) == content[-5:]
    assert bytes_of(buffers.read(file, SIZE + 5, 100, direct=True)) == b""
    large = buffers.read(file, 10, SIZE, direct=True)
    assert bytes_of(large) == content[10 : 10 + LARGE_BYTES]
    assert bytes_of(buffers.read(file, 10, SIZE, direct=True)) == content[10 : 10 + SMALL_BYTES], (
        "no other large buffer is made"
    )
    assert bytes(large.view(5000, 7)) == content[5000:5007]


def test_what_is_in_the_page_cache_is_copied_from_there(tmp_path: Path) -> None:
    file, fs, content = make_file(tmp_path / "file")
    assert bytes_of(ReadBuffers().read(file, 5, LARGE_BYTES, direct=True)) == content[5 : 5 + LARGE_BYTES]
    assert fs.opened == 0


def test_a_file_that_is_written_to_is_read_through_the_page_cache(tmp_path: Path) -> None:
    file, fs, content = make_file(tmp_path / "file")
    drop(file)
    assert bytes_of(ReadBuffers().read(file, 5, LARGE_BYTES, direct=False)) == content[5 : 5 + LARGE_BYTES]
    assert fs.opened == 0


def test_bytes_that_were_just_written_are_seen(tmp_path: Path) -> None:
    file, _, content = make_file(tmp_path / "file")
    drop(file)
    os.pwrite(file.fd, b"new", SIZE)
    found = ReadBuffers().read(file, SIZE - LARGE_BYTES + 3, LARGE_BYTES, direct=True)
    assert bytes_of(found) == (content + b"new")[-LARGE_BYTES:]


def test_a_file_that_refuses_such_reads_is_read_through_the_page_cache(tmp_path: Path) -> None:
    needs_a_disk(tmp_path)
    file, fs, content = make_file(tmp_path / "file")
    drop(file)
    fs.refuses = True
    assert bytes_of(ReadBuffers().read(file, 5, 100, direct=True)) == content[5:105]
    assert fs.opened == 1


def test_a_buffer_is_used_again_once_its_bytes_are_forgotten(tmp_path: Path) -> None:
    file, _, content = make_file(tmp_path / "file")
    buffers = ReadBuffers(large_buffers=1)
    first = buffers.read(file, 0, LARGE_BYTES, direct=True)
    del first
    again = buffers.read(file, 7, LARGE_BYTES, direct=True)
    assert bytes_of(again) == content[7 : 7 + LARGE_BYTES]


def test_a_failed_read_gives_its_buffer_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, fs, content = make_file(tmp_path / "file")
    buffers = ReadBuffers(large_buffers=1)

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fs, "preadv", fail)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        buffers.read(file, 0, LARGE_BYTES, direct=True)
    monkeypatch.undo()
    assert bytes_of(buffers.read(file, 0, LARGE_BYTES, direct=True)) == content[:LARGE_BYTES]
