"""Message streams on an event loop, the consumer of the Kafka paper (section 3.1): iterate with `async for`.

Strategy and rules: as `blocking/streams.py`, with a task in place of the thread that polls for all streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial

from pylogd.client.core.consumer.reader import Chunk, PolledRecords
from pylogd.client.core.errors import Closed
from pylogd.client.core.model import TopicPartition
from pylogd.client.evented.loop import Loop, Promise
from pylogd.errors import PylogdError
from pylogd.wire.records import Record

_FULL = 10_000  # with more records waiting, the partitions of a stream are paused
_POLL_SECONDS = 1.0
_LOOK_SECONDS = 0.2  # how often to ask whether the claims hold again


class MessageStream(AsyncIterator[Record]):
    """An asynchronous iterator over the records of some partitions of a topic. It ends with the consumer."""

    def __init__(
        self, loop: Loop, topic: str, number: int, drained: Callable[[], None], may_fetch: Callable[[], bool]
    ) -> None:
        """`drained` is called when the stream is no longer full; `may_fetch` tells whether the group's claims hold."""
        self.topic = topic
        self.number = number
        self._loop = loop
        self._drained = drained
        self._may_fetch = may_fetch
        self._chunks: deque[Chunk] = deque()
        self._waiting = 0
        self._progress: dict[TopicPartition, int] = {}
        self._present: TopicPartition | None = None
        self._handed = PolledRecords()
        self._records: Iterator[Record] = iter(self._handed)
        self._changed: Promise[None] | None = None
        self._ended = False
        self._error: PylogdError | None = None

    def __aiter__(self) -> MessageStream:
        return self

    async def __anext__(self) -> Record:
        while True:
            if not self._may_fetch():
                await self._wait_for_claims()
            record = next(self._records, None)
            if record is not None:
                return record
            self._finish_chunk()
            while not self._chunks and not self._ended:
                self._changed = self._loop.promise()
                await self._changed
            if not self._chunks:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._open_chunk()

    async def _wait_for_claims(self) -> None:
        """Wait until the group's claims hold again, or the present partition is revoked, or the consumer is closed.

        Until then others may be reading the records that wait here.
        """
        while self._present is not None and not self._may_fetch():
            if self._ended:
                self.drop({self._present, *(chunk[0] for chunk in self._chunks)})
                return
            changed: Promise[None] = self._loop.promise()
            self._changed = changed
            self._loop.later(_LOOK_SECONDS, partial(changed.succeed, None))
            await changed

    def _finish_chunk(self) -> None:
        if self._present is not None:
            self._progress[self._present] = self._handed.end
        self._present, self._handed = None, PolledRecords()

    def _open_chunk(self) -> None:
        self._present, records = chunk = self._chunks.popleft()
        self._handed = PolledRecords([chunk])
        self._records = iter(self._handed)
        was_full = self.full
        self._waiting -= len(records)
        if was_full and not self.full:
            self._drained()

    # What the consumer's task calls

    @property
    def full(self) -> bool:
        """Whether enough records wait."""
        return self._waiting > _FULL

    def put(self, chunk: Chunk) -> None:
        """Add records."""
        self._chunks.append(chunk)
        self._waiting += len(chunk[1])
        self._wake()

    def drop(self, partitions: set[TopicPartition]) -> None:
        """Drop the records of partitions that are no longer read."""
        self._chunks = deque(chunk for chunk in self._chunks if chunk[0] not in partitions)
        self._waiting = sum(len(records) for _, records in self._chunks)
        if self._present in partitions:
            self._present, self._handed = None, PolledRecords()
            self._records = iter(self._handed)
        for partition in partitions:
            self._progress.pop(partition, None)

    def progress(self) -> dict[TopicPartition, int]:
        """Return the offset up to which each partition is processed."""
        return {**self._progress, **self._handed.unprocessed(last_is_done=False)}

    def end(self, error: PylogdError | None) -> None:
        """End the iterator, or have it raise."""
        self._ended, self._error = True, error
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.succeed(None)


class Streams:
    """All streams of a consumer, and the task that feeds them."""

    def __init__(
        self,
        loop: Loop,
        poll: Callable[[float], Awaitable[list[Chunk]]],
        pause: Callable[[Sequence[tuple[str, int]], bool], Awaitable[None]],
        wakeup: Callable[[], None],
        may_fetch: Callable[[], bool],
        stream_of: Callable[[TopicPartition], int | None],
        counts: Mapping[str, int],
    ) -> None:
        """`counts` has the number of streams of each topic; `stream_of` returns the coordinator's choice for a
        partition, or None. Raises ValueError for less than one stream.
        """
        if any(count < 1 for count in counts.values()):
            raise ValueError("a topic needs at least one stream")
        self._poll = poll
        self._pause = pause
        self._chosen = stream_of
        self.by_topic = {
            topic: [MessageStream(loop, topic, number, wakeup, may_fetch) for number in range(count)]
            for topic, count in counts.items()
        }
        self._stream_of: dict[TopicPartition, MessageStream] = {}
        self._paused: set[TopicPartition] = set()

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
        for stream in self._streams():
            stream.drop(set(partitions))

    def progress(self) -> dict[TopicPartition, int]:
        """Return the offset up to which each partition is processed."""
        found: dict[TopicPartition, int] = {}
        for stream in self._streams():
            found.update(stream.progress())
        return found

    def _streams(self) -> list[MessageStream]:
        return [stream for streams in self.by_topic.values() for stream in streams]

    async def run(self) -> None:
        """Poll for all streams until the consumer is closed."""
        error: PylogdError | None = None
        try:
            while True:
                for chunk in await self._poll(_POLL_SECONDS):
                    self._stream_of[chunk[0]].put(chunk)
                await self._pause_the_full()
        except Closed:
            pass
        except PylogdError as failure:
            error = failure
        finally:
            for stream in self._streams():
                stream.end(error)

    async def _pause_the_full(self) -> None:
        full = {partition for partition, stream in self._stream_of.items() if stream.full}
        if full - self._paused:
            await self._pause(sorted(full - self._paused), True)
        if self._paused - full:
            await self._pause(sorted(self._paused - full), False)
        self._paused = full
