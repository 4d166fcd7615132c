"""What the consumers on asyncio and on Twisted have in common: the methods that only pass on what they are given.

On asyncio they are coroutine methods of the consumer itself; on Twisted each is one that returns a Deferred.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from pylogd.client.core.consumer.options import Offsets
from pylogd.client.core.consumer.reader import Chunk
from pylogd.client.core.group.member_model import GroupMetadata
from pylogd.client.core.model import OffsetAndMetadata, OffsetAndTime, TopicPartition
from pylogd.client.evented.consumer import NO_ENDS, EventedConsumer
from pylogd.client.evented.offsets import Partitions
from pylogd.wire.records import Record

if TYPE_CHECKING:
    import pyarrow as pa

_FOREVER = 3600.0


class ConsumerMethods:
    """Methods of a consumer, as coroutines. Times in seconds."""

    def __init__(self, consumer: EventedConsumer) -> None:
        """`consumer` does the work."""
        self._consumer = consumer

    # What to read, and from where

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read."""
        return self._consumer.core.assignment

    @property
    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return self._consumer.reader.paused()

    async def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic. Raises KafkaError if there is none."""
        return await self._consumer.partitions(topic)

    async def assign(
        self, partitions: Partitions | Mapping[tuple[str, int], int], until: Mapping[tuple[str, int], int] = NO_ENDS
    ) -> None:
        """Read these partitions and no others. A mapping has their offsets; else those that were read before go on
        where they were, and new ones begin at what the group has committed, if there is a group, or where
        `auto_offset_reset` says.

        `until`: offsets from which on nothing is fetched, where reading has an end: no request waits there for records
        to come. The last batch is whole, so records behind the end may be returned.
        """
        await self._consumer.assign(partitions, until)

    async def unsubscribe(self) -> None:
        """Leave the group, with what was processed committed."""
        await self._consumer.unsubscribe()

    async def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Go to the first record that there still is, in these partitions or in all."""
        await self._consumer.seek_to(partitions, first=True)

    async def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Go behind the last record, in these partitions or in all."""
        await self._consumer.seek_to(partitions, first=False)

    async def pause(self, *partitions: tuple[str, int]) -> None:
        """Return no records of these partitions, or of all, until `resume`. Records that were fetched are kept while
        the buffers have space for those of other partitions.
        """
        await self._consumer.pause(partitions, True)

    async def resume(self, *partitions: tuple[str, int]) -> None:
        """Go on with these partitions, or with all."""
        await self._consumer.pause(partitions, False)

    async def position(self, partition: tuple[str, int]) -> int:
        """Return the offset of the next record that `poll` returns, whether it exists yet or not.

        Raises ValueError for a partition that is not assigned, and RequestTimedOut.
        """
        return await self._consumer.position(partition)

    # Offsets

    async def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the first offset that each partition still has."""
        return await self._consumer.ends(partitions, first=True)

    async def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the offset that the next record of each partition will have."""
        return await self._consumer.ends(partitions, first=False)

    async def offsets_for_times(
        self, times: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTime | None]:
        """Return the first offset in each partition at or after a time in milliseconds since 1970, None if none is."""
        return await self._consumer.offsets_for_times(times)

    async def committed(
        self, partitions: Partitions, timeout: float = 30.0
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return what the group has committed of each partition; None where it has committed nothing."""
        return await self._consumer.committed(partitions, timeout)

    async def commit(self, offsets: Offsets | None = None, *, wait: bool = True, timeout: float = 30.0) -> None:
        """Commit these offsets, each that of the next record to read; by default all that was returned, of an
        iteration up to and with the present record. Without `wait` it is done in the background.

        Raises CommitFailed where the group has moved on, KafkaError, RequestTimedOut.
        """
        await self._consumer.commit(offsets, wait=wait, timeout=timeout)

    # Transactions

    def group_metadata(self) -> GroupMetadata:
        """Return the member and generation in whose name offsets are committed, for `Producer.send_offsets`.

        Raises ValueError without a group.
        """
        return self._consumer.group_metadata()

    def offsets_to_send(self) -> tuple[dict[TopicPartition, OffsetAndMetadata], GroupMetadata]:
        """Return what `Producer.send_offsets(consumer)` sends. Raises ValueError if it has no group, or auto-commit."""
        return self._consumer.offsets_to_send()

    async def seek_to_committed(self) -> None:
        """Go back to what the group has committed, in all assigned partitions, after a transaction was aborted: what
        was returned since is read again. Where nothing is committed, reading starts as with a new assignment.
        """
        await self._consumer.seek_to_committed()

    # Reading

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Iterate over all records, as they are fetched, without end. Between two of them the consumer
        reports to its group, and commits.
        """
        async for record in self._consumer.records(_FOREVER):
            yield record

    async def poll(self, timeout: float = 0.0, max_records: int | None = None) -> list[Record]:
        """Return the next records, at most `max_records`; wait up to `timeout` seconds for a first one.

        Raises KafkaError (OFFSET_OUT_OF_RANGE, or LogTruncation, with auto_offset_reset="none", and others that
        retrying does not help), CorruptRecords, or what kept a partition from being read for `retry_timeout` seconds,
        if that is set.
        """
        chunks = await self._consumer.poll_chunks(timeout, max_records)
        if len(chunks) == 1:
            return chunks[0][1]
        return [record for _, records in chunks for record in records]

    async def poll_chunks(self, timeout: float = 0.0, max_records: int | None = None) -> list[Chunk]:
        """As `poll`, with the records of each partition apart."""
        return await self._consumer.poll_chunks(timeout, max_records)

    async def poll_columns(
        self, timeout: float = 0.0, *, headers: bool = False, max_bytes: int = 64 * 1024 * 1024
    ) -> list[tuple[TopicPartition, pa.RecordBatch]]:
        """As `poll`, but as columns: for each partition `pyarrow.RecordBatch`es with key, value, offset, timestamp and
        timestampType, without a Python object for a record.
        """
        return await self._consumer.poll_columns(timeout, headers=headers, max_bytes=max_bytes)

    def wakeup(self) -> None:
        """End the `poll` in progress, or else the next one, as if its time were over."""
        self._consumer.wakeup()
