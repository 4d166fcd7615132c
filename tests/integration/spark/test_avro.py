"""Avro messages as columns of Spark, with a real schema registry process."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from pylogd.client import Admin, Producer
from pylogd.client.registry.avro import AvroSerializer, SchemaRegistryClient
from pylogd.credentials.passwords import add_user
from pylogd.lake.spark.avro import from_avro, spark_type, to_avro
from pylogd.lake.spark.errors import OptionError
from tests.integration.conftest import Address
from tests.registries import FLIGHT, LATER, RegistryProcess

pytestmark = pytest.mark.timeout(600)
ALL = {
    "type": "record",
    "name": "All",
    "fields": [
        {"name": "text", "type": ["null", "string"]},
        {"name": "numbers", "type": {"type": "array", "items": "long"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "moment", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "inner", "type": {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "double"}]}},
        {"name": "other", "type": ["null", "Inner"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "by_name", "type": {"type": "map", "values": "int"}},
        {"name": "raw", "type": "bytes"},
        {"name": "sure", "type": "boolean"},
    ],
}


@pytest.fixture(scope="module")
def registry(broker: Address, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcess]:
    process = RegistryProcess(broker.address, tmp_path_factory.mktemp("registry") / "log")
    yield process
    assert process.stop() == 0


def test_messages_of_several_versions_become_typed_columns(
    spark: Any, broker: Address, registry: RegistryProcess, topic: str
) -> None:
    client = SchemaRegistryClient(registry.url)
    first, second = AvroSerializer(client, FLIGHT), AvroSerializer(client, LATER)
    with Admin(broker.address) as admin:
        admin.create_topic(topic, 1)
    with Producer(broker.address) as producer:
        producer.send(topic, first(topic, {"carrier": "UA", "delay": 3}))
        producer.send(topic, None)
        producer.send(topic, second(topic, {"carrier": "AA", "delay": -2, "origin": "JFK"}))
        producer.send(topic, b"no Avro")
    rows = spark.read.format("pylogd").option("kafka.bootstrap.servers", broker.address).option("subscribe", topic)
    values = rows.load().orderBy("offset")
    lenient = values.select(from_avro("value", registry.url, LATER, permissive=True).alias("flight"))
    assert lenient.dtypes == [("flight", "struct<carrier:string,delay:int,origin:string>")]
    found = [row.flight and tuple(row.flight) for row in lenient.collect()]
    assert found == [("UA", 3, "?"), None, ("AA", -2, "JFK"), None]
    with pytest.raises(Exception, match="does not begin with a schema id"):
        values.select(from_avro("value", registry.url, LATER)).collect()
    with pytest.raises(Exception, match="can't reach the schema registry"):
        values.select(from_avro("value", "http://127.0.0.1:9", LATER, permissive=True)).collect()


def test_values_of_all_types_are_written_and_read_unchanged(spark: Any, registry: RegistryProcess, topic: str) -> None:
    row = (
        "a", [1, 2], date(2026, 11, 21), datetime(2026, 11, 21, 7, 0, 0, 5), Decimal("12.34"), (1.5,), None, "B",
        {"k": 7}, b"\x00\xff", True,
    )  # fmt: skip
    other: tuple[Any, ...] = (None, [], row[2], row[3], row[4], (0.0,), (2.0,), "A", {}, b"", False)
    kind = spark_type(ALL)
    frame = spark.createDataFrame([(row,), (other,), (None,)], f"v {kind.simpleString()}")
    messages = frame.select(to_avro("v", registry.url, topic, ALL).alias("m"))
    back = messages.select(from_avro("m", registry.url, ALL).alias("v"))
    assert back.schema["v"].dataType == kind
    assert back.collect() == frame.collect()
    assert f"{topic}-value" in SchemaRegistryClient(registry.url)._api.ask("/subjects")
    wrong = spark.sql("select named_struct('carrier', 'A') as v")
    with pytest.raises(Exception, match="does not fit the schema"):
        wrong.select(to_avro("v", registry.url, f"{topic}-wrong", FLIGHT)).collect()


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "record", "name": "R", "fields": [{"name": "x", "type": ["int", "string"]}]}, "union"),
        ({"type": "record", "name": "R", "fields": [{"name": "x", "type": ["null", "R"]}]}, "contains itself"),
        ({"type": "string", "logicalType": "uuid"}, "logical type 'uuid'"),
        ({"type": "recrod"}, "not an Avro schema"),
    ],
)
def test_schemas_that_spark_has_no_type_for_are_refused(schema: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        spark_type(schema)


def test_a_registry_with_users_is_reached_with_credentials(
    spark: Any, broker: Address, topic: str, tmp_path: Path
) -> None:
    add_user(tmp_path / "users", "spark", "secret of spark")
    registry = RegistryProcess(broker.address, tmp_path / "log", "--users", str(tmp_path / "users"))
    settings = {"basic.auth.credentials.source": "USER_INFO", "basic.auth.user.info": "spark:secret of spark"}
    values = spark.range(3).selectExpr("named_struct('carrier', 'A', 'delay', cast(id as int)) as v")
    messages = values.select(to_avro("v", registry.url, topic, FLIGHT, settings=settings).alias("m"))
    found = messages.select(from_avro("m", registry.url, FLIGHT, settings=settings).alias("v")).collect()
    assert [tuple(row.v) for row in found] == [("A", 0), ("A", 1), ("A", 2)]
    with pytest.raises(Exception, match="credentials are required"):
        values.select(to_avro("v", registry.url, topic, FLIGHT)).collect()
    assert registry.stop() == 0
