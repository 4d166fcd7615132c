"""Access a directory on any file system of Hadoop (file:, hdfs:, s3a:) through Spark's JVM.

Must not know: the content of files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from pylogd.tables.errors import TableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopFiles:
    """Implements `tables.parquet.table.SparkFiles` on a Hadoop path. Methods raise TableError with Hadoop's message."""

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
        except Py4JJavaError as error:
            raise _reason(root, error) from error
        if is_file:
            raise TableError(f"{root} is a file, where a lake is a directory")

        options = jvm.org.apache.hadoop.fs.Options.Rename
        self._no_overwrite: Any = jvm.java.lang.reflect.Array.newInstance(options.NONE.getClass(), 1)
        self._no_overwrite[0] = options.NONE
        self._path_class: Any = jvm.org.apache.hadoop.fs.Path
        self._made: set[str] = set()  # directories that exist

    @property
    def root(self) -> str:
        """The directory, with its scheme."""
        return self._name

    def path(self, relative: str) -> str:
        """Return the absolute path, with its scheme, of a path relative to the root."""
        return f"{self.root.rstrip('/')}/{relative}"

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted; nothing if it does not exist."""
        return sorted(str(status.getPath().getName()) for status in self._list(directory))

    def _list(self, directory: str) -> list[Any]:
        try:
            return list(self._fs.listStatus(self._at(directory)))
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

    def write(self, path: str, data: bytes) -> None:
        """Write a file durably, creating its directories; an existing file is replaced."""
        try:
            stream = self._fs.create(self._at(path), True)
            try:
                stream.write(bytearray(data))
                stream.hsync()
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise _reason(path, error) from error

    def move(self, source: str, target: str) -> bool:
        """Rename a file, creating directories. Returns false if the target exists. Raises FileNotFoundError."""
        at = self._at(target)
        directory = target.rpartition("/")[0]
        try:
            if directory not in self._made:
                self._fs.mkdirs(at.getParent())
                self._made.add(directory)
            self._context.rename(self._at(source), at, self._no_overwrite)
        except Py4JJavaError as error:
            if "FileAlreadyExistsException" in str(error.java_exception.getClass().getName()):
                return False
            if _is_missing(error):
                raise FileNotFoundError(source) from error
            raise _reason(source, error) from error
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
        hadoop = self._jvm.org.apache.parquet.hadoop
        try:
            file = hadoop.util.HadoopInputFile.fromPath(self._at(path), self._configuration)
            reader = hadoop.ParquetFileReader.open(file)
            try:
                return int(reader.getRecordCount())
            finally:
                reader.close()
        except Py4JJavaError as error:
            raise _reason(path, error) from error

    def _at(self, relative: str) -> Any:
        return self._path_class(self.path(relative))


def _is_missing(error: Py4JJavaError) -> bool:
    return "FileNotFoundException" in str(error.java_exception.getClass().getName())


def _reason(path: str, error: Py4JJavaError) -> TableError:
    return TableError(f"{path}: {error.java_exception.toString()}")
