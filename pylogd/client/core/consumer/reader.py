"""From what was fetched to what is handed out: positions, and records in the order of each partition.

Strategy: a batch is decoded when its turn comes, whole; what exceeds the limit of a call waits decoded for the next
call. The position is the offset of the next record to hand out, and is all that says what was read.

Rules: a record is handed out once, in the order of its partition; records of control batches and of aborted
transactions are not. Damage is reported when everything in front of it has been handed out, and the position stays in
front of it. What is paused is put aside and not lost. One thread at a time; no I/O, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import length_hint
from types import MappingProxyType
from typing import TYPE_CHECKING

from pylogd.client.core.consumer.columns import decode_batches
from pylogd.client.core.consumer.fetcher import FetchedBatches, Fetcher
from pylogd.client.core.errors import CorruptRecords, DeserializationFailed, RequestTimedOut
from pylogd.client.core.model import TopicPartition
from pylogd.client.core.serialization import RecordDeserializer
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.records import BatchHeader, Record, decode_batch

if TYPE_CHECKING:
    import pyarrow as pa

#: records of one partition, in order
Chunk = tuple[TopicPartition, list[Record]]
#: the same as columns, with the position that they were read from
ColumnChunk = tuple[TopicPartition, int, "pa.RecordBatch"]


@dataclass(slots=True, eq=False)
class _Open:
    """What is being read of a partition: batches, and records that are decoded already. `taken`: of its batches with
    records, the last that was looked at.
    """

    fetched: FetchedBatches
    left: list[Record] = field(default_factory=list)
    taken: BatchHeader | None = None


class Handed:
    """What was handed out last, and how much of it was passed on by an iteration: the rest is not processed."""

    def __init__(
        self, chunks: Iterable[Chunk] = (), begins: Mapping[TopicPartition, int] = MappingProxyType({})
    ) -> None:
        """Nothing was passed on yet. `begins`: instead of records, where they begin."""
        self._waiting = deque(chunks)
        self._begins = begins
        self._records: list[Record] = []
        self._iterator = iter(self._records)
        self.begun = False

    def __iter__(self) -> Iterator[Record]:
        """The records, one by one."""
        self.begun = True
        while self._waiting:
            self._records = self._waiting.popleft()[1]
            self._iterator = iter(self._records)
            yield from self._iterator

    @property
    def end(self) -> int:
        """The offset behind the records that are, or were, passed on."""
        return self._records[-1].offset + 1

    def unprocessed(self, *, last_is_done: bool) -> dict[TopicPartition, int]:
        """The first offset of each partition that is not processed, where there is one. Whether the record that was
        passed on last is processed, only the caller knows.
        """
        first = dict(self._begins)
        first.update((partition, records[0].offset) for partition, records in reversed(self._waiting))
        at = len(self._records) - length_hint(self._iterator) - (not last_is_done)
        if 0 <= at < len(self._records):
            record = self._records[at]
            first[TopicPartition(record.topic, record.partition)] = record.offset
        return first


class Reader:
    """Positions of the partitions that are read, and the records that have come for them."""

    def __init__(
        self,
        fetcher: Fetcher,
        take: Callable[[], FetchedBatches | None],
        *,
        check_crcs: bool = True,
        deserializer: RecordDeserializer | None = None,
    ) -> None:
        """`take` is where batches come from."""
        self.positions: dict[TopicPartition, int] = {}
        self._fetcher = fetcher
        self._take = take
        self._check_crcs = check_crcs
        self._deserializer = deserializer or None
        self._open: _Open | None = None
        self._aside: dict[TopicPartition, _Open] = {}

    def move(self, partition: TopicPartition, offset: int) -> None:
        """Go on at `offset`."""
        self._close(partition)
        self.positions[partition] = offset
        self._fetcher.move(partition, offset)

    def position(self, partition: TopicPartition) -> int:
        """Where a partition is read from next. Raises RequestTimedOut where the brokers have not said so in time."""
        found = self.positions.get(partition)
        if found is None:
            raise RequestTimedOut(f"{partition}: no broker said in time where to read from")
        return found

    def forget(self, partition: TopicPartition) -> None:
        """Read a partition no more."""
        self._close(partition)
        self.positions.pop(partition, None)
        self._fetcher.drop(partition)

    def pause(self, partition: TopicPartition, paused: bool) -> None:
        """Hand out no more of a partition for now."""
        self._fetcher.pause(partition, paused)
        if paused and self._open is not None and self._open.fetched.fetch.partition == partition:
            self._aside[partition], self._open = self._open, None

    def paused(self) -> list[TopicPartition]:
        """What is paused."""
        return [fetch.partition for fetch in self._fetcher.partitions.values() if fetch.paused]

    def drop_paused(self) -> None:
        """Drop what came of paused partitions, which is fetched again when they go on: others need the room."""
        for partition in self.paused():
            self.move(partition, self.positions[partition])

    def _close(self, partition: TopicPartition) -> None:
        if self._open is not None and self._open.fetched.fetch.partition == partition:
            self._fetcher.used(self._open.fetched)
            self._open = None
        aside = self._aside.pop(partition, None)
        if aside is not None:
            self._fetcher.used(aside.fetched)

    def gather(self, limit: int) -> list[Chunk]:
        """Up to `limit` records of what has come. Raises CorruptRecords, DeserializationFailed."""
        chunks: list[Chunk] = []
        while limit > 0:
            try:
                found = self._open_next()
                more = [] if found is None else self._next_records(found, limit)
            except (CorruptRecords, DeserializationFailed):
                if not chunks:
                    raise
                break  # hand out what is good; the position is at the damage, where the next call finds it again
            except BaseException:  # Ctrl-C: nobody will get these
                for partition, records in reversed(chunks):
                    self.move(partition, records[0].offset)
                raise
            if found is None:
                break
            limit -= len(more)
            partition = found.fetched.fetch.partition
            self.positions[partition] = more[-1].offset + 1
            if chunks and chunks[-1][0] == partition:
                chunks[-1][1].extend(more)
            else:
                chunks.append((partition, more))
        return chunks

    def _next_records(self, found: _Open, limit: int) -> list[Record]:
        """Take up to `limit` records that are decoded. Raises DeserializationFailed if the first one is at fault."""
        records = found.left
        more = records if len(records) <= limit else records[:limit]
        if self._deserializer is not None:
            more = self._deserializer.deserialize(more)
        found.left = records[len(more) :]
        return more

    def gather_columns(self, *, headers: bool, max_bytes: int) -> list[ColumnChunk]:
        """What has come, as columns, until its records take `max_bytes` or, by less than a batch, more. Raises
        CorruptRecords, PyArrowMissing.
        """
        chunks: list[ColumnChunk] = []
        while max_bytes > 0 and (found := self._next_open()) is not None:
            partition = found.fetched.fetch.partition
            position = self.positions[partition]
            if found.left:  # decoded as objects, by a call of another kind
                self.move(partition, position)
                continue
            try:
                name, index = partition
                columns = decode_batches(
                    self._readable(found), from_offset=position, headers=headers, check_crcs=self._check_crcs,
                    topic=name, partition=index, max_bytes=max_bytes,
                )  # fmt: skip
            except CorruptRecords:
                self.move(partition, position)
                if not chunks:
                    raise
                break
            if found.taken is not None and columns.next_offset < found.taken.next_offset:
                self.move(partition, columns.next_offset)  # it is damaged, or too much for one of Arrow's columns
            else:
                self.positions[partition] = max(self.positions[partition], columns.next_offset)
                if columns.ended:
                    self._finish(found)
            if columns.records.num_rows:
                chunks.append((partition, position, columns.records))
                max_bytes -= columns.records.nbytes
        return chunks

    def _next_open(self) -> _Open | None:
        if self._open is None:
            for partition in self._aside:
                if not self._fetcher.partitions[partition].paused:
                    self._open = self._aside.pop(partition)
                    break
            else:
                fetched = self._take()
                if fetched is not None:
                    self._open = _Open(fetched)
        return self._open

    def _finish(self, found: _Open) -> None:
        self._fetcher.used(found.fetched)
        self._open = None

    def _readable(self, found: _Open) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The batches that hold records for consumers; the position passes the others."""
        fetched = found.fetched
        partition = fetched.fetch.partition
        for header, batch in fetched.batches:
            try:
                skipped = fetched.aborted is not None and fetched.aborted.skips(header, batch)
            except InvalidRecordBatch as error:
                raise self._damage(partition, header, error) from error
            if skipped or header.is_control:
                self.positions[partition] = max(self.positions[partition], header.next_offset)
            else:
                found.taken = header
                yield header, batch

    def _open_next(self) -> _Open | None:
        """Decode batches that have come until there are records to hand out; None if nothing is left."""
        while (found := self._next_open()) is not None:
            if found.left:
                return found
            partition = found.fetched.fetch.partition
            for header, batch in self._readable(found):
                found.left = self._decode(partition, header, batch)
                if found.left:
                    return found
            self._finish(found)
        return None

    def _decode(self, partition: TopicPartition, header: BatchHeader, batch: memoryview) -> list[Record]:
        """The records of a batch from the position on. The position moves behind a batch that has none."""
        position = self.positions[partition]
        if header.last_offset < position:
            return []
        try:
            records = decode_batch(
                batch, header, topic=partition.topic, partition=partition.partition, check_crc=self._check_crcs
            )
        except InvalidRecordBatch as error:
            raise self._damage(partition, header, error) from error
        if records and records[0].offset < position:
            records = [record for record in records if record.offset >= position]
        if not records:
            self.positions[partition] = header.next_offset
        return records

    def _damage(self, partition: TopicPartition, header: BatchHeader, error: InvalidRecordBatch) -> CorruptRecords:
        self.move(partition, self.positions[partition])
        return CorruptRecords(*partition, header.base_offset, header.next_offset, str(error))
