"""Minor page faults of a process, as the benchmarks report them beside processor time."""

from __future__ import annotations

import mmap
import os
import sys

from bench.peers.base import process_faults


def test_each_page_that_is_touched_is_a_fault() -> None:
    pages = 1000
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        before = process_faults(os.getpid())
        for page in range(pages):
            memory[page * mmap.PAGESIZE] = 1
        assert process_faults(os.getpid()) - before >= pages


def test_faults_of_a_child_that_has_ended_count() -> None:
    before = process_faults(os.getpid())
    child = os.posix_spawn(sys.executable, [sys.executable, "-S", "-c", "bytearray(8 << 20)"], {})
    os.waitpid(child, 0)
    assert process_faults(os.getpid()) - before > 500
    assert process_faults(child) == 0
