"""Write the data files of a lake in this process, without Spark.

Strategy: the files are in the directory of an attempt, with the same names as from Spark's writer, so that commits and
readers see no difference.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.interface import DIRECTORIES, DataFile, Layout, NewWriter, SparkStaging, TaskStaging
from pylogd.lake.tables.records import of_quarantine, of_records, without_directories
from pylogd.lake.tables.writing import Directory, DirectoryWriter

_LOADED: Final = "loaded"
_ASIDE: Final = "aside"


class LakeWriter(DirectoryWriter):
    """Implements `interface.FileWriter`: writes new files of a lake, or of its quarantine."""

    def __init__(
        self, staging: SparkStaging, layout: Layout, columns: pa.Schema | None = None, *, codec: str = "zstd",
        quarantine: bool = False,
    ) -> None:  # fmt: skip
        """Write below the directory of `staging`.

        columns: the columns of a typed table, without `date` and `hour`; None for a lake of records.

        Raises TableError if only Spark can write there.
        """
        if staging.create is None:
            raise TableError(f"only Spark can write to {staging.directory}")
        directories = ("topic",) if quarantine else DIRECTORIES[layout.by]
        if quarantine:
            columns = of_quarantine()
        elif columns is None:
            columns = without_directories(of_records(layout), layout)
        for name in directories:
            if name in columns.names:
                columns = columns.remove(columns.get_field_index(name))
        self._below = _ASIDE if quarantine else _LOADED
        self._staging, self._is_quarantine = staging, quarantine
        super().__init__(_Target(staging.create, self._below), columns, directories, codec=codec)

    def close(self) -> list[DataFile]:
        """Finish the files and return their facts."""
        return self._staging.found(self._below, self._is_quarantine) if super().close() else []


def new_writer(
    staging: TaskStaging | SparkStaging, layout: Layout, columns: pa.Schema | None = None, *, codec: str = "zstd"
) -> NewWriter:  # fmt: skip
    """Return how a process without Spark makes the writers of an attempt at a commit of any format.

    columns, codec: see `LakeWriter`; other formats have theirs in `staging`.
    """
    if isinstance(staging, SparkStaging):
        return partial(LakeWriter, staging, layout, columns, codec=codec)
    return staging.writer


@dataclass(frozen=True, slots=True)
class _Target:
    """Implements `writing.Target`.

    open: opens a new file.
    below: the directory of all files.
    """

    open: Callable[[str], Any]
    below: str

    def create(self, directory: Directory) -> tuple[str, Any]:
        """Return the path and the open stream of a new file."""
        names = [f"{name}={_name(name, value)}" for name, value in directory.items()]
        path = "/".join([self.below, *names, f"part-{uuid.uuid4()}.parquet"])
        return path, self.open(path)

    def finished(self, path: str, directory: Directory, metadata: pq.FileMetaData) -> DataFile:
        """Return the path and rows of a file. `LakeWriter.close` looks up the rest."""
        return DataFile(path, 0, metadata.num_rows)


def _name(column: str, value: Any) -> str:
    """Return the name of Spark's directory for a value."""
    return f"{value:02}" if column == "hour" else str(value)
