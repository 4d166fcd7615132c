"""Make records of input: lines with a key and a value, or JSON as `pylogd consume --format json` prints it."""

from __future__ import annotations

import base64
import binascii
import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pylogd.base.errors import PylogdError

Headers = Sequence[tuple[str, bytes | None]]
#: A function that encodes a key or a value: parsed JSON, or text.
Encode = Callable[[Any], bytes | None]
_MOST_SHOWN = 60
#: The fields that a line of JSON may have, which are those that `templates.as_json` writes.
_FIELDS = frozenset(
    {"topic", "partition", "offset", "timestamp", "time", "key", "key_base64", "value", "value_base64", "headers"}
)
_HEADER_FIELDS = frozenset({"name", "value", "value_base64"})


class BadInput(PylogdError):
    """A line is not a record; the text gives the reason."""


class InputRecord(NamedTuple):
    """A record to send.

    partition, timestamp: None leaves the choice to the producer.
    """

    key: bytes | None
    value: bytes | None
    partition: int | None
    timestamp: int | None
    headers: Headers


class InputFormat(Protocol):
    """The interface of formats, which parse a line without its line end."""

    def read(self, line: bytes) -> InputRecord:
        """Return the record. Raises BadInput."""
        ...


@dataclass(frozen=True, slots=True)
class Encoders:
    """The functions that encode keys and values; None if they are bytes already."""

    key: Encode | None = None
    value: Encode | None = None


@dataclass(frozen=True, slots=True)
class Fixed:
    """The options that apply to every record."""

    key: bytes | None = None
    partition: int | None = None
    headers: Headers = ()


class LineFormat:
    """The format of lines that have a value or, with a separator, a key and a value."""

    def __init__(
        self,
        fixed: Fixed,
        separator: str | None = None,
        null_value: str | None = None,
        encoders: Encoders | None = None,
    ) -> None:
        """Take the options.

        separator: the text between key and value.
        null_value: the text of a value that means null.
        """
        self._fixed = fixed
        self._separator = None if not separator else separator.encode()
        self._null = None if null_value is None else null_value.encode()
        self._encoders = encoders or Encoders()

    def read(self, line: bytes) -> InputRecord:
        """Return the record of a line. Raises BadInput for a value that does not fit its schema."""
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

    `value`, `key`: text or null; with a schema, any JSON.
    `value_base64`, `key_base64`: bytes.
    `headers`: a list of objects with `name` and `value` or `value_base64`.
    `timestamp`: milliseconds since 1970.
    `partition`: used only if `keep_partitions`.
    `topic`, `offset`, `time`: ignored.

    A null value deletes the key on compaction, so it has to be given explicitly: a missing value and an unknown field
    are errors. A missing key is null.
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
        check_fields(found, _FIELDS)
        key = _field(found, "key", self._encoders.key)
        partition = _integer(found, "partition") if self._keep_partitions else None
        return InputRecord(
            self._fixed.key if key is None else key,
            _field(found, "value", self._encoders.value, required="the record has no value"),
            self._fixed.partition if self._fixed.partition is not None else partition,
            _integer(found, "timestamp"),
            [*_headers(found.get("headers")), *self._fixed.headers],
        )


def check_fields(fields: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raise BadInput, with the nearest name, for an unknown field."""
    if fields.keys() <= known:
        return
    name = next(name for name in fields if name not in known)
    near = difflib.get_close_matches(name, sorted(known), 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
    raise BadInput(f"unknown field {json.dumps(name)[:_MOST_SHOWN]}: {hint}")


def _field(fields: Mapping[str, Any], name: str, encode: Encode | None, required: str = "") -> bytes | None:
    """Return the bytes of a field, or of the field's base64 form.

    required: the error if both are missing; "" if they may be missing.
    """
    packed = fields.get(f"{name}_base64")
    if packed is not None:
        if fields.get(name) is not None:
            raise BadInput(f"{name} and {name}_base64 exclude each other")
        try:
            return base64.b64decode(packed, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise BadInput(f"{name}_base64 is not base64") from None
    value = fields.get(name)
    if value is None:
        if required and name not in fields and f"{name}_base64" not in fields:
            raise BadInput(f'{required}: null is written as "{name}": null')
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
    if found is None:
        return []
    if not isinstance(found, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in found
    ):
        raise BadInput('headers has to be a list such as [{"name": "a", "value": "b"}]')
    for one in found:
        check_fields(one, _HEADER_FIELDS)
    return [
        (one["name"], _field(one, "value", None, required=f"the header {one['name']} has no value")) for one in found
    ]
