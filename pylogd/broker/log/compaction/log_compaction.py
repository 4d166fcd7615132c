"""Compact one open log: describe the work as a job, have it done, and install the segments that result.

The log's locks are not held while segments are copied. Before a new segment is installed, its sources are checked:
retention, truncation or deletion may have removed them meanwhile.
"""

from __future__ import annotations

from pylogd.broker.log.compaction.jobs import (
    CompactedSegment,
    CompactionJob,
    CompactionResult,
    OnProgress,
    RunJob,
    SourcesChanged,
)
from pylogd.broker.log.compaction.swap import commit, give_final_names, is_undecided, rename_replaced
from pylogd.broker.log.errors import LogClosed, StorageFailure
from pylogd.broker.log.log import Log
from pylogd.broker.log.retention import unlink_later
from pylogd.broker.log.segment import Segment


def compact(log: Log, first_dirty_offset: int, bound: int, run_job: RunJob, *, now_ms: int, on_progress: OnProgress,
            io_buffer_bytes: int = 1 << 20, check_bytes: int = 1 << 20) -> CompactionResult:  # fmt: skip
    """Compact a log up to offset `bound`, or until the offset map is full, and set `log.cleaned_offset`.

    first_dirty_offset: records at and after it have not been compacted yet.

    The other arguments are those of `CompactionJob`. Raises CorruptLog, StorageFailure, SourcesChanged, and the errors
    of `run_job` and `on_progress`.
    """
    truncations = log.truncations
    sealed = {segment.base_offset: segment for segment in log.segments[:-1] if segment.file is None}
    config = log.config
    with log.lock:
        states = list(log.producers.by_id.items())
        last_offsets = {producer_id: state.last_offset for producer_id, state in states if state.batches}
        last_epochs = {producer_id: state.epoch for producer_id, state in states if not state.batches}
    job = CompactionJob(
        log.directory, tuple((base, segment.size) for base, segment in sealed.items() if base < bound),
        first_dirty_offset, bound, last_offsets, now_ms, config.delete_retention_ms,
        config.segment_bytes, config.index_interval_bytes, io_buffer_bytes, check_bytes, last_epochs,
    )  # fmt: skip

    def install(compacted: CompactedSegment) -> None:
        try:
            install_segment(log, [sealed[base] for base in compacted.replaces], compacted)
        except OSError as error:
            raise StorageFailure(error.filename or log.directory, error) from error

    result = run_job(job, on_progress, install)
    if result.end_offset > result.first_dirty_offset:
        with log.lock:
            if log.truncations != truncations:
                raise SourcesChanged(f"{log.directory}: the log was truncated while it was being compacted")
            log.cleaned_offset = result.end_offset
    return result


def install_segment(log: Log, sources: list[Segment], compacted: CompactedSegment) -> None:
    """Replace `sources`, which are adjacent segments of the log, by a compacted one.

    Raises SourcesChanged if they are no longer segments of the log. If the file system fails after the replacement
    was decided, the log stays closed: the next start completes the replacement.
    """
    fs, directory, base = log.storage.fs, log.directory, sources[0].base_offset
    target = sources[0].replacement(
        compacted.size, compacted.first_timestamp, compacted.largest_timestamp, compacted.has_aborted
    )
    with log.maintenance:
        _check_sources(log, sources)
        for segment in sources:
            segment.pin()
        try:
            commit(fs, directory, base)
            renamed = rename_replaced(fs, directory, [segment.base_offset for segment in sources[1:]])
            give_final_names(fs, directory, base)
        except BaseException:
            if is_undecided(fs, directory, base):
                for segment in sources:
                    segment.unpin()
            else:
                log.refuse_all()
            raise
        with log.lock:
            segments = list(log.segments)
            at = segments.index(sources[0])
            log.replace_segments([*segments[:at], target, *segments[at + len(sources) :]])
        for segment in sources:
            segment.drop_cached()
        if renamed:
            unlink_later(log, renamed)


def _check_sources(log: Log, sources: list[Segment]) -> None:
    with log.lock:
        if log.closed:
            raise LogClosed(f"the log of {log.topic}-{log.partition} is closed")
        sealed = list(log.segments[:-1])
        at = sealed.index(sources[0]) if sources[0] in sealed else len(sealed)
        if sealed[at : at + len(sources)] != sources or any(segment.file is not None for segment in sources):
            raise SourcesChanged(
                f"{log.directory}: segments from offset {sources[0].base_offset} on were removed while they were "
                "being compacted"
            )
