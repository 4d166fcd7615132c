"""Make text of clients safe to print on a terminal."""

from __future__ import annotations

import ast
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import LogLevel

import pylogd.cli
from pylogd.base.process.logs import file_observer
from pylogd.base.process.printable import printable, printable_json

#: control characters that a terminal obeys, and text without any
HOSTILE = "\x1b]0;title\x07\r\n\t\x7f\x9b31m\N{RIGHT-TO-LEFT OVERRIDE}\u2028\ud800 plain \N{SNOWMAN} \\x1b [/x]"


def test_control_characters_become_escapes() -> None:
    assert printable(HOSTILE) == (
        "\\x1b]0;title\\x07\\r\\n\\t\\x7f\\x9b31m\\u202e\\u2028\\ud800 plain \N{SNOWMAN} \\x1b [/x]"
    )
    assert printable("a\n\tb\r", keep="\n\t") == "a\n\tb\\r"


@given(st.text())
def test_no_control_character_is_left(text: str) -> None:
    safe = printable(text)
    assert printable(safe) == safe
    assert all(character.isprintable() or ord(character) >= 0xA0 for character in safe)
    safe.encode()


@given(st.text(st.characters()))
def test_escaped_json_has_the_same_value(text: str) -> None:
    safe = printable_json(json.dumps({text: text}, ensure_ascii=False))
    assert json.loads(safe) == {text: text}
    assert printable(safe) == safe


def test_log_lines_are_escaped() -> None:
    written = io.StringIO()
    file_observer(written)(
        {"log_format": "{client}", "client": HOSTILE, "log_level": LogLevel.info, "log_namespace": "n", "log_time": 0.0}
    )
    assert "\x1b" not in written.getvalue() and "\\x1b]0;title\\x07" in written.getvalue()


@pytest.mark.parametrize("path", sorted(Path(pylogd.cli.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_subcommands_print_through_one_module(path: Path) -> None:
    called = {
        ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)
    }
    asking = {"click.echo", "click.confirm", "click.prompt"}
    direct = called & (asking | {"print", "click.secho", "sys.stdout.write", "sys.stderr.write"})
    assert direct == (asking if path.stem == "output" else set())
