"""Write rows that tasks make in Python with Spark's own Parquet writer, to any file system that Hadoop has.

Strategy: that of `files`, with the rows of `interface.Rows` in place of the source's rows. One query writes the rows of
the table and of the quarantine to different directories, but with the same columns: other data of quarantined records
is packed into `key`. Only if there are such records, a second job unpacks them. Must not know: what a commit is, where
columns come from.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pylogd.lake.spark.files import PARQUET, TIMES, set_for, settings, write_quarantine
from pylogd.lake.tables.interface import DIRECTORIES, DataFile, Layout, Rows, SparkStaging
from pylogd.lake.tables.records import of_quarantine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pylogd.lake.typed.rows import TypedRows

#: The column that tells rows of the table from rows of the quarantine.
SIDE: Final = "pylogd_side"
_LOADED, _ASIDE = "lake", "aside"
#: The columns that are packed into `key`, in this order, and the columns that exist in both.
_PACKED: Final = ("reason", "timestampMs", "key", "value")
_OWN: Final = ("topic", "partition", "offset", "timestampType", "headers")


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


def write(
    records: DataFrame, staging: SparkStaging, rows: TypedRows, layout: Layout, *, codec: str, gather: bool
) -> tuple[Sequence[DataFile], Sequence[DataFile]]:  # fmt: skip
    """Write the rows of a load. Return the files of the table and the files of its quarantine.

    records: the records of the source, with `headers` and `timestampMs`.
    rows: makes rows from the records.
    codec: the files' compression.
    gather: whether rows are shuffled so that each directory gets one file.
    """
    from pyspark.sql.functions import expr  # noqa: PLC0415 - needs a session
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    directories, columns = DIRECTORIES[layout.by], rows.schema
    kind = from_arrow_schema(columns.append(pa.field(SIDE, pa.string())), prefer_timestamp_ntz=True)
    made = records.mapInArrow(_Convert(rows, columns), kind)
    made = made.withColumns({name: expr(text) for name, text in TIMES.items() if name in directories})
    if gather:
        made = made.repartition(*directories).sortWithinPartitions(*directories, "partition", "offset")
    with settings(records.sparkSession):
        made.write.partitionBy(SIDE, *directories).options(compression=codec, **PARQUET).parquet(staging.directory)
    added, aside = staging.found(f"{SIDE}={_LOADED}", False), staging.found(f"{SIDE}={_ASIDE}", False)
    return added, _quarantine(records, staging, aside, codec) if aside else ()


def _quarantine(records: DataFrame, staging: SparkStaging, aside: Sequence[DataFile], codec: str) -> Sequence[DataFile]:
    """Write the quarantine's files from the quarantined rows. Return the files."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - needs a session

    spark = records.sparkSession
    with set_for(spark, {"spark.sql.sources.partitionColumnTypeInference.enabled": "false"}):  # topics are not numbers
        reader = spark.read.option("basePath", f"{staging.directory}/{SIDE}={_ASIDE}")
        rows = reader.parquet(*(file.staged for file in aside)).select(*_OWN, "key")
    kept = rows.mapInArrow(_unpack, from_arrow_schema(of_quarantine()))
    return write_quarantine(kept, staging, aside, codec)


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
