"""The consumer: partitions that the caller chose, read from any offset on.

Strategy: the fetcher keeps one request under way to each broker; `poll` decodes what has come, a batch at a time, while
the broker already works on the next request. The position is the consumer's own: nothing is kept on the broker.

Rules: a record is handed out once, in the order of its partition. Records of control batches are not handed out. What
can't be helped raises from `poll`, and the next `poll` goes on at the same position. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from pylogd.client import offsets
from pylogd.client.cluster import Cluster
from pylogd.client.errors import Closed, CorruptRecords, is_retriable
from pylogd.client.fetcher import Fetched, Fetcher, Place
from pylogd.client.model import OffsetAndTime, TopicPartition
from pylogd.errors import ErrorCode, KafkaError
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.records import BatchHeader, Record, decode_batch

_FOREVER = 3600.0


class Consumer:
    """A consumer on a cluster of its own, or on one that is given. Not for several threads at a time."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Cluster = "localhost:9092",
        *,
        auto_offset_reset: Literal["earliest", "latest", "none"] = "earliest",
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 16 * 1024 * 1024,
        partition_max_bytes: int = 1024 * 1024,
        max_poll_records: int = 10_000,
        check_crcs: bool = True,
        request_timeout: float = 30.0,
        retry_timeout: float = 60.0,
        client_id: str = "pylogd",
    ) -> None:
        """`retry_timeout` is how many seconds a partition may fail before `poll` raises why."""
        if isinstance(bootstrap_servers, Cluster):
            self.cluster, self._own_cluster = bootstrap_servers, False
        else:
            self.cluster = Cluster(
                bootstrap_servers, client_id=client_id, request_timeout=request_timeout, retry_timeout=retry_timeout
            )
            self._own_cluster = True
        if auto_offset_reset not in ("earliest", "latest", "none"):
            raise ValueError(f"auto_offset_reset is earliest, latest or none, not {auto_offset_reset!r}")
        self._reset_to = auto_offset_reset
        self._check_crcs = check_crcs
        self._max_poll_records = max_poll_records
        self._retry_timeout = retry_timeout
        self._clock = self.cluster.clock
        self._fetcher = Fetcher(
            self.cluster,
            min_bytes=fetch_min_bytes,
            max_wait_ms=fetch_max_wait_ms,
            max_bytes=fetch_max_bytes,
            partition_max_bytes=partition_max_bytes,
            request_timeout=request_timeout,
        )
        self._positions: dict[TopicPartition, int] = {}
        self._failing_since: dict[TopicPartition, float] = {}
        self._fetched: Fetched | None = None
        self._left: list[Record] = []  # decoded and not yet handed out, all of one partition
        self._closed = False

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Read no more."""
        self._closed = True
        if self._own_cluster:
            self.cluster.close()

    # What to read, and from where

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read."""
        return list(self._positions)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic. Raises KafkaError if there is none."""
        return self.cluster.partitions(topic)

    def assign(self, partitions: Iterable[tuple[str, int]] | Mapping[tuple[str, int], int]) -> None:
        """Read these partitions and no others: from the offsets in a mapping; else those that were read before from
        where they were, new ones from where `auto_offset_reset` says.
        """
        given = partitions if isinstance(partitions, Mapping) else {}
        wanted = [TopicPartition(*partition) for partition in partitions]
        positions = {p: self._positions[p] for p in wanted if p in self._positions}
        positions.update((TopicPartition(*p), offset) for p, offset in given.items())
        fresh = [p for p in wanted if p not in positions]
        if fresh:
            positions.update(self._reset_offsets(fresh))
        for gone in set(self._positions) - set(wanted):
            self._forget(gone)
        for partition in wanted:
            if self._positions.get(partition) != positions[partition]:
                self.seek(partition, positions[partition], _checked=True)

    def seek(self, partition: tuple[str, int], offset: int, *, _checked: bool = False) -> None:
        """Go on at `offset` in a partition that is assigned."""
        place = TopicPartition(*partition)
        if not _checked and place not in self._positions:
            raise ValueError(f"{place} is not assigned")
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        self._forget(place)
        self._positions[place] = offset
        self._fetcher.move(place, offset)

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Go to the first record that there still is, in these partitions or in all."""
        for partition, offset in self.beginning_offsets(partitions or self.assignment).items():
            self.seek(partition, offset)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Go behind the last record, in these partitions or in all."""
        for partition, offset in self.end_offsets(partitions or self.assignment).items():
            self.seek(partition, offset)

    def position(self, partition: tuple[str, int]) -> int:
        """The offset of the next record that `poll` hands out, or that would be if it were there."""
        return self._positions[TopicPartition(*partition)]

    def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The first offset that each partition still has."""
        return offsets.beginning_offsets(self.cluster, [TopicPartition(*p) for p in partitions])

    def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The offset that the next record of each partition will have."""
        return offsets.end_offsets(self.cluster, [TopicPartition(*p) for p in partitions])

    def offsets_for_times(self, times: Mapping[tuple[str, int], int]) -> dict[TopicPartition, OffsetAndTime | None]:
        """The first offset in each partition at or after a time in milliseconds since 1970; None if there is none."""
        found = offsets.list_offsets(self.cluster, {TopicPartition(*p): time for p, time in times.items()})
        return {partition: (answer if answer.offset >= 0 else None) for partition, answer in found.items()}

    def _reset_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        if self._reset_to == "none":
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{partitions[0]}: no offset is given to read from")
        look_up = offsets.beginning_offsets if self._reset_to == "earliest" else offsets.end_offsets
        return look_up(self.cluster, partitions)

    def _forget(self, partition: TopicPartition) -> None:
        self._positions.pop(partition, None)
        self._failing_since.pop(partition, None)
        self._fetcher.drop(partition)
        if self._left and (self._left[0].topic, self._left[0].partition) == partition:
            self._left = []
        if self._fetched is not None and self._fetched.place.partition == partition:
            self._fetched = None

    # Reading

    def __iter__(self) -> Iterator[Record]:
        """Every record, as they come, without end."""
        while True:
            yield from self.poll(_FOREVER)

    def poll(self, timeout: float = 0.0, max_records: int | None = None) -> list[Record]:
        """The next records, at most `max_records`; waits up to `timeout` seconds for a first one, then returns [].

        Raises KafkaError (OFFSET_OUT_OF_RANGE with auto_offset_reset="none" and others that trying again won't help),
        CorruptRecords, or what kept a partition from being read for `retry_timeout` seconds.
        """
        if self._closed:
            raise Closed("the consumer is closed")
        limit = self._max_poll_records if max_records is None else max_records
        deadline = self._clock.monotonic() + timeout
        while True:
            records = self._gather(limit)
            if records:
                return records
            self._fetcher.send()
            self._fetcher.receive(max(0.0, deadline - self._clock.monotonic()))
            while (failed := self._fetcher.failed()) is not None:
                self._deal_with(failed)
            records = self._gather(limit)
            if records or self._clock.monotonic() >= deadline:
                return records

    def _gather(self, limit: int) -> list[Record]:
        """Up to `limit` records of what has come."""
        records: list[Record] = []
        while len(records) < limit:
            try:
                if not self._left and not self._decode_next():
                    break
            except CorruptRecords:
                if not records:
                    raise
                break  # hand out what is good; the position is at the damage, where the next poll finds it again
            more = self._left
            if len(records) + len(more) > limit:
                cut = limit - len(records)
                more, self._left = more[:cut], more[cut:]
            else:
                self._left = []
            last = more[-1]
            partition = TopicPartition(last.topic, last.partition)
            self._positions[partition] = last.offset + 1
            if records:
                records += more
            else:
                records = more
        return records

    def _decode_next(self) -> bool:
        """Decode batches that have come until one has records to hand out; False if nothing is left."""
        while True:
            if self._fetched is None:
                self._fetched = self._fetcher.take()
                if self._fetched is None:
                    return False
                self._failing_since.pop(self._fetched.place.partition, None)
            found = next(self._fetched.batches, None)
            if found is None:
                self._fetched = None
                continue
            self._left = self._decode(self._fetched.place.partition, self._fetched.offset, *found)
            if self._left:
                return True

    def _decode(self, partition: TopicPartition, asked: int, header: BatchHeader, batch: memoryview) -> list[Record]:
        """The records of a batch from the offset asked for on. The position moves behind a batch that has none."""
        position = self._positions[partition]
        if header.last_offset < position:
            return []
        try:
            records = [] if header.is_control else decode_batch(
                batch, header, topic=partition.topic, partition=partition.partition, check_crc=self._check_crcs
            )  # fmt: skip
        except InvalidRecordBatch as error:
            self.seek(partition, position)
            raise CorruptRecords(*partition, header.base_offset, header.next_offset, str(error)) from error
        if records and records[0].offset < max(asked, position):
            records = [record for record in records if record.offset >= position]
        if not records:
            self._positions[partition] = header.next_offset
        return records

    def _deal_with(self, place: Place) -> None:
        """An answer that was an error: reset the position, wait and try again, or raise."""
        error, place.error = place.error, None
        assert error is not None
        partition = place.partition
        if isinstance(error, KafkaError) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE and self._reset_to != "none":
            self.seek(partition, self._reset_offsets([partition])[partition])
            return
        now = self._clock.monotonic()
        since = self._failing_since.setdefault(partition, now)
        if is_retriable(error) and now - since < self._retry_timeout:
            return
        del self._failing_since[partition]
        raise error
