"""Typed tables in Iceberg and Delta, without Spark and brokers: columns, evolution, quarantine, and others' queries."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pylogd.lake.tables.delta.table import DeltaLakeTable
from pylogd.lake.tables.iceberg.catalogs import TableName, open_catalog
from pylogd.lake.tables.iceberg.table import IcebergTable
from pylogd.lake.tables.interface import Layout, Table
from pylogd.lake.tables.position import LoadRange
from pylogd.lake.tables.records import HEADERS
from pylogd.lake.typed import rows as module
from pylogd.lake.typed.rows import Registry, SchemaSource, prepare
from tests.fakes.registered import MemoryRegistry, avro_body, framed, record

LAYOUT = Layout("day", "columns")
POINT = record(("x", "double"), name="Point")
MORE_POINT = record(("x", "double"), ("y", "double"), name="Point")
COMMON: list[tuple[str, Any]] = [
    ("at", {"type": "long", "logicalType": "timestamp-micros"}),
    ("local", {"type": "long", "logicalType": "local-timestamp-micros"}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("raw", "bytes"),
    ("sure", "boolean"),
    ("points", {"type": "array", "items": POINT}),
    ("counts", {"type": "map", "values": "long"}),
]
OLD = record(("id", "int"), ("weight", "float"), *COMMON)
NEW = record(("id", "long"), ("weight", "double"), ("note", ["null", "string"]), *COMMON)
ADDED = record(("id", "int"), ("note", "string"))
INNER = record(("points", {"type": "array", "items": MORE_POINT}))
SECOND_US = 1_700_000_000_000_000
VALUE = {
    "id": 1, "weight": 0.5, "at": SECOND_US, "local": SECOND_US, "day": 19_675, "price": b"\x04\xd2", "raw": b"\xff",
    "sure": True, "points": [{"x": 1.5}], "counts": {"a": 7}, "note": "n",
}  # fmt: skip
ROW = (
    1, 0.5, datetime.datetime(2023, 11, 14, 22, 13, 20), datetime.date(2023, 11, 14), Decimal("12.34"), b"\xff", True,
    [{"x": 1.5}], {"a": 7}, b"k",
)  # fmt: skip


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryRegistry]:
    found = MemoryRegistry(OLD)
    monkeypatch.setattr(module, "RegistryApi", lambda url, settings: found)
    module._lookup.cache_clear()
    module._decoder.cache_clear()
    yield found
    module._lookup.cache_clear()
    module._decoder.cache_clear()


def open_table(kind: str, directory: Path) -> Table:
    if kind == "delta":
        return DeltaLakeTable(str(directory / "delta"), {})
    name = TableName.parse(f"{directory}/warehouse/demo.events")
    return IcebergTable(open_catalog(name, {}), name)


def load(table: Table, *values: bytes | None) -> tuple[int, int]:
    """Load values as the next records of partition 0, as the loader and one task do. Return the numbers of rows."""
    start = table.position.offsets.get(("events", 0), 0)
    end = start + len(values)
    rows, schema_id = prepare(table, "events", SchemaSource(Registry("http://registry")), LAYOUT)
    before, staging = table.position, pickle.loads(pickle.dumps(table.staging()))
    writer, aside = staging.writer(), staging.writer(quarantine=True)
    good, rest = pickle.loads(pickle.dumps(rows)).convert(records(start, values))
    writer.write(good)
    aside.write(rest)
    loading = LoadRange({("events", 0): start}, {("events", 0): end}, schema_ids={"events": schema_id})
    done = table.commit(before, loading, writer.close(), aside.close(), at_ms=1)
    return done.rows, done.quarantined


def records(start: int, values: tuple[bytes | None, ...]) -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(["events"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(start, start + count), pa.int64()),
            "timestamp": pa.array([SECOND_US] * count, pa.timestamp("us", "UTC")),
            "timestampType": pa.array([0] * count, pa.int32()),
            "timestampMs": pa.array([SECOND_US // 1000] * count, pa.int64()),
            "key": pa.array([b"k"] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array([[{"key": "h", "value": b"1"}]] * count, HEADERS),
        }
    )


def message(schema_id: int, schema: Any, **changed: Any) -> bytes:
    """Return `VALUE` with some changes, written without logical types."""

    def plain(kind: Any) -> Any:
        return kind["type"] if isinstance(kind, dict) and "logicalType" in kind else kind

    fields = [(each["name"], plain(each["type"])) for each in schema["fields"]]
    values = {**VALUE, **changed}
    return framed(schema_id, avro_body(record(*fields), {name: values[name] for name, _ in fields}))


def read(table: Table, columns: str, *, quarantine: bool = False) -> list[tuple[Any, ...]]:
    """Query the rows with DuckDB, as the format's own library lists them, ordered by offset."""
    if isinstance(table, DeltaLakeTable):
        found = DeltaTable(table.quarantine if quarantine else table.location).to_pyarrow_dataset().to_table()
    else:
        assert isinstance(table, IcebergTable)
        catalog = open_catalog(TableName.parse(table.location), {})
        found = catalog.load_table("demo.events_quarantine" if quarantine else "demo.events").scan().to_arrow()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'").register("found", found)
        rows: list[tuple[Any, ...]] = connection.execute(f'SELECT {columns} FROM found ORDER BY "offset"').fetchall()
    return rows


