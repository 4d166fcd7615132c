"""Format the files of a log as lines of text, for `pylogd dump-log`.

Rules: an error in a file is reported as the last line; nothing is changed or left out. Records of compressed batches
are decompressed if the caller asks for records.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from pylogd.base.errors import ProtocolError
from pylogd.broker.log.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    LEADER_EPOCHS,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
)
from pylogd.broker.log.files import FileSystem, RealFileSystem, SegmentFile, read_file
from pylogd.broker.log.index import OFFSET_ENTRY, TIME_ENTRY, IndexCorrupt, TransactionIndex
from pylogd.broker.log.markers import read_marker
from pylogd.broker.log.producers import SnapshotCorrupt, read_snapshot
from pylogd.broker.log.scan import BadBatch, FoundBatch, scan
from pylogd.broker.log.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from pylogd.wire.compression import CompressionType
from pylogd.wire.records import crc32c, decode_batch

_TEXT_FILES = frozenset(
    {CLEAN_SHUTDOWN, CLEANER_OFFSETS, LEADER_EPOCHS, LOG_STARTS, META_PROPERTIES, PARTITION_METADATA, RECOVERY_POINTS}
)
_MARKS = (("is_transactional", "transactional"), ("is_control", "control"), ("is_log_append_time", "log append time"))


def dump_file(path: str, *, records: bool = False, fs: FileSystem | None = None) -> Iterator[str]:
    """Return the contents of a file as lines.

    records: whether to include the records of a `.log` file.

    Raises ValueError for an unknown kind of file, OSError.
    """
    fs = RealFileSystem() if fs is None else fs
    name = os.path.basename(path)
    stem, suffix = os.path.splitext(name.removesuffix(DELETED_SUFFIX))
    if name in _TEXT_FILES:
        return iter(read_file(fs, path).decode("utf-8", "replace").splitlines())
    if suffix == LOG_SUFFIX:
        return _dump_log(fs, path, records)
    dumper = _DUMPERS.get(suffix)
    if dumper is None:
        kinds = ", ".join([LOG_SUFFIX, *_DUMPERS])
        raise ValueError(
            f"{path}: unknown kind of file: the name must end with one of {kinds}, or be that of a checkpoint"
        )
    return dumper(read_file(fs, path), int(stem) if stem.isdigit() else 0)


def _dump_log(fs: FileSystem, path: str, records: bool) -> Iterator[str]:
    size = fs.size(path)
    count = 0
    try:
        for found in scan(SegmentFile(fs, path), size, check_crc=False):
            count += 1
            yield _batch_line(found)
            if records:
                yield from _record_lines(found)
    except BadBatch as bad:
        yield f"no valid batch at byte {bad.position} of {size}: {bad.reason}"
    else:
        yield f"{count} batches, {size} bytes"


def _batch_line(found: FoundBatch) -> str:
    header = found.header
    actual = crc32c(found.data[21:])
    codec = header.compression
    parts = [
        f"position {found.position}",
        f"size {header.size}",
        f"offsets {header.base_offset} to {header.last_offset}",
        f"records {header.record_count}",
        f"timestamps {header.base_timestamp} to {header.max_timestamp}",
        f"leader epoch {header.leader_epoch}",
        f"compression {CompressionType(codec).name.lower() if codec in list(CompressionType) else codec}",
    ]
    if header.producer_id >= 0:
        sequence = f"sequence {header.base_sequence}"
        parts.append(f"producer {header.producer_id} epoch {header.producer_epoch} {sequence}")
    parts += [text for attribute, text in _MARKS if getattr(header, attribute)]
    marker = read_marker(header, found.data) if header.is_control else None
    if marker is not None:
        parts.append(f"{'commit' if marker.committed else 'abort'} of coordinator epoch {marker.coordinator_epoch}")
    parts.append(f"crc {header.crc:08x}" + ("" if actual == header.crc else f" WRONG, should be {actual:08x}"))
    return ", ".join(parts)


def _record_lines(found: FoundBatch) -> Iterator[str]:
    try:
        for record in decode_batch(found.data, found.header, check_crc=False):
            headers = "".join(f", header {key}={value!r}" for key, value in record.headers)
            stamp = f"timestamp {record.timestamp}"
            yield f"  offset {record.offset}, {stamp}, key {record.key!r}, value {record.value!r}{headers}"
    except ProtocolError as error:
        yield f"  the records can't be decoded: {error}"


def _dump_index(data: bytes, base: int) -> Iterator[str]:
    whole = len(data) - len(data) % OFFSET_ENTRY
    for at in range(0, whole, OFFSET_ENTRY):
        offset, position = int.from_bytes(data[at : at + 4], "big"), int.from_bytes(data[at + 4 : at + 8], "big")
        yield f"offset {base + offset}, position {position}"
    yield from _incomplete_entry(data, whole)


def _dump_time_index(data: bytes, base: int) -> Iterator[str]:
    whole = len(data) - len(data) % TIME_ENTRY
    for at in range(0, whole, TIME_ENTRY):
        stamp = int.from_bytes(data[at : at + 8], "big", signed=True)
        yield f"timestamp {stamp}, offset {base + int.from_bytes(data[at + 8 : at + 12], 'big')}"
    yield from _incomplete_entry(data, whole)


def _dump_transaction_index(data: bytes, base: int) -> Iterator[str]:
    try:
        index = TransactionIndex.from_bytes(data, base)
    except IndexCorrupt as error:
        yield f"invalid transaction index: {error}"
        return
    for aborted in index.entries:
        yield (
            f"producer {aborted.producer_id}, first offset {aborted.first_offset}, last offset {aborted.last_offset}, "
            f"last stable offset {aborted.last_stable_offset}"
        )


def _incomplete_entry(data: bytes, whole: int) -> Iterator[str]:
    if len(data) > whole:
        yield f"{len(data) - whole} bytes follow the last complete entry"


def _dump_snapshot(data: bytes, base: int) -> Iterator[str]:
    try:
        entries = read_snapshot(data)
    except SnapshotCorrupt as error:
        yield f"invalid snapshot: {error}"
        return
    yield f"producers before offset {base}: {len({entry.producer_id for entry in entries})}"
    for entry in entries:
        yield (
            f"producer {entry.producer_id}, epoch {entry.epoch}, last sequence {entry.last_sequence}, "
            f"last offset {entry.last_offset}, offset delta {entry.offset_delta}, timestamp {entry.timestamp}, "
            f"coordinator epoch {entry.coordinator_epoch}, "
            f"transaction's first offset {entry.transaction_first_offset}"
        )


_DUMPERS: dict[str, Callable[[bytes, int], Iterator[str]]] = {
    INDEX_SUFFIX: _dump_index,
    TIME_INDEX_SUFFIX: _dump_time_index,
    TRANSACTION_INDEX_SUFFIX: _dump_transaction_index,
    SNAPSHOT_SUFFIX: _dump_snapshot,
}
