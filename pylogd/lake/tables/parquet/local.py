"""A lake's files in a local directory, without Spark.

Strategy: a new file is written under a unique name, flushed to the disk, and linked to its final name; the link fails
if that name exists.
"""

from __future__ import annotations

import io
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.parquet.files import DRAFTS

_TRIES: Final = 10


class LocalFiles:
    """Implements `Files`, and `SparkFiles` and `NewFiles`, on a local directory, which need not exist yet."""

    threads = 1

    def __init__(self, root: Path) -> None:
        """Raises TableError if `root` is a file."""
        self._root = root
        if root.exists() and not root.is_dir():
            raise TableError(f"{root} is a file, where a lake is a directory")

    @property
    def root(self) -> str:
        """The directory."""
        return str(self._root)

    def path(self, relative: str) -> str:
        """Return the absolute path, with the root's scheme if it has one, of a path relative to the root."""
        return f"{self.root}/{relative}"

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted, without hidden ones; no names if it does not exist."""
        with _failures(directory), suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self._root / directory) if not name.startswith("."))
        return []

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError."""
        with _failures(path):
            return (self._root / path).read_bytes()

    def create(self, path: str, data: bytes) -> bool:
        """Make a file by a link to a draft of it. Return false if the file exists."""
        target = self._root / path
        for _ in range(_TRIES):
            draft = self._root / DRAFTS / uuid.uuid4().hex
            with _failures(path), suppress(FileNotFoundError):  # other processes may delete drafts at any time
                draft.parent.mkdir(parents=True, exist_ok=True)
                _write(draft, data)
                target.parent.mkdir(parents=True, exist_ok=True)
                made = _link(draft, target)
                draft.unlink(missing_ok=True)
                _flush(target.parent)
                return made
        raise TableError(f"{path}: its draft in {DRAFTS} was deleted {_TRIES} times before it could be linked")

    def move(self, source: str, target: str) -> bool:
        """Rename a file, and make its directories. Return false if the target exists. Raises FileNotFoundError."""
        old, new = self._root / source, self._root / target
        with _failures(source):
            new.parent.mkdir(parents=True, exist_ok=True)
            if not _link(old, new):
                return False
            old.unlink(missing_ok=True)
        return True

    def exists(self, path: str) -> bool:
        """Return whether a file or directory exists."""
        return (self._root / path).exists()

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with its content, if it exists."""
        full = self._root / path
        with _failures(path), suppress(FileNotFoundError):
            if full.is_dir():
                shutil.rmtree(full, ignore_errors=True)
            else:
                full.unlink()

    def new_file(self, path: str) -> BinaryIO:
        """Open a new file for writing; closing it flushes it to the disk."""
        full = self._root / path
        full.parent.mkdir(parents=True, exist_ok=True)
        return _FlushedFile(io.FileIO(full, "xb"))

    def data_files(self, directory: str) -> list[tuple[str, int]]:
        """Return (path, size in bytes) of all files below a directory whose names don't begin with `_` or a point."""
        found = []
        for full, directories, names in os.walk(self._root / directory):
            directories[:] = sorted(name for name in directories if not name.startswith(("_", ".")))
            for name in sorted(name for name in names if not name.startswith(("_", "."))):
                path = Path(full, name)
                found.append((path.relative_to(self._root).as_posix(), path.stat().st_size))
        return found

    def parquet_rows(self, path: str) -> int:
        """Return the number of rows of a Parquet file, from its footer."""
        return int(pq.read_metadata(self._root / path).num_rows)

    def has_strings(self, path: str, column: str) -> bool:
        """Return whether a column of a Parquet file holds strings, from its footer."""
        return bool(pa.types.is_string(pq.read_schema(self._root / path).field(column).type))


class _FlushedFile(io.BufferedWriter):
    """A file whose content is on the disk once it is closed."""

    def close(self) -> None:
        """Flush the file to the disk, and close it."""
        if not self.closed:
            self.flush()
            os.fsync(self.fileno())
        super().close()


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    return True


def _flush(directory: Path) -> None:
    """Write a directory's entries to the disk."""
    number = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def _failures(path: str) -> Iterator[None]:
    """Turn errors of the operating system into TableError, except FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TableError(f"{path}: {error}") from error
