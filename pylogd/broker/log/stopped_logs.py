"""The state of each log at a clean stop, in one file per data directory, so that the next start need not search for it.

Without this file a start lists the directory of each partition and reads from four of its files: 0.1 ms for each
partition, a second for 10,000. With the file, a log is opened by two or three system calls that compare time stamps,
and stays at rest until it is used.

Format: a line with version and CRC-32C (8 hexadecimal digits) of what follows, then a JSON array that has for each
topic an array of its name, its id and its logs. A log is an array of the fields of `StoppedLog` from `partition` on.

Rules:
- The file is valid only together with the marker of a clean stop, and is removed with it, before anything else in the
  data directory changes. It is written when all logs are closed.
- A log's entry is used only if the partition's directory, the last segment's file and the snapshot of its producers
  have the time stamps and the size that they had at the stop. So other programs, including earlier versions of this
  one, may change logs in the meantime.
- The file has nothing that a checkpoint of the data directory has. Some logs are left out: those with aborted
  transactions, whose indexes a start checks, and those whose directory has any unexpected file, left by a removal or an
  interrupted compaction. Logs that are left out or have changed are loaded from their own files.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from pylogd.broker.log.checkpoints import LEADER_EPOCHS, PARTITION_METADATA, format_id, parse_id
from pylogd.broker.log.config import LogConfig
from pylogd.broker.log.epochs import LeaderEpochs
from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.log.files import FileSystem, read_file, write_atomically
from pylogd.broker.log.log import Log
from pylogd.broker.log.paced import log_class
from pylogd.broker.log.producers import Producers
from pylogd.broker.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    segment_path,
)
from pylogd.broker.log.snapshots import restore_producers
from pylogd.broker.log.storage import Storage
from pylogd.wire.records import crc32c

_log = logging.getLogger(__name__)

STOPPED_LOGS = "stopped-logs"
_VERSION = 3
#: Larger snapshots of producers are not copied here; a start reads their files.
_MOST_SNAPSHOT_BYTES = 1 << 10
_KNOWN_NAME = re.compile(r"\d{20}\.(index|timeindex|snapshot)", re.ASCII)


class StoppedLog(NamedTuple):
    """A closed log. A stamp is a size in bytes and the time of the last change in nanoseconds.

    directory_size, directory_ns: the stamp of its directory.
    file_ns: the time in the stamp of its last segment's file; the size is the segment's.
    base_offset, size, created_ms, first_timestamp, max_timestamp, max_timestamp_offset: the fields of its last segment,
        as in `Segment`; max_timestamp is None if it is unknown.
    more: the fields of `More`; None for an empty log.
    """

    topic: str
    topic_id: bytes
    partition: int
    log_end_offset: int
    directory_size: int
    directory_ns: int
    file_ns: int
    base_offset: int
    size: int
    created_ms: int
    first_timestamp: int
    max_timestamp: int | None
    max_timestamp_offset: int
    more: Sequence[Any] | None


class More(NamedTuple):
    """Fields that only some closed logs have.

    epochs: pairs of leader epoch and start offset.
    snapshot: the stamp of the snapshot of its producers; None without producers.
    producers: the snapshot in base 64; None if only its file has it.
    sealed: all segments but the last, each with the six fields of a segment that `StoppedLog` has.
    """

    epochs: Sequence[tuple[int, int]] = ()
    snapshot: Sequence[int] | None = None
    producers: str | None = ""
    sealed: Sequence[Sequence[Any]] = ()


_NO_MORE = More()


def write_stopped_logs(fs: FileSystem, directory: str, logs: Iterable[Log]) -> None:
    """Write the state of the logs in a data directory, all of which were closed cleanly. Raises OSError."""
    found: dict[tuple[str, bytes], list[Sequence[Any]]] = {}
    for log in logs:
        state = _describe(fs, log)
        if state is not None:
            _, _, *fields = state
            found.setdefault((log.topic, log.topic_id), []).append(fields)
    rows = [(topic, format_id(topic_id), fields) for (topic, topic_id), fields in found.items()]
    body = json.dumps(rows, separators=(",", ":")).encode()
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
    found = {}
    for name, text, rows in json.loads(body):
        topic, topic_id = sys.intern(name), parse_id(text)  # one object for all partitions
        for row in rows:
            found[f"{topic}-{row[0]}"] = StoppedLog(topic, topic_id, *row)
    return found


def remove_stopped_logs(fs: FileSystem, directory: str) -> None:
    """Remove the file, if it exists. The caller syncs the directory. Raises OSError."""
    path = os.path.join(directory, STOPPED_LOGS)
    if fs.exists(path):
        fs.unlink(path)


def _describe(fs: FileSystem, log: Log) -> StoppedLog | None:
    """Return the state of a closed log; None if its directory has other files than those of an idle log."""
    if log.abandoned or not _is_tidy(fs.listdir(log.directory), log.segments):
        return None
    *sealed, last = map(_fields, log.segments)
    file = fs.stamp(log.active.path)
    if file is None or file[0] != log.active.size:
        return None
    stamp = fs.stamp(log.directory)
    if stamp is None:
        return None
    snapshot, producers, end = None, b"", log.log_end_offset
    if len(log.producers):
        snapshot, producers = fs.stamp(segment_path(log.directory, end, SNAPSHOT_SUFFIX)), log.producers.to_snapshot()
    text = b64encode(producers).decode() if len(producers) <= _MOST_SNAPSHOT_BYTES else None
    more = More(tuple(log.epochs.entries()), snapshot, text, tuple(sealed))
    fields = (log.partition, end, *stamp, file[1], *last, None if more == _NO_MORE else more)
    return StoppedLog(log.topic, log.topic_id, *fields)


def _is_tidy(names: list[str], segments: Iterable[Segment]) -> bool:
    """Return whether a directory has all files of these segments, and nothing left over."""
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
    if fs.stamp(directory) != (state.directory_size, state.directory_ns):
        return False
    if fs.stamp(segment_path(directory, state.base_offset)) != (state.size, state.file_ns):
        return False
    if state.more is None or (snapshot := More(*state.more).snapshot) is None:
        return True
    return fs.stamp(segment_path(directory, state.log_end_offset, SNAPSHOT_SUFFIX)) == tuple(snapshot)


def restore_log(
    state: StoppedLog,
    directory: str,
    log_start_offset: int,
    config: LogConfig,
    *,
    storage: Storage,
    now_ms: Callable[[], int],
) -> Log | None:
    """Return a log at rest if it is unchanged (`is_unchanged`); None if it must be loaded from its files.

    log_start_offset: the offset in the checkpoint.

    Raises StorageFailure, and CorruptLog if the producers can't be restored.
    """
    topic, topic_id, partition, end, _, _, _, *last = state[:-1]
    segments, epochs, producers, more = [_segment(storage, directory, last)], LeaderEpochs(), Producers(), state.more
    first = state.base_offset
    if more is not None:
        pairs, _, text, sealed = More(*more)
        segments = [*(_segment(storage, directory, one) for one in sealed), *segments]
        first, epochs = segments[0].base_offset, LeaderEpochs(pairs)
    start = log_start_offset if log_start_offset > first else first
    if start > end:
        return None
    if more is not None:
        epochs.truncate_end(end)
        epochs.truncate_start(start)
        _restore_producers(producers, text, storage, directory, segments, end)
    return log_class(storage)(
        directory, topic, partition, topic_id, config, storage=storage, now_ms=now_ms,
        segments=segments, log_start_offset=start, log_end_offset=end, recovery_point=end, epochs=epochs,
        producers=producers, clean=True,
    )  # fmt: skip


def _restore_producers(
    producers: Producers, text: str | None, storage: Storage, directory: str, segments: list[Segment], end: int
) -> None:
    """Restore producers from `More.producers`, or from their file if that is None."""
    if text:
        producers.restore(b64decode(text))
    elif text is None:
        try:
            restore_producers(storage.fs, directory, segments, end, producers)
        except OSError as error:
            raise StorageFailure(directory, error) from error


def _fields(segment: Segment) -> tuple[Any, ...]:
    """Return the fields of a segment in the file's form, which `_segment` reads."""
    known = segment.known_timestamp
    return segment.base_offset, segment.size, segment.created_ms, segment.first_timestamp, *known


def _segment(storage: Storage, directory: str, fields: Sequence[Any]) -> Segment:
    base_offset, size, created_ms, first_timestamp, *known = fields
    segment = Segment(storage, directory, base_offset, size, created_ms=created_ms)
    segment.first_timestamp = first_timestamp
    segment.known_timestamp = known[0], known[1]
    return segment
