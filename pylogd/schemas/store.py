"""The topic that the registry lives in: read to its end, followed, written.

Strategy: the blocking client in two threads. One reads the topic from its beginning for as long as the service lives
and hands what it read to the reactor; writes go through a pool thread, and count when the reader has brought them back.
Changes are made one after the other, each worked out from all that was written before it.

Rules: one service at a time writes to a topic. What the registry does not know yet (before the first read of the topic
is through) is not answered but with an error.
Must not know: HTTP, what is in a record.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from twisted.internet import defer
from twisted.internet.interfaces import IReactorCore
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from pylogd.client import Admin, Cluster, Consumer, Producer
from pylogd.errors import ErrorCode, KafkaError, PylogdError
from pylogd.schemas.errors import StoreTimedOut
from pylogd.schemas.registry import Registry, TopicRecord

log = Logger()

_POLL_SECONDS = 0.5
_RETRY_SECONDS = 1.0
_REPLICAS = 3


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
        self._producer: Producer | None = None
        self._next = 0  # the first offset that was not applied
        self._waits: list[tuple[int, defer.Deferred[None]]] = []
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
        if self._producer is not None:
            self._producer.close(self._timeout)

    def change(self, work: Callable[[], tuple[Any, list[TopicRecord]]]) -> defer.Deferred[Any]:
        """Write the records that `work` comes to, and give its result once they are applied.

        `work` runs when all changes before it are applied. Fails with what it raises, or `StoreTimedOut`.
        """
        return self._lock.run(lambda: defer.Deferred.fromCoroutine(self._change(work)))

    async def _change(self, work: Callable[[], tuple[Any, list[TopicRecord]]]) -> Any:
        result, records = work()
        if records:
            try:
                offset = await self._in_thread(self._write, records)
            except PylogdError as error:
                raise StoreTimedOut(f"the change could not be written: {error}") from error
            waiting = self._until(offset + 1)
            waiting.addTimeout(self._timeout, self._reactor)
            try:
                await waiting
            except defer.TimeoutError as error:
                raise StoreTimedOut("the change was written and did not come back in time") from error
        return result

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
        self._producer = Producer(self._bootstrap, acks="all", linger_ms=0)
        with Consumer(self._bootstrap) as consumer:
            return next(iter(consumer.end_offsets([(self._topic, 0)]).values()))

    def _write(self, records: list[TopicRecord]) -> int:
        """The offset of the last one, once all are written."""
        assert self._producer is not None
        told = [self._producer.send(self._topic, record.value, key=record.key, partition=0) for record in records]
        self._producer.flush(self._timeout)
        return [delivery.result(self._timeout) for delivery in told][-1]

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
            self.registry.apply(record.key, record.value)
        self._next = max(self._next, position)
        due = [done for offset, done in self._waits if offset <= self._next]
        self._waits = [wait for wait in self._waits if wait[0] > self._next]
        for done in due:
            if not done.called:
                done.callback(None)
