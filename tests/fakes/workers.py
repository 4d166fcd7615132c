"""Workers without threads: their calls are made at once, or when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.broker.isolation.disk_meter import DiskMeter
from pylogd.broker.isolation.disks import Disks
from pylogd.broker.isolation.pace import MOST_CALM, Pace
from pylogd.broker.isolation.workers import Workers


def set_pace(disks: Disks, *, slow: bool) -> None:
    """Have all disks be slow or quick."""
    now = 0.0
    for disk in disks:
        assert disk.pace is not None
        if slow:
            disk.pace.suspect("a test says so", now)
        while not slow and disk.pace.pace is not Pace.QUICK:
            now += MOST_CALM
            disk.pace.observe(now, 0.0, None, None, None)
    disks.observe(_NOTHING)


_NOTHING = DiskMeter()


class HeldWorkers(Workers):
    """hold: whether calls wait for `release`."""

    hold = False

    def _start_thread(self, name: str) -> None:
        """Start none."""

    def run(self, function: Any, *arguments: Any) -> Deferred[Any]:
        done = super().run(function, *arguments)
        if not self.hold:
            self.release()
        return done

    def begin(self) -> None:
        """Begin the oldest call, which then hangs."""
        next(iter(self._unanswered)).began = self._seconds()

    def release(self) -> None:
        """Make all calls that wait, including those that are added meanwhile."""
        while True:
            try:
                call = self._queue.get_nowait()
            except Empty:
                return
            if call is not None:
                self._make(call)


class PooledWorkers(Workers):
    """Leaves its calls to another pool."""

    def __init__(self, name: str, most: int, pool: Callable[..., Deferred[Any]], **arguments: Any) -> None:
        super().__init__(name, most, **arguments)
        self._pool = pool

    def run(self, function: Any, *arguments: Any) -> Deferred[Any]:
        return super().run(function) if self._failure is not None else self._pool(function, *arguments)
