"""Write rows to Parquet files in a task: a file for each directory, of a limited size.

Strategy: rows are collected by directory until there are enough for a row group; Parquet's readers skip row groups, and
small ones cost more than they save. When the waiting rows take too much memory, the largest group is written. A file is
finished when it has reached its size, or when too many are open.

The directories of a layout are topic, date and hour of the time stamps in UTC. Most batches belong to one directory,
which the least and the greatest hour show. Other batches are sorted by directory, stably, and cut where the directory
changes.

Parquet's dictionaries are not used for columns in which each value occurs once: offsets and time stamps are written as
differences.
Must not know: formats of tables. `Target` decides the place of a file, and the facts that are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.interface import DataFile

#: The sizes in Arrow's memory of a row group, and of all waiting rows.
_GROUP_BYTES: Final = 32 << 20
_WAITING_BYTES: Final = 96 << 20
_OPEN_FILES: Final = 32
#: Columns whose values are mostly unique and ascending.
_ASCENDING: Final = ("offset", "timestamp", "timestampMs")
_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US
#: The days before the year 1. They are added before a division, which rounds to zero, so that it rounds down.
_SHIFT: Final = 1_000_000

#: The values of the columns of a directory, such as {"topic": "flights", "date": date(2026, 11, 21), "hour": 7}.
Directory = Mapping[str, Any]


class Target(Protocol):
    """The operations of a format on the files of a task."""

    def create(self, directory: Directory) -> tuple[str, Any]:
        """Return the path and the open stream of a new file for a directory."""

    def finished(self, path: str, directory: Directory, metadata: pq.FileMetaData) -> DataFile:
        """Return the facts of a file that is complete.

        metadata: the footer of the file.
        """


@dataclass(slots=True)
class _OpenFile:
    directory: Directory
    path: str
    stream: Any
    writer: pq.ParquetWriter
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0


class DirectoryWriter:
    """Implements `interface.FileWriter`."""

    def __init__(
        self, target: Target, schema: pa.Schema, directories: Sequence[str], *, codec: str = "zstd",
        file_bytes: int = 128 << 20,
    ) -> None:  # fmt: skip
        """Write files with the columns of `schema`.

        directories: the columns that make a directory; `date` and `hour` are computed.
        codec: compression of the files.
        file_bytes: the size at which a file is finished.
        """
        self._target = target
        self._schema = schema
        self._directories = directories
        self._codec = codec
        self._file_bytes = file_bytes
        self._open: dict[tuple[Any, ...], _OpenFile] = {}
        self._done: list[DataFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows. Raises TableError for a column that the files don't have."""
        unknown = set(rows.schema.names) - {*self._schema.names, *self._directories}
        if unknown:
            raise TableError(f"the table has no column {min(unknown)!r}, which rows have: nothing was added")
        rows = with_time_columns(rows, self._directories)
        for directory, part in divide(rows, self._directories):
            file = self._file(directory)
            file.waiting.append(part)
            file.bytes += part.nbytes
            if file.bytes >= _GROUP_BYTES:
                self._write_group(file)
        while sum(file.bytes for file in self._open.values()) > _WAITING_BYTES:
            self._write_group(max(self._open.values(), key=lambda file: file.bytes))

    def close(self) -> list[DataFile]:
        """Finish the files and return their facts."""
        for file in list(self._open.values()):
            self._finish(file)
        return self._done

    def abort(self) -> None:
        """Close open files after an error."""
        for file in self._open.values():
            for each in (file.writer, file.stream):
                with suppress(Exception):  # only the first error counts
                    each.close()
        self._open.clear()

    def _file(self, directory: Directory) -> _OpenFile:
        key = tuple(directory.values())
        found = self._open.pop(key, None)
        if found is None:
            if len(self._open) >= _OPEN_FILES:
                self._finish(next(iter(self._open.values())))
            path, stream = self._target.create(directory)
            found = _OpenFile(directory, path, stream, self._writer(stream))
        self._open[key] = found  # the file that was used last comes last
        return found

    def _writer(self, stream: Any) -> pq.ParquetWriter:
        ascending = [name for name in _ASCENDING if name in self._schema.names]
        return pq.ParquetWriter(
            stream, self._schema, compression=self._codec, store_schema=False,
            use_dictionary=[path for path in _leaves(self._schema) if path not in ascending],
            column_encoding=dict.fromkeys(ascending, "DELTA_BINARY_PACKED"),
        )  # fmt: skip

    def _write_group(self, file: _OpenFile) -> None:
        self._flush(file)
        if file.stream.tell() >= self._file_bytes:
            self._finish(file)

    def _flush(self, file: _OpenFile) -> None:
        if file.waiting:
            table = self._complete(pa.Table.from_batches(file.waiting))
            file.writer.write_table(table, row_group_size=table.num_rows)
        file.waiting, file.bytes = [], 0

    def _complete(self, rows: pa.Table) -> pa.Table:
        """Return rows with the columns of the files. Columns that other programs added to the table are null."""
        count, names = rows.num_rows, set(rows.column_names)
        columns = [
            rows.column(each.name).cast(each.type)
            if each.name in names
            else pa.chunked_array([_nulls(count, each.type)])
            for each in self._schema
        ]
        return pa.Table.from_arrays(columns, schema=self._schema)

    def _finish(self, file: _OpenFile) -> None:
        del self._open[tuple(file.directory.values())]
        self._flush(file)
        file.writer.close()
        file.stream.close()
        self._done.append(self._target.finished(file.path, file.directory, file.writer.writer.metadata))


