"""Check that a table of Iceberg or Delta, which other programs may have changed, still takes the rows of a load.

Rules: a table is checked before files are written for it and before each commit. A column that other programs added is
written as null. Unsupported columns and features raise TableError, whose text names them and says what to do. Must not
know: formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from pylogd.lake.tables.errors import CommitConflict, TableError
from pylogd.lake.tables.interface import Layout
from pylogd.lake.tables.records import HEADERS, RECORD, of_records, with_directories

#: Columns in which no row has null.
_NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestampType", "date", "hour"})
#: Pairs of a type and a wider one, which each format can change a column to.
WIDER: Final = frozenset({(pa.int32(), pa.int64()), (pa.float32(), pa.float64())})
_NONE: Final[Mapping[str, str]] = {}


class UnsupportedFeature(TableError):
    """A feature of a table, which another program turned on, is not supported."""

    def __init__(self, where: str, feature: str, why: str, remedy: str) -> None:
        super().__init__(
            f"the table {where} has a feature that pylogd does not support: {feature}: {why}. Nothing was added; "
            f"{remedy}, or load into another table"
        )


def own_columns(layout: Layout) -> pa.Schema:
    """Return the columns that each table of a layout has, except those of a registered schema."""
    if layout.value == "columns":
        return with_directories([*RECORD, pa.field("headers", HEADERS)], layout)
    return of_records(layout)


def check_columns(where: str, columns: pa.Schema, own: pa.Schema, renamed: Mapping[str, str] = _NONE) -> None:
    """Check that a table with `columns` takes rows of the columns `own`. Raises TableError.

    where: names the table.
    renamed: the known present names of columns that other programs renamed.
    """
    for field in own:
        if field.name not in columns.names:
            now = renamed.get(field.name)
            what, remedy = (
                (f"was renamed to {now!r}", "rename it back")
                if now
                else ("is missing: it was renamed or dropped", f"add or rename one of the type {field.type}")
            )
            raise TableError(
                f"the column {field.name!r} of the table {where} {what} by another program. Nothing was added; "
                f"{remedy}, or load into another table"
            )
        found = columns.field(field.name).type
        if not _takes(found, field.type):
            raise TableError(
                f"the column {field.name!r} of the table {where} has the type {found} now, which does not take "
                f"{field.type}: another program changed it. Nothing was added; change it back, or load into another "
                "table"
            )
    for field in columns:
        if not field.nullable and field.name not in _NEVER_NULL:
            raise TableError(
                f"the column {field.name!r} of the table {where} must not be null (NOT NULL), but rows may have null "
                "there. Nothing was added; let it be null (ALTER COLUMN ... DROP NOT NULL), or load into another table"
            )


def check_unchanged(where: str, staged: pa.Schema, now: pa.Schema) -> None:
    """Check that files with the columns `staged` still fit a table with the columns `now`.

    Raises CommitConflict if the load has to write the files again.
    """
    for field in staged:
        if field.name not in now.names or not _takes(now.field(field.name).type, field.type):
            raise CommitConflict(
                f"another program changed the column {field.name!r} of the table {where} while rows were written. "
                "Nothing was added; run the loader again"
            )


def _takes(table: pa.DataType, written: pa.DataType) -> bool:
    """Return whether a column of one type takes the values of another without a loss."""
    if table == written or (written, table) in WIDER:
        return True
    if _is_text(table) and _is_text(written):
        return True
    if _is_bytes(table) and _is_bytes(written):
        return True
    if pa.types.is_decimal(table) and pa.types.is_decimal(written):
        return bool(table.scale == written.scale and table.precision >= written.precision)
    if pa.types.is_struct(table) and pa.types.is_struct(written):
        return [each.name for each in table] == [each.name for each in written] and all(
            _takes(mine.type, theirs.type) for mine, theirs in zip(table, written, strict=True)
        )
    if pa.types.is_map(table) and pa.types.is_map(written):
        return _takes(table.key_type, written.key_type) and _takes(table.item_type, written.item_type)
    if _is_list(table) and _is_list(written):
        return _takes(table.value_type, written.value_type)
    return False


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
