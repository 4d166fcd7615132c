"""The command on a terminal: tables, progress bars, confirmations, and escaped control characters."""

from __future__ import annotations

import codecs
import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from pylogd.wire.messages.list_groups import ListedGroup, ListGroupsResponse
from pylogd.wire.records import encode_batch
from tests.fakes.broker import FakeBroker
from tests.unit.cli.helpers import COMMAND, pylogd_process

SECONDS = 120
COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def server() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=2) as server:
        yield server


class Terminal:
    """The command on a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}
        )
        os.close(theirs)
        self.output = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a piece may end within a character

    def read_until(self, text: str) -> None:
        deadline = time.monotonic() + SECONDS
        while text not in self.output:
            assert select.select([self._ours], [], [], deadline - time.monotonic())[0], self.output
            self.output += self._decoder.decode(os.read(self._ours, 4096))

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def end(self) -> int:
        """Read the rest of the output; return the exit code."""
        while True:
            try:
                piece = os.read(self._ours, 4096)
            except OSError:  # on Linux: the process has closed its end
                break
            if not piece:
                break
            self.output += self._decoder.decode(piece)
        os.close(self._ours)
        return self._process.wait(SECONDS)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    @property
    def plain(self) -> str:
        return COLOUR.sub("", self.output)


def test_a_table_has_a_heading(server: FakeBroker) -> None:
    terminal = Terminal("offsets", "t", "-b", server.address)
    assert terminal.end() == 0
    assert "partition" in terminal.plain and "beginning" in terminal.plain
    assert "\x1b[" in terminal.output


def test_a_bar_and_a_summary(server: FakeBroker, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("line\n" * 1000)
    terminal = Terminal("produce", "t", str(tmp_path / "lines"), "-b", server.address)
    assert terminal.end() == 0
    assert "1,000 records, 4.9 KiB in" in terminal.plain
    quiet = Terminal("produce", "t", str(tmp_path / "lines"), "-b", server.address, "--quiet")
    assert quiet.end() == 0 and quiet.output == ""


@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("\x03", 130)])
def test_deleting_asks_for_confirmation(server: FakeBroker, answer: str, code: int) -> None:
    terminal = Terminal("topics", "delete", "t", "-b", server.address)
    terminal.read_until("Delete t with all records?")
    if answer == "\x03":
        terminal.interrupt()
        terminal.type("\n")  # a signal just before a read of Python's is handled after the read
    else:
        terminal.type(answer)
    assert terminal.end() == code
    assert not server.seen, "nobody was asked to delete anything"


HOSTILE = "[/x]\x1b]0;title\x07"


def test_names_from_a_broker_do_not_control_the_terminal(server: FakeBroker) -> None:
    listed = ListGroupsResponse(groups=[ListedGroup(HOSTILE, "consumer", "Stable", "classic")])
    server.on(ApiKey.LIST_GROUPS, lambda _: listed, lambda _: listed)
    terminal = Terminal("groups", "list", "-b", server.address)
    assert terminal.end() == 0, terminal.output
    assert "[/x]\\x1b]0;title\\x07" in terminal.plain
    assert "\x1b]0;" not in terminal.output
    as_json = Terminal("groups", "list", "--json", "-b", server.address)
    assert as_json.end() == 0
    assert "\x1b" not in as_json.output and json.loads(as_json.output)[0]["group"] == HOSTILE


def test_error_texts_from_a_broker_do_not_control_the_terminal(server: FakeBroker) -> None:
    refused = CreatableTopicResult("t", error_code=ErrorCode.INVALID_CONFIG, error_message=HOSTILE + "\x1b[2J")
    server.on(ApiKey.CREATE_TOPICS, lambda _: CreateTopicsResponse(topics=[refused]))
    terminal = Terminal("topics", "create", "t", "-b", server.address)
    assert terminal.end() == 1
    assert "\x1b" not in terminal.output and "[/x]\\x1b]0;title\\x07\\x1b[2J" in terminal.output


@pytest.mark.parametrize("form", ["plain", "key-value", "json"])
def test_records_are_escaped_on_a_terminal(server: FakeBroker, form: str) -> None:
    server.append(0, encode_batch([(b"k\x1b[1m", b"line\n\ttab " + HOSTILE.encode() + b"\xff", 1, ())]))
    arguments = ["consume", "t", "-p", "0", "--until-end", "-o", form, "-b", server.address]
    terminal = Terminal(*arguments)
    assert terminal.end() == 0
    assert "\x1b" not in terminal.output
    raw = Terminal(*arguments, "--raw")
    assert raw.end() == 0
    assert ("\x1b]0;title\x07" in raw.output) == (form != "json")
    piped = pylogd_process(arguments)
    if form != "json":
        assert "line\r\n\ttab [/x]\\x1b]0;title\\x07\\xff" in terminal.output
        assert b"line\n\ttab [/x]\x1b]0;title\x07\xff\n" in piped.out
