"""Measure how long writes to the files of logs take, now and then, at no cost for all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pylogd.base.histogram import Histogram
from pylogd.broker.log.files import Buffer, FileSystem


class WriteTimes:
    """Measures the next write after each call of `sample`.

    seconds: the durations of writes, in any thread.
    """

    def __init__(self, fs: FileSystem, clock: Callable[[], float]) -> None:
        """Measure writes by `clock`, which returns monotonic seconds."""
        self._fs = fs
        self._clock = clock
        self.seconds = Histogram()

    def sample(self) -> None:
        """Measure the next write: replace the file system's function by one that removes itself when it is called."""
        self._fs.__dict__["pwritev"] = self._measured

    def _measured(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        self._fs.__dict__.pop("pwritev", None)
        began = self._clock()
        try:
            return self._fs.pwritev(fd, buffers, position)
        finally:
            self.seconds.observe(self._clock() - began)
