"""Runs of similar records are decoded and encoded as one by one, whatever lies between them or damages them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylogd.wire import records as r
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.record_runs import varint

NOW = 1_700_000_000_000
#: sizes around which a varint grows to two and to three bytes
sizes = st.sampled_from([0, 1, 30, 62, 63, 64, 65, 100, 200, 8000, 8159, 8160, 8161, 8191, 8192, 8200])
similar = st.builds(
    lambda key, size, delta, headers, count: [
        r.NewRecord(key, bytes([n % 251]) * size, NOW + delta + n // 3, headers) for n in range(count)
    ],
    st.none() | st.sampled_from([b"", b"k", b"key", bytes(63), bytes(64), bytes(200)]),
    sizes,
    st.sampled_from([0, 40, 63, 100, 8100, 9000, -5]),
    st.sampled_from([(), (("a", b"b"),), (("a", None), ("", b""))]),
    st.integers(1, 30),
)
odd = st.builds(
    lambda key, value, delta: [r.NewRecord(key, value, NOW + delta)],
    st.none() | st.binary(max_size=3) | sizes.map(bytes),
    st.none() | st.binary(max_size=3) | sizes.map(bytes),
    st.integers(-(2**40), 2**40),
)
batches = st.lists(similar | odd, min_size=1, max_size=6).map(lambda lists: [one for some in lists for one in some])


@pytest.fixture(autouse=True)
def _pure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(r, "speedups", None)


def decoded(data: bytes, count: int, *, runs: bool, timestamp: int | None = None) -> Any:
    """Return the records, or the type of the error."""
    before, r._WORTHWHILE = r._WORTHWHILE, r._WORTHWHILE if runs else 1 << 40
    try:
        return r.decode_records(data, count, 1000, NOW, topic="t", partition=3, timestamp=timestamp)
    except InvalidRecordBatch as error:
        return type(error)
    finally:
        r._WORTHWHILE = before


def encoded(records: list[r.NewRecord], gap: int = 1) -> bytes:
    """Encode the records as Kafka's documentation says, field by field."""
    found = b""
    for index, (key, value, timestamp, headers) in enumerate(records):
        body = b"\0" + varint(timestamp - NOW) + varint(index * gap)
        for field in (key, value):
            body += varint(-1) if field is None else varint(len(field)) + field
        body += varint(len(headers))
        for name, item in headers:
            body += varint(len(name)) + name.encode()
            body += varint(-1) if item is None else varint(len(item)) + item
        found += varint(len(body)) + body
    return found


@settings(deadline=None)
@given(batches, st.none() | st.just(7))
def test_good_batches(some: list[r.NewRecord], timestamp: int | None) -> None:
    data = encoded(some)
    assert r.encode_records(some, NOW) == data
    found = decoded(data, len(some), runs=True, timestamp=timestamp)
    assert found == decoded(data, len(some), runs=False, timestamp=timestamp)
    assert all(type(record) is r.Record for record in found)
    assert [(one.offset, one.timestamp, one.key, one.value, one.headers) for one in found] == [
        (1000 + n, one.timestamp if timestamp is None else timestamp, one.key, one.value, tuple(one.headers))
        for n, one in enumerate(some)
    ]


@settings(deadline=None)
@given(batches, st.integers(2, 100))
def test_batches_with_gaps(some: list[r.NewRecord], gap: int) -> None:
    data = encoded(some, gap)
    found = decoded(data, len(some), runs=True)
    assert found == decoded(data, len(some), runs=False)
    assert [record.offset for record in found] == [1000 + gap * n for n in range(len(some))]


@settings(deadline=None, max_examples=300)
@given(
    batches,
    st.lists(st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=3)), max_size=3),
    st.integers(0, 10**6) | st.none(),
    st.integers(-1, 1),
)
def test_damaged_batches(some: list[r.NewRecord], damage: list[tuple[int, bytes]], cut: int | None, more: int) -> None:
    data = bytearray(encoded(some))
    for place, junk in damage:
        at = place % len(data)
        data[at : at + len(junk)] = junk[: len(data) - at]
    if cut is not None:
        del data[cut % len(data) :]
    whole = bytes(data)
    assert decoded(whole, len(some) + more, runs=True) == decoded(whole, len(some) + more, runs=False)
