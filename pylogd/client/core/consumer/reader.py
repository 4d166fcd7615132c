"""Decode fetched batches and return their records: positions, and records in the order of each partition.

Strategy: a batch is decoded as a whole when its turn comes; records beyond the limit of a call wait for the next call.
Records go to `buffer`, from which the application gets them. `positions` are the offsets at which decoding continues;
`progress` has the positions that the application sees: the offsets of the next records to hand out. Each position has
the leader epoch of the last decoded batch, by which a truncation of the log is found (`validation`).

Rules: a record is handed out once, in the order of its partition; records of control batches and of aborted
transactions are not. A damaged batch is reported once everything in front of it has been handed out, and the position
stays in front of it. Batches of paused partitions are kept. `move`, `rewind` and `forget` leave the buffer alone: they
may be called while an iteration hands out records. One thread at a time; no I/O, no clock.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pylogd.client.core.consumer.columns import PyArrowMissing, decode_batches
from pylogd.client.core.consumer.fetcher import UNKNOWN_EPOCH, FetchedBatches, Fetcher
from pylogd.client.core.consumer.record_buffer import BufferedRecords, RecordBuffer
from pylogd.client.core.errors import CorruptRecords, DeserializationFailed, RequestTimedOut
from pylogd.client.core.model import TopicPartition
from pylogd.client.core.serialization import RecordDeserializer
from pylogd.wire import records as wire_records
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.records import BatchHeader, Record, batch_crc_ok, decode_batch

if TYPE_CHECKING:
    import pyarrow as pa

#: Records of one partition as columns, with the position that they were read from.
ColumnChunk = tuple[TopicPartition, int, "pa.RecordBatch"]
#: Records of one partition as whole batches with their headers.
BatchChunk = tuple[TopicPartition, int, list[tuple[BatchHeader, memoryview]]]


def begins_of(chunks: Iterable[ColumnChunk | BatchChunk]) -> dict[TopicPartition, int]:
    """Return the offset of the first record of each partition."""
    found: dict[TopicPartition, int] = {}
    for partition, position, _ in chunks:
        found.setdefault(partition, position)
    return found


@dataclass(slots=True, eq=False)
class _OpenBatches:
    """Batches of a partition that are being read.

    decoded: the records that wait to be handed out.
    last: the header of the last batch with records.
    epoch: the leader epoch of the last batch of any kind.
    """

    fetched: FetchedBatches
    decoded: list[Record] = field(default_factory=list)
    last: BatchHeader | None = None
    epoch: int = UNKNOWN_EPOCH


class Reader:
    """Positions of the partitions that are read, and the records that were fetched for them.

    positions: the offset at which reading continues in each partition. Earlier records are in `buffer`, or handed out.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        take: Callable[[], FetchedBatches | None],
        *,
        check_crcs: bool = True,
        deserializer: RecordDeserializer | None = None,
    ) -> None:
        """`take` returns the next fetched batches, or None."""
        self.positions: dict[TopicPartition, int] = {}
        self._epochs: dict[TopicPartition, int] = {}
        self._fetcher = fetcher
        self._take = take
        self._check_crcs = check_crcs
        self._deserializer = deserializer or None
        self._open: _OpenBatches | None = None
        self._aside: dict[TopicPartition, _OpenBatches] = {}
        self.buffer = RecordBuffer(fetcher.paused)

    def move(self, partition: TopicPartition, offset: int, epoch: int = UNKNOWN_EPOCH, *, valid: bool = False) -> None:
        """Continue at `offset`; `epoch` is the leader epoch of the record before it. A known epoch is validated before
        anything is fetched, unless the position is known to be `valid`.
        """
        self._close(partition)
        self.positions[partition] = offset
        self._epochs[partition] = epoch
        self._fetcher.move(partition, offset, epoch, valid=valid)

    def rewind(self, partition: TopicPartition, offset: int) -> None:
        """Fetch again from the position, or from an earlier offset."""
        self.move(partition, offset, self.epoch(partition), valid=True)

    def epoch(self, partition: TopicPartition) -> int:
        """Return the leader epoch of the record in front of the position, or UNKNOWN_EPOCH.

        It may be the epoch of a later record, which the log has only if it has the position too.
        """
        found = self._aside.get(partition)
        if self._open is not None and self._open.fetched.fetch.partition == partition:
            found = self._open
        known = self._epochs.get(partition, UNKNOWN_EPOCH)
        return known if found is None else max(known, found.epoch)

    def progress(self) -> dict[TopicPartition, int]:
        """Return the offset of the next record to hand out in each partition; it may be in the buffer."""
        return {**self.positions, **self.buffer.positions()}

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record. Raises RequestTimedOut if it is not known yet."""
        found = self.progress().get(partition)
        if found is None:
            raise RequestTimedOut(f"{partition}: no broker answered in time where to start")
        return found

    def forget(self, partition: TopicPartition) -> None:
        """Stop reading a partition."""
        self._close(partition)
        self.positions.pop(partition, None)
        self._epochs.pop(partition, None)
        self._fetcher.drop(partition)

    def pause(self, partition: TopicPartition, paused: bool) -> None:
        """Stop, or continue, handing out records of a partition."""
        self._fetcher.pause(partition, paused)
        if paused:
            self.buffer.pause(partition)
        if paused and self._open is not None and self._open.fetched.fetch.partition == partition:
            self._aside[partition], self._open = self._open, None

    def drop_paused(self) -> None:
        """Drop the batches of paused partitions, since other partitions need the buffers. They are fetched again on
        `resume`.
        """
        for partition in [fetch.partition for fetch in self._fetcher.partitions.values() if fetch.paused]:
            self.rewind(partition, self.positions[partition])

    def _close(self, partition: TopicPartition) -> None:
        if self._open is not None and self._open.fetched.fetch.partition == partition:
            self._fetcher.used(self._open.fetched)
            self._open = None
        aside = self._aside.pop(partition, None)
        if aside is not None:
            self._fetcher.used(aside.fetched)

    @property
    def ready(self) -> bool:
        """Whether records wait to be handed out, or batches to be decoded."""
        paused = self._fetcher.paused
        return self._fetcher.ready or self.buffer.ready or any(partition not in paused for partition in self._aside)

    def fill(self, limit: int) -> bool:
        """Put up to `limit` fetched records into the buffer, unless records wait there. Return whether any wait.

        Raises CorruptRecords, DeserializationFailed.

        The compiled loop hides records from the garbage collector, since they have no cycles. The records of the Python
        loop would start a collection of the whole process every few thousand records, so the collector is off
        meanwhile.
        """
        if self.buffer.ready:
            return True
        if wire_records.speedups is not None or not gc.isenabled():
            return self._fill(limit)
        gc.disable()
        try:
            return self._fill(limit)
        finally:
            gc.enable()

    def _fill(self, limit: int) -> bool:
        filled: list[BufferedRecords] = []
        try:
            try:
                self._read(limit, filled)
            except (CorruptRecords, DeserializationFailed):
                if not filled:
                    raise  # else return the good records; the next call finds the damage at the position
            self.buffer.put(filled)
        except (CorruptRecords, DeserializationFailed):
            raise
        except BaseException:  # Ctrl-C
            for chunk in filled:
                self.buffer.drop(chunk.partition)
            self._fetch_again([(chunk.partition, chunk.start) for chunk in filled])
            raise
        return bool(filled)

    def _fetch_again(self, begins: list[tuple[TopicPartition, int]]) -> None:
        """Fetch everything again from the positions, after an exception from outside, which may have lost batches.

        begins: the first offsets of records that were read, but are lost.
        """
        for partition, position in list(self.positions.items()):
            self.rewind(partition, position)
        for partition, position in reversed(begins):
            self.rewind(partition, position)

    def _read(self, limit: int, filled: list[BufferedRecords]) -> None:
        """Append up to `limit` records to `filled`."""
        while limit > 0 and (found := self._open_next()) is not None:
            more = self._next_records(found, limit)
            limit -= len(more)
            partition = found.fetched.fetch.partition
            start, end = self.positions[partition], more[-1].offset + 1
            if filled and filled[-1].partition == partition:
                filled[-1].records.extend(more)
                filled[-1].end = end
            else:
                filled.append(BufferedRecords(partition, more, start, end))
            self.positions[partition] = end

    def _next_records(self, found: _OpenBatches, limit: int) -> list[Record]:
        """Take up to `limit` decoded records. Raises DeserializationFailed if the first record fails."""
        records = found.decoded
        more = records if len(records) <= limit else records[:limit]
        if self._deserializer is not None:
            more = self._deserializer.deserialize(more)
        found.decoded = records[len(more) :]
        return more

    def gather_columns(self, *, headers: bool, max_bytes: int) -> list[ColumnChunk]:
        """Return fetched records as columns: whole batches, until their records have `max_bytes`.

        Raises CorruptRecords, PyArrowMissing.
        """
        chunks: list[ColumnChunk] = []
        try:
            self._read_columns(chunks, headers, max_bytes)
        except (CorruptRecords, PyArrowMissing):
            if not chunks:
                raise
        except BaseException:  # Ctrl-C
            self._fetch_again([(partition, position) for partition, position, _ in chunks])
            raise
        return chunks

    def _read_columns(self, chunks: list[ColumnChunk], headers: bool, max_bytes: int) -> None:
        while max_bytes > 0 and (found := self._next_open()) is not None:
            partition = found.fetched.fetch.partition
            position = self.positions[partition]
            if found.decoded:  # `fill` has decoded the records as objects
                self.rewind(partition, position)
                continue
            try:
                name, index = partition
                columns = decode_batches(
                    self._readable(found), from_offset=position, headers=headers, check_crcs=self._check_crcs,
                    topic=name, partition=index, max_bytes=max_bytes,
                )  # fmt: skip
            except CorruptRecords:
                self.rewind(partition, position)
                raise
            if columns.records.num_rows:
                chunks.append((partition, position, columns.records))
                max_bytes -= columns.records.nbytes
            if found.last is not None and columns.next_offset < found.last.next_offset:
                self.rewind(partition, columns.next_offset)  # the next batch is damaged, or too large for Arrow
            else:
                self.positions[partition] = max(self.positions[partition], columns.next_offset)
                if columns.ended:
                    self._finish(found)

    def take_batches(self) -> BatchChunk | None:
        """Return the batches with records of one partition from one answer, as they were received, or None.

        The position moves past the returned and the omitted batches. The earlier position is returned too, since the
        first batch may begin before it. Raises CorruptRecords; the position stays before the damage, and all earlier
        batches were returned.
        """
        found = self._next_open()
        if found is None:
            return None
        partition = found.fetched.fetch.partition
        position = self.positions[partition]
        batches: list[tuple[BatchHeader, memoryview]] = []
        try:
            for header, batch in self._readable(found):
                if self._check_crcs and not batch_crc_ok(batch, header):
                    raise self._damage(partition, header, InvalidRecordBatch("the batch has a wrong CRC"))
                if header.last_offset >= position:
                    batches.append((header, batch))
                self.positions[partition] = max(self.positions[partition], header.next_offset)
        except CorruptRecords:  # the position is at the damage
            if not batches:
                raise
        else:
            self._finish(found)
        return partition, position, batches

    def gather_batches(self, max_bytes: int) -> list[BatchChunk]:
        """Return what `take_batches` returns, until it has `max_bytes`. Raises CorruptRecords."""
        chunks: list[BatchChunk] = []
        try:
            while max_bytes > 0 and (found := self.take_batches()) is not None:
                chunks.append(found)
                max_bytes -= sum(len(batch) for _, batch in found[2])
        except CorruptRecords:
            if not chunks:
                raise
        except BaseException:  # Ctrl-C
            self._fetch_again([(partition, position) for partition, position, _ in chunks])
            raise
        return chunks

    def _next_open(self) -> _OpenBatches | None:
        if self._open is None:
            for partition in self._aside:
                if not self._fetcher.partitions[partition].paused:
                    self._open = self._aside.pop(partition)
                    break
            else:
                fetched = self._take()
                if fetched is not None:
                    self._open = _OpenBatches(fetched)
        return self._open

    def _finish(self, found: _OpenBatches) -> None:
        self._epochs[found.fetched.fetch.partition] = found.epoch
        self._fetcher.used(found.fetched)
        self._open = None

    def _readable(self, found: _OpenBatches) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Iterate over the batches with records for consumers; the position moves past the others."""
        fetched = found.fetched
        partition = fetched.fetch.partition
        for header, batch in fetched.batches:
            found.epoch = header.leader_epoch
            try:
                skipped = fetched.aborted is not None and fetched.aborted.skips(header, batch)
            except InvalidRecordBatch as error:
                raise self._damage(partition, header, error) from error
            if skipped or header.is_control:
                self.positions[partition] = max(self.positions[partition], header.next_offset)
            else:
                found.last = header
                yield header, batch

    def _open_next(self) -> _OpenBatches | None:
        """Decode batches until there are records to return. Return None if no batch is left."""
        while (found := self._next_open()) is not None:
            if found.decoded:
                return found
            partition = found.fetched.fetch.partition
            for header, batch in self._readable(found):
                found.decoded = self._decode(partition, header, batch)
                if found.decoded:
                    return found
            self._finish(found)
        return None

    def _decode(self, partition: TopicPartition, header: BatchHeader, batch: memoryview) -> list[Record]:
        """Return the records of a batch from the position on. The position moves past a batch that has none."""
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
        self.rewind(partition, self.positions[partition])
        return CorruptRecords(*partition, header.base_offset, header.next_offset, str(error))
