"""Transaction markers, the control batches that end a transaction: read and encode them.

A marker is a batch of one record. The key is int16 version (0) and int16 type (0 abort, 1 commit). The value is int16
version (0) and int32 coordinator epoch: the leader epoch of the partition of `__transaction_state` that sent the
marker.

Source: KIP-98; Kafka's EndTxnMarker schema.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from pylogd.base.errors import ProtocolError
from pylogd.wire.records import (
    CONTROL,
    HEADER_SIZE,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    ControlType,
    NewRecord,
    decode_batch,
    encode_batch,
)

#: The control records that end a transaction.
END_MARKERS = frozenset({int(ControlType.ABORT), int(ControlType.COMMIT)})

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0
#: The one record of a batch that `encode_marker` makes: its bytes up to the key, the key, the length of the value, the
#: value, and the number of headers. Markers of other brokers have the same form, unless the record has its own time
#: stamp.
_RECORD = struct.Struct(">5shhBhiB")
_RECORD_START = bytes((16 << 1, 0, 0, 0, 4 << 1))
_VALUE_LENGTH = 6 << 1


class Marker(NamedTuple):
    """The contents of a marker.

    coordinator_epoch: the epoch of the coordinator that ended the transaction.
    """

    committed: bool
    coordinator_epoch: int


def read_marker(header: BatchHeader, batch: Buffer) -> Marker | None:
    """Read the marker in a control batch; None if it is not a marker, or compaction has removed its record."""
    if not header.record_count:
        return None
    if len(batch) == HEADER_SIZE + _RECORD.size:
        start, _, kind, length, _, coordinator_epoch, headers = _RECORD.unpack_from(batch, HEADER_SIZE)
        if start == _RECORD_START and length == _VALUE_LENGTH and not headers and not header.compression:
            return Marker(kind == ControlType.COMMIT, coordinator_epoch) if kind in END_MARKERS else None
    try:
        record = decode_batch(batch, header, check_crc=False)[0]
        _, kind = _KEY.unpack_from(record.key or b"")
        _, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
    except (ProtocolError, struct.error, IndexError):
        return None
    return Marker(kind == ControlType.COMMIT, coordinator_epoch) if kind in END_MARKERS else None


def encode_marker(
    producer_id: int, producer_epoch: int, timestamp: int, *, committed: bool, coordinator_epoch: int
) -> bytes:
    """Return the batch that ends a producer's transaction. timestamp: in milliseconds since 1970."""
    key = _KEY.pack(_VERSION, ControlType.COMMIT if committed else ControlType.ABORT)
    record = NewRecord(key, _VALUE.pack(_VERSION, coordinator_epoch), timestamp)
    return encode_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, attributes=TRANSACTIONAL | CONTROL
    )
