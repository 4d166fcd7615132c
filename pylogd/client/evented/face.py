"""The methods that the consumers on asyncio and on Twisted share, and that only pass on their arguments.

On asyncio they are coroutine methods of the consumer; on Twisted they become methods that return Deferreds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from pylogd.client.core.consumer.options import Offsets
from pylogd.client.core.consumer.record_buffer import Chunk
from pylogd.client.core.group.member_model import GroupMetadata
from pylogd.client.core.model import OffsetAndMetadata, OffsetAndTime, TopicPartition
from pylogd.client.evented.consumer import NO_ENDS, EventedConsumer, Partitions
from pylogd.wire.records import Record

if TYPE_CHECKING:
    import pyarrow as pa

_FOREVER = 3600.0


class ConsumerMethods:
    """Methods of a consumer, as coroutines. Times are in seconds."""

    def __init__(self, consumer: EventedConsumer) -> None:
        """`consumer` does the work."""
        self._consumer = consumer

    # What to read, and from where

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads now."""
        return self._consumer.core.assignment

    @property
    def paused(self) -> list[TopicPartition]:
        """The paused partitions."""
        return self._consumer.core.paused()

    async def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic. Raises KafkaError if the topic does not exist."""
        return await self._consumer.partitions(topic)

    async def assign(
        self, partitions: Partitions | Mapping[tuple[str, int], int], until: Mapping[tuple[str, int], int] = NO_ENDS
    ) -> None:
        """Read these partitions and no others.

        partitions: a mapping gives the offset at which each partition starts. Otherwise, a partition that was read
        before continues at its position; a new one starts at the group's committed offset, or, if there is none, where
        `auto_offset_reset` says.

        until: for a partition whose reading has an end, the offset from which nothing is fetched. No request waits for
        records there. The last batch is returned whole, so records after this offset may be returned.
        """
        await self._consumer.assign(partitions, until)

    async def unsubscribe(self) -> None:
        """Leave the group. The offsets of processed records are committed first."""
        await self._consumer.unsubscribe()

    async def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Continue at the first available record, in these partitions, or in all assigned ones if none are given."""
        await self._consumer.seek_to(partitions, first=True)

    async def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Continue after the last record, in these partitions, or in all assigned ones if none are given."""
        await self._consumer.seek_to(partitions, first=False)

    async def pause(self, *partitions: tuple[str, int]) -> None:
        """Return no records of these partitions, or of all if none are given, until `resume`. Fetched records are kept
        while the buffers have space for the records of other partitions.
        """
        await self._consumer.pause(partitions, True)

    async def resume(self, *partitions: tuple[str, int]) -> None:
        """Return records of these partitions again, or of all if none are given."""
        await self._consumer.pause(partitions, False)

    async def position(self, partition: tuple[str, int]) -> int:
        """Return the offset of the next record that `poll` returns, whether it exists yet or not.

        Raises ValueError for a partition that is not assigned, and RequestTimedOut.
        """
        return await self._consumer.position(partition)

    # Offsets

    async def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition."""
        return await self._consumer.ends(partitions, first=True)

    async def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the end offset of each partition: the offset of its next record."""
        return await self._consumer.ends(partitions, first=False)

    async def offsets_for_times(
        self, times: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTime | None]:
        """Return each partition's first offset at or after a time in milliseconds since 1970; None if there is none."""
        return await self._consumer.offsets_for_times(times)

    async def committed(
        self, partitions: Partitions, timeout: float = 30.0
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offset of each partition, or None if it has not committed any."""
        return await self._consumer.committed(partitions, timeout)

    async def commit(self, offsets: Offsets | None = None, *, wait: bool = True, timeout: float = 30.0) -> None:
        """Commit offsets, each the offset of the next record to read. By default, commit all records that were
        returned; in an iteration, those up to and including the current record. With `wait=False`, commit in the
        background.

        Raises CommitFailed if this consumer no longer owns a partition or is no longer a member; KafkaError;
        RequestTimedOut.
        """
        await self._consumer.commit(offsets, wait=wait, timeout=timeout)

    # Transactions

    def group_metadata(self) -> GroupMetadata:
        """Return the group member and generation with which offsets are committed, for `Producer.send_offsets`.

        Raises ValueError without a group.
        """
        return self._consumer.group_metadata()

    def offsets_to_send(self) -> tuple[dict[TopicPartition, OffsetAndMetadata], GroupMetadata]:
        """Return what `Producer.send_offsets(consumer)` sends.

        Raises ValueError without a group, or with auto-commit.
        """
        return self._consumer.offsets_to_send()

    async def seek_to_committed(self) -> None:
        """Seek all assigned partitions to the group's committed offsets, after a transaction was aborted. Records that
        were returned since then are read again. A partition without a committed offset starts as a new assignment does.
        """
        await self._consumer.seek_to_committed()

    # Reading

    def __aiter__(self) -> AsyncIterator[Record]:
        """Iterate over all records, as they are fetched, without end. Between two records the consumer reports to its
        group, and commits. An iteration that ends leaves the next record to the next iteration or `poll`.
        """
        return self._consumer.records(_FOREVER)

    async def poll(self, timeout: float = 0.0, max_records: int | None = None) -> list[Record]:
        """Return the next records, at most `max_records`. Wait up to `timeout` seconds for the first record.

        Raises CorruptRecords; KafkaError for an error that a retry does not help, and with `auto_offset_reset="none"`
        also OFFSET_OUT_OF_RANGE and LogTruncation. If `retry_timeout` is set: raises the last error of a partition that
        could not be read for that many seconds.
        """
        chunks = await self._consumer.poll_chunks(timeout, max_records)
        if len(chunks) == 1:
            return chunks[0][1]
        return [record for _, records in chunks for record in records]

    async def poll_chunks(self, timeout: float = 0.0, max_records: int | None = None) -> list[Chunk]:
        """Return the next records as `poll` does, but grouped by partition."""
        return await self._consumer.poll_chunks(timeout, max_records)

    async def poll_columns(
        self, timeout: float = 0.0, *, headers: bool = False, max_bytes: int = 64 * 1024 * 1024
    ) -> list[tuple[TopicPartition, pa.RecordBatch]]:
        """Return the next records as columns: for each partition `pyarrow.RecordBatch`es with key, value, offset,
        timestamp and timestampType. No Python object is made for a record.
        """
        return await self._consumer.poll_columns(timeout, headers=headers, max_bytes=max_bytes)

    def wakeup(self) -> None:
        """End the `poll` in progress, or else the next one, as if its timeout had passed."""
        self._consumer.wakeup()
