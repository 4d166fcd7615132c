"""Which lines of an input are written when a command ends in the middle of it, and where it goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.cli.input_lines import InputLines, Written
from pylogd.cli.record_input import BadInput
from pylogd.client import Delivery
from pylogd.wire.messages import ApiKey
from tests.fakes.broker import FakeBroker, refuse_produce, silence
from tests.unit.cli.helpers import COMMAND, Outcome, pylogd_process

SECONDS = 60.0
REFUSED = KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "too large")


class FakeDelivery:
    """A delivery: pending (None), written ("") or failed."""

    def __init__(self, result: Exception | str | None) -> None:
        self.done = result is not None
        self.error = result if isinstance(result, PylogdError) else None


def followed(results: list[Any], skipped: int = 0, **options: Any) -> Written:
    """Follow lines of standard input with these results."""
    lines = InputLines([], skipped)
    lines._begins.append(0)
    written = Written(lines, skipped, **options)
    for result in results:
        written.add(cast(Delivery, FakeDelivery(result)))
    return written


@pytest.mark.parametrize(
    ("results", "error", "expected"),
    [
        (["", ""], BadInput("not JSON"),
         "standard input: line 3: not JSON. 2 lines before it are acknowledged. Correct it and go on with --skip-lines "
         "2, or leave it out with --skip-lines 3"),
        ([], BadInput("not JSON"),
         "standard input: line 1: not JSON. Nothing was written. Correct it and begin again, or leave it out with "
         "--skip-lines 1"),
        (["", ""], KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no partition 9"),
         "standard input: line 3: UNKNOWN_TOPIC_OR_PARTITION: no partition 9. 2 lines before it are acknowledged. Go "
         "on with --skip-lines 2"),
        (["", REFUSED, "", ""], None,
         "standard input: line 2: MESSAGE_TOO_LARGE: too large. 1 line before it is acknowledged; so are 2 "
         "after it, and would be written twice. Go on with --skip-lines 1"),
        (["", REFUSED, None, ""], BadInput("not JSON"),
         "standard input: line 2: MESSAGE_TOO_LARGE: too large; standard input: line 5: not JSON. 1 "
         "line before it is acknowledged; "
         "so is 1 after it, and would be written twice; 1 without an answer may be written twice. Go on with "
         "--skip-lines 1"),
        ([REFUSED], None,
         "standard input: line 1: MESSAGE_TOO_LARGE: too large. No line before it is acknowledged. Begin again"),
    ],
)  # fmt: skip
def test_errors_say_what_is_written_and_where_to_go_on(
    results: list[Any], error: Exception | None, expected: str
) -> None:
    assert followed(results).failure(error, str) == expected


def test_lines_that_were_left_out_are_not_counted_as_written_but_skipped_again() -> None:
    assert followed(["", None], 40).interruption() == (
        "Interrupted: 1 line is acknowledged; 1 without an answer may be written twice. Go on with --skip-lines 41"
    )
    assert followed([""] * 3, 40, confirmed=False).interruption() == (
        "Interrupted: 3 lines are sent. Go on with --skip-lines 43"
    )
    assert followed([], 40).interruption() == ""


@given(st.lists(st.sampled_from([None, "", REFUSED])), st.integers(0, 9))
def test_no_line_before_the_place_to_go_on_is_unwritten(results: list[Any], skipped: int) -> None:
    text = followed(results, skipped).failure(BadInput("x"), str)
    place = 0 if "egin again" in text else int(text.split("--skip-lines ")[1].split(",")[0])
    written = results[: place - skipped] if place else []
    assert all(one == "" for one in written)
    assert results[len(written) :][:1] != [""], "the first line behind it is written"


def chunks(lines: InputLines) -> list[bytes]:
    return [line for chunk in lines.chunks() for line in chunk]


def test_lines_are_numbered_over_all_files_and_named_by_their_own(tmp_path: Path) -> None:
    for name, text in (("a", b"1\n2\n"), ("b", b""), ("c", b"3\n4")):
        (tmp_path / name).write_bytes(text)
    files = [tmp_path / name for name in "abc"]
    lines = InputLines(files)
    assert chunks(lines) == [b"1", b"2", b"3", b"4"] and lines.bytes == 8
    assert [lines.place(number) for number in (1, 2, 3, 4)] == [
        f"{tmp_path}/a: line 1", f"{tmp_path}/a: line 2", f"{tmp_path}/c: line 1", f"{tmp_path}/c: line 2",
    ]  # fmt: skip
    assert chunks(InputLines(files, 3)) == [b"4"] and chunks(InputLines(files, 4)) == []
    with pytest.raises(click.ClickException, match="ends after line 4"):
        chunks(InputLines(files, 5))


def test_lines_before_one_that_is_too_long_are_given_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pylogd.cli.input_lines._LONGEST_LINE", 10)
    (tmp_path / "a").write_bytes(b"1\n2\n" + b"x" * 11)
    found: list[bytes] = []
    with pytest.raises(BadInput, match="a line has more than 10 B"):
        for chunk in InputLines([tmp_path / "a"]).chunks():
            found += chunk
    assert found == [b"1", b"2"]


# -- the command


@pytest.fixture
def server() -> Iterator[FakeBroker]:
    with FakeBroker() as server:
        yield server


def produce(server: FakeBroker, *arguments: str, stdin: bytes = b"") -> Outcome:
    return pylogd_process(["produce", "t", "-b", server.address, *arguments], stdin)


def test_all_lines_before_a_bad_one_are_written(server: FakeBroker) -> None:
    good = b"".join(b'{"value": "%d"}\n' % number for number in range(50_000))
    bad = good + b'{"key": "k"}\n{"value": "last"}\n'
    done = produce(server, "-f", "json", stdin=bad)
    assert (done.code, done.err) == (
        1,
        'Error: standard input: line 50001: the record has no value: null is written as "value": null. 50,000 lines '
        "before it are acknowledged. Correct it and go on with --skip-lines 50000, or leave it out with --skip-lines "
        "50001\n",
    )
    assert [record.value for record in server.stored()] == [b"%d" % number for number in range(50_000)]
    assert produce(server, "-f", "json", "--skip-lines", "50001", stdin=bad) == Outcome(0, b"", "")
    assert [record.value for record in server.stored()[50_000:]] == [b"last"]


@pytest.mark.parametrize(
    "bad",
    [
        b'{"value": "v", "timestamp": 99999999999999999999}',
        b'{"value": "v", "headers": [{"name": "\\ud800", "value": ""}]}',
    ],
)
def test_what_only_the_producer_refuses_is_a_bad_line_too(server: FakeBroker, bad: bytes) -> None:
    done = produce(server, "-f", "json", stdin=b'{"value": "good"}\n' + bad)
    assert done.code == 1 and done.err.startswith("Error: standard input: line 2: ") and done.err.count("\n") == 1
    assert "1 line before it is acknowledged. Correct it and go on with --skip-lines 1" in done.err
    assert [record.value for record in server.stored()] == [b"good"]


def test_a_refusal_in_the_middle_says_where_to_go_on(server: FakeBroker) -> None:
    server.on(ApiKey.PRODUCE, server._produce, refuse_produce(ErrorCode.INVALID_RECORD))
    done = produce(server, "--batch-bytes", "1", stdin=b"one\ntwo\n" * 50)
    stored = [record.value for record in server.stored()]
    assert done.code == 1 and "line 2: INVALID_RECORD" in done.err
    assert "1 line before it is acknowledged" in done.err and "Go on with --skip-lines 1\n" in done.err
    assert len(stored) == 1 or f"; so are {len(stored) - 1:,} after it" in done.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_says_where_to_go_on(server: FakeBroker, number: signal.Signals, code: int) -> None:
    process = subprocess.Popen(
        [*COMMAND, "produce", "t", "-b", server.address], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdin is not None and process.stderr is not None
        os.write(process.stdin.fileno(), b"one\ntwo\nthe rest of a li")
        server.wait_until_asked(ApiKey.PRODUCE)
        process.send_signal(number)
        _, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.wait()
    assert err.decode() == "Interrupted: 2 lines are acknowledged. Go on with --skip-lines 2\n"
    assert process.returncode == code


def test_an_interruption_beside_a_silent_broker_says_what_is_not_known(server: FakeBroker) -> None:
    server.on(ApiKey.PRODUCE, *[silence] * 9)
    process = subprocess.Popen(
        [*COMMAND, "produce", "t", "-b", server.address], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdin is not None and process.stderr is not None
        os.write(process.stdin.fileno(), b"one\ntwo\n")
        server.wait_until_asked(ApiKey.PRODUCE)
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline().startswith(b"waiting up to 5 s")
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.wait()
    assert err.decode() == (
        "Interrupted: no line is acknowledged; 2 without an answer may be written twice. Begin again\n"
    )
    assert process.returncode == 130