#: pyiceberg's reader turns a list of structs that is null into an empty one; the files are right.
ALL = "id, weight, local, day, price, raw, sure, coalesce(points, []), counts, key"
KINDS = pytest.mark.parametrize("kind", ["iceberg", "delta"])


@KINDS
def test_values_of_all_types_are_read_as_they_were_written(kind: str, client: MemoryRegistry, tmp_path: Path) -> None:
    table = open_table(kind, tmp_path)
    assert load(table, message(1, OLD), None) == (2, 0)
    for seen in (table, open_table(kind, tmp_path)):
        assert module.typed_columns(seen.columns) == module.plan(pa.schema([]), _lookup(client), "").columns
    assert read(table, ALL) == [ROW, (*[None] * 7, [], None, b"k")]
    assert read(table, 'epoch_us("at")') == [(SECOND_US,), (None,)]


def _lookup(client: MemoryRegistry) -> Any:
    return Registry("http://registry").lookup()


@KINDS
def test_what_does_not_fit_is_in_the_quarantine_whole(kind: str, client: MemoryRegistry, tmp_path: Path) -> None:
    table = open_table(kind, tmp_path)
    assert load(table, b"junk", message(1, OLD), message(7, OLD)) == (1, 2)
    assert read(table, '"offset", id') == [(1, 1)]
    kept = read(table, '"offset", value, key, reason, "timestampMs"', quarantine=True)
    assert kept == [
        (0, b"junk", b"k", "no schema id: the value begins with the byte 0x6a, not with 0x00 or 0x01",
         SECOND_US // 1000),
        (2, message(7, OLD), b"k", "the registry has no schema with the id 7", SECOND_US // 1000),
    ]  # fmt: skip


def test_an_iceberg_table_gets_columns_and_wider_types(client: MemoryRegistry, tmp_path: Path) -> None:
    table = open_table("iceberg", tmp_path)
    load(table, message(1, OLD))
    client.schemas = [OLD, NEW, INNER]
    inner = message(3, INNER, points=[{"x": 2.5, "y": 3.5}])
    assert load(table, message(2, NEW, id=1 << 40), message(1, OLD, id=9), inner) == (3, 0)
    assert read(table, "id, weight, note") == [(1, 0.5, None), (1 << 40, 0.5, "n"), (9, 0.5, None), (None, None, None)]
    assert read(table, "points[1].x, points[1].y") == [(1.5, None)] * 3 + [(2.5, 3.5)]
    assert load(open_table("iceberg", tmp_path), message(1, OLD)) == (1, 0)


def test_a_delta_table_gets_columns_and_quarantines_wider_types(client: MemoryRegistry, tmp_path: Path) -> None:
    table = open_table("delta", tmp_path)
    load(table, message(1, OLD))
    client.schemas = [OLD, NEW, ADDED]
    assert load(table, message(2, NEW), message(3, ADDED, id=3), message(1, OLD)) == (2, 1)
    assert read(table, "id, note") == [(1, None), (3, "n"), (1, None)]
    ((reason,),) = read(table, "reason", quarantine=True)
    assert reason == (
        "schema 2 does not fit the table: widens column id from int32 to int64; widens column weight from float to "
        "double"
    )
    assert load(open_table("delta", tmp_path), message(1, OLD)) == (1, 0)
