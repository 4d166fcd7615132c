"""Find the schema ids of messages, and divide a batch by schema id: in columns, without Python for each message.

A message names its schema in one of two ways, as Confluent's clients write it:

- in front of the value: a zero byte and the id as a big-endian uint32, or a byte of 1 and a GUID of 16 bytes;
- in the header `__value_schema_id`, in the same form; then the message's value has only the encoded value.

With Protobuf, the indexes of the message's type in its file follow the id: their number, then each index, as zigzag
varints. A single zero byte means the first type.
Source: Confluent's documentation, "Wire format"; confluent-kafka 2.16, `SchemaId` and `dual_schema_id_deserializer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from pylogd.lake.typed.registry import SchemaId

HEADER: Final = "__value_schema_id"
#: The first byte -> the length of the id including this byte.
_LENGTHS: Final = {b"\x00": 5, b"\x01": 17}
_NUMBER: Final = b"\x00"
_END: Final = 1 << 31
_MOST_INDEXES: Final = 100
#: The indexes of the first message type of a Protobuf file.
FIRST: Final = (0,)

#: Row of the batch -> the reason why it does not fit.
Reasons = dict[int, str]


@dataclass(frozen=True, slots=True)
class Frame:
    """The messages of a batch that name the same schema.

    rows: the rows of the messages in the batch.
    heads: the bytes after the id in the headers; None if ids are in front of the values.
    bodies: the values, without the ids in front of them.
    """

    schema_id: SchemaId
    rows: pa.Array
    bodies: pa.Array
    heads: pa.Array | None = None


def schema_ids(values: pa.Array, headers: pa.Array | None) -> set[SchemaId]:
    """Return the ids of all schemas that a batch of messages names. The arguments are those of `frames`."""
    return {frame.schema_id for frame in frames(values, headers, {})}


def frames(values: pa.Array, headers: pa.Array | None, reasons: Reasons) -> Iterator[Frame]:
    """Divide a batch by schema id, without null values. Add messages that name no schema to `reasons`.

    values: a binary array.
    headers: lists of structs of `key` and `value`, or None.
    """
    rows = pa.array(range(len(values)), pa.int64())
    present = values.is_valid()
    named = None if headers is None else _named_in_headers(headers)
    if named is None:
        yield from _divided(values.filter(present), rows.filter(present), None, reasons)
        return
    in_header = pc.and_(present, named.is_valid())
    in_front = pc.and_(present, named.is_null())
    yield from _divided(named.filter(in_header), rows.filter(in_header), values.filter(in_header), reasons)
    yield from _divided(values.filter(in_front), rows.filter(in_front), None, reasons)


def _named_in_headers(headers: pa.Array) -> pa.Array | None:
    """Return the header with the schema id of each message, or null; None if no message has such a header."""
    pairs = headers.flatten()
    found = pc.equal(pairs.field("key"), HEADER)
    if not pc.any(found).as_py():
        return None
    owners = pc.list_parent_indices(headers).filter(found)
    ids = pairs.field("value").filter(found)
    return ids.take(pc.index_in(pa.array(range(len(headers)), owners.type), owners))  # the first such header counts


def _divided(holders: pa.Array, rows: pa.Array, values: pa.Array | None, reasons: Reasons) -> Iterator[Frame]:
    """Divide messages by the ids that `holders` begin with.

    values: the messages, if the holders are headers.
    """
    first, lengths = pc.binary_slice(holders, 0, 1), pc.binary_length(holders)
    left = pc.is_null(holders)  # true for no message
    for byte, length in _LENGTHS.items():
        named = pc.and_(pc.equal(first, byte), pc.greater_equal(lengths, length))
        left = pc.or_(left, named)
        mine = holders.filter(named)
        if not len(mine):
            continue
        ids = pc.binary_slice(mine, 0, length).dictionary_encode()
        places, bodies = rows.filter(named), None if values is None else values.filter(named)
        for at, prefix in enumerate(ids.dictionary.to_pylist()):
            same = pc.equal(ids.indices, at)
            rest = _tail(mine.filter(same), length)
            if bodies is None:
                yield Frame(_schema_id(prefix), places.filter(same), rest)
            else:
                yield Frame(_schema_id(prefix), places.filter(same), bodies.filter(same), rest)
    bad = pc.invert(left)
    where = "the value" if values is None else f"the header {HEADER}"
    for row, holder in zip(rows.filter(bad).to_pylist(), holders.filter(bad).to_pylist(), strict=True):
        reasons[row] = _why_no_id(holder, where)


def _tail(array: pa.Array, start: int) -> pa.Array:
    """Return the bytes of each value after the first `start`."""
    return pc.binary_slice(array, start, _END)  # without an end, Arrow's estimate of the size overflows


def _schema_id(prefix: bytes) -> SchemaId:
    if prefix[:1] == _NUMBER:
        return int.from_bytes(prefix[1:], "big")
    return str(UUID(bytes=prefix[1:]))


def _why_no_id(holder: bytes, where: str) -> str:
    if holder[:1] in _LENGTHS or not holder:
        return f"no schema id: {where} has {len(holder)} bytes"
    return f"no schema id: {where} begins with the byte 0x{holder[0]:02x}, not with 0x00 or 0x01"


def message_types(frame: Frame, reasons: Reasons) -> Iterator[tuple[tuple[int, ...], pa.Array, pa.Array]]:
    """Divide Protobuf messages by type: yield the indexes of a type, the rows and the bodies.

    Messages without valid indexes are added to `reasons`.
    """
    heads = frame.bodies if frame.heads is None else frame.heads
    if pc.all(pc.equal(pc.binary_slice(heads, 0, 1), b"\x00")).as_py():
        yield FIRST, frame.rows, frame.bodies if frame.heads is not None else _tail(frame.bodies, 1)
        return
    found: dict[tuple[int, ...], tuple[list[int], list[bytes]]] = {}
    for at, (row, head) in enumerate(zip(frame.rows.to_pylist(), heads.to_pylist(), strict=True)):
        try:
            indexes, length = _indexes(head)
        except (IndexError, ValueError):
            reasons[row] = "the schema id is not followed by the indexes of a Protobuf message type"
            continue
        rows, bodies = found.setdefault(indexes, ([], []))
        rows.append(row)
        bodies.append(head[length:] if frame.heads is None else frame.bodies[at].as_py())
    for indexes, (rows, bodies) in found.items():
        yield indexes, pa.array(rows, pa.int64()), pa.array(bodies, pa.binary())


def _indexes(head: bytes) -> tuple[tuple[int, ...], int]:
    """Return message indexes, and the number of their bytes. Raises IndexError or ValueError."""
    count, at = _varint(head, 0)
    if count == 0:
        return FIRST, at
    if not 0 < count <= _MOST_INDEXES:
        raise ValueError(count)
    indexes = []
    for _ in range(count):
        index, at = _varint(head, at)
        indexes.append(index)
    return tuple(indexes), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint of at most five bytes, and its end."""
    value = 0
    for shift in range(0, 35, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise ValueError("a varint is too long")
