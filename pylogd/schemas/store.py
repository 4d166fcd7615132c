"""Read and write the topic in which the registry stores its schemas.

Strategy: the blocking client in threads. A reader thread follows the topic from its beginning as long as the service
runs and passes the records to the reactor. Writes run in a thread of the pool, and take effect when the reader has read
them back. Changes are made one after the other, each computed from all records before it. Several services may share a
topic: a change is appended only if no other service has written meanwhile (`appending`), else it is computed again.

Rules: the service answers no request before the topic was read to its end. A record that can't be applied is skipped.
Must not know: HTTP, the content of records.
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

from pylogd.client import Admin, Cluster, Consumer, SecurityOptions
from pylogd.errors import ErrorCode, KafkaError, PylogdError
from pylogd.schemas.appending import FIRST, BatchSequence, ConcurrentAppend, TopicAppender, stamp_of
from pylogd.schemas.errors import StoreTimedOut
from pylogd.schemas.registry import TAKEOVER, Registry, TopicRecord

log = Logger()

_POLL_SECONDS = 0.5
_RETRY_SECONDS = 1.0
_REPLICAS = 3
#: How long to wait for the record of another service that appended first, before taking over the topic.
_FOREIGN_SECONDS = 1.0


class SchemaStore:
    """The registry's topic. `registry` may be read on the reactor's thread only.

    `timeout`: seconds that a change may take.
    """

    def __init__(
        self,
        reactor: Any,
        bootstrap: str,
        topic: str,
        registry: Registry,
        timeout: float = 10.0,
        security: SecurityOptions | None = None,
    ) -> None:
        self.registry = registry
        self._reactor: Any = IReactorCore(reactor)
        self._bootstrap = bootstrap
        self._security = security
        self._topic = topic
        self._timeout = timeout
        self._lock = defer.DeferredLock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="schemas-reader", daemon=True)
        self._appender = TopicAppender(bootstrap, topic, timeout, security)
        self._next = 0  # the offset of the first record that was not applied yet
        self._waits: list[tuple[int, defer.Deferred[None]]] = []
        self._next_sequence = FIRST  # the sequence number of the next record
        self._token = ""  # the token of the append under way
        self._token_read = False
        self._ready: defer.Deferred[None] = defer.Deferred()

    def start(self) -> defer.Deferred[None]:
        """Create the topic if it is missing. The Deferred fires once it was read to its end, or fails."""
        return defer.Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        end = await self._in_thread(self._open)
        self._thread.start()
        await self._until(end)

    def stop(self) -> defer.Deferred[None]:
        """Stop. The Deferred fires once the threads have ended."""
        self._stopping.set()
        return defer.Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        await self._in_thread(self._close)

    def _close(self) -> None:
        if self._thread.is_alive():
            self._thread.join()
        self._appender.close()

    def change(self, work: Callable[[], tuple[Any, list[TopicRecord]]]) -> defer.Deferred[Any]:
        """Write the records that `work` returns. The Deferred fires with its result once they are applied.

        `work` is called once all earlier changes are applied, and again if another service wrote meanwhile. Fails with
        what `work` raises, or with StoreTimedOut.
        """
        return self._lock.run(lambda: defer.Deferred.fromCoroutine(self._change(work)))

    async def _change(self, work: Callable[[], tuple[Any, list[TopicRecord]]]) -> Any:
        deadline = self._reactor.seconds() + self._timeout
        while True:
            result, records = work()
            if not records or await self._append(records):
                return result
            if self._reactor.seconds() >= deadline:
                raise StoreTimedOut("the change was not made: other registries kept writing to the topic; try again")

    async def _append(self, records: list[TopicRecord]) -> bool:
        """Append records. Returns true once they are applied, false if another service appended first."""
        sequence, self._token, self._token_read = self._next_sequence, uuid4().hex, False
        pairs = [(record.key, record.value) for record in records]
        try:
            offset = await self._in_thread(self._appender.append, sequence, self._token, pairs)
        except ConcurrentAppend:
            await self._catch_up(sequence)
            return False
        except PylogdError as error:
            raise StoreTimedOut(f"the change could not be written: {error}") from error
        await self._wait_for(offset + len(records))
        if (
            not self._token_read and self._next_sequence == sequence
        ):  # the leader has that sequence's batch, and the topic has no stamp
            await self._catch_up(sequence)
            return False
        return self._token_read

    async def _catch_up(self, refused: BatchSequence) -> None:
        """Read what other services have written, and so the next sequence number. If no record has it, take over."""
        try:
            await self._wait_for(await self._in_thread(self._appender.end_offset))
            if self._next_sequence == refused:  # the other's record is not committed yet, or was deleted
                news = self._until(self._next + 1).addTimeout(_FOREIGN_SECONDS, self._reactor)
                with suppress(defer.TimeoutError):
                    await news
            if self._next_sequence == refused:
                log.warn(
                    "No record in {topic} has the last sequence number: continuing with the next producer epoch",
                    topic=self._topic,
                )
                sequence, self._token = BatchSequence(refused.epoch + 1, 0), uuid4().hex
                pairs = [(TAKEOVER.key, TAKEOVER.value)]
                await self._wait_for(1 + await self._in_thread(self._appender.append, sequence, self._token, pairs))
        except ConcurrentAppend:
            # Another service has begun that epoch, or a later one.
            self._next_sequence = max(self._next_sequence, BatchSequence(refused.epoch + 1, 0))
        except PylogdError as error:
            raise StoreTimedOut(f"the change could not be written: {error}") from error

    async def _wait_for(self, offset: int) -> None:
        """Wait until all records before `offset` are applied. Raises StoreTimedOut."""
        try:
            await self._until(offset).addTimeout(self._timeout, self._reactor)
        except defer.TimeoutError as error:
            raise StoreTimedOut("the change was written, but could not be read back in time") from error

    def _until(self, offset: int) -> defer.Deferred[None]:
        """Return a Deferred that fires once all records before `offset` are applied."""
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
        """Create the topic if it is missing. Returns its end offset."""
        # bootstrap_timeout=0: the operator is told at once if no broker can be reached.
        with (
            Cluster(self._bootstrap, bootstrap_timeout=0.0, security=self._security) as cluster,
            Admin(cluster) as admin,
        ):
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
                with Consumer(self._bootstrap, auto_offset_reset="earliest", security=self._security) as consumer:
                    consumer.assign({(self._topic, 0): position})
                    while not self._stopping.is_set():
                        records = consumer.poll(_POLL_SECONDS)
                        position = consumer.position((self._topic, 0))
                        self._reactor.callFromThread(self._apply, records, position)
            except (PylogdError, OSError) as error:
                log.error(
                    "Can't read topic {topic}, trying again in {seconds:g} s: {error}",
                    topic=self._topic, seconds=_RETRY_SECONDS, error=str(error),
                )  # fmt: skip
                self._stopping.wait(_RETRY_SECONDS)

    def _apply(self, records: list[Any], position: int) -> None:
        for record in records:
            stamp = stamp_of(record.headers)
            if stamp is not None:
                self._next_sequence = max(
                    self._next_sequence, BatchSequence(stamp.sequence.epoch, stamp.sequence.number + 1)
                )
                self._token_read = self._token_read or stamp.token == self._token
            try:
                self.registry.apply(record.key, record.value, record.offset)
            except Exception:
                log.failure(
                    "Unexpected error: skipping the record at offset {offset} of {topic}",
                    offset=record.offset, topic=self._topic,
                )  # fmt: skip
        self._next = max(self._next, position)
        due = [done for offset, done in self._waits if offset <= self._next]
        self._waits = [wait for wait in self._waits if wait[0] > self._next]
        for done in due:
            if not done.called:
                done.callback(None)
