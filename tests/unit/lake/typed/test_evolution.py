"""How tables follow their schemas: the rules one by one, then any sequence of schemas."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylogd.lake.typed.evolution import Evolution, evolved, plain
from pylogd.lake.typed.nodes import projection

INT, LONG, FLOAT, DOUBLE, TEXT, BYTES = pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary()
TIME, LOCAL, DAY, BOOL = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32(), pa.bool_()


def change(table: pa.DataType, new: pa.DataType, **options: Any) -> Evolution:
    return evolved(pa.schema({"a": table}), pa.struct({"a": new}), **options)


@pytest.mark.parametrize(
    ("table", "new"),
    [(INT, LONG), (FLOAT, DOUBLE), (pa.decimal128(5, 2), pa.decimal128(9, 2)), (pa.list_(INT), pa.list_(LONG)),
     (pa.map_(TEXT, FLOAT), pa.map_(TEXT, DOUBLE)), (pa.struct({"b": INT}), pa.struct({"b": LONG}))],
)  # fmt: skip
def test_types_that_widen(table: pa.DataType, new: pa.DataType) -> None:
    found = change(table, new)
    assert found.columns.field("a").type == new
    assert len(found.changes) == 1
    assert not found.conflicts
    refused = change(table, new, can_change=False)
    assert refused.conflicts
    assert refused.columns.field("a").type == table


@pytest.mark.parametrize(
    ("table", "new"),
    [(LONG, INT), (DOUBLE, FLOAT), (DOUBLE, INT), (DOUBLE, LONG), (BYTES, TEXT), (TEXT, BYTES),
     (pa.decimal128(9, 2), pa.decimal128(5, 2)), (pa.decimal128(9, 2), pa.decimal128(8, 1))],
)  # fmt: skip
def test_types_that_fit_as_they_are(table: pa.DataType, new: pa.DataType) -> None:
    found = change(table, new)
    assert found.fits
    assert found.columns.field("a").type == table


@pytest.mark.parametrize(
    ("table", "new"),
    [(INT, TEXT), (TEXT, INT), (INT, DOUBLE), (INT, FLOAT), (FLOAT, INT), (BOOL, INT), (TIME, LOCAL), (TIME, LONG),
     (DAY, TIME), (INT, pa.struct({"b": INT})), (pa.struct({"b": INT}), pa.struct({"b": TEXT})),
     (pa.list_(INT), pa.list_(TEXT)), (pa.list_(INT), INT), (pa.map_(TEXT, INT), pa.map_(INT, INT)),
     (pa.map_(TEXT, INT), pa.struct({"a": INT})), (pa.decimal128(9, 2), pa.decimal128(9, 3))],
)  # fmt: skip
def test_types_that_conflict(table: pa.DataType, new: pa.DataType) -> None:
    found = change(table, new)
    assert len(found.conflicts) == 1
    assert "column a" in found.conflicts[0]
    assert not found.fits
    assert found.columns == pa.schema({"a": table})


def test_a_format_that_can_not_change_types_takes_new_columns_only() -> None:
    table = pa.schema({"s": pa.struct({"x": INT})})
    inner = evolved(table, pa.struct({"s": pa.struct({"x": INT, "y": INT})}), can_change=False)
    assert inner.conflicts == ("column s.y can't be added: the table's format can't change column types",)
    assert evolved(table, pa.struct({"t": INT}), can_change=False).columns.names == ["s", "t"]


def test_types_as_other_programs_write_them() -> None:
    strange = pa.struct({"a": pa.large_list(pa.large_string()), "b": pa.map_(TEXT, pa.large_binary())})
    assert plain(strange) == pa.struct({"a": pa.list_(TEXT), "b": pa.map_(TEXT, BYTES)})
    assert plain(pa.timestamp("us", "+00:00")) == TIME
    assert plain(pa.timestamp("us")) == LOCAL
    assert plain(pa.struct([pa.field("x", INT, nullable=False)])) == pa.struct({"x": INT})


def test_columns_are_added_behind_and_stay_when_they_are_dropped() -> None:
    table = pa.schema({"a": INT, "s": pa.struct({"x": INT})})
    found = evolved(table, pa.struct({"b": TEXT, "s": pa.struct({"y": LONG})}))
    assert found.columns == pa.schema({"a": INT, "s": pa.struct({"x": INT, "y": LONG}), "b": TEXT})
    assert found.changes == ("adds column s.y (int64)", "adds column b (string)")


def test_a_conflict_leaves_everything_as_it_was() -> None:
    table = pa.schema({"a": INT})
    found = evolved(table, pa.struct({"a": TEXT, "b": TEXT}))
    assert (found.columns, found.changes) == (table, ())


def test_names_that_sql_does_not_tell_apart_conflict() -> None:
    assert change(INT, INT).fits
    assert "SQL" in evolved(pa.schema({"a": INT}), pa.struct({"A": INT})).conflicts[0]


def test_a_table_does_not_grow_without_end() -> None:
    wide = pa.struct({f"f{at}": INT for at in range(1500)})
    table = evolved(pa.schema([]), wide).columns
    found = evolved(table, pa.struct({f"g{at}": INT for at in range(600)}))
    assert found.conflicts == ("the table would have 2100 fields, and may have 2000",)


NAMES = st.sampled_from(["a", "b", "c", "B"])
SIMPLE = st.sampled_from(
    [INT, LONG, FLOAT, DOUBLE, TEXT, BOOL, TIME, pa.decimal128(5, 2), pa.decimal128(9, 2), pa.decimal128(9, 1)]
)


def structs(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.StructType]:
    fields = st.lists(st.tuples(NAMES, kinds), min_size=1, max_size=3, unique_by=lambda field: field[0].lower())
    return fields.map(lambda found: pa.struct([pa.field(*each) for each in found]))


KINDS = st.recursive(
    SIMPLE,
    lambda inner: structs(inner) | inner.map(pa.list_) | inner.map(lambda kind: pa.map_(TEXT, kind)),
    max_leaves=5,
)
SCHEMAS = structs(KINDS)


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Return values of a type, small enough for any type that it may be widened to."""
    some: st.SearchStrategy[Any]
    if pa.types.is_struct(kind):
        some = st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    elif pa.types.is_list(kind):
        some = st.lists(values(kind.value_type), max_size=2)
    elif pa.types.is_map(kind):
        some = st.dictionaries(st.text(max_size=2), values(kind.item_type), max_size=2).map(lambda it: list(it.items()))
    elif pa.types.is_decimal(kind):
        some = st.integers(-99, 99).map(lambda number: Decimal(number).scaleb(-1))
    elif pa.types.is_string(kind):
        some = st.text(max_size=3)
    elif pa.types.is_boolean(kind):
        some = st.booleans()
    elif pa.types.is_timestamp(kind):
        some = st.datetimes().map(lambda time: time.replace(tzinfo=datetime.UTC))
    else:
        some = st.integers(-1000, 1000)
    return st.none() | some


