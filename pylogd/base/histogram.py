"""A histogram: the number of values up to each bound, and the sum of all values."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from threading import Lock
from typing import Final

#: Bounds for latencies, in seconds.
LATENCY_BOUNDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
#: Bounds for sizes, in bytes.
SIZE_BOUNDS: Final = (100.0, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8)


class Histogram:
    """See the module.

    bounds: upper bounds, inclusive, in ascending order.
    counts: the number of values up to each bound, and above all bounds; each value is counted once, at its first bound.
    sum: the sum of all values.

    Several threads may use it.
    """

    __slots__ = ("_lock", "bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self._lock = Lock()

    def observe(self, value: float) -> None:
        """Count a value."""
        with self._lock:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts by upper bound in Prometheus' form; the last bound is "+Inf"."""
        total, found = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found
