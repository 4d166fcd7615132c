"""Change the columns of a typed lake: columns are added, types are widened, nothing is removed.

Files are not rewritten: older files have nulls in new columns, and narrower types, which Parquet's readers widen.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from pylogd.lake.tables.errors import TableError

_WIDER = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}


def evolved(before: pa.Schema, now: pa.Schema) -> pa.Schema:
    """Return the columns of a table with the columns `before` that gets rows with the columns `now`.

    Raises TableError if a column has a type that it can't be changed to.
    """
    return pa.schema(_merged(before, now))


def _merged(before: Iterable[pa.Field], now: Iterable[pa.Field]) -> list[pa.Field]:
    given = {each.name: each for each in now}
    found = []
    for field in before:
        new = given.pop(field.name, field)
        kind = _wider(field.type, new.type)
        if kind is None:
            raise TableError(
                f"the column {field.name!r} of the lake is {field.type}, which can't be changed to {new.type}: load "
                "into another table"
            )
        found.append(pa.field(field.name, kind, field.nullable or new.nullable))
    return found + list(given.values())


def _wider(before: pa.DataType, now: pa.DataType) -> pa.DataType | None:
    """Return the type that can hold the values of both types; None if there is none."""
    if before == now or (now, before) in _WIDER:
        return before
    if (before, now) in _WIDER:
        return now
    if pa.types.is_decimal(before) and pa.types.is_decimal(now) and before.scale == now.scale:
        return before if before.precision >= now.precision else now
    if pa.types.is_struct(before) and pa.types.is_struct(now):
        return pa.struct(_merged(before, now))
    if pa.types.is_list(before) and pa.types.is_list(now):
        element = _wider(before.value_type, now.value_type)
        return None if element is None else pa.list_(element)
    if pa.types.is_map(before) and pa.types.is_map(now) and before.key_type == now.key_type:
        item = _wider(before.item_type, now.item_type)
        return None if item is None else pa.map_(before.key_type, item)
    return None
