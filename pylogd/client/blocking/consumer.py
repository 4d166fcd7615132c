"""The consumer: reads partitions that the caller chose or its group assigned.

Strategy: `evented.EventedConsumer` does the work, in the thread that calls. While the application works on records, a
background thread receives data, sends fetches and keeps the consumer in its group, every few milliseconds
(`background`). While `poll` runs, only `poll` does so, so that no two threads compete for the interpreter over each
packet. Partitions are revoked and assigned only inside `poll`.

Rules: a record is returned once, in the order of its partition, to one member of a group at a time. Errors that retries
do not help are raised by `poll`, and the next `poll` continues at the same position. The records of one `poll` count as
processed when the next one is called. One thread at a time, except for `wakeup` and `close`; and not in a process that
was forked after the consumer was created.
"""

from __future__ import annotations

import logging
import os
import re
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from pylogd.client.blocking.background import Background
from pylogd.client.blocking.cluster import Cluster
from pylogd.client.blocking.streams import MessageStream, Streams
from pylogd.client.core.consumer.metrics import ConsumerMetrics
from pylogd.client.core.consumer.options import ConsumerOptions, Offset, Offsets
from pylogd.client.core.consumer.record_buffer import Chunk
from pylogd.client.core.errors import ClientError, Closed
from pylogd.client.core.group.assignment import RebalanceCallback, RebalanceListener
from pylogd.client.core.group.member_model import GroupMetadata
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.client.evented.consumer import NO_ENDS, EventedConsumer, Partitions
from pylogd.client.evented.face import ConsumerMethods
from pylogd.client.evented.group import BrokerGroup, ConsumerGroup
from pylogd.wire.records import Record

if TYPE_CHECKING:
    import pyarrow as pa

P = ParamSpec("P")
T = TypeVar("T")

_FOREVER = 3600.0
_CLOSE_SECONDS = 10.0
_CLOSE_SECONDS_AFTER_ERROR = 2.0
_SHORTEST_LOCK_WAIT = 0.05  # seconds within which the background thread releases the lock

_log = logging.getLogger(__name__)


class _Consumer(EventedConsumer):
    """Runs on a `PollLoop`. Listeners are called without its lock, so that the background thread can continue."""

    def pump(self) -> None:
        """Process received data, then let the driver take its turn.

        If batches have arrived, the turn is left to the reader, which takes one when it opens the batches.
        """
        happened = self._loop.turn(0.0)  # type: ignore[attr-defined]
        if not (happened and self.core.fetcher.ready and self._may_hand_out):
            self._driver.turn()

    def call_listener(self, callback: RebalanceCallback, partitions: list[TopicPartition]) -> Awaitable[Any] | None:
        """Call a listener in the application's thread."""
        lock = self._loop.lock  # type: ignore[attr-defined]
        lock.release()
        try:
            callback(partitions)
        finally:
            lock.acquire()
        return None


