"""Read a segment sequentially, for recovery, compaction, verification, the dump, and the rebuilding of indexes.

The file is read in large chunks, and each batch is returned as a view of one. A batch that crosses the end of a chunk
is read again with the next chunk, which is larger if the batch needs more space.

Rules: a scan ends with BadBatch at the first byte that does not start a valid batch; it never skips bytes. The view of
a batch is valid until the next batch is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from pylogd.broker.log.files import SegmentFile
from pylogd.wire.records import CRC_START, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, BatchHeader, crc32c

_CHUNK = 1 << 20

_unpack_header = HEADER.unpack_from
_header: Callable[[tuple[int, ...]], BatchHeader] = partial(tuple.__new__, BatchHeader)


class BadBatch(Exception):
    """There is no valid batch at `position` in the file; `reason` says why.

    torn: whether a crash can cause this (an incomplete batch, or a wrong CRC). An intact batch out of order is not
        torn.
    """

    def __init__(self, position: int, reason: str, *, torn: bool = True) -> None:
        self.position = position
        self.reason = reason
        self.torn = torn
        super().__init__(f"byte {position}: {reason}")


class FoundBatch(NamedTuple):
    """A batch in a file: its position, header, and bytes."""

    position: int
    header: BatchHeader
    data: memoryview


def scan(file: SegmentFile, size: int, *, base_offset: int = 0, check_crc: bool = True) -> Iterator[FoundBatch]:
    """Iterate over the batches in the first `size` bytes of a file. Raises BadBatch.

    base_offset: the lowest offset that is valid.
    """
    position, lowest, chunk = 0, base_offset, _CHUNK
    while position < size:
        data = memoryview(_read(file, position, min(chunk, size - position)))
        at = 0
        chunk = _CHUNK
        end = len(data)
        while at < end:
            whole = at + HEADER_SIZE <= end
            header = _header(_unpack_header(data, at)) if whole else None
            if (
                header is None
                or header.magic != MAGIC
                or not HEADER_SIZE <= (length := header.batch_length + LENGTH_OVERHEAD) <= end - at
            ):
                least = _length_at(data, at, position + at, size)  # raises an error if the file can't hold the batch
                chunk = max(_CHUNK, HEADER_SIZE if least is None else least)
                break
            batch = data[at : at + length]
            if check_crc and crc32c(batch[CRC_START:]) != header.crc:
                raise BadBatch(position + at, f"the batch at offset {header.base_offset} fails its CRC")
            if header.base_offset < lowest:
                raise BadBatch(
                    position + at,
                    f"offset {header.base_offset} is below {lowest}, the lowest that is valid there",
                    torn=False,
                )
            if header.last_offset_delta < 0:
                raise BadBatch(position + at, f"invalid last offset delta {header.last_offset_delta}")
            yield FoundBatch(position + at, header, batch)
            lowest = header.base_offset + header.last_offset_delta + 1
            at += length
        position += at


def _read(file: SegmentFile, position: int, length: int) -> bytes:
    data = file.read(position, length)
    while len(data) < length:
        more = file.read(position + len(data), length - len(data))
        if not more:
            raise BadBatch(position, f"the file ends at byte {position + len(data)}, inside a batch")
        data += more
    return data


def _length_at(data: memoryview, at: int, position: int, size: int) -> int | None:
    """Return the size of the batch at `at`; None if the chunk is too short to determine it.

    position: the position of the batch in the file.
    size: the size of the file.

    Raises BadBatch if the file can't contain the batch.
    """
    if size - position < HEADER_SIZE:
        raise BadBatch(position, f"{size - position} bytes are too few for a batch header")
    if len(data) - at < HEADER_SIZE:
        return None
    length = int.from_bytes(data[at + 8 : at + 12], "big", signed=True) + LENGTH_OVERHEAD
    if data[at + 16] != MAGIC:
        raise BadBatch(position, f"unknown magic {data[at + 16]}, should be {MAGIC}")
    if length < HEADER_SIZE:
        raise BadBatch(position, f"a batch of {length} bytes is smaller than its header")
    if length > size - position:
        raise BadBatch(position, f"a batch of {length} bytes, of which the file has only {size - position}")
    return length
