"""Decode keys and values for people: by the schema registry, as JSON, as text, or as bytes.

Strategy: a message that begins with a zero byte and a schema's id is decoded by that schema: Avro by fastavro, JSON
after the id. All of it runs in a thread: schemas are fetched from the registry at their first use, and are kept. What
can't be decoded is shown as bytes, with the reason.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pylogd.errors import PylogdError
from pylogd.schemas.api_client import RegistryApi, SchemaRegistryError, path_of

_HEAD: Final = 5
_MOST_JSON: Final = 1 << 20
_MOST_SCHEMAS: Final = 10_000
_SECONDS: Final = 5.0
_PRINTABLE: Final = frozenset(string.printable)


class Decoded(NamedTuple):
    """A key or a value. kind: how it was decoded: `json`, `avro`, `text`, `bytes` or `null`. value: JSON-like, text, or
    hexadecimal digits. note: why it could not be decoded better, and which schema it has.
    """

    kind: str
    value: Any
    note: str = ""

    def text(self) -> str:
        """Return it as people read it."""
        if self.kind in ("json", "avro"):
            return json.dumps(self.value, ensure_ascii=False, indent=1, default=str)
        return "null" if self.value is None else str(self.value)


class Decoder:
    """Decodes messages. May be used from several threads."""

    def __init__(self, registry: str = "", settings: Mapping[str, str] | None = None) -> None:
        """registry: the URL of a schema registry, "" for none. Raises ValueError for settings that it can't use."""
        self._api = RegistryApi(registry, _SECONDS, settings) if registry else None
        self._kinds: dict[int, str] = {}
        self._avro: Any = None
        self._registry, self._settings = registry, settings

    def decode(self, data: bytes | None) -> Decoded:
        """Decode a key or a value. May wait for the registry."""
        if data is None:
            return Decoded("null", None)
        if self._api is not None and len(data) > _HEAD and data[0] == 0:
            schema_id = int.from_bytes(data[1:_HEAD], "big")
            try:
                return self._by_schema(schema_id, data)
            except (PylogdError, ImportError, ValueError, RecursionError) as error:
                return plain(data)._replace(note=f"schema {schema_id}: {str(error)[:200]}")
        return plain(data)

    def _by_schema(self, schema_id: int, data: bytes) -> Decoded:
        kind = self._kinds.get(schema_id)
        if kind is None:
            assert self._api is not None
            found = self._api.ask(path_of("schemas", "ids", schema_id))
            kind = str(found.get("schemaType", "AVRO"))
            if len(self._kinds) < _MOST_SCHEMAS:
                self._kinds[schema_id] = kind
        if kind == "JSON":
            return Decoded("json", json.loads(data[_HEAD:]), f"JSON schema {schema_id}")
        if kind != "AVRO":
            raise SchemaRegistryError(f"values of the type {kind} are not decoded")
        return Decoded("avro", self._by_avro(data), f"Avro schema {schema_id}")

    def _by_avro(self, data: bytes) -> Any:
        if self._avro is None:
            from pylogd.schemas.avro import AvroDeserializer, SchemaRegistryClient  # noqa: PLC0415 - fastavro, an extra

            self._avro = AvroDeserializer(SchemaRegistryClient(self._registry, _SECONDS, self._settings))
        return self._avro(data)


def plain(data: bytes) -> Decoded:
    """Decode without a registry: JSON objects and lists, text, or bytes in hexadecimal digits."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return Decoded("bytes", data.hex(" "))
    if len(data) <= _MOST_JSON and text.lstrip()[:1] in ("{", "["):
        try:
            return Decoded("json", json.loads(text))
        except (ValueError, RecursionError):
            return Decoded("text", text)
    return Decoded("text", text) if _is_text(text) else Decoded("bytes", data.hex(" "))


def _is_text(text: str) -> bool:
    return all(character in _PRINTABLE or ord(character) > 127 for character in text[:1000])
