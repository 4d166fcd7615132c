"""Load topics into a table, and compact many small files into few large ones: the Spark jobs.

Strategy: each commit is one batch query, from the table's position to the present end of the topics (at most
`max_offsets`). Tasks write its rows to files that nothing refers to yet; then the driver commits the files with their
offsets (`pylogd.lake.tables.interface`). `follow` repeats that.

Rules: a load that fails adds nothing, and the next one starts at the same offsets. New partitions are read from their
beginning. The offsets of a topic that was created again are not compared with those of the old topic.
Must not know: formats of tables.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pylogd.base.clock import wall_ms
from pylogd.lake.spark import files, tasks
from pylogd.lake.spark.errors import OptionError, TopicRecreated
from pylogd.lake.spark.offsets import OffsetLookup
from pylogd.lake.spark.options import COMMITTED, SourceOptions, offsets_json
from pylogd.lake.spark.ranges import limit_records
from pylogd.lake.spark.source import PylogdDataSource, PylogdReader
from pylogd.lake.tables.errors import CommitConflict
from pylogd.lake.tables.interface import (
    DIRECTORIES,
    VALUE_KINDS,
    Committed,
    DataFile,
    Layout,
    SparkStaging,
    Table,
    TaskStaging,
)
from pylogd.lake.tables.parquet.staging import new_writer
from pylogd.lake.tables.position import LoadRange, Position, recreated
from pylogd.lake.tables.records import RecordRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pylogd.lake.typed.rows import SchemaSource, TypedRows

_log = logging.getLogger(__name__)

_CONFLICTS: Final = 5  # the most conflicts in a row with loads of other processes


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The source, the target and the options of a load.

    subscription: one of the source's options `subscribe`, `subscribePattern`, `assign`, with its value.
    max_offsets: the largest number of offsets of one commit; None for all.
    value: the type of the column `value`: "binary" or "string".
    tasks: the smallest number of tasks that read; None for one for each partition.
    by: "hour", "day" or "topic": each has its own directory.
    gather: whether each commit has one file in each directory, at the price of a shuffle, instead of one for each task.
    restart_recreated: whether a topic that was deleted and created again is loaded from its beginning; else the load
    fails.
    client: options of the source that begin with `kafka.`. Without `kafka.isolation.level`, committed records are read.
    schemas: the source of a typed table's columns; None for a table of records.
    """

    bootstrap: str
    subscription: tuple[str, str]
    max_offsets: int | None = None
    value: str = "binary"
    codec: str = "zstd"
    fail_on_data_loss: bool = True
    headers: bool = True
    tasks: int | None = None
    by: str = "hour"
    gather: bool = False
    restart_recreated: bool = False
    client: Mapping[str, str] = field(default_factory=dict)
    schemas: SchemaSource | None = None

    @property
    def layout(self) -> Layout:
        """The layout of the table."""
        return Layout(self.by, self.value if self.schemas is None else "columns")

    @property
    def topic(self) -> str:
        """The topic of a typed table. Raises OptionError if there are several topics."""
        kind, topics = self.subscription
        if kind != "subscribe" or "," in topics:
            raise OptionError("a typed table has one topic: load each topic into a table of its own")
        return topics

    def options(self) -> dict[str, str]:
        """Return the options of the source, without offsets. Raises OptionError."""
        if self.value not in VALUE_KINDS:
            raise OptionError(f"values can be loaded as {' or '.join(VALUE_KINDS)}, not as {self.value!r}")
        if self.by not in DIRECTORIES:
            raise OptionError(f"directories are made by {' or '.join(DIRECTORIES)}, not by {self.by!r}")
        kind, topics = ("subscribe", self.topic) if self.schemas else self.subscription
        given = {
            "kafka.bootstrap.servers": self.bootstrap,
            kind: topics,
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            "includeHeaders": str(self.headers).lower(),
            **COMMITTED,
            **self.client,
        }
        return given if self.tasks is None else {**given, "minPartitions": str(self.tasks)}


