"""The columns of tables without a registered schema: the columns of Spark's Kafka source, and the creation time.

Must not know: formats.
"""

from __future__ import annotations

import pyarrow as pa

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
