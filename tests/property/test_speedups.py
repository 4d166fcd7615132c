"""The compiled loops agree with those in Python, on valid batches and on any bytes; nothing crashes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pylogd.client.core.consumer import columns
from pylogd.client.core.errors import CorruptRecords
from pylogd.client.core.producer import partitioner
from pylogd.wire import records
from pylogd.wire.crc import append_zeros
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.records import HEADER_SIZE, LOG_APPEND_TIME, NewRecord, decode_batch, encode_batch, parse_header

compiled = pytest.importorskip("pylogd.wire._speedups", reason="there was no compiler")

names = st.text(max_size=8) | st.binary(max_size=4).map(lambda data: data.decode("utf-8", "surrogateescape"))
some_bytes = st.none() | st.binary(max_size=20) | st.integers(60, 20_000).map(bytes)
new_records = st.builds(
    NewRecord,
    some_bytes,
    some_bytes,
    st.integers(1_600_000_000_000, 1_600_000_100_000) | st.integers(-(2**60), 2**60),
    st.lists(st.tuples(names, some_bytes), max_size=3),
)
batches = st.lists(new_records, min_size=1, max_size=150)


def with_loops(loops: Any, work: Callable[[], Any]) -> Any:
    """Return the result of `work`, or the type of what it raises."""
    before, records.speedups = records.speedups, loops
    try:
        return work()
    except (InvalidRecordBatch, CorruptRecords) as error:
        return type(error)
    finally:
        records.speedups = before


def check_equal(work: Callable[[], Any]) -> Any:
    ours, theirs = with_loops(None, work), with_loops(compiled, work)
    assert ours == theirs
    return theirs


def table(data: bytes, **options: Any) -> Any:
    found = columns.decode(data, check_crcs=False, headers=True, **options)
    found.validate(full=True)
    stamps = found.column("timestamp").cast("int64")  # Python's dates cover a smaller range than Arrow's
    return found.set_column(found.schema.get_field_index("timestamp"), "timestamp", stamps).to_pylist()


@settings(deadline=None)
@given(batches, st.integers(0, 4), st.integers(0, 160))
def test_good_batches(some: list[NewRecord], compression: int, skipped: int) -> None:
    data = check_equal(lambda: encode_batch(some, compression=compression, base_offset=1000))
    found = check_equal(lambda: decode_batch(data, topic="t", partition=3))
    assert [(r.key, r.value, r.timestamp, list(r.headers)) for r in found] == [
        (r.key, r.value, r.timestamp, list(r.headers)) for r in some
    ]
    assert all(type(record) is records.Record for record in found)
    rows = check_equal(lambda: table(data, from_offset=1000 + skipped))
    assert [(row["offset"], row["key"], row["value"], row["timestamp"]) for row in rows] == [
        (r.offset, r.key, r.value, r.timestamp) for r in found[skipped:]
    ]


@settings(deadline=None)
@given(batches, st.integers(0, 2**40))
def test_append_time(some: list[NewRecord], stamp: int) -> None:
    data = bytearray(encode_batch(some, attributes=LOG_APPEND_TIME))
    struct.pack_into(">q", data, 35, stamp)
    rows = check_equal(lambda: table(bytes(data)))
    assert {row["timestampType"] for row in rows} == {1}
    assert {row["timestamp"] for row in rows} == {stamp}
    check_equal(lambda: decode_batch(bytes(data), check_crc=False))


def raw(data: bytes, **options: Any) -> Any:
    """Return the columns as `table` does, in Arrow's bytes: Python's datetime can't hold every 64-bit time stamp."""
    found = columns.decode(data, check_crcs=False, **options)
    found.validate(full=True)
    return found


