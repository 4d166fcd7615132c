"""Pages that were written are out of the page cache soon, on a real file system; hung and failing disks."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from pylogd.broker.cache import page_dropper
from pylogd.broker.cache.counters import CacheCounters
from pylogd.broker.cache.page_dropper import PageDropper
from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.log.files import RealFileSystem, SegmentFile, SyncFailed
from tests.fakes.page_cache import cached_share, can_be_dropped

PAGES = 512
PAGE = 4096

pytestmark = pytest.mark.skipif(not page_dropper.AVAILABLE, reason="there is no sync_file_range on this system")


def no_failure(failure: StorageFailure) -> None:
    raise AssertionError(failure)


def written_file(path: Path, size: int = PAGES * PAGE) -> SegmentFile:
    """Make a file whose pages are in the page cache, and dirty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    return SegmentFile(RealFileSystem(), str(path), os.O_RDWR)


def cached(file: SegmentFile) -> float:
    return cached_share(Path(file.path))


def needs_a_disk(path: Path) -> None:
    """Skip the test on a file system that keeps its pages, as tmpfs does."""
    if not can_be_dropped(path / "probe"):
        pytest.skip("this file system keeps its pages")


def test_what_was_written_leaves_the_page_cache(tmp_path: Path) -> None:
    needs_a_disk(tmp_path)
    counters = CacheCounters()
    dropper = PageDropper(counters, no_failure)
    file = written_file(tmp_path / "t-0" / "0.log")
    assert cached(file) == 1
    for at in range(0, PAGES, 64):
        dropper.written(file, at * PAGE, (at + 64) * PAGE)
    dropper.stop(60)
    assert cached(file) < 0.1
    assert counters.dropped_bytes == PAGES * PAGE


def test_a_page_that_may_be_appended_to_is_left_for_the_next_range(tmp_path: Path) -> None:
    needs_a_disk(tmp_path)
    counters = CacheCounters()
    dropper = PageDropper(counters, no_failure)
    file = written_file(tmp_path / "t-0" / "0.log")
    dropper.written(file, 100, 3 * PAGE + 5)
    dropper.stop(60)
    assert counters.dropped_bytes == 3 * PAGE
    assert cached(file) > 0.9


def test_what_is_read_once_leaves_the_page_cache(tmp_path: Path) -> None:
    needs_a_disk(tmp_path)
    file = written_file(tmp_path / "t-0" / "0.log")
    os.fsync(file.fd)
    PageDropper(CacheCounters(), no_failure).drop_now(file.fd, 10, PAGES * PAGE - 10)
    assert cached(file) < 0.1


def test_a_read_of_less_than_a_page_leaves_the_rest_of_the_file(tmp_path: Path) -> None:
    file = written_file(tmp_path / "t-0" / "0.log")
    os.fsync(file.fd)
    PageDropper(CacheCounters(), no_failure).drop_now(file.fd, 10, 100)
    assert cached(file) == 1


def test_a_failed_write_back_is_reported_like_a_failed_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, position: int, length: int, flags: int) -> None:
        raise OSError(errno.EIO, "the disk is on fire")

    monkeypatch.setattr(page_dropper, "sync_file_range", fail)
    failures: list[StorageFailure] = []
    dropper = PageDropper(CacheCounters(), failures.append)
    file = written_file(tmp_path / "t-0" / "0.log")
    dropper.written(file, 0, PAGES * PAGE)
    dropper.stop(60)
    assert len(failures) == 1, "once for a file"
    assert isinstance(failures[0].cause, SyncFailed)
    assert failures[0].is_fatal


def test_a_disk_that_hangs_keeps_no_other_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hung, healthy = written_file(tmp_path / "a" / "t-0" / "0.log"), written_file(tmp_path / "b" / "t-0" / "0.log")
    thaw, done = threading.Event(), threading.Event()

    def sync(fd: int, position: int, length: int, flags: int) -> None:
        if fd == hung.fd:
            thaw.wait(60)
        elif flags & 4:
            done.set()

    monkeypatch.setattr(page_dropper, "sync_file_range", sync)
    dropper = PageDropper(CacheCounters(), no_failure)
    try:
        dropper.written(hung, 0, PAGE)
        dropper.written(healthy, 0, PAGE)
        assert done.wait(60)
        dropper.stop(0)
    finally:
        thaw.set()
        dropper.stop(60)


def test_a_stop_as_the_thread_turns_to_its_work_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropper = PageDropper(CacheCounters(), no_failure)
    clear = threading.Event.clear

    def stopped_before(event: threading.Event) -> None:
        stopping = threading.Thread(target=dropper.stop, args=(0,))
        stopping.start()
        stopping.join()
        clear(event)

    monkeypatch.setattr(threading.Event, "clear", stopped_before)
    dropper.written(written_file(tmp_path / "a" / "t-0" / "0.log"), 0, PAGE)
    (thread,) = (one for one in threading.enumerate() if one.name == f"pylogd-page-cache {tmp_path / 'a'}")
    thread.join(30)
    assert not thread.is_alive()
