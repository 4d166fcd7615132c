"""Record batches: golden bytes, two other implementations, and damage at every position."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from pylogd.wire import records as r
from pylogd.wire.compression import CompressionType
from pylogd.wire.exceptions import InvalidRecordBatch

T = 1_700_000_000_000
RECORDS = [
    r.NewRecord(b"key", b"value", T),
    r.NewRecord(None, b"x" * 200, T + 70),
    r.NewRecord(b"", b"", T - 10_000_000_000),
    r.NewRecord(b"k" * 20_000, None, T + 10_000_000_000, [("h", b"1"), ("h", None), ("grün", b"x" * 130)]),
    r.NewRecord(b"k" * 64, b"x" * 10_000, T + 8192),
]

#: one record, key "k", value "v", header a=b, base offset 7, epoch 3; each field on a line of its own
GOLDEN = bytes.fromhex(
    "0000000000000007 0000003e 00000003 02 b83f1061 0000 00000000 0000018bcfe56800 0000018bcfe56800"
    "ffffffffffffffff ffff ffffffff 00000001".replace(" ", "")
    + "18 00 00 00 02 6b 02 76 02 02 61 02 62".replace(" ", "")
)


def expected(new: Sequence[r.NewRecord], base_offset: int = 0, topic: str = "", partition: int = -1) -> list[r.Record]:
    return [
        r.Record(topic, partition, base_offset + n, record.timestamp, record.key, record.value, tuple(record.headers))
        for n, record in enumerate(new)
    ]


def fix_crc(batch: bytearray) -> bytes:
    struct.pack_into(">I", batch, 17, r.crc32c(memoryview(batch)[r.CRC_START :]))
    return bytes(batch)


def test_golden_bytes() -> None:
    batch = r.encode_batch([(b"k", b"v", T, [("a", b"b")])], base_offset=7, leader_epoch=3)
    assert batch == GOLDEN
    header = r.parse_header(batch)
    assert header[:4] == (7, len(GOLDEN) - 12, 3, 2)
    assert (header.size, header.last_offset, header.next_offset, header.record_count) == (len(GOLDEN), 7, 8, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert r.batch_crc_ok(batch) and r.batch_crc_ok(batch, header)
    assert r.decode_batch(batch) == [r.Record("", -1, 7, T, b"k", b"v", (("a", b"b"),))]


@pytest.mark.parametrize("codec", CompressionType)
def test_round_trip(codec: CompressionType) -> None:
    batch = r.encode_batch(RECORDS, compression=codec, base_offset=2**40)
    header = r.parse_header(batch)
    assert header.compression == codec
    assert header.max_timestamp == T + 10_000_000_000
    assert r.decode_batch(memoryview(batch), topic="t", partition=3) == expected(RECORDS, 2**40, "t", 3)


@pytest.mark.parametrize("codec", CompressionType)
def test_other_libraries_read_our_batches(codec: CompressionType) -> None:
    batch = r.encode_batch(RECORDS, compression=codec, base_offset=5)
    for reader in (AioBatch(batch), KafkaPythonBatch(batch)):
        assert reader.validate_crc()
        read = [(x.offset, x.timestamp, x.key, x.value, tuple(x.headers)) for x in reader]
        assert [(o, t, _b(k), _b(v), tuple((n, _b(b)) for n, b in h)) for o, t, k, v, h in read] == [
            record[2:] for record in expected(RECORDS, 5)
        ]


def _b(data: bytes | memoryview | None) -> bytes | None:
    return None if data is None else bytes(data)


@pytest.mark.parametrize("builder", [AioBuilder, KafkaPythonBuilder])
@pytest.mark.parametrize("codec", CompressionType)
def test_we_read_batches_of_other_libraries(codec: CompressionType, builder: type) -> None:
    their = builder(2, codec, False, -1, -1, -1, 10**9)
    for n, record in enumerate(RECORDS):
        their.append(n, record.timestamp, record.key, record.value, list(record.headers))
    batch = bytes(their.build())
    assert r.decode_batch(batch) == expected(RECORDS)
    if codec == CompressionType.NONE:
        plain = bytearray(r.encode_batch(RECORDS))
        plain[12:16] = batch[12:16]  # the leader epoch, which the broker sets
        assert bytes(plain) == batch, "the same bytes from both"


def test_producer_fields_and_attributes() -> None:
    batch = r.encode_batch(
        RECORDS, producer_id=2**40, producer_epoch=7, base_sequence=99, attributes=r.TRANSACTIONAL, compression=4
    )
    header = r.parse_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 7, 99)
    assert header.is_transactional and not header.is_control and not header.is_log_append_time
    theirs = AioBatch(batch)
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (2**40, 7, 99)


def test_log_append_time_is_the_time_of_every_record() -> None:
    batch = bytearray(r.encode_batch(RECORDS))
    struct.pack_into(">h", batch, 21, r.LOG_APPEND_TIME)
    struct.pack_into(">q", batch, 35, T + 1)
    assert {record.timestamp for record in r.decode_batch(fix_crc(batch))} == {T + 1}


def test_control_records() -> None:
    batch = r.encode_batch([(struct.pack(">hh", 0, 1), bytes(6), T, ())], attributes=r.CONTROL | r.TRANSACTIONAL)
    assert r.parse_header(batch).is_control
    assert r.control_type(r.decode_batch(batch)[0]) == r.ControlType.COMMIT
    with pytest.raises(InvalidRecordBatch):
        r.control_type(r.Record("", 0, 0, 0, b"\0", None))


def test_an_empty_batch_is_read() -> None:
    """Compaction keeps the header of a batch from which it removed all records."""
    batch = bytearray(r.encode_batch([(None, b"x", T, ())])[: r.HEADER_SIZE])
    struct.pack_into(">i", batch, 8, r.HEADER_SIZE - r.LENGTH_OVERHEAD)
    struct.pack_into(">i", batch, 57, 0)
    assert r.decode_batch(fix_crc(batch)) == []
    with pytest.raises(ValueError, match="at least one record"):
        r.encode_batch([])


def test_compacted_batches_have_gaps() -> None:
    data = b"".join(bytes([14, 0, 0, delta, 1, 2, 65, 0]) for delta in (2, 8, 20))
    assert [fields[2] for fields in r.decode_records(data, 3, 100)] == [101, 104, 110]


def test_batches_one_after_another() -> None:
    one = r.encode_batch(RECORDS[:2], base_offset=0)
    two = r.encode_batch(RECORDS[2:], base_offset=2, compression=3)
    found = list(r.iter_batches(one + two))
    assert [(header.base_offset, bytes(view)) for header, view in found] == [(0, one), (2, two)]
    assert list(r.iter_batches(b"")) == []


def test_a_cut_batch() -> None:
    one, two = r.encode_batch(RECORDS), r.encode_batch(RECORDS)
    for cut in (1, 15, 17, 60, 61, len(two) - 1):
        assert len(list(r.iter_batches(one + two[:cut], allow_partial=True))) == 1
        with pytest.raises(InvalidRecordBatch):
            list(r.iter_batches(one + two[:cut]))


@pytest.mark.parametrize("magic", [0, 1, 3])
def test_other_formats_are_refused(magic: int) -> None:
    batch = bytearray(r.encode_batch(RECORDS))
    batch[16] = magic
    for data in (batch, batch[:30]):
        with pytest.raises(InvalidRecordBatch, match=f"magic {magic}"):
            list(r.iter_batches(data, allow_partial=True))


@pytest.mark.parametrize("length", [-1, 0, 48, -(2**31)])
def test_impossible_batch_lengths_are_refused(length: int) -> None:
    batch = bytearray(r.encode_batch(RECORDS))
    struct.pack_into(">i", batch, 8, length)
    with pytest.raises(InvalidRecordBatch, match="less than the size of the header"):
        list(r.iter_batches(batch))


def test_every_flipped_byte_is_found() -> None:
    batch = r.encode_batch(RECORDS[:2])
    for at in range(16, len(batch)):
        damaged = bytearray(batch)
        damaged[at] ^= 0x41
        with pytest.raises(InvalidRecordBatch):
            r.decode_batch(damaged)


def test_damage_with_a_valid_crc_is_found() -> None:
    """A sender of malformed records can compute their CRC, so the records must be checked too."""
    batch = r.encode_batch(RECORDS, compression=0)
    for at in range(r.HEADER_SIZE, r.HEADER_SIZE + 300):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(batch)
            damaged[at] ^= flip
            try:
                r.decode_batch(fix_crc(damaged))
            except InvalidRecordBatch:
                continue


@pytest.mark.parametrize(
    ("data", "count", "match"),
    [
        (b"", 1, "1 records do not fit in 0 bytes"),
        (b"\x0e\0\0\0\1\1\0", -1, "-1 records"),
        (b"\x0e\0\0\0\1\1\0", 2**31 - 1, "do not fit in"),
        (b"\x0c\0\0\0\1\1\0" + b"x", 1, "follow"),
        (b"\x0e\0\0\0\1\1\0", 1, "should end at byte"),
        (b"\x0c\0\0\1\1\1\0", 1, "ascend"),
        (b"\x0c\0\0\0\3\1\0", 1, "key has a negative"),
        (b"\x0c\0\0\0\1\3\0", 1, "value has a negative"),
        (b"\x0c\0\0\0\1\7\0", 1, "value has a negative"),
        (b"\x0c\0\0\0\1\1\1", 1, "headers"),
        (b"\x0c\0\0\0\1\1\x7e", 1, "headers"),
        (b"\x10\0\0\0\1\1\2\1\0", 1, "has no key"),
        (b"\x10\0\0\0\1\1\2\2\0", 1, "past the end"),
        (b"\x0c\0\0\0\1\xfe\x7f", 1, "past the end"),
        (b"\x0c\0\0\0\1\xfe\xff\xff\xff\x0f", 1, "past the end"),
        (b"\xff" * 12, 1, "ten bytes"),
        (b"\xff" * 8, 1, "past the end"),
        (b"\x0c\0\0\0\1\1\0" * 2, 2, "ascend"),
    ],
)
def test_malformed_records_are_refused(data: bytes, count: int, match: str) -> None:
    with pytest.raises(InvalidRecordBatch, match=match):
        r.decode_records(data, count)


def test_offsets_after_the_last_and_a_wrong_size() -> None:
    batch = bytearray(r.encode_batch(RECORDS))
    struct.pack_into(">i", batch, 23, 3)
    with pytest.raises(InvalidRecordBatch, match="greater than the batch"):
        r.decode_batch(fix_crc(batch))
    with pytest.raises(InvalidRecordBatch, match="bytes instead of"):
        r.decode_batch(r.encode_batch(RECORDS) + b"x")


def test_unknown_codec_and_bomb() -> None:
    batch = bytearray(r.encode_batch(RECORDS))
    batch[22] = 5
    with pytest.raises(InvalidRecordBatch, match="codec 5"):
        r.decode_batch(fix_crc(batch))
    with pytest.raises(InvalidRecordBatch, match="more than"):
        r.decode_batch(r.encode_batch([(None, bytes(10**6), T, ())], compression=4), max_decompressed=10**5)


def test_header_keys_that_are_not_utf_8_survive() -> None:
    data = b"\x12\0\0\0\1\1\2\4\xff\xfe\1"
    data = bytes([(len(data) - 1) * 2]) + data[1:]
    headers = r.decode_records(data, 1)[0][-1]
    again = r.encode_records([(None, None, 0, headers)], 0)
    assert again == data


@pytest.mark.parametrize(
    ("number", "encoded"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (64, "8001"), (-65, "8101"), (2**31 - 1, "feffffff0f"),
     (-(2**63), "ffffffffffffffffff01")],
)  # fmt: skip
def test_varints(number: int, encoded: str) -> None:
    assert r.varint(number).hex() == encoded


def test_size_bound_holds() -> None:
    for record in RECORDS:
        alone = r.encode_records([(record.key, record.value, 2**62, record.headers)], 0)
        assert len(alone) <= r.record_size_bound(record.key, record.value, record.headers)
