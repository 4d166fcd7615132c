"""Map the types of a schema: the Arrow type in which a library returns values, and the type of the column.

Strategy: each schema language builds a tree of `Node`s, one for each field. A library (fastavro, ptars, orjson) reads
messages. Arrow builds arrays of a node's physical type from them in one call. Then leaves whose columns have another
type are converted, an array at a time. So no Python runs for each cell, except for nodes with `prepare`.

Columns have only types that Parquet, Iceberg, Delta and Spark all have: boolean, int32, int64, float, double, decimal
of at most 38 digits, string, binary, date, timestamp in microseconds with or without UTC, list, map and struct. All may
be null. Values of other types are kept as JSON text.

Must not know: schema languages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pylogd.lake.typed.errors import Misfit, NotColumns

Convert = Callable[[pa.Array], pa.Array]
Prepare = Callable[[Any], Any]

#: Limits of a schema. The fields of nested types are counted at each use.
MOST_FIELDS: Final = 2_000
MOST_DEPTH: Final = 50
MOST_DIGITS: Final = 38
TIMESTAMP: Final = pa.timestamp("us", "UTC")
#: The first and the last microsecond and day of the years 1 to 9999, since 1970.
_MICROSECONDS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_DAYS: Final = (-719_162, 2_932_896)
_NOT_IN_NAMES: Final = re.compile(r"\W")


@dataclass(frozen=True, slots=True)
class Node:
    """A field's type.

    physical: the Arrow type of the arrays that are built from the values of a library.
    logical: the column's type.
    convert: makes arrays of `logical` from arrays of `physical`, or raises; None if they are the same.
    prepare: changes a value of the library before the array is built; None if no change is needed.
    size: the number of fields.
    """

    physical: pa.DataType
    logical: pa.DataType
    convert: Convert | None = None
    prepare: Prepare | None = None
    size: int = 1

    def applied(self, array: pa.Array) -> pa.Array:
        """Convert an array of physical values to an array of logical values."""
        return array if self.convert is None else self.convert(array)

    def prepared(self, value: Any) -> Any:
        """Convert a value of the library to the array's type."""
        return value if self.prepare is None or value is None else self.prepare(value)


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a struct: its name in the messages, its name as a column, and its type."""

    source: str
    column: str
    node: Node


class Budget:
    """The number of fields that a schema may still have.

    A type that is used twice counts twice, so that the expansion is limited.
    """

    def __init__(self) -> None:
        self._left = MOST_FIELDS

    def take(self, depth: int) -> None:
        """Count one field. Raises NotColumns if there are too many fields, or if it is nested too deeply."""
        self._left -= 1
        if self._left < 0:
            raise NotColumns(f"the schema has more than {MOST_FIELDS} fields")
        if depth > MOST_DEPTH:
            raise NotColumns(f"the schema is nested deeper than {MOST_DEPTH} levels")


def leaf(
    physical: pa.DataType, logical: pa.DataType | None = None, convert: Convert | None = None,
    prepare: Prepare | None = None,
) -> Node:  # fmt: skip
    """Return the node of a type without fields. Without `convert`, values are cast if the two types differ."""
    if logical is None or logical == physical:
        return Node(physical, physical, convert, prepare)
    return Node(physical, logical, convert or (lambda array: array.cast(logical)), prepare)


def json_text(dump: Prepare) -> Node:
    """Return the node of values that are kept as JSON text.

    dump: returns the text of a value.
    """
    return Node(pa.string(), pa.string(), None, dump)


def dates() -> Node:
    """Return the node of days since 1970. Days outside of the years 1 to 9999 do not fit."""
    return leaf(pa.int32(), pa.date32(), lambda array: _within(array, _DAYS, "a date").cast(pa.date32()))


def times_of_day(physical: pa.DataType, per_day: int) -> Node:
    """Return the node of times since midnight, as numbers from 0 up to below `per_day`. Other numbers do not fit."""
    return leaf(physical, convert=lambda array: _within(array, (0, per_day - 1), "a time of day", "a day"))


def timestamps(unit: str, zone: str | None = "UTC") -> Node:
    """Return the node of points in time since 1970. Times outside the years 1 to 9999 do not fit.

    unit: "ms", "us" or "ns" (rounded down to microseconds).
    zone: "UTC", or None for local times.
    """
    logical = pa.timestamp("us", zone)
    return leaf(pa.int64(), logical, lambda array: microseconds(array, unit).cast(logical))


def microseconds(array: pa.Array, unit: str) -> pa.Array:
    """Return times as microseconds since 1970. Raises Misfit or ArrowInvalid outside of the years 1 to 9999."""
    if unit == "ms":
        array = pc.multiply_checked(array, 1000)
    elif unit == "ns":
        array = _floor_divide(array, 1000)
    return _within(array, _MICROSECONDS, "a time stamp")


def check_times(array: pa.Array) -> pa.Array:
    """Return an array of timestamps or dates. Raises Misfit if one lies outside the years 1 to 9999."""
    if pa.types.is_date32(array.type):
        _within(array.cast(pa.int32()), _DAYS, "a date")
    else:
        _within(array.cast(pa.int64()), _MICROSECONDS, "a time stamp")
    return array


def _floor_divide(array: pa.Array, by: int) -> pa.Array:
    quotient = pc.divide(array, by)
    below = pc.less(pc.multiply(quotient, by), array)  # division truncates towards zero
    exact = pc.equal(pc.multiply(quotient, by), array)
    return pc.if_else(pc.or_(below, exact), quotient, pc.subtract(quotient, 1))


def _within(array: pa.Array, bounds: tuple[int, int], what: str, of: str = "the years 1 to 9999") -> pa.Array:
    found = pc.min_max(array)
    least, most = found["min"].as_py(), found["max"].as_py()
    if least is not None and (least < bounds[0] or most > bounds[1]):
        raise Misfit(f"{what} lies outside of {of}")
    return array


def decimals(precision: int, scale: int) -> Node:
    """Return the node of unscaled numbers as big-endian bytes in two's complement. Beyond 38 digits it is text."""
    if precision > MOST_DIGITS:
        return leaf(pa.string(), prepare=lambda value: _decimal_text(_unscaled(value), scale))
    logical = pa.decimal128(precision, scale)
    unscaled, wide = pa.decimal128(MOST_DIGITS, 0), pa.decimal128(MOST_DIGITS, scale)

    def convert(array: pa.Array) -> pa.Array:
        return pa.Array.from_buffers(wide, len(array), array.buffers(), offset=array.offset).cast(logical)

    return leaf(unscaled, logical, convert, _unscaled)