@settings(max_examples=500, deadline=None)
@given(
    st.lists(new_records, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=11)), max_size=4),
    st.integers(0, 300) | st.none(),
)
@example([NewRecord(b"k", b"v", 0)], [(64, b"\xff" * 9 + b"\x01")], None)
@example([NewRecord(b"k", b"v", 0)], [(64, b"\xff" * 9 + b"\x02")], None)
@example([NewRecord(b"k", b"v", 0)], [(64, b"\xff" * 11)], None)
def test_damaged_batches(some: list[NewRecord], damage: list[tuple[int, bytes]], length: int | None) -> None:
    """Overwrite a batch anywhere after its magic byte, and cut off its end."""
    data = bytearray(encode_batch(some))
    for place, junk in damage:
        at = 17 + place % (len(data) - 17)
        data[at : at + len(junk)] = junk[: len(data) - at]
    if length is not None and length + HEADER_SIZE < len(data):
        del data[HEADER_SIZE + length :]
        struct.pack_into(">i", data, 8, len(data) - 12)
    batch = bytes(data)
    check_equal(lambda: decode_batch(batch, check_crc=False))
    check_equal(lambda: raw(batch, headers=True))
    check_equal(lambda: raw(batch, from_offset=parse_header(batch).base_offset + 2))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=120), st.integers(-1, 20), st.integers(-(2**63), 2**63 - 1), st.integers(0, 3))
def test_any_bytes(payload: bytes, count: int, base: int, first: int) -> None:
    """Call the loops with any bytes; columns that are too small are an error too."""

    def ours() -> Any:
        return [tuple(fields) for fields in records.decode_records(payload, count, base, base)]

    def theirs() -> Any:
        return [tuple(r) for r in compiled.decode_records(payload, count, base, base, "", -1, records.Record, None)]

    assert with_loops(None, ours) == with_loops(None, theirs)
    for size in (0, 1, 64):
        buffers = [bytearray(size) for _ in range(8)]
        for loop, rest in (
            (compiled.fill, (payload, count, first, base, base, None, 0, *buffers)),
            (compiled.fill_headers, (payload, count, first, 0, *buffers[:7])),
        ):
            try:
                loop(*rest)
            except InvalidRecordBatch:
                continue


@pytest.mark.parametrize("row", [-1, 1 << 31, (1 << 61) - 2, (1 << 63) - 2, (1 << 63) - 1])
def test_no_row_is_beyond_its_columns(row: int) -> None:
    payload = encode_batch([NewRecord(b"k", b"v", 0, [("h", b"")])])[records.HEADER_SIZE :]
    for loop, before in (
        (compiled.fill, (payload, 1, 0, 0, 0, None, row)),
        (compiled.fill_headers, (payload, 1, 0, row)),
    ):
        with pytest.raises(InvalidRecordBatch):
            loop(*before, *[bytearray(64) for _ in range(8 if loop is compiled.fill else 7)])


@given(st.binary(max_size=40))
def test_keys_have_the_same_hash(key: bytes) -> None:
    module: Any = partitioner
    before, module.speedups = module.speedups, None
    try:
        assert compiled.murmur2(key) == partitioner.murmur2(key)
    finally:
        module.speedups = before


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**40))
def test_crcs_are_carried_over_zeros_alike(value: int, size: int) -> None:
    assert compiled.append_zeros(value, size) == append_zeros(value, size)


def test_crcs_are_not_carried_over_less_than_nothing() -> None:
    with pytest.raises(ValueError, match="not negative"):
        compiled.append_zeros(1, -1)


@given(st.lists(st.tuples(names, some_bytes), max_size=200))
def test_headers_alone(headers: list[tuple[str, bytes | None]]) -> None:
    check_equal(lambda: records.encode_headers(headers))


@pytest.mark.parametrize("bad", [7, [1], [("k",)], [(b"k", b"v")], [("k", "v")], [("k", 1)], [(None, b"v")]])
def test_headers_of_wrong_types_are_refused(bad: Any) -> None:
    for loops in (compiled, None):
        with pytest.raises((AttributeError, TypeError, ValueError)):
            with_loops(loops, lambda: records.encode_headers(bad))


def test_wrong_types_are_named() -> None:
    for bad in [[1], [(b"k", b"v", 0)], [("k", b"v", 0, ())], [(b"k", b"v", "now", ())], [(b"k", b"v", 0, [1])], 7]:
        with pytest.raises((TypeError, ValueError)):
            compiled.encode_records(bad, 0)
    with pytest.raises(TypeError):
        compiled.decode_records(b"", 0, 0, 0, "", 0, list, None)
    assert compiled.encode_records([(bytearray(b"k"), memoryview(b"v"), 5, ())], 5) == compiled.encode_records(
        [(b"k", b"v", 5, ())], 5
    )
