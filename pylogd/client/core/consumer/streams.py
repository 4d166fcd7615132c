"""Message streams, the consumer of the Kafka paper (section 3.1): iterators without end that divide a group's work.

Strategy: a `StreamQueue` holds the records of one stream, and knows how far they are processed; `StreamTable` knows
which stream reads which partition. The faces poll for all streams, and add the records to the stream of their
partition. The partitions of a slow stream are paused, so that it holds no more than a few thousand records and does not
delay the others.

Rules: a partition stays with its stream as long as this consumer has it, so its records are in order; when it is
revoked, the records that its stream has not returned are dropped, since its next owner reads them. A record counts as
processed when the stream is asked for the next one; only processed records are committed. No I/O, no threads, no locks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from pylogd.base.errors import PylogdError
from pylogd.client.core.consumer.record_buffer import BufferedRecords, Chunk
from pylogd.client.core.model import TopicPartition

_FULL = 10_000  # with more waiting records, the partitions of a stream are paused


class StreamQueue:
    """The records of one stream that were fetched, and which of them are processed."""

    def __init__(self, topic: str, number: int) -> None:
        """Make the empty stream `number` of a topic."""
        self.topic = topic
        self.number = number
        self._ended = False
        self._error: PylogdError | None = None
        self._chunks: deque[Chunk] = deque()
        self._waiting = 0
        self._progress: dict[TopicPartition, int] = {}
        self._present: BufferedRecords | None = None
        self._cut = False  # the partition of the present chunk was revoked or moved

    @property
    def full(self) -> bool:
        """Whether enough records wait."""
        return self._waiting > _FULL

    def put(self, chunk: Chunk) -> None:
        """Add records."""
        self._chunks.append(chunk)
        self._waiting += len(chunk[1])

    def drop(self, partitions: set[TopicPartition]) -> None:
        """Drop the records of partitions that are no longer read."""
        self._chunks = deque(chunk for chunk in self._chunks if chunk[0] not in partitions)
        self._waiting = sum(len(records) for _, records in self._chunks)
        if self._present is not None and self._present.partition in partitions:
            self._cut = True
            self._present.exhaust()
        for partition in partitions:
            self._progress.pop(partition, None)

    def move(self, partition: TopicPartition, offset: int) -> None:
        """Drop the records of a partition; reading continues at `offset`."""
        self.drop({partition})
        self._progress[partition] = offset

    def drop_all(self) -> None:
        """Drop all records: the claims are lost, and others may read them."""
        present = [] if self._present is None else [self._present.partition]
        self.drop({*present, *(chunk[0] for chunk in self._chunks)})

    def progress(self) -> dict[TopicPartition, int]:
        """Return the offset up to which each partition is processed."""
        present = self._present
        if present is None or self._cut:
            return dict(self._progress)
        current = present.current
        return {**self._progress, present.partition: present.start if current is None else current.offset}

    def positions(self) -> dict[TopicPartition, int]:
        """Return, for each partition that has or had records, the offset after the last returned record."""
        waiting = {partition: records[0].offset for partition, records in reversed(self._chunks)}
        present = {} if self._present is None or self._cut else {self._present.partition: self._present.position}
        return {**waiting, **self._progress, **present}

    def end(self, error: PylogdError | None) -> None:
        """End the iterator, or have it raise."""
        self._ended, self._error = True, error

    @property
    def _has_more(self) -> bool:
        """Whether the present chunk has records that were not handed out."""
        return self._present is not None and self._present.left > 0

    def _finish_chunk(self) -> None:
        """Count the records of the present chunk as processed."""
        if self._present is not None and not self._cut:
            self._progress[self._present.partition] = self._present.end
        self._present, self._cut = None, False

    def _open_chunk(self) -> bool:
        """Make the next chunk the present one. Return whether the stream has stopped being full.

        If there is no chunk, raises the error with which the consumer ended, if any.
        """
        if not self._chunks and self._error is not None:
            raise self._error
        partition, records = self._chunks.popleft()
        self._present = BufferedRecords(partition, records, records[0].offset, records[-1].offset + 1)
        was_full = self.full
        self._waiting -= len(records)
        return was_full and not self.full


Stream = TypeVar("Stream", bound=StreamQueue)


class StreamTable(Generic[Stream]):
    """All streams of a consumer, and the partitions that each reads."""

    def __init__(
        self,
        counts: Mapping[str, int],
        stream_of: Callable[[TopicPartition], int | None],
        make: Callable[[str, int], Stream],
    ) -> None:
        """`counts` has the number of streams of each topic; `stream_of` returns the coordinator's choice for a
        partition, or None; `make(topic, number)` makes a stream. Raises ValueError for less than one stream.
        """
        if any(count < 1 for count in counts.values()):
            raise ValueError("a topic needs at least one stream")
        self._chosen = stream_of
        self.by_topic = {topic: [make(topic, number) for number in range(count)] for topic, count in counts.items()}
        self._stream_of: dict[TopicPartition, Stream] = {}
        self._paused: set[TopicPartition] = set()

    def assigned(self, partitions: list[TopicPartition]) -> None:
        """Assign new partitions to the chosen streams, or to the streams of their topics that have the fewest."""
        for partition in partitions:
            streams, chosen = self.by_topic[partition.topic], self._chosen(partition)
            loads = list(self._stream_of.values())
            self._stream_of[partition] = min(streams, key=loads.count) if chosen is None else streams[chosen]

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Take partitions from their streams."""
        for partition in partitions:
            self._stream_of.pop(partition, None)
            self._paused.discard(partition)
        for stream in self._streams():
            stream.drop(set(partitions))

    def progress(self) -> dict[TopicPartition, int]:
        """Return the offset up to which each partition is processed."""
        return {partition: at for stream in self._streams() for partition, at in stream.progress().items()}

    def positions(self) -> dict[TopicPartition, int]:
        """Return, for each partition that has or had records, the offset after the last returned record."""
        return {partition: at for stream in self._streams() for partition, at in stream.positions().items()}

    def put(self, chunks: list[Chunk]) -> None:
        """Add records to the streams of their partitions."""
        for chunk in chunks:
            self._stream_of[chunk[0]].put(chunk)

    def move(self, partition: TopicPartition, offset: int) -> None:
        """Drop the records of a partition; reading continues at `offset`."""
        stream = self._stream_of.get(partition)
        if stream is not None:
            stream.move(partition, offset)

    def full_changed(self) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Return the partitions to pause, whose streams are full, and the partitions to resume. The caller must do
        both.
        """
        full = {partition for partition, stream in self._stream_of.items() if stream.full}
        pause, resume = sorted(full - self._paused), sorted(self._paused - full)
        self._paused = full
        return pause, resume

    def end(self, error: PylogdError | None) -> None:
        """End all iterators, or have them raise."""
        for stream in self._streams():
            stream.end(error)

    def _streams(self) -> list[Stream]:
        return [stream for streams in self.by_topic.values() for stream in streams]
