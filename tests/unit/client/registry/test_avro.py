"""The client for Avro messages: which messages are wrong by themselves, and when the registry has failed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pylogd.client.registry import avro as module
from pylogd.client.registry.avro import (
    AvroDeserializer,
    NotAvro,
    SchemaRegistryClient,
    SchemaRegistryError,
    UnknownSchemaId,
)
from pylogd.lake.spark.avro import _decoded
from tests.fakes.registered import avro_body, framed, record

FLIGHT = record(("carrier", "string"))


class Registry:
    """A registry of the ids 1 (Avro), 2 (JSON), 3 (no Avro schema), 4 (a reference that is missing); 9 fails."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, path: str, body: Any = None, query: Any = None) -> Any:
        self.asked.append(path)
        found: Any = {
            "/schemas/ids/1": {"schema": json.dumps(FLIGHT)},
            "/schemas/ids/2": {"schema": "{}", "schemaType": "JSON"},
            "/schemas/ids/3": {"schema": '{"type": "nonsense"}'},
            "/schemas/ids/9": SchemaRegistryError("the registry is down", 0),
            "/schemas/ids/10": SchemaRegistryError("answered 404 Not Found"),
            "/schemas/ids/11": SchemaRegistryError("User is denied operation Read", 40301),
        }.get(path, SchemaRegistryError("Schema not found", 40403))
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    found = Registry()
    monkeypatch.setattr(module, "RegistryApi", lambda *_: found)
    return found


@pytest.mark.parametrize("schema_id", [2, 3, 7])
def test_an_id_without_an_avro_schema_is_a_wrong_message(registry: Registry, schema_id: int) -> None:
    """As it was found: `from_avro(permissive=True)` failed the query at such a message."""
    deserialise = AvroDeserializer(SchemaRegistryClient("http://registry"), FLIGHT)
    message = framed(schema_id, b"x")
    with pytest.raises(UnknownSchemaId, match=r"no schema with the id 7|is not an Avro schema"):
        deserialise(message)
    assert _decoded(deserialise, message, True) is None
    with pytest.raises(NotAvro):
        _decoded(deserialise, message, False)
    assert _decoded(deserialise, framed(1, avro_body(FLIGHT, {"carrier": "UA"})), True) == {"carrier": "UA"}


@pytest.mark.parametrize("schema_id", [9, 10, 11])
def test_a_registry_that_fails_fails_a_permissive_query_too(registry: Registry, schema_id: int) -> None:
    deserialise = AvroDeserializer(SchemaRegistryClient("http://registry"), FLIGHT)
    for _ in range(2):
        with pytest.raises(SchemaRegistryError):
            _decoded(deserialise, framed(schema_id, b"x"), True)
    assert len(registry.asked) == 2


def test_an_unknown_id_is_asked_for_again_after_some_seconds(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("pylogd.client.registry.avro.time.monotonic", lambda: now)
    client = SchemaRegistryClient("http://registry")
    for _ in range(3):
        with pytest.raises(UnknownSchemaId):
            client.schema(7)
    assert len(registry.asked) == 1
    now += 10.0
    with pytest.raises(UnknownSchemaId):
        client.schema(7)
    assert len(registry.asked) == 2
