"""Open the table that a command or a program names."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pylogd.spark.errors import OptionError
from pylogd.tables.errors import TableError
from pylogd.tables.parquet.table import LakeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pylogd.tables.interface import Table

FORMATS: Final = ("parquet", "iceberg", "delta")
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


def parse_table(text: str) -> tuple[str, str]:
    """Return the format and the rest of a table's name, such as `delta:/data/flights`.

    A name without a format is the directory of a Parquet lake, as Hadoop names it. Raises OptionError.
    """
    kind, colon, rest = text.partition(":")
    if kind in FORMATS and colon:
        if not rest:
            raise OptionError(f"{text!r} names no table: give for example {kind}:/data/flights")
        return kind, rest
    return "parquet", text


def open_table(
    spark: SparkSession | None, name: str, properties: Mapping[str, str] = _NONE, *, codec: str = "zstd"
) -> Table:
    """Open a table, which need not exist. A commit in which a process died is completed.

    spark: needed for Parquet lakes only. name: `parquet:` and a directory (as Hadoop names it: file:, hdfs:, s3a:),
    `iceberg:` and the name of a table (`pylogd.tables.iceberg.catalogs.TableName`), or `delta:` and a directory.
    properties: those of Iceberg's catalog, or of Delta's storage. codec: the compression of files that tasks write.
    Raises TableError, OptionError.
    """
    kind, rest = parse_table(name)
    written = "none" if codec == "uncompressed" else codec
    if kind == "iceberg":
        from pylogd.tables.iceberg.catalogs import TableName, open_catalog  # noqa: PLC0415 - an extra

        named = TableName.parse(rest)
        catalog = open_catalog(named, properties)
        from pylogd.tables.iceberg.table import IcebergTable  # noqa: PLC0415 - an extra

        return IcebergTable(catalog, named, codec=written)
    if kind == "delta":
        try:
            from pylogd.tables.delta.table import DeltaLakeTable  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise TableError("Delta tables need deltalake: pip install 'pylogd-broker[delta]'") from error
        return DeltaLakeTable(rest, properties, codec=written)
    if properties:
        raise OptionError("a Parquet lake has no properties: give Hadoop's settings to Spark (spark.hadoop.fs...)")
    if spark is None:
        raise OptionError("a Parquet lake is opened with Spark")
    from pylogd.spark.hadoop import HadoopFiles  # noqa: PLC0415 - needs Spark

    return LakeTable(HadoopFiles(spark, rest), threads=max(spark.sparkContext.defaultParallelism, 1))
