"""Records survive a round trip, and any bytes are decoded to records or raise one typed error."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from pylogd.wire import records as r
from pylogd.wire.compression import CompressionType, decompress
from pylogd.wire.exceptions import InvalidRecordBatch

INT64 = st.integers(-(2**62), 2**62 - 1)  # the difference of any two must fit into 64 bits
HEADERS = st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=200)), max_size=3)
RECORDS = st.lists(
    st.tuples(st.none() | st.binary(max_size=200), st.none() | st.binary(max_size=300), INT64, HEADERS),
    min_size=1,
    max_size=12,
)


@given(RECORDS, st.sampled_from(CompressionType), st.integers(0, 2**60))
def test_round_trip(records: list[r.NewRecord], codec: CompressionType, base_offset: int) -> None:
    batch = r.encode_batch(records, compression=codec, base_offset=base_offset)
    assert r.decode_batch(batch) == [
        (("", -1, base_offset + n, timestamp, key, value, tuple(headers)))
        for n, (key, value, timestamp, headers) in enumerate(records)
    ]


@given(RECORDS, st.data())
def test_headers_that_were_encoded_before(records: list[r.NewRecord], data: st.DataObject) -> None:
    """Both loops encode them to the same bytes as the headers, and their size is within the bound."""
    mixed = [
        (key, value, timestamp, r.encode_headers(headers) if data.draw(st.booleans()) else headers)
        for key, value, timestamp, headers in records
    ]
    before = r.speedups
    try:
        for loops in {before, None}:
            r.speedups = loops
            assert r.encode_records(mixed, 0) == r.encode_records(records, 0)
    finally:
        r.speedups = before
    for key, value, timestamp, headers in records:
        encoded = r.encode_records([(key, value, timestamp, headers)], timestamp)
        bound = r.record_size_bound(key, value)  # what an accumulator counts, including the bytes of the headers
        assert len(encoded) <= bound + len(r.encode_headers(headers))


@given(st.binary(max_size=300), st.integers(-1, 50))
def test_any_bytes_as_records(data: bytes, count: int) -> None:
    try:
        found = r.decode_records(data, count)
    except InvalidRecordBatch:
        return
    assert len(found) == count


@given(RECORDS, st.data())
def test_any_damage_under_a_valid_crc(records: list[r.NewRecord], data: st.DataObject) -> None:
    batch = bytearray(r.encode_batch(records, compression=data.draw(st.sampled_from(CompressionType))))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(r.CRC_START, len(batch) - 1))] = data.draw(st.integers(0, 255))
    struct.pack_into(">I", batch, 17, r.crc32c(memoryview(batch)[r.CRC_START :]))
    try:
        r.decode_batch(batch, max_decompressed=10**6)
    except InvalidRecordBatch:
        return


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_as_batches(data: bytes, allow_partial: bool) -> None:
    try:
        for header, view in r.iter_batches(data, allow_partial=allow_partial):
            assert header.size == len(view)
    except InvalidRecordBatch:
        return


@given(st.integers(1, 7), st.binary(max_size=300))
def test_any_bytes_as_compressed(codec: int, data: bytes) -> None:
    try:
        assert len(decompress(codec, data, 10**6)) <= 10**6
    except InvalidRecordBatch:
        return