def _unscaled(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)


def _decimal_text(unscaled: int, scale: int) -> str:
    try:
        digits = str(abs(unscaled)).rjust(scale + 1, "0")
    except ValueError as error:  # the number has more digits than Python converts
        raise Misfit(f"a decimal is too long: {error}") from None
    sign = "-" if unscaled < 0 else ""
    return f"{sign}{digits[: len(digits) - scale]}.{digits[len(digits) - scale :]}" if scale else sign + digits


def struct(members: Sequence[Member], *, rebuild: bool = False) -> Node:
    """Return the node of a record. Raises NotColumns.

    rebuild: whether the types of the library's arrays differ from `physical` in which fields may be null.
    """
    check_names([member.column for member in members])
    physical = pa.struct([pa.field(member.source, member.node.physical) for member in members])
    logical = pa.struct([pa.field(member.column, member.node.logical) for member in members])
    nodes = [member.node for member in members]
    convert: Convert | None = None
    if rebuild or physical != logical or any(node.convert for node in nodes):

        def convert(array: pa.Array) -> pa.Array:
            children = [node.applied(array.field(at)) for at, node in enumerate(nodes)]
            return _struct(children, logical, array)

    return Node(physical, logical, convert, _prepare_members(members), 1 + sum(node.size for node in nodes))


