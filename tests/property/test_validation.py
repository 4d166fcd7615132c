"""What the broker accepts can be decoded whole; the compiled checks and those in Python agree on any bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pylogd.broker.log.compaction.rewrite import read_columns
from pylogd.broker.log.errors import InvalidAppend
from pylogd.wire import validation
from pylogd.wire.compression import CompressionType
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.records import HEADER_SIZE, NewRecord, encode_batch, iter_batches, parse_header, payload_of
from tests.fakes.storage import START_MS, MemoryStorage, fix_crc, read_all

compiled = pytest.importorskip("pylogd.wire._speedups", reason="there was no compiler")

some_bytes = st.none() | st.binary(max_size=20) | st.sampled_from([60, 200, 9_000]).map(bytes)
new_records = st.builds(
    NewRecord,
    some_bytes,
    some_bytes,
    st.integers(-3, 100) | st.integers(1_600_000_000_000, 1_600_000_100_000),
    st.lists(st.tuples(st.text(max_size=8), some_bytes), max_size=3),
)
batches = st.lists(new_records, min_size=1, max_size=8) | new_records.map(lambda one: [one] * 100)
damages = st.lists(st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=11)), max_size=3)


def damaged(data: bytes, damage: list[tuple[int, bytes]], cut: int) -> bytes:
    """Overwrite `data` somewhere after its magic byte, and cut off its end."""
    copy = bytearray(data)
    for place, junk in damage:
        at = 21 + place % (len(copy) - 21)
        copy[at : at + len(junk)] = junk[: len(copy) - at]
    return bytes(copy[: max(len(copy) - cut, HEADER_SIZE)])


@settings(max_examples=300, deadline=None)
@given(batches, st.integers(0, 4), damages, st.integers(0, 3) | st.just(0), st.integers(-1, 120))
@example([NewRecord(b"k", b"v", 0)], 0, [(41, b"\x80\x80\x80\x80\x80\x00")], 0, 0)  # a length encoded in six bytes
@example([NewRecord(b"k", b"v" * 99, 0)], 2, [], 0, 0)
def test_both_find_the_same(
    some: list[NewRecord], codec: int, damage: list[tuple[int, bytes]], cut: int, earliest: int
) -> None:
    data = damaged(encode_batch(some, compression=codec), damage, cut)
    assert compiled.batch_is_valid(data, earliest) == validation.batch_is_valid_slowly(data, earliest)
    header = parse_header(data)
    arguments = (data[HEADER_SIZE:], header.record_count, header.base_timestamp, earliest, 10**12)
    assert compiled.inspect_records(*arguments) == tuple(validation.inspect_slowly(*arguments))
    if not damage and not cut:
        assert validation.frame_is_valid(data)
        records = payload_of(data, header, 1 << 30)
        found = validation.inspect_records(records, header.record_count, header.base_timestamp, earliest, 10**12)
        assert (found.valid, found.problem, found.max_timestamp) == (len(some), None, header.max_timestamp)
        assert found.keyless_indexes == [at for at, record in enumerate(some) if record.key is None]


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=90), st.integers(-1, 12), st.sampled_from([-(2**63), -1, 0, 5, 2**63 - 1]))
def test_any_bytes(payload: bytes, count: int, base: int) -> None:
    arguments = (payload, count, base, 3, 9)
    assert compiled.inspect_records(*arguments) == tuple(validation.inspect_slowly(*arguments))


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=60), st.booleans(), st.booleans())
@example(b"\x0e\x0cabcdefg"[:9], False, False)
def test_any_bytes_as_snappy(payload: bytes, framed: bool, sized: bool) -> None:
    """The walk over the elements of a raw block agrees with a decompressor."""
    if framed:
        payload = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + (struct.pack(">i", len(payload)) if sized else b"") + payload
    whole = bytearray(encode_batch([NewRecord(None, b"", 0)])[:HEADER_SIZE] + payload)
    whole[22] = CompressionType.SNAPPY
    data = bytes(whole)
    assert compiled.batch_is_valid(data, 0) == validation.batch_is_valid_slowly(data, 0)


@pytest.mark.parametrize("codec", list(CompressionType)[1:])
def test_plain_records_under_a_codec(codec: int) -> None:
    for values in ([b"v"], [b"v"] * 9, [b"x" * 500] * 3):
        data = bytearray(encode_batch([NewRecord(b"k", value, 5) for value in values]))
        data[22] = codec
        assert not compiled.batch_is_valid(bytes(data), 0)


def test_positions_are_bounded() -> None:
    data = encode_batch([NewRecord(None, b"", 5)] * 3000)[HEADER_SIZE:]
    found = validation.inspect_records(data, 3000, 5, 6, 7)
    assert (found.keyless, found.mistimed) == (3000, 3000)
    assert found.keyless_indexes == found.mistimed_indexes == list(range(validation.MAX_INDEXES))
    assert found == validation.inspect_slowly(data, 3000, 5, 6, 7)


def test_too_much_to_decompress() -> None:
    data = encode_batch([NewRecord(b"k", bytes(1 << 20), 5)], compression=CompressionType.ZSTD)
    with pytest.raises(InvalidRecordBatch):
        payload_of(data, parse_header(data), 1 << 16)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.builds(NewRecord, some_bytes, some_bytes, st.integers(START_MS - 5, START_MS + 5),
                       st.lists(st.tuples(st.text(max_size=8), some_bytes), max_size=2)), min_size=1, max_size=5),
    st.integers(0, 4),
    damages,
    st.booleans(),
    st.booleans(),
    st.sampled_from([frozenset({"delete"}), frozenset({"compact"})]),
)  # fmt: skip
def test_accepted_batches_can_be_read(
    some: list[NewRecord], codec: int, damage: list[tuple[int, bytes]], compressed: bool, stamped: bool,
    policy: frozenset[str],
) -> None:  # fmt: skip
    """A batch with any bytes after its CRC changed is refused, or a consumer can decode it whole."""
    storage = MemoryStorage(validate_compressed=True, cleanup_policy=policy)
    log = storage.create()
    data = fix_crc(damaged(encode_batch(some, compression=codec if compressed else 0), damage, 0))
    for _ in range(2):  # by the general check, and by the short one
        end = log.log_end_offset
        try:
            result = log.append(data, leader_epoch=0)
        except InvalidAppend:
            log.append(encode_batch([NewRecord(b"k", b"v", START_MS)]), leader_epoch=0)
            continue
        if result.duplicate:  # the change has turned it into an idempotent producer's batch
            continue
        records = read_all(log, end)
        found = log.read(end, 1 << 24, allow_cold=True)
        assert found is not None
        ((header, batch),) = iter_batches(found.read())
        assert read_columns(batch, header).offset_deltas == list(range(header.record_count))  # by the cleaner's reader
        assert [record.offset for record in records] == list(range(end, log.log_end_offset))
        assert len(records) == header.record_count
        assert max(record.timestamp for record in records) == header.max_timestamp
        if not damage:
            assert [record.value for record in records] == [record.value for record in some]
    storage.check()
