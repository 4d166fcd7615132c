"""What is handed to the disk early: whole pages that are new, and never the one that is appended to."""

from __future__ import annotations

import errno
import mmap
import os

import pytest

from pylogd.broker.log import early_write_back
from pylogd.broker.log.early_write_back import LEAST_BYTES, WRITE, EarlyWriteBack
from pylogd.broker.log.log import Log
from tests.fakes.storage import MemoryStorage, append

PAGE = mmap.PAGESIZE
Handed = list[tuple[int, int, int]]


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> Handed:
    """What was handed over: (position, length, flags)."""
    found: Handed = []
    monkeypatch.setattr(early_write_back, "sync_file_range", lambda fd, *rest: found.append(rest))
    return found


def fill(log: Log, size: int) -> None:
    """Append about so many bytes."""
    append(log, bytes(size))


def pages(size: int) -> int:
    """Return the size of whole pages."""
    return size // PAGE * PAGE


def test_what_is_new_is_handed_over_in_whole_pages(handed: Handed) -> None:
    log = MemoryStorage().create()
    writer = EarlyWriteBack()
    fill(log, 100)
    writer.write([log])
    fill(log, 2 * LEAST_BYTES)
    first = pages(log.active.size)
    writer.write([log])
    assert handed == [(0, first, WRITE)]
    fill(log, 3 * LEAST_BYTES)
    writer.write([log])
    assert handed[1:] == [(first, pages(log.active.size) - first, WRITE)]


def test_little_waits_until_it_is_more(handed: Handed) -> None:
    log = MemoryStorage().create()
    writer = EarlyWriteBack()
    writer.write([log])
    while log.active.size < LEAST_BYTES:
        assert not handed
        fill(log, LEAST_BYTES // 3)
        writer.write([log])
    assert handed == [(0, pages(log.active.size), WRITE)]


def test_what_was_there_before_is_left_to_the_kernel(handed: Handed) -> None:
    log = MemoryStorage().create()
    fill(log, 4 * LEAST_BYTES)
    writer = EarlyWriteBack()
    writer.write([log])
    writer.write([])
    fill(log, 4 * LEAST_BYTES)
    writer.write([log])
    assert not handed, "it was not among those of the last call"


def test_a_new_segment_is_handed_over_from_its_begin(handed: Handed) -> None:
    storage = MemoryStorage(segment_bytes=4 * LEAST_BYTES)
    log = storage.create()
    writer = EarlyWriteBack()
    fill(log, 3 * LEAST_BYTES)
    writer.write([log])
    fill(log, 2 * LEAST_BYTES)
    assert log.active.base_offset == 1
    writer.write([log])
    assert handed == [(0, pages(log.active.size), WRITE)]


def test_after_a_truncation_it_goes_on_from_the_end(handed: Handed) -> None:
    storage = MemoryStorage()
    log = storage.create()
    writer = EarlyWriteBack()
    writer.write([log])
    fill(log, 2 * LEAST_BYTES)
    fill(log, 2 * LEAST_BYTES)
    writer.write([log])
    storage.manager.truncate_to("t", 0, 1)
    middle = pages(log.active.size)
    writer.write([log])
    fill(log, 2 * LEAST_BYTES)
    writer.write([log])
    assert handed[1:] == [(middle, pages(log.active.size) - middle, WRITE)]


def test_an_error_is_left_to_the_next_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(early_write_back, "sync_file_range", fail)
    log = MemoryStorage().create()
    writer = EarlyWriteBack()
    writer.write([log])
    fill(log, 2 * LEAST_BYTES)
    writer.write([log])