def _struct(children: list[pa.Array], kind: pa.StructType, like: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=like.is_null())


def _prepare_members(members: Sequence[Member]) -> Prepare | None:
    changed = [(member.source, member.node.prepare) for member in members if member.node.prepare]
    if not changed:
        return None

    def prepare(value: Any) -> Any:
        for name, change in changed:
            found = value.get(name)
            if found is not None:
                value[name] = change(found)
        return value

    return prepare


def list_of(item: Node) -> Node:
    """Return the node of an array."""
    physical, logical = pa.list_(item.physical), pa.list_(item.logical)
    convert: Convert | None = None
    if item.convert:

        def convert(array: pa.Array) -> pa.Array:
            return pa.ListArray.from_arrays(_offsets(array), item.applied(array.values))

    change = item.prepare
    prepare = (lambda value: [None if each is None else change(each) for each in value]) if change else None
    return Node(physical, logical, convert, prepare, 1 + item.size)


def map_of(key: Node, value: Node) -> Node:
    """Return the node of a map. Keys are not prepared."""
    physical, logical = pa.map_(key.physical, value.physical), pa.map_(key.logical, value.logical)
    convert: Convert | None = None
    if key.convert or value.convert:

        def convert(array: pa.Array) -> pa.Array:
            return pa.MapArray.from_arrays(_offsets(array), key.applied(array.keys), value.applied(array.items))

    change = value.prepare
    prepare: Prepare | None = None
    if change:

        def prepare(found: Any) -> Any:
            return {name: None if each is None else change(each) for name, each in found.items()}

    return Node(physical, logical, convert, prepare, 1 + key.size + value.size)


def _offsets(array: pa.Array) -> pa.Array:
    """Return the offsets of lists; the offset of a null list is null."""
    offsets = array.offsets
    if not array.null_count:
        return offsets
    starts = pc.if_else(array.is_null(), pa.scalar(None, pa.int32()), offsets[:-1])
    return pa.concat_arrays([starts, offsets[-1:]])


def projection(source: pa.DataType, target: pa.DataType) -> Node:
    """Return the node that widens columns of one type to another type. Fields that the target lacks are dropped."""
    if source == target:
        return Node(source, source)
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        return _struct_projection(source, target)
    if pa.types.is_map(source) and pa.types.is_map(target):
        key, item = projection(source.key_type, target.key_type), projection(source.item_type, target.item_type)
        return map_of(key, item)
    if pa.types.is_list(source) and pa.types.is_list(target):
        return list_of(projection(source.value_type, target.value_type))
    return leaf(source, target)


def _struct_projection(source: pa.StructType, target: pa.StructType) -> Node:
    indexes = [source.get_field_index(field.name) for field in target]
    nodes = [
        None if index < 0 else projection(source.field(index).type, field.type)
        for index, field in zip(indexes, target, strict=True)
    ]

    def convert(array: pa.Array) -> pa.Array:
        children = [
            pa.nulls(len(array), field.type) if node is None else node.applied(array.field(index))
            for index, node, field in zip(indexes, nodes, target, strict=True)
        ]
        return _struct(children, target, array)

    return Node(source, target, convert)


def check_names(columns: Sequence[str]) -> None:
    """Check that no two fields have the same column name, compared without case as in SQL. Raises NotColumns."""
    seen: dict[str, str] = {}
    for column in columns:
        other = seen.get(column.lower())
        if other is not None:
            raise NotColumns(f"two fields have names that SQL does not tell apart: {other!r} and {column!r}")
        seen[column.lower()] = column


def column_name(name: str, reserved: Collection[str] = ()) -> str:
    """Return the column name of a field: characters other than letters, digits and `_` become `_`.

    reserved: names of the table's other columns, in lower case; fields with these names get the prefix `value_`.
    """
    column = _NOT_IN_NAMES.sub("_", name) or "_"
    return f"value_{column}" if column.lower() in reserved else column
