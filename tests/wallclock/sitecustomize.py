"""Gives the Python process that imports this (by its name, at its start) a wall clock that a test can step.

Everything in the process that reads the time of day by Python's `time` module sees it shifted by the offset in the file
that PYLOGD_TEST_WALL_CLOCK names, from the very next call after the file was written, as after `date --set`. The
monotonic clock stays as it is. Child processes inherit it.
"""

from __future__ import annotations

import mmap
import os
import struct
import time


def _shift(path: str) -> None:
    with open(path, "rb") as file:
        shared = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)  # one page: a test's write is seen at once
    unpack = struct.Struct("=q").unpack_from
    real_ns, real_clock = time.time_ns, time.clock_gettime

    def time_ns() -> int:
        return real_ns() + unpack(shared)[0]

    def seconds() -> float:
        return time_ns() / 1e9

    def clock_gettime(clock: int) -> float:
        return seconds() if clock == time.CLOCK_REALTIME else real_clock(clock)

    time.time, time.time_ns, time.clock_gettime = seconds, time_ns, clock_gettime


if os.environ.get("PYLOGD_TEST_WALL_CLOCK"):
    _shift(os.environ["PYLOGD_TEST_WALL_CLOCK"])
