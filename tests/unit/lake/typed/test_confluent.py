"""What confluent-kafka's serializers write, unmodified, in typed columns; with the registry that its tests use."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from pylogd.lake.tables.records import HEADERS
from pylogd.lake.typed.decoding import Decoded, Decoder, Readers
from pylogd.lake.typed.evolution import evolved
from pylogd.lake.typed.registry import Definition, Registered, SchemaId
from tests.integration.services.test_schema_serializers import CARRIER, CARRIER_JSON, FLIGHT, FLIGHT_JSON, flight_class


class ClientLookup:
    """`decoding.Lookup` on a client of Confluent's, which has Protobuf schemas as descriptors."""

    def __init__(self, client: SchemaRegistryClient) -> None:
        self._client = client

    def schema(self, schema_id: SchemaId) -> Registered:
        client: Any = self._client
        found = client.get_schema(schema_id) if isinstance(schema_id, int) else client.get_schema_by_guid(schema_id)
        return Registered(found.schema_type, found.schema_str, tuple(self._references(found)))

    def _references(self, schema: Any) -> list[Definition]:
        found = []
        for used in schema.references or ():
            other = self._client.get_version(used.subject, used.version).schema
            found += [*self._references(other), Definition(used.name, str(other.schema_str))]
        return found


@pytest.fixture
def client() -> SchemaRegistryClient:
    return SchemaRegistryClient.new_client({"url": "mock://"})


def value_of(topic: str, headers: Any = None) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE, headers=headers)


def decoded(
    client: SchemaRegistryClient, topic: str, messages: list[bytes], headers: Any = None, message: str = ""
) -> Decoded:
    """Decode messages into the columns of the topic's subject, as a load does."""
    readers = Readers(ClientLookup(client))
    latest = client.get_latest_version(f"{topic}-value")
    assert latest.schema_id is not None
    columns = evolved(pa.schema([]), readers.columns(latest.schema_id, message)).columns
    return Decoder(columns, readers).decode(pa.array(messages, pa.binary()), headers)


def test_avro_with_a_reference_and_ids_in_headers(client: SchemaRegistryClient) -> None:
    client.register_schema("carriers", Schema(CARRIER, "AVRO"))
    schema = Schema(FLIGHT, "AVRO", [SchemaReference("air.Carrier", "carriers", 1)])
    headers: list[Any] = []
    in_headers = {"schema.id.serializer": header_schema_id_serializer}
    messages: list[Any] = [
        AvroSerializer(client, schema)({"carrier": {"code": "UA"}}, value_of("flights")),
        AvroSerializer(client, schema, conf=in_headers)({"carrier": {"code": "DL"}}, value_of("flights", headers)),
    ]
    pairs = pa.array([[], [{"key": name, "value": value} for name, value in headers]], HEADERS)
    found = decoded(client, "flights", messages, pairs)
    assert found.reasons.null_count == 2
    assert found.rows.to_pylist() == [{"carrier": {"code": "UA"}}, {"carrier": {"code": "DL"}}]


def test_json_schema_with_a_reference(client: SchemaRegistryClient) -> None:
    client.register_schema("carriers", Schema(CARRIER_JSON, "JSON"))
    schema = Schema(FLIGHT_JSON, "JSON", [SchemaReference("carrier.json", "carriers", 1)])
    serialise = JSONSerializer(schema, client)
    values: list[Any] = [{"carrier": "UA", "delay": 3}, {"carrier": "DL"}]
    messages: list[Any] = [serialise(value, value_of("flights")) for value in values]
    bad = messages[0][:5] + json.dumps({"carrier": "too long"}).encode()
    found = decoded(client, "flights", [*messages, bad])
    assert found.rows.field("carrier").to_pylist()[:2] == ["UA", "DL"]
    assert found.rows.field("delay").to_pylist()[:2] == [3, None]
    assert found.reasons.is_valid().to_pylist() == [False, False, True]
    assert "is longer than 2 characters" in found.reasons[2].as_py()


def test_protobuf_with_a_reference_and_a_known_type(client: SchemaRegistryClient) -> None:
    flight = flight_class()
    serialise = ProtobufSerializer(flight, client, {"use.deprecated.format": False})
    message = flight()
    message.carrier.code = "UA"
    message.carrier.founded.FromJsonString("2026-11-21T07:00:00Z")
    written: Any = serialise(message, value_of("flights"))
    found = decoded(client, "flights", [written], message=flight.DESCRIPTOR.full_name)
    assert found.reasons.null_count == 1
    (row,) = found.rows.to_pylist()
    assert row["carrier"]["code"] == "UA"
    assert row["carrier"]["founded"].isoformat() == "2026-11-21T07:00:00+00:00"
