"""Decide how to copy a batch of a source, and rewrite batches that a target would not accept unchanged.

Strategy: a batch is copied with unchanged records, compressed or not. Its header gets the producer id, epoch and
sequence number of the mirror, because the original producer's numbers would clash with those of other batches at the
target. Its CRC is derived from the original one (`wire.crc`), so that the target notices damage on the way.

Brokers accept from a producer only batches whose records have consecutive offsets. If compaction has removed records,
or copying begins in the middle of a batch, the remaining records are encoded again, with the same codec.
"""

from __future__ import annotations

from typing import NamedTuple

from pylogd.services.mirror.offset_map import Run, runs_of
from pylogd.wire.records import BatchHeader, decode_batch, encode_batch


class BatchCopy(NamedTuple):
    """A batch to append at a target. `offsets` are the offsets of its records at the source; None if they are
    consecutive.
    """

    batch: memoryview
    records: int
    first: int
    offsets: list[int] | None

    def runs(self, target: int) -> list[Run]:
        """Return the runs of its records. The first record has offset `target` in the copy."""
        return [Run(self.first, target, self.records)] if self.offsets is None else runs_of(self.offsets, target)


def copy_of(header: BatchHeader, batch: memoryview, position: int) -> BatchCopy | None:
    """Return the batch to append for a batch that was read from `position`; None if none of its records is copied.

    Do not pass control batches. Raises InvalidRecordBatch if the batch has to be decoded, and can't be.
    """
    if not header.record_count:
        return None
    if header.record_count == header.last_offset_delta + 1 and header.base_offset >= position:
        return BatchCopy(batch, header.record_count, header.base_offset, None)
    records = [record for record in decode_batch(batch, header) if record.offset >= position]
    if not records:
        return None
    encoded = encode_batch(
        [(record.key, record.value, record.timestamp, record.headers) for record in records],
        compression=header.compression,
    )
    return BatchCopy(memoryview(encoded), len(records), records[0].offset, [record.offset for record in records])
