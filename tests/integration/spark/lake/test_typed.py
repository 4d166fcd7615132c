"""`pylogd load --schema-registry`: typed columns, tables that follow their schemas, and the quarantine."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from pylogd.client import Admin, NewTopic, Producer
from pylogd.client.registry.avro import AvroSerializer, SchemaRegistryClient
from pylogd.lake.spark.errors import OptionError
from pylogd.lake.spark.load import LoadPlan, compact, load
from pylogd.lake.spark.opening import open_table
from pylogd.lake.tables.errors import LayoutChanged
from pylogd.lake.tables.iceberg.catalogs import TableName, open_catalog
from pylogd.lake.tables.interface import Table
from pylogd.lake.typed.rows import SchemaSource
from tests.docs.blocks import CHECKOUT
from tests.docs.console import commands
from tests.docs.kinds import blocks_of_kind
from tests.fakes.registered import record
from tests.integration.conftest import Address
from tests.integration.spark.lake.lakes import Command, documents
from tests.registries import RegistryProcess

pytestmark = pytest.mark.timeout(600)
OLD = record(("id", "int"), ("timestamp", {"type": "long", "logicalType": "timestamp-millis"}), name="Trip")
NEW = record(
    ("id", "long"), ("stops", {"type": "array", "items": record(("x", "double"), name="Stop"), "default": []}),
    ("timestamp", {"type": "long", "logicalType": "timestamp-millis"}), name="Trip",
)  # fmt: skip
NEW["fields"][1]["default"] = []
OTHER = record(("id", "string"), name="Other")
NOON = 1_700_000_000_000


@pytest.fixture(scope="module")
def registry(broker: Address, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcess]:
    process = RegistryProcess(broker.address, tmp_path_factory.mktemp("registry") / "log")
    yield process
    assert process.stop() == 0


def typed_plan(broker: Address, registry: RegistryProcess, topic: str) -> LoadPlan:
    return LoadPlan(broker.address, ("subscribe", topic), by="day", schemas=SchemaSource.at(registry.url, {}))


def rows_of(spark: Any, table: Table) -> list[Any]:
    """Read the table as the types that it records, sorted by partition and offset."""
    columns = table.columns
    assert columns is not None
    kind = from_arrow_schema(columns, prefer_timestamp_ntz=True)
    rows = spark.read.schema(kind).parquet(*(file.path for file in table.files()))
    assert dict(rows.dtypes)["id"] == "bigint"
    found: list[Any] = rows.orderBy("partition", "offset").collect()
    return found


def quarantine_of(spark: Any, table: Table) -> list[Any]:
    files = [file.path for file in table.quarantined()]
    found: list[Any] = spark.read.parquet(*files).orderBy("partition", "offset").collect()
    return found


def check_that_other_plans_are_refused(spark: Any, table: Table, plan: LoadPlan) -> None:
    with pytest.raises(LayoutChanged):
        load(spark, table, replace(plan, schemas=None))
    with pytest.raises(OptionError, match="one topic"):
        load(spark, table, replace(plan, subscription=("subscribe", "a,b")))


def test_a_typed_table_follows_its_schemas_and_quarantines_the_rest(
    spark: Any, broker: Address, registry: RegistryProcess, topic: str, tmp_path: Path
) -> None:
    root, plan = str(tmp_path / "lake"), typed_plan(broker, registry, topic)
    client = SchemaRegistryClient(registry.url)
    old, new, other = (AvroSerializer(client, schema) for schema in (OLD, NEW, OTHER))
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(topic, 2, 1, {"retention.ms": "-1"})])

    def loaded(*messages: tuple[int, bytes | None]) -> tuple[int, int]:
        with Producer(broker.address) as producer:
            for partition, value in messages:
                producer.send(topic, value, key=b"k", partition=partition, timestamp=NOON, headers=[("h", b"1")])
        done = load(spark, open_table(spark, root), plan)
        assert done is not None
        return done.rows, done.quarantined

    assert loaded((0, old(topic, {"id": 1, "timestamp": 5})), (1, b"junk"), (0, None)) == (2, 1)
    assert loaded(
        (1, new(topic, {"id": 1 << 40, "stops": [{"x": 0.5}], "timestamp": 6})),
        (1, old(topic, {"id": 3, "timestamp": 7})),
        (0, other(f"{topic}-2", {"id": "a"})),
        (0, struct.pack(">bI", 0, 1 << 30)),
    ) == (2, 2)
    table = open_table(spark, root)
    assert load(spark, table, plan) is None

    found = rows_of(spark, table)
    assert [(row.id, row.stops and [stop.x for stop in row.stops], bytes(row.key)) for row in found] == [
        (1, None, b"k"), (None, None, b"k"), (1 << 40, [0.5], b"k"), (3, None, b"k"),
    ]  # fmt: skip
    assert [row.value_timestamp and row.value_timestamp.microsecond for row in found] == [5000, None, 6000, 7000]
    assert {row.headers[0].key for row in found} == {"h"}
    assert compact(spark, table) is not None
    assert rows_of(spark, table) == found
    kept = quarantine_of(spark, table)
    assert [(row.partition, row.offset, row.reason[:30]) for row in kept] == [
        (0, 2, "schema 3 does not fit the tabl"),
        (0, 3, "the registry has no schema wit"),
        (1, 0, "no schema id: the value begins"),
    ]
    assert (bytes(kept[2].value), bytes(kept[2].key), kept[2].timestampMs) == (b"junk", b"k", NOON)
    check_that_other_plans_are_refused(spark, table, plan)


def test_tasks_write_typed_rows_to_iceberg(
    spark: Any, broker: Address, registry: RegistryProcess, topic: str, tmp_path: Path
) -> None:
    name = f"iceberg:{tmp_path}/warehouse/demo.trips"
    serialise = AvroSerializer(SchemaRegistryClient(registry.url), NEW)
    with Admin(broker.address) as admin, Producer(broker.address) as producer:
        admin.create_topics([NewTopic(topic, 1, 1, {"retention.ms": "-1"})])
        producer.send(topic, serialise(topic, {"id": 1, "stops": [{"x": 0.5}], "timestamp": 6}), timestamp=NOON)
        producer.send(topic, b"junk", timestamp=NOON)
    done = load(spark, open_table(spark, name), typed_plan(broker, registry, topic))
    assert done is not None
    assert (done.rows, done.quarantined) == (1, 1)
    catalog = open_catalog(TableName.parse(f"{tmp_path}/warehouse/demo.trips"), {})
    (row,) = catalog.load_table("demo.trips").scan().to_arrow().to_pylist()
    assert (row["id"], row["stops"], row["offset"]) == (1, [{"x": 0.5}], 0)
    (kept,) = catalog.load_table("demo.trips_quarantine").scan().to_arrow().to_pylist()
    assert (kept["offset"], kept["value"], kept["reason"][:12]) == (1, b"junk", "no schema id")


def test_the_page_from_events_to_a_query(
    spark: Any, broker: Address, registry: RegistryProcess, run: Command, tmp_path: Path
) -> None:
    """Events are written by the page's program, loaded by its commands, and counted by its queries.

    The broker and the registry of its first lines run already.
    """
    written = {"localhost:9092": broker.address, "http://localhost:8081": registry.url, "/tmp/": f"{tmp_path}/"}

    def filled(text: str) -> str:
        for each, here in written.items():
            text = text.replace(each, here)
        return text

    page = "docs/typed-tables.md"
    (program,), (queries,) = (blocks_of_kind("typed", language, page=page) for language in ("python", "sql"))
    starting, loading = blocks_of_kind("typed", "sh", page=page)
    for words in commands([starting]):
        if words[-1] != "&":
            assert run(*words[1:]).exit_code == 0, words
    exec(filled(program.text), {})
    for words in commands([loading]):
        (done,) = documents(run(*map(filled, words[1:]), "--json"))
        assert (done["rows"], done["quarantined"]) == (1000, 1), words
    averages, reasons = filled(queries.text).strip().removesuffix(";").split(";")
    with duckdb.connect() as connection:
        found = connection.execute(averages).fetchall()
        ((_, reason),) = connection.execute(reasons).fetchall()
    assert {tail for tail, _ in found} == {f"N{number}" for number in range(20)}
    assert sum(average for _, average in found) == pytest.approx(sum(number % 7 for number in range(1000)) / 50)
    assert reason in CHECKOUT.joinpath(page).read_text("utf-8")
