"""A lake's files on HDFS, by HDFS's own protocol, without a JVM (`hdfs-native`).

Strategy: a file is created by writing a draft, closing it, and renaming it. HDFS renames atomically, and refuses a
rename if the name exists. So only one of several processes creates a file, and no reader sees a part of it. HDFS keeps
a closed file on `dfs.replication` data nodes.
"""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.parquet.files import DRAFTS
from pylogd.lake.tables.parquet.remote import FsspecFiles, failures

_TRIES: Final = 10
_EXTRA: Final = "Tables on HDFS need hdfs-native: pip install 'pylogd-broker[hdfs]'"


def hdfs_client(location: str, properties: Mapping[str, str]) -> Any:
    """Return the fsspec file system of a location such as `hdfs://namenode:8020/lake`; it is not connected yet.

    The host may be a name service of the files in HADOOP_CONF_DIR.
    properties: settings of Hadoop's client, such as `dfs.replication`.

    Raises TableError.
    """
    try:
        module = importlib.import_module("hdfs_native.fsspec")
    except ImportError as error:
        raise TableError(_EXTRA) from error
    parts = urlsplit(location)
    try:
        return module.HdfsFileSystem(parts.hostname, parts.port, skip_instance_cache=True, **properties)
    except Exception as error:  # any problem that the library finds in settings and names
        raise TableError(f"{location}: {error}") from error


class HdfsFiles(FsspecFiles):
    """Implements `Files`, and `SparkFiles` and `NewFiles`, on a directory of HDFS."""

    threads = 8

    def __init__(self, location: str, properties: Mapping[str, str]) -> None:
        """`location` is that of `hdfs_client`, with the lake's directory. Raises TableError."""
        super().__init__(hdfs_client(location, properties), urlsplit(location).path or "/")

    def create(self, path: str, data: bytes) -> bool:
        """Make a file by renaming a draft. Return false if the file exists."""
        for _ in range(_TRIES):
            draft = f"{DRAFTS}/{uuid.uuid4().hex}"
            with failures(draft), self._fs.open(self._at(draft), "wb") as file:
                file.write(data)
            try:
                if self.move(draft, path):
                    return True
            except FileNotFoundError:  # drafts may be deleted
                continue
            self.delete(draft)
            return False
        raise TableError(f"{path}: its draft in {DRAFTS} was deleted {_TRIES} times before it could be renamed")

    def move(self, source: str, target: str) -> bool:
        """Rename a file, and make its directories. Return false if the target exists. Raises FileNotFoundError."""
        for again in (True, False):
            try:
                with failures(source):
                    self._fs.mv(self._at(source), self._at(target))
            except FileExistsError:
                if not self.exists(source):
                    raise FileNotFoundError(source) from None
                return False
            except FileNotFoundError:
                if not again or not self.exists(source):
                    raise
                with failures(target):  # the target's directory was missing
                    self._fs.makedirs(self._at(target).rpartition("/")[0], exist_ok=True)
            else:
                return True
        return False

    def new_file(self, path: str) -> Any:
        """Open a file for writing. Closing it makes it durable."""
        with failures(path):
            return self._fs.open(self._at(path), "wb")
