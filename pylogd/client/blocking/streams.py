"""Message streams for threads. `core/consumer/streams.py` has the rules.

Strategy: one thread polls for all streams. Each stream has a lock, which guards its records.

Rules: one thread at a time for each stream. A stream continues after an iteration that was left, or interrupted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from pylogd.base.errors import PylogdError
from pylogd.client.core.consumer.record_buffer import Chunk
from pylogd.client.core.consumer.streams import StreamQueue, StreamTable
from pylogd.client.core.errors import Closed
from pylogd.client.core.model import TopicPartition
from pylogd.wire.records import Record

_POLL_SECONDS = 1.0
_LOOK_SECONDS = 0.2  # seconds between two checks whether the claims hold again


class Source(Protocol):
    """The methods of a consumer that streams use."""

    def poll_chunks(self, timeout: float) -> list[Chunk]:
        """Return the next records, by partition."""
        ...

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Return no records of these partitions until `resume`."""
        ...

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Return records of these partitions again."""
        ...

    def wakeup(self) -> None:
        """End a wait in `poll_chunks`."""
        ...


class MessageStream(StreamQueue):
    """An iterator over the records of some partitions of a topic. It waits for records, and ends with the consumer."""

    def __init__(self, topic: str, number: int, drained: Callable[[], None], may_fetch: Callable[[], bool]) -> None:
        """drained: called when the stream is no longer full.

        may_fetch: returns whether the group's claims are valid.
        """
        super().__init__(topic, number)
        self._drained = drained
        self._may_fetch = may_fetch
        self._changed = threading.Condition()
        self._records: Iterator[Record] = iter(())

    def __next__(self) -> Record:
        if not self._may_fetch():
            self._wait_for_claims()
        while (record := next(self._records, None)) is None:
            records = self._next_records()
            if records is None:
                raise StopIteration
            self._records = records
        return record

    def __iter__(self) -> Iterator[Record]:
        while (records := self._next_records()) is not None:
            for record in records:  # nothing may raise between here and `yield`: the record would be lost
                yield record
                if not self._may_fetch():
                    self._wait_for_claims()

    def _next_records(self) -> Iterator[Record] | None:
        """Wait for records. Return an iterator over the remaining records of one partition.

        Return None if there are none. Raises the consumer's error.
        """
        drained = False
        with self._changed:
            while not self._has_more:
                self._finish_chunk()
                while not self._chunks and not self._ended:
                    self._changed.wait()
                if not self._chunks and self._error is None:
                    return None
                drained |= self._open_chunk()
            assert self._present is not None
            records = self._present.iterator
        if drained:
            self._drained()
        if not self._may_fetch():
            self._wait_for_claims()
        return records

    def _wait_for_claims(self) -> None:
        """Wait until the group's claims hold again, or the present partition is revoked, or the consumer is closed.

        Until then other members may be reading the records that wait here.
        """
        with self._changed:
            while not (self._cut or self._ended or self._may_fetch()):
                self._changed.wait(_LOOK_SECONDS)
            if self._ended and not self._may_fetch():
                self.drop_all()

    def put(self, chunk: Chunk) -> None:
        """Add records."""
        with self._changed:
            super().put(chunk)
            self._changed.notify_all()

    def drop(self, partitions: set[TopicPartition]) -> None:
        """Drop the records of partitions that are no longer read."""
        with self._changed:
            super().drop(partitions)

    def drop_all(self) -> None:
        """Drop all records: the claims are lost, and others may read them."""
        with self._changed:
            super().drop_all()

    def move(self, partition: TopicPartition, offset: int) -> None:
        """Drop the records of a partition; reading continues at `offset`."""
        with self._changed:
            super().move(partition, offset)

    def progress(self) -> dict[TopicPartition, int]:
        """Return the offset up to which each partition is processed."""
        with self._changed:
            return super().progress()

    def positions(self) -> dict[TopicPartition, int]:
        """Return, for each partition that has or had records, the offset after the last returned record."""
        with self._changed:
            return super().positions()

    def end(self, error: PylogdError | None) -> None:
        """End the iterator, or have it raise."""
        with self._changed:
            super().end(error)
            self._changed.notify_all()


class Streams(StreamTable[MessageStream]):
    """All streams of a consumer, and the thread that feeds them."""

    def __init__(
        self,
        source: Source,
        counts: Mapping[str, int],
        stream_of: Callable[[TopicPartition], int | None],
        may_fetch: Callable[[], bool],
        lock: AbstractContextManager[object],
    ) -> None:
        """Pass the arguments of `StreamTable`, and the consumer with its lock. Raises ValueError for less than one
        stream.
        """
        super().__init__(
            counts, stream_of, lambda topic, number: MessageStream(topic, number, source.wakeup, may_fetch)
        )
        self._source = source
        self._lock = lock
        self._thread = threading.Thread(target=self._run, name="pylogd streams", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _run(self) -> None:
        error: PylogdError | None = None
        try:
            while True:
                with self._lock:  # a `seek` between the two would let old records through
                    self.put(self._source.poll_chunks(_POLL_SECONDS))
                pause, resume = self.full_changed()
                if pause:
                    self._source.pause(*pause)
                if resume:
                    self._source.resume(*resume)
        except Closed:
            pass
        except PylogdError as failure:
            error = failure
        finally:
            self.end(error)
