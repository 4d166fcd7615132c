"""Loading topics into a lake, and making few large files of many small ones: the Spark jobs.

Strategy: each commit is one batch query from where the lake's last commit ended to what is latest now (at most
`max_offsets`), written below staging by Spark's own writer, partitioned by topic, and date and hour of the records'
time stamps in UTC; then committed with its offsets (`lake`). Streaming is the same again and again. Time stamps become
dates by integer arithmetic, and a task keeps a few files open at once, so that rows are written as they come instead
of sorted first: both cost more than the compression. So do Parquet's dictionaries where each value comes once: offsets,
and times, above all in INT96, which is Spark's default: times are written as microseconds in 64 bits.

Records whose time stamps Spark can't represent have no date. The same pass writes them to a directory of their own in
staging, and only where there are any a second job makes the quarantine's files of them. The pass has one schema, that
of the lake: what the quarantine needs beyond it, the time stamp as a number and the value as bytes, travels in `value`.

Rules: a load that fails adds nothing, and the next one starts where it started. Partitions that are new are read from
their beginning. A topic that was created again is another topic: its offsets are not compared with those of the old
one. Must not know: file systems beyond `hadoop`.
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
from pylogd.spark.lake import Commit, DataFile, Lake, Loading, compacted, loaded, small_files
from pylogd.spark.offsets import Offsets
from pylogd.spark.options import SourceOptions, offsets_json
from pylogd.spark.ranges import limited, recreated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUE_KINDS: Final = ("binary", "string")
DIRECTORIES: Final = {"hour": ("topic", "date", "hour"), "day": ("topic", "date"), "topic": ("topic",)}
_SETTINGS: Final = {
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
#: Directories in staging: what goes to the lake, what Spark set aside, and what the quarantine gets.
_LAKE: Final = "side=lake"
_ASIDE: Final = "side=aside"
_QUARANTINED: Final = "quarantined"
_REASON: Final = "the time stamp lies outside of the years 1 to 9999"
_PARQUET: Final = {"parquet.enable.dictionary#offset": "false", "parquet.enable.dictionary#timestamp": "false"}


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is to be loaded, and how.

    subscription: one of the source's options `subscribe`, `subscribePattern`, `assign` with its value. client: options
    that begin with `kafka.`. tasks: how many tasks read, at least. value: what the column of that name holds. by: a
    directory for each "hour", each "day", or only each "topic". gather: one file a directory and commit, at the
    price of a shuffle, instead of one for each task. restart_recreated: load a topic that was deleted and created again
    from its beginning, instead of failing.
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
        """Those of the source, without offsets."""
        if self.value not in VALUE_KINDS:
            raise OptionError(f"values are loaded as {' or '.join(VALUE_KINDS)}, not as {self.value!r}")
        if self.by not in DIRECTORIES:
            raise OptionError(f"there is a directory for each {' or '.join(DIRECTORIES)}, not {self.by!r}")
        given = {
            "kafka.bootstrap.servers": self.bootstrap,
            self.subscription[0]: self.subscription[1],
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            "includeHeaders": str(self.headers).lower(),
            **self.client,
        }
        return given if self.tasks is None else {**given, "minPartitions": str(self.tasks)}


def load(spark: SparkSession, root: str, plan: LoadPlan, *, now_ms: Callable[[], int] = wall_ms) -> Commit | None:
    """Load what is new, up to the plan's limit; the commit, None if there was nothing. Raises PylogdError."""
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
    commit = loaded(lake.last, lake.next_number, now_ms(), loading, added, quarantined)
    lake.commit(commit)
    return commit


def find_source(spark: SparkSession) -> None:
    """See to it that the session knows the source.

    Spark looks for it in a Python process, once. Where that process dies, or pylogd was sent along by `--py-files` and
    is not installed, the session would go without. A version that has found it may refuse to have it named again.
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
    told: Callable[[Commit], None],
    wait: Callable[[float], bool],
) -> None:
    """Load again and again, `seconds` after the last start, until `wait` says true. `told` hears of each commit."""
    while True:
        begun = time.monotonic()
        commit = load(spark, root, plan)
        if commit is not None:
            told(commit)
        if wait(max(seconds - (time.monotonic() - begun), 0.0) if commit is None or not plan.max_offsets else 0.0):
            return


def compact(
    spark: SparkSession, root: str, *, target_bytes: int = 128 << 20, codec: str = "zstd",
    now_ms: Callable[[], int] = wall_ms,
) -> Commit | None:  # fmt: skip
    """Write small files of a directory together, sorted by partition and offset; None if there was nothing to do."""
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
        raise RuntimeError(f"{before} rows were to be compacted, {sum(file.rows for file in added)} were written")
    commit = compacted(lake.last, now_ms(), added, removed)
    lake.commit(commit)
    return commit


def _what_is_new(lake: Lake, plan: LoadPlan) -> Loading:
    """What to load; raises `TopicRecreated`, `DataLoss`."""
    with Offsets(SourceOptions.for_batch(plan.options())) as offsets:
        places = offsets.partitions()
        topic_ids = offsets.topic_ids(places)
        replaced = recreated(lake.topic_ids, topic_ids)
        for topic in replaced if not plan.restart_recreated else ():
            raise TopicRecreated(
                topic, lake.topic_ids[topic], topic_ids[topic],
                "What was not loaded of the old one is gone. To load the new one from its beginning, beside the rows "
                "of the old one, use --on-recreated restart; to keep them apart, load into another lake.",
            )  # fmt: skip
        known = {place: offset for place, offset in lake.offsets.items() if place[0] not in replaced}
        fresh = offsets.earliest([place for place in places if place not in known])
        start = {place: known.get(place, fresh.get(place, 0)) for place in places}
        latest, epochs = offsets.ends(places)
        for place, at in offsets.truncations(known, lake.leader_epochs).items():
            offsets.lost(
                f"the log of {place[0]}-{place[1]} was cut back to {at}, and the lake has it up to {known[place]}"
            )
        for place in places:
            if latest[place] < start[place]:
                offsets.lost(
                    f"{place[0]}-{place[1]} ends with {latest[place]}, and the lake has it up to {start[place]}"
                )
                latest[place] = start[place]
    end = latest if plan.max_offsets is None else limited(start, latest, plan.max_offsets)
    return Loading(start, end, topic_ids, epochs)


def _with_time(rows: DataFrame, value: str) -> DataFrame:
    """Columns for the directories; where there is no time, `value` is what `_quarantine` needs instead."""
    from pyspark.sql.functions import expr  # noqa: PLC0415 - needs a session

    seconds = "unix_seconds(timestamp)"
    packed = "concat_ws(':', timestampMs, hex(value))"  # only the number where the value is null
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
    """Of the files that were written aside, those of the quarantine, with all of each record and the reason."""
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
        raise RuntimeError(f"{before} rows were to be quarantined, {after} were written")
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
    """Settings of the session for a while, but for those of which the user has one of their own."""
    ours = {name: value for name, value in settings.items() if spark.conf.get(name, None) is None}
    for name, value in ours.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in ours:
            spark.conf.unset(name)


def _staged(lake: Lake, files: HadoopFiles, below: str = "") -> list[DataFile]:
    """What lies in a directory of staging, with the rows that Parquet's footers tell."""
    directory = f"{lake.staging()}/{below}" if below else lake.staging()
    return [
        DataFile(lake.place_of(path, below, quarantine=below == _QUARANTINED), path, size, files.parquet_rows(path))
        for path, size in files.data_files(directory)
    ]
