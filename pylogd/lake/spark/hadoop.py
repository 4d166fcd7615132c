"""Access a directory on any file system of Hadoop (file:, hdfs:, s3a:) through Spark's JVM.

Strategy: how a file is created depends on the file system. An object store may support creating a file only if it does
not exist (S3A since Hadoop 3.4.2: `fs.option.create.conditional.overwrite`). On local disks a draft is linked to the
name, since Hadoop's rename first checks the name and then renames. Elsewhere, such as on HDFS, a draft is renamed;
those file systems refuse the rename if the name exists. Must not know: the content of files.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.parquet.files import DRAFTS
from pylogd.lake.tables.parquet.local import LocalFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_CONDITIONAL: Final = "fs.option.create.conditional.overwrite"
#: Object stores on which a rename is a copy.
_UNSAFE: Final = ("s3a", "s3", "s3n")
#: HDFS's message for a file that was deleted while it was written.
_GONE: Final = ("FileNotFoundException", "LeaseExpiredException")
_THREADS: Final = 8
_TRIES: Final = 10


class HadoopFiles:
    """Implements `tables.parquet.files.SparkFiles` on a Hadoop path. Methods raise TableError with Hadoop's message.

    threads: how many operations run at once; on local disks more than one would not be faster.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._configuration: Any = spark._jsc.hadoopConfiguration()
        self._root: Any = self._jvm.org.apache.hadoop.fs.Path(root)
        try:
            self._fs: Any = self._root.getFileSystem(self._configuration)
            self._root = self._fs.makeQualified(self._root)
            self._name = str(self._root.toString())
            self._context: Any = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
                self._root.toUri(), self._configuration
            )
            is_file = self._fs.exists(self._root) and not self._fs.getFileStatus(self._root).isDirectory()
            self._is_conditional = bool(self._fs.hasPathCapability(self._root, _CONDITIONAL))
            scheme = str(self._root.toUri().getScheme())
        except Py4JJavaError as error:
            raise _reason(root, error) from error
        if is_file:
            raise TableError(f"{root} is a file, where a lake is a directory")

        self._is_unsafe = scheme in _UNSAFE and not self._is_conditional
        self._local = LocalFiles(Path(str(self._root.toUri().getPath()))) if scheme == "file" else None
        self.threads = 1 if self._local else _THREADS
        options = jvm.org.apache.hadoop.fs.Options.Rename
        self._no_overwrite: Any = jvm.java.lang.reflect.Array.newInstance(options.NONE.getClass(), 1)
        self._no_overwrite[0] = options.NONE
        self._path_class: Any = jvm.org.apache.hadoop.fs.Path
        self._status_class: Any = jvm.org.apache.hadoop.fs.FileStatus().getClass()
        self._made: set[str] = set()  # directories that are known to exist

    @property
    def root(self) -> str:
        """The directory, with its scheme."""
        return self._name

    def path(self, relative: str) -> str:
        """Return the absolute path, with its scheme, of a path relative to the root."""
        return f"{self.root.rstrip('/')}/{relative}"

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted; no names if it does not exist."""
        statuses = self._list(directory)
        if not statuses:
            return []
        # All names are read by one call of the JVM, since a history may have many thousands. Py4J passes an array as
        # Object or as its own type; S3A's is an array of a subclass, which has to be copied.
        count = len(statuses)
        plain = self._jvm.java.lang.reflect.Array.newInstance(self._status_class, count)
        self._jvm.java.lang.System.arraycopy(statuses, 0, plain, 0, count)
        paths = self._jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(plain)
        joined = str(self._jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray(paths).mkString("\n"))
        return sorted(path.rpartition("/")[2] for path in joined.split("\n"))

    def _list(self, directory: str) -> Any:
        """Return an array of FileStatus, empty if the directory does not exist."""
        try:
            return self._fs.listStatus(self._at(directory))
        except Py4JJavaError as error:
            if _is_missing(error):
                return []
            raise _reason(directory, error) from error

    def data_files(self, directory: str) -> list[tuple[str, int]]:
        """Return (path, size in bytes) of all files below a directory whose names don't begin with `_` or a point."""
        found: list[tuple[str, int]] = []
        for status in self._list(directory):
            name = str(status.getPath().getName())
            if name.startswith(("_", ".")):
                continue
            path = f"{directory}/{name}"
            found += self.data_files(path) if status.isDirectory() else [(path, int(status.getLen()))]
        return found

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError."""
        try:
            stream = self._fs.open(self._at(path))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()
        except Py4JJavaError as error:
            if _is_missing(error):
                raise FileNotFoundError(path) from error
            raise _reason(path, error) from error

    def create(self, path: str, data: bytes) -> bool:
        """Make a file, durably and as a whole, and its directories. Return false if the file exists."""
        if self._is_unsafe:
            raise TableError(
                f"{self._name}: this object store can't create a file on the condition that it does not exist, so two "
                "loaders could overwrite each other's commits. Use hadoop-aws 3.4.2 or newer, and leave "
                "fs.s3a.create.conditional.enabled at true"
            )
        if self._local:
            return self._local.create(path, data)
        for _ in range(_TRIES):
            made = self._create_conditionally(path, data) if self._is_conditional else self._rename_draft(path, data)
            if made is not None:
                return made
        raise TableError(f"{path} was not created: others interfered {_TRIES} times. Run it again")

    def _create_conditionally(self, path: str, data: bytes) -> bool | None:
        """Make a file by a conditional request. Return None if the store asks for a retry."""
        try:
            builder = self._fs.createFile(self._at(path)).overwrite(True).must(_CONDITIONAL, "true")
            stream = builder.recursive().build()
            try:
                stream.write(bytearray(data))
            finally:
                stream.close()
        except Py4JJavaError as error:
            if _is(error, "FileAlreadyExistsException", "RemoteFileChangedException"):
                return False
            if "ConditionalRequestConflict" in str(error.java_exception.toString()):
                return None
            raise _reason(path, error) from error
        return True

    def _rename_draft(self, path: str, data: bytes) -> bool | None:
        """Make a file by a rename. Return None if its draft was deleted, which other processes may do at any time."""
        draft = f"{DRAFTS}/{uuid.uuid4().hex}"
        try:
            stream = self._fs.create(self._at(draft), True)
            try:
                stream.write(bytearray(data))
                stream.hsync()
            finally:
                stream.close()
        except Py4JJavaError as error:
            if any(name in str(error.java_exception.toString()) for name in _GONE):
                return None
            raise _reason(path, error) from error
        try:
            if self.move(draft, path):
                return True
        except FileNotFoundError:
            return None
        self.delete(draft)
        return False

    def move(self, source: str, target: str) -> bool:
        """Rename a file, and make its directories. Return false if the target exists. Raises FileNotFoundError."""
        at = self._at(target)
        directory = target.rpartition("/")[0]
        known = directory in self._made
        try:
            if not known:
                self._fs.mkdirs(at.getParent())
                self._made.add(directory)
            self._context.rename(self._at(source), at, self._no_overwrite)
        except Py4JJavaError as error:
            if _is(error, "FileAlreadyExistsException"):
                return False
            if not _is_missing(error):
                raise _reason(source, error) from error
            if not known:
                raise FileNotFoundError(source) from error
            self._made.discard(directory)  # another process has deleted the directory, or the source
            return self.move(source, target)
        return True

    def exists(self, path: str) -> bool:
        """Return whether a file or directory exists."""
        try:
            return bool(self._fs.exists(self._at(path)))
        except Py4JJavaError as error:
            raise _reason(path, error) from error

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with its content."""
        try:
            self._fs.delete(self._at(path), True)
            self._made.clear()
        except Py4JJavaError as error:
            raise _reason(path, error) from error

    def parquet_rows(self, path: str) -> int:
        """Return the number of rows of a Parquet file, from its footer."""
        return int(self._footer(path, lambda reader: reader.getRecordCount()))

    def has_strings(self, path: str, column: str) -> bool:
        """Return whether a column of a Parquet file holds strings, from its footer."""
        schema = str(self._footer(path, lambda reader: reader.getFileMetaData().getSchema().toString()))
        return f" binary {column} (STRING)" in schema

    def _footer(self, path: str, look: Callable[[Any], Any]) -> Any:
        hadoop = self._jvm.org.apache.parquet.hadoop
        try:
            file = hadoop.util.HadoopInputFile.fromPath(self._at(path), self._configuration)
            reader = hadoop.ParquetFileReader.open(file)
            try:
                return look(reader)
            finally:
                reader.close()
        except Py4JJavaError as error:
            raise _reason(path, error) from error

    def _at(self, relative: str) -> Any:
        return self._path_class(self.path(relative))


def _is_missing(error: Py4JJavaError) -> bool:
    return _is(error, "FileNotFoundException")


def _is(error: Py4JJavaError, *names: str) -> bool:
    return str(error.java_exception.getClass().getSimpleName()) in names


def _reason(path: str, error: Py4JJavaError) -> TableError:
    return TableError(f"{path}: {error.java_exception.toString()}")
