"""The small text files next to the segments, in Kafka's formats, so that Kafka's tools can read them.

- `leader-epoch-checkpoint` (per partition): version 0, a count, then one "epoch start-offset" per line.
- `recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`, `cleaner-offset-checkpoint` and
  `replication-offset-checkpoint` (the high watermarks), all per data directory: version 0, a count, then one
  "topic partition offset" per line.
- `partition.metadata` (per partition): "version: 0", and "topic_id: " with the id in URL-safe base 64 without padding.
- `meta.properties` (per data directory): Java properties; `version=1`, `node.id`, `cluster.id`, `directory.id`, and
  `boot.id`, which Kafka does not have.
- `.kafka_cleanshutdown` (per data directory): JSON; exists only between a clean stop and the next start.

Rules: a file is written whole to a temporary file, which is synced and renamed over the old one. Then the directory is
synced, except after writing `partition.metadata`. So a crash leaves the old file or the new one. A file with invalid
contents raises CorruptFile; the caller decides whether the log can do without it.
"""

from __future__ import annotations

import base64
import binascii
import errno
import json
import os
import uuid
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from pylogd.broker.log.errors import LINK, CorruptFile
from pylogd.broker.log.files import (
    TEMPORARY_SUFFIX,
    FileSystem,
    read_file,
    sync_directory,
    sync_file,
    write_atomically,
    write_file,
)

LEADER_EPOCHS = "leader-epoch-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

_VERSION = 0
_ID_BYTES = 16
_REMEMBERED_IDS = 256

TopicPartition = tuple[str, int]


def _lines(fs: FileSystem, path: str) -> list[str]:
    try:
        return read_file(fs, path).decode().splitlines()
    except UnicodeDecodeError:
        raise CorruptFile(path, "the file is not text") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise CorruptFile(path, LINK) from error
        raise


def _entries(fs: FileSystem, path: str, columns: int) -> list[list[str]]:
    """Return the columns of each line after version and count."""
    lines = [line for line in _lines(fs, path) if line.strip()]
    try:
        version, count = int(lines[0]), int(lines[1])
    except (IndexError, ValueError):
        raise CorruptFile(path, "the file does not start with a version and a count") from None
    if version != _VERSION:
        raise CorruptFile(path, f"unknown version {version}, should be {_VERSION}")
    rows = [line.split() for line in lines[2:]]
    if len(rows) != count or not {columns}.issuperset(map(len, rows)):
        raise CorruptFile(path, f"the lines after the header are not {count} lines of {columns} columns, as it says")
    return rows


def _text(rows: Iterable[str]) -> bytes:
    """Return the contents of a file that has these lines after the version and the count."""
    lines = list(rows)
    return "\n".join([str(_VERSION), str(len(lines)), *lines, ""]).encode()


def write_leader_epochs(fs: FileSystem, directory: str, entries: Iterable[tuple[int, int]]) -> None:
    """Write (epoch, start offset) pairs. Raises OSError."""
    write_atomically(fs, os.path.join(directory, LEADER_EPOCHS), _epochs_text(entries))


def prepare_leader_epochs(fs: FileSystem, directory: str, entries: Iterable[tuple[int, int]]) -> None:
    """Do the first half of `write_leader_epochs`: write the temporary file, without a sync. Raises OSError."""
    path = os.path.join(directory, LEADER_EPOCHS)
    write_file(fs, path + TEMPORARY_SUFFIX, _epochs_text(entries), sync=False)


def replace_leader_epochs(fs: FileSystem, directory: str) -> None:
    """Do the second half of `write_leader_epochs`, once the temporary file is durable. The caller syncs the directory.

    Raises OSError.
    """
    path = os.path.join(directory, LEADER_EPOCHS)
    fs.rename(path + TEMPORARY_SUFFIX, path)


def _epochs_text(entries: Iterable[tuple[int, int]]) -> bytes:
    return _text(f"{epoch} {start}" for epoch, start in entries)


