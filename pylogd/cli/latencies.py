"""Latencies in an HDR histogram: three significant digits from a microsecond to an hour, in constant memory."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, Final

import click

from pylogd.client import Delivery

_MOST_US: Final = 3_600_000_000
_PERCENTILES: Final = {"p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "p99_9_ms": 99.9}


class Latencies:
    """Latencies of records. Threads may share it.

    errors: the number of records that could not be delivered.
    """

    def __init__(self) -> None:
        """Raises ClickException without the package hdrhistogram."""
        try:
            from hdrh.histogram import HdrHistogram  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise click.ClickException(f"{error}: install the extra, pip install 'pylogd-broker[cli]'") from error
        self._histogram: Any = HdrHistogram(1, _MOST_US, 3)
        self._lock = threading.Lock()
        self.errors = 0

    @property
    def count(self) -> int:
        """The number of latencies."""
        found: int = self._histogram.get_total_count()
        return found

    def record(self, nanoseconds: int) -> None:
        """Add a latency."""
        with self._lock:
            self._histogram.record_value(min(max(nanoseconds // 1000, 1), _MOST_US))

    def deliver(self, due: int, delivery: Delivery) -> None:
        """Add the latency of a finished delivery.

        due: the time at which the record was due, in nanoseconds of the monotonic clock.
        """
        if delivery.error is None:
            self.record(time.monotonic_ns() - due)
        else:
            self.errors += 1

    def summary(self) -> dict[str, float]:
        """Return the distribution, in milliseconds."""
        found = self._histogram
        shares = {name: found.get_value_at_percentile(percent) for name, percent in _PERCENTILES.items()}
        low, mean, high = found.get_min_value(), found.get_mean_value(), found.get_max_value()
        figures = {"min_ms": low, "mean_ms": mean, **shares, "max_ms": high} if self.count else {}
        return {name: round(value / 1000, 3) for name, value in figures.items()}

    def write(self, path: Path) -> None:
        """Write the distribution, in milliseconds, in the format of HdrHistogram's plotter. Raises OSError."""
        with path.open("wb") as file:
            self._histogram.output_percentile_distribution(file, 1000.0)
