"""Watch a group and a disk from a thread: bytes read, utilisation and memory over time."""

from __future__ import annotations

import threading
import time
from typing import Final

from bench.kuaishou.experiment import Points
from bench.kuaishou.lab import ControlGroup, Disk

INTERVAL: Final = 0.5


class Meter:
    """Takes the kernel's counters every `INTERVAL` seconds, inside a `with` block."""

    def __init__(self, group: ControlGroup, disk: Disk) -> None:
        self._group = group
        self._disk = disk
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._samples: list[tuple[float, int, float, int]] = []

    def __enter__(self) -> Meter:
        self._take()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._take()

    def _watch(self) -> None:
        while not self._done.wait(INTERVAL):
            self._take()

    def _take(self) -> None:
        read, busy = self._group.read_bytes(self._disk.number), self._disk.busy_seconds()
        self._samples.append((time.monotonic(), read, busy, self._group.memory()))

    def taken(self) -> int:
        """Return the kernel's count of bytes read, now."""
        return self._group.read_bytes(self._disk.number)

    @property
    def read_bytes(self) -> int:
        """The bytes read since the block began."""
        return self._samples[-1][1] - self._samples[0][1]

    def read_rate(self, begun: float) -> Points:
        """Return MB/s read over time. begun: the time of second 0 (CLOCK_MONOTONIC)."""
        pairs = zip(self._samples, self._samples[1:], strict=False)
        return [(now[0] - begun, (now[1] - last[1]) / (now[0] - last[0]) / 1e6) for last, now in pairs]

    def utilisation(self, begun: float) -> Points:
        """Return the per cent of time in which the disk had requests in progress, over time."""
        pairs = zip(self._samples, self._samples[1:], strict=False)
        return [(now[0] - begun, min(100.0, 100 * (now[2] - last[2]) / (now[0] - last[0]))) for last, now in pairs]

    def mean_utilisation(self, begin: float, end: float) -> float:
        """Return the per cent of time in which the disk was busy, between two times of CLOCK_MONOTONIC."""
        samples = [one for one in self._samples if begin <= one[0] <= end]
        if len(samples) < 2:
            return 0.0
        return min(100.0, 100 * (samples[-1][2] - samples[0][2]) / (samples[-1][0] - samples[0][0]))