def read_leader_epochs(fs: FileSystem, directory: str) -> list[tuple[int, int]]:
    """Return the (epoch, start offset) pairs, both ascending; empty if the file does not exist.

    Raises CorruptFile, OSError.
    """
    path = os.path.join(directory, LEADER_EPOCHS)
    try:
        entries = [(int(epoch), int(start)) for epoch, start in _entries(fs, path, 2)]
    except FileNotFoundError:
        return []
    except ValueError:
        raise CorruptFile(path, "an epoch or offset is not a number") from None
    for (epoch, start), (next_epoch, next_start) in pairwise(entries):
        if next_epoch <= epoch or next_start < start:
            raise CorruptFile(path, f"epoch {next_epoch} at offset {next_start} follows epoch {epoch} at {start}")
    return entries


def write_offsets(fs: FileSystem, directory: str, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Write an offset for each partition to the file `name`. Raises OSError.

    This makes no tuple for each partition: 10,000 tuples would start the garbage collector.
    """
    rows = [f"{key[0]} {key[1]} {offsets[key]}" for key in sorted(offsets)]
    write_atomically(fs, os.path.join(directory, name), _text(rows))


def read_offsets(fs: FileSystem, directory: str, name: str) -> dict[TopicPartition, int]:
    """Return the offset of each partition; empty if the file does not exist. Raises CorruptFile, OSError."""
    path = os.path.join(directory, name)
    if not fs.exists(path):
        return {}
    try:
        return {(topic, int(partition)): int(offset) for topic, partition, offset in _entries(fs, path, 3)}
    except ValueError:
        raise CorruptFile(path, "a partition or offset is not a number") from None


def prepare_partition_metadata(fs: FileSystem, directory: str, topic_id: bytes, *, sync: bool = True) -> None:
    """Write the topic id (16 bytes) to a temporary file. `complete_partition_metadata` gives the file its name.

    sync: False if the caller makes the file durable before it calls `complete_partition_metadata`.

    Raises OSError.
    """
    text = f"version: {_VERSION}\ntopic_id: {format_id(topic_id)}\n"
    write_file(fs, _prepared_metadata(directory), text.encode(), sync=sync)


def sync_prepared_metadata(fs: FileSystem, directory: str) -> None:
    """Make the temporary file durable. Raises OSError."""
    _sync_existing(fs, _prepared_metadata(directory))


def complete_partition_metadata(fs: FileSystem, directory: str) -> None:
    """Rename the durable temporary file, so that a power loss leaves `partition.metadata` complete or missing.

    The directory is synced only by the first flush of the log. Until then a power loss may leave the temporary file,
    which `restore_partition_metadata` renames. Raises OSError.
    """
    fs.rename(_prepared_metadata(directory), f"{directory}/{PARTITION_METADATA}")


def _prepared_metadata(directory: str) -> str:
    return f"{directory}/{PARTITION_METADATA}{TEMPORARY_SUFFIX}"


def restore_partition_metadata(fs: FileSystem, directory: str) -> None:
    """Rename a complete temporary file of `partition.metadata` that a power loss left behind."""
    path = os.path.join(directory, PARTITION_METADATA)
    if fs.exists(path) or not fs.exists(path + TEMPORARY_SUFFIX):
        return
    try:
        _read_topic_id(fs, path + TEMPORARY_SUFFIX)
    except CorruptFile:
        return  # it is incomplete; the loader removes it
    fs.rename(path + TEMPORARY_SUFFIX, path)


def sync_partition_metadata(fs: FileSystem, directory: str) -> None:
    """Make the file durable, if it exists. Raises OSError."""
    path = os.path.join(directory, PARTITION_METADATA)
    if fs.exists(path):
        _sync_existing(fs, path)


def _sync_existing(fs: FileSystem, path: str) -> None:
    fd = fs.open(path, os.O_RDWR)
    try:
        sync_file(fs, fd, path)
    finally:
        fs.close(fd)


def read_partition_metadata(fs: FileSystem, directory: str) -> bytes | None:
    """Return the topic id, or None if the file does not exist. Raises CorruptFile, OSError."""
    try:
        return _read_topic_id(fs, os.path.join(directory, PARTITION_METADATA))
    except FileNotFoundError:
        return None


def _read_topic_id(fs: FileSystem, path: str) -> bytes:
    try:
        return _parse_topic_id("\n".join(_lines(fs, path)))
    except ValueError as error:
        raise CorruptFile(path, str(error)) from None


@lru_cache(_REMEMBERED_IDS)
def _parse_topic_id(text: str) -> bytes:
    """Return the topic id in a `partition.metadata`. Raises ValueError.

    Results are cached, so that all partitions of a topic share one object.
    """
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    if fields.get("version") != str(_VERSION):
        raise ValueError(f"unknown version {fields.get('version')}, should be {_VERSION}")
    return parse_id(fields.get("topic_id", ""))


def format_id(value: bytes) -> str:
    """Return an id as Kafka writes it: URL-safe base 64 without padding."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def parse_id(text: str) -> bytes:
    """Return the 16 bytes of an id that `format_id` formatted. Raises ValueError."""
    try:
        value = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        value = b""
    if len(value) != _ID_BYTES:
        raise ValueError(f"{text!r} is not an id of {_ID_BYTES} bytes in base 64")
    return value


class MetaProperties(NamedTuple):
    """The owner of a data directory.

    cluster_id: None if it is not known yet.
    directory_id: empty if the file was written by a program that sets no directory id.
    boot_id: identifies the boot of the operating system in which the directory was last used; None if unknown.
    """

    node_id: int
    cluster_id: str | None
    directory_id: str
    boot_id: str | None = None


def new_directory_id() -> str:
    """Return a random id for a new data directory."""
    return format_id(uuid.uuid4().bytes)


def write_meta_properties(fs: FileSystem, directory: str, properties: MetaProperties) -> None:
    """Write `meta.properties`. Raises OSError."""
    lines = ["#", "version=1", f"node.id={properties.node_id}", f"directory.id={properties.directory_id}"]
    if properties.cluster_id is not None:
        lines.append(f"cluster.id={properties.cluster_id}")
    if properties.boot_id is not None:
        lines.append(f"boot.id={properties.boot_id}")
    write_atomically(fs, os.path.join(directory, META_PROPERTIES), "\n".join([*lines, ""]).encode())


def read_meta_properties(fs: FileSystem, directory: str) -> MetaProperties | None:
    """Read `meta.properties`. Return None if the file does not exist.

    It also reads the older version 0, which has `broker.id`. Raises CorruptFile, OSError.
    """
    path = os.path.join(directory, META_PROPERTIES)
    if not fs.exists(path):
        return None
    fields: dict[str, str] = {}
    for line in _lines(fs, path):
        if "=" in line and not line.lstrip().startswith("#"):
            key, _, value = line.partition("=")
            fields[key.strip()] = value.strip()
    node = fields.get("node.id", fields.get("broker.id", ""))
    if not node.lstrip("-").isdigit():
        raise CorruptFile(path, "node.id is missing or not a number")
    directory_id = fields.get("directory.id", "")
    return MetaProperties(int(node), fields.get("cluster.id"), directory_id, fields.get("boot.id") or None)


def write_clean_shutdown(fs: FileSystem, directory: str, broker_epoch: int = -1) -> None:
    """Mark a data directory as closed cleanly. Raises OSError."""
    content = json.dumps({"version": _VERSION, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    write_atomically(fs, os.path.join(directory, CLEAN_SHUTDOWN), content.encode())


def take_clean_shutdown(fs: FileSystem, directory: str) -> bool:
    """Return whether a data directory was closed cleanly, and remove the marker. Raises OSError."""
    path = os.path.join(directory, CLEAN_SHUTDOWN)
    if not fs.exists(path):
        return False
    fs.unlink(path)
    sync_directory(fs, directory)
    return True
