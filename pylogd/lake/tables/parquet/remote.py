"""A lake's files on any file system of fsspec, such as S3, without Spark.

Strategy: a file is created by a request that the store refuses if the file exists: on S3 a `PutObject` with
`If-None-Match: *`. A move is a copy and a deletion, because object stores have no rename.

Rules: the store must support such requests. Amazon S3, Google Cloud Storage and Azure support them; for other stores
see `docs/lake.md`. The file system must not cache listings; its own cache is switched off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pylogd.lake.tables.errors import TableError

#: The bytes that each open file keeps in memory before they are sent; some dozen files may be open at once.
_PART_BYTES: Final = 8 << 20
#: The name of a file that is never made, for `can_write`.
_PROBE: Final = "_pylogd/probe"


class FsspecFiles:
    """Implements `Files`, and `SparkFiles` and `NewFiles`, on a directory of an fsspec file system.

    filesystem: an `fsspec.AbstractFileSystem`.
    root: the lake's directory, without scheme, such as `bucket/lake`.
    """

    threads = 16

    def __init__(self, filesystem: Any, root: str) -> None:
        self._fs = filesystem
        if hasattr(filesystem, "dircache"):
            filesystem.dircache.use_listings_cache = False  # other processes change the directories
        self._root = root.rstrip("/")

    @property
    def root(self) -> str:
        """The lake's directory, with its scheme."""
        return str(self._fs.unstrip_protocol(self._root))

    def path(self, relative: str) -> str:
        """Return the full path, with its scheme, of a path relative to the root."""
        return f"{self.root}/{relative}"

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted; no names if it does not exist."""
        try:
            with failures(directory):
                found = self._fs.ls(self._at(directory), detail=False)
        except FileNotFoundError:
            return []
        paths = {str(each).rstrip("/") for each in found} - {self._at(directory)}  # Hadoop marks directories by objects
        return sorted(path.rpartition("/")[2] for path in paths)

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError."""
        with failures(path):
            return bytes(self._fs.cat_file(self._at(path)))

    def create(self, path: str, data: bytes) -> bool:
        """Make a file by a conditional request. Return false if the file exists."""
        try:
            with failures(path):
                self._fs.pipe_file(self._at(path), data, mode="create")
        except FileExistsError:
            return False
        return True

    def move(self, source: str, target: str) -> bool:
        """Copy a file, then delete it. Return false if the target exists. Raises FileNotFoundError."""
        with failures(source):
            if self._fs.exists(self._at(target)):
                return False
            self._fs.cp_file(self._at(source), self._at(target))
            self._fs.rm_file(self._at(source))
        return True

    def exists(self, path: str) -> bool:
        """Return whether a file or directory exists."""
        with failures(path):
            return bool(self._fs.exists(self._at(path)))

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with its content, if it exists."""
        try:
            with failures(path):
                self._fs.rm(self._at(path), recursive=True)
        except FileNotFoundError:
            pass

    def new_file(self, path: str) -> Any:
        """Open a file for writing. The object exists once it is closed."""
        return self._fs.open(self._at(path), "wb", block_size=_PART_BYTES)

    def can_write(self) -> None:
        """Check whether files can be written, without making one. Raises TableError if not.

        On S3 a multipart upload is begun, which needs the same permission as other uploads, and is aborted.
        """
        call = getattr(self._fs, "call_s3", None)
        if call is None:
            return
        bucket, _, directory = self._root.partition("/")
        place = {"Bucket": bucket, "Key": f"{directory}/{_PROBE}".lstrip("/")}
        try:
            with failures(self.root):
                begun = call("create_multipart_upload", **place)
                call("abort_multipart_upload", UploadId=begun["UploadId"], **place)
        except FileNotFoundError as error:
            raise TableError(f"{self.root}: there is no bucket {bucket!r}: make it, or name another one") from error

    def data_files(self, directory: str) -> list[tuple[str, int]]:
        """Return (path, size in bytes) of all files below a directory whose names don't begin with `_` or a point."""
        try:
            with failures(directory):
                found = self._fs.find(self._at(directory), detail=True)
        except FileNotFoundError:
            return []
        inside = {path.removeprefix(f"{self._at(directory)}/"): int(facts["size"]) for path, facts in found.items()}
        return [
            (f"{directory}/{path}", size)
            for path, size in sorted(inside.items())
            if not any(part.startswith(("_", ".")) for part in path.split("/"))
        ]

    def parquet_rows(self, path: str) -> int:
        """Return the number of rows of a Parquet file, from its footer."""
        with failures(path), self._fs.open(self._at(path), "rb") as file:
            return int(pq.read_metadata(file).num_rows)

    def has_strings(self, path: str, column: str) -> bool:
        """Return whether a column of a Parquet file holds strings, from its footer."""
        with failures(path), self._fs.open(self._at(path), "rb") as file:
            return bool(pa.types.is_string(pq.read_schema(file).field(column).type))

    def _at(self, relative: str) -> str:
        return f"{self._root}/{relative}" if relative else self._root


@contextmanager
def failures(path: str) -> Iterator[None]:
    """Turn a store's errors into TableError, except FileNotFoundError and FileExistsError."""
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except (OSError, RuntimeError, ValueError) as error:  # HDFS's answers too, which name a class of Java
        if "FileNotFoundException" in str(error) or "LeaseExpiredException" in str(error):
            raise FileNotFoundError(path) from error
        if "FileAlreadyExistsException" in str(error):
            raise FileExistsError(path) from error
        if "PreconditionFailed" in str(error) or getattr(error, "errno", None) == 17:
            raise FileExistsError(path) from error
        raise TableError(f"{path}: {error}") from error
