"""Lets Spark find `format("pylogd")` with no registration: it looks into every top-level module named `pyspark_…`."""

from pylogd.lake.spark.source import PylogdDataSource as DefaultSource

__all__ = ["DefaultSource"]
