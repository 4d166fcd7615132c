"""Decode batches to columns: a fetch becomes one `pyarrow.RecordBatch`, with no Python object for a record.

    from pylogd.client.core.consumer import columns

    records = columns.decode(batch_bytes, from_offset=100)      # bytes of a fetch
    found = columns.decode_batches(iter_batches(batch_bytes))   # the same, with the next offset

The columns:
- `key` and `value`: binary; null where a record has none.
- `offset`: int64.
- `timestamp`: timestamp(ms, UTC), when the record was created or appended.
- `timestampType`: int32, 0 if created, 1 if appended, as in Spark's Kafka source.
- `headers`: list<struct<key: string, value: binary>>, only if it is requested.

Strategy: batches are measured first, then columns of the right size are filled by the compiled `wire._speedups`. Where
it is missing, the same columns are made from objects, ten times slower. `core/producer/columns.py` goes the other way.

Rules: control batches and records below the offset asked for are left out. The columns end in front of a
damaged batch, so that good records are returned; a damaged first batch raises. pyarrow is imported when it is first
needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pylogd.base.errors import PylogdError
from pylogd.client.core.errors import CorruptRecords
from pylogd.wire import records
from pylogd.wire.compression import MAX_DECOMPRESSED
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.records import (
    BatchHeader,
    Buffer,
    Header,
    batch_crc_ok,
    decode_records,
    iter_batches,
    payload_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_BYTES = (1 << 31) - 1  # because the offsets of Arrow's `binary` are int32
_INT32 = struct.Struct("=i")
_INT64 = 1 << 63
_NULLS_UNKNOWN = -1  # Arrow's number for an unknown count of nulls


class PyArrowMissing(PylogdError):
    """Columns need pyarrow, which is not installed."""


class Columns(NamedTuple):
    """Records as columns, and the offset after the last batch, at which a reader continues.

    ended: whether no batch is left. Otherwise the next batch was left out because of `max_bytes`, or is damaged.
    """

    records: pa.RecordBatch
    next_offset: int
    ended: bool


class _Measures(NamedTuple):
    """The sizes of a batch from an offset on. `last_delta` is the last record's offset delta, counted or not."""

    rows: int
    key_bytes: int
    value_bytes: int
    no_key: int
    no_value: int
    headers: int
    header_key_bytes: int
    header_value_bytes: int
    last_delta: int


class _Part(NamedTuple):
    """A checked batch: its records as bytes, and the offset delta of the first that counts."""

    header: BatchHeader
    payload: Buffer
    first: int
    measures: _Measures


_NOTHING = _Measures(0, 0, 0, 0, 0, 0, 0, 0, -1)


def decode(
    data: Buffer, *, from_offset: int = 0, headers: bool = False, check_crcs: bool = True, topic: str = "",
    partition: int = -1,
) -> pa.RecordBatch:  # fmt: skip
    """Decode all whole batches in the answer to a fetch; the last one may be incomplete.

    Raises CorruptRecords, of `topic` and `partition`, if the first batch is damaged, and PyArrowMissing.
    """
    return decode_batches(
        _batches(data, from_offset, topic, partition), from_offset=from_offset, headers=headers, check_crcs=check_crcs,
        topic=topic, partition=partition,
    ).records  # fmt: skip


def decode_batches(
    batches: Iterable[tuple[BatchHeader, memoryview]], *, from_offset: int = 0, headers: bool = False,
    check_crcs: bool = True, topic: str = "", partition: int = -1, max_decompressed: int = MAX_DECOMPRESSED,
    max_bytes: int = _MOST_BYTES,
) -> Columns:  # fmt: skip
    """Decode batches that were split before (`wire.records.iter_batches`).

    Once records take `max_bytes` uncompressed, no further batch is decoded: a small fetch may hold gigabytes.
    """
    arrow = _pyarrow()
    next_offset = from_offset
    parts: list[_Part] = []
    size = 0
    ended = False
    for header, batch in batches:
        if header.last_offset < from_offset or header.is_control:
            next_offset = max(next_offset, header.next_offset)
            continue
        try:
            part = _check(header, batch, from_offset, check_crcs, max_decompressed)
        except InvalidRecordBatch as error:
            if parts:
                break  # the next call begins with this batch
            raise CorruptRecords(topic, partition, header.base_offset, header.next_offset, str(error)) from error
        size += len(part.payload)
        if parts and size > _MOST_BYTES:
            break
        next_offset = max(next_offset, header.next_offset)
        parts.append(part)
        if size >= max_bytes:
            break
    else:
        ended = True
    kind = _schema(arrow, headers)
    arrays = _plain(arrow, parts, kind) if records.speedups is None else _compiled(arrow, parts, kind)
    return Columns(arrow.RecordBatch.from_arrays(arrays, schema=kind), next_offset, ended)


