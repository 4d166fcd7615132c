"""Read a Parquet lake without Spark, on any file system that pyarrow knows, and without changing it.

Strategy: read the lake's history (`tables.parquet.history`), which costs one read if there is no new commit. The
history names the files of each commit. Reading a file fails until the loader, or its successor, has moved the file to
its path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pylogd.base.errors import PylogdError
from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.interface import DataFile
from pylogd.lake.tables.parquet.checkpoints import Snapshot
from pylogd.lake.tables.parquet.commits import position_of
from pylogd.lake.tables.parquet.history import History
from pylogd.services.audit.markers import open_location

if TYPE_CHECKING:
    from pylogd.lake.tables.position import Position


class LakeReader:
    """A lake as of the last `refresh`. Methods block on the file system, and raise TableError and OSError."""

    def __init__(self, location: str) -> None:
        """`location` is a directory, which need not exist yet, or a URI. Raises TableError."""
        self._files = ReadOnlyFiles(location)
        self._history: History | None = None
        self._snapshot = Snapshot()

    @property
    def directory(self) -> str:
        """The lake's directory, with its scheme if it has one."""
        return self._files.path("").rstrip("/")

    def refresh(self) -> None:
        """Read the commits."""
        if self._history is None or not self._history.number:
            self._history = History(self._files)
            self._snapshot = self._history.snapshot() if self._history.number else Snapshot()
            return
        for commit in self._history.refresh():
            self._snapshot.add(commit)

    @property
    def position(self) -> Position:
        """The offsets up to which the lake is loaded."""
        return position_of(None if self._history is None else self._history.last)

    def files(self) -> list[DataFile]:
        """Return the data files."""
        return [self._outside(path, file.rows) for path, file in self._snapshot.files.items()]

    def quarantined(self) -> list[DataFile]:
        """Return the files of the quarantine."""
        return [self._outside(path, file.rows) for path, file in self._snapshot.quarantined.items()]

    def _outside(self, path: str, rows: int) -> DataFile:
        return DataFile(self._files.path(path), 0, rows)


class ReadOnlyFiles:
    """Implements the reading methods of `tables.parquet.files.Files`."""

    threads = 1

    def __init__(self, location: str) -> None:
        """Raises TableError for a file system that pyarrow does not know."""
        try:
            self._files, self._root = open_location(location)
        except PylogdError as error:
            raise TableError(str(error)) from error
        self._prefix = location.rstrip("/") if "://" in location else self._root

    def path(self, relative: str) -> str:
        """Return the absolute path of a path in the lake, with its scheme if the lake has one."""
        return f"{self._prefix}/{relative}"

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory; no names if it does not exist."""
        from pyarrow.fs import FileSelector  # noqa: PLC0415 - slow to load

        found = self._files.get_file_info(FileSelector(f"{self._root}/{directory}", allow_not_found=True))
        return sorted(each.base_name for each in found if not each.base_name.startswith("."))

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError."""
        with self._files.open_input_file(f"{self._root}/{path}") as stream:
            return bytes(stream.read())

    def exists(self, path: str) -> bool:
        """Return whether a file exists."""
        from pyarrow.fs import FileType  # noqa: PLC0415 - slow to load

        return self._files.get_file_info(f"{self._root}/{path}").type is not FileType.NotFound

    def create(self, path: str, data: bytes) -> bool:
        """Raise TableError: nothing is written."""
        raise TableError(f"{path} of a lake that is only read can't be written ({len(data)} bytes)")

    def move(self, source: str, target: str) -> bool:
        """Raise TableError: nothing is moved."""
        raise TableError(f"{source} of a lake that is only read can't be moved to {target}")

    def delete(self, path: str) -> None:
        """Raise TableError: nothing is deleted."""
        raise TableError(f"{path} of a lake that is only read can't be deleted")
