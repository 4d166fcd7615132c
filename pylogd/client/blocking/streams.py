"""The paper's face of a consumer (section 3.1): message streams, endless iterators that share a group's work evenly.

Strategy: one thread polls for all streams and puts what comes into the stream that its partition belongs to. A stream
that is slow has its partitions paused, so that it holds no more than a few thousand records and keeps nobody waiting.

Rules: a partition stays with its stream as long as this consumer has it, so its records come in order; when it goes,
what its stream has not handed out goes with it, for whoever reads the partition next begins there. A record is
processed when the stream is asked for the next one; only that is committed. Each stream is for one thread at a time.
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

_FULL = 10_000  # records that wait in a stream, besides those that came with the last of them
_POLL_SECONDS = 1.0


class Source(Protocol):
    """The consumer, as far as streams drive it."""

    def poll_chunks(self, timeout: float) -> list[Chunk]:
        """What has come, by partition."""
        ...

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Hand out no more of these for now."""
        ...

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Go on with these."""
        ...

    def wakeup(self) -> None:
        """End a wait in `poll_chunks`."""
        ...


class MessageStream:
    """An iterator over the records of its share of a topic. It waits for the next one; it ends with the consumer."""

    def __init__(self, topic: str, number: int, drained: Callable[[], None], may_fetch: Callable[[], bool]) -> None:
        """`drained` is called when a stream that was full has room again; `may_fetch` tells whether the group's claims
        still hold.
        """
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
        self._cut = False  # the rest of what is being handed out is not ours any more
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
                if self._cut:
                    break
                if not self._may_fetch():
                    self._drop_all()
                    break
                yield record

    def _next_chunk(self) -> bool:
        """Wait for records, the present ones from now on; False when none will come. Raises the consumer's error."""
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

    def _drop_all(self) -> None:
        """The claims are lost: others may be reading what is here."""
        with self._changed:
            held = {chunk[0] for chunk in self._chunks}
        self.drop(held | ({self._present} if self._present is not None else set()))

    # What the consumer's thread calls

    @property
    def full(self) -> bool:
        """Whether it has enough for now."""
        return self._waiting > _FULL

    def put(self, chunk: Chunk) -> None:
        """Records to hand out."""
        with self._changed:
            self._chunks.append(chunk)
            self._waiting += len(chunk[1])
            self._changed.notify_all()

    def drop(self, partitions: set[TopicPartition]) -> None:
        """These partitions are no longer read here."""
        with self._changed:
            self._chunks = deque(chunk for chunk in self._chunks if chunk[0] not in partitions)
            self._waiting = sum(len(records) for _, records in self._chunks)
            self._cut = self._cut or self._present in partitions
            for partition in partitions:
                self._progress.pop(partition, None)

    def progress(self) -> dict[TopicPartition, int]:
        """How far each partition is processed."""
        with self._changed:
            present = {} if self._cut else self._handed.unprocessed(last_is_done=False)
            return {**self._progress, **present}

    def end(self, error: PylogdError | None) -> None:
        """There will be no more: the iterator ends, or raises."""
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
        """`counts` is how many streams each topic has; `stream_of` the coordinator's choice for a partition, if it has
        one. ValueError: less than one stream.
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
        """Begin to read."""
        self._thread.start()

    def assigned(self, partitions: list[TopicPartition]) -> None:
        """These are ours now: each goes to the stream that was chosen, or to that of its topic that has the fewest."""
        for partition in partitions:
            streams, chosen = self.by_topic[partition.topic], self._chosen(partition)
            loads = list(self._stream_of.values())
            self._stream_of[partition] = min(streams, key=loads.count) if chosen is None else streams[chosen]

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """These are ours no more."""
        for partition in partitions:
            self._stream_of.pop(partition, None)
            self._paused.discard(partition)
        for streams in self.by_topic.values():
            for stream in streams:
                stream.drop(set(partitions))

    def progress(self) -> dict[TopicPartition, int]:
        """How far each partition is processed."""
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
