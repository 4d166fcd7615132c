"""The file system in memory, used by several threads as by cleaners of several data directories."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.fakes.filesystem import MemoryFileSystem

ROUNDS = 300
FILES = 300


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Let Python change to another thread after a few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_switches")
def test_threads_may_use_it_at_the_same_time() -> None:
    fs = MemoryFileSystem()
    failures: list[BaseException] = []
    descriptors: list[int] = []
    for directory in ("/a", "/b"):
        fs.mkdir(directory)
    for number in range(FILES):
        fs.close(fs.open(f"/a/{number}", os.O_CREAT))

    def work(directory: str) -> None:
        try:
            for number in range(ROUNDS):
                fd = fs.open(f"{directory}/{number % 7}.tmp", os.O_RDWR | os.O_CREAT)
                descriptors.append(fd)
                fs.pwritev(fd, [b"some"], 0)
                fs.rename(f"{directory}/{number % 7}.tmp", f"{directory}/{number % 7}.log")
                fs.fsync_dir(directory)
                fs.unlink(f"{directory}/{number % 7}.log")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(directory,)) for directory in ("/a", "/b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(descriptors) == len(set(descriptors)) == 2 * ROUNDS
    assert len(fs.files) == FILES
