"""Records as text, and text as records."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.cli.record_input import BadInput, Encoders, Fixed, JsonFormat, LineFormat
from pylogd.cli.templates import Decoding, as_json, renderer
from pylogd.client import Record
from pylogd.lake.typed.errors import NotDecoded

RECORD = Record("t", 3, 7, 1_700_000_000_000, b"key", b"va\x1blue\n", (("h", b"1"), ("none", None)))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("%t/%p/%o", b"t/3/7"),
        (r"%k=%v\n", b"key=va\x1blue\n\n"),
        (r"%K %V %d\t\\\x41%%", b"3 7 1700000000000\t\\A%"),
        ("%h %H", b"h=1,none= 2"),
        ("gr\u00fcn %k", "gr\u00fcn key".encode()),
    ],
)
def test_templates(template: str, expected: bytes) -> None:
    assert renderer(template, b"", escaped=False)(RECORD) == expected


def test_a_template_of_a_record_without_key_and_value() -> None:
    empty = Record("t", 0, 0, -1, None, None)
    assert renderer("%k|%v|%K|%V|%D|%h", b"", escaped=False)(empty) == b"||-1|-1||"


def test_on_a_terminal_values_are_escaped_and_the_template_is_not() -> None:
    assert renderer(r"%v\x07", b"", escaped=True)(RECORD) == b"va\\x1blue\n\x07"


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("%q", "%q is not a field"),
        ("%v%", "% is not a field"),
        (r"%v\q", r"\\q is not an escape"),
        ("value", "neither one of plain"),
    ],
)
def test_mistakes_in_templates(template: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        renderer(template, b"", escaped=False)


BYTES = st.none() | st.binary(max_size=20) | st.text(max_size=9).map(lambda text: text.encode(errors="replace"))
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
HEADERS = st.lists(st.tuples(NAMES, BYTES), max_size=3).map(tuple)
RECORDS = st.builds(
    Record, st.just("t"), st.integers(0, 9), st.integers(0, 99), st.integers(0, 10**13), BYTES, BYTES, HEADERS
)


@given(RECORDS)
def test_what_consume_prints_as_json_is_what_produce_reads(record: Record) -> None:
    found = JsonFormat(Fixed(), keep_partitions=True).read(as_json(record).rstrip(b"\n"))
    assert (found.key, found.value, found.partition, found.timestamp) == (
        record.key, record.value, record.partition, record.timestamp,
    )  # fmt: skip
    assert tuple(found.headers) == record.headers


def test_partitions_are_ignored_unless_asked_for_and_options_add_to_json() -> None:
    line = b'{"value": "v", "partition": 4, "headers": [{"name": "a", "value": "1"}]}'
    found = JsonFormat(Fixed(b"k", None, [("b", b"2")])).read(line)
    assert (found.key, found.partition, list(found.headers)) == (b"k", None, [("a", b"1"), ("b", b"2")])
    assert JsonFormat(Fixed(b"k", 9), keep_partitions=True).read(line).partition == 9


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"{", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"value": 7}', "value has to be text or null"),
        (b'{"value_base64": "?"}', "value_base64 is not base64"),
        (b'{"value_base64": 7}', "value_base64 is not base64"),
        (b'{"partition": -1}', "partition has to be a number"),
        (b'{"value": "v", "timestamp": "now"}', "timestamp has to be a number"),
        (b'{"value": "v", "headers": {"a": "b"}}', "headers has to be a list"),
        (b'{"value": "v", "headers": {}}', "headers has to be a list"),
        (b'{"value": "v", "headers": [{"name": 7, "value": ""}]}', "headers has to be a list"),
        (b'{"value": "v", "headers": [{"name": "h"}]}', 'the header h has no value: null is written as "value": null'),
        (b'{"value": "v", "headers": [{"name": "h", "valeu": "x"}]}', 'unknown field "valeu": did you mean value?'),
        (b'{"key": "k"}', 'the record has no value: null is written as "value": null'),
        (b"{}", "the record has no value"),
        (b'{"key": "k", "vaule": "v"}', 'unknown field "vaule": did you mean value?'),
        (b'{"value": "v", "Key": "k"}', 'unknown field "Key": did you mean key?'),
        (b'{"value": "v", "payload": "x"}', 'unknown field "payload": there are headers, key, key_base64, offset'),
        (b'{"value": "v", "value_base64": "dg=="}', "value and value_base64 exclude each other"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_mistakes_in_json(line: bytes, error: str) -> None:
    with pytest.raises(BadInput, match=error):
        JsonFormat(Fixed(), keep_partitions=True).read(line)


def test_only_null_that_is_written_deletes_a_key() -> None:
    form = JsonFormat(Fixed())
    assert form.read(b'{"key": "k", "value": null}')[:2] == (b"k", None)
    assert form.read(b'{"key": "k", "value_base64": null}')[:2] == (b"k", None)
    assert form.read(b'{"value": "", "key": null, "headers": null}')[:2] == (None, b"")


def test_lines_with_a_schema_are_json() -> None:
    form = LineFormat(Fixed(), ":", "NULL", Encoders(value=lambda value: b"<%d>" % value["n"]))
    assert form.read(b'k:{"n": 7}')[:2] == (b"k", b"<7>")
    assert form.read(b"k:NULL")[:2] == (b"k", None)
    with pytest.raises(BadInput, match="not JSON"):
        form.read(b"k:{n")


def decode(data: bytes) -> Any:
    if data.startswith(b"?"):
        raise NotDecoded("it does not begin with the id of a schema")
    return {"n": len(data)}


def test_decoded_values_are_json_in_json_and_text_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    record = RECORD._replace(key=b"?k", value=b"123")
    both = Decoding(renderer("json", b"", escaped=False), decode, "both")
    assert json.loads(both(record))["value"] == {"n": 3} and json.loads(both(record))["key"] == "?k"
    value = Decoding(renderer("key-value", b"\t", escaped=False), decode, "value")
    assert value(record) == b'?k\t{"n": 3}\n'
    assert value(record._replace(value=None)) == b"?k\t\n"
    assert capsys.readouterr().err.count("printed as it is") == 1, "said once"
