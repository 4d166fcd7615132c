"""Count the records and bytes that a worker copies by one route."""

from __future__ import annotations


class RouteMeter:
    """Totals of a route since the worker started. Times are in seconds.

    lost_records: records that the source deleted before they were copied.
    throttled_seconds: how long batches have waited for a throttle.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.records = 0
        self.lost_records = 0
        self.throttled_seconds = 0.0
        self._held_since: float | None = None

    def appended(self, size: int, records: int) -> None:
        """Count batches that the target has accepted."""
        self.bytes += size
        self.records += records

    def lost(self, records: int) -> None:
        """Count records that can't be copied any more."""
        self.lost_records += records

    def held(self, is_held: bool, now: float) -> None:
        """Record whether batches wait for a throttle now. If they do, the time until the next call is counted."""
        if self._held_since is not None:
            self.throttled_seconds += now - self._held_since
        self._held_since = now if is_held else None
