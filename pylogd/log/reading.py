"""Finding things in the segments of a log as one moment has them.

Strategy: a view is made whenever the list of segments changes and is never changed itself, so whoever holds one reads
on without a lock. The segment is found by bisection over base offsets; where in it is the segment's own business.
A stretch that is ended by its limit ends with a whole batch, and where the next one starts is remembered, by its
offset: that is where a reader goes on, who then needs no look-up, and was not sent the start of a batch in vain.

Rules: look-ups that would wait for the disk raise `ColdRead` unless `allow_cold`. A segment that goes meanwhile makes
a look-up fail with `StorageFailure`; who asked knows whether that was to be expected.
Must not know: where the log starts and ends beyond what it is handed, appends, locks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from pylogd.log.errors import StorageFailure, UnsupportedCompressionType
from pylogd.log.files import FileSlice
from pylogd.log.segment import Located, Segment
from pylogd.wire.records import HEADER_SIZE, LENGTH_OVERHEAD, parse_header

_MOST_REMEMBERED = 256


class SegmentsView:
    """`segments`, oldest first and never changed; at least one."""

    __slots__ = ("_bases", "_next", "segments")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._next: dict[int, tuple[int, Located]] = {}  # segment's number and batch, by the batch's base offset

    def look_up(
        self, offset: int, bound: int, end: int, size: int, max_bytes: int, *,
        min_one: bool, allow_cold: bool, empty: bool = False,
    ) -> tuple[Segment, int, int] | None:  # fmt: skip
        """(segment, position, length) of what `Log.read` hands out; `bound` is exclusive.

        `end` and `size` are the log's end and the last segment's bytes, of one moment. `empty`: the first batch may be
        one that compaction emptied.
        """
        found = self._next.get(offset) or self._find(offset, allow_cold, empty)
        if found is None:
            return None
        at, first = found
        segment = self.segments[at]
        if first.last_offset >= bound:
            return None
        length = self._end(at, bound, end, size, allow_cold) - first.position
        if length > max_bytes:
            if max_bytes < first.size and not min_one:
                return None
            length = self._whole_batches(at, first.position, max(max_bytes, first.size), allow_cold)
        return (segment, first.position, length) if length > 0 else None

    def _find(self, offset: int, allow_cold: bool, empty: bool) -> tuple[int, Located] | None:
        """The batch that ends at or behind `offset` first, and its segment's number. Unless `empty`, it has records."""
        for at in range(max(bisect_right(self._bases, offset) - 1, 0), len(self.segments)):
            segment = self.segments[at]
            found = segment.locate(offset, allow_cold=allow_cold)
            # librdkafka takes an answer of only such for one cut too short.
            while found is not None and found.empty and not empty:
                found = segment.locate(found.last_offset + 1, allow_cold=allow_cold)
            if found is not None:
                return at, found
        return None

    def _end(self, at: int, bound: int, end: int, size: int, allow_cold: bool) -> int:
        """Where in its file the segment ends for a reader who may read up to `bound`, exclusive."""
        segment = self.segments[at]
        if bound < (self._bases[at + 1] if at + 1 < len(self._bases) else end):
            beyond = segment.locate(bound, allow_cold=allow_cold)
            if beyond is not None:
                return beyond.position
        return size if at + 1 == len(self.segments) else segment.size

    def _whole_batches(self, at: int, position: int, max_bytes: int, allow_cold: bool) -> int:
        """The bytes of the batches from `position` on that fit whole into `max_bytes`, as the first does."""
        following = self.segments[at].batch_at(position + max_bytes, allow_cold=allow_cold)
        if following is None:
            return max_bytes
        if not following.empty:
            if len(self._next) >= _MOST_REMEMBERED:
                self._next.clear()
            self._next[following.base_offset] = at, following
        return following.position - position

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


def before_codec(records: FileSlice, codec: int) -> FileSlice:
    """`records`, whole batches, up to the first one that is compressed with `codec`. May wait for the disk.

    Raises UnsupportedCompressionType where that is the first of them, and StorageFailure.
    """
    file, start = records.file, records.position
    at, end = start, start + len(records)
    while at + HEADER_SIZE <= end:
        try:
            header = parse_header(file.read(at, HEADER_SIZE))
        except OSError as error:
            raise StorageFailure(file.path, error) from error
        if header.compression == codec:
            if at == start:
                raise UnsupportedCompressionType(f"the batch at {header.base_offset} is compressed with codec {codec}")
            return FileSlice(file, start, at - start)
        at += header.batch_length + LENGTH_OVERHEAD
    return records