def load(
    spark: SparkSession | None, table: Table, plan: LoadPlan, *, now_ms: Callable[[], int] = wall_ms
) -> Committed | None:
    """Load the records after the table's position, up to the plan's limit.

    spark: None to read and write in this process, one task after the other.

    Returns the commit, or None if there was nothing to load. Raises PylogdError.
    """
    plan.options()  # refuse wrong options before anything is made
    if table.layout is not None:
        plan.layout.check(table.location, table.layout)
    before = table.position
    loading = _what_is_new(before, plan)
    if loading.start == loading.end and not recreated(before.topic_ids, loading.topic_ids):
        return None
    options = {
        **plan.options(),
        "startingOffsets": offsets_json(loading.start),
        "endingOffsets": offsets_json(loading.end),
        "topicIds": json.dumps(dict(loading.topic_ids)),
        "invalidTimestamps": "null",
        "includeTimestampMs": "true",
        "invalidUtf8": "replace" if plan.layout.value == "string" else "keep",
    }
    rows: TypedRows | None = None
    if plan.schemas is None:
        table.create(plan.layout)
    else:  # only after the ends were read: see `typed.rows`
        from pylogd.lake.typed.rows import prepare  # noqa: PLC0415 - an extra

        rows, schema_id = prepare(table, plan.topic, plan.schemas, plan.layout)
        loading = replace(loading, schema_ids={plan.topic: schema_id})
    records = None if spark is None else _records(spark, options)
    staging = table.staging(before, loading)
    try:
        if records is None:
            added, quarantined = _write_here(options, staging, rows, plan)
        else:
            added, quarantined = _write(records, staging, rows, plan)
    except Exception:
        table.refresh()
        table.position.check(before, loading)  # another loader was faster, and has deleted the staged files
        raise
    return table.commit(before, loading, added, quarantined, at_ms=now_ms())


