"""What a face does with a `Reader`, without a face."""

from __future__ import annotations

from pylogd.client.core.consumer.reader import Reader
from pylogd.client.core.consumer.record_buffer import Chunk


def fill(reader: Reader, limit: int) -> bool:
    """Read up to `limit` records into the buffer, as records that may be handed out. Return whether any wait there."""
    found = reader.fill(limit)
    for records in reader.buffer.unaccepted:
        reader.buffer.accept(records, records.records)
    return found


def gather(reader: Reader, limit: int) -> list[Chunk]:
    """Return up to `limit` records, as `poll` does."""
    fill(reader, limit)
    return reader.buffer.take(limit)
