"""Write records as text: the formats of `pylogd consume --format`, and templates such as `%k %v\\n`.

| in a template | is written as |
| --- | --- |
| `%t` `%p` `%o` | topic, partition, offset |
| `%k` `%v` | key, value; nothing for null |
| `%K` `%V` | their lengths in bytes; -1 for null |
| `%d` `%D` | time in milliseconds since 1970; in ISO 8601 |
| `%h` `%H` | headers as `name=value,...`; their number |
| `%%` | a percent sign |
| `\\n` `\\t` `\\r` `\\\\` `\\xHH` | line end, tab, carriage return, backslash, the byte HH |

The letters are those of rpk and kcat where these agree. Nothing is written after a record but what the template says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from pylogd.base.process.printable import printable, printable_json
from pylogd.cli.common import format_time, text_or_base64
from pylogd.cli.output import note
from pylogd.client import Record
from pylogd.lake.typed.errors import NotDecoded

#: A function that returns the formatted record.
Render = Callable[[Record], bytes]
#: A function that returns the bytes to show for a key or value.
_Shown = Callable[[bytes | None], bytes]

_TOKEN = re.compile(r"%(?P<letter>.?)|\\(?P<escape>x[0-9A-Fa-f]{2}|.?)|(?P<text>[^%\\]+)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\"}
#: The placeholder of a decoded value; it means that the bytes of the record are used.
_BYTES: Final = object()
FORMATS: Final = ("plain", "key-value", "json")


def renderer(form: str, separator: bytes, *, escaped: bool) -> Render:
    """Return the function that writes records in a format: one of `FORMATS`, or a template.

    separator: the bytes between key and value.
    escaped: whether to escape control characters of terminals.

    Raises ValueError.
    """
    shown = _escaped if escaped else _raw
    if form == "json":
        return as_json
    if form == "key-value":
        return lambda record: b"%b%b%b\n" % (shown(record.key), separator, shown(record.value))
    if form == "plain":
        return lambda record: b"%b\n" % shown(record.value)
    return _template(form, shown)


class Decoding:
    """Write records whose keys or values are decoded first. Undecodable ones are written unchanged, with a note."""

    def __init__(self, render: Render, decode: Callable[[bytes], Any], parts: str) -> None:
        """parts: "key", "value" or "both". decode: returns what JSON can have. Raises NotDecoded."""
        self._render = render
        self._decode = decode
        self._key, self._value = parts in ("key", "both"), parts in ("value", "both")
        self._said = False

    def __call__(self, record: Record) -> bytes:
        key = self._decoded(record.key) if self._key else _BYTES
        value = self._decoded(record.value) if self._value else _BYTES
        if self._render is as_json:
            return as_json(record, key, value)
        return self._render(record._replace(key=_text(key, record.key), value=_text(value, record.value)))

    def _decoded(self, data: bytes | None) -> Any:
        """Return the value, or `_BYTES` to write the bytes."""
        if data is None:
            return _BYTES
        try:
            return self._decode(data)
        except NotDecoded as error:
            if not self._said:
                self._said = True
                note(f"a message is printed as it is, since {error}; there may be more")
            return _BYTES


def _text(value: Any, data: bytes | None) -> bytes | None:
    if value is _BYTES:
        return data
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace")


def _template(text: str, shown: _Shown) -> Render:
    if "%" not in text:
        raise ValueError(f"{text!r} is neither one of {', '.join(FORMATS)} nor a template with fields such as %v")
    fields = _fields(shown)
    parts: list[Render] = []
    for found in _TOKEN.finditer(text):
        if found["text"] is not None:
            parts.append(_constant(found["text"].encode()))
        elif found["escape"] is not None:
            parts.append(_constant(_escape(found["escape"])))
        elif found["letter"] in fields:
            parts.append(fields[found["letter"]])
        else:
            raise ValueError(f"%{found['letter']} is not a field of a template: there are %{', %'.join(fields)}")
    return lambda record: b"".join([part(record) for part in parts])


def _escape(text: str) -> bytes:
    if text in _ESCAPES:
        return _ESCAPES[text]
    if len(text) == 3:
        return bytes.fromhex(text[1:])
    raise ValueError(f"\\{text} is not an escape of a template: there are \\n, \\t, \\r, \\\\ and \\xHH")


def _constant(data: bytes) -> Render:
    return lambda _: data


def _fields(shown: _Shown) -> dict[str, Render]:
    return {
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "k": lambda record: shown(record.key),
        "v": lambda record: shown(record.value),
        "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
        "V": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
        "d": lambda record: b"%d" % record.timestamp,
        "D": lambda record: format_time(record.timestamp).encode(),
        "h": lambda record: b",".join(shown(name.encode()) + b"=" + shown(value) for name, value in record.headers),
        "H": lambda record: b"%d" % len(record.headers),
        "%": _constant(b"%"),
    }


def _raw(data: bytes | None) -> bytes:
    return data or b""


def _escaped(data: bytes | None) -> bytes:
    """Return what a terminal can show safely: UTF-8 whose line ends and tabs are kept, all else escaped."""
    return printable((data or b"").decode("utf-8", "backslashreplace"), keep="\n\t").encode()


def as_json(record: Record, key: Any = _BYTES, value: Any = _BYTES) -> bytes:
    """Return a record as a line of JSON.

    key, value: the decoded key and value, which replace the bytes.
    """
    fields: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "time": format_time(record.timestamp),
        **(text_or_base64("key", record.key) if key is _BYTES else {"key": key}),
        **(text_or_base64("value", record.value) if value is _BYTES else {"value": value}),
    }
    if record.headers:
        fields["headers"] = [{"name": name, **text_or_base64("value", value)} for name, value in record.headers]
    return printable_json(json.dumps(fields, ensure_ascii=False)).encode() + b"\n"
