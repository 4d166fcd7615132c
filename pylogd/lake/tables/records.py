"""The columns and rows of records: of Spark's Kafka source, and of tables without a registered schema.

Strategy: the columns of a fetch (`pylogd.client.core.consumer.columns`) become rows of the source (`source_rows`), and
these become rows of a table and of its quarantine (`RecordRows`). Rules: a record is either in the table or in its
quarantine, and no part of it is lost. Must not know: formats, Spark, brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pylogd.lake.tables.interface import DIRECTORIES, Layout

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
#: Columns with the origin of a record. Every table begins with them.
RECORD = (
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", "UTC")),
    pa.field("timestampType", pa.int32()),
    pa.field("key", pa.binary()),
)
_DIRECTORIES = {"date": pa.date32(), "hour": pa.int32()}
#: The columns of rows of the source, without the optional ones.
_FIELDS: Final = (
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", "UTC")),
    pa.field("timestampType", pa.int32()),
)
#: The range of Spark's timestamps, years 1 to 9999, in milliseconds since 1970.
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999

#: The reason for the quarantine of records that no kind of table can have.
INVALID_TIME: Final = "the time stamp lies outside of the years 1 to 9999"


def of_records(layout: Layout) -> pa.Schema:
    """Return the columns of a table of records, followed by the columns of the layout's directories."""
    value = pa.field("value", pa.string() if layout.value == "string" else pa.binary())
    return with_directories([*RECORD, value, pa.field("headers", HEADERS)], layout)


def with_directories(fields: list[pa.Field], layout: Layout) -> pa.Schema:
    """Return a schema of these fields and of the missing columns of the layout's directories."""
    names = {each.name for each in fields}
    more = [pa.field(name, _DIRECTORIES[name]) for name in DIRECTORIES[layout.by] if name not in names]
    return pa.schema([*fields, *more])


def of_quarantine() -> pa.Schema:
    """Return the columns of a quarantine: the whole record, and the reason why the record is not in the table."""
    return pa.schema(
        [
            pa.field("topic", pa.string()),
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64()),
            pa.field("reason", pa.string()),
            pa.field("timestampMs", pa.int64()),
            pa.field("timestampType", pa.int32()),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("headers", HEADERS),
        ]
    )


_QUARANTINE: Final = of_quarantine()


def arrow_schema(include_headers: bool, include_timestamp_ms: bool = False) -> pa.Schema:
    """Return the schema of the rows, with the columns of Spark's Kafka source."""
    headers = [pa.field("headers", HEADERS)] if include_headers else []
    number = [pa.field("timestampMs", pa.int64())] if include_timestamp_ms else []
    return pa.schema([*_FIELDS, *headers, *number])


_COMPLETE: Final = arrow_schema(include_headers=True, include_timestamp_ms=True)


def source_rows(
    columns: pa.RecordBatch, topic: str, partition: int, schema: pa.Schema = _COMPLETE
) -> pa.RecordBatch:  # fmt: skip
    """Return rows of the source. Time stamps that can't be represented are null.

    columns: the columns of a fetch of one partition, with headers if `schema` has them.
    schema: a result of `arrow_schema`. By default the rows have the form that `interface.Rows` takes.
    """
    stamps, count = columns.column("timestamp"), columns.num_rows
    is_valid = representable(stamps)
    times = stamps if is_valid is None else pc.if_else(is_valid, stamps, pa.scalar(None, stamps.type))
    arrays = [
        columns.column("key"),
        columns.column("value"),
        pa.repeat(pa.scalar(topic), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        columns.column("offset"),
        times.cast(pa.timestamp("us", "UTC")),
        columns.column("timestampType"),
    ]
    if "headers" in schema.names:
        arrays.append(_null_if_empty(columns.column("headers")))
    if "timestampMs" in schema.names:
        arrays.append(stamps.cast(pa.int64()))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def representable(stamps: pa.Array) -> pa.Array | None:
    """Return which time stamps a table can have: those of the years 1 to 9999. None if it can have all of them."""
    numbers = stamps.cast(pa.int64())
    bounds = pc.min_max(numbers)
    if not len(numbers) or (bounds["min"].as_py() >= _FIRST_MS and bounds["max"].as_py() <= _LAST_MS):
        return None
    return pc.and_(pc.greater_equal(numbers, _FIRST_MS), pc.less_equal(numbers, _LAST_MS))


def _null_if_empty(headers: pa.Array) -> pa.Array:
    """Replace empty lists by null, which Spark's Kafka source has for a record without headers."""
    if not len(headers.flatten()):
        return pa.nulls(len(headers), HEADERS)
    return pc.if_else(pc.equal(pc.list_value_length(headers), 0), pa.scalar(None, headers.type), headers).cast(HEADERS)


@dataclass(frozen=True, slots=True)
class RecordRows:
    """Implements `interface.Rows`: makes a row of each record, with unchanged key and value.

    Records whose time stamps can't be represented go to the quarantine. With values as strings, bytes that are not
    UTF-8 are replaced (`as_text`).
    """

    layout: Layout

    def convert(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the rows of the table, and the rows of its quarantine."""
        good, rest = divide(records, INVALID_TIME)
        schema = without_directories(of_records(self.layout), self.layout)
        return select(good, schema), rest


def divide(records: pa.RecordBatch, reason: str) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Divide records by whether they have a time stamp. Those without one become rows of the quarantine."""
    stamps = records.column("timestamp")
    if not stamps.null_count:
        return records, quarantined(records.slice(0, 0), [])
    has_time = pc.is_valid(stamps)
    rest = records.filter(pc.invert(has_time))
    return records.filter(has_time), quarantined(rest, [reason] * rest.num_rows)


def quarantined(records: pa.RecordBatch, reasons: list[str]) -> pa.RecordBatch:
    """Return the rows of the quarantine for records, given the reason for each."""
    return select(records, _QUARANTINE, {"reason": pa.array(reasons, pa.string())})


def select(records: pa.RecordBatch, schema: pa.Schema, more: Mapping[str, pa.Array] | None = None) -> pa.RecordBatch:
    """Return the columns of `schema`, with its types, from `records` or else from `more`."""
    given = more or {}
    columns = [
        _cast(given[field.name] if field.name in given else records.column(field.name), field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def without_directories(schema: pa.Schema, layout: Layout) -> pa.Schema:
    """Return the columns of rows before they are written: without the date and the hour."""
    derived = set(DIRECTORIES[layout.by]) - {"topic"}
    return pa.schema([field for field in schema if field.name not in derived])


def as_text(values: pa.Array) -> pa.StringArray:
    """Return bytes as text. Each maximal invalid part of a character becomes one U+FFFD.

    All writers of tables convert values by this function. So a record has the same text in each table, and no column of
    strings has invalid UTF-8.
    """
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        found = [None if each is None else each.decode(errors="replace") for each in values.to_pylist()]
        return pa.array(found, pa.string())


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if pa.types.is_binary(column.type) and pa.types.is_string(kind):
        return as_text(column)
    return column.cast(kind)
