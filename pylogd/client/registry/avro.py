"""Serialise and deserialise Avro messages that carry the id of their schema, for producers and consumers.

Strategy: five bytes precede the body: a zero byte and the schema's id as a big-endian uint32, as Confluent's
serialisers write them. Each schema is fetched from the registry once and cached without limit, since an id never
changes its meaning. `fastavro` encodes and decodes the bodies.

Blocking, without Twisted: it runs in Spark's executors too.
"""

from __future__ import annotations

import io
import json
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from pylogd.base.errors import PylogdError
from pylogd.client.registry.api_client import RegistryApi, SchemaRegistryError, path_of

_HEAD: Final = struct.Struct(">bI")
_MAGIC: Final = 0
#: The registry's code for an unknown id. Another 404 may mean a wrong URL.
_SCHEMA_NOT_FOUND: Final = 40403
#: The time for which an unknown id is not requested again, and the most such ids, since invalid messages may name many.
_UNKNOWN_SECONDS: Final = 10.0
_MOST_UNKNOWN: Final = 100_000

__all__ = [
    "AvroDeserializer",
    "AvroSerializer",
    "NotAvro",
    "SchemaRegistryClient",
    "SchemaRegistryError",
    "UnknownSchemaId",
]


class NotAvro(PylogdError):
    """A message without a schema id, a body that does not match its schema, or a value that does not fit the schema."""


class UnknownSchemaId(NotAvro):
    """The registry has no schema, or no Avro schema, for a message's id. A failure of the registry raises another
    error.
    """


class SchemaRegistryClient:
    """A client of the registry at `url`. Caches schemas and registrations. Threads may share it.

    timeout: the seconds within which a whole answer must arrive.
    settings: TLS and credentials, see `access`.
    """

    def __init__(self, url: str, timeout: float = 10.0, settings: Mapping[str, str] | None = None) -> None:
        """Raises ValueError for settings that are unknown or contradict each other."""
        self._api = RegistryApi(url, timeout, settings)
        self._schemas: dict[int, Any] = {}
        self._ids: dict[tuple[str, str], int] = {}
        self._unknown: dict[int, tuple[float, str]] = {}  # the time until which an id is not requested again, and why
        self._lock = threading.Lock()

    def schema(self, schema_id: int) -> Any:
        """Return the parsed schema with this id. Raises UnknownSchemaId and SchemaRegistryError.

        An unknown id may be registered later, so it is requested again after some seconds.
        """
        found = self._schemas.get(schema_id)
        if found is None:
            with self._lock:
                found = self._schemas.get(schema_id)
                if found is None:
                    found = self._schemas[schema_id] = self._fetch(schema_id)
        return found

    def register(self, subject: str, schema: Mapping[str, Any] | str) -> int:
        """Register a schema as the latest version of a subject, unless the subject has it. Return the schema's id.

        Raises SchemaRegistryError, for example if the schema is incompatible.
        """
        text = schema if isinstance(schema, str) else json.dumps(schema, separators=(",", ":"))
        known = self._ids.get((subject, text))
        if known is None:
            path = path_of("subjects", subject, "versions")
            known = self._ids[subject, text] = int(self._api.ask(path, {"schema": text})["id"])
        return known

    def _fetch(self, schema_id: int) -> Any:
        now = time.monotonic()
        until, why = self._unknown.get(schema_id, (now, ""))
        if now < until:
            raise UnknownSchemaId(why)
        try:
            return self._parse(self._api.ask(path_of("schemas", "ids", schema_id)), {})
        except SchemaRegistryError as error:
            if error.code != _SCHEMA_NOT_FOUND:
                raise
            why = f"the registry has no schema with the id {schema_id}"
        except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError, RecursionError) as error:
            why = f"schema {schema_id} of the registry is not an Avro schema: {error or type(error).__name__}"
        if len(self._unknown) >= _MOST_UNKNOWN:
            self._unknown.clear()
        self._unknown[schema_id] = now + _UNKNOWN_SECONDS, why
        raise UnknownSchemaId(why)

    def _parse(self, document: Mapping[str, Any], named: dict[str, Any]) -> Any:
        kind = document.get("schemaType") or "AVRO"
        if kind != "AVRO":
            raise ValueError(f"its type is {kind}")
        for used in document.get("references") or ():
            path = path_of("subjects", used["subject"], "versions", used["version"])
            if used["name"] not in named:
                self._parse(self._api.ask(path, query={"deleted": "true"}), named)
        return parse_schema(json.loads(document["schema"]), named_schemas=named)


class AvroSerializer:
    """Serialises values. The first call for a topic registers the schema as `<topic>-value`, or `-key` with `key`."""

    def __init__(self, registry: SchemaRegistryClient, schema: Mapping[str, Any], *, key: bool = False) -> None:
        self._registry = registry
        self._text = json.dumps(schema, separators=(",", ":"))
        self._schema = parse_schema(dict(schema))
        self._suffix = "-key" if key else "-value"

    def __call__(self, topic: str, value: Any) -> bytes:
        """Return the message. Raises NotAvro if the value does not fit the schema, and SchemaRegistryError."""
        schema_id = self._registry.register(topic + self._suffix, self._text)
        out = io.BytesIO()
        out.write(_HEAD.pack(_MAGIC, schema_id))
        try:
            fastavro.schemaless_writer(out, self._schema, value)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise NotAvro(f"the value does not fit the schema: {error}") from error
        return out.getvalue()


class AvroDeserializer:
    """Deserialises messages. Values are resolved to the schema `reader` if it is given."""

    def __init__(self, registry: SchemaRegistryClient, reader: Mapping[str, Any] | None = None) -> None:
        self._registry = registry
        self._reader = None if reader is None else parse_schema(dict(reader))

    def __call__(self, message: bytes) -> Any:
        """Return the value. Raises NotAvro, also for an unknown id, or SchemaRegistryError."""
        schema = self._registry.schema(schema_id_of(message))
        body = io.BytesIO(message)
        body.seek(_HEAD.size)
        try:
            value = fastavro.schemaless_reader(body, schema, self._reader)
        except (ValueError, TypeError, KeyError, IndexError, EOFError, StopIteration, OverflowError,
                fastavro.read.SchemaResolutionError) as error:  # fmt: skip
            raise NotAvro(f"the body of the message does not match its schema: {error!r}") from error
        if body.tell() != len(message):
            raise NotAvro(f"{len(message) - body.tell()} bytes follow the value in the message")
        return value


def schema_id_of(message: bytes) -> int:
    """Return the schema id at the start of a message. Raises NotAvro if it has none."""
    if len(message) < _HEAD.size or message[0] != _MAGIC:
        raise NotAvro("the message does not begin with a schema id: a zero byte and four bytes of id")
    return int(_HEAD.unpack_from(message)[1])
