"""Make records of input: lines with a key and a value, or JSON as `pylogd consume --format json` prints it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pylogd.errors import PylogdError

Headers = Sequence[tuple[str, bytes | None]]
#: Makes bytes of a key or a value in JSON, or of text.
Encode = Callable[[Any], bytes | None]
_MOST_SHOWN = 60


class BadInput(PylogdError):
    """A line that is no record; the text says why."""


class InputRecord(NamedTuple):
    """A record to send. partition, timestamp: None for that of the producer's choice."""

    key: bytes | None
    value: bytes | None
    partition: int | None
    timestamp: int | None
    headers: Headers


class InputFormat(Protocol):
    """The type of functions that make a record of a line, given without its line end."""

    def read(self, line: bytes) -> InputRecord:
        """Return the record. Raises BadInput."""
        ...


@dataclass(frozen=True, slots=True)
class Encoders:
    """The type of functions that encode keys and values. None: they are bytes already."""

    key: Encode | None = None
    value: Encode | None = None


@dataclass(frozen=True, slots=True)
class Fixed:
    """The options that apply to every record."""

    key: bytes | None = None
    partition: int | None = None
    headers: Headers = ()


class LineFormat:
    """Lines: the value, or with a separator the key and the value."""

    def __init__(
        self,
        fixed: Fixed,
        separator: str | None = None,
        null_value: str | None = None,
        encoders: Encoders | None = None,
    ) -> None:
        """separator: between key and value. null_value: a value that stands for null."""
        self._fixed = fixed
        self._separator = None if not separator else separator.encode()
        self._null = None if null_value is None else null_value.encode()
        self._encoders = encoders or Encoders()

    def read(self, line: bytes) -> InputRecord:
        """Return the record of a line. Raises BadInput: a value that does not fit its schema."""
        key, value = self._fixed.key, line
        if self._separator is not None:
            head, found, tail = line.partition(self._separator)
            if found:
                key, value = head, tail
        encoded = None if value == self._null else _from_text(value, self._encoders.value)
        return InputRecord(
            _from_text(key, self._encoders.key), encoded, self._fixed.partition, None, self._fixed.headers
        )


def _from_text(data: bytes | None, encode: Encode | None) -> bytes | None:
    return data if data is None or encode is None else encode(_parse(data))


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        shown = data[:_MOST_SHOWN].decode(errors="replace")
        raise BadInput(f"not JSON ({error}): {shown}") from None


class JsonFormat:
    """A JSON object on each line, with the fields that `pylogd consume --format json` prints.

    `value`, `key`: text or null; with a schema, any JSON. `value_base64`, `key_base64`: bytes. `headers`: a list of
    objects with `name` and `value` or `value_base64`. `timestamp`: milliseconds since 1970. `partition` is used if that
    was asked for. Other fields, such as `topic` and `offset`, are ignored.
    """

    def __init__(self, fixed: Fixed, encoders: Encoders | None = None, *, keep_partitions: bool = False) -> None:
        self._fixed = fixed
        self._encoders = encoders or Encoders()
        self._keep_partitions = keep_partitions

    def read(self, line: bytes) -> InputRecord:
        """Return the record of a line. Raises BadInput."""
        found = _parse(line)
        if not isinstance(found, dict):
            raise BadInput(f"not a JSON object: {line[:_MOST_SHOWN].decode(errors='replace')}")
        key = _field(found, "key", self._encoders.key)
        partition = _integer(found, "partition") if self._keep_partitions else None
        return InputRecord(
            self._fixed.key if key is None else key,
            _field(found, "value", self._encoders.value),
            self._fixed.partition if self._fixed.partition is not None else partition,
            _integer(found, "timestamp"),
            [*_headers(found.get("headers") or []), *self._fixed.headers],
        )


def _field(fields: Mapping[str, Any], name: str, encode: Encode | None) -> bytes | None:
    packed = fields.get(f"{name}_base64")
    if packed is not None:
        try:
            return base64.b64decode(packed, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise BadInput(f"{name}_base64 is not base64") from None
    value = fields.get(name)
    if value is None:
        return None
    if encode is not None:
        return encode(value)
    if not isinstance(value, str):
        raise BadInput(f"{name} has to be text or null, not {json.dumps(value)[:_MOST_SHOWN]}")
    return value.encode(errors="surrogatepass")


def _integer(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    if name == "timestamp" and value == -1:
        return None
    raise BadInput(f"{name} has to be a number that is not negative")


def _headers(found: Any) -> list[tuple[str, bytes | None]]:
    if not isinstance(found, list) or not all(isinstance(one, dict) and "name" in one for one in found):
        raise BadInput('headers has to be a list such as [{"name": "a", "value": "b"}]')
    return [(str(one["name"]), _field(one, "value", None)) for one in found]
