"""A consumer that returns record batches as they were received, for programs that read only parts of records.

Strategy: `EventedConsumer` without a group, whose reader hands out batches instead of records.
"""

from __future__ import annotations

from pylogd.client.core.consumer.reader import BatchChunk
from pylogd.client.evented.consumer import EventedConsumer


class BatchConsumer(EventedConsumer):
    """Reads assigned partitions batch by batch. Call no other `poll` method of it, and give it no group."""

    async def poll_batches(self, timeout: float, *, max_bytes: int) -> list[BatchChunk]:
        """Return the next batches of each partition, with the position from which they were read, until `max_bytes`.

        The first batch of a chunk may begin before the position. A chunk is empty if only the position moved, because
        control batches and batches of aborted transactions are left out. Waits up to `timeout` seconds for the first
        chunk. Raises CorruptRecords, and the errors of `poll`.
        """
        assert self.group is None
        found = await self._alone(lambda: self._read(timeout, lambda: self.reader.gather_batches(max_bytes)))
        return found or []
