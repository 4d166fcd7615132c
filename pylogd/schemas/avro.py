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
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, Final

import fastavro
from fastavro.schema import parse_schema

from pylogd.errors import PylogdError
from pylogd.schemas.access import Access
from pylogd.security.sasl.http_client import read_body

_HEAD: Final = struct.Struct(">bI")
_MAGIC: Final = 0
#: The most bytes of a registry's answer: of a schema, as JSON in JSON.
_MOST_BYTES: Final = 1 << 23


class SchemaRegistryError(PylogdError):
    """The registry answered with an error, or can't be reached. `code` is the API's error code, or 0."""

    def __init__(self, message: str, code: int = 0) -> None:
        self.code = code
        super().__init__(message)


class NotAvro(PylogdError):
    """A message without a schema id, a body that does not match its schema, or a value that does not fit the schema."""


class SchemaRegistryClient:
    """A client of the registry at `url`. Caches schemas and registrations. May be shared by threads.

    `timeout`: seconds that an answer may take, however slowly its bytes come. `settings`: TLS and
    credentials, see `access`.
    """

    def __init__(self, url: str, timeout: float = 10.0, settings: Mapping[str, str] | None = None) -> None:
        """Raises ValueError for settings that are unknown or contradict each other."""
        self._access = Access(url, settings or {})
        self._timeout = timeout
        self._schemas: dict[int, Any] = {}
        self._ids: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def schema(self, schema_id: int) -> Any:
        """Return the parsed schema with that id. Raises SchemaRegistryError."""
        found = self._schemas.get(schema_id)
        if found is None:
            with self._lock:
                found = self._schemas.get(schema_id)
                if found is None:
                    found = self._schemas[schema_id] = self._fetch(schema_id)
        return found

    def register(self, subject: str, schema: Mapping[str, Any] | str) -> int:
        """Register a schema as the latest version of a subject unless it has it; return its id.

        Raises SchemaRegistryError, for example if the schema is incompatible.
        """
        text = schema if isinstance(schema, str) else json.dumps(schema, separators=(",", ":"))
        known = self._ids.get((subject, text))
        if known is None:
            path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions"
            known = self._ids[subject, text] = int(self._ask(path, {"schema": text})["id"])
        return known

    def get(self, path: str) -> Any:
        """Return the registry's answer to a GET request. Raises SchemaRegistryError."""
        return self._ask(path)

    def _fetch(self, schema_id: int) -> Any:
        named: dict[str, Any] = {}
        return self._parse(self._ask(f"/schemas/ids/{schema_id}"), named)

    def _parse(self, document: Mapping[str, Any], named: dict[str, Any]) -> Any:
        for used in document.get("references") or ():
            path = f"/subjects/{urllib.parse.quote(used['subject'], safe='')}/versions/{used['version']}?deleted=true"
            if used["name"] not in named:
                self._parse(self._ask(path), named)
        return parse_schema(json.loads(document["schema"]), named_schemas=named)

    def _ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(self._access.url + path, data, headers)
        try:
            with self._access.open(request, self._timeout) as reply:
                return json.loads(read_body(reply, _MOST_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                raise _refused(error) from error
        except (OSError, ValueError) as error:
            raise SchemaRegistryError(f"can't reach the schema registry at {self._access.url}: {error}") from error


def _refused(error: urllib.error.HTTPError) -> SchemaRegistryError:
    try:
        document = json.loads(read_body(error, _MOST_BYTES))
        return SchemaRegistryError(str(document["message"]), int(document["error_code"]))
    except (OSError, ValueError, KeyError, TypeError):
        return SchemaRegistryError(f"the schema registry answered {error.code} {error.reason}")


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
        """Return the value. Raises NotAvro or SchemaRegistryError."""
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
    """Return the schema id at the start of a message. Raises NotAvro if there is none."""
    if len(message) < _HEAD.size or message[0] != _MAGIC:
        raise NotAvro("the message does not begin with a schema id: a zero byte and four bytes of id")
    return int(_HEAD.unpack_from(message)[1])
