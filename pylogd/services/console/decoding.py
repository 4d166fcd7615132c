"""Decode keys and values for people: by the schema registry, as JSON, as text, or as bytes.

Strategy: a message that begins with a zero byte and a schema's id is decoded by that schema: Avro, JSON Schema or
Protobuf, by the code of `pylogd consume --decode`. All of it runs in threads: schemas are fetched from the registry at
their first use, and are kept. Values that can't be decoded are shown as bytes, with the reason. A schema that could not
be read is requested again only after a while, so that a failed registry does not delay each message.
"""

from __future__ import annotations

import json
import string
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pylogd.base.errors import PylogdError
from pylogd.lake.typed.errors import NotDecoded
from pylogd.lake.typed.json_codec import Codec, schema_id_of

_MOST_JSON: Final = 1 << 20
_MOST_FAILURES: Final = 1000
_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 10.0
_PRINTABLE: Final = frozenset(string.printable)
#: Types of schemas -> kinds of `Decoded`, and their names for users.
_KINDS: Final = {"AVRO": ("avro", "Avro"), "PROTOBUF": ("protobuf", "Protobuf"), "JSON": ("json", "JSON")}


class Decoded(NamedTuple):
    """A key or a value.

    kind: the form from which it was decoded: `json`, `avro`, `protobuf`, `text`, `bytes` or `null`.
    value: a JSON-like value, text, or hexadecimal digits.
    note: its schema, or the reason why it could not be decoded.
    """

    kind: str
    value: Any
    note: str = ""

    def text(self) -> str:
        """Return the value as text for users."""
        if self.kind in ("json", "avro", "protobuf"):
            return json.dumps(self.value, ensure_ascii=False, indent=1, default=str)
        return "null" if self.value is None else str(self.value)


class Decoder:
    """Decodes messages. Several threads may use it."""

    def __init__(
        self, registry: str = "", settings: Mapping[str, str] | None = None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`registry` is the URL of a schema registry; "" for none. Raises ValueError for settings that it can't use."""
        self._codec = Codec(registry, settings or {}, _SECONDS, lambda _: None) if registry else None
        self._seconds = seconds
        self._failed: dict[int, tuple[float, str]] = {}  # unreadable schemas: until when, and the reason

    def decode(self, data: bytes | None) -> Decoded:
        """Decode a key or a value. May wait for the registry."""
        if data is None:
            return Decoded("null", None)
        if self._codec is None:
            return plain(data)
        try:
            schema_id = schema_id_of(data)
        except NotDecoded:
            return plain(data)
        try:
            kind, title = self._kind(self._codec, schema_id)
            return Decoded(kind, self._codec.decode(data), f"{title} schema {schema_id}")
        except (PylogdError, ImportError, ValueError, RecursionError) as error:
            return plain(data)._replace(note=f"schema {schema_id}: {str(error)[:200]}")

    def _kind(self, codec: Codec, schema_id: int) -> tuple[str, str]:
        """Return the kind of a schema for `Decoded`, and its name for users. Raises PylogdError."""
        until, why = self._failed.get(schema_id, (0.0, ""))
        if self._seconds() < until:
            raise NotDecoded(why)
        try:
            return _KINDS[codec.kind(schema_id)]
        except (PylogdError, ImportError) as error:
            if len(self._failed) >= _MOST_FAILURES:
                self._failed.clear()
            self._failed[schema_id] = self._seconds() + _AGAIN_SECONDS, str(error)
            raise
        except KeyError as error:
            raise NotDecoded(f"schemas of the type {error} are not decoded") from None


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