def schema(headers: bool = False) -> pa.Schema:
    """Return the schema of the columns."""
    return _schema(_pyarrow(), headers)


def _batches(data: Buffer, from_offset: int, topic: str, partition: int) -> Iterable[tuple[BatchHeader, memoryview]]:
    """Iterate over the batches. Invalid bytes end the iteration; at the beginning they raise."""
    any_came = False
    try:
        for found in iter_batches(data, allow_partial=True):
            yield found
            any_came = True
    except InvalidRecordBatch as error:
        if not any_came:
            raise CorruptRecords(topic, partition, from_offset, None, str(error)) from error


def _check(header: BatchHeader, batch: memoryview, from_offset: int, check_crcs: bool, max_decompressed: int) -> _Part:
    """Measure a batch. Raises InvalidRecordBatch unless every record of it can be read."""
    if check_crcs and not batch_crc_ok(batch, header):
        raise InvalidRecordBatch(f"the batch at offset {header.base_offset} fails its CRC")
    payload = payload_of(batch, header, max_decompressed)
    if len(payload) > _MOST_BYTES:
        raise InvalidRecordBatch(f"the batch at offset {header.base_offset} is too large for columns")
    first = max(0, from_offset - header.base_offset)
    base_timestamp = 0 if header.is_log_append_time else header.base_timestamp
    if records.speedups is not None:
        measures = _Measures._make(records.speedups.measure(payload, header.record_count, first, base_timestamp))
        last_delta = measures.last_delta
    else:
        fields = decode_records(bytes(payload), header.record_count, 0, base_timestamp)
        if any(not -_INT64 <= row[3] < _INT64 for row in fields):
            raise InvalidRecordBatch("a time stamp of more than 64 bits")
        last_delta = fields[-1][2] if fields else -1
        measures = _NOTHING
    if last_delta > header.last_offset_delta:
        raise InvalidRecordBatch(f"offset delta {last_delta} lies behind the last, {header.last_offset_delta}")
    if header.last_offset >= _INT64:
        raise InvalidRecordBatch(f"an offset of {header.last_offset}")
    return _Part(header, payload, first, measures)


def _compiled(arrow: Any, parts: list[_Part], kind: Any) -> list[Any]:
    """Return the columns, filled by `_speedups`."""
    loops: Any = records.speedups
    sums = _Measures._make(map(sum, zip(*(part.measures for part in parts), strict=True))) if parts else _NOTHING
    rows = sums.rows
    keys = _Strings(arrow, rows, sums.no_key, sums.key_bytes)
    values = _Strings(arrow, rows, sums.no_value, sums.value_bytes)
    offsets, timestamps = arrow.allocate_buffer(8 * rows), arrow.allocate_buffer(8 * rows)
    types = []
    row = 0
    for header, payload, first, measures in parts:
        appended = header.is_log_append_time
        row = loops.fill(
            payload, header.record_count, first, header.base_offset, header.base_timestamp,
            header.max_timestamp if appended else None, row, offsets, timestamps,
            keys.ends, keys.valid, keys.data, values.ends, values.valid, values.data,
        )  # fmt: skip
        types.append(_INT32.pack(appended) * measures.rows)

    def numbers(name: str, data: Any) -> Any:
        return arrow.Array.from_buffers(kind.field(name).type, rows, [None, data], 0)

    arrays = [
        keys.array(arrow, arrow.binary()),
        values.array(arrow, arrow.binary()),
        numbers("offset", offsets),
        numbers("timestamp", timestamps),
        numbers("timestampType", arrow.py_buffer(b"".join(types))),
    ]
    if len(kind) > len(arrays):
        arrays.append(_compiled_headers(arrow, parts, sums, kind.field("headers").type))
    return arrays


