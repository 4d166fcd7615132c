"""Make rows of records, for tables without a registered schema.

Rules: a record is either in the table or in its quarantine, and no part of it is lost. Must not know: formats, Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pylogd.lake.tables.columns import of_quarantine, of_records
from pylogd.lake.tables.interface import DIRECTORIES, Layout

#: The reason for the quarantine of records that no kind of table can have.
INVALID_TIME: Final = "the time stamp lies outside of the years 1 to 9999"
_QUARANTINE: Final = of_quarantine()


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
