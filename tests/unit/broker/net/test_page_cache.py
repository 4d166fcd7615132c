"""Reading ahead into the kernel's page cache, with real files on a real disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pylogd.broker.log.files import FileSlice, RealFileSystem, SegmentFile
from pylogd.broker.net.page_cache import AHEAD, READ_AHEAD, read_ahead
from tests.fakes.page_cache import can_be_dropped

CHUNK = 1 << 18
SIZE = 4 * (AHEAD + 1) * CHUNK
MIDDLE = SIZE // 2


@pytest.fixture
def records(tmp_path: Path) -> FileSlice:
    """A file of which nothing is in memory."""
    path = tmp_path / "file"
    if not can_be_dropped(path):
        pytest.skip("this file system does not drop pages")
    path.write_bytes(os.urandom(SIZE))
    fs = RealFileSystem()
    file = SegmentFile(fs, str(path), os.O_RDWR)
    fs.fsync(file.fd)
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    fs.never_read_ahead(file.fd)
    found = FileSlice(file, 0, SIZE)
    assert found.missing(0, SIZE) == SIZE
    return found


def comes_into_memory(records: FileSlice, position: int, length: int) -> bool:
    """Return whether a range comes into memory by itself: only its last page is read here, which waits for the disk."""
    os.pread(records.fileno(), 1, position + length - 1)
    return not records.missing(position, length)


@pytest.mark.parametrize("start", [0, MIDDLE])
def test_who_reads_in_order_has_what_follows_read_ahead(records: FileSlice, start: int) -> None:
    if start:
        os.pread(records.fileno(), CHUNK, start - CHUNK)
    before = READ_AHEAD.total
    read_ahead(records, start, CHUNK)
    assert records.is_warm(start, CHUNK)
    assert comes_into_memory(records, start + CHUNK, AHEAD * CHUNK)
    behind = start + (AHEAD + 1) * CHUNK
    assert records.missing(behind, SIZE - behind) == SIZE - behind
    assert READ_AHEAD.total - before == (AHEAD + 1) * CHUNK


def test_what_was_read_ahead_is_not_asked_for_again(records: FileSlice) -> None:
    read_ahead(records, 0, CHUNK)
    before = READ_AHEAD.total
    read_ahead(records, CHUNK, CHUNK)
    assert records.missing((AHEAD + 1) * CHUNK, CHUNK) == CHUNK
    assert READ_AHEAD.total - before == CHUNK


def test_a_read_in_the_middle_has_nothing_else_read(records: FileSlice) -> None:
    os.pread(records.fileno(), 100, MIDDLE - 4096)  # as a look-up of an offset does
    read_ahead(records, MIDDLE, CHUNK)
    assert records.is_warm(MIDDLE, CHUNK)
    assert records.missing(MIDDLE + CHUNK, SIZE - MIDDLE - CHUNK) == SIZE - MIDDLE - CHUNK


def test_nothing_is_asked_for_behind_the_end_of_the_file(records: FileSlice) -> None:
    os.pread(records.fileno(), CHUNK, SIZE - 3 * CHUNK)
    before = READ_AHEAD.total
    read_ahead(records, SIZE - 2 * CHUNK, CHUNK)
    assert comes_into_memory(records, SIZE - CHUNK, CHUNK)
    assert READ_AHEAD.total - before == 2 * CHUNK
    read_ahead(records, SIZE - 100, CHUNK)
    assert READ_AHEAD.total - before == 3 * CHUNK
