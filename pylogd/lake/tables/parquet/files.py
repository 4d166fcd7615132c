"""The file systems that a lake can be on: their interface, and the directories of a lake.

Paths are relative to the lake's root and separated by `/`.
Must not know: Spark, formats of documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

META: Final = "_pylogd"
COMMITS: Final = f"{META}/commits"
CHECKPOINTS: Final = f"{META}/checkpoints"
FLOORS: Final = f"{META}/floors"
ATTEMPTS: Final = f"{META}/attempts"
STAGING: Final = f"{META}/staging"
QUARANTINE: Final = f"{META}/quarantine"
REPLACED: Final = f"{META}/replaced"
#: The directory in which `create` prepares files on file systems without atomic writes. Drafts may be deleted at any
#: time.
DRAFTS: Final = f"{META}/drafts"

_DIGITS: Final = 20
Item = TypeVar("Item")
Result = TypeVar("Result")


class Files(Protocol):
    """The operations of a file system that a lake needs. It does no harm to repeat any of them except `read` and
    `create`.

    They raise TableError if the file system fails.
    threads: how many operations may run at once, each in a thread; 1 if more would not be faster.
    """

    threads: int

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory; no names if it does not exist."""

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError."""

    def create(self, path: str, data: bytes) -> bool:
        """Make a file with this content, durably and atomically. Return false, and change nothing, if it exists.

        If several processes create the same file at the same time, one of them gets true. No reader sees a part of the
        file, and no crash leaves a part. After an error the file may exist.
        """

    def move(self, source: str, target: str) -> bool:
        """Rename a file, and make its directories. Return false if the target exists. Raises FileNotFoundError.

        On an object store the file is copied, then deleted: a crash may leave both.
        """

    def exists(self, path: str) -> bool:
        """Return whether a file or directory exists."""

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with its content, if it exists."""


class SparkFiles(Files, Protocol):
    """`Files` on the file system to which Spark writes."""

    @property
    def root(self) -> str:
        """The lake's directory, absolute with its scheme."""

    def path(self, relative: str) -> str:
        """Return the absolute path, with its scheme, of a path relative to the root."""

    def data_files(self, directory: str) -> list[tuple[str, int]]:
        """Return (path, size in bytes) of all files below a directory whose names don't begin with `_` or a point."""

    def parquet_rows(self, path: str) -> int:
        """Return the number of rows of a Parquet file, from its footer."""

    def has_strings(self, path: str, column: str) -> bool:
        """Return whether a column of a Parquet file holds strings, from its footer."""


@runtime_checkable
class NewFiles(Protocol):
    """File systems on which a process can write a lake's data files without Spark."""

    def new_file(self, path: str) -> Any:
        """Open a new file for writing bytes. Closing it makes it durable."""


class ReadOnlyFiles:
    """Implements `SparkFiles` on other files without changing them, for programs that only read a lake.

    Opening a lake completes commits and deletes attempts that can't be committed any more. Here these operations do
    nothing and report success, so that the lake's history can be read.
    """

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


def each(files: Files, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return the results of a function for each item, in order, computed in `threads` threads."""
    given = list(items)
    if files.threads == 1 or len(given) < 2:
        return [function(item) for item in given]
    with ThreadPoolExecutor(min(files.threads, len(given))) as pool:
        return list(pool.map(function, given))


def numbered(directory: str, number: int, suffix: str) -> str:
    """Return the path of the file of a commit's number in a directory."""
    return f"{directory}/{number:0{_DIGITS}d}{suffix}"


def numbers(names: Sequence[str], suffix: str) -> list[int]:
    """Return the numbers of the files whose names end with this suffix, ascending."""
    stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if len(stem) == _DIGITS and stem.isdigit())
