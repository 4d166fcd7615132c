"""Decide which part of a log may be compacted now, and whether it should be."""

from __future__ import annotations

from typing import NamedTuple

from pylogd.broker.log.config import NO_LIMIT
from pylogd.broker.log.log import Log
from pylogd.broker.log.segment import Segment


class LogToClean(NamedTuple):
    """A log with records that may be compacted.

    first_dirty_offset: the first offset that has not been compacted yet.
    end_offset: the offset at which the part that may be compacted now ends.
    clean_bytes: the size of the segments before `first_dirty_offset`.
    dirty_bytes: the size of the segments from `first_dirty_offset` to `end_offset`.
    overdue: whether a record in these segments is older than `max.compaction.lag.ms`.
    """

    log: Log
    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool

    @property
    def dirty_ratio(self) -> float:
        """The share of the bytes that has not been compacted yet, from 0 to 1."""
        return self.dirty_bytes / max(self.clean_bytes + self.dirty_bytes, 1)

    @property
    def is_due(self) -> bool:
        """Whether the log should be compacted now."""
        return self.dirty_bytes > 0 and (self.overdue or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio)


def log_to_clean(log: Log, now_ms: int) -> LogToClean | None:
    """Return the part of a log that may be compacted at `now_ms`, None if there is none.

    Excluded are the active segment, segments that are not durable yet, segments with a record younger than
    `min.compaction.lag.ms`, and everything at or after `Log.deletable_offset`. It may read batch headers: call it in a
    thread.
    """
    segments = log.segments
    first_dirty = log.cleaned_offset
    if not segments[0].base_offset <= first_dirty <= log.log_end_offset:
        first_dirty = segments[0].base_offset
    first_dirty = max(first_dirty, min(log.log_start_offset, log.active.base_offset))
    bound = log.active.base_offset if log.deletable_offset is None else log.deletable_offset
    clean, dirty = [], []
    end = first_dirty
    for at, segment in enumerate(segments[:-1]):
        next_base_offset = segments[at + 1].base_offset
        if next_base_offset <= first_dirty:
            clean.append(segment)
            continue
        if segment.file is not None or next_base_offset > bound or _is_too_young(log, segment, now_ms):
            break
        dirty.append(segment)
        end = next_base_offset
    if not dirty:
        return None
    return LogToClean(
        log, first_dirty, end, sum(segment.size for segment in clean), sum(segment.size for segment in dirty),
        _is_overdue(log, dirty, now_ms),
    )  # fmt: skip


def _is_too_young(log: Log, segment: Segment, now_ms: int) -> bool:
    """Return whether the segment has a record younger than `min.compaction.lag.ms`."""
    lag = log.config.min_compaction_lag_ms
    return lag > 0 and _newest_timestamp(segment) > now_ms - lag


def _newest_timestamp(segment: Segment) -> int:
    stamp, _ = segment.largest_timestamp(allow_cold=True)
    return segment.created_ms if stamp < 0 else stamp


def _is_overdue(log: Log, dirty: list[Segment], now_ms: int) -> bool:
    """Return whether the first batch of a segment is older than `max.compaction.lag.ms`, as Kafka checks it."""
    lag = log.config.max_compaction_lag_ms
    if lag >= NO_LIMIT:
        return False
    for segment in dirty:
        for _, header in segment.headers(0, allow_cold=True):
            if now_ms - header.max_timestamp >= lag:
                return True
            break
    return False