def _records(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    find_source(spark)
    return spark.read.format("pylogd").options(**options).load()


def _write(
    records: DataFrame, staging: TaskStaging | SparkStaging, rows: TypedRows | None, plan: LoadPlan
) -> tuple[Sequence[DataFile], Sequence[DataFile]]:
    """Write the files of the table and of its quarantine.

    rows: makes the rows of a typed table; None for a table of records.
    """
    layout, gather = plan.layout, plan.gather
    if not isinstance(staging, SparkStaging):
        return tasks.write(records, staging, rows or RecordRows(layout), layout, gather=gather)
    if rows is None:
        return files.write(records, staging, layout, codec=plan.codec, gather=gather)
    return files.write_typed(records, staging, rows, layout, codec=plan.codec, gather=gather)


def _write_here(
    options: Mapping[str, str], staging: TaskStaging | SparkStaging, rows: TypedRows | None, plan: LoadPlan
) -> tuple[Sequence[DataFile], Sequence[DataFile]]:
    """Read and write the records of a range in this process, one task after the other, without Spark.

    The same code runs as in Spark's tasks. Only the files of a Parquet lake, which Spark's own writer would write, are
    written by `tables.parquet.staging`. Result and `rows` are those of `_write`.
    options: the options of the source.

    Raises PylogdError and OSError; then files may be left, to which nothing refers.
    """
    codec = "none" if plan.codec == "uncompressed" else plan.codec
    made = new_writer(staging, plan.layout, None if rows is None else rows.schema, codec=codec)
    reader = PylogdReader(SourceOptions.for_batch(dict(options)))
    batches = (batch for task in reader.partitions() for batch in reader.read(task))
    return tasks.write_rows(batches, rows or RecordRows(plan.layout), made)


def find_source(spark: SparkSession) -> None:
    """Register the source with the session unless it is registered.

    Spark discovers sources once, in a Python process. If that process dies, or pylogd was passed by `--py-files`
    instead of installed, the source is missing. Some versions of Spark refuse to register a source that was discovered.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - needs a session

    try:
        spark.dataSource.register(PylogdDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def follow(
    spark: SparkSession | None,
    table: Table,
    plan: LoadPlan,
    *,
    seconds: float,
    on_commit: Callable[[Committed], None],
    wait: Callable[[float], bool],
) -> None:
    """Load every `seconds`, or at once after a commit that reached `max_offsets`, until `wait` returns true.

    spark: see `load`.
    on_commit: called with each commit.
    wait: sleeps for a number of seconds and returns whether to stop.

    A load that conflicts with a commit of another process is planned again. After several conflicts in a row
    CommitConflict is raised.
    """
    conflicts = 0
    while True:
        begun = time.monotonic()
        try:
            commit = load(spark, table, plan)
        except CommitConflict as error:
            conflicts += 1
            if conflicts == _CONFLICTS:
                raise
            _log.warning("Planning the load again: %s", error)
            table.refresh()
            continue
        conflicts = 0
        if commit is not None:
            on_commit(commit)
        if wait(0.0 if _is_full(commit, plan) else max(seconds - (time.monotonic() - begun), 0.0)):
            return
        table.refresh()


def _is_full(commit: Committed | None, plan: LoadPlan) -> bool:
    """Return whether a commit has the largest allowed number of offsets, so that there are probably more."""
    if commit is None or plan.max_offsets is None:
        return False
    return 2 * sum(commit.read.read.values()) >= plan.max_offsets  # each partition's share of the offsets is rounded


def compact(
    spark: SparkSession | None, table: Table, *, target_bytes: int = 128 << 20, codec: str = "zstd",
    now_ms: Callable[[], int] = wall_ms,
) -> Committed | None:  # fmt: skip
    """Replace small files by large ones, sorted by partition and offset.

    spark: None for formats that compact by themselves.

    Returns the commit, or None if there was nothing to compact. Raises PylogdError.
    """

    lock = Lock()

    def rewrite(staging: TaskStaging | SparkStaging, small: Sequence[DataFile]) -> list[DataFile]:
        assert spark is not None and isinstance(staging, SparkStaging), "other formats compact by themselves"
        columns = _columns_of_files(table, lock)
        return files.merge(spark, staging, small, target_bytes=target_bytes, codec=codec, columns=columns)

    with nullcontext() if spark is None else files.settings(spark):  # once for all threads, which share the session
        return table.compact(target_bytes, rewrite, at_ms=now_ms())


def _columns_of_files(table: Table, lock: Lock) -> pa.Schema | None:
    """Return the columns that the files of a typed table may have now; None for a table of records.

    Files that other processes add meanwhile may be merged too, and may have new columns.
    """
    if table.columns is None:
        return None
    with lock:
        table.refresh()
        assert table.layout is not None
        return pa.schema([each for each in table.columns if each.name not in DIRECTORIES[table.layout.by]])


def _what_is_new(before: Position, plan: LoadPlan) -> LoadRange:
    """Return the offsets to load. Raises TopicRecreated, DataLoss or PlanError."""
    with OffsetLookup(SourceOptions.for_batch(plan.options())) as offsets:
        partitions = offsets.partitions()
        topic_ids = offsets.topic_ids(partitions)
        replaced = recreated(before.topic_ids, topic_ids)
        for topic in replaced if not plan.restart_recreated else ():
            raise TopicRecreated(
                topic, before.topic_ids[topic], topic_ids[topic],
                "Records of the old topic that were not loaded are lost. To load the new topic from its beginning, "
                "beside the rows of the old one, use --on-recreated restart; to keep them apart, load into another "
                "table.",
            )  # fmt: skip
        known = {partition: offset for partition, offset in before.offsets.items() if partition[0] not in replaced}
        fresh = offsets.earliest([partition for partition in partitions if partition not in known])
        start = {partition: known.get(partition, fresh.get(partition, 0)) for partition in partitions}
        latest, epochs = offsets.ends(partitions, known)  # a table of uncommitted records may be ahead
        for partition, at in offsets.truncations(known, before.leader_epochs).items():
            offsets.lost(
                f"the log of {partition[0]}-{partition[1]} was truncated to {at}, but the table has it up to "
                f"{known[partition]}"
            )
        for partition in partitions:
            if latest[partition] < start[partition]:
                offsets.lost(
                    f"{partition[0]}-{partition[1]} ends with {latest[partition]}, but the table has it up to "
                    f"{start[partition]}"
                )
                latest[partition] = start[partition]
    end = latest if plan.max_offsets is None else limit_records(start, latest, plan.max_offsets)
    return LoadRange(start, end, topic_ids, epochs)
