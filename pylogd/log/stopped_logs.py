"""The state of each log at a clean stop, in one file per data directory: the next start need not look for it.

Without it a start lists the directory of each partition and reads from four files of it: 0.1 ms for each, a second for
10,000. With it, a log is opened by two or three system calls that compare time stamps, and stays at rest until it is
used.

Format: a line with version and CRC-32C (8 hexadecimal digits) of what follows, then a JSON object with an array for
each partition's directory: the fields of `StoppedLog`, where each segment is an array of the fields of
`StoppedSegment`.

Rules:
- The file says something only together with the marker of a clean stop, and is removed with it, before anything else
  of the data directory changes. It is written when all logs are closed.
- It is believed of a log only if the partition's directory, the last segment's file and the snapshot of its producers
  have the time stamps and the size that they had at the stop. So other programs, also earlier versions of this one, may
  change logs between.
- It has nothing that a checkpoint of the data directory has. A log whose directory has any file that is not in its
  place, left by a removal or an interrupted compaction, is left out, and so is one with aborted transactions, whose
  indexes a start checks. What is left out, or is not believed, is loaded from its own files.
"""

from __future__ import annotations

import json
import logging
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from typing import Any, NamedTuple

from pylogd.log.checkpoints import LEADER_EPOCHS, PARTITION_METADATA, format_id
from pylogd.log.config import LogConfig
from pylogd.log.epochs import LeaderEpochs
from pylogd.log.errors import StorageFailure
from pylogd.log.files import FileSystem, read_file, write_atomically
from pylogd.log.log import Log
from pylogd.log.paced import log_class
from pylogd.log.producers import Producers
from pylogd.log.segment import INDEX_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX, Segment, segment_path
from pylogd.log.snapshots import restore_producers
from pylogd.log.storage import Storage
from pylogd.wire.records import crc32c

_log = logging.getLogger(__name__)

STOPPED_LOGS = "stopped-logs"
_VERSION = 2
#: Larger snapshots of producers stay in their files alone, which a start reads then.
_MOST_SNAPSHOT_BYTES = 1 << 10
_KNOWN_NAME = re.compile(r"\d{20}\.(index|timeindex|snapshot)", re.ASCII)

#: Size in bytes and time of the last change in nanoseconds, as `FileSystem.stamp` returns them; a list if it was read
#: from the file.
Stamp = Sequence[int]


class StoppedSegment(NamedTuple):
    """A segment of a closed log. The fields are those of `Segment`; max_timestamp is None if it is unknown."""

    base_offset: int
    size: int
    created_ms: int
    first_timestamp: int
    max_timestamp: int | None
    max_timestamp_offset: int


class StoppedLog(NamedTuple):
    """A closed log. directory, file: the stamps of its directory and of its last segment.

    snapshot: the stamp of the snapshot of its producers; None if there are none. topic_id: as text. epochs: pairs of
    leader epoch and start offset. producers: the snapshot in base 64; None if only its file has it. segments: each with
    the fields of `StoppedSegment`, but a list if it was read from the file.
    """

    directory: Stamp
    file: Stamp
    snapshot: Stamp | None
    topic_id: str
    log_end_offset: int
    epochs: list[tuple[int, int]]
    producers: str | None
    segments: Sequence[Sequence[Any]]


def write_stopped_logs(fs: FileSystem, directory: str, logs: Iterable[Log]) -> None:
    """Write the state of the logs in a data directory, all of which were closed cleanly. Raises OSError."""
    found = {}
    for log in logs:
        state = _describe(fs, log)
        if state is not None:
            found[os.path.basename(log.directory)] = state
    body = json.dumps(found, separators=(",", ":")).encode()
    write_atomically(fs, os.path.join(directory, STOPPED_LOGS), b"%d %08x\n" % (_VERSION, crc32c(body)) + body)


def read_stopped_logs(fs: FileSystem, directory: str) -> dict[str, StoppedLog]:
    """Return the logs in the file by the names of their directories; none if it is damaged. Raises OSError."""
    path = os.path.join(directory, STOPPED_LOGS)
    if not fs.exists(path):
        return {}
    head, _, body = read_file(fs, path).partition(b"\n")
    if head != b"%d %08x" % (_VERSION, crc32c(body)):
        _log.warning("%s is damaged or has another version: the broker opens the logs one by one instead", path)
        return {}
    rows: dict[str, list[Any]] = json.loads(body)
    return dict(zip(rows, starmap(StoppedLog, rows.values()), strict=True))  # their parts stay lists: there are many


