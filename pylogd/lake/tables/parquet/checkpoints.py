"""Checkpoints: the sums of a lake's commits up to a number, so that a long history need not be read.

A checkpoint of commit 42 has two files. `00…042.parquet` is a table of the lake's files as of that commit: `path`,
`bytes`, `rows`, `quarantined`. `00…042.json` has the commit's own document, and is written last: without it there is no
checkpoint. Both are made atomically and never changed; two processes that write the same checkpoint write the same
content.

Checkpoints are in `checkpoints/`, where newer ones replace old ones, or in `floors/`, which has the checkpoint of the
oldest commit that is kept (`expiry`).

Must not know: when checkpoints are written.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.parquet.commits import Commit, DataFile
from pylogd.lake.tables.parquet.files import CHECKPOINTS, FLOORS, Files, numbered, numbers

_VERSION: Final = 1
_COLUMNS: Final = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("bytes", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("quarantined", pa.bool_()),
    ]
)


@dataclass(slots=True)
class Snapshot:
    """The contents of the lake as of a commit.

    files, quarantined: the files of the lake and of its quarantine by path, in the order in which they were added.
    begins: topic -> partition -> the first offset that was ever loaded.
    """

    files: dict[str, DataFile] = field(default_factory=dict)
    quarantined: dict[str, DataFile] = field(default_factory=dict)
    begins: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, commit: Commit) -> None:
        """Add the next commit."""
        for path in commit.removed:
            self.files.pop(path, None)
        for known, files in ((self.files, commit.added), (self.quarantined, commit.quarantined)):
            known.update((file.path, DataFile(file.path, "", file.bytes, file.rows)) for file in files)
        for topic, partitions in commit.offsets.items():
            begins, read = self.begins.setdefault(topic, {}), commit.read.get(topic, {})
            for partition, end in partitions.items():
                begins.setdefault(partition, end - read.get(partition, 0))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The part of a checkpoint that the next commits need.

    begins: see `Snapshot`.
    """

    commit: Commit
    begins: Mapping[str, Mapping[str, int]]
    applied: int


@dataclass(frozen=True, slots=True, order=True)
class CheckpointPath:
    """The place of a checkpoint: the number of its commit, and a directory."""

    number: int
    directory: str

    def path(self, suffix: str) -> str:
        """Return the path of one of its files."""
        return numbered(self.directory, self.number, suffix)


def found(files: Files, directory: str) -> list[CheckpointPath]:
    """Return the checkpoints in a directory, the oldest first."""
    return [CheckpointPath(number, directory) for number in numbers(files.names(directory), ".json")]


def newest(files: Files, limit: int | None = None) -> CheckpointPath | None:
    """Return the newest checkpoint, or the newest up to the number `limit`; None if the lake has none."""
    places = [*found(files, CHECKPOINTS), *found(files, FLOORS)]
    return max((place for place in places if limit is None or place.number <= limit), default=None)


def write(files: Files, place: CheckpointPath, commit: Commit, snapshot: Snapshot, applied: int) -> None:
    """Make the checkpoint of a commit, unless it exists.

    applied: the number up to which all commits are applied.
    """
    sink = io.BytesIO()
    pq.write_table(_as_table(snapshot), sink, compression="zstd")
    files.create(place.path(".parquet"), sink.getvalue())
    document = {"version": _VERSION, "commit": asdict(commit), "begins": snapshot.begins, "applied": applied}
    files.create(place.path(".json"), json.dumps(document).encode())


def read(files: Files, place: CheckpointPath) -> Checkpoint:
    """Return a checkpoint without its files. Raises FileNotFoundError, TableError."""
    path = place.path(".json")
    data = files.read(path)
    try:
        document = json.loads(data)
        if document["version"] != _VERSION:
            raise ValueError(f"version {document['version']} is not supported, only {_VERSION}")
        return Checkpoint(Commit.from_document(document["commit"]), document["begins"], document["applied"])
    except (ValueError, KeyError, TypeError) as error:
        raise TableError(f"{path} is not a checkpoint of a pylogd lake: {error}") from error


def read_snapshot(files: Files, place: CheckpointPath) -> Snapshot:
    """Return the contents of the lake as of a checkpoint. Raises FileNotFoundError, TableError."""
    begins = {topic: dict(partitions) for topic, partitions in read(files, place).begins.items()}
    path = place.path(".parquet")
    data = files.read(path)
    try:
        columns = pq.read_table(io.BytesIO(data)).select(_COLUMNS.names).to_pydict()
    except (pa.ArrowException, KeyError) as error:
        raise TableError(f"{path} is not a checkpoint of a pylogd lake: {error}") from error
    snapshot = Snapshot(begins=begins)
    for name, size, rows, quarantined in zip(*columns.values(), strict=True):
        (snapshot.quarantined if quarantined else snapshot.files)[name] = DataFile(name, "", size, rows)
    return snapshot


def delete(files: Files, place: CheckpointPath) -> None:
    """Delete a checkpoint, if it exists."""
    files.delete(place.path(".json"))
    files.delete(place.path(".parquet"))


def _as_table(snapshot: Snapshot) -> pa.Table:
    given = [(file, False) for file in snapshot.files.values()]
    given += [(file, True) for file in snapshot.quarantined.values()]
    columns = [
        [file.path for file, _ in given],
        [file.bytes for file, _ in given],
        [file.rows for file, _ in given],
        [aside for _, aside in given],
    ]
    return pa.table(dict(zip(_COLUMNS.names, columns, strict=True)), schema=_COLUMNS)
