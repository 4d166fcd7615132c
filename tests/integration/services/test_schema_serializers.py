"""Confluent's serializers and its client, unmodified, with a registry process: Avro, JSON Schema and Protobuf.

What a serializer writes goes through a real broker, and its deserializer reads it back with the schema that it asks the
registry for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import (
    ConfigCompatibilityLevel,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    ServerConfig,
    dual_schema_id_deserializer,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from pylogd.client import Consumer
from pylogd.local.broker import BrokerProcess
from tests.commands import run_command
from tests.registries import AT_ONCE, SECONDS, RegistryProcess, ask

CARRIER = '{"type":"record","name":"Carrier","namespace":"air","fields":[{"name":"code","type":"string"}]}'
FLIGHT = '{"type":"record","name":"Flight","namespace":"air","fields":[{"name":"carrier","type":"air.Carrier"}]}'
CARRIER_JSON = '{"$schema":"http://json-schema.org/draft-07/schema#","title":"Carrier","type":"string","maxLength":2}'
FLIGHT_JSON = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Flight",
        "type": "object",
        "properties": {"carrier": {"$ref": "carrier.json"}, "delay": {"type": "integer"}},
        "required": ["carrier"],
    }
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    process = BrokerProcess(folder / "data", folder / "log", AT_ONCE)
    yield process
    assert process.stop() == 0


@pytest.fixture(scope="module")
def url(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("registry") / "log"
    process = RegistryProcess(broker.address, log)
    yield process.url
    assert process.stop() == 0
    assert "Traceback" not in log.read_text()


def through(broker: BrokerProcess, topic: str, messages: list[bytes]) -> list[bytes]:
    """Write messages to a topic and read them back."""
    producer = Producer({"bootstrap.servers": broker.address})
    for message in messages:
        producer.produce(topic, message)
    assert producer.flush(SECONDS) == 0
    found: list[bytes] = []
    with Consumer(broker.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        while len(found) < len(messages):
            found += [record.value or b"" for record in consumer.poll(1.0)]
    return found


def command(broker: BrokerProcess, url: str, *arguments: str, given: str = "", code: int = 0) -> str:
    """Run a command of pylogd, and return what it prints."""
    done = run_command(*arguments, "-b", broker.address, "--schema-registry", url, stdin=given)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def decoded(broker: BrokerProcess, url: str, topic: str) -> list[Any]:
    """Return the values of a topic as `pylogd consume --decode` prints them."""
    printed = command(broker, url, "consume", topic, "--until-end", "--decode", "value", "-f", "json")
    return [json.loads(line)["value"] for line in printed.splitlines()]


def written(broker: BrokerProcess, url: str, topic: str, values: list[Any]) -> list[bytes]:
    """Write values by `pylogd produce --value-schema` to a new topic, and return the messages."""
    lines = "".join(json.dumps(value) + "\n" for value in values)
    command(broker, url, "produce", topic, "--create", "--value-schema", "latest", "-p", "0", given=lines)
    with Consumer(broker.address) as consumer:
        consumer.assign([(topic, 0)])
        found: list[bytes] = []
        while len(found) < len(values):
            found += [record.value or b"" for record in consumer.poll(1.0)]
    return found


def value_of(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def test_avro_with_a_reference(broker: BrokerProcess, url: str) -> None:
    client = SchemaRegistryClient({"url": url})
    client.register_schema("avro-carriers", Schema(CARRIER, "AVRO"))
    used = SchemaReference("air.Carrier", "avro-carriers", 1)
    serialise = AvroSerializer(client, Schema(FLIGHT, "AVRO", [used]))
    values = [{"carrier": {"code": code}} for code in ("UA", "DL")]
    stored = through(broker, "avro", [serialise(value, value_of("avro")) for value in values])
    deserialise = AvroDeserializer(SchemaRegistryClient({"url": url}))
    assert [deserialise(message, value_of("avro")) for message in stored] == values
    assert decoded(broker, url, "avro") == values
    client.register_schema("avro-cli-value", Schema(FLIGHT, "AVRO", [used]))
    assert written(broker, url, "avro-cli", values) == stored, "the same schema has the same id"
    misfit = command(broker, url, "produce", "avro-cli", "--value-schema", "latest", given='{"carrier": 7}\n', code=1)
    assert misfit.startswith("Error: standard input: line 1: it does not match its schema")
    latest = client.get_latest_version("avro-value")
    assert ask(f"{url}/subjects/avro-carriers/versions/1/referencedby") == (200, [latest.schema_id])
    with pytest.raises(SchemaRegistryError) as refused:
        client.delete_version("avro-carriers", 1)
    assert refused.value.error_code == 42206


def test_a_guid_in_a_header(url: str) -> None:
    client = SchemaRegistryClient({"url": url})
    settings = {"schema.id.serializer": header_schema_id_serializer}
    headers: list[tuple[str, str | bytes | None]] = []
    context = SerializationContext("guid", MessageField.VALUE, headers=headers)
    message = AvroSerializer(client, Schema(CARRIER, "AVRO"), conf=settings)({"code": "UNITED"}, context)
    assert message == b"\x0cUNITED", "nothing but the value"
    assert [name for name, _ in headers] == ["__value_schema_id"]
    either = {"schema.id.deserializer": dual_schema_id_deserializer}
    deserialise = AvroDeserializer(SchemaRegistryClient({"url": url}), conf=either)
    assert deserialise(message, context) == {"code": "UNITED"}


def test_json_schema_with_a_reference(broker: BrokerProcess, url: str) -> None:
    client = SchemaRegistryClient({"url": url})
    client.register_schema("json-carriers", Schema(CARRIER_JSON, "JSON"))
    schema = Schema(FLIGHT_JSON, "JSON", [SchemaReference("carrier.json", "json-carriers", 1)])
    serialise = JSONSerializer(schema, client)
    values = [{"carrier": "UA", "delay": 3}, {"carrier": "DL"}]
    stored = through(broker, "json", [serialise(value, value_of("json")) for value in values])
    deserialise = JSONDeserializer(None, schema_registry_client=SchemaRegistryClient({"url": url}))
    assert [deserialise(message, value_of("json")) for message in stored] == values
    assert decoded(broker, url, "json") == values
    client.register_schema("json-cli-value", schema)
    assert [deserialise(each, value_of("json-cli")) for each in written(broker, url, "json-cli", values)] == values
    misfit = command(broker, url, "produce", "json-cli", "--value-schema", "latest", given='{"delay": 1}\n', code=1)
    assert misfit == (
        "Error: standard input: line 1: it does not match its schema: 'carrier' is a required property (at $). Nothing "
        "was written. Correct it and begin again, or leave it out with --skip-lines 1\n"
    )
    later = json.loads(FLIGHT_JSON)
    later["properties"]["delay"] = {"type": "number"}
    assert client.test_compatibility("json-value", Schema(json.dumps(later), "JSON", schema.references))
    later["required"] = ["carrier", "delay"]
    broken = Schema(json.dumps(later), "JSON", schema.references)
    assert not client.test_compatibility("json-value", broken)
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("json-value", broken)
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 409)
    assert "REQUIRED_ATTRIBUTE_ADDED at #/required/delay" in str(refused.value)


def flight_class() -> Any:
    """Return the class of a message whose type is defined in one file and uses one of another, and a known one."""
    carrier = FileDescriptorProto(name="air/carrier.proto", package="air", syntax="proto3")
    carrier.dependency.append("google/protobuf/timestamp.proto")
    message = carrier.message_type.add(name="Carrier")
    message.field.add(name="code", number=1, type=FieldDescriptorProto.TYPE_STRING, label=1)
    founded = FieldDescriptorProto(name="founded", number=2, type=FieldDescriptorProto.TYPE_MESSAGE, label=1)
    founded.type_name = ".google.protobuf.Timestamp"
    message.field.append(founded)
    flight = FileDescriptorProto(name="air/flight.proto", package="air", syntax="proto3")
    flight.dependency.append(carrier.name)
    flight.message_type.add(name="Unused")
    outer = flight.message_type.add(name="Air")
    delays = outer.nested_type.add(name="DelaysEntry")
    delays.options.map_entry = True
    delays.field.add(name="key", number=1, type=FieldDescriptorProto.TYPE_STRING, label=1)
    delays.field.add(name="value", number=2, type=FieldDescriptorProto.TYPE_SINT32, label=1)
    inner = outer.nested_type.add(name="Flight")
    inner.field.add(name="carrier", number=1, type=FieldDescriptorProto.TYPE_MESSAGE, label=1, type_name=".air.Carrier")
    outer.field.add(
        name="delays", number=3, type=FieldDescriptorProto.TYPE_MESSAGE, label=3, type_name=".air.Air.DelaysEntry"
    )
    pool = DescriptorPool()
    from google.protobuf import timestamp_pb2  # noqa: PLC0415 - only its descriptor

    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    for file in (carrier, flight):
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("air.Air.Flight"))


def test_protobuf_with_a_reference(broker: BrokerProcess, url: str) -> None:
    """The message's type is nested, behind the type of a map: its place in the file is part of each message."""
    made = flight_class()
    client = SchemaRegistryClient({"url": url})
    serialise = ProtobufSerializer(made, client, {"use.deprecated.format": False})
    values = [made(), made()]
    values[0].carrier.code = "UA"
    values[0].carrier.founded.seconds = 7
    stored = through(broker, "proto", [serialise(value, value_of("proto")) for value in values])
    reader = SchemaRegistryClient({"url": url})
    deserialise = ProtobufDeserializer(made, {"use.deprecated.format": False}, reader)
    assert [deserialise(message, value_of("proto")) for message in stored] == values
    shown = [{"carrier": {"code": "UA", "founded": "1970-01-01T00:00:07Z"}}, {}]
    assert decoded(broker, url, "proto") == shown
    carriers = client.get_latest_version("air/carrier.proto").schema
    client.register_schema("proto-cli-value", carriers)
    message, empty = written(broker, url, "proto-cli", [shown[0]["carrier"], {}])
    assert (message[5:], empty[5:]) == (b"\0" + values[0].carrier.SerializeToString(), b"\0")
    assert decoded(broker, url, "proto-cli") == [shown[0]["carrier"], {}]
    assert {"air/carrier.proto", "proto-value"} <= set(client.get_subjects())
    text = SchemaRegistryClient({"url": url}).get_latest_version("proto-value").schema
    assert [each.subject for each in text.references or ()] == ["air/carrier.proto"]
    assert 'import "air/carrier.proto";' in (text.schema_str or "") and "map<string, sint32>" in (text.schema_str or "")
    again = client.register_schema("proto-value", text)
    assert again == client.get_latest_version("proto-value").schema_id, "the text is the same schema"


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("AVRO", ['{"type":"string","x":1,"a":2}', '{"a":2, "type":"string", "x":1}']),
        ("JSON", ['{"type":"string","title":"a"}', '{"title":"a", "type":"string"}']),
        ("PROTOBUF", ['syntax = "proto3"; message A { int32 b = 2; int32 a = 1; }',
                      'syntax="proto3";\n// A comment\nmessage A { int32 a=1; int32 b=2; }']),
    ],
)  # fmt: skip
def test_equivalent_schemas_are_one_if_normalized(url: str, kind: str, texts: list[str]) -> None:
    client = SchemaRegistryClient({"url": url})
    subject = f"same-{kind}"
    ids = {client.register_schema(subject, Schema(text, kind), normalize_schemas=True) for text in texts}
    assert len(ids) == 1
    found = client.lookup_schema(subject, Schema(texts[1], kind), normalize_schemas=True)
    assert ({found.schema_id}, found.version) == (ids, 1)


def test_the_client_s_questions(url: str) -> None:
    client = SchemaRegistryClient({"url": url})
    assert client.get_contexts() == ["."]
    assert (client.get_global_mode(), client.get_compatibility()) == ("READWRITE", "BACKWARD")
    client.set_config("q", ServerConfig(compatibility=ConfigCompatibilityLevel.FULL))
    assert client.get_config("q").compatibility_level == ConfigCompatibilityLevel.FULL
    client.delete_config("q")
    client.update_mode("q", "READONLY")
    with pytest.raises(SchemaRegistryError, match="read-only mode"):
        client.register_schema("q", Schema('"int"', "AVRO"))
    client.delete_mode("q")
    schema_id = client.register_schema("q", Schema('"int"', "AVRO"))
    assert [(each.subject, each.version) for each in client.get_schema_versions(schema_id)] == [("q", 1)]
    assert client.get_subjects_by_schema_id(schema_id) == ["q"]