def remove_stopped_logs(fs: FileSystem, directory: str) -> None:
    """Remove the file, if it exists. The caller syncs the directory. Raises OSError."""
    path = os.path.join(directory, STOPPED_LOGS)
    if fs.exists(path):
        fs.unlink(path)


def _describe(fs: FileSystem, log: Log) -> StoppedLog | None:
    """Return the state of a closed log; None if its directory has other files than those of an idle log."""
    if log.abandoned or not _is_tidy(fs.listdir(log.directory), log.segments):
        return None
    segments = [
        StoppedSegment(one.base_offset, one.size, one.created_ms, one.first_timestamp, *one.known_timestamp)
        for one in log.segments
    ]
    file = fs.stamp(log.active.path)
    if file is None or file[0] != log.active.size:
        return None
    stamp = fs.stamp(log.directory)
    if stamp is None:
        return None
    snapshot, producers, end, epochs = None, b"", log.log_end_offset, list(log.epochs.entries())
    if len(log.producers):
        snapshot, producers = fs.stamp(segment_path(log.directory, end, SNAPSHOT_SUFFIX)), log.producers.to_snapshot()
    text = b64encode(producers).decode() if len(producers) <= _MOST_SNAPSHOT_BYTES else None
    return StoppedLog(stamp, file, snapshot, format_id(log.topic_id), end, epochs, text, segments)


def _is_tidy(names: list[str], segments: Iterable[Segment]) -> bool:
    """Return whether a directory has all files of these segments, and no leftovers."""
    *sealed, active = [f"{segment.base_offset:020d}" for segment in segments]
    there = set(names)
    needed = {active + LOG_SUFFIX}
    needed.update(base + suffix for base in sealed for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX))
    others = there - needed - {LEADER_EPOCHS, PARTITION_METADATA}
    bases = {active, *sealed}
    return needed <= there and all(
        _KNOWN_NAME.fullmatch(name) and (name[:20] in bases or name.endswith(".snapshot")) for name in others
    )


def is_unchanged(fs: FileSystem, directory: str, state: StoppedLog) -> bool:
    """Return whether the log in a partition's directory is unchanged since the stop. Raises OSError."""
    if fs.stamp(directory) != tuple(state.directory):
        return False
    if fs.stamp(segment_path(directory, state.segments[-1][0])) != tuple(state.file):
        return False
    if state.snapshot is None:
        return True
    return fs.stamp(segment_path(directory, state.log_end_offset, SNAPSHOT_SUFFIX)) == tuple(state.snapshot)


def restore_log(
    state: StoppedLog,
    directory: str,
    topic: str,
    partition: int,
    topic_id: bytes,
    log_start_offset: int,
    config: LogConfig,
    *,
    storage: Storage,
    now_ms: Callable[[], int],
) -> Log | None:
    """Return the log, which `is_unchanged`, at rest; None if it must be loaded from its files.

    log_start_offset: from the checkpoint. Raises StorageFailure, and CorruptLog if the producers can't be restored.
    """
    segments = [_segment(storage, directory, segment) for segment in state.segments]
    end, start = state.log_end_offset, max(log_start_offset, segments[0].base_offset)
    if start > end:
        return None
    epochs = LeaderEpochs(state.epochs)
    if state.epochs:
        epochs.truncate_end(end)
        epochs.truncate_start(start)
    producers = Producers()
    if state.producers:
        producers.restore(b64decode(state.producers))
    elif state.producers is None:
        try:
            restore_producers(storage.fs, directory, segments, end, producers)
        except OSError as error:
            raise StorageFailure(directory, error) from error
    return log_class(storage)(
        directory, topic, partition, topic_id, config, storage=storage, now_ms=now_ms,
        segments=segments, log_start_offset=start, log_end_offset=end, recovery_point=end, epochs=epochs,
        producers=producers, clean=True,
    )  # fmt: skip


def _segment(storage: Storage, directory: str, state: Sequence[Any]) -> Segment:
    base_offset, size, created_ms, first_timestamp, *known = state
    segment = Segment(storage, directory, base_offset, size, created_ms=created_ms)
    segment.first_timestamp = first_timestamp
    segment.known_timestamp = known[0], known[1]
    return segment