def _blocking(
    method: Callable[Concatenate[ConsumerMethods, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Consumer, P], T]:
    """Return a coroutine method as a method that blocks until it is done."""

    @wraps(method)
    def blocking(self: Consumer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(method(self._methods, *args, **kwargs))

    return blocking


class Consumer:
    """A consumer. It has its own connections, unless it is given a `Cluster`. `ConsumerOptions` lists the options."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Cluster = "localhost:9092",
        options: ConsumerOptions | None = None,
        **settings: Any,
    ) -> None:
        """Pass options as `ConsumerOptions`, by name, or both. No connection is opened yet.

        Raises TypeError for an unknown option, ValueError for options that contradict each other.
        """
        self.options = ConsumerOptions.of(options, settings)
        self._own_cluster = not isinstance(bootstrap_servers, Cluster)
        self.cluster = bootstrap_servers if isinstance(bootstrap_servers, Cluster) else Cluster(
            bootstrap_servers, self.options, retry_timeout=self.options.retry_timeout or 60.0
        )  # fmt: skip
        evented, self._loop = self.cluster.evented, self.cluster.loop
        make = None if self.options.group_id is None else self._make_group
        self._consumer = _Consumer(evented.driver, evented, self.options, make, _log.warning)
        self._methods = ConsumerMethods(self._consumer)
        self._process = os.getpid()
        self._background: Background | None = None
        if self.options.group_id is not None or (self.options.prefetch and self._own_cluster):
            self._background = Background(self._loop)
            # The thread ends when the consumer is garbage-collected.
            close = self.cluster.close if self._own_cluster else _nothing
            weakref.finalize(self, self._background.let_end, close)

    def _make_group(self, on_event: Callable[[], None]) -> ConsumerGroup:
        options = self.options
        if options.coordinator == "zookeeper":  # imported only when it is needed, since it imports Twisted
            from pylogd.client.blocking.zookeeper_group import ZooKeeperGroup  # noqa: PLC0415

            return ZooKeeperGroup(options)
        return BrokerGroup(self.cluster.evented.driver, options, on_event, _log.warning)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:  # the application may not have processed the records of the last poll
            self.close(_CLOSE_SECONDS_AFTER_ERROR, _processed=False)

    def close(self, timeout: float = _CLOSE_SECONDS, *, _processed: bool = True) -> None:
        """Stop reading and leave the group. With `auto_commit="after"`, first commit the offsets of processed records.

        Returns within `timeout` seconds. Any thread may call it; a `poll` in progress raises Closed. If a rebalance
        listener does not return within `timeout`, connections stay open until this consumer is garbage-collected.
        """
        if self._consumer.closing:
            return
        deadline = self._loop.now() + timeout
        self._consumer.closing_soon()
        self._loop.wake()
        locked = self._loop.lock.acquire(timeout=timeout)
        try:
            if locked:
                left = max(0.0, deadline - self._loop.now())
                self._loop.run(self._consumer.close(left, processed=_processed))
        finally:
            if locked:
                self._loop.lock.release()
            if self._background is not None:
                self._background.stop()
            if self._own_cluster and locked:
                self.cluster.close()

    def metrics(self) -> ConsumerMetrics:
        """Return statistics of this consumer, its brokers and its partitions. Any thread may call it."""
        return self._consumer.metrics()

    # What to read, and from where

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads now."""
        return self._consumer.core.assignment

    partitions = _blocking(ConsumerMethods.partitions)

    def assign(
        self, partitions: Partitions | Mapping[tuple[str, int], int], until: Mapping[tuple[str, int], int] = NO_ENDS
    ) -> None:
        """Read these partitions and no others.

        partitions: a mapping gives the offset at which each partition starts. Otherwise, a partition that was read
        before continues at its position; a new one starts at the group's committed offset, or, if there is none, where
        `auto_offset_reset` says.

        until: for a partition whose reading has an end, the offset from which nothing is fetched. No request waits for
        records there. The last batch is returned whole, so records after this offset may be returned.
        """
        self._check_process()
        self._loop.run(self._consumer.assign(partitions, until))

    def subscribe(
        self,
        topics: str | Iterable[str] | re.Pattern[str],
        *,
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Join the group and read the partitions that it assigns.

        topics: names, or a pattern that must match the whole name. `poll` calls the listeners: `on_assign` with new
        partitions, before their records are fetched, so it may call `seek`; `on_revoke` with revoked partitions, while
        their offsets can still be committed; `on_lost` (by default `on_revoke`) with partitions that other members may
        read already. An exception in a listener is raised by `poll`.
        """
        self._check_process()
        with self._loop.lock:
            self._consumer.subscribe(topics, RebalanceListener(on_assign, on_revoke, on_lost))
        self._loop.wake()
        self._start()

    unsubscribe = _blocking(ConsumerMethods.unsubscribe)

    def seek(self, partition: tuple[str, int], offset: Offset) -> None:
        """Continue at `offset` in an assigned partition. An `OffsetAndMetadata` with a leader epoch is checked against
        the log before records are read.
        """
        with self._loop.lock:
            self._consumer.seek(partition, offset)

    seek_to_beginning = _blocking(ConsumerMethods.seek_to_beginning)
    seek_to_end = _blocking(ConsumerMethods.seek_to_end)
    pause = _blocking(ConsumerMethods.pause)
    resume = _blocking(ConsumerMethods.resume)

    @property
    def paused(self) -> list[TopicPartition]:
        """The paused partitions."""
        with self._loop.lock:
            return self._consumer.core.paused()

    position = _blocking(ConsumerMethods.position)

    # Offsets

    beginning_offsets = _blocking(ConsumerMethods.beginning_offsets)
    end_offsets = _blocking(ConsumerMethods.end_offsets)
    offsets_for_times = _blocking(ConsumerMethods.offsets_for_times)
    committed = _blocking(ConsumerMethods.committed)

    def commit(self, offsets: Offsets | None = None, *, wait: bool = True, timeout: float = 30.0) -> None:
        """Commit offsets, each the offset of the next record to read. By default, commit all records that were
        returned; in an iteration, those up to and including the current record. With `wait=False`, commit in the
        background.

        Raises CommitFailed if this consumer no longer owns a partition or is no longer a member; KafkaError;
        RequestTimedOut.
        """
        self._loop.run(self._consumer.commit(offsets, wait=wait, timeout=timeout))
        if not wait:
            self._start()

    # Transactions

    def group_metadata(self) -> GroupMetadata:
        """Return the group member and generation with which offsets are committed, for `Producer.send_offsets`.

        Raises ValueError without a group.
        """
        with self._loop.lock:
            return self._consumer.group_metadata()

    def offsets_to_send(self) -> tuple[dict[TopicPartition, OffsetAndMetadata], GroupMetadata]:
        """Return what `Producer.send_offsets(consumer)` sends.

        Raises ValueError without a group, or with auto-commit.
        """
        with self._loop.lock:
            return self._consumer.offsets_to_send()

    seek_to_committed = _blocking(ConsumerMethods.seek_to_committed)

    # Reading

    def __iter__(self) -> Iterator[Record]:
        """Iterate over all records, as they are fetched, without end. Between two records the consumer reports to its
        group, and commits. An iteration that ends leaves the next record to the next iteration or `poll`.
        """
        background, group = self._background, self._consumer.group
        leased = group if group is not None and group.leased else None
        while True:
            self._fill(_FOREVER)
            while (records := self._open_next()) is not None:
                if group is None or background is None:
                    yield from records
                    continue
                for record in records:  # nothing may raise between here and `yield`: the record would be lost
                    yield record
                    if background.ticked:
                        background.ticked = False
                        self._look_between()
                    if leased is not None and not leased.may_fetch:  # other members may be reading the rest
                        self._interrupt()

    def _open_next(self) -> Iterator[Record] | None:
        with self._loop.lock:
            return self._consumer.open_next()

    def _look_between(self) -> None:
        with self._loop.lock:
            self._consumer.look_between()
        self._loop.wake()

    def _interrupt(self) -> None:
        with self._loop.lock:
            self._consumer.reader.buffer.interrupt()

    def poll(self, timeout: float = 0.0, max_records: int | None = None) -> list[Record]:
        """Return the next records, at most `max_records`. Wait up to `timeout` seconds for the first record.

        Raises CorruptRecords; KafkaError for an error that a retry does not help, and with `auto_offset_reset="none"`
        also OFFSET_OUT_OF_RANGE and LogTruncation. If `retry_timeout` is set: raises the last error of a partition that
        could not be read for that many seconds.
        """
        chunks = self.poll_chunks(timeout, max_records)
        if len(chunks) == 1:
            return chunks[0][1]
        return [record for _, records in chunks for record in records]

    def poll_chunks(self, timeout: float, max_records: int | None = None) -> list[Chunk]:
        """Return the next records as `poll` does, but grouped by partition."""
        return self._consumer.take(max_records) if self._fill(timeout, max_records) else []

    def _fill(self, timeout: float, max_records: int | None = None) -> bool:
        """Wait for records that can be returned. Return whether records may be returned now."""
        left = self._begin(timeout)
        if left is None:
            return False
        try:
            self._loop.run(self._consumer.fill(left, max_records))
        finally:
            self._loop.lock.release()
        return True

    def poll_columns(
        self, timeout: float = 0.0, *, headers: bool = False, max_bytes: int = 64 * 1024 * 1024
    ) -> list[tuple[TopicPartition, pa.RecordBatch]]:
        """Return the next records as columns: (partition, `pyarrow.RecordBatch`) pairs. The columns are key, value,
        offset, timestamp and timestampType, and with `headers=True` headers. No Python object is made for a record.
        Returns all fetched records, up to `max_bytes` of uncompressed batches; the last batch is whole.
        """
        left = self._begin(timeout)
        if left is None:
            return []
        try:
            return self._loop.run(self._consumer.poll_columns(left, headers=headers, max_bytes=max_bytes))
        finally:
            self._loop.lock.release()

    def _begin(self, timeout: float) -> float | None:
        """Take the lock. Return how much of `timeout` is left, or None if the background thread does not release it."""
        self._check_process()
        if self._consumer.closing:
            raise Closed("the consumer is closed")
        self._start()
        if self._loop.lock.acquire(blocking=False):
            return timeout
        deadline = self._loop.now() + timeout
        if not self._loop.lock.acquire(timeout=max(timeout, _SHORTEST_LOCK_WAIT)):
            return None
        return max(0.0, deadline - self._loop.now())

    def wakeup(self) -> None:
        """Make the `poll` that another thread is in return at once, or else the next `poll`, as if its timeout had
        passed.
        """
        self._consumer.wake_poll()
        self._loop.wake()

    def create_message_streams(self, topics: str | Mapping[str, int], count: int = 1) -> dict[str, list[MessageStream]]:
        """Subscribe, and divide the assigned partitions of each topic among `count` streams. A stream is an endless
        iterator for one thread. With `auto_commit="after"`, a record is committed when its stream is asked for the next
        record. A background thread polls the consumer; `close` ends the streams.
        """
        counts = {topics: count} if isinstance(topics, str) else dict(topics)
        assignment, group = self._consumer.in_group()
        streams = Streams(self, counts, group.stream_of, lambda: group.may_fetch, self._loop.lock)
        assignment.streams = self._consumer.streams = streams
        with self._loop.lock:
            self._consumer.subscribe(counts, RebalanceListener(streams.assigned, streams.revoked))
        streams.start()
        return streams.by_topic

    def _start(self) -> None:
        if self._background is not None:
            self._background.start()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ClientError("this consumer was made in another process; make a new one after the fork")


def _nothing() -> None:
    """Do nothing: the cluster belongs to the caller, who closes it."""
