"""Let the columns of a table follow its schemas.

Strategy: a table has every column that any of its schemas had. A new schema adds columns and widens types. It never
removes a column: rows of a schema without the field have null. The registry also allows changes that a table can't
follow, such as a field that is removed and comes back with another type: the rows of such a schema do not fit.

Rules: `evolved` is a pure function. Applying a schema twice changes nothing the second time, and every schema that was
applied without a conflict fits the table from then on. So a driver may apply all versions of a subject each time.
Source: the type promotions of Iceberg's specification ("Schema Evolution"), which Delta and Parquet's readers share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from pylogd.lake.tables.checks import WIDER
from pylogd.lake.typed.nodes import MOST_FIELDS

#: The other types that a column takes. Values that would lose digits in it are found when rows are converted.
_TAKEN: Final = frozenset(
    {
        *WIDER,
        (pa.int32(), pa.float64()), (pa.int64(), pa.float64()),
        (pa.string(), pa.binary()), (pa.binary(), pa.string()),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Evolution:
    """The changes that a schema makes to a table.

    columns: the table's columns afterwards.
    changes: the changes in words; empty if the schema fits the unchanged table.
    conflicts: the reasons why the table can't follow and stays unchanged; empty if it can.
    """

    columns: pa.Schema
    changes: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether rows of the schema fit the unchanged table."""
        return not self.changes and not self.conflicts


def evolved(table: pa.Schema, schema: pa.StructType, *, can_change: bool = True) -> Evolution:
    """Return the changes that a schema makes to a table.

    table: the typed columns of the table.
    schema: the columns of the schema.
    can_change: whether the table's format can change the type of a column; else it can only add top-level columns.
    """
    merge = _Merge(can_change)
    fields = merge.fields("", list(table), list(schema))
    columns = pa.schema(fields)
    if count := max(_size(columns) - MOST_FIELDS, 0):
        merge.conflicts.append(f"the table would have {MOST_FIELDS + count} fields, and may have {MOST_FIELDS}")
    if merge.conflicts:
        return Evolution(table, conflicts=tuple(merge.conflicts))
    return Evolution(columns, tuple(merge.changes))


def _size(kind: Any) -> int:
    return sum(1 + _size(_inner(field.type)) for field in kind)


def _inner(kind: pa.DataType) -> Sequence[pa.Field]:
    return [kind.field(at) for at in range(kind.num_fields)]


class _Merge:
    """One comparison. Collects the differences."""

    def __init__(self, can_change: bool) -> None:
        self.changes: list[str] = []
        self.conflicts: list[str] = []
        self._can_change = can_change

    def fields(self, path: str, table: Sequence[pa.Field], new: Sequence[pa.Field]) -> list[pa.Field]:
        """Return the fields of a struct, the table's first, then the new ones."""
        found = {field.name: field for field in new}
        known = {field.name.lower(): field.name for field in table}
        merged = [
            pa.field(field.name, self.type(f"{path}{field.name}", field.type, found[field.name].type))
            if field.name in found
            else field
            for field in table
        ]
        for name, field in found.items():
            if name in known.values():
                continue
            if name.lower() in known:
                self.conflicts.append(f"SQL does not tell column {path}{name} from {path}{known[name.lower()]}")
                continue
            if path and not self._can_change:
                self.conflicts.append(
                    f"column {path}{name} can't be added: the table's format can't change column types"
                )
                continue
            self.changes.append(f"adds column {path}{name} ({field.type})")
            merged.append(pa.field(name, field.type))
        return merged

    def type(self, path: str, table: pa.DataType, new: pa.DataType) -> pa.DataType:
        """Return the type of a column that exists in both."""
        if table == new:
            return table
        if pa.types.is_struct(table) and pa.types.is_struct(new):
            return pa.struct(self.fields(f"{path}.", list(table), list(new)))
        if pa.types.is_list(table) and pa.types.is_list(new):
            return pa.list_(self.type(f"{path}.element", table.value_type, new.value_type))
        if pa.types.is_map(table) and pa.types.is_map(new) and table.key_type == new.key_type:
            return pa.map_(table.key_type, self.type(f"{path}.value", table.item_type, new.item_type))
        if _takes(table, new):
            return table
        if self._can_change and _widens(table, new):
            self.changes.append(f"widens column {path} from {table} to {new}")
            return new
        self.conflicts.append(f"column {path} is {table} in the table, and {new} in the schema")
        return table


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the form of a column's type that schemas use, for any form that a table's format returns."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(plain(kind.value_type))
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    return kind


def _takes(table: pa.DataType, new: pa.DataType) -> bool:
    """Return whether a column takes values of another type."""
    if pa.types.is_decimal128(table) and pa.types.is_decimal128(new):
        return bool(new.scale <= table.scale and new.precision - new.scale <= table.precision - table.scale)
    return (new, table) in _TAKEN


def _widens(table: pa.DataType, new: pa.DataType) -> bool:
    """Return whether a column can get another type without a change to its files."""
    if pa.types.is_decimal128(table) and pa.types.is_decimal128(new):
        return bool(new.scale == table.scale and new.precision > table.precision)
    return (table, new) in WIDER
