"""The data source `pylogd` for Spark: batch and streaming queries; `sink` has the classes that write.

Strategy: Spark creates these objects in its own Python processes on the driver, and pickles those that read and write
to the executors' workers. They combine the other modules: options, look-ups of offsets, ranges, tasks.

The offsets of a streaming query include its start, the topic ids and the leader epochs (`stream_offsets`).
Unlike Spark's Kafka source this one supports only the save mode append.
Source: PySpark, Python Data Source API; Structured Streaming + Kafka Integration Guide.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pylogd.lake.spark import reading, sink, worker
from pylogd.lake.spark.errors import PlanError, TopicRecreated, WriteError
from pylogd.lake.spark.filters import Filters
from pylogd.lake.spark.offsets import OffsetLookup, PartitionId
from pylogd.lake.spark.options import SourceOptions
from pylogd.lake.spark.ranges import OffsetRange, grouped, limit_records, ranges_between, split
from pylogd.lake.spark.stream_offsets import Document, StreamOffset
from pylogd.lake.tables.position import ByPartition

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
_HEADERS = ", headers array<struct<key: string, value: binary>>"
_NUMBER = ", timestampMs bigint"


class PylogdDataSource(DataSource):
    """The source of `format("pylogd")`. Its options are the same as for `format("kafka")`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "pylogd"

    def schema(self) -> str:
        """Return the columns, which are the same as in Spark's Kafka source."""
        return (
            SCHEMA
            + (_HEADERS if self._asks_for("includeHeaders") else "")
            + (_NUMBER if self._asks_for("includeTimestampMs") else "")
        )

    def _asks_for(self, option: str) -> bool:
        return str(self.options.get(option, "")).strip().lower() == "true"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        return PylogdReader(SourceOptions.for_batch(dict(self.options)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query."""
        return PylogdStreamReader(SourceOptions.for_stream(dict(self.options)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch query."""
        if overwrite:
            raise WriteError("Save mode overwrite not allowed for Kafka. Use append.")
        return sink.batch_writer(schema, self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of a streaming query."""
        return sink.stream_writer(schema, self.options)


class Task(InputPartition):
    """The ranges of offsets that one task reads, mostly one."""

    def __init__(self, ranges: Sequence[reading.ReadTask]) -> None:
        super().__init__(tuple(ranges))


def _tasks(options: SourceOptions, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str]) -> list[Task]:
    pieces = split(ranges, least_tasks=options.min_partitions, most_records=options.max_records_per_partition)

    def read_task(piece: OffsetRange) -> reading.ReadTask:
        return reading.ReadTask(
            options.bootstrap, dict(options.client), piece, options.include_headers, options.fail_on_data_loss,
            options.poll_timeout_ms, topic_ids.get(piece.topic), options.null_timestamps,
            options.include_timestamp_ms, options.valid_utf8,
        )  # fmt: skip

    return [Task([read_task(piece) for piece in group]) for group in grouped(pieces, options.min_records_per_task)]


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, Task):  # if there are no tasks, Spark passes its own partition
        for task in cast("tuple[reading.ReadTask, ...]", partition.value):
            yield from reading.read(task)
        worker.spare_collector()


class _Pushdown:
    """The method `pushFilters` of a reader, as an attribute of the instance.

    Spark refuses a class that overrides `pushFilters` while `spark.sql.python.filterPushdown.enabled` is off; it checks
    `__func__`. With the setting off Spark does not call it and applies all filters itself, which is only slower.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, filters: Filters) -> None:
        self._filters = filters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return [each for each in filters if not self._filters.take(each)]


class PylogdReader(DataSourceReader):
    """A batch query: reads the records between its start and end offsets that filters do not exclude."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._filters = Filters()
        self.pushFilters = _Pushdown(self._filters)  # type: ignore[method-assign]  # see there

    def partitions(self) -> list[InputPartition]:
        """Return the tasks. Raises PlanError or DataLoss."""
        with OffsetLookup(self._options) as offsets:
            partitions = offsets.partitions()
            topic_ids = offsets.topic_ids(partitions)
            for topic, wanted in self._options.topic_ids.items():
                if topic_ids.get(topic, wanted) != wanted:
                    offsets.lost(f"topic {topic!r} was deleted and created again")
            start, end = offsets.start(partitions), offsets.end(partitions)
            for partition in partitions:
                if start[partition] > end[partition]:
                    raise PlanError(
                        f"The start offset {start[partition]} of {partition[0]}-{partition[1]} is greater than its end "
                        f"offset {end[partition]}."
                    )
            ranges = self._narrowed(offsets, ranges_between(start, end))
            return list(_tasks(self._options, ranges, {**topic_ids, **self._options.topic_ids}))

    def _narrowed(self, offsets: OffsetLookup, ranges: list[OffsetRange]) -> list[OffsetRange]:
        filters = self._filters
        ranges = [each for each in ranges if filters.keeps(each.topic, each.partition)]
        since: dict[PartitionId, int | None] = {}
        if filters.since_ms is not None and ranges:
            since = offsets.first_since({(each.topic, each.partition): filters.since_ms for each in ranges})
        narrowed = []
        for each in ranges:
            # All records before the first one with a late enough time stamp have earlier time stamps.
            late_enough = since.get((each.topic, each.partition), 0)
            first = each.end if late_enough is None else max(each.start, filters.first, late_enough)
            end = each.end if filters.end is None else min(each.end, filters.end)
            if first < end:
                narrowed.append(replace(each, start=first, end=end))
        return narrowed

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a task."""
        return _read(partition)


class PylogdStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query. Its offsets have the format of `stream_offsets`."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._offsets: OffsetLookup | None = None
        self._initial: StreamOffset | None = None
        self._target: StreamOffset | None = None
        self._latest: ByPartition = {}
        self._last_trigger = -math.inf  # the first batch does not wait

    @property
    def offsets(self) -> OffsetLookup:
        """The connection to the brokers. It is opened at first use, because executors also get this object but need no
        connection.
        """
        if self._offsets is None:
            self._offsets = OffsetLookup(self._options)
        return self._offsets

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_options"])  # type: ignore[misc]

    def initialOffset(self) -> Document:
        """Return where a query without a checkpoint starts.

        The answer is cached, because Spark asks again until a batch is committed.
        """
        if self._initial is None:
            partitions = self.offsets.partitions()
            start = self.offsets.start(partitions)
            self._initial = StreamOffset(start, self.offsets.topic_ids(partitions), start=start)
        return self._initial.document()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return `maxOffsetsPerTrigger` if set, else `minOffsetsPerTrigger`.

        If both are set `latestOffset` applies the minimum itself.
        """
        most, least = self._options.max_offsets_per_trigger, self._options.min_offsets_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end offsets of the query: records that arrive later are not read."""
        self._target = self._ends(StreamOffset({}))

    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:
        """Return the end of the next micro-batch, or `start` if there are no new records: Spark then makes no batch."""
        read = StreamOffset.read(start)
        latest = self._known_latest(read)
        self._latest = end = latest.offsets
        begun = self._still_there(read, latest.topic_ids)
        begun = {**self.offsets.earliest([partition for partition in end if partition not in begun]), **begun}
        if not isinstance(limit, ReadAllAvailable):
            if self._should_wait(begun, end):
                return start
            self._last_trigger = time.monotonic()
            if isinstance(limit, ReadMaxRows):
                end = limit_records(begun, end, limit.max_rows)
        if end == read.offsets and not read.recreated(latest.topic_ids):
            return start
        return replace(latest, offsets=end, start=read.offsets if read.is_initial else None).document()

    def _ends(self, read: StreamOffset) -> StreamOffset:
        partitions = self.offsets.existing()
        topic_ids = self.offsets.topic_ids(partitions)
        ends, epochs = self.offsets.ends(partitions, self._still_there(read, topic_ids))
        return StreamOffset(ends, topic_ids, epochs)

    def _still_there(self, read: StreamOffset, topic_ids: Mapping[str, str]) -> ByPartition:
        """Return the offsets read so far, without topics that were created again.

        Raises TopicRecreated unless `onRecreatedTopic` is `restart`.
        """
        recreated = read.recreated(topic_ids)
        if recreated and not self._options.restart_recreated:
            raise _recreated(recreated[0], read, topic_ids)
        return {partition: offset for partition, offset in read.offsets.items() if partition[0] not in recreated}

    def _known_latest(self, read: StreamOffset) -> StreamOffset:
        target = self._target
        latest = self._ends(read) if target is None else target
        begun = self._still_there(read, latest.topic_ids)
        ends, epochs = dict(latest.offsets), dict(latest.leader_epochs)
        for partition in begun.keys() - ends.keys():
            self.offsets.lost(f"partition {partition[0]}-{partition[1]} no longer exists")
        for partition, at in self.offsets.truncations(begun, read.leader_epochs).items():
            self.offsets.lost(
                f"the log of {partition[0]}-{partition[1]} was truncated to {at}, but was read to {begun[partition]}"
            )
        for partition in begun.keys() & ends.keys():
            if ends[partition] >= begun[partition]:
                continue
            if target is not None:  # an earlier query has read beyond the target
                ends[partition] = begun[partition]
                epochs[partition] = read.leader_epochs.get(partition, epochs.get(partition, -1))
            else:
                self.offsets.lost(
                    f"{partition[0]}-{partition[1]} ends with {ends[partition]}, but was read to {begun[partition]}"
                )
        return replace(latest, offsets=ends, leader_epochs=epochs)

    def _should_wait(self, begun: ByPartition, latest: ByPartition) -> bool:
        """Return whether there are fewer than `minOffsetsPerTrigger` offsets, and `maxTriggerDelay` is not over."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        if (time.monotonic() - self._last_trigger) * 1000 >= self._options.max_trigger_delay_ms:
            return False
        return sum(latest[partition] - begun[partition] for partition in latest) < least

    def reportLatestOffset(self) -> Document | None:
        """Return the end offsets of the partitions, for the query's progress report."""
        return StreamOffset(self._latest).document() if self._latest else None

    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        """Return the tasks of a micro-batch. New partitions are read from their beginning.

        The end offset of the first batch has the batch's start. This start is used instead of `start`, which may be
        later if Spark had to ask again.
        """
        read, until = StreamOffset.read(start), StreamOffset.read(end)
        if until.start is not None:
            read = StreamOffset(until.start, until.topic_ids)
        replaced = read.recreated(
            until.topic_ids
        )  # the topic was created again between two batches: this one begins with the new topic
        begun = {partition: offset for partition, offset in read.offsets.items() if partition[0] not in replaced}
        ended = self._still_to_read(begun, until)
        fresh = self._fresh(ended.keys() - begun.keys())
        for partition in ended.keys() - begun.keys() - fresh.keys():
            self.offsets.lost(f"partition {partition[0]}-{partition[1]} no longer exists")
            del ended[partition]
        for partition, offset in fresh.items():
            if offset:
                self.offsets.lost(
                    f"the new partition {partition[0]}-{partition[1]} begins with offset {offset}, not with 0"
                )
        for partition in begun.keys() - until.offsets.keys():
            self.offsets.lost(f"partition {partition[0]}-{partition[1]} no longer exists")
        for partition in begun.keys() & ended.keys():
            if begun[partition] > ended[partition]:
                self.offsets.lost(
                    f"{partition[0]}-{partition[1]}: the batch ends with {ended[partition]}, before {begun[partition]}"
                )
        return list(_tasks(self._options, ranges_between({**begun, **fresh}, ended), until.topic_ids))

    def _still_to_read(self, begun: ByPartition, until: StreamOffset) -> ByPartition:
        """Return the end offsets of a batch, without topics that were created again after it was planned.

        Raises TopicRecreated unless `onRecreatedTopic` is `restart`.
        """
        if begun == until.offsets:
            return dict(until.offsets)
        topic_ids = self.offsets.topic_ids(self.offsets.existing())
        gone = {
            topic
            for topic in until.recreated(topic_ids)
            if any(begun.get(partition) != end for partition, end in until.offsets.items() if partition[0] == topic)
        }
        for topic in sorted(gone):
            error = _recreated(topic, until, topic_ids)
            if not self._options.restart_recreated:
                raise error
            _log.warning("%s This batch continues without the records of the old topic.", error)
        return {partition: offset for partition, offset in until.offsets.items() if partition[0] not in gone}

    def _fresh(self, partitions: Set[PartitionId]) -> ByPartition:
        """Return the first offset of those partitions that were not read before and still exist."""
        return self.offsets.earliest(sorted(partitions & set(self.offsets.existing()))) if partitions else {}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a task."""
        return _read(partition)

    def commit(self, end: Document) -> None:
        """Do nothing: Spark's checkpoint has the offsets."""

    def stop(self) -> None:
        """Close the connections."""
        if self._offsets is not None:
            self._offsets.close()
            self._offsets = None


def _recreated(topic: str, read: StreamOffset, topic_ids: Mapping[str, str]) -> TopicRecreated:
    return TopicRecreated(
        topic, read.topic_ids[topic], topic_ids[topic],
        "Records of the old topic that the query had not read are lost. To continue with the new topic from its "
        "beginning, set the source option 'onRecreatedTopic' to 'restart'.",
    )  # fmt: skip
