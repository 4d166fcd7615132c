"""Read and write the documents of commits.

Must not know: file systems.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa

from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.interface import Layout
from pylogd.lake.tables.position import Position, by_partition

VERSION: Final = 3
#: The version of documents. Version 1 has no topic ids, leader epochs and quarantine; 2 has no layout, writer and
#: `applied`.
_VERSIONS: Final = (1, 2, VERSION)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a commit.

    path: the path in the lake.
    staged: the path where it was written first, or empty.
    """

    path: str
    staged: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Commit:
    """One entry of the lake's history.

    kind: "load", "compaction", or "columns" if it changed the columns of a typed table.
    at_ms: the time of the commit, in milliseconds since 1970.
    offsets: topic -> partition -> the offset after the last one in the lake, for every partition ever loaded.
    read: the number of offsets that this commit added, in the same form.
    added, removed, quarantined: the files that it added and replaced, and the files of records without a valid date.
    topic_ids: the known ids of topics as hexadecimal digits.
    leader_epochs: the known leader epochs at which the offsets were looked up, in the form of `offsets`.
    schema_ids: the registry's id of the schema from which each topic's columns come.
    layout: the fields of the lake's `Layout`; None in lakes that earlier versions of pylogd wrote.
    writer: a unique name of the process that made the commit; empty in earlier versions.
    applied: the number up to which all commits had been applied when this one was made; None in earlier versions.
    columns: the Arrow schema of a typed table, encoded by `encode_columns`; None in a table of records.
    """

    number: int
    kind: str
    at_ms: int
    offsets: Mapping[str, Mapping[str, int]]
    read: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    added: Sequence[DataFile] = ()
    removed: Sequence[str] = ()
    version: int = VERSION
    quarantined: Sequence[DataFile] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    leader_epochs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    schema_ids: Mapping[str, int] = field(default_factory=dict)
    layout: Mapping[str, Any] | None = None
    writer: str = ""
    applied: int | None = None
    columns: str | None = None

    @property
    def rows(self) -> int:
        """The number of rows that the commit added."""
        return sum(file.rows for file in self.added)

    @property
    def size(self) -> int:
        """The number of bytes that the commit added."""
        return sum(file.bytes for file in self.added)

    def as_bytes(self) -> bytes:
        """Return the commit's document: indented JSON."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_bytes(cls, path: str, data: bytes) -> Commit:
        """Return the commit that a document describes. Raises TableError; `path` is for its message."""
        try:
            return cls.from_document(json.loads(data))
        except (ValueError, KeyError, TypeError) as error:
            raise TableError(f"{path} is not a commit of a pylogd lake: {error}") from error

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Commit:
        """Return the commit that a parsed document describes. Raises ValueError, KeyError, TypeError."""
        if document["version"] not in _VERSIONS:
            raise ValueError(f"version {document['version']} is not supported, only up to {VERSION}")
        files = {name: tuple(DataFile(**each) for each in document.get(name, ())) for name in ("added", "quarantined")}
        return cls(**{**document, **files})


def encode_columns(columns: pa.Schema) -> str:
    """Return an Arrow schema as text: its IPC message in base64."""
    return base64.b64encode(columns.serialize().to_pybytes()).decode()


def decode_columns(text: str) -> pa.Schema:
    """Return the Arrow schema that `encode_columns` has encoded. Raises ValueError, pa.ArrowException."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def columns_of(commit: Commit | None) -> pa.Schema | None:
    """Return the columns of a typed table as of a commit. Raises TableError."""
    if commit is None or commit.columns is None:
        return None
    try:
        return decode_columns(commit.columns)
    except (ValueError, pa.ArrowException) as error:
        raise TableError(f"commit {commit.number} of a pylogd lake has columns that can't be read: {error}") from error


def position_of(commit: Commit | None) -> Position:
    """Return the position of a lake whose last commit is `commit`; None if it has no commits."""
    if commit is None:
        return Position()
    return Position(
        by_partition(commit.offsets), commit.topic_ids, by_partition(commit.leader_epochs), commit.schema_ids
    )


def layout_of(commit: Commit | None) -> Layout | None:
    """Return the layout that a commit records; None if it records none."""
    return None if commit is None or commit.layout is None else Layout(**commit.layout)
