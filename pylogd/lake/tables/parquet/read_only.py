"""A view of a lake's files that changes nothing, for programs that only read the lake.

Strategy: opening a lake completes commits and deletes attempts that can't be committed any more. Here these operations
do nothing and report success, so that the lake's history can be read without changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pylogd.lake.tables.parquet.table import SparkFiles


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
        """Make no file, and report that it exists."""
        return False

    def move(self, source: str, target: str) -> bool:
        """Move nothing, and report that the file was moved."""
        return True

    def delete(self, path: str) -> None:
        """Delete nothing."""

    def can_write(self) -> None:
        """Check whether files can be written, if the file system can tell. Raises TableError if not."""
        probe = getattr(self._files, "can_write", None)
        if probe is not None:
            probe()
