"""Record batches, data format version 2 (Kafka documentation, "Record Batch" and "Record").

A batch on the wire is the batch on the disk. The header is read with `struct`; the records behind it are opaque to the
broker unless it must look inside (compaction, time stamps, the command line).

Strategy: decoding is one tight loop over one `bytes` object, with varints of one and two bytes read in line; encoding
gathers parts from a table of ready varints and joins them once. Where `_speedups` could be compiled, it takes the place
of both loops, unless PYLOGD_PURE_PYTHON is set in the environment.

Rules: no length is believed before it is checked against the bytes that are there, and whatever is wrong is an
`InvalidRecordBatch`; nothing else comes out of here for any input. This module knows no files, no sockets, no clocks.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import cache, partial
from types import ModuleType
from typing import NamedTuple

from crc32c import crc32c as _crc32c

from pylogd.wire.compression import MAX_DECOMPRESSED, CompressionType, compress, decompress
from pylogd.wire.exceptions import InvalidRecordBatch

speedups: ModuleType | None
try:
    from pylogd.wire import _speedups as speedups
except ImportError:  # not compiled: there was no compiler
    speedups = None
if os.environ.get("PYLOGD_PURE_PYTHON"):
    speedups = None

#: base offset, batch length, leader epoch, magic, CRC, attributes, last offset delta, base and max time stamp,
#: producer id, producer epoch, base sequence, record count
HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size  # 61
LENGTH_OVERHEAD = 12  # the bytes of a batch that its own length field does not count
CRC_START = 21  # the CRC covers everything from here on
MAGIC = 2

#: bits of the attributes
COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1

_PREFIX = struct.Struct(">qiib")  # up to and with the magic
_CRC = struct.Struct(">I")
_COVERED = struct.Struct(">hiqqqhii")  # what the CRC covers of the header
_MIN_RECORD = 7  # length, attributes, two deltas, two lengths, header count: a byte each
_MAX_VARINT_SHIFT = 63
_CONTROL_KEY = struct.Struct(">hh")

Buffer = bytes | bytearray | memoryview
Header = tuple[str, bytes | None]


class BatchHeader(NamedTuple):
    """The 61 bytes in front of a batch's records."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header and all."""
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after this batch: where a reader goes on."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """The codec's number, as in `CompressionType`; it may be one that nobody knows."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether this holds a transaction marker or the like, which no consumer is shown."""
        return bool(self.attributes & CONTROL)


class Record(NamedTuple):
    """A record as a consumer sees it. `timestamp` is in milliseconds since 1970, -1 if there is none."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class NewRecord(NamedTuple):
    """A record on its way in. A `timestamp` in milliseconds since 1970."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Sequence[Header] = ()


class ControlType(IntEnum):
    """What a control record says."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C (Castagnoli) of any buffer, uncopied, by the processor's instruction where it has one.

    `value` is the CRC of what came before `data`.
    """
    return int(_crc32c(data, value))


# Headers ------------------------------------------------------------------------------------------------------------


