"""`pylogd load --schema-registry`: typed columns, tables that follow their schemas, and the quarantine."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from pylogd.client import Admin, Producer
from pylogd.schemas.avro import AvroSerializer, SchemaRegistryClient
from pylogd.spark.errors import OptionError
from pylogd.spark.load import LoadPlan, load
from pylogd.spark.opening import open_table
from pylogd.spark.typed import SchemaSource
from pylogd.tables.errors import LayoutChanged
from pylogd.typed.rows import Registry
from tests.fakes.registered import record
from tests.integration.conftest import Address
from tests.integration.test_schema_registry import RegistryProcess

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
    return LoadPlan(broker.address, ("subscribe", topic), by="day", schemas=SchemaSource(Registry(registry.url)))


def test_a_typed_table_follows_its_schemas_and_quarantines_the_rest(
    spark: Any, broker: Address, registry: RegistryProcess, topic: str, tmp_path: Path
) -> None:
    root = tmp_path / "lake"
    client = SchemaRegistryClient(registry.url)
    old = AvroSerializer(client, OLD)
    other = AvroSerializer(client, OTHER)
    with Admin(broker.address) as admin:
        admin.create_topic(topic, 2)
    plan = typed_plan(broker, registry, topic)
    with Producer(broker.address) as producer:

        def send(value: bytes | None, partition: int) -> None:
            producer.send(topic, value, key=b"k", partition=partition, timestamp=NOON, headers=[("h", b"1")])

        send(old(topic, {"id": 1, "timestamp": 5}), 0)
        send(b"junk", 1)
        send(None, 0)
        producer.flush()
        first = load(spark, open_table(spark, str(root)), plan)
        assert first is not None
        assert (first.rows, first.quarantined) == (2, 1)

        send(AvroSerializer(client, NEW)(topic, {"id": 1 << 40, "stops": [{"x": 0.5}], "timestamp": 6}), 1)
        send(old(topic, {"id": 3, "timestamp": 7}), 1)
        send(other(f"{topic}-2", {"id": "a"}), 0)
        send(struct.pack(">bI", 0, 1 << 30), 0)
    second = load(spark, open_table(spark, str(root)), plan)
    assert second is not None
    assert (second.rows, second.quarantined) == (2, 2)
    assert load(spark, open_table(spark, str(root)), plan) is None

    table = open_table(spark, str(root))
    columns = table.columns
    assert columns is not None
    rows = spark.read.schema(_spark_schema(columns)).parquet(*(file.path for file in table.files()))
    assert dict(rows.dtypes)["id"] == "bigint"
    found = rows.orderBy("partition", "offset").select("id", "value_timestamp", "stops", "key", "headers").collect()
    assert [(row.id, row.stops and [stop.x for stop in row.stops], bytes(row.key)) for row in found] == [
        (1, None, b"k"), (None, None, b"k"), (1 << 40, [0.5], b"k"), (3, None, b"k"),
    ]  # fmt: skip
    assert [row.value_timestamp and row.value_timestamp.microsecond for row in found] == [5000, None, 6000, 7000]
    assert {row.headers[0].key for row in found} == {"h"}

    kept = spark.read.parquet(*(file.path for file in table.quarantined())).orderBy("partition", "offset").collect()
    assert [(row.partition, row.offset, row.reason[:30]) for row in kept] == [
        (0, 2, "schema 2 does not fit the tabl"),
        (0, 3, "the registry has no schema wit"),
        (1, 0, "no schema id: the value begins"),
    ]
    assert bytes(kept[2].value) == b"junk"
    assert bytes(kept[2].key) == b"k"
    assert kept[2].timestampMs == NOON

    with pytest.raises(LayoutChanged):
        load(spark, open_table(spark, str(root)), replace(plan, schemas=None))
    with pytest.raises(OptionError, match="one topic"):
        load(spark, open_table(spark, str(root)), replace(plan, subscription=("subscribe", "a,b")))


def _spark_schema(columns: Any) -> Any:
    return from_arrow_schema(columns, prefer_timestamp_ntz=True)
