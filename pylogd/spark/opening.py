"""Open the table that a command or a program names."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pylogd.spark.errors import OptionError
from pylogd.spark.shared import SharedFiles, is_connect
from pylogd.tables import opening as tables
from pylogd.tables.opening import parse_table
from pylogd.tables.parquet.table import LakeTable, SparkFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pylogd.tables.interface import Table

_CONNECT_THREADS: Final = 4  # directories that a compaction rewrites at once; the server's cores are not known here
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


def open_table(
    spark: SparkSession | None, name: str, properties: Mapping[str, str] = _NONE, *, codec: str = "zstd"
) -> Table:
    """Open a table, which need not exist. A commit in which a process died is completed.

    spark: needed for Parquet lakes only. name: `parquet:` and a directory (as Hadoop names it: file:, hdfs:, s3a:),
    `iceberg:` and the name of a table (`pylogd.tables.iceberg.catalogs.TableName`), or `delta:` and a directory.
    properties: those of Iceberg's catalog, or of Delta's storage. codec: the compression of files that tasks write.
    Raises TableError, OptionError, NotByConnect.
    """
    kind, rest = parse_table(name)
    if kind != "parquet":
        return tables.open_table(name, properties, codec="none" if codec == "uncompressed" else codec)
    if properties:
        raise OptionError("a Parquet lake has no properties: give Hadoop's settings to Spark (spark.hadoop.fs...)")
    if spark is None:
        raise OptionError("a Parquet lake is opened with Spark")
    threads = _CONNECT_THREADS if is_connect(spark) else max(spark.sparkContext.defaultParallelism, 1)
    return LakeTable(lake_files(spark, rest), threads=threads)


def lake_files(spark: SparkSession, root: str) -> SparkFiles:
    """Return the files of a Parquet lake, as Spark's session gives access to them. Raises TableError, NotByConnect."""
    if is_connect(spark):
        return SharedFiles(root)
    from pylogd.spark.hadoop import HadoopFiles  # noqa: PLC0415 - needs a JVM

    return HadoopFiles(spark, root)
