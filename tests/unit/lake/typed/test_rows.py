"""Rows of typed tables: the columns that the driver plans, and what tasks make of records."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pylogd.lake.tables.interface import Layout
from pylogd.lake.tables.records import of_quarantine
from pylogd.lake.typed import rows as module
from pylogd.lake.typed.registry import SchemaLookup
from pylogd.lake.typed.rows import RESERVED, Registry, TypedRows, plan, table_columns, typed_columns
from tests.fakes.registered import MemoryRegistry, avro_body, framed, record

OLD = record(("id", "int"), ("key", "string"))
NEW = record(("id", "long"), ("note", ["null", "string"]))
NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


def planned(*schemas: Any, before: pa.Schema | None = None, **options: Any) -> module.ColumnsPlan:
    return plan(before or pa.schema([]), SchemaLookup(MemoryRegistry(*schemas)), "events-value", **options)


def test_columns_come_from_all_versions_in_order() -> None:
    found = planned(OLD, NEW)
    assert found.columns == pa.schema({"id": pa.int64(), "value_key": pa.string(), "note": pa.string()})
    assert found.latest is not None
    assert (found.latest.number, found.latest.schema_id) == (2, 2)
    assert found.conflicts == {}
    assert planned(OLD, NEW, before=found.columns).columns == found.columns


def test_a_version_that_conflicts_is_left_out_and_named() -> None:
    found = planned(OLD, record(("id", "string")), record(("next", ["null", "Event"])), NEW)
    assert list(found.conflicts) == [2, 3]
    assert found.conflicts[2] == "column id is int32 in the table, and string in the schema"
    assert "contains itself" in found.conflicts[3]
    assert found.columns.field("id").type == pa.int64()


def test_columns_of_deleted_versions_stay() -> None:
    before = pa.schema({"gone": pa.string()})
    assert planned(OLD, before=before).columns.names == ["gone", "id", "value_key"]


def test_a_format_that_can_not_change_types() -> None:
    found = planned(OLD, NEW, can_change=False)
    assert found.columns.names == ["id", "value_key"]
    assert list(found.conflicts) == [2]


def test_the_columns_of_a_table_and_back() -> None:
    columns = planned(OLD, NEW).columns
    for by, more in (("hour", ["date", "hour"]), ("day", ["date"]), ("topic", [])):
        table = table_columns(columns, Layout(by, "columns"))
        assert table.names == [
            "topic", "partition", "offset", "timestamp", "timestampType", "key", "headers",
            "id", "value_key", "note", *more,
        ]  # fmt: skip
        assert typed_columns(table) == columns
        assert {name.lower() for name in table.names if name not in columns.names} <= RESERVED
    assert typed_columns(None) == pa.schema([])


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryRegistry]:
    client = MemoryRegistry(OLD, NEW)
    monkeypatch.setattr(module, "RegistryApi", lambda url, settings: client)
    module._lookup.cache_clear()
    module._decoder.cache_clear()
    yield client
    module._lookup.cache_clear()
    module._decoder.cache_clear()


def records(*values: bytes | None, timeless: int | None = None) -> pa.RecordBatch:
    count = len(values)
    stamps = [None if at == timeless else NOON for at in range(count)]
    columns = {
        "key": pa.array([f"k{at}".encode() for at in range(count)], pa.binary()),
        "value": pa.array(values, pa.binary()),
        "topic": pa.array(["events"] * count, pa.string()),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array(stamps, pa.timestamp("us", "UTC")),
        "timestampType": pa.array([0] * count, pa.int32()),
        "headers": pa.array([None] * count, HEADERS),
        "timestampMs": pa.array(range(count), pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


def test_records_become_rows_or_go_to_the_quarantine_whole(registry: MemoryRegistry) -> None:
    columns = planned(*registry.schemas).columns
    old = framed(1, avro_body(OLD, {"id": 1, "key": "own"}))
    new = framed(2, avro_body(NEW, {"id": 1 << 40, "note": "n"}))
    typed = TypedRows(columns, Registry("http://registry"))
    good, rest = typed.convert(records(old, b"junk", new, old, None, framed(7, b""), timeless=3))
    assert good.schema.names == [*module.table_columns(columns, Layout("topic")).names]
    assert good.select(["offset", "key", "id", "value_key", "note"]).to_pylist() == [
        {"offset": 0, "key": b"k0", "id": 1, "value_key": "own", "note": None},
        {"offset": 2, "key": b"k2", "id": 1 << 40, "value_key": None, "note": "n"},
        {"offset": 4, "key": b"k4", "id": None, "value_key": None, "note": None},
    ]
    assert rest.schema == of_quarantine()
    assert rest.select(["offset", "reason", "timestampMs", "key", "value"]).to_pylist() == [
        {
            "offset": 1, "timestampMs": 1, "key": b"k1", "value": b"junk",
            "reason": "no schema id: the value begins with the byte 0x6a, not with 0x00 or 0x01",
        },
        {
            "offset": 5, "timestampMs": 5, "key": b"k5", "value": framed(7, b""),
            "reason": "the registry has no schema with the id 7",
        },
        {
            "offset": 3, "timestampMs": 3, "key": b"k3", "value": old,
            "reason": "the time stamp lies outside of the years 1 to 9999",
        },
    ]  # fmt: skip


def test_a_batch_in_which_all_or_none_fits(registry: MemoryRegistry) -> None:
    typed = TypedRows(planned(*registry.schemas).columns, Registry("http://registry"))
    good, rest = typed.convert(records(b"junk", b"junk"))
    assert (good.num_rows, rest.num_rows) == (0, 2)
    good, rest = typed.convert(records(None, framed(1, avro_body(OLD, {"id": 1, "key": ""}))))
    assert (good.num_rows, rest.num_rows) == (2, 0)
    good, rest = typed.convert(records())
    assert (good.num_rows, rest.num_rows) == (0, 0)


def test_tasks_do_not_ask_for_schemas_that_the_driver_sent(registry: MemoryRegistry) -> None:
    found = planned(*registry.schemas)
    assert list(found.schemas) == [1, 2]
    registry.schemas = []
    typed = TypedRows(found.columns, Registry("http://registry"), tuple(found.schemas.items()))
    good, rest = typed.convert(records(framed(1, avro_body(OLD, {"id": 1, "key": ""}))))
    assert (good.num_rows, rest.num_rows) == (1, 0)
