"""Write an Iceberg table's data files in tasks, with the ids of its columns and the statistics of its manifests, and
delete those of loaders that died.

Strategy: pyiceberg's facts of a file are computed in the task, from the footer that was just written. The driver reads
no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import (
    PyArrowFileIO,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.partitioning import PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.typedef import Record

from pylogd.lake.tables.iceberg.features import partition_values
from pylogd.lake.tables.interface import DataFile
from pylogd.lake.tables.writing import DirectoryWriter

if TYPE_CHECKING:
    from pylogd.lake.tables.writing import Directory

#: The first part of the names of data files that pylogd writes.
_PREFIX: Final = "pylogd-"


@dataclass(frozen=True)
class TableFiles:
    """The properties of a table that a task needs to write files for it. It is pickled.

    io: the properties of pyiceberg's FileIO.
    spec_id: the id of the partition spec with which the files are written.
    directories: the columns that make a directory.
    """

    location: str
    properties: Mapping[str, str]
    io: Mapping[str, str]
    schema: Schema
    spec: PartitionSpec
    directories: Sequence[str]

    def file_io(self) -> FileIO:
        """Return access to the table's files."""
        return load_file_io(dict(self.io), self.location)


@dataclass(frozen=True)
class IcebergStaging:
    """Implements `interface.TaskStaging`."""

    table: TableFiles
    quarantine: TableFiles
    codec: str

    def writer(self, *, quarantine: bool = False) -> DirectoryWriter:
        """Return a writer of new files of the table, or of its quarantine."""
        table = self.quarantine if quarantine else self.table
        return DirectoryWriter(
            _Target(table), schema_to_pyarrow(table.schema), table.directories, codec=self.codec
        )  # fmt: skip

    def read(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Return the rows of a file of the table, with all its columns."""
        with self.table.file_io().new_input(file.path).open() as stream:
            yield from pq.ParquetFile(stream).iter_batches()


class _Target:
    """Implements `writing.Target`."""

    def __init__(self, table: TableFiles) -> None:
        self._table = table
        self._io = table.file_io()
        self._locations = load_location_provider(table.location, dict(table.properties))
        self._plan = compute_statistics_plan(table.schema, dict(table.properties))
        self._ids = parquet_path_to_id_mapping(table.schema)

    def create(self, directory: Directory) -> tuple[str, Any]:
        """Return the path and the open stream of a new file."""
        values = partition_values(directory, self._table.spec, self._table.schema)
        key = _Key(values, self._table.spec, self._table.schema)
        path = self._locations.new_data_location(f"{_PREFIX}{uuid4()}.parquet", key)
        return path, self._io.new_output(path).create()

    def finished(self, path: str, directory: Directory, metadata: pq.FileMetaData) -> DataFile:
        """Return the facts of a file for a manifest."""
        statistics = data_file_statistics_from_parquet_metadata(metadata, self._plan, self._ids)
        values = partition_values(directory, self._table.spec, self._table.schema)
        facts = {"partition": values, **statistics.to_serialized_dict()}
        facts["spec_id"] = self._table.spec.spec_id
        size = len(self._io.new_input(path))
        return DataFile(path, size, metadata.num_rows, partition=directory, facts=facts)


class _Key(PartitionKey):
    """A partition with known values."""

    def __init__(self, values: Sequence[Any], spec: PartitionSpec, schema: Schema) -> None:
        super().__init__([], spec, schema)
        self.__dict__["partition"] = Record(*values)


def delete_orphans(table: Table, changed_before_ms: int) -> int:
    """Delete the files of loaders that died: files that no snapshot names. Return their number.

    changed_before_ms: files that were changed later stay. A file that a loader is writing is not named yet either, so
    the age must be longer than any load takes.

    Only files below the directory of the table's data are deleted, and only if their names show that pylogd wrote them.
    """
    io = PyArrowFileIO(table.io.properties)
    scheme, netloc, root = PyArrowFileIO.parse_location(table.location_provider().data_path)
    files = io.fs_by_scheme(scheme, netloc)
    found = [
        each.path
        for each in files.get_file_info(FileSelector(root, allow_not_found=True, recursive=True))
        if each.is_file and each.base_name.startswith(_PREFIX) and each.mtime.timestamp() * 1000 < changed_before_ms
    ]
    table.refresh()  # after the listing, so that files that were committed meanwhile are named
    named = _named(table)
    orphans = [path for path in found if path not in named]
    for path in orphans:
        files.delete_file(path)
    return len(orphans)


def _named(table: Table) -> set[str]:
    """Return the paths, without scheme and host, of the data files of all snapshots."""
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in table.metadata.snapshots
        for manifest in snapshot.manifests(table.io)
    }
    return {
        PyArrowFileIO.parse_location(entry.data_file.file_path)[2]
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    }
