"""What the driver does for a typed table before a load, and how rows of the quarantine are packed; without Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.lake.spark import files
from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.interface import Layout
from pylogd.lake.tables.records import HEADERS, of_quarantine
from pylogd.lake.typed import rows as module
from pylogd.lake.typed import rows as typed_rows
from pylogd.lake.typed.errors import NoSchema
from pylogd.lake.typed.rows import RECORD_COLUMNS, RESERVED, Registry, SchemaSource, prepare, table_columns
from tests.fakes.registered import MemoryRegistry, record

LAYOUT = Layout("topic", "columns")
OLD, WIDER, MORE = record(("id", "int")), record(("id", "long")), record(("id", "int"), ("note", "string"))
WRONG = record(("id", "string"))


class MemoryTable:
    """The part of a table that `prepare` uses. `fixed`: whether the types of columns can't change, as in Delta."""

    location = "memory"

    def __init__(self, *, fixed: bool = False) -> None:
        self.columns: pa.Schema | None = None
        self.fixed = fixed
        self.evolved = 0

    @property
    def exists(self) -> bool:
        return self.columns is not None

    def create(self, layout: Layout, columns: pa.Schema) -> None:
        assert layout == LAYOUT
        if self.columns is None:
            self.columns = columns

    def evolve(self, columns: pa.Schema) -> None:
        assert self.columns is not None
        if self.fixed and any(columns.field(each.name).type != each.type for each in self.columns):
            raise TableError("a type can't be changed")
        self.columns = columns
        self.evolved += 1


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryRegistry]:
    found = MemoryRegistry()
    monkeypatch.setattr(module, "RegistryApi", lambda url, settings: found)
    module._lookup.cache_clear()
    typed_rows._warned.clear()
    yield found
    module._lookup.cache_clear()


def prepared(table: MemoryTable) -> tuple[list[str], int]:
    """Prepare the table. Return its typed columns, as `name type`, and the id of the newest schema."""
    rows, schema_id = prepare(table, "events", SchemaSource(Registry("http://registry")), LAYOUT)  # type: ignore[arg-type]
    assert table.columns == table_columns(rows.columns, LAYOUT)
    return [f"{each.name} {each.type}" for each in rows.columns], schema_id


def test_a_table_is_made_and_follows_the_versions(client: MemoryRegistry) -> None:
    table = MemoryTable()
    client.schemas = [OLD]
    assert prepared(table) == (["id int32"], 1)
    assert prepared(table) == (["id int32"], 1)
    client.schemas = [OLD, MORE, WIDER]
    assert prepared(table) == (["id int64", "note string"], 3)
    assert table.evolved == 1


def test_a_format_that_can_not_change_types_gets_new_columns_only(client: MemoryRegistry) -> None:
    table = MemoryTable(fixed=True)
    client.schemas = [OLD]
    prepared(table)
    client.schemas = [OLD, WIDER]
    assert prepared(table) == (["id int32"], 2)
    client.schemas = [OLD, WIDER, MORE]
    assert prepared(table) == (["id int32", "note string"], 3)


def test_a_table_that_can_not_be_changed_for_another_reason_is_an_error(client: MemoryRegistry) -> None:
    table = MemoryTable()
    client.schemas = [OLD]
    prepared(table)
    client.schemas = [OLD, MORE]

    def fail(columns: pa.Schema) -> None:
        raise TableError("the catalog is down")

    table.evolve = fail  # type: ignore[method-assign]
    with pytest.raises(TableError, match="catalog is down"):
        prepared(table)


def test_versions_that_do_not_fit_are_logged_once(client: MemoryRegistry, caplog: pytest.LogCaptureFixture) -> None:
    table = MemoryTable()
    client.schemas = [OLD, WRONG]
    with caplog.at_level(logging.WARNING):
        prepared(table)
        prepared(table)
    (said,) = caplog.messages
    assert said == (
        "Version 2 of events-value does not fit the table memory: column id is int32 in the table, and string in the "
        "schema. Its records go to the quarantine."
    )


def test_a_subject_whose_versions_can_not_be_columns_gets_a_table_without_them(client: MemoryRegistry) -> None:
    client.schemas = [record(("n", "null"))]
    table = MemoryTable()
    assert prepared(table) == ([], 1)
    client.schemas.append(OLD)
    assert prepared(table) == (["id int32"], 2)


def test_without_a_subject_there_is_no_table(client: MemoryRegistry) -> None:
    with pytest.raises(NoSchema, match="no subject 'events-value'"):
        prepared(MemoryTable())
    source = SchemaSource(Registry("http://registry"), subject="other")
    with pytest.raises(NoSchema, match="no subject 'other'"):
        prepare(MemoryTable(), "events", source, LAYOUT)  # type: ignore[arg-type]


def test_no_column_of_a_schema_has_the_name_that_the_writer_adds() -> None:
    assert files.SIDE in RESERVED


BYTES = st.none() | st.binary(max_size=5)
PAIRS = st.fixed_dictionaries({"key": st.text(max_size=3), "value": BYTES})
ROWS = st.fixed_dictionaries(
    {
        "topic": st.text(max_size=3), "partition": st.integers(0, 9), "offset": st.integers(0, 1 << 60),
        "reason": st.text(max_size=9), "timestampMs": st.integers(-(1 << 63), (1 << 63) - 1),
        "timestampType": st.integers(0, 1), "key": BYTES, "value": BYTES, "headers": st.none() | st.lists(PAIRS),
    }
)  # fmt: skip


@given(st.lists(ROWS, max_size=4))
def test_what_is_set_aside_is_packed_and_unpacked_without_loss(rows: list[dict[str, Any]]) -> None:
    rest = pa.RecordBatch.from_pylist(rows, schema=of_quarantine())
    columns = pa.schema([*RECORD_COLUMNS, pa.field("s", pa.struct({"x": pa.list_(pa.int32())}))])
    packed = files._pack(rest, columns)
    assert packed.schema == columns
    stored = packed.select([*files._OWN, "key"])
    (back,) = files._unpack(iter([stored]))
    assert back.schema == of_quarantine()
    assert back.to_pylist() == rest.to_pylist()
    assert back.schema.field("headers").type == HEADERS
