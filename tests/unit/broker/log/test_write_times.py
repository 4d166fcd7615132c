"""Writes to files of logs are measured when they are sampled, and only then."""

from __future__ import annotations

from pylogd.broker.log.storage import Storage
from tests.fakes.filesystem import MemoryFileSystem


def test_the_next_write_is_measured_and_no_other() -> None:
    fs = MemoryFileSystem()
    now = iter((1.0, 1.25, 5.0))
    storage = Storage(fs, seconds=lambda: next(now))
    fs.mkdir("/d")
    fd = fs.open("/d/f", 0o102)
    storage.fs.pwritev(fd, [b"a"], 0)
    assert storage.writes.seconds.sum == 0
    storage.writes.sample()
    storage.writes.sample()
    assert [storage.fs.pwritev(fd, [b"bcd"], at) for at in (0, 3)] == [3, 3]
    assert (sum(storage.writes.seconds.counts), storage.writes.seconds.sum) == (1, 0.25)
    assert fs.pread(fd, 10, 0) == b"bcdbcd"
