"""Loading topics into a lake, and making few large files of many small ones: the Spark jobs.

Strategy: each commit is one batch query from where the lake's last commit ended to what is latest now (at most
`max_offsets`), written below staging by Spark's own writer, partitioned by topic, and date and hour of the records'
time stamps in UTC; then committed with its offsets (`lake`). Streaming is the same again and again. Time stamps become
dates by integer arithmetic, and a task keeps a few files open at once, so that rows are written as they come instead
of sorted first: both cost more than the compression. So do Parquet's dictionaries where each value comes once: offsets,
and times, above all in INT96, which is Spark's default: times are written as microseconds in 64 bits.

Rules: a load that fails adds nothing, and the next one starts where it started. Partitions that are new are read from
their beginning. Must not know: file systems beyond `hadoop`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pylogd.clock import wall_ms
from pylogd.spark.errors import OptionError
from pylogd.spark.hadoop import HadoopFiles
from pylogd.spark.lake import Commit, DataFile, Lake, compacted, loaded, small_files
from pylogd.spark.offsets import Offsets
from pylogd.spark.options import ByPartition, SourceOptions, offsets_json
from pylogd.spark.ranges import limited

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUE_KINDS: Final = ("binary", "string")
DIRECTORIES: Final = {"hour": ("topic", "date", "hour"), "day": ("topic", "date"), "topic": ("topic",)}
_SETTINGS: Final = {
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_PARQUET: Final = {"parquet.enable.dictionary#offset": "false", "parquet.enable.dictionary#timestamp": "false"}


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is to be loaded, and how.

    subscription: one of the source's options `subscribe`, `subscribePattern`, `assign` with its value. client: options
    that begin with `kafka.`. tasks: how many tasks read, at least. value: what the column of that name holds. by: a
    directory for each "hour", each "day", or only each "topic". gather: one file a directory and commit, at the
    price of a shuffle, instead of one for each task.
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
    start, end = _what_is_new(lake, plan)
    if start == end:
        return None
    options = {**plan.options(), "startingOffsets": offsets_json(start), "endingOffsets": offsets_json(end)}
    find_source(spark)
    rows = spark.read.format("pylogd").options(**options).load()
    staging = lake.staging()
    _write(_with_time(rows, plan.value), files.path(staging), plan)
    added = _staged(lake, files, staging)
    commit = loaded(lake.last, lake.next_number, now_ms(), start, end, added)
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
    added = _staged(lake, files, staging)
    removed = [file.path for group in small.values() for file in group]
    before = sum(file.rows for group in small.values() for file in group)
    if sum(file.rows for file in added) != before:
        raise RuntimeError(f"{before} rows were to be compacted, {sum(file.rows for file in added)} were written")
    commit = compacted(lake.last, now_ms(), added, removed)
    lake.commit(commit)
    return commit


def _what_is_new(lake: Lake, plan: LoadPlan) -> tuple[ByPartition, ByPartition]:
    with Offsets(SourceOptions.for_batch(plan.options())) as offsets:
        places = offsets.partitions()
        known = lake.offsets
        fresh = offsets.earliest([place for place in places if place not in known])
        start = {place: known.get(place, fresh.get(place, 0)) for place in places}
        latest = offsets.latest(places)
        for place in places:
            if latest[place] < start[place]:
                offsets.lost(
                    f"{place[0]}-{place[1]} ends with {latest[place]}, and the lake has it up to {start[place]}"
                )
                latest[place] = start[place]
    return start, latest if plan.max_offsets is None else limited(start, latest, plan.max_offsets)


def _with_time(rows: DataFrame, value: str) -> DataFrame:
    from pyspark.sql.functions import col, expr  # noqa: PLC0415 - needs a session

    seconds = "unix_seconds(timestamp)"
    found = rows.withColumns(
        {
            "date": expr(f"date_from_unix_date(cast(({seconds} - pmod({seconds}, 86400)) div 86400 as int))"),
            "hour": expr(f"lpad(cast(pmod({seconds}, 86400) div 3600 as string), 2, '0')"),
        }
    )
    return found.withColumn("value", col("value").cast("string")) if value == "string" else found


def _write(rows: DataFrame, path: str, plan: LoadPlan) -> None:
    directories = DIRECTORIES[plan.by]
    rows = rows.drop(*({"date", "hour"} - set(directories)))
    if plan.gather:
        rows = rows.repartition(*directories).sortWithinPartitions(*directories, "partition", "offset")
    with _set(rows.sparkSession, _SETTINGS):
        rows.write.partitionBy(*directories).options(compression=plan.codec, **_PARQUET).parquet(path)


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


def _staged(lake: Lake, files: HadoopFiles, staging: str) -> Sequence[DataFile]:
    """What lies in staging, with the rows that Parquet's footers tell."""
    return [
        DataFile(lake.place_of(path), path, size, files.parquet_rows(path)) for path, size in files.data_files(staging)
    ]
