"""Write a Delta table's data files in tasks, with the statistics that its log keeps.

Strategy: the log's entry of a file is computed in the task, from the footer that was just written. Files have no
columns of the directories: Delta keeps their values in the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler

from pylogd.lake.tables.interface import DataFile
from pylogd.lake.tables.writing import DirectoryWriter

if TYPE_CHECKING:
    from pylogd.lake.tables.writing import Directory

#: Longer texts are not used as bounds: they would have to be cut, an upper bound to a greater text.
_LONGEST_BOUND: Final = 64


@dataclass(frozen=True)
class TableFiles:
    """The properties of a table that a task needs to write files for it. It is pickled.

    options: deltalake's options of the storage.
    schema: the table's columns, including those of `directories`.
    """

    uri: str
    options: Mapping[str, str]
    schema: pa.Schema
    directories: Sequence[str]

    def file_system(self) -> pa_fs.FileSystem:
        """Return access to the table's files, by paths relative to the table."""
        return pa_fs.PyFileSystem(DeltaStorageHandler(self.uri, dict(self.options)))

    @property
    def stored(self) -> pa.Schema:
        """The columns of the files."""
        return pa.schema([field for field in self.schema if field.name not in self.directories])


@dataclass(frozen=True)
class DeltaStaging:
    """Implements `interface.TaskStaging`."""

    table: TableFiles
    quarantine: TableFiles
    codec: str

    def writer(self, *, quarantine: bool = False) -> DirectoryWriter:
        """Return a writer of new files of the table, or of its quarantine."""
        table = self.quarantine if quarantine else self.table
        return DirectoryWriter(_Target(table), table.stored, table.directories, codec=self.codec)

    def read(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Return the rows of a file of the table, without the columns of its directory."""
        with self.table.file_system().open_input_file(file.path) as stream:
            yield from pq.ParquetFile(stream).iter_batches()


class _Target:
    """Implements `writing.Target`."""

    def __init__(self, table: TableFiles) -> None:
        self._table = table
        self._files = table.file_system()

    def create(self, directory: Directory) -> tuple[str, Any]:
        """Return the path, relative to the table, and the open stream of a new file."""
        names = [f"{name}={partition_value(directory[name])}" for name in self._table.directories]
        path = "/".join([*names, f"part-{uuid4()}.zstd.parquet"])
        return path, self._files.open_output_stream(path)

    def finished(self, path: str, directory: Directory, metadata: pq.FileMetaData) -> DataFile:
        """Return the facts of a file that the table's log contains."""
        size = self._files.get_file_info(path).size
        partition = {name: partition_value(value) for name, value in directory.items()}
        return DataFile(path, size, metadata.num_rows, partition=partition, facts=statistics(metadata))


def partition_value(value: Any) -> str:
    """Return a value of a directory's column in the form of Delta's log."""
    return value.isoformat() if isinstance(value, date) else str(value)


def statistics(metadata: pq.FileMetaData) -> str:
    """Return the statistics of a file for Delta's log: its rows, and bounds and nulls of its columns."""
    bounds: dict[str, list[Any]] = {}
    nulls: dict[str, int] = {}
    without: set[str] = set()
    for at in range(metadata.num_row_groups):
        group = metadata.row_group(at)
        for index in range(metadata.num_columns):
            column = group.column(index)
            name, found = column.path_in_schema, column.statistics
            if "." in name:
                continue
            if found is None or not found.has_null_count:
                without.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + found.null_count
            if found.has_min_max:
                bounds.setdefault(name, []).extend((found.min, found.max))
            elif found.null_count < column.num_values:
                without.add(name)
    kept = {name: values for name, values in bounds.items() if name not in without and all(map(_is_bound, values))}
    return json.dumps(
        {
            "numRecords": metadata.num_rows,
            "minValues": {name: _bound(min(values)) for name, values in kept.items()},
            "maxValues": {name: _bound(max(values)) for name, values in kept.items()},
            "nullCount": {name: count for name, count in nulls.items() if name not in without},
        }
    )


def _is_bound(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_BOUND
    if isinstance(value, float):
        return value - value == 0  # true if it is finite
    return isinstance(value, int | date)  # a datetime is a date too


def _bound(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ") if value.tzinfo else value.isoformat()
    return value.isoformat() if isinstance(value, date) else value
