"""Message streams, the consumer of the Kafka paper (section 3.1): iterators without end that divide a group's work.

Strategy: one thread polls for all streams and adds records to the stream of their partition. The partitions of a slow
stream are paused, so that it holds no more than a few thousand records and does not delay the others.

Rules: a partition stays with its stream as long as this consumer has it, so its records are in order; when it is
revoked, the records that its stream has not returned are dropped, since its next owner reads them. A record counts as
processed when the stream is asked for the next one; only processed records are committed. One thread at a time for each
stream.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from pylogd.client.core.consumer.reader import Chunk, PolledRecords
from pylogd.client.core.errors import Closed
from pylogd.client.core.model import TopicPartition
from pylogd.errors import PylogdError
from pylogd.wire.records import Record

_FULL = 10_000  # with more records waiting, the partitions of a stream are paused
_POLL_SECONDS = 1.0
_LOOK_SECONDS = 0.2  # how often to ask whether the claims hold again


class Source(Protocol):
    """The methods of a consumer that streams use."""

    def poll_chunks(self, timeout: float) -> list[Chunk]:
        """Return the next records, by partition."""
        ...

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Return no records of these partitions until `resume`."""
        ...

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Go on with these partitions."""
        ...

    def wakeup(self) -> None:
        """End a wait in `poll_chunks`."""
        ...


class MessageStream:
    """An iterator over the records of some partitions of a topic. It waits for records, and ends with the consumer."""

    def __init__(self, topic: str, number: int, drained: Callable[[], None], may_fetch: Callable[[], bool]) -> None:
        """`drained` is called when the stream is no longer full; `may_fetch` tells whether the group's claims hold."""
        self.topic = topic
        self.number = number
        self._drained = drained
        self._may_fetch = may_fetch
        self._changed = threading.Condition()
        self._chunks: deque[Chunk] = deque()
        self._waiting = 0
        self._progress: dict[TopicPartition, int] = {}
        self._present: TopicPartition | None = None
        self._handed = PolledRecords()
        self._cut = False  # the partition of the present chunk was revoked
        self._ended = False
        self._error: PylogdError | None = None
        self._records = self._generate()

    def __iter__(self) -> Iterator[Record]:
        return self._records

    def __next__(self) -> Record:
        return next(self._records)

    def _generate(self) -> Iterator[Record]:
        while self._next_chunk():
            for record in self._handed:
                if not self._may_fetch():
                    self._wait_for_claims()
                if self._cut:
                    break
                yield record

    def _next_chunk(self) -> bool:
        """Wait for the next chunk, and make it the present one. False: there is none. Raises the consumer's error."""
        with self._changed:
            if self._present is not None and not self._cut:
                self._progress[self._present] = self._handed.end
            self._present, self._cut, self._handed = None, False, PolledRecords()
            while not self._chunks and not self._ended:
                self._changed.wait()
            if not self._chunks:
                if self._error is not None:
                    raise self._error
                return False
            self._present, records = chunk = self._chunks.popleft()
            self._handed = PolledRecords([chunk])
            was_full = self.full
            self._waiting -= len(records)
            room_again = was_full and not self.full
        if room_again:
            self._drained()
        return True

    def _wait_for_claims(self) -> None:
        """Wait until the group's claims hold again, or the present partition is revoked, or the consumer is closed.

        Until then others may be reading the records that wait here.
        """
        with self._changed:
            while not (self._cut or self._ended or self._may_fetch()):
                self._changed.wait(_LOOK_SECONDS)
            ends = self._ended and not self._may_fetch()
            held = {chunk[0] for chunk in self._chunks} | {self._present}
        if ends:
            self.drop({partition for partition in held if partition is not None})

    # What the consumer's thread calls

    @property
    def full(self) -> bool:
        """Whether enough records wait."""
        return self._waiting > _FULL

    def put(self, chunk: Chunk) -> None:
        """Add records."""
        with self._changed:
            self._chunks.append(chunk)
            self._waiting += len(chunk[1])
            self._changed.notify_all()

    def drop(self, partitions: set[TopicPartition]) -> None:
        """Drop the records of partitions that are no longer read."""
        with self._changed:
            self._chunks = deque(chunk for chunk in self._chunks if chunk[0] not in partitions)
            self._waiting = sum(len(records) for _, records in self._chunks)
            self._cut = self._cut or self._present in partitions
            for partition in partitions:
                self._progress.pop(partition, None)

    def progress(self) -> dict[TopicPartition, int]:
        """Return the offset up to which each partition is processed."""
        with self._changed:
            present = {} if self._cut else self._handed.unprocessed(last_is_done=False)
            return {**self._progress, **present}

    def end(self, error: PylogdError | None) -> None:
        """End the iterator, or have it raise."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()


class Streams:
    """All streams of a consumer, and the thread that feeds them."""

    def __init__(
        self,
        source: Source,
        counts: Mapping[str, int],
        stream_of: Callable[[TopicPartition], int | None],
        may_fetch: Callable[[], bool],
    ) -> None:
        """`counts` has the number of streams of each topic; `stream_of` returns the coordinator's choice for a
        partition, or None. Raises ValueError for less than one stream.
        """
        if any(count < 1 for count in counts.values()):
            raise ValueError("a topic needs at least one stream")
        self._source = source
        self._chosen = stream_of
        self.by_topic = {
            topic: [MessageStream(topic, number, source.wakeup, may_fetch) for number in range(count)]
            for topic, count in counts.items()
        }
        self._stream_of: dict[TopicPartition, MessageStream] = {}
        self._paused: set[TopicPartition] = set()
        self._thread = threading.Thread(target=self._run, name="pylogd streams", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def assigned(self, partitions: list[TopicPartition]) -> None:
        """Give new partitions to the streams that were chosen, or to those of their topics that have the fewest."""
        for partition in partitions:
            streams, chosen = self.by_topic[partition.topic], self._chosen(partition)
            loads = list(self._stream_of.values())
            self._stream_of[partition] = min(streams, key=loads.count) if chosen is None else streams[chosen]

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Take partitions from their streams."""
        for partition in partitions:
            self._stream_of.pop(partition, None)
            self._paused.discard(partition)
        for streams in self.by_topic.values():
            for stream in streams:
                stream.drop(set(partitions))

    def progress(self) -> dict[TopicPartition, int]:
        """Return the offset up to which each partition is processed."""
        found: dict[TopicPartition, int] = {}
        for streams in self.by_topic.values():
            for stream in streams:
                found.update(stream.progress())
        return found

    def _run(self) -> None:
        error: PylogdError | None = None
        try:
            while True:
                for chunk in self._source.poll_chunks(_POLL_SECONDS):
                    self._stream_of[chunk[0]].put(chunk)
                self._pause_the_full()
        except Closed:
            pass
        except PylogdError as failure:
            error = failure
        finally:
            for streams in self.by_topic.values():
                for stream in streams:
                    stream.end(error)

    def _pause_the_full(self) -> None:
        full = {partition for partition, stream in self._stream_of.items() if stream.full}
        if full != self._paused:
            if full - self._paused:
                self._source.pause(*(full - self._paused))
            if self._paused - full:
                self._source.resume(*(self._paused - full))
            self._paused = full
