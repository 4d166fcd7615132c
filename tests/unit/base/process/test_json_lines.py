"""Log events as JSON lines: fields with their types, failures in one piece, bounded lines, whatever an event holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import ILogObserver, Logger, LogLevel
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogd.base.process.json_lines import MOST_CHARACTERS, json_line


@implementer(ILogObserver)
class Recorder:
    """Keeps the lines of events."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, event: dict[str, Any]) -> None:
        self.lines.append(json_line(event))


def logged(text: str, level: Any = LogLevel.info, **fields: Any) -> dict[str, Any]:
    """Return the JSON of an event that was logged like this. Checks that it is one line."""
    recorder = Recorder()
    Logger("pylogd.test", observer=recorder).emit(level, text, **fields)
    (line,) = recorder.lines
    assert line.endswith("\n") and line.isascii() and len(line.splitlines()) == 1
    found: dict[str, Any] = json.loads(line)
    return found


class Unprintable:
    """A value that can't say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


def test_fields_keep_their_types() -> None:
    line = logged("{count} of {topic}", LogLevel.warn, count=3, topic="t", share=0.5, ok=True, none=None, nodes=[1, 2])
    assert line["message"] == "3 of t"
    assert (line["level"], line["logger"]) == ("warn", "pylogd.test")
    assert line["fields"] == {"count": 3, "topic": "t", "share": 0.5, "ok": True, "none": None, "nodes": [1, 2]}
    assert line["time"].endswith("+00:00")


def test_a_failure_is_one_object() -> None:
    try:
        raise ValueError("line one\nline two")
    except ValueError:
        line = logged("went wrong", LogLevel.critical, log_failure=Failure(), topic="t")
    assert line["error"]["type"] == "ValueError"
    assert line["error"]["text"] == "line one\nline two"
    assert "Traceback" in line["error"]["traceback"] and "test_a_failure_is_one_object" in line["error"]["traceback"]
    assert line["message"] == "went wrong"
    assert line["fields"] == {"topic": "t"}


def test_a_long_traceback_keeps_its_end() -> None:
    def descend(depth: int) -> None:
        if depth:
            descend(depth - 1)
        else:
            raise LookupError("at the bottom")

    try:
        descend(200)
    except LookupError:
        line = logged("deep", log_failure=Failure())
    assert line["error"]["traceback"].startswith("...")
    assert "at the bottom" in line["error"]["traceback"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (1 << 80, hex(1 << 80)),
        (b"\xff\x00k", "\\xff\x00k"),
        (LogLevel.info, None),
        ({"a": (1, {2})}, {"a": [1, [2]]}),
        (Unprintable(), "(a Unprintable without text: RuntimeError)"),
        (ValueError("v"), "v"),
    ],
)
def test_what_json_does_not_have_is_shown_as_text(value: object, shown: object) -> None:
    line = logged("x", value=value)
    assert line["fields"]["value"] == shown if shown is not None else isinstance(line["fields"]["value"], str)


def test_what_controls_a_terminal_is_escaped() -> None:
    recorder = Recorder()
    Logger("pylogd.test", observer=recorder).info("{client}", client="\x1b[31m\x9b\u202e\n")
    assert "\x1b" not in recorder.lines[0] and recorder.lines[0].isascii()


@given(st.dictionaries(st.text(min_size=1).filter(lambda name: not name.startswith("log_")), st.text(), max_size=40))
def test_any_text_becomes_a_bounded_line(fields: dict[str, str]) -> None:
    line = json_line({"log_format": "text", "log_level": LogLevel.info, "log_time": 0.0, **fields})
    assert len(line) <= MOST_CHARACTERS + 1
    json.loads(line)


def test_a_huge_event_is_shortened() -> None:
    try:
        raise ValueError("\x00" * 100_000)
    except ValueError:
        line = json_line({
            "log_format": "{value}", "log_level": LogLevel.error, "log_time": 0.0, "value": "\U0001f600" * 100_000,
            "log_failure": Failure(),
        })  # fmt: skip
    assert len(line) <= MOST_CHARACTERS + 1
    found = json.loads(line)
    assert found["shortened"] is True
    assert found["error"]["type"] == "ValueError"
