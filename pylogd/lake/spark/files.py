"""Write the files of a table with Spark's own Parquet writer, on any file system that Hadoop has.

Strategy: rows are written to a new directory, partitioned as the table's layout says; then its files are listed.

Three things cost more than the compression, and are avoided: date functions (dates are computed by integer arithmetic),
sorting the rows first (a task keeps a few files open instead), and Parquet's dictionaries for columns in which each
value occurs once: offsets and time stamps. Time stamps are written as 64-bit microseconds, not as Spark's INT96.

Records whose time stamps Spark can't represent have no date. The same query writes them to a separate directory. Only
if there are such records, a second job writes the quarantine's files from them. Both directories have the table's
schema, so `value` holds both the time stamp, as a number, and the value, as hexadecimal digits.

Spark casts bytes to strings without checking them. So the source already makes the values of a lake of strings valid
UTF-8 (its option `invalidUtf8`). Must not know: what a commit is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final

from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.interface import DIRECTORIES, DataFile, Layout, SparkStaging

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_SETTINGS: Final = {
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
#: Directories of an attempt: files for the table, records without a valid date, and files for the quarantine.
_LOADED: Final = "side=lake"
_ASIDE: Final = "side=aside"
_QUARANTINED: Final = "quarantined"
_REASON: Final = "the time stamp lies outside of the years 1 to 9999"
#: Options of the Parquet writer.
PARQUET: Final = {"parquet.enable.dictionary#offset": "false", "parquet.enable.dictionary#timestamp": "false"}
#: The columns of directories, as expressions of the column `timestamp`.
_SECONDS: Final = "unix_seconds(timestamp)"
TIMES: Final = {
    "date": f"date_from_unix_date(cast(({_SECONDS} - pmod({_SECONDS}, 86400)) div 86400 as int))",
    "hour": f"lpad(cast(pmod({_SECONDS}, 86400) div 3600 as string), 2, '0')",
}


def write(
    rows: DataFrame, staging: SparkStaging, layout: Layout, *, codec: str, gather: bool
) -> tuple[Sequence[DataFile], Sequence[DataFile]]:
    """Write the rows of a load. Return the files of the table and the files of its quarantine.

    rows: the rows of the source, with `timestampMs`.
    codec: the files' compression.
    gather: whether rows are shuffled so that each directory gets one file.
    """
    directories = DIRECTORIES[layout.by]
    rows = _with_time(rows, layout.value)
    rows = rows.drop(*({"date", "hour"} - set(directories)))
    if gather:
        rows = rows.repartition(*directories).sortWithinPartitions(*directories, "partition", "offset")
    with set_for(rows.sparkSession, _SETTINGS):
        writer = rows.write.partitionBy("side", *directories).options(compression=codec, **PARQUET)
        writer.parquet(staging.directory)
    added, aside = staging.found(_LOADED, False), staging.found(_ASIDE, False)
    return added, _quarantine(rows.sparkSession, staging, aside, codec) if aside else ()


def merge(
    spark: SparkSession, staging: SparkStaging, files: Sequence[DataFile], *, target_bytes: int, codec: str,
    columns: pa.Schema | None = None,
) -> list[DataFile]:  # fmt: skip
    """Write the rows of `files` to larger files, sorted by partition and offset. Return the new files.

    columns: the columns of a typed table, without those of its directories; older files have fewer or narrower columns.
    """
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - needs a session

    pieces = max(sum(file.bytes for file in files) // target_bytes, 1)
    reader = spark.read
    if columns is not None:
        reader = reader.schema(from_arrow_schema(columns, prefer_timestamp_ntz=True))
    rows = reader.parquet(*(file.path for file in files))
    rows = rows.repartitionByRange(pieces, "partition", "offset").sortWithinPartitions("partition", "offset")
    with set_for(spark, _SETTINGS):
        rows.write.options(compression=codec, **PARQUET).parquet(staging.directory)
    return staging.found("", False)


def _with_time(rows: DataFrame, value: str) -> DataFrame:
    """Add the columns of the directories. In rows without a time stamp, `value` holds the data that `_quarantine`
    needs.
    """
    from pyspark.sql.functions import expr  # noqa: PLC0415 - needs a session

    packed = "concat_ws(':', timestampMs, hex(value))"  # a null value leaves no colon
    return rows.withColumns(
        {
            "side": expr("if(timestamp is null, 'aside', 'lake')"),
            **{name: expr(text) for name, text in TIMES.items()},
            "value": expr(f"if(timestamp is null, cast({packed} as {value}), cast(value as {value}))"),
        }
    ).drop("timestampMs")


def _quarantine(
    spark: SparkSession, staging: SparkStaging, aside: Sequence[DataFile], codec: str
) -> Sequence[DataFile]:
    """Write the quarantine's files from the rows without a date: the whole record and the reason. Returns the files."""
    from pyspark.sql.functions import expr, lit  # noqa: PLC0415 - needs a session

    with set_for(spark, {"spark.sql.sources.partitionColumnTypeInference.enabled": "false"}):  # topics are not numbers
        rows = spark.read.option("basePath", f"{staging.directory}/{_ASIDE}").parquet(*(file.staged for file in aside))
    kept = rows.withColumns({"value": expr("cast(value as string)"), "reason": lit(_REASON)}).withColumns(
        {
            "timestampMs": expr("cast(substring_index(value, ':', 1) as bigint)"),
            "value": expr("if(instr(value, ':') = 0, null, unhex(substring_index(value, ':', -1)))"),
        }
    )
    return write_quarantine(kept.drop("timestamp", "date", "hour"), staging, aside, codec)


def write_quarantine(
    kept: DataFrame, staging: SparkStaging, aside: Sequence[DataFile], codec: str
) -> Sequence[DataFile]:
    """Write the quarantine's rows, which were made from the rows in the directory `aside`. Return the files."""
    kept = kept.repartition("topic")
    kept.write.partitionBy("topic").options(compression=codec).parquet(f"{staging.directory}/{_QUARANTINED}")
    found = staging.found(_QUARANTINED, True)
    before, after = sum(file.rows for file in aside), sum(file.rows for file in found)
    if before != after:
        raise TableError(f"quarantining {before} rows wrote {after}: nothing was committed")
    return found


def settings(spark: SparkSession) -> AbstractContextManager[None]:
    """Set the session's settings for writing files within a `with` block, in which several threads may write."""
    return set_for(spark, _SETTINGS)


@contextmanager
def set_for(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set settings of the session within a `with` block, except those that the user has set."""
    ours = {name: value for name, value in settings.items() if spark.conf.get(name, None) is None}
    for name, value in ours.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in ours:
            spark.conf.unset(name)
