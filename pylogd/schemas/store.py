"""The topic that the registry lives in: read to its end, followed, written.

Strategy: the blocking client in two threads. One reads the topic from its beginning for as long as the service lives
and hands what it read to the reactor; writes go through a pool thread, and count when the reader has brought them back.
Changes are made one after the other, each worked out from all that was written before it, whoever wrote it: any number
of services may share a topic. A change is appended only to the records that it was worked out from (`appending`); when
another service was quicker, it is worked out again from what that has written.

Rules: what the registry does not know yet (before the first read of the topic is through) is not answered but with an
error. A record that can't be applied is passed over; those behind it count.
Must not know: HTTP, what is in a record.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

from twisted.internet import defer
from twisted.internet.interfaces import IReactorCore
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from pylogd.client import Admin, Cluster, Consumer
from pylogd.errors import ErrorCode, KafkaError, PylogdError
from pylogd.schemas.appending import FIRST, Outrun, TopicAppender, Turn, stamp_of
from pylogd.schemas.errors import StoreTimedOut
from pylogd.schemas.registry import TAKEOVER, Registry, TopicRecord

log = Logger()

_POLL_SECONDS = 0.5
_RETRY_SECONDS = 1.0
_REPLICAS = 3
#: How long the record of another service that was quicker is waited for, before nobody is taken to know what is next.
_FOREIGN_SECONDS = 1.0


class SchemaStore:
    """See the module. `registry` is read on the reactor's thread only."""

    def __init__(self, reactor: Any, bootstrap: str, topic: str, registry: Registry, timeout: float = 10.0) -> None:
        self.registry = registry
        self._reactor: Any = IReactorCore(reactor)
        self._bootstrap = bootstrap
        self._topic = topic
        self._timeout = timeout
        self._lock = defer.DeferredLock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="schemas-reader", daemon=True)
        self._appender = TopicAppender(bootstrap, topic, timeout)
        self._next = 0  # the first offset that was not applied
        self._waits: list[tuple[int, defer.Deferred[None]]] = []
        self._turn = FIRST  # what the next record has to be stamped with
        self._token = ""  # of the append that is under way
        self._token_read = False
        self._ready: defer.Deferred[None] = defer.Deferred()

    def start(self) -> defer.Deferred[None]:
        """Fires once the topic is there and was read to its end; fails if it can't be."""
        return defer.Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        end = await self._in_thread(self._open)
        self._thread.start()
        await self._until(end)

    def stop(self) -> defer.Deferred[None]:
        """End the threads."""
        self._stopping.set()
        return defer.Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        await self._in_thread(self._close)

    def _close(self) -> None:
        if self._thread.is_alive():
            self._thread.join()
        self._appender.close()

    def change(self, work: Callable[[], tuple[Any, list[TopicRecord]]]) -> defer.Deferred[Any]:
        """Write the records that `work` comes to, and give its result once they are applied.

        `work` runs when all changes before it are applied. Fails with what it raises, or `StoreTimedOut`.
        """
        return self._lock.run(lambda: defer.Deferred.fromCoroutine(self._change(work)))

    async def _change(self, work: Callable[[], tuple[Any, list[TopicRecord]]]) -> Any:
        deadline = self._reactor.seconds() + self._timeout
        while True:
            result, records = work()
            if not records or await self._append(records):
                return result
            if self._reactor.seconds() >= deadline:
                raise StoreTimedOut("other registries kept writing to the topic: the change was not made")

    async def _append(self, records: list[TopicRecord]) -> bool:
        """Append records to what was applied; whether they were, and have been applied. If not, others were quicker."""
        turn, self._token, self._token_read = self._turn, uuid4().hex, False
        pairs = [(record.key, record.value) for record in records]
        try:
            offset = await self._in_thread(self._appender.append, turn, self._token, pairs)
        except Outrun:
            await self._catch_up(turn)
            return False
        except PylogdError as error:
            raise StoreTimedOut(f"the change could not be written: {error}") from error
        await self._wait_for(offset + len(records))
        if not self._token_read and self._turn == turn:  # the leader has that turn's batch, and the topic has no stamp
            await self._catch_up(turn)
            return False
        return self._token_read

    async def _catch_up(self, refused: Turn) -> None:
        """Learn what others have written, and with it the next turn; take over if the topic does not say it."""
        try:
            await self._wait_for(await self._in_thread(self._appender.end_offset))
            if self._turn == refused:  # what was written is not committed yet, or no longer there
                news = self._until(self._next + 1).addTimeout(_FOREIGN_SECONDS, self._reactor)
                with suppress(defer.TimeoutError):
                    await news
            if self._turn == refused:
                log.warn("nothing in {topic} says which producer sequence is next: taking over", topic=self._topic)
                turn, self._token = Turn(refused.epoch + 1, 0), uuid4().hex
                pairs = [(TAKEOVER.key, TAKEOVER.value)]
                await self._wait_for(1 + await self._in_thread(self._appender.append, turn, self._token, pairs))
        except Outrun:
            self._turn = max(self._turn, Turn(refused.epoch + 1, 0))  # another one has begun that epoch, or a later one
        except PylogdError as error:
            raise StoreTimedOut(f"the change could not be written: {error}") from error

    async def _wait_for(self, offset: int) -> None:
        """Wait until all before `offset` was applied. `StoreTimedOut`."""
        try:
            await self._until(offset).addTimeout(self._timeout, self._reactor)
        except defer.TimeoutError as error:
            raise StoreTimedOut("the change was written and did not come back in time") from error

    def _until(self, offset: int) -> defer.Deferred[None]:
        """Fires when all before `offset` was applied."""
        done: defer.Deferred[None] = defer.Deferred()
        if self._next >= offset:
            done.callback(None)
        else:
            self._waits.append((offset, done))
        return done

    def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> defer.Deferred[Any]:
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), function, *arguments)

    # In threads ----------------------------------------------------------------------------------------------------

    def _open(self) -> int:
        """Make the topic if need be; where it ends."""
        # Who starts the service wants to hear at once that no broker is there.
        with Cluster(self._bootstrap, bootstrap_timeout=0.0) as cluster, Admin(cluster) as admin:
            replicas = min(_REPLICAS, max(len(admin.describe_cluster().brokers), 1))
            try:
                admin.create_topic(self._topic, 1, replicas, {"cleanup.policy": "compact"})
            except KafkaError as error:
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
        return self._appender.end_offset()

    def _follow(self) -> None:
        position = 0
        while not self._stopping.is_set():
            try:
                with Consumer(self._bootstrap, auto_offset_reset="earliest") as consumer:
                    consumer.assign({(self._topic, 0): position})
                    while not self._stopping.is_set():
                        records = consumer.poll(_POLL_SECONDS)
                        position = consumer.position((self._topic, 0))
                        self._reactor.callFromThread(self._apply, records, position)
            except (PylogdError, OSError) as error:
                log.error("the schemas topic can't be read, again in a second: {error}", error=str(error))
                self._stopping.wait(_RETRY_SECONDS)

    def _apply(self, records: list[Any], position: int) -> None:
        for record in records:
            stamp = stamp_of(record.headers)
            if stamp is not None:
                self._turn = max(self._turn, Turn(stamp.turn.epoch, stamp.turn.sequence + 1))
                self._token_read = self._token_read or stamp.token == self._token
            try:
                self.registry.apply(record.key, record.value, record.offset)
            except Exception:
                log.failure("the record at offset {offset} of {topic} is passed over", offset=record.offset,
                            topic=self._topic)  # fmt: skip
        self._next = max(self._next, position)
        due = [done for offset, done in self._waits if offset <= self._next]
        self._waits = [wait for wait in self._waits if wait[0] > self._next]
        for done in due:
            if not done.called:
                done.callback(None)
