"""Count the bytes that are read from blocks and from files, for the log and for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CacheCounters:
    """Totals since the start.

    taken: the blocks that were taken for bytes of producers.
    hits, misses: the slices of logs whose first bytes were sent from blocks, or read from the file.
    hit_bytes, miss_bytes: the bytes that were sent from blocks, or read from files.
    evicted: the blocks that were evicted ahead of need.
    evicted_in_line: the blocks that an append evicted, since none was free.
    dropped_bytes: the bytes that were written back to the disk and removed from the page cache.
    """

    taken: int = 0
    hits: int = 0
    misses: int = 0
    hit_bytes: int = 0
    miss_bytes: int = 0
    evicted: int = 0
    evicted_in_line: int = 0
    dropped_bytes: int = 0

    def describe(self) -> str:
        """Return the counters as a line for operators."""
        reads = self.hits + self.misses
        share = f"{100 * self.hits / reads:.1f} %" if reads else "none"
        return (
            f"{share} of {reads} reads were sent from the block cache, {_mib(self.hit_bytes)} from it and "
            f"{_mib(self.miss_bytes)} from files; "
            f"{self.taken} blocks were filled and {self.evicted + self.evicted_in_line} evicted, "
            f"{self.evicted_in_line} of them in line; "
            f"{_mib(self.dropped_bytes)} were dropped from the page cache"
        )


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"