def _compiled_headers(arrow: Any, parts: list[_Part], sums: _Measures, kind: Any) -> Any:
    loops: Any = records.speedups
    keys = _Strings(arrow, sums.headers, 0, sums.header_key_bytes)
    values = _Strings(arrow, sums.headers, _NULLS_UNKNOWN, sums.header_value_bytes)
    ends = bytearray(4 * (sums.rows + 1))
    row = 0
    for header, payload, first, _ in parts:
        row = loops.fill_headers(
            payload, header.record_count, first, row, ends,
            keys.ends, keys.valid, keys.data, values.ends, values.valid, values.data,
        )  # fmt: skip
    names = keys.array(arrow, arrow.string())
    try:
        names.validate(full=True)
    except arrow.ArrowInvalid:  # some bytes are not UTF-8
        names = arrow.array([name.decode(errors="replace") for name in keys.array(arrow, arrow.binary()).to_pylist()])
    pairs = arrow.StructArray.from_arrays([names, values.array(arrow, arrow.binary())], fields=list(kind.value_type))
    return arrow.Array.from_buffers(kind, sums.rows, [None, arrow.py_buffer(ends)], 0, children=[pairs])


class _Strings:
    """The buffers of a column of byte strings, in Arrow's layout: offsets, validity bits, bytes.

    The buffers come from Arrow's pool, which reuses memory: new pages would cost more than filling them.
    """

    def __init__(self, arrow: Any, rows: int, nulls: int, size: int) -> None:
        self.ends = arrow.allocate_buffer(4 * (rows + 1))
        memoryview(self.ends).cast("B")[:4] = bytes(4)
        self.valid = bytearray((rows + 7) // 8)
        self.data = arrow.allocate_buffer(size)
        self._rows = rows
        self._nulls = nulls

    def array(self, arrow: Any, kind: Any) -> Any:
        valid = arrow.py_buffer(self.valid) if self._nulls else None
        buffers = [valid, self.ends, self.data]
        return arrow.Array.from_buffers(kind, self._rows, buffers, self._nulls)


def _plain(arrow: Any, parts: list[_Part], kind: Any) -> list[Any]:
    """Return the columns, made from Python objects, if there is no compiled function."""
    rows: list[tuple[int, int, int, bytes | None, bytes | None, tuple[Header, ...]]] = []
    for header, payload, first, _ in parts:
        appended = header.is_log_append_time
        for _, _, offset, stamp, key, value, headers in decode_records(
            bytes(payload), header.record_count, header.base_offset, header.base_timestamp
        ):
            if offset >= header.base_offset + first:
                rows.append((offset, header.max_timestamp if appended else stamp, appended, key, value, headers))
    arrays = [
        arrow.array([row[3] for row in rows], arrow.binary()),
        arrow.array([row[4] for row in rows], arrow.binary()),
        arrow.array([row[0] for row in rows], arrow.int64()),
        arrow.array([row[1] for row in rows], arrow.int64()).cast(arrow.timestamp("ms", tz="UTC")),
        arrow.array([int(row[2]) for row in rows], arrow.int32()),
    ]
    if len(kind) > len(arrays):
        headers_of = [[{"key": _text(name), "value": value} for name, value in row[5]] for row in rows]
        arrays.append(arrow.array(headers_of, kind.field("headers").type))
    return arrays


def _text(name: str) -> str:
    """Return a header's key, with surrogates, which stand for bytes that are not UTF-8, replaced."""
    return name if name.isascii() else name.encode("utf-8", "surrogateescape").decode(errors="replace")


@cache
def _schema(arrow: Any, headers: bool) -> Any:
    fields = [
        ("key", arrow.binary()),
        ("value", arrow.binary()),
        ("offset", arrow.int64()),
        ("timestamp", arrow.timestamp("ms", tz="UTC")),
        ("timestampType", arrow.int32()),
    ]
    if headers:
        pair = arrow.struct([arrow.field("key", arrow.string(), nullable=False), ("value", arrow.binary())])
        fields.append(("headers", arrow.list_(pair)))
    return arrow.schema(fields)


def _pyarrow() -> Any:
    try:
        import pyarrow  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise PyArrowMissing("columns need pyarrow: pip install 'pylogd-broker[arrow]'") from error
    return pyarrow
