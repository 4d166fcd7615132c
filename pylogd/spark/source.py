"""What Spark sees: the data source `pylogd`, for batch and streaming queries, to read and to write.

Strategy: Spark makes these objects in Python processes of its own on the driver and sends what reads and writes to the
executors' workers. They only join the parts: options, the brokers' offsets, ranges, tasks.

Not as in Spark's Kafka source: where a streaming query starts is not kept before its first batch is committed (the API
has no place for it), so a query with `startingOffsets=latest` that dies in its first batch starts at what is latest
then. A save mode other than append is not possible.
Source: PySpark, Python Data Source API; Structured Streaming + Kafka Integration Guide.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pylogd.spark import reading, writing
from pylogd.spark.errors import PlanError, WriteError
from pylogd.spark.offsets import Offsets, Place
from pylogd.spark.options import ByPartition, SinkOptions, SourceOptions
from pylogd.spark.ranges import OffsetRange, between, limited, split

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
_HEADERS = ", headers array<struct<key: string, value: binary>>"
StreamOffset = dict[str, dict[str, int]]


class PylogdDataSource(DataSource):
    """`format("pylogd")`; the options are those of `format("kafka")`."""

    @classmethod
    def name(cls) -> str:
        """As it is asked for."""
        return "pylogd"

    def schema(self) -> str:
        """That of Spark's Kafka source."""
        return SCHEMA + _HEADERS if str(self.options.get("includeHeaders", "")).lower() == "true" else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch query."""
        return PylogdReader(SourceOptions.for_batch(dict(self.options)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A streaming query."""
        return PylogdStreamReader(SourceOptions.for_stream(dict(self.options)))

    def writer(self, schema: StructType, overwrite: bool) -> PylogdWriter:
        """A batch of rows to topics."""
        if overwrite:
            raise WriteError("Save mode overwrite not allowed for Kafka. Append is what a log can do.")
        return PylogdWriter(_sink(schema, self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> PylogdStreamWriter:
        """A streaming query's rows to topics."""
        return PylogdStreamWriter(_sink(schema, self.options))


def _sink(schema: StructType, given: Any) -> SinkOptions:
    options = SinkOptions.read(dict(given))
    if "headers" in schema.fieldNames():
        options = replace(options, include_headers=True)
    writing.check_schema(schema, options)
    return options


class Task(InputPartition):
    """One range, to be read by one task."""

    def __init__(self, task: reading.ReadTask) -> None:
        super().__init__(task)


def _tasks(options: SourceOptions, ranges: Sequence[OffsetRange]) -> list[Task]:
    pieces = split(ranges, least_tasks=options.min_partitions, most_records=options.max_records_per_partition)
    return [
        Task(
            reading.ReadTask(
                options.bootstrap, dict(options.client), piece, options.include_headers, options.fail_on_data_loss,
                options.poll_timeout_ms,
            )
        )
        for piece in pieces
    ]  # fmt: skip


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, Task):  # Spark makes up an empty partition where there is none
        yield from reading.read(cast("reading.ReadTask", partition.value))


class _Pushdown:
    """`pushFilters` of a reader, which Spark refuses to see in a class while its own switch for it is off.

    With the switch off nobody calls it, and every filter is Spark's to apply; that is right, only slower. The attribute
    is what Spark looks at to tell a method that was overridden.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: PylogdReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return [each for each in filters if not self._reader.take_filter(each)]


class PylogdReader(DataSourceReader):
    """A batch query: what lies between its start and its end, less what filters exclude."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._partitions: set[int] | None = None
        self._first = 0
        self._behind: int | None = None
        self._since_ms: int | None = None
        self.pushFilters = _Pushdown(self)  # type: ignore[method-assign]  # see there

    def take_filter(self, given: Filter) -> bool:
        """Whether the filter is fully seen to by what is read. One on the time stamp only saves reading."""
        column = getattr(given, "attribute", ())
        value = getattr(given, "value", None)
        if column == ("partition",):
            return self._take_partition(given, value)
        if column == ("offset",) and isinstance(value, int):
            return self._take_offset(given, value)
        since = isinstance(given, (GreaterThan, GreaterThanOrEqual, EqualTo))
        if column == ("timestamp",) and since and isinstance(value, datetime):
            self._since_ms = max(int(value.timestamp() * 1000), self._since_ms or 0)
        return False

    def _take_partition(self, given: Filter, value: Any) -> bool:
        if isinstance(given, EqualTo):
            wanted = {value}
        elif isinstance(given, In):
            wanted = set(value)
        else:
            return False
        self._partitions = wanted if self._partitions is None else self._partitions & wanted
        return True

    def _take_offset(self, given: Filter, value: int) -> bool:
        first, behind = 0, None
        if isinstance(given, EqualTo):
            first, behind = value, value + 1
        elif isinstance(given, GreaterThan):
            first = value + 1
        elif isinstance(given, GreaterThanOrEqual):
            first = value
        elif isinstance(given, LessThan):
            behind = value
        elif isinstance(given, LessThanOrEqual):
            behind = value + 1
        else:
            return False
        self._first = max(self._first, first)
        if behind is not None:
            self._behind = behind if self._behind is None else min(self._behind, behind)
        return True

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        with Offsets(self._options) as offsets:
            places = offsets.partitions()
            start, end = offsets.start(places), offsets.end(places)
            for place in places:
                if start[place] > end[place]:
                    raise PlanError(
                        f"The start offset {start[place]} of {place[0]}-{place[1]} is greater than its end offset "
                        f"{end[place]}."
                    )
            return list(_tasks(self._options, self._narrowed(offsets, between(start, end))))

    def _narrowed(self, offsets: Offsets, ranges: list[OffsetRange]) -> list[OffsetRange]:
        if self._partitions is not None:
            ranges = [each for each in ranges if each.partition in self._partitions]
        since: dict[Place, int | None] = {}
        if self._since_ms is not None and ranges:
            since = offsets.first_since({(each.topic, each.partition): self._since_ms for each in ranges})
        narrowed = []
        for each in ranges:
            # Nothing before the first record that is young enough can be young enough; after the last, nothing is.
            young = since.get((each.topic, each.partition), 0)
            first = each.end if young is None else max(each.start, self._first, young)
            behind = each.end if self._behind is None else min(each.end, self._behind)
            if first < behind:
                narrowed.append(replace(each, start=first, end=behind))
        return narrowed

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task."""
        return _read(partition)


class PylogdStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query. Offsets are `{"topic": {"0": 23}}`, as in the checkpoints of Spark's Kafka source."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._offsets: Offsets | None = None
        self._target: ByPartition | None = None
        self._latest: ByPartition = {}
        self._last_trigger = -math.inf  # a first batch waits for nothing

    @property
    def offsets(self) -> Offsets:
        """The connection to the brokers, made when it is first needed: executors get this object too, and need none."""
        if self._offsets is None:
            self._offsets = Offsets(self._options)
        return self._offsets

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_options"])  # type: ignore[misc]

    def initialOffset(self) -> StreamOffset:
        """Where a query without a checkpoint starts."""
        return _document(self.offsets.start(self.offsets.partitions()))

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxOffsetsPerTrigger`, else `minOffsetsPerTrigger`; with both, `latestOffset` minds the second itself."""
        most, least = self._options.max_offsets_per_trigger, self._options.min_offsets_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:
        """Where the query ends, whatever comes meanwhile."""
        self._target = self.offsets.latest(self.offsets.existing())

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        """Where the next micro-batch ends."""
        begun = _by_place(start)
        latest = self._latest = self._known_latest(begun)
        begun = {**self.offsets.earliest([place for place in latest if place not in begun]), **begun}
        if isinstance(limit, ReadAllAvailable):
            return _document(latest)
        if self._should_wait(begun, latest):
            return start
        self._last_trigger = time.monotonic()
        if isinstance(limit, ReadMaxRows):
            latest = limited(begun, latest, limit.max_rows)
        return _document(latest)

    def _known_latest(self, begun: ByPartition) -> ByPartition:
        target = self._target
        latest = dict(target) if target is not None else self.offsets.latest(self.offsets.existing(), begun)
        for place in begun.keys() - latest.keys():
            self.offsets.lost(f"partition {place[0]}-{place[1]} is gone")
        for place in begun.keys() & latest.keys():
            if latest[place] >= begun[place]:
                continue
            if target is not None:  # it was read further before this run
                latest[place] = begun[place]
            else:
                self.offsets.lost(
                    f"{place[0]}-{place[1]} ends with {latest[place]}, and was read to {begun[place]} before"
                )
        return latest

    def _should_wait(self, begun: ByPartition, latest: ByPartition) -> bool:
        """Whether there is too little yet, and it was not waited long enough."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        if (time.monotonic() - self._last_trigger) * 1000 >= self._options.max_trigger_delay_ms:
            return False
        return sum(latest[place] - begun[place] for place in latest) < least

    def reportLatestOffset(self) -> StreamOffset | None:
        """Where the partitions end, for the query's progress."""
        return _document(self._latest) if self._latest else None

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[InputPartition]:
        """The tasks of a micro-batch. Partitions that are new are read from their beginning."""
        begun, ended = _by_place(start), _by_place(end)
        fresh = self._fresh(ended.keys() - begun.keys())
        for place in ended.keys() - begun.keys() - fresh.keys():
            self.offsets.lost(f"partition {place[0]}-{place[1]} is gone")
            del ended[place]
        for place, offset in fresh.items():
            if offset:
                self.offsets.lost(f"the new partition {place[0]}-{place[1]} begins with offset {offset}, not with 0")
        for place in begun.keys() - ended.keys():
            self.offsets.lost(f"partition {place[0]}-{place[1]} is gone")
        for place in begun.keys() & ended.keys():
            if begun[place] > ended[place]:
                self.offsets.lost(f"{place[0]}-{place[1]}: the batch ends with {ended[place]}, before {begun[place]}")
        return list(_tasks(self._options, between({**begun, **fresh}, ended)))

    def _fresh(self, places: Set[Place]) -> ByPartition:
        """Where partitions that were not read before begin, of those that there still are."""
        return self.offsets.earliest(sorted(places & set(self.offsets.existing()))) if places else {}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task."""
        return _read(partition)

    def commit(self, end: StreamOffset) -> None:
        """Nothing to do: the checkpoint has the offsets."""

    def stop(self) -> None:
        """Let the connections go."""
        if self._offsets is not None:
            self._offsets.close()
            self._offsets = None


def _document(offsets: ByPartition) -> StreamOffset:
    document: StreamOffset = {}
    for (topic, partition), offset in sorted(offsets.items()):
        document.setdefault(topic, {})[str(partition)] = offset
    return document


def _by_place(document: StreamOffset) -> ByPartition:
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in document.items()
        for partition, offset in partitions.items()
    }


@dataclass
class Written(WriterCommitMessage):
    """How many rows a task wrote."""

    rows: int


class PylogdWriter(DataSourceArrowWriter):
    """A batch of rows."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """A task's rows, at least once."""
        return Written(writing.write(self._options, iterator))


class PylogdStreamWriter(DataSourceStreamArrowWriter):
    """A micro-batch's rows."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """A task's rows, at least once."""
        return Written(writing.write(self._options, iterator))

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Every record is acknowledged by now."""

    def abort(self, messages: list[Any], batchId: int) -> None:
        """What was written stays: a log takes nothing back."""
