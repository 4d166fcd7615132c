"""A view of a lake's files that changes nothing, for programs that only look at the lake.

Strategy: opening a lake completes what others left, and deletes what nobody can commit any more. Here these operations
do nothing and say that they are done, so that the lake's history can be read as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pylogd.tables.parquet.table import SparkFiles


class ReadOnlyFiles:
    """Implements `table.SparkFiles` on other files."""

    def __init__(self, files: SparkFiles) -> None:
        self._files = files
        self.threads = files.threads
        self.path = files.path
        self.names = files.names
        self.read = files.read
        self.exists = files.exists
        self.data_files = files.data_files
        self.parquet_rows = files.parquet_rows
        self.has_strings = files.has_strings

    @property
    def root(self) -> str:
        """The lake's directory, absolute with its scheme."""
        return self._files.root

    def create(self, path: str, data: bytes) -> bool:
        """Make no file, as if it existed."""
        return False

    def move(self, source: str, target: str) -> bool:
        """Move nothing, as if it were done."""
        return True

    def delete(self, path: str) -> None:
        """Delete nothing."""

    def can_write(self) -> None:
        """Find out whether files can be written, as far as the file system tells that. Raises TableError."""
        probe = getattr(self._files, "can_write", None)
        if probe is not None:
            probe()
