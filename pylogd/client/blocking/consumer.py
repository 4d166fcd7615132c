"""The consumer: reads partitions that the caller chose or its group assigned.

Strategy: `evented.EventedConsumer` does the work, in the thread that calls. While the application works on records, a
background thread receives data, sends fetches and keeps the consumer in its group, every few milliseconds
(`background`). While `poll` runs, only `poll` does so, so that no two threads compete for the interpreter over each
packet. Partitions are revoked and assigned only inside `poll`.

Rules: a record is returned once, in the order of its partition, to one member of a group at a time. Errors that retries
do not help are raised by `poll`, and the next `poll` goes on at the same position. The records of one `poll` count as
processed when the next one is called. One thread at a time, except for `wakeup` and `close`; and not in a process that
was forked after the consumer was created.
"""

from __future__ import annotations

import logging
import os
import re
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pylogd.client.blocking.background import Background
from pylogd.client.blocking.cluster import Cluster
from pylogd.client.blocking.streams import MessageStream, Streams
from pylogd.client.core.consumer.metrics import ConsumerMetrics
from pylogd.client.core.consumer.options import ConsumerOptions, Offset, Offsets
from pylogd.client.core.consumer.reader import Chunk
from pylogd.client.core.errors import ClientError, Closed
from pylogd.client.core.group.assignment import RebalanceCallback, RebalanceListener
from pylogd.client.core.group.member_model import GroupMetadata
from pylogd.client.core.model import OffsetAndMetadata, OffsetAndTime, TopicPartition
from pylogd.client.evented.consumer import NO_ENDS, EventedConsumer
from pylogd.client.evented.group import BrokerGroup, ConsumerGroup
from pylogd.client.evented.offsets import Partitions
from pylogd.errors import PylogdError
from pylogd.wire.records import Record

if TYPE_CHECKING:
    import pyarrow as pa

_FOREVER = 3600.0
_CLOSE_SECONDS = 10.0
_CLOSE_SECONDS_AFTER_ERROR = 2.0
_SHORTEST_LOCK_WAIT = 0.05  # seconds in which the background thread releases the lock

_log = logging.getLogger(__name__)


