"""Count what a worker copies of one route."""

from __future__ import annotations


class RouteMeter:
    """Totals since the worker began. `lost_records`: those that were deleted at the source before they were copied."""

    def __init__(self) -> None:
        self.bytes = 0
        self.records = 0
        self.lost_records = 0

    def appended(self, size: int, records: int) -> None:
        """Count batches that the target has taken."""
        self.bytes += size
        self.records += records

    def lost(self, records: int) -> None:
        """Count records that can't be copied any more."""
        self.lost_records += records
