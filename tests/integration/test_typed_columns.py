"""What confluent-kafka's serializers write, unmodified, in the columns of a typed table; with a registry process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from pylogd.tables.columns import HEADERS
from pylogd.typed.decoding import Decoded, Decoder, Readers
from pylogd.typed.evolution import evolved
from pylogd.typed.rows import Registry
from tests.integration.conftest import Address
from tests.integration.test_schema_registry import RegistryProcess
from tests.integration.test_schema_serializers import CARRIER, CARRIER_JSON, FLIGHT, FLIGHT_JSON, flight_class


@pytest.fixture(scope="module")
def url(broker: Address, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = RegistryProcess(broker.address, tmp_path_factory.mktemp("registry") / "log")
    yield process.url
    assert process.stop() == 0


def value_of(topic: str, headers: Any = None) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE, headers=headers)


def decoded(url: str, topic: str, messages: list[bytes], headers: Any = None, message: str = "") -> Decoded:
    """Decode messages into the columns of the topic's subject, as a load does."""
    lookup = Registry(url).lookup()
    readers = Readers(lookup)
    columns = pa.schema([])
    for version in lookup.versions(f"{topic}-value"):
        columns = evolved(columns, readers.columns(version.schema_id, message)).columns
    return Decoder(columns, readers).decode(pa.array(messages, pa.binary()), headers)


def test_avro_with_a_reference_and_ids_in_headers(url: str) -> None:
    client = SchemaRegistryClient({"url": url})
    client.register_schema("typed-carriers", Schema(CARRIER, "AVRO"))
    schema = Schema(FLIGHT, "AVRO", [SchemaReference("air.Carrier", "typed-carriers", 1)])
    headers: list[Any] = []
    messages = [
        AvroSerializer(client, schema)({"carrier": {"code": "UA"}}, value_of("typed-avro")),
        AvroSerializer(client, schema, conf={"schema.id.serializer": header_schema_id_serializer})(
            {"carrier": {"code": "DL"}}, value_of("typed-avro", headers)
        ),
    ]
    pairs = pa.array([[], [{"key": name, "value": value} for name, value in headers]], HEADERS)
    found = decoded(url, "typed-avro", messages, pairs)
    assert found.reasons.null_count == 2
    assert found.rows.to_pylist() == [{"carrier": {"code": "UA"}}, {"carrier": {"code": "DL"}}]


def test_json_schema_with_a_reference(url: str) -> None:
    client = SchemaRegistryClient({"url": url})
    client.register_schema("typed-json-carriers", Schema(CARRIER_JSON, "JSON"))
    schema = Schema(FLIGHT_JSON, "JSON", [SchemaReference("carrier.json", "typed-json-carriers", 1)])
    serialise = JSONSerializer(schema, client)
    messages = [
        serialise(value, value_of("typed-json")) for value in ({"carrier": "UA", "delay": 3}, {"carrier": "DL"})
    ]
    bad = messages[0][:5] + json.dumps({"carrier": "too long"}).encode()
    found = decoded(url, "typed-json", [*messages, bad])
    assert found.rows.field("carrier").to_pylist()[:2] == ["UA", "DL"]
    assert found.rows.field("delay").to_pylist()[:2] == [3, None]
    assert found.reasons.is_valid().to_pylist() == [False, False, True]
    assert "is longer than 2 characters" in found.reasons[2].as_py()


def test_protobuf_with_a_reference_and_a_known_type(url: str) -> None:
    client = SchemaRegistryClient({"url": url})
    flight = flight_class()
    serialise = ProtobufSerializer(flight, client, {"use.deprecated.format": False})
    message = flight()
    message.carrier.code = "UA"
    message.carrier.founded.FromJsonString("2026-11-21T07:00:00Z")
    name = flight.DESCRIPTOR.full_name
    found = decoded(url, "typed-proto", [serialise(message, value_of("typed-proto"))], message=name)
    assert found.reasons.null_count == 1
    (row,) = found.rows.to_pylist()
    assert row["carrier"]["code"] == "UA"
    assert row["carrier"]["founded"].isoformat() == "2026-11-21T07:00:00+00:00"
