"""The writers of the data source `pylogd`, which Spark calls: at least once, or exactly once with `transactional`.

Strategy: Spark creates a writer on the driver and pickles it for the tasks; it creates another writer to commit. For
at-least-once the tasks write (`writing`). With the option `transactional` the tasks encode and the driver writes
(`epochs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pylogd.lake.spark import epochs, writing
from pylogd.lake.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Written(WriterCommitMessage):
    """The number of rows that a task wrote."""

    rows: int


def batch_writer(schema: StructType, options: Mapping[str, str]) -> DataSourceArrowWriter:
    """Return the writer of a batch query. Raises OptionError, WriteError."""
    read = _options(schema, options)
    return PylogdWriter(read) if read.transactional is None else TransactionalWriter(read)


def stream_writer(schema: StructType, options: Mapping[str, str]) -> DataSourceStreamArrowWriter:
    """Return the writer of a streaming query. Raises OptionError, WriteError."""
    read = _options(schema, options)
    return PylogdStreamWriter(read) if read.transactional is None else TransactionalStreamWriter(read)


def _options(schema: StructType, given: Mapping[str, str]) -> SinkOptions:
    options = SinkOptions.read(dict(given))
    if "headers" in schema.fieldNames():
        options = replace(options, include_headers=True)
    writing.check_schema(schema, options)
    return options


class _Sends:
    """The tasks of writers that write at least once. The records of a task are acknowledged when it has ended."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task, at least once."""
        return Written(writing.write(self._options, iterator))


class PylogdWriter(_Sends, DataSourceArrowWriter):
    """Writes a batch of rows."""


class PylogdStreamWriter(_Sends, DataSourceStreamArrowWriter):
    """Writes the rows of a micro-batch."""

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Do nothing: all records are acknowledged already."""

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Do nothing: records that were written can't be removed."""


class _Encodes:
    """The tasks of writers that write in a transaction: they write nothing themselves."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> epochs.EncodedRows:
        """Encode the rows of a task."""
        return epochs.encode(self._options, iterator)


class TransactionalWriter(_Encodes, DataSourceArrowWriter):
    """Writes a batch of rows in one transaction."""

    def commit(self, messages: list[Any]) -> None:
        """Write the rows of all tasks. Raises EpochNotCommitted."""
        epochs.commit(self._options, messages, None)

    def abort(self, messages: list[Any]) -> None:
        """Do nothing: nothing was written."""


class TransactionalStreamWriter(_Encodes, DataSourceStreamArrowWriter):
    """Writes the rows of each micro-batch in one transaction, exactly once."""

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Write the rows of all tasks, unless that was done before. Raises EpochNotCommitted, StaleCheckpoint."""
        epochs.commit(self._options, messages, epochs.epoch_of(messages, batchId))

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Do nothing: nothing was written."""
