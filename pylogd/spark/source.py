"""What Spark sees: the data source `pylogd`, for batch and streaming queries, to read and to write.

Strategy: Spark makes these objects in Python processes of its own on the driver and sends what reads and writes to the
executors' workers. They only join the parts: options, the brokers' offsets, ranges, tasks.

Where a streaming query starts, of which topics and at which leader epochs, is part of its offsets (`stream_offsets`).
Not as in Spark's Kafka source: a save mode other than append is not possible.
Source: PySpark, Python Data Source API; Structured Streaming + Kafka Integration Guide.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
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
from pylogd.spark.errors import PlanError, TopicRecreated, WriteError
from pylogd.spark.offsets import Offsets, Place
from pylogd.spark.options import ByPartition, SinkOptions, SourceOptions
from pylogd.spark.ranges import OffsetRange, between, limited, split
from pylogd.spark.stream_offsets import Document, StreamOffset

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
_HEADERS = ", headers array<struct<key: string, value: binary>>"
_NUMBER = ", timestampMs bigint"


class PylogdDataSource(DataSource):
    """`format("pylogd")`; the options are those of `format("kafka")`."""

    @classmethod
    def name(cls) -> str:
        """As it is asked for."""
        return "pylogd"

    def schema(self) -> str:
        """That of Spark's Kafka source."""
        return (
            SCHEMA
            + (_HEADERS if self._asks_for("includeHeaders") else "")
            + (_NUMBER if self._asks_for("includeTimestampMs") else "")
        )

    def _asks_for(self, option: str) -> bool:
        return str(self.options.get(option, "")).strip().lower() == "true"

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


