"""Access Iceberg's files on HDFS by HDFS's own protocol, since pyiceberg's own access needs a JVM.

pyiceberg finds the class by the property `py-io-impl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.io.fsspec import FsspecFileIO

from pylogd.lake.tables.parquet.hdfs import hdfs_client

if TYPE_CHECKING:
    from urllib.parse import ParseResult

#: The prefixes of properties that are settings of Hadoop's client.
_PREFIXES = ("dfs.", "fs.", "hadoop.")


class HdfsFileIO(FsspecFileIO):
    """Access to files whose locations begin with `hdfs://`, and all others that fsspec knows."""

    def _get_fs_from_uri(self, uri: ParseResult, location: str = "") -> Any:
        if uri.scheme != "hdfs":
            return super()._get_fs_from_uri(uri, location)
        clients: dict[str, Any] = self._thread_locals.__dict__.setdefault("hdfs", {})
        if uri.netloc not in clients:
            own = {name: value for name, value in self.properties.items() if name.startswith(_PREFIXES)}
            clients[uri.netloc] = hdfs_client(location, own)
        return clients[uri.netloc]
