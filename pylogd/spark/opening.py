"""Open the table that a command or a program names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pylogd.spark.hadoop import HadoopFiles
from pylogd.tables.parquet.table import LakeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pylogd.tables.interface import Table


def open_table(spark: SparkSession, name: str) -> Table:
    """Open a table. Its last commit is completed if a process died in it.

    name: the directory of a Parquet lake, as Hadoop names it (file:, hdfs:, s3a:). Raises TableError.
    """
    return LakeTable(HadoopFiles(spark, name))
