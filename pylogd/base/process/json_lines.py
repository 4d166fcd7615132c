"""Log events as JSON, one object on a line, for programs that collect logs.

Strategy: `time`, `level`, `logger` and `message` are in every line. What the event was logged with is in `fields` under
its own name, and numbers and booleans keep their types. A failure is in `error`: its type, its text, and the traceback
as one string, so that no collector cuts it up.

Rules: a line has at most `MOST_CHARACTERS`, since container engines split longer ones (Docker at 16 KiB). Whatever an
event holds becomes a line; nothing here raises.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from twisted.logger import formatEvent
from twisted.python.failure import Failure

from pylogd.base.process.printable import printable_json

#: A line of this length stays below 16 KiB as UTF-8, as it is ASCII only.
MOST_CHARACTERS: Final = 16_000
_MESSAGE_CHARACTERS: Final = 4_000
_TEXT_CHARACTERS: Final = 1_000
#: The end of a traceback says where the error was raised, so its beginning is left out.
_TRACEBACK_CHARACTERS: Final = 6_000
_MOST_ITEMS: Final = 32
#: How deep values are in other values, before they are shown as text.
_DEPTH: Final = 3
#: Keys of Twisted's older log events that say nothing about what happened.
_LEGACY: Final = frozenset({"system", "time", "message", "isError", "format", "printed", "text", "failure", "why"})


def json_line(event: Mapping[str, Any]) -> str:
    """Return a log event of Twisted as one line of JSON, with its line feed."""
    line: dict[str, Any] = {
        "time": datetime.fromtimestamp(event.get("log_time", 0.0), UTC).isoformat(timespec="milliseconds"),
        "level": getattr(event.get("log_level"), "name", "info"),
        "logger": _text(event.get("log_namespace") or "", _TEXT_CHARACTERS),
        "message": _text(formatEvent(dict(event)), _MESSAGE_CHARACTERS),
    }
    if fields := _fields(event):
        line["fields"] = fields
    failure = event.get("log_failure")
    if isinstance(failure, Failure):
        line["error"] = _error(failure)
    text = _dump(line)
    if len(text) > MOST_CHARACTERS:  # escapes may make a text six times as long
        line = {name: line[name] for name in ("time", "level", "logger")} | {
            "message": _text(line["message"], _TEXT_CHARACTERS), "shortened": True,
        }  # fmt: skip
        if isinstance(failure, Failure):
            line["error"] = {"type": failure.type.__qualname__ if failure.type else "", "text": "", "traceback": ""}
        text = _dump(line)
    return text + "\n"


def _dump(line: Mapping[str, Any]) -> str:
    return printable_json(json.dumps(line, ensure_ascii=True, allow_nan=False, separators=(",", ":")))


def _fields(event: Mapping[str, Any]) -> dict[str, Any]:
    old = "isError" in event  # log.msg of older code of Twisted
    named = (
        (name, value)
        for name, value in event.items()
        if not name.startswith("log_") and not (old and name in _LEGACY) and name != "failure"
    )
    return {_text(name, _TEXT_CHARACTERS): _value(value, _DEPTH) for name, value in islice(named, _MOST_ITEMS)}


def _error(failure: Failure) -> dict[str, str]:
    trace = failure.getTraceback()
    if len(trace) > _TRACEBACK_CHARACTERS:
        trace = "..." + trace[-_TRACEBACK_CHARACTERS:]
    kind = "" if failure.type is None else f"{failure.type.__module__}.{failure.type.__qualname__}"
    return {
        "type": kind.removeprefix("builtins."),
        "text": _text(failure.getErrorMessage(), _TEXT_CHARACTERS),
        "traceback": _text(trace, _TRACEBACK_CHARACTERS + 3),
    }


def _value(value: object, depth: int) -> Any:
    """Return a value that JSON has. Numbers and booleans stay what they are; collections are shortened."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 64 else _text(hex(value), _TEXT_CHARACTERS)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(value)
    if isinstance(value, bytes):
        return _text(value[:_TEXT_CHARACTERS].decode(errors="backslashreplace"), _TEXT_CHARACTERS)
    if depth and isinstance(value, Mapping):
        items = islice(value.items(), _MOST_ITEMS)
        return {_text(name, _TEXT_CHARACTERS): _value(item, depth - 1) for name, item in items}
    if depth and isinstance(value, list | tuple | set | frozenset):
        return _values(value, depth - 1)
    return _text(value, _TEXT_CHARACTERS)


def _values(values: Iterable[object], depth: int) -> list[Any]:
    return [_value(value, depth) for value in islice(values, _MOST_ITEMS)]


def _text(value: object, most: int) -> str:
    """Return the first characters of a value as text; a description of it if it can't say what it is."""
    try:
        text = str(value)
    except Exception as error:  # any code may run here
        text = f"(a {type(value).__name__} without text: {type(error).__name__})"
    return text if len(text) <= most else text[: most - 3] + "..."
