"""Access a lake's files in a session of Spark Connect, on a disk that this process shares with the driver and workers.

Strategy: Spark writes the files, by paths with the scheme `file:`; this process lists, moves and commits them as its
own files (`LocalFiles`). Hadoop's file systems are only in the driver's JVM, to which Spark Connect gives no access.

Rules: the directory is the same one for this process and for all of Spark's. If it is missing here after Spark has
written to it, an error is raised before anything is committed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pylogd.lake.spark.errors import NotByConnect
from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.parquet.files import STAGING
from pylogd.lake.tables.parquet.local import LocalFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//(?=/))?")
#: The parts of the path of an attempt's directory.
_ATTEMPT_PARTS: Final = STAGING.count("/") + 2


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session uses Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


class SharedFiles(LocalFiles):
    """Implements `tables.parquet.files.SparkFiles` on a directory that this process and Spark's processes share."""

    def __init__(self, name: str) -> None:
        """`name` is the directory, with or without `file:`. Raises NotByConnect for other schemes, TableError for
        files.
        """
        scheme = _SCHEME.match(name)
        if scheme is not None and scheme[1] != "file":
            raise NotByConnect(name, scheme[1])
        super().__init__(Path(name if scheme is None else name[scheme.end() :]).absolute())

    @property
    def root(self) -> str:
        """The directory, with its scheme."""
        return f"file:{self._root}"

    def data_files(self, directory: str) -> list[tuple[str, int]]:
        """Return the files that Spark has written below a directory of an attempt.

        Raises TableError if the attempt has no directory: Spark makes one on its driver's disk even without rows.
        """
        attempt = "/".join(directory.split("/")[:_ATTEMPT_PARTS])
        if not self.exists(attempt):
            raise TableError(
                f"Spark has written to {self.path(attempt)}, but there is no such directory on this machine: by Spark "
                "Connect a Parquet lake has to be on a disk that this machine and all of Spark's share. Nothing was "
                "committed. Use such a disk, or an Iceberg or Delta table"
            )
        return super().data_files(directory)
