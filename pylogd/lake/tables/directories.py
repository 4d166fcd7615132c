"""Divide rows by the directories of a table's layout: topic, date and hour of their time stamps in UTC.

Strategy: most batches belong to one directory, which the least and the greatest hour show. Other batches are sorted by
directory, stably, and cut where the directory changes. Must not know: files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US
#: The days before the year 1. They are added before a division, which rounds to zero, so that it rounds down.
_SHIFT: Final = 1_000_000

#: The values of the columns of a directory, such as {"topic": "flights", "date": date(2026, 11, 21), "hour": 7}.
Directory = Mapping[str, Any]


def with_time_columns(rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Return rows with those of the columns `date` and `hour` that are in `names`, computed from `timestamp`."""
    micros = rows.column("timestamp").cast(pa.int64()) if {"date", "hour"} & set(names) else None
    if "date" in names:
        days = pc.subtract(pc.divide(pc.add(micros, _SHIFT * _DAY_US), _DAY_US), _SHIFT)
        rows = rows.append_column("date", days.cast(pa.int32()).cast(pa.date32()))
    if "hour" in names:
        hours = pc.divide(pc.add(micros, _SHIFT * _DAY_US), _HOUR_US)
        hour = pc.subtract(hours, pc.multiply(pc.divide(hours, 24), 24))
        rows = rows.append_column("hour", hour.cast(pa.int32()))
    return rows


def divide(rows: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[Directory, pa.RecordBatch]]:
    """Yield each directory of the rows, with its rows in their order.

    names: the columns that make a directory.
    """
    if not rows.num_rows:
        return
    if not all(_is_constant(rows.column(name)) for name in names):
        rows = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names]))
    starts = _changes(rows, names)
    for start, end in zip(starts, [*starts[1:], rows.num_rows], strict=True):
        yield {name: rows.column(name)[start].as_py() for name in names}, rows.slice(start, end - start)


def _is_constant(column: pa.Array) -> bool:
    bounds = pc.min_max(column)
    return bool(bounds["min"] == bounds["max"]) and not column.null_count


def _changes(rows: pa.RecordBatch, names: Sequence[str]) -> list[int]:
    """Return the indices of the first row of each directory. The rows are sorted by directory."""
    changed = None
    for name in names:
        column = rows.column(name)
        differs = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
        changed = differs if changed is None else pc.or_(changed, differs)
    return [0, *pc.add(pc.indices_nonzero(changed), 1).to_pylist()]