def within(found: Any, value: Any) -> bool:
    """Return whether a value of a table is what was written, with null for what was not."""
    if isinstance(value, dict):
        return isinstance(found, dict) and all(within(each, value.get(name)) for name, each in found.items())
    if isinstance(value, list | tuple):
        return len(found) == len(value) and all(within(one, other) for one, other in zip(found, value, strict=True))
    return bool(found == value)


@given(st.lists(SCHEMAS, min_size=1, max_size=4), st.data())
@settings(max_examples=150, deadline=None)
def test_any_sequence_of_schemas(schemas: list[pa.StructType], data: st.DataObject) -> None:
    table = pa.schema([])
    taken = []
    for schema in schemas:
        found = evolved(table, schema)
        assert found.columns.names[: len(table.names)] == table.names
        if found.conflicts:
            assert found.columns == table
            continue
        table = found.columns
        taken.append(schema)
        assert evolved(table, schema).fits
    for schema in taken:
        assert evolved(table, schema).fits, "a schema that was applied must fit ever after"
        rows = data.draw(st.lists(values(schema), min_size=1, max_size=3))
        written = pa.array(rows, schema)
        stored = projection(schema, pa.struct(list(table))).applied(written)
        assert stored.type == pa.struct(list(table))
        for value, row in zip(written.to_pylist(), stored.to_pylist(), strict=True):
            assert within(row, value)
            lost = {} if value is None else {name: each for name, each in value.items() if name not in row}
            assert not lost
