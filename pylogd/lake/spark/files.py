"""Write the files of a table with Spark's own Parquet writer, on any file system that Hadoop has.

Strategy: rows are written to a new directory, partitioned as the table's layout says; then its files are listed. The
rows of a table of records come from expressions of Spark (`write`), those of a typed table from tasks in Python
(`write_typed`).

Three things cost more than the compression, and are avoided: date functions (dates are computed by integer arithmetic),
sorting the rows first (a task keeps a few files open instead), and Parquet's dictionaries for columns in which each
value occurs once: offsets and time stamps. Time stamps are written as 64-bit microseconds, not as Spark's INT96.

The same query writes quarantined records, such as those without a valid date, to a separate directory. Only if there
are such records, a second job writes the quarantine's files from them. Both directories have the table's schema. So a
table of records holds both the time stamp, as a number, and the value, as hexadecimal digits, in `value`; a typed table
holds all data of which it has no column in `key`.

Spark casts bytes to strings without checking them. So the source already makes the values of a lake of strings valid
UTF-8 (its option `invalidUtf8`). Must not know: what a commit is, where the columns of a typed table come from.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.interface import DIRECTORIES, DataFile, Layout, Rows, SparkStaging
from pylogd.lake.tables.records import INVALID_TIME, of_quarantine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pylogd.lake.typed.rows import TypedRows

_SETTINGS: Final = {
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
#: The column that tells rows of the table from rows of the quarantine, in a table of records and in a typed table.
_RECORD_SIDE: Final = "side"
SIDE: Final = "pylogd_side"
#: The values of this column.
_LOADED, _ASIDE = "lake", "aside"
#: The directory of an attempt with the files for the quarantine.
_QUARANTINED: Final = "quarantined"
#: Options of the Parquet writer.
_PARQUET: Final = {"parquet.enable.dictionary#offset": "false", "parquet.enable.dictionary#timestamp": "false"}
#: The columns of directories, as expressions of the column `timestamp`.
_SECONDS: Final = "unix_seconds(timestamp)"
_TIMES: Final = {
    "date": f"date_from_unix_date(cast(({_SECONDS} - pmod({_SECONDS}, 86400)) div 86400 as int))",
    "hour": f"lpad(cast(pmod({_SECONDS}, 86400) div 3600 as string), 2, '0')",
}
#: The columns of the quarantine that are packed into `key`, in this order, and those that typed tables have too.
_PACKED: Final = ("reason", "timestampMs", "key", "value")
_OWN: Final = ("topic", "partition", "offset", "timestampType", "headers")


def write(
    records: DataFrame, staging: SparkStaging, layout: Layout, *, codec: str, gather: bool
) -> tuple[Sequence[DataFile], Sequence[DataFile]]:
    """Write the rows of a load. Return the files of the table and the files of its quarantine.

    records: the rows of the source, with `timestampMs`.
    codec: the files' compression.
    gather: whether rows are shuffled so that each directory gets one file.
    """
    from pyspark.sql.functions import expr, lit  # noqa: PLC0415 - needs a session

    rows = _with_time(records, layout.value).drop(*({"date", "hour"} - set(DIRECTORIES[layout.by])))
    added, aside = _write(rows, staging, _RECORD_SIDE, layout, codec=codec, gather=gather)
    if not aside:
        return added, ()
    kept = _read_aside(records.sparkSession, staging, _RECORD_SIDE, aside)
    kept = kept.withColumns({"value": expr("cast(value as string)"), "reason": lit(INVALID_TIME)}).withColumns(
        {
            "timestampMs": expr("cast(substring_index(value, ':', 1) as bigint)"),
            "value": expr("if(instr(value, ':') = 0, null, unhex(substring_index(value, ':', -1)))"),
        }
    )
    return added, _quarantine(kept.drop("timestamp", "date", "hour"), staging, aside, codec)


def _with_time(rows: DataFrame, value: str) -> DataFrame:
    """Add the columns of the directories. In rows without a time stamp, `value` holds the data that `write` unpacks for
    the quarantine.
    """
    from pyspark.sql.functions import expr  # noqa: PLC0415 - needs a session

    packed = "concat_ws(':', timestampMs, hex(value))"  # a null value leaves no colon
    return rows.withColumns(
        {
            _RECORD_SIDE: expr(f"if(timestamp is null, '{_ASIDE}', '{_LOADED}')"),
            **{name: expr(text) for name, text in _TIMES.items()},
            "value": expr(f"if(timestamp is null, cast({packed} as {value}), cast(value as {value}))"),
        }
    ).drop("timestampMs")


def write_typed(
    records: DataFrame, staging: SparkStaging, rows: TypedRows, layout: Layout, *, codec: str, gather: bool
) -> tuple[Sequence[DataFile], Sequence[DataFile]]:  # fmt: skip
    """Write the rows of a load of a typed table. Arguments and result are those of `write`.

    records: the rows of the source, with `headers` and `timestampMs`.
    rows: makes rows of the table from them.
    """
    from pyspark.sql.functions import expr  # noqa: PLC0415 - needs a session
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    columns = rows.schema
    kind = from_arrow_schema(columns.append(pa.field(SIDE, pa.string())), prefer_timestamp_ntz=True)
    made = records.mapInArrow(_Convert(rows, columns), kind)
    made = made.withColumns({name: expr(text) for name, text in _TIMES.items() if name in DIRECTORIES[layout.by]})
    added, aside = _write(made, staging, SIDE, layout, codec=codec, gather=gather)
    if not aside:
        return added, ()
    packed = _read_aside(records.sparkSession, staging, SIDE, aside).select(*_OWN, "key")
    return added, _quarantine(packed.mapInArrow(_unpack, from_arrow_schema(of_quarantine())), staging, aside, codec)


@dataclass(frozen=True)
class _Convert:
    """The function of a task: from batches of records to batches of rows. It is pickled and sent to the task."""

    rows: Rows
    columns: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = self.columns.append(pa.field(SIDE, pa.string()))
        for batch in batches:
            good, rest = self.rows.convert(batch)
            for rows, side in ((good, _LOADED), (_pack(rest, self.columns), _ASIDE)):
                if rows.num_rows:
                    sides = pa.repeat(pa.scalar(side), rows.num_rows)
                    yield pa.RecordBatch.from_arrays([*rows.columns, sides], schema=schema)


def _pack(rest: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return rows of the quarantine in the columns of the table, with all other columns packed into `key`."""
    packed = [_packed(row) for row in rest.select(list(_PACKED)).to_pylist()]
    arrays = [
        rest.column(field.name)
        if field.name in _OWN
        else pa.array(packed, pa.binary())
        if field.name == "key"
        else pa.nulls(rest.num_rows, field.type)
        for field in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _packed(row: dict[str, object]) -> bytes:
    values = [base64.b64encode(each).decode() if isinstance(each, bytes) else each for each in row.values()]
    return json.dumps(values).encode()


def _unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return rows of the quarantine from rows of `_pack`."""
    schema = of_quarantine()
    for batch in batches:
        values = [json.loads(each) for each in batch.column("key").to_pylist()]
        found = {name: [row[at] for row in values] for at, name in enumerate(_PACKED)}
        for name in ("key", "value"):
            found[name] = [None if each is None else base64.b64decode(each) for each in found[name]]
        arrays = [
            pa.array(found[field.name], field.type)
            if field.name in found
            else batch.column(field.name).cast(field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _write(
    rows: DataFrame, staging: SparkStaging, side: str, layout: Layout, *, codec: str, gather: bool
) -> tuple[Sequence[DataFile], Sequence[DataFile]]:
    """Write rows to the directories of the column `side` and of the layout. Return the files of both sides."""
    directories = DIRECTORIES[layout.by]
    if gather:
        rows = rows.repartition(*directories).sortWithinPartitions(*directories, "partition", "offset")
    with settings(rows.sparkSession):
        rows.write.partitionBy(side, *directories).options(compression=codec, **_PARQUET).parquet(staging.directory)
    return staging.found(f"{side}={_LOADED}", False), staging.found(f"{side}={_ASIDE}", False)


def _read_aside(spark: SparkSession, staging: SparkStaging, side: str, aside: Sequence[DataFile]) -> DataFrame:
    """Return the rows that `_write` has written for the quarantine."""
    with _set_for(spark, {"spark.sql.sources.partitionColumnTypeInference.enabled": "false"}):  # topics are not numbers
        reader = spark.read.option("basePath", f"{staging.directory}/{side}={_ASIDE}")
        return reader.parquet(*(file.staged for file in aside))


def _quarantine(
    kept: DataFrame, staging: SparkStaging, aside: Sequence[DataFile], codec: str
) -> Sequence[DataFile]:  # fmt: skip
    """Write the quarantine's rows, which were made from the rows of the files `aside`. Return the files."""
    kept = kept.repartition("topic")
    kept.write.partitionBy("topic").options(compression=codec).parquet(f"{staging.directory}/{_QUARANTINED}")
    found = staging.found(_QUARANTINED, True)
    before, after = sum(file.rows for file in aside), sum(file.rows for file in found)
    if before != after:
        raise TableError(f"quarantining {before} rows wrote {after}: nothing was committed")
    return found


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
    with settings(spark):
        rows.write.options(compression=codec, **_PARQUET).parquet(staging.directory)
    return staging.found("", False)


def settings(spark: SparkSession) -> AbstractContextManager[None]:
    """Set the session's settings for writing files within a `with` block, in which several threads may write."""
    return _set_for(spark, _SETTINGS)


@contextmanager
def _set_for(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set settings of the session within a `with` block, except those that the user has set."""
    ours = {name: value for name, value in settings.items() if spark.conf.get(name, None) is None}
    for name, value in ours.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in ours:
            spark.conf.unset(name)
