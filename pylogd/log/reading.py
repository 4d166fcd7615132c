"""Finding things in the segments of a log as one moment has them.

Strategy: a view is made whenever the list of segments changes and is never changed itself, so whoever holds one reads
on without a lock. The segment is found by bisection over base offsets; where in it is the segment's own business.

Rules: look-ups that would wait for the disk raise `ColdRead` unless `allow_cold`. A segment that goes meanwhile makes
a look-up fail with `StorageFailure`; who asked knows whether that was to be expected.
Must not know: where the log starts and ends beyond what it is handed, appends, locks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from pylogd.log.segment import Located, Segment


class SegmentsView:
    """`segments`, oldest first and never changed; at least one."""

    __slots__ = ("_bases", "segments")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self._bases = [segment.base_offset for segment in segments]

    def look_up(
        self, offset: int, bound: int, end: int, max_bytes: int, *, min_one: bool, allow_cold: bool
    ) -> tuple[Segment, int, int] | None:
        """(segment, position, length) of what `Log.read` hands out; `bound` is exclusive, `end` is the log's end."""
        segments, bases = self.segments, self._bases
        for at in range(max(bisect_right(bases, offset) - 1, 0), len(segments)):
            segment = segments[at]
            found = segment.locate(offset, allow_cold=allow_cold)
            while found is not None and found.empty:  # librdkafka takes an answer of only such for one cut too short
                found = segment.locate(found.last_offset + 1, allow_cold=allow_cold)
            if found is not None:
                following = bases[at + 1] if at + 1 < len(bases) else end
                length = _length(segment, found, bound, following, max_bytes, min_one, allow_cold)
                return None if length is None else (segment, found.position, length)
        return None

    def offset_for_timestamp(self, timestamp_ms: int, start: int, *, allow_cold: bool) -> tuple[int, int, int] | None:
        """(time stamp, offset, leader epoch) of the first record from `start` on that is as young as `timestamp_ms`."""
        for segment in self.segments:
            if segment.largest_timestamp(allow_cold=allow_cold)[0] >= timestamp_ms:
                found = segment.find_timestamp(timestamp_ms, start, allow_cold=allow_cold)
                if found is not None:
                    return found
        return None

    def max_timestamp(self, start: int, *, allow_cold: bool) -> tuple[int, int, int] | None:
        """(time stamp, offset, leader epoch) of the youngest record from `start` on, the first of them."""
        best: tuple[int, Segment] | None = None
        for segment in self.segments[max(bisect_right(self._bases, start) - 1, 0) :]:
            stamp = segment.largest_timestamp_from(start, allow_cold=allow_cold)
            if stamp >= 0 and (best is None or stamp > best[0]):
                best = stamp, segment
        return None if best is None else best[1].find_timestamp(best[0], start, allow_cold=allow_cold)


def _length(
    segment: Segment, first: Located, bound: int, following: int, max_bytes: int, min_one: bool, allow_cold: bool
) -> int | None:
    """Bytes from `first` on, ended by the bound and the limit. The next segment starts with `following`."""
    if first.last_offset >= bound:
        return None
    limit = segment.size
    if bound < following:
        beyond = segment.locate(bound, allow_cold=allow_cold)
        if beyond is not None:
            limit = beyond.position
    length = limit - first.position
    if length > max_bytes:
        if max_bytes < first.size and not min_one:
            return None
        length = max(max_bytes, first.size)
    return length