def parse_header(data: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`. Its magic and length are checked for sense; whether the batch is all there is not."""
    try:
        header = BatchHeader._make(HEADER.unpack_from(data, position))
    except struct.error:
        if len(data) - position >= _PREFIX.size and (magic := data[position + _PREFIX.size - 1]) != MAGIC:
            raise InvalidRecordBatch(f"a batch of magic {magic}, where only {MAGIC} is known") from None
        raise InvalidRecordBatch(f"{len(data) - position} bytes are too few for a batch header") from None
    if header.magic != MAGIC:
        raise InvalidRecordBatch(f"a batch of magic {header.magic}, where only {MAGIC} is known")
    if header.batch_length < HEADER_SIZE - LENGTH_OVERHEAD:
        raise InvalidRecordBatch(f"a batch length of {header.batch_length} is less than its own header")
    return header


def iter_batches(data: Buffer, *, allow_partial: bool = False) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Each batch in `data` with its header, as views, nothing copied and no CRC checked.

    A last batch that is cut off ends the iteration if `allow_partial` (a fetch may cut), else it is an error.
    """
    view = memoryview(data)
    position, size = 0, len(view)
    while position < size:
        left = size - position
        if allow_partial and left < HEADER_SIZE and _is_cut_header(view, position):
            return
        header = parse_header(view, position)
        if header.batch_length + LENGTH_OVERHEAD > left:
            if allow_partial:
                return
            raise InvalidRecordBatch(f"a batch of {header.size} bytes, of which only {left} are there")
        end = position + header.batch_length + LENGTH_OVERHEAD
        yield header, view[position:end]
        position = end


def _is_cut_header(view: memoryview, position: int) -> bool:
    """Whether what is left may be the start of a batch of our format, rather than one of an older format."""
    at = position + _PREFIX.size - 1
    return at >= len(view) or view[at] == MAGIC


def batch_crc_ok(batch: Buffer, header: BatchHeader | None = None) -> bool:
    """Whether the whole batch in `batch` is as its CRC says. `header` saves parsing it again."""
    crc = header.crc if header is not None else _CRC.unpack_from(batch, CRC_START - _CRC.size)[0]
    return crc32c(memoryview(batch)[CRC_START:]) == crc


# Decoding -----------------------------------------------------------------------------------------------------------


def decode_batch(
    batch: Buffer,
    header: BatchHeader | None = None,
    *,
    topic: str = "",
    partition: int = -1,
    check_crc: bool = True,
    max_decompressed: int = MAX_DECOMPRESSED,
) -> list[Record]:
    """The records of one whole batch, marked as of `topic` and `partition`.

    Records of a control batch come back too: ask the header. Compressed records may take `max_decompressed` bytes.
    """
    if header is None:
        header = parse_header(batch)
    if len(batch) != header.size:
        raise InvalidRecordBatch(f"a batch of {header.size} bytes in {len(batch)}")
    if check_crc and not batch_crc_ok(batch, header):
        raise InvalidRecordBatch(f"the batch at offset {header.base_offset} fails its CRC")
    data = payload_of(batch, header, max_decompressed)
    stamp = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    records: list[Record]
    if speedups is not None:
        records = speedups.decode_records(
            data, header.record_count, header.base_offset, header.base_timestamp, topic, partition, Record, stamp
        )
    else:
        records = decode_records(
            bytes(data), header.record_count, header.base_offset, header.base_timestamp,
            topic=topic, partition=partition,
        )  # fmt: skip
        if stamp is not None:
            records = [_new_record((*record[:3], stamp, *record[4:])) for record in records]
    if records and records[-1][2] > header.last_offset:
        raise InvalidRecordBatch(f"offset {records[-1][2]} lies behind the batch's last, {header.last_offset}")
    return records


def payload_of(batch: Buffer, header: BatchHeader, max_decompressed: int = MAX_DECOMPRESSED) -> Buffer:
    """The records of a whole batch as bytes, decompressed, or as a view if they are not compressed."""
    payload = memoryview(batch)[HEADER_SIZE:]
    return decompress(header.compression, payload, max_decompressed) if header.compression else payload


_Fields = tuple[str, int, int, int, bytes | None, bytes | None, tuple[Header, ...]]
#: NamedTuple's own constructor runs in Python; this one makes the same object at a third of the price
_new_record: Callable[[_Fields], Record] = partial(tuple.__new__, Record)


def decode_records(
    data: bytes, count: int, base_offset: int = 0, base_timestamp: int = 0, *, topic: str = "", partition: int = -1
) -> list[Record]:
    """The `count` records that fill `data` (decompressed, without the header)."""
    if not 0 <= count <= len(data) // _MIN_RECORD:
        raise InvalidRecordBatch(f"{count} records in {len(data)} bytes")
    records: list[Record] = []
    append = records.append
    new = _new_record
    headers: tuple[Header, ...]
    position, last_delta = 0, -1
    try:
        for _ in range(count):
            n = data[position]
            if n < 128:
                position += 2  # and the attributes: none are in use
            elif (m := data[position + 1]) < 128:
                n += (m << 7) - 128
                position += 3
            else:
                n, position = _unsigned(data, position)
                position += 1
            end = position + (n >> 1) - 1
            stamp = data[position]
            if stamp < 128:
                position += 1
            elif (m := data[position + 1]) < 128:
                stamp += (m << 7) - 128
                position += 2
            else:
                stamp, position = _unsigned(data, position)
            delta = data[position]
            if delta < 128:
                position += 1
            elif (m := data[position + 1]) < 128:
                delta += (m << 7) - 128
                position += 2
            else:
                delta, position = _unsigned(data, position)
            if delta <= last_delta or delta & 1:
                raise InvalidRecordBatch("offsets in a batch don't ascend")
            last_delta = delta
            n = data[position]
            position += 1
            if n == 1:
                key = None
            else:
                if n > 127:
                    n, position = _unsigned(data, position - 1)
                if n & 1:
                    raise InvalidRecordBatch("a key of negative length")
                start, position = position, position + (n >> 1)
                key = data[start:position]
            n = data[position]
            position += 1
            if n == 1:
                value = None
            else:
                if n < 128:
                    pass
                elif (m := data[position]) < 128:
                    n += (m << 7) - 128
                    position += 1
                else:
                    n, position = _unsigned(data, position - 1)
                if n & 1:
                    raise InvalidRecordBatch("a value of negative length")
                start, position = position, position + (n >> 1)
                value = data[start:position]
            if data[position]:
                headers, position = _headers(data, position)
            else:
                headers = ()
                position += 1
            if position != end:
                raise InvalidRecordBatch(f"a record's length says {end}, its fields end at {position}")
            stamp = base_timestamp + (stamp >> 1 if not stamp & 1 else -(stamp >> 1) - 1)
            append(new((topic, partition, base_offset + (delta >> 1), stamp, key, value, headers)))
    except IndexError:
        raise InvalidRecordBatch("a record goes over the end of its batch") from None
    if position != len(data):
        raise InvalidRecordBatch(f"{len(data) - position} bytes follow the last record of a batch")
    return records


def _unsigned(data: bytes, position: int) -> tuple[int, int]:
    """A base-128 varint, before zig-zag is undone, and the position behind it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            if value >> 64:
                raise InvalidRecordBatch("a varint of more than 64 bits")
            return value, position
        shift += 7
        if shift > _MAX_VARINT_SHIFT:
            raise InvalidRecordBatch("a varint of more than ten bytes")


def _headers(data: bytes, position: int) -> tuple[tuple[Header, ...], int]:
    """A record's headers. A key that is not UTF-8 keeps its bytes as surrogate escapes, so nothing is lost."""
    count, position = _unsigned(data, position)
    if count & 1 or count > len(data) - position:  # a header takes two bytes, and the count is doubled by zig-zag
        raise InvalidRecordBatch("a count of headers that can't be")
    headers: list[Header] = []
    for _ in range(count >> 1):
        key, position = _sized(data, position)
        if key is None:
            raise InvalidRecordBatch("a header without a key")
        value, position = _sized(data, position)
        headers.append((key.decode("utf-8", "surrogateescape"), value))
    return tuple(headers), position


def _sized(data: bytes, position: int) -> tuple[bytes | None, int]:
    """Bytes behind a varint length; -1 is null."""
    n, position = _unsigned(data, position)
    if n == 1:
        return None, position
    if n & 1 or n >> 1 > len(data) - position:
        raise InvalidRecordBatch("a length that goes over the end of its batch")
    end = position + (n >> 1)
    return data[position:end], end


def control_type(record: Record) -> int:
    """What the record of a control batch says, as in `ControlType`; newer brokers may say more."""
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise InvalidRecordBatch("a control record without its type")
    return int(_CONTROL_KEY.unpack_from(record.key)[1])


# Encoding -----------------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """A signed number, zig-zag, base 128, low bits first (as Protocol Buffers' sint)."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 127:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_TABLED = 8192  # what fits two bytes
_NULL = varint(-1)


@cache
def _table() -> list[bytes]:
    """The small ones, made by the first who encodes without the compiled twin."""
    return [varint(n) for n in range(_TABLED)]


def encode_batch(
    records: Sequence[tuple[bytes | None, bytes | None, int, Sequence[Header] | bytes]],
    *,
    compression: int = CompressionType.NONE,
    level: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    attributes: int = 0,
) -> bytes:
    """One batch of `records` (`NewRecord` or plain tuples in its order), ready to be sent or written.

    `attributes` are the bits besides the codec's. Records take consecutive offsets from `base_offset` on.
    """
    if not records:
        raise ValueError("a batch needs a record")
    base_timestamp = records[0][2]
    max_timestamp = max([record[2] for record in records])
    payload: Buffer = encode_records(records, base_timestamp)
    if compression:
        payload = compress(compression, payload, level)
    covered = _COVERED.pack(
        attributes | compression, len(records) - 1, base_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, len(records),
    )  # fmt: skip
    length = HEADER_SIZE - LENGTH_OVERHEAD + len(payload)
    crc = crc32c(payload, crc32c(covered))
    return b"".join((_PREFIX.pack(base_offset, length, leader_epoch, MAGIC), _CRC.pack(crc), covered, payload))


def with_producer(batch: bytes, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """The same batch, numbered for another try under another epoch."""
    header = parse_header(batch)
    covered = _COVERED.pack(*header[5:9], producer_id, producer_epoch, base_sequence, header.record_count)
    payload = memoryview(batch)[HEADER_SIZE:]
    crc = crc32c(payload, crc32c(covered))
    return b"".join((batch[: CRC_START - _CRC.size], _CRC.pack(crc), covered, payload))


def encode_records(
    records: Sequence[tuple[bytes | None, bytes | None, int, Sequence[Header] | bytes]], base_timestamp: int
) -> bytes:
    """The records of a batch without its header, not compressed."""
    if speedups is not None:
        encoded: bytes = speedups.encode_records(records, base_timestamp)
        return encoded
    parts: list[bytes] = []
    extend = parts.extend
    ready = _table()
    for index, (key, value, timestamp, headers) in enumerate(records):
        delta = timestamp - base_timestamp
        stamp = ready[delta] if 0 <= delta < _TABLED else varint(delta)
        offset = ready[index] if index < _TABLED else varint(index)
        if key is None:
            key_size, k = _NULL, b""
        else:
            key_size, k = ready[len(key)] if len(key) < _TABLED else varint(len(key)), key
        if value is None:
            value_size, v = _NULL, b""
        else:
            value_size, v = ready[len(value)] if len(value) < _TABLED else varint(len(value)), value
        tail = b"\0" if not headers else headers if isinstance(headers, bytes) else encode_headers(headers)
        size = 1 + len(stamp) + len(offset) + len(key_size) + len(k) + len(value_size) + len(v) + len(tail)
        size_part = ready[size] if size < _TABLED else varint(size)
        extend((size_part, b"\0", stamp, offset, key_size, k, value_size, v, tail))
    return b"".join(parts)


def encode_headers(headers: Sequence[Header]) -> bytes:
    """Return headers as they stand in a record; `encode_records` takes these bytes in place of the headers."""
    if speedups is not None:
        encoded: bytes = speedups.encode_headers(headers)
        return encoded
    parts = [varint(len(headers))]
    for name, value in headers:
        key = name.encode("utf-8", "surrogateescape")
        parts += (varint(len(key)), key)
        parts += (_NULL,) if value is None else (varint(len(value)), value)
    return b"".join(parts)


def record_size_bound(key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()) -> int:
    """At most how many bytes a record takes in a batch before compression: what a producer's batching counts with."""
    size = 31 + len(key or b"") + len(value or b"")  # 5 for each of four lengths and the offset, 10 for the time, 1
    for name, item in headers:
        size += 10 + 4 * len(name) + len(item or b"")
    return size
