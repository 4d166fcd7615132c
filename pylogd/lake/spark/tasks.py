"""Write the files of a table in Spark's tasks with pyarrow, for formats that need metadata of their files.

Strategy: each task converts and writes its rows, and returns only the facts of its files. Spark uses one result of each
task, so files of failed and repeated attempts are never committed. Must not know: what a commit is.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pylogd.lake.tables.interface import DIRECTORIES, DataFile, Layout, LoadFiles, NewWriter, Rows, TaskStaging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RESULT: Final = "files binary"
#: Columns to shuffle by, so that each directory gets one file.
_GATHER: Final = {
    "topic": "topic",
    "date": "unix_seconds(timestamp) div 86400",
    "hour": "unix_seconds(timestamp) div 3600",
}


@dataclass(frozen=True)
class _Write:
    """The function of a task: from batches of rows to batches of results. It is pickled and sent to the task."""

    staging: TaskStaging
    rows: Rows

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = write_rows(batches, self.rows, self.staging.writer)
        yield pa.RecordBatch.from_pydict({"files": [pickle.dumps(files)]})


def write_rows(
    batches: Iterator[pa.RecordBatch], rows: Rows, new_writer: NewWriter
) -> tuple[list[DataFile], list[DataFile]]:
    """Write the rows of batches of records. Return the files of the table and the files of its quarantine."""
    files = LoadFiles(new_writer)
    try:
        for batch in batches:
            files.write(*rows.convert(batch))
        files.finish()
    except BaseException:
        files.abort()
        raise
    return files.added, files.quarantined


def write(
    rows: DataFrame, staging: TaskStaging, convert: Rows, layout: Layout, *, gather: bool
) -> tuple[Sequence[DataFile], Sequence[DataFile]]:
    """Write the rows of a load. Return the files of the table and the files of its quarantine.

    rows: the rows of the source, with `headers` and `timestampMs`.
    convert: makes rows of the table from them.
    gather: whether rows are shuffled so that each directory gets one file.
    """
    from pyspark.sql.functions import expr  # noqa: PLC0415 - needs a session

    if gather:
        directory = [expr(_GATHER[name]) for name in DIRECTORIES[layout.by]]
        rows = rows.repartition(*directory).sortWithinPartitions(*directory, "partition", "offset")
    written = rows.mapInArrow(_Write(staging, convert), _RESULT).collect()
    added: list[DataFile] = []
    quarantined: list[DataFile] = []
    for each in written:
        files, aside = pickle.loads(bytes(each["files"]))
        added += files
        quarantined += aside
    return added, quarantined