class _Consumer(EventedConsumer):
    """Runs on a `PollLoop`. Listeners are called without its lock, so that the background thread can go on."""

    def pump(self) -> None:
        """Process what was received, then let the driver take its turn.

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


class Consumer:
    """A consumer on a cluster of its own, or on a given one. The options are `ConsumerOptions`."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Cluster = "localhost:9092",
        options: ConsumerOptions | None = None,
        **settings: Any,
    ) -> None:
        """Nothing is connected yet. Options are given as `ConsumerOptions`, by name, or both.

        Raises TypeError for a name that is no option, ValueError for options that contradict each other.
        """
        self.options = ConsumerOptions.of(options, settings)
        self._own_cluster = not isinstance(bootstrap_servers, Cluster)
        self.cluster = bootstrap_servers if isinstance(bootstrap_servers, Cluster) else Cluster(
            bootstrap_servers, self.options, retry_timeout=self.options.retry_timeout or 60.0
        )  # fmt: skip
        evented, self._loop = self.cluster.evented, self.cluster.loop
        make = None if self.options.group_id is None else self._make_group
        self._consumer = _Consumer(evented.driver, evented, self.options, make, _log.warning)
        self._process = os.getpid()
        self._background: Background | None = None
        if self.options.group_id is not None or (self.options.prefetch and self._own_cluster):
            self._background = Background(self._loop)
            # The thread ends when the consumer is garbage-collected.
            close = self.cluster.close if self._own_cluster else _nothing
            weakref.finalize(self, self._background.let_end, close)

    def _make_group(self, on_event: Callable[[], None]) -> ConsumerGroup:
        options, driver = self.options, self.cluster.evented.driver
        if options.coordinator == "zookeeper":  # imported only here, since it imports Twisted
            from pylogd.client.blocking.zookeeper_group import ZooKeeperGroup  # noqa: PLC0415

            return ZooKeeperGroup(options)
        return BrokerGroup(
            driver, options.member, stable=options.read_committed, request_timeout=options.request_timeout,
            on_event=on_event, unheard=partial(_unheard, options.group_id),
        )  # fmt: skip

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:  # the records of the last poll may not be processed
            self.close(_CLOSE_SECONDS_AFTER_ERROR, _processed=False)

    def close(self, timeout: float = _CLOSE_SECONDS, *, _processed: bool = True) -> None:
        """Commit what was processed, with `auto_commit` "after", leave the group, and stop reading.

        All of it is done within `timeout`. From any thread. A `poll` in progress raises Closed. If its listener does
        not return within `timeout`, the connections stay open until the last reference to this consumer is gone.
        """
        if self._consumer.closing:
            return
        self._consumer.closing_soon()
        self._loop.wake()
        locked = self._loop.lock.acquire(timeout=timeout)
        try:
            if locked:
                self._loop.run(self._consumer.close(timeout, processed=_processed))
        finally:
            if locked:
                self._loop.lock.release()
            if self._background is not None:
                self._background.stop()
            if self._own_cluster and locked:
                self.cluster.close()

    def metrics(self) -> ConsumerMetrics:
        """Return statistics of this consumer, its brokers and its partitions. From any thread."""
        return self._consumer.metrics()

    # What to read, and from where

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read."""
        return self._consumer.core.assignment

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic. Raises KafkaError if there is none."""
        return self._loop.run(self._consumer.partitions(topic))

    def assign(
        self, partitions: Partitions | Mapping[tuple[str, int], int], until: Mapping[tuple[str, int], int] = NO_ENDS
    ) -> None:
        """Read these partitions and no others. A mapping has their offsets; else those that were read before go on
        where they were, and new ones begin at what the group has committed, if there is a group, or where
        `auto_offset_reset` says.

        `until`: offsets from which on nothing is fetched, where reading has an end: no request waits there for records
        to come. The last batch is whole, so records behind the end may be returned.
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
        """Read the partitions that the group assigns of these topics, or of all whose whole names match a pattern.

        In `poll`, `on_assign` is called with partitions that are new before anything of them is read, and may `seek`;
        `on_revoke` with those that are revoked, while they may still be committed; `on_lost` (else `on_revoke`) with
        those that others may be reading already. What they raise, `poll` raises.
        """
        self._check_process()
        with self._loop.lock:
            self._consumer.subscribe(topics, RebalanceListener(on_assign, on_revoke, on_lost))
        self._loop.wake()
        self._start()

    def unsubscribe(self) -> None:
        """Leave the group, with what was processed committed."""
        self._loop.run(self._consumer.unsubscribe())

    def seek(self, partition: tuple[str, int], offset: Offset) -> None:
        """Go on at `offset` in a partition that is assigned. An `OffsetAndMetadata` with a leader epoch is checked
        against the log before anything is read from there.
        """
        with self._loop.lock:
            self._consumer.seek(partition, offset)

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Go to the first record that there still is, in these partitions or in all."""
        self._loop.run(self._consumer.seek_to(partitions, first=True))

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Go behind the last record, in these partitions or in all."""
        self._loop.run(self._consumer.seek_to(partitions, first=False))

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Return no records of these partitions, or of all, until `resume`. Records that were fetched are kept while
        the buffers have space for those of other partitions.
        """
        self._loop.run(self._consumer.pause(partitions, True))

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Go on with these partitions, or with all."""
        self._loop.run(self._consumer.pause(partitions, False))

    @property
    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        with self._loop.lock:
            return self._consumer.reader.paused()

    def position(self, partition: tuple[str, int]) -> int:
        """Return the offset of the next record that `poll` returns, whether it exists yet or not.

        Raises ValueError for a partition that is not assigned, and RequestTimedOut.
        """
        return self._loop.run(self._consumer.position(partition))

    # Offsets

    def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the first offset that each partition still has."""
        return self._loop.run(self._consumer.ends(partitions, first=True))

    def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the offset that the next record of each partition will have."""
        return self._loop.run(self._consumer.ends(partitions, first=False))

    def offsets_for_times(self, times: Mapping[tuple[str, int], int]) -> dict[TopicPartition, OffsetAndTime | None]:
        """Return the first offset in each partition at or after a time in milliseconds since 1970, None if none is."""
        return self._loop.run(self._consumer.offsets_for_times(times))

    def committed(
        self, partitions: Partitions, timeout: float = 30.0
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return what the group has committed of each partition; None where it has committed nothing."""
        return self._loop.run(self._consumer.committed(partitions, timeout))

    def commit(self, offsets: Offsets | None = None, *, wait: bool = True, timeout: float = 30.0) -> None:
        """Commit these offsets, each that of the next record to read; by default all that was returned, of an
        iteration up to and with the present record. Without `wait` it is done in the background.

        Raises CommitFailed where the group has moved on, KafkaError, RequestTimedOut.
        """
        self._loop.run(self._consumer.commit(offsets, wait=wait, timeout=timeout))
        if not wait:
            self._start()

    # Transactions

    def group_metadata(self) -> GroupMetadata:
        """Return the member and generation in whose name offsets are committed, for `Producer.send_offsets`.

        Raises ValueError without a group.
        """
        with self._loop.lock:
            return self._consumer.group_metadata()

    def offsets_to_send(self) -> tuple[dict[TopicPartition, OffsetAndMetadata], GroupMetadata]:
        """Return what `Producer.send_offsets(consumer)` sends. Raises ValueError if it has no group, or auto-commit."""
        with self._loop.lock:
            return self._consumer.offsets_to_send()

    def seek_to_committed(self) -> None:
        """Go back to what the group has committed, in all assigned partitions, after a transaction was aborted: what
        was returned since is read again. Where nothing is committed, reading starts as with a new assignment.
        """
        self._loop.run(self._consumer.seek_to_committed())

    # Reading

    def __iter__(self) -> Iterator[Record]:
        """Iterate over all records, as they are fetched, without end. Between two of them the consumer reports to its
        group, and commits.
        """
        background, group = self._background, self._consumer.group
        leased = None if group is None or group.wakes else group
        while True:
            chunks = self.poll_chunks(_FOREVER)
            with self._loop.lock:
                records = self._consumer.iterate(chunks)
            for record in records:
                if leased is not None and not leased.may_fetch:  # others may be reading these already
                    with self._loop.lock:
                        self._consumer.put_back()
                    break
                yield record
                if background is not None and background.ticked:
                    background.ticked = False
                    if not self._look_between():
                        break

    def _look_between(self) -> bool:
        with self._loop.lock:
            goes_on = self._consumer.look_between()
        self._loop.wake()
        return goes_on

    def poll(self, timeout: float = 0.0, max_records: int | None = None) -> list[Record]:
        """Return the next records, at most `max_records`; wait up to `timeout` seconds for a first one.

        Raises KafkaError (OFFSET_OUT_OF_RANGE, or LogTruncation, with auto_offset_reset="none", and others that
        retrying does not help), CorruptRecords, or what kept a partition from being read for `retry_timeout` seconds,
        if that is set.
        """
        chunks = self.poll_chunks(timeout, max_records)
        if len(chunks) == 1:
            return chunks[0][1]
        return [record for _, records in chunks for record in records]

    def poll_chunks(self, timeout: float, max_records: int | None = None) -> list[Chunk]:
        """As `poll`, with the records of each partition apart."""
        if not self._begin(timeout):
            return []
        try:
            return self._loop.run(self._consumer.poll_chunks(timeout, max_records))
        finally:
            self._loop.lock.release()

    def poll_columns(
        self, timeout: float = 0.0, *, headers: bool = False, max_bytes: int = 64 * 1024 * 1024
    ) -> list[tuple[TopicPartition, pa.RecordBatch]]:
        """As `poll`, but as columns: for each partition `pyarrow.RecordBatch`es with key, value, offset, timestamp and
        timestampType (see `columns`), without a Python object for a record. Returns all that was fetched, up to
        `max_bytes` uncompressed; the last batch is whole.
        """
        if not self._begin(timeout):
            return []
        try:
            return self._loop.run(self._consumer.poll_columns(timeout, headers=headers, max_bytes=max_bytes))
        finally:
            self._loop.lock.release()

    def _begin(self, timeout: float) -> bool:
        """Take the lock. Return False if the background thread does not release it in time."""
        self._check_process()
        if self._consumer.closing:
            raise Closed("the consumer is closed")
        self._start()
        return self._loop.lock.acquire(timeout=max(timeout, _SHORTEST_LOCK_WAIT))

    def wakeup(self) -> None:
        """End the `poll` that another thread is in, or else the next one, as if its time were over."""
        self._consumer.wake_poll()
        self._loop.wake()

    def create_message_streams(self, topics: str | Mapping[str, int], count: int = 1) -> dict[str, list[MessageStream]]:
        """Subscribe, and divide the assigned partitions among so many streams for each topic: iterators without end,
        each for a thread of its own. With `auto_commit` "after", a record is committed once its stream is asked for
        the next one. The consumer is polled for them; call `close` to end them.
        """
        counts = {topics: count} if isinstance(topics, str) else dict(topics)
        assignment, group = self._consumer.in_group()
        streams = Streams(self, counts, group.stream_of, lambda: group.may_fetch)
        assignment.progress = streams.progress
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


def _unheard(group_id: str | None, partition: TopicPartition, error: PylogdError) -> None:
    _log.warning("group %s: the offset of %s was not committed: %s", group_id, partition, error)


def _nothing() -> None:
    """Do nothing: there is nothing to close."""
