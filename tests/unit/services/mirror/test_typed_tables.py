"""A typed table as the end of a route, with real tables of each format, and a registry in memory."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pylogd.client.registry.api_client import SchemaRegistryError
from pylogd.lake.tables.errors import LayoutChanged
from pylogd.lake.tables.interface import Layout
from pylogd.lake.tables.opening import open_table
from pylogd.lake.typed import registry as registry_module
from pylogd.lake.typed import rows as module
from pylogd.lake.typed.errors import NoSchema
from pylogd.services.mirror.errors import MirrorError
from pylogd.services.mirror.settings import SchemaSettings
from pylogd.services.mirror.table_load import Slice, TableLoader
from pylogd.services.mirror.table_target import TableCheckpoints
from pylogd.services.mirror.target import Checkpoint, SourcePartition
from pylogd.wire.records import NewRecord, encode_batch
from tests.fakes.registered import MemoryRegistry, avro_body, framed, record
from tests.tables import read_files

LAYOUT = Layout("day", "columns")
SCHEMAS = SchemaSettings("http://registry", {})
ID = bytes(15) + b"1"
P0, P1 = ("events", 0), ("events", 1)
OLD = record(("id", "int"))
NEW = record(("id", "int"), ("note", ["null", "string"]))
WRONG = record(("id", "string"))
Loaded = list[tuple[int, int | None, str | None]]


class CountingRegistry(MemoryRegistry):
    """A registry that counts how often it is asked for versions, and may fail."""

    asked = 0
    fails = False

    def ask(self, path: str, body: Any = None, query: Any = None) -> Any:
        if self.fails:
            raise SchemaRegistryError("the registry can't be reached")
        self.asked += path.endswith("/versions")
        return super().ask(path, body, query)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[CountingRegistry]:
    found = CountingRegistry(OLD)
    monkeypatch.setattr(module, "RegistryApi", lambda url, settings: found)
    monkeypatch.setattr(registry_module, "_PAUSES", ())
    module._lookup.cache_clear()
    yield found
    module._lookup.cache_clear()


@pytest.fixture(params=["parquet", "iceberg", "delta"])
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {
        "parquet": f"parquet:{tmp_path}/lake",
        "iceberg": f"iceberg:{tmp_path}/warehouse/demo.events",
        "delta": f"delta:{tmp_path}/delta",
    }[str(request.param)]


def loader(name: str, schemas: SchemaSettings | None = SCHEMAS, layout: Layout = LAYOUT) -> TableLoader:
    found = TableLoader(lambda: open_table(name), layout, schemas)
    found.open()
    return found


def old(number: int) -> bytes:
    return framed(1, avro_body(OLD, {"id": number}))


def new(number: int) -> bytes:
    return framed(2, avro_body(NEW, {"id": number, "note": "n"}))


def batch(offset: int, *values: bytes | None) -> memoryview:
    return memoryview(encode_batch([NewRecord(b"k", value, 1000, []) for value in values], base_offset=offset))


def at(offset: int) -> Checkpoint:
    return Checkpoint(ID, offset, 3, offset, 0)


def known(loader: TableLoader) -> Checkpoint | None:
    return TableCheckpoints(loader.position()).get(SourcePartition("any", "events", 0, "events"))


def rows(name: str) -> Loaded:
    """The rows of a table: offset, id and note, sorted."""
    table = open_table(name)
    found: Loaded = []
    for each in read_files(table, table.files()):
        found += [(row["offset"], row["id"], row.get("note")) for row in each.to_pylist()]
    return sorted(found)


def quarantine(name: str) -> list[tuple[int, str]]:
    """Offset and reason of the rows of the quarantine."""
    table = open_table(name)
    found = [row for each in read_files(table, table.quarantined()) for row in each.to_pylist()]
    return sorted((row["offset"], row["reason"][:24]) for row in found)


def commits(name: str) -> int:
    return sum(each.rows + each.quarantined > 0 for each in open_table(name).history())


def test_columns_and_quarantine_are_one_commit(name: str, registry: CountingRegistry) -> None:
    first = loader(name)
    first.begin(P0, None, 0, ID)
    first.write([Slice(P0, 0, [batch(0, old(1), b"junk", None)]), Slice(P1, 0, [])])
    assert rows(name) == [] and quarantine(name) == []
    first.commit({P0: at(3)}, at_ms=1)
    assert rows(name) == [(0, 1, None), (2, None, None)]
    assert quarantine(name) == [(1, "no schema id: the value ")]
    assert open_table(name).position.schema_ids == {"events": 1}


def test_a_version_that_is_registered_during_a_load_adds_its_columns(name: str, registry: CountingRegistry) -> None:
    first = loader(name)
    first.begin(P0, None, 0, ID)
    first.write([Slice(P0, 0, [batch(0, old(1), b"junk")])])
    registry.schemas.append(NEW)
    first.write([Slice(P0, 2, [batch(2, new(2), old(3), b"junk")])])
    first.commit({P0: at(5)}, at_ms=1)
    assert rows(name) == [(0, 1, None), (2, 2, "n"), (3, 3, None)]
    assert [offset for offset, _ in quarantine(name)] == [1, 4]
    assert commits(name) == 1
    assert open_table(name).position.schema_ids == {"events": 2}


def test_a_schema_that_is_not_of_the_subject_is_asked_for_once_in_a_load(name: str, registry: CountingRegistry) -> None:
    first = loader(name)
    first.begin(P0, None, 0, ID)
    first.write([Slice(P0, 0, [batch(0, old(1))])])
    asked = registry.asked
    for offset in (1, 2, 3):
        first.write([Slice(P0, offset, [batch(offset, struct.pack(">bI", 0, 99))])])
    assert registry.asked == asked + 1
    first.commit({P0: at(4)}, at_ms=1)
    assert [offset for offset, _ in quarantine(name)] == [1, 2, 3]


def test_a_version_that_the_table_can_not_follow_goes_to_the_quarantine(name: str, registry: CountingRegistry) -> None:
    registry.schemas.append(WRONG)
    first = loader(name)
    first.begin(P0, None, 0, ID)
    first.write([Slice(P0, 0, [batch(0, old(1), framed(2, avro_body(WRONG, {"id": "x"})))])])
    first.commit({P0: at(2)}, at_ms=1)
    assert rows(name) == [(0, 1, None)]
    assert quarantine(name) == [(1, "schema 2 does not fit th")]


def test_workers_that_make_a_table_at_once_with_different_versions(name: str, registry: CountingRegistry) -> None:
    first, second = loader(name), loader(name)
    first.begin(P0, None, 0, ID)
    second.begin(P1, None, 0, ID)
    first.write([Slice(P0, 0, [batch(0, old(1))])])
    registry.schemas.append(NEW)
    second.write([Slice(P1, 0, [batch(0, new(2))])])
    second.commit({P1: at(1)}, at_ms=1)
    first.commit({P0: at(1)}, at_ms=1)
    assert rows(name) == [(0, 1, None), (0, 2, "n")]
    columns = open_table(name).columns
    assert columns is not None and {"id", "note"} <= set(columns.names)


def test_what_is_not_committed_is_loaded_again_after_a_crash(name: str, registry: CountingRegistry) -> None:
    first = loader(name)
    first.begin(P0, None, 0, ID)
    first.write([Slice(P0, 0, [batch(0, old(1), b"junk")])])
    registry.schemas.append(NEW)
    first.write([Slice(P0, 2, [batch(2, new(2))])])  # the table has the column, and no row
    again = loader(name)
    again.begin(P0, known(again), 0, ID)
    again.write([Slice(P0, 0, [batch(0, old(1), b"junk"), batch(2, new(2))])])
    again.commit({P0: at(3)}, at_ms=1)
    assert rows(name) == [(0, 1, None), (2, 2, "n")]
    assert [offset for offset, _ in quarantine(name)] == [1]


def test_a_registry_that_fails_is_no_reason(name: str, registry: CountingRegistry) -> None:
    first = loader(name)
    first.begin(P0, None, 0, ID)
    registry.fails = True
    with pytest.raises(SchemaRegistryError):
        first.write([Slice(P0, 0, [batch(0, old(1))])])
    registry.fails = False
    again = loader(name)
    again.begin(P0, known(again), 0, ID)
    again.write([Slice(P0, 0, [batch(0, old(1))])])
    again.commit({P0: at(1)}, at_ms=1)
    assert rows(name) == [(0, 1, None)] and quarantine(name) == []


def test_without_a_subject_nothing_is_loaded(name: str, registry: CountingRegistry) -> None:
    registry.schemas.clear()
    first = loader(name)
    first.begin(P0, None, 0, ID)
    with pytest.raises(NoSchema, match="no subject 'events-value'"):
        first.commit({P0: at(0)}, at_ms=1)


def test_records_wait_in_the_quarantine_while_no_version_can_be_columns(name: str, registry: CountingRegistry) -> None:
    """As it was found: NoSchema, for ever."""
    registry.schemas[:] = [record(("n", "null"))]
    first = loader(name)
    first.begin(P0, None, 0, ID)
    first.write([Slice(P0, 0, [batch(0, framed(1, b""), None)])])
    first.commit({P0: at(2)}, at_ms=1)
    table = open_table(name)
    assert sum(file.rows for file in table.files()) == 1, "the tombstone is a row"
    assert [offset for offset, *_ in quarantine(name)] == [0]
    registry.schemas.append(OLD)
    first.write([Slice(P0, 2, [batch(2, framed(2, avro_body(OLD, {"id": 7})))])])
    first.commit({P0: at(3)}, at_ms=1)
    assert sum(file.rows for file in open_table(name).files()) == 2
    assert "id" in (open_table(name).columns or pa.schema([])).names


def test_a_typed_table_has_one_topic_and_stays_typed(name: str, registry: CountingRegistry) -> None:
    first = loader(name)
    first.begin(P0, None, 0, ID)
    first.write([Slice(P0, 0, [batch(0, old(1))])])
    first.commit({P0: at(1)}, at_ms=1)
    first.begin(("orders", 0), None, 0, ID)
    with pytest.raises(MirrorError, match="typed table of the topic events: it can't take orders"):
        first.write([Slice(("orders", 0), 0, [batch(0, old(1))])])
    with pytest.raises(LayoutChanged):
        loader(name, None, Layout("day"))
