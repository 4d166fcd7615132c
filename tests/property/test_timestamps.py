"""A search for time stamps in a batch finds what decoding finds; the compiled loop and the one in Python agree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pylogd.wire import records, timestamps
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.records import LOG_APPEND_TIME, NewRecord, decode_batch, encode_batch, parse_header

_START = 1_600_000_000_000
stamps = st.integers(_START, _START + 100) | st.integers(-1, 2**60)
batches = st.lists(
    st.builds(NewRecord, st.binary(max_size=5), st.binary(max_size=300), stamps, st.just(())), min_size=1, max_size=60
)


def with_loop(loop: Any, *arguments: Any) -> Any:
    """Return the result of the search, or the type of what it raises."""
    before, records.speedups = records.speedups, loop
    try:
        return timestamps._walk(*arguments)
    except InvalidRecordBatch as error:
        return type(error)
    finally:
        records.speedups = before


@settings(deadline=None)
@given(batches, st.integers(0, 4), st.integers(0, 70), stamps, st.booleans())
def test_it_finds_what_decoding_finds(
    some: list[NewRecord], codec: int, from_delta: int, least: int, append_time: bool
) -> None:
    attributes = LOG_APPEND_TIME if append_time else 0
    data = encode_batch(some, compression=codec, base_offset=1000, attributes=attributes)
    header = parse_header(data)
    decoded = [(r.timestamp, r.offset) for r in decode_batch(data) if r.offset >= 1000 + from_delta]
    at_least = [one for one in decoded if one[0] >= least]
    assert timestamps.find_timestamp(data, header, least, 1000 + from_delta) == (at_least[0] if at_least else None)
    largest = max(decoded, key=lambda one: (one[0], -one[1]), default=None)
    assert timestamps.largest_timestamp(data, header, 1000 + from_delta) == largest


@settings(deadline=None)
@given(st.binary(max_size=80), st.integers(-1, 12), stamps, stamps, st.integers(0, 5), st.booleans())
@example(b"\x0c\x00\x00\x00\x01\x01\x00", 1, 0, 0, 0, True)
@example(b"\x0c\x00" + b"\xff" * 9 + b"\x01\x00", 1, 2**60, 0, 0, True)
def test_both_loops_agree_on_any_bytes(
    data: bytes, count: int, base: int, least: int, from_delta: int, largest: bool
) -> None:
    compiled = pytest.importorskip("pylogd.wire._speedups", reason="there was no compiler")
    arguments = data, count, base, least, from_delta, largest
    assert with_loop(None, *arguments) == with_loop(compiled, *arguments)


def test_a_large_batch_is_searched_to_its_end() -> None:
    """The compiled loop releases the interpreter lock meanwhile."""
    data = encode_batch([NewRecord(None, b"v" * 10, _START + n) for n in range(10_000)])
    assert timestamps.find_timestamp(data, parse_header(data), _START + 9_999, 0) == (_START + 9_999, 9_999)
    assert timestamps.largest_timestamp(data, parse_header(data), 0) == (_START + 9_999, 9_999)
