"""Open the table that a command or a program names."""

from __future__ import annotations

import os
import re
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
#: Compressions that pyarrow has by the same names, or that are none.
_CODECS: Final = ("zstd", "snappy", "gzip", "none", "uncompressed")
#: What may say that a path without a scheme is not one of a local directory: a setting, and files of settings in the
#: directories that these variables name.
_DEFAULT: Final = "fs.default"
_DIRECTORIES: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR")
_FILES: Final = ("core-site.xml", "spark-defaults.conf")
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


def open_here(
    name: str, properties: Mapping[str, str] = _NONE, *, codec: str, master: str, settings: Mapping[str, str]
) -> Table | None:
    """Open a table for loads in this process, which are then the same as those of Spark with a local master.

    Returns None if that is not sure: on a cluster, for a compression that only Spark has, and for a Parquet lake that
    is not, or may not be, in a local directory, as Hadoop's settings decide. Arguments as for `open_table`; master,
    settings: those of Spark.
    """
    if not re.match(r"local(\[|$)", master) or codec not in _CODECS:
        return None
    kind, rest = parse_table(name)
    if kind != "parquet":
        return open_table(None, name, properties, codec=codec)
    if rest.startswith("file:///"):
        rest = rest.removeprefix("file://")
    elif ":" in rest or any(_DEFAULT in name for name in settings) or _has_settings_of_hadoop():
        return None
    return None if properties else tables.open_table(f"parquet:{rest}")


def _has_settings_of_hadoop() -> bool:
    """Return whether there are files in which Spark's JVM looks for settings."""
    import pyspark  # noqa: PLC0415 - an extra

    homes = [os.environ.get("SPARK_HOME"), *pyspark.__path__]
    folders = [f"{home}/conf" for home in homes if home] + [os.environ.get(name) for name in _DIRECTORIES]
    return any(os.path.exists(f"{folder}/{name}") for folder in folders if folder for name in _FILES)


def lake_files(spark: SparkSession, root: str) -> SparkFiles:
    """Return the files of a Parquet lake, as Spark's session gives access to them. Raises TableError, NotByConnect."""
    if is_connect(spark):
        return SharedFiles(root)
    from pylogd.spark.hadoop import HadoopFiles  # noqa: PLC0415 - needs a JVM

    return HadoopFiles(spark, root)