def _tasks(options: SourceOptions, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str]) -> list[Task]:
    pieces = split(ranges, least_tasks=options.min_partitions, most_records=options.max_records_per_partition)
    return [
        Task(
            reading.ReadTask(
                options.bootstrap, dict(options.client), piece, options.include_headers, options.fail_on_data_loss,
                options.poll_timeout_ms, topic_ids.get(piece.topic), options.null_timestamps,
                options.include_timestamp_ms,
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
            topic_ids = offsets.topic_ids(places)
            for topic, wanted in self._options.topic_ids.items():
                if topic_ids.get(topic, wanted) != wanted:
                    offsets.lost(f"topic {topic!r} was deleted and created again")
            start, end = offsets.start(places), offsets.end(places)
            for place in places:
                if start[place] > end[place]:
                    raise PlanError(
                        f"The start offset {start[place]} of {place[0]}-{place[1]} is greater than its end offset "
                        f"{end[place]}."
                    )
            ranges = self._narrowed(offsets, between(start, end))
            return list(_tasks(self._options, ranges, {**topic_ids, **self._options.topic_ids}))

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
    """A streaming query. Its offsets are those of `stream_offsets`."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._offsets: Offsets | None = None
        self._initial: StreamOffset | None = None
        self._target: StreamOffset | None = None
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

    def initialOffset(self) -> Document:
        """Where a query without a checkpoint starts: decided once, for Spark asks again until a batch is committed."""
        if self._initial is None:
            places = self.offsets.partitions()
            start = self.offsets.start(places)
            self._initial = StreamOffset(start, self.offsets.topic_ids(places), start=start)
        return self._initial.document()

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxOffsetsPerTrigger`, else `minOffsetsPerTrigger`; with both, `latestOffset` minds the second itself."""
        most, least = self._options.max_offsets_per_trigger, self._options.min_offsets_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:
        """Where the query ends, whatever comes meanwhile."""
        self._target = self._ends(StreamOffset({}))

    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:
        """Where the next micro-batch ends. `start` as it is if there is nothing new: Spark makes no batch then."""
        read = StreamOffset.read(start)
        latest = self._known_latest(read)
        self._latest = end = latest.offsets
        begun = self._still_there(read, latest.topic_ids)
        begun = {**self.offsets.earliest([place for place in end if place not in begun]), **begun}
        if not isinstance(limit, ReadAllAvailable):
            if self._should_wait(begun, end):
                return start
            self._last_trigger = time.monotonic()
            if isinstance(limit, ReadMaxRows):
                end = limited(begun, end, limit.max_rows)
        if end == read.offsets and not read.recreated(latest.topic_ids):
            return start
        return replace(latest, offsets=end, start=read.offsets if read.is_initial else None).document()

    def _ends(self, read: StreamOffset) -> StreamOffset:
        places = self.offsets.existing()
        topic_ids = self.offsets.topic_ids(places)
        ends, epochs = self.offsets.ends(places, self._still_there(read, topic_ids))
        return StreamOffset(ends, topic_ids, epochs)

    def _still_there(self, read: StreamOffset, topic_ids: Mapping[str, str]) -> ByPartition:
        """How far partitions were read, without those of topics that were created again; raises `TopicRecreated`."""
        recreated = read.recreated(topic_ids)
        if recreated and not self._options.restart_recreated:
            raise _recreated(recreated[0], read, topic_ids)
        return {place: offset for place, offset in read.offsets.items() if place[0] not in recreated}

    def _known_latest(self, read: StreamOffset) -> StreamOffset:
        target = self._target
        latest = self._ends(read) if target is None else target
        begun = self._still_there(read, latest.topic_ids)
        ends, epochs = dict(latest.offsets), dict(latest.leader_epochs)
        for place in begun.keys() - ends.keys():
            self.offsets.lost(f"partition {place[0]}-{place[1]} is gone")
        for place, at in self.offsets.truncations(begun, read.leader_epochs).items():
            self.offsets.lost(
                f"the log of {place[0]}-{place[1]} was cut back to {at}, and was read to {begun[place]} before"
            )
        for place in begun.keys() & ends.keys():
            if ends[place] >= begun[place]:
                continue
            if target is not None:  # it was read further before this run
                ends[place] = begun[place]
                epochs[place] = read.leader_epochs.get(place, epochs.get(place, -1))
            else:
                self.offsets.lost(
                    f"{place[0]}-{place[1]} ends with {ends[place]}, and was read to {begun[place]} before"
                )
        return replace(latest, offsets=ends, leader_epochs=epochs)

    def _should_wait(self, begun: ByPartition, latest: ByPartition) -> bool:
        """Whether there is too little yet, and it was not waited long enough."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        if (time.monotonic() - self._last_trigger) * 1000 >= self._options.max_trigger_delay_ms:
            return False
        return sum(latest[place] - begun[place] for place in latest) < least

    def reportLatestOffset(self) -> Document | None:
        """Where the partitions end, for the query's progress."""
        return StreamOffset(self._latest).document() if self._latest else None

    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        """The tasks of a micro-batch. Partitions that are new are read from their beginning.

        The end of a first batch says where that begins: `start` is what is latest by now, if Spark had to ask again.
        """
        read, until = StreamOffset.read(start), StreamOffset.read(end)
        if until.start is not None:
            read = StreamOffset(until.start, until.topic_ids)
        replaced = read.recreated(until.topic_ids)  # from one batch to the next: this one begins with the new topic
        begun = {place: offset for place, offset in read.offsets.items() if place[0] not in replaced}
        ended = self._still_to_read(begun, until)
        fresh = self._fresh(ended.keys() - begun.keys())
        for place in ended.keys() - begun.keys() - fresh.keys():
            self.offsets.lost(f"partition {place[0]}-{place[1]} is gone")
            del ended[place]
        for place, offset in fresh.items():
            if offset:
                self.offsets.lost(f"the new partition {place[0]}-{place[1]} begins with offset {offset}, not with 0")
        for place in begun.keys() - until.offsets.keys():
            self.offsets.lost(f"partition {place[0]}-{place[1]} is gone")
        for place in begun.keys() & ended.keys():
            if begun[place] > ended[place]:
                self.offsets.lost(f"{place[0]}-{place[1]}: the batch ends with {ended[place]}, before {begun[place]}")
        return list(_tasks(self._options, between({**begun, **fresh}, ended), until.topic_ids))

    def _still_to_read(self, begun: ByPartition, until: StreamOffset) -> ByPartition:
        """The ends of a batch, without topics that were created again after it was planned; raises `TopicRecreated`."""
        if begun == until.offsets:
            return dict(until.offsets)
        topic_ids = self.offsets.topic_ids(self.offsets.existing())
        gone = {
            topic
            for topic in until.recreated(topic_ids)
            if any(begun.get(place) != end for place, end in until.offsets.items() if place[0] == topic)
        }
        for topic in sorted(gone):
            error = _recreated(topic, until, topic_ids)
            if not self._options.restart_recreated:
                raise error
            _log.warning("%s The batch goes without the records of the old one.", error)
        return {place: offset for place, offset in until.offsets.items() if place[0] not in gone}

    def _fresh(self, places: Set[Place]) -> ByPartition:
        """Where partitions that were not read before begin, of those that there still are."""
        return self.offsets.earliest(sorted(places & set(self.offsets.existing()))) if places else {}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task."""
        return _read(partition)

    def commit(self, end: Document) -> None:
        """Nothing to do: the checkpoint has the offsets."""

    def stop(self) -> None:
        """Let the connections go."""
        if self._offsets is not None:
            self._offsets.close()
            self._offsets = None


def _recreated(topic: str, read: StreamOffset, topic_ids: Mapping[str, str]) -> TopicRecreated:
    return TopicRecreated(
        topic, read.topic_ids[topic], topic_ids[topic],
        "What the query had not read of the old one is gone. To go on with the new one, from its beginning, set the "
        "source option 'onRecreatedTopic' to 'restart'.",
    )  # fmt: skip


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
