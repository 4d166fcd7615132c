"""Open the table that a command or a program names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pylogd.lake.spark.errors import OptionError
from pylogd.lake.spark.shared import SharedFiles, is_connect
from pylogd.lake.tables import opening as tables
from pylogd.lake.tables.opening import parse_table
from pylogd.lake.tables.parquet.files import SparkFiles
from pylogd.lake.tables.parquet.table import LakeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pylogd.lake.tables.interface import Table

_CONNECT_THREADS: Final = 4  # how many directories a compaction rewrites at once; the server's cores are unknown
#: Compressions with the same names in pyarrow, and the names for none.
_CODECS: Final = ("zstd", "snappy", "gzip", "none", "uncompressed")
#: The sources of Hadoop's default file system, which may show that a path without a scheme is not local: a setting, and
#: files of settings in the directories that these variables name.
_DEFAULT: Final = "fs.default"
_DIRECTORIES: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR")
_FILES: Final = ("core-site.xml", "spark-defaults.conf")
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


def open_table(
    spark: SparkSession | None, name: str, properties: Mapping[str, str] = _NONE, *, codec: str = "zstd"
) -> Table:
    """Open a table, which need not exist. A commit in which a process died is completed.

    spark: is needed only for Parquet lakes.
    name: `parquet:` and a directory (as Hadoop names it: file:, hdfs:, s3a:), `iceberg:` and the name of a table
    (`pylogd.lake.tables.iceberg.catalogs.TableName`), or `delta:` and a directory.
    properties: the properties of Iceberg's catalog, or of Delta's storage.
    codec: the compression of files that tasks write.

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
    """Open a table for loads in this process, which give the same result as Spark with a local master.

    Returns None if this is not certain: on a cluster, for a compression that only Spark has, and for a Parquet lake
    that may not be in a local directory, which Hadoop's settings decide. Other arguments: see `open_table`.
    master, settings: the master and the settings of Spark.
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
    """Return the files of a Parquet lake, accessed through Spark's session. Raises TableError, NotByConnect."""
    if is_connect(spark):
        return SharedFiles(root)
    from pylogd.lake.spark.hadoop import HadoopFiles  # noqa: PLC0415 - needs a JVM

    return HadoopFiles(spark, root)
