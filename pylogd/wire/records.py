"""Record batches, data format version 2 (Kafka documentation, "Record Batch").

A batch on the wire is the batch on the disk. The header is read with `struct`; the records behind it are opaque to the
broker unless it must look inside (compaction, time stamps, the command line).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c as _crc32c

#: base offset, batch length, leader epoch, magic, CRC, attributes, last offset delta, base and max time stamp,
#: producer id, producer epoch, base sequence, record count
HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size  # 61
LENGTH_OVERHEAD = 12  # the bytes of a batch that its own length field does not count
CRC_START = 21  # the CRC covers everything from here on
MAGIC = 2


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


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """CRC-32C (Castagnoli) of any buffer, uncopied, by the processor's instruction where it has one."""
    return int(_crc32c(data))