def _nulls(count: int, kind: pa.DataType) -> pa.Array:
    """Return nulls of a type. The required fields of null structs get values, since pyarrow does not write them
    otherwise.
    """
    if not pa.types.is_struct(kind):
        return pa.nulls(count, kind)
    children = [_nulls(count, each.type) if each.nullable else _some(count, each.type) for each in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=pa.repeat(pa.scalar(True), count))


def _some(count: int, kind: pa.DataType) -> pa.Array:
    """Return any values of a type that are not null."""
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([_some(count, each.type) for each in kind], fields=list(kind))
    stored = getattr(kind, "storage_type", kind)
    values: tuple[Any, ...] = (
        0,
        False,
        "",
        b"",
        [],
        bytes(getattr(stored, "byte_width", 0)) if stored.num_fields == 0 else [],
    )
    for value in values:
        with suppress(pa.ArrowException, TypeError, ValueError):
            return pa.array([value] * count, stored).cast(kind)
    raise TableError(f"a column of the type {kind} can't be written: drop it, or load into another table")


def _leaves(schema: pa.Schema) -> list[str]:
    """Return Parquet's paths of the columns, such as `headers.list.element.key`."""
    return [path for each in schema for path in _paths(each.name, each.type)]


def _paths(path: str, kind: pa.DataType) -> list[str]:
    if pa.types.is_struct(kind):
        return [inner for each in kind for inner in _paths(f"{path}.{each.name}", each.type)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _paths(f"{path}.list.element", kind.value_type)
    if pa.types.is_map(kind):
        return [*_paths(f"{path}.key_value.key", kind.key_type), *_paths(f"{path}.key_value.value", kind.item_type)]
    return [path]


def with_time_columns(rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Return rows with those of the columns `date` and `hour` that are in `names`, computed from `timestamp`."""
    micros = rows.column("timestamp").cast(pa.int64()) if {"date", "hour"} & set(names) else None
    if "date" in names:
        days = pc.subtract(pc.divide(pc.add(micros, _SHIFT * _DAY_US), _DAY_US), _SHIFT)
        rows = rows.append_column("date", days.cast(pa.int32()).cast(pa.date32()))
    if "hour" in names:
        hours = pc.divide(pc.add(micros, _SHIFT * _DAY_US), _HOUR_US)
        hour = pc.subtract(hours, pc.multiply(pc.divide(hours, 24), 24))
        rows = rows.append_column("hour", hour.cast(pa.int32()))
    return rows


def divide(rows: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[Directory, pa.RecordBatch]]:
    """Yield each directory of the rows, with its rows in their order.

    names: the columns that make a directory.
    """
    if not rows.num_rows:
        return
    if not all(_is_constant(rows.column(name)) for name in names):
        rows = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names]))
    starts = _changes(rows, names)
    for start, end in zip(starts, [*starts[1:], rows.num_rows], strict=True):
        yield {name: rows.column(name)[start].as_py() for name in names}, rows.slice(start, end - start)


def _is_constant(column: pa.Array) -> bool:
    bounds = pc.min_max(column)
    return bool(bounds["min"] == bounds["max"]) and not column.null_count


def _changes(rows: pa.RecordBatch, names: Sequence[str]) -> list[int]:
    """Return the indices of the first row of each directory. The rows are sorted by directory."""
    changed = None
    for name in names:
        column = rows.column(name)
        differs = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
        changed = differs if changed is None else pc.or_(changed, differs)
    return [0, *pc.add(pc.indices_nonzero(changed), 1).to_pylist()]
