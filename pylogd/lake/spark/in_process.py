"""Read and write the records of a load in this process, one task after the other, for commits made without Spark.

Strategy: the same code runs as in Spark's tasks: the reader of the source, and the conversion and writers of the
table's format. Only the files of a Parquet lake, which Spark's own writer would write, are written by
`tables.parquet.staging`. Must not know: why Spark is not there, what a commit is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pylogd.lake.spark import tasks
from pylogd.lake.spark.options import SourceOptions
from pylogd.lake.spark.source import PylogdReader
from pylogd.lake.tables.interface import DataFile, Layout, SparkStaging, TaskStaging
from pylogd.lake.tables.parquet.staging import LakeWriter
from pylogd.lake.tables.records import RecordRows

if TYPE_CHECKING:
    from pylogd.lake.typed.rows import TypedRows


def write(
    options: Mapping[str, str], staging: TaskStaging | SparkStaging, rows: TypedRows | None, layout: Layout, *,
    codec: str,
) -> tuple[Sequence[DataFile], Sequence[DataFile]]:  # fmt: skip
    """Write the records of a range. Return the files of the table and the files of its quarantine.

    options: the options of the source.
    rows: makes the rows of a typed table; None for a table of records.
    codec: the compression of files of a Parquet lake, by Spark's name.

    Raises PylogdError and OSError; then files may be left, to which nothing refers.
    """
    if isinstance(staging, SparkStaging):
        columns = None if rows is None else rows.schema
        codec = "none" if codec == "uncompressed" else codec
        new_writer: tasks.NewWriter = partial(LakeWriter, staging, layout, columns, codec=codec)
    else:
        new_writer = staging.writer
    reader = PylogdReader(SourceOptions.for_batch(dict(options)))
    batches = (batch for task in reader.partitions() for batch in reader.read(task))
    return tasks.write_rows(batches, rows or RecordRows(layout), new_writer)
