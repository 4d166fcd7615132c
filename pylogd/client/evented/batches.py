"""A consumer of record batches as they were received, for programs of this project that read only parts of records.

Strategy: `EventedConsumer` without a group, whose reader hands out batches instead of records.
"""

from __future__ import annotations

from pylogd.client.core.consumer.reader import BatchChunk
from pylogd.client.evented.consumer import EventedConsumer


class BatchConsumer(EventedConsumer):
    """Reads partitions that are assigned, batch by batch: use no other `poll` of it, and give it no group."""

    async def poll_batches(self, timeout: float, *, max_bytes: int) -> list[BatchChunk]:
        """Return the next batches of each partition, with the position from which they were read, until `max_bytes`.

        The first batch of a chunk may begin in front of the position. A chunk is empty if only the position moved:
        batches of aborted transactions and control batches are left out. Wait up to `timeout` seconds for the first
        one. Raises CorruptRecords, and what `poll` raises.
        """
        assert self.group is None
        found = await self._alone(lambda: self._read(timeout, lambda: self.reader.gather_batches(max_bytes)))
        return found or []
