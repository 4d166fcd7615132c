"""Load topics into a lake, and compact many small files into few large ones: the Spark jobs.

Strategy: each commit is one batch query, from the end of the lake's last commit to the present end of the topics (at
most `max_offsets`). Spark's Parquet writer writes its rows to staging, partitioned by topic and by date and hour of the
time stamps in UTC; then they are committed with their offsets (`lake`). `follow` repeats that.

Three things cost more than the compression, and are avoided: date functions (dates are computed by integer arithmetic),
sorting the rows first (a task keeps a few files open instead), and Parquet's dictionaries for columns in which each
value occurs once: offsets and time stamps. Time stamps are written as 64-bit microseconds, not as Spark's INT96.

Records whose time stamps Spark can't represent have no date. The same query writes them to a separate directory in
staging; only if there are any, a second job writes the quarantine's files from them. As both directories have the
lake's schema, their time stamps, as numbers, and their values, as hexadecimal digits, are both written to `value`.

Rules: a load that fails adds nothing, and the next one starts at the same offsets. New partitions are read from their
beginning. The offsets of a topic that was created again are not compared with those of the old topic.
Must not know: file systems beyond `hadoop`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pylogd.clock import wall_ms
from pylogd.spark.errors import OptionError, TopicRecreated
from pylogd.spark.hadoop import HadoopFiles
from pylogd.spark.lake import Commit, DataFile, Lake, LoadRange, compaction_commit, load_commit, small_files
from pylogd.spark.offsets import OffsetLookup
from pylogd.spark.options import SourceOptions, offsets_json
from pylogd.spark.ranges import limit_records, recreated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUE_KINDS: Final = ("binary", "string")
DIRECTORIES: Final = {"hour": ("topic", "date", "hour"), "day": ("topic", "date"), "topic": ("topic",)}
_SETTINGS: Final = {
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
#: Directories in staging: files for the lake, records without a valid date, and files for the quarantine.
_LAKE: Final = "side=lake"
_ASIDE: Final = "side=aside"
_QUARANTINED: Final = "quarantined"
_REASON: Final = "the time stamp lies outside of the years 1 to 9999"
_PARQUET: Final = {"parquet.enable.dictionary#offset": "false", "parquet.enable.dictionary#timestamp": "false"}


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What to load, and how.

    subscription: one of the source's options `subscribe`, `subscribePattern`, `assign`, with its value.
    max_offsets: the largest number of offsets of one commit; None for all.
    value: the type of the column `value`, "binary" or "string".
    tasks: the smallest number of tasks that read; None for one for each partition.
    by: whether there is a directory for each "hour", each "day", or each "topic".
    gather: whether each commit has one file in each directory, at the price of a shuffle, instead of one for each task.
    restart_recreated: whether a topic that was deleted and created again is loaded from its beginning; else that fails.
    client: options of the source that begin with `kafka.`.
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

    def options(self) -> dict[str, str]:
        """Return the options of the source, without offsets. Raises OptionError."""
        if self.value not in VALUE_KINDS:
            raise OptionError(f"values can be loaded as {' or '.join(VALUE_KINDS)}, not as {self.value!r}")
        if self.by not in DIRECTORIES:
            raise OptionError(f"directories are made by {' or '.join(DIRECTORIES)}, not by {self.by!r}")
        given = {
            "kafka.bootstrap.servers": self.bootstrap,
            self.subscription[0]: self.subscription[1],
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            "includeHeaders": str(self.headers).lower(),
            **self.client,
        }
        return given if self.tasks is None else {**given, "minPartitions": str(self.tasks)}


def load(spark: SparkSession, root: str, plan: LoadPlan, *, now_ms: Callable[[], int] = wall_ms) -> Commit | None:
    """Load the records after the last commit, up to the plan's limit.

    Returns the commit, or None if there was nothing to load. Raises PylogdError.
    """
    files = HadoopFiles(spark, root)
    lake = Lake(files)
    loading = _what_is_new(lake, plan)
    if loading.start == loading.end and not recreated(lake.topic_ids, loading.topic_ids):
        return None
    options = {
        **plan.options(),
        "startingOffsets": offsets_json(loading.start),
        "endingOffsets": offsets_json(loading.end),
        "topicIds": json.dumps(dict(loading.topic_ids)),
        "invalidTimestamps": "null",
        "includeTimestampMs": "true",
    }
    find_source(spark)
    rows = spark.read.format("pylogd").options(**options).load()
    staging = lake.staging()
    _write(_with_time(rows, plan.value), files.path(staging), plan)
    added = _staged(lake, files, _LAKE)
    aside = _staged(lake, files, _ASIDE)
    quarantined = _quarantine(spark, lake, files, aside, plan.codec) if aside else ()
    commit = load_commit(lake.last, lake.next_number, now_ms(), loading, added, quarantined)
    lake.commit(commit)
    return commit


def find_source(spark: SparkSession) -> None:
    """Register the source with the session unless it is registered.

    Spark discovers sources once, in a Python process. If that process dies, or pylogd was passed by `--py-files`
    instead of installed, the source is missing. Some versions of Spark refuse to register a source that was discovered.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - needs a session

    from pylogd.spark.source import PylogdDataSource  # noqa: PLC0415

    try:
        spark.dataSource.register(PylogdDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def follow(
    spark: SparkSession,
    root: str,
    plan: LoadPlan,
    *,
    seconds: float,
    on_commit: Callable[[Commit], None],
    wait: Callable[[float], bool],
) -> None:
    """Load every `seconds`, or at once after a commit that reached `max_offsets`, until `wait` returns true.

    on_commit: called with each commit. wait: sleeps for a number of seconds and returns whether to stop.
    """
    while True:
        begun = time.monotonic()
        commit = load(spark, root, plan)
        if commit is not None:
            on_commit(commit)
        if wait(max(seconds - (time.monotonic() - begun), 0.0) if commit is None or not plan.max_offsets else 0.0):
            return


def compact(
    spark: SparkSession, root: str, *, target_bytes: int = 128 << 20, codec: str = "zstd",
    now_ms: Callable[[], int] = wall_ms,
) -> Commit | None:  # fmt: skip
    """Replace small files of each directory by large ones, sorted by partition and offset.

    Returns the commit, or None if there was nothing to compact. Raises PylogdError.
    """
    files = HadoopFiles(spark, root)
    lake = Lake(files)
    small = small_files(lake.files(), target_bytes)
    if not small or lake.last is None:
        return None
    staging = lake.staging()
    for directory, group in sorted(small.items()):
        pieces = max(sum(file.bytes for file in group) // target_bytes, 1)
        rows = spark.read.parquet(*(files.path(file.path) for file in group))
        rows = rows.repartitionByRange(pieces, "partition", "offset").sortWithinPartitions("partition", "offset")
        with _set(spark, _SETTINGS):
            rows.write.options(compression=codec, **_PARQUET).parquet(files.path(f"{staging}/{directory}"))
    added = _staged(lake, files)
    removed = [file.path for group in small.values() for file in group]
    before = sum(file.rows for group in small.values() for file in group)
    if sum(file.rows for file in added) != before:
        raise RuntimeError(f"compacting {before} rows wrote {sum(file.rows for file in added)}: nothing was committed")
    commit = compaction_commit(lake.last, now_ms(), added, removed)
    lake.commit(commit)
    return commit


def _what_is_new(lake: Lake, plan: LoadPlan) -> LoadRange:
    """Return the offsets to load. Raises TopicRecreated, DataLoss or PlanError."""
    with OffsetLookup(SourceOptions.for_batch(plan.options())) as offsets:
        partitions = offsets.partitions()
        topic_ids = offsets.topic_ids(partitions)
        replaced = recreated(lake.topic_ids, topic_ids)
        for topic in replaced if not plan.restart_recreated else ():
            raise TopicRecreated(
                topic, lake.topic_ids[topic], topic_ids[topic],
                "Records of the old topic that were not loaded are lost. To load the new topic from its beginning, "
                "beside the rows of the old one, use --on-recreated restart; to keep them apart, load into another "
                "lake.",
            )  # fmt: skip
        known = {partition: offset for partition, offset in lake.offsets.items() if partition[0] not in replaced}
        fresh = offsets.earliest([partition for partition in partitions if partition not in known])
        start = {partition: known.get(partition, fresh.get(partition, 0)) for partition in partitions}
        latest, epochs = offsets.ends(partitions)
        for partition, at in offsets.truncations(known, lake.leader_epochs).items():
            offsets.lost(
                f"the log of {partition[0]}-{partition[1]} was truncated to {at}, but the lake has it up to "
                f"{known[partition]}"
            )
        for partition in partitions:
            if latest[partition] < start[partition]:
                offsets.lost(
                    f"{partition[0]}-{partition[1]} ends with {latest[partition]}, but the lake has it up to "
                    f"{start[partition]}"
                )
                latest[partition] = start[partition]
    end = latest if plan.max_offsets is None else limit_records(start, latest, plan.max_offsets)
    return LoadRange(start, end, topic_ids, epochs)


def _with_time(rows: DataFrame, value: str) -> DataFrame:
    """Add the columns of the directories. Of rows without a time stamp, `value` holds what `_quarantine` needs."""
    from pyspark.sql.functions import expr  # noqa: PLC0415 - needs a session

    seconds = "unix_seconds(timestamp)"
    packed = "concat_ws(':', timestampMs, hex(value))"  # without the colon if the value is null
    return rows.withColumns(
        {
            "side": expr("if(timestamp is null, 'aside', 'lake')"),
            "date": expr(f"date_from_unix_date(cast(({seconds} - pmod({seconds}, 86400)) div 86400 as int))"),
            "hour": expr(f"lpad(cast(pmod({seconds}, 86400) div 3600 as string), 2, '0')"),
            "value": expr(f"if(timestamp is null, cast({packed} as {value}), cast(value as {value}))"),
        }
    ).drop("timestampMs")


def _quarantine(
    spark: SparkSession, lake: Lake, files: HadoopFiles, aside: Sequence[DataFile], codec: str
) -> Sequence[DataFile]:
    """Write the quarantine's files from the rows without a date: the whole record and the reason. Returns the files."""
    from pyspark.sql.functions import expr, lit  # noqa: PLC0415 - needs a session

    staging = lake.staging()
    with _set(spark, {"spark.sql.sources.partitionColumnTypeInference.enabled": "false"}):  # topics are not numbers
        rows = spark.read.option("basePath", files.path(f"{staging}/{_ASIDE}")).parquet(
            *(files.path(file.staged) for file in aside)
        )
    kept = rows.withColumns({"value": expr("cast(value as string)"), "reason": lit(_REASON)}).withColumns(
        {
            "timestampMs": expr("cast(substring_index(value, ':', 1) as bigint)"),
            "value": expr("if(instr(value, ':') = 0, null, unhex(substring_index(value, ':', -1)))"),
        }
    )
    kept = kept.drop("timestamp", "date", "hour").repartition("topic")
    kept.write.partitionBy("topic").options(compression=codec).parquet(files.path(f"{staging}/{_QUARANTINED}"))
    found = _staged(lake, files, _QUARANTINED)
    before, after = sum(file.rows for file in aside), sum(file.rows for file in found)
    if before != after:
        raise RuntimeError(f"quarantining {before} rows wrote {after}: nothing was committed")
    return found


def _write(rows: DataFrame, path: str, plan: LoadPlan) -> None:
    directories = DIRECTORIES[plan.by]
    rows = rows.drop(*({"date", "hour"} - set(directories)))
    if plan.gather:
        rows = rows.repartition(*directories).sortWithinPartitions(*directories, "partition", "offset")
    with _set(rows.sparkSession, _SETTINGS):
        rows.write.partitionBy("side", *directories).options(compression=plan.codec, **_PARQUET).parquet(path)


@contextmanager
def _set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set settings of the session within a `with` block, except those that the user has set."""
    ours = {name: value for name, value in settings.items() if spark.conf.get(name, None) is None}
    for name, value in ours.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in ours:
            spark.conf.unset(name)


def _staged(lake: Lake, files: HadoopFiles, below: str = "") -> list[DataFile]:
    """Return the files below a directory of staging, with their numbers of rows from Parquet's footers."""
    directory = f"{lake.staging()}/{below}" if below else lake.staging()
    return [
        DataFile(lake.target_path(path, below, quarantine=below == _QUARANTINED), path, size, files.parquet_rows(path))
        for path, size in files.data_files(directory)
    ]
