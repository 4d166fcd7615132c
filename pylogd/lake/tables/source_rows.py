"""The columns of Spark's Kafka source, made from the columns of a fetch (`pylogd.client.core.consumer.columns`).

Must not know: Spark, brokers.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pylogd.lake.tables.columns import HEADERS

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


def arrow_schema(include_headers: bool, include_timestamp_ms: bool = False) -> pa.Schema:
    """Return the schema of the rows, with the columns of Spark's Kafka source."""
    headers = [pa.field("headers", HEADERS)] if include_headers else []
    number = [pa.field("timestampMs", pa.int64())] if include_timestamp_ms else []
    return pa.schema([*_FIELDS, *headers, *number])


_COMPLETE: Final = arrow_schema(include_headers=True, include_timestamp_ms=True)


def source_rows(columns: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
    """Return rows in the form that `interface.Rows` takes: with headers and the time stamp as a number.

    columns: the columns of a fetch of one partition, with headers.
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
        null_if_empty(columns.column("headers")),
        stamps.cast(pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_COMPLETE)


def representable(stamps: pa.Array) -> pa.Array | None:
    """Return which time stamps a table can have: those of the years 1 to 9999. None if it can have all of them."""
    numbers = stamps.cast(pa.int64())
    bounds = pc.min_max(numbers)
    if not len(numbers) or (bounds["min"].as_py() >= _FIRST_MS and bounds["max"].as_py() <= _LAST_MS):
        return None
    return pc.and_(pc.greater_equal(numbers, _FIRST_MS), pc.less_equal(numbers, _LAST_MS))


def null_if_empty(headers: pa.Array) -> pa.Array:
    """Replace empty lists by null, which Spark's Kafka source has for a record without headers."""
    if not len(headers.flatten()):
        return pa.nulls(len(headers), HEADERS)
    return pc.if_else(pc.equal(pc.list_value_length(headers), 0), pa.scalar(None, headers.type), headers).cast(HEADERS)
