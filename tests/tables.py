"""Read the files of tables in tests, wherever they are, without the formats' own libraries."""

from __future__ import annotations

from collections.abc import Sequence

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from pylogd.lake.tables.interface import DataFile, Table


def path_of(table: Table, file: DataFile) -> str:
    """Return the path of a file, absolute or with its scheme."""
    path = file.path.removeprefix("file://")
    return path if path.startswith("/") or "://" in path else f"{table.location}/{path}"


def read_files(table: Table, files: Sequence[DataFile]) -> list[pa.Table]:
    """Return the rows of files of a table, without the columns of their directories."""
    found = []
    for file in files:
        with fsspec.open(path_of(table, file), "rb") as stream:
            found.append(pq.ParquetFile(stream).read())
    return found
