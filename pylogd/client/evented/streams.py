"""Message streams on an event loop: iterate with `async for`. `core/consumer/streams.py` has the rules.

Strategy: a task polls for all streams.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial

from pylogd.base.errors import PylogdError
from pylogd.client.core.consumer.record_buffer import Chunk
from pylogd.client.core.consumer.streams import StreamQueue, StreamTable
from pylogd.client.core.errors import Closed
from pylogd.client.core.model import TopicPartition
from pylogd.client.evented.loop import Loop, Promise
from pylogd.wire.records import Record

_POLL_SECONDS = 1.0
_LOOK_SECONDS = 0.2  # seconds between two checks whether the claims hold again


class MessageStream(StreamQueue, AsyncIterator[Record]):
    """An asynchronous iterator over the records of some partitions of a topic. It ends with the consumer."""

    def __init__(
        self, loop: Loop, topic: str, number: int, drained: Callable[[], None], may_fetch: Callable[[], bool]
    ) -> None:
        """drained: called when the stream is no longer full.

        may_fetch: returns whether the group's claims are valid.
        """
        super().__init__(topic, number)
        self._loop = loop
        self._drained = drained
        self._may_fetch = may_fetch
        self._records: Iterator[Record] = iter(())
        self._changed: Promise[None] | None = None

    def __aiter__(self) -> MessageStream:
        return self

    async def __anext__(self) -> Record:
        while True:
            if not self._may_fetch():
                await self._wait_for_claims()
            record = None if self._cut else next(self._records, None)
            if record is not None:
                return record
            self._finish_chunk()
            self._records = iter(())
            while not self._chunks and not self._ended:
                self._changed = self._loop.promise()
                await self._changed
            if not self._chunks and self._error is None:
                raise StopAsyncIteration
            drained = self._open_chunk()
            assert self._present is not None
            self._records = self._present.iterator
            if drained:
                self._drained()

    async def _wait_for_claims(self) -> None:
        """Wait until the group's claims hold again, or the present partition is revoked, or the consumer is closed.

        Until then other members may be reading the records that wait here.
        """
        while self._present is not None and not self._cut and not self._may_fetch():
            if self._ended:
                self.drop_all()
                return
            changed: Promise[None] = self._loop.promise()
            self._changed = changed
            self._loop.later(_LOOK_SECONDS, partial(changed.succeed, None))
            await changed

    def put(self, chunk: Chunk) -> None:
        """Add records."""
        super().put(chunk)
        self._wake()

    def end(self, error: PylogdError | None) -> None:
        """End the iterator, or have it raise."""
        super().end(error)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.succeed(None)


class Streams(StreamTable[MessageStream]):
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
        """Pass arguments of `StreamTable`, and methods of the consumer. Raises ValueError for less than one stream."""
        super().__init__(counts, stream_of, lambda topic, number: MessageStream(loop, topic, number, wakeup, may_fetch))
        self._poll = poll
        self._pause = pause

    async def run(self) -> None:
        """Poll for all streams until the consumer is closed."""
        error: PylogdError | None = None
        try:
            while True:
                self.put(await self._poll(_POLL_SECONDS))
                for partitions, paused in zip(self.full_changed(), (True, False), strict=True):
                    if partitions:
                        await self._pause(partitions, paused)
        except Closed:
            pass
        except PylogdError as failure:
            error = failure
        finally:
            self.end(error)
