"""The consumer on Twisted: reads partitions that the caller chose or its group assigned.

Strategy: `evented.EventedConsumer` does the work; its coroutines become Deferreds here. Heartbeats and commits continue
whether the application polls or not; partitions are revoked and assigned only inside `poll`.

Rules: those of the blocking face apply. Only one `poll`, or one iteration, may run at a time. Decoding runs on the
reactor: `max_poll_records` bounds how long that takes at a time.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred, execute, succeed

from pylogd.client.core.consumer.metrics import ConsumerMetrics
from pylogd.client.core.consumer.options import ConsumerOptions, Offset
from pylogd.client.core.group.assignment import RebalanceCallback, RebalanceListener
from pylogd.client.core.group.member_model import GroupMetadata
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.client.deferred.cluster import Cluster
from pylogd.client.deferred.tasks import Tasks, deferred
from pylogd.client.evented.consumer import EventedConsumer
from pylogd.client.evented.face import ConsumerMethods
from pylogd.client.evented.group import BrokerGroup, ConsumerGroup
from pylogd.client.evented.streams import MessageStream, Streams
from pylogd.wire.records import Record

_CLOSE_SECONDS = 10.0

_log = logging.getLogger(__name__)


class Consumer:
    """A consumer. It has its own connections, unless it is given a `Cluster`. `ConsumerOptions` lists the options."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Cluster = "localhost:9092",
        options: ConsumerOptions | None = None,
        *,
        reactor: Any = None,
        **settings: Any,
    ) -> None:
        """Pass options as `ConsumerOptions`, by name, or both. `reactor` is passed to `Cluster`.

        Raises TypeError for an unknown option, ValueError for options that contradict each other.
        """
        self.options = ConsumerOptions.of(options, settings)
        self._own_cluster = not isinstance(bootstrap_servers, Cluster)
        self.cluster = bootstrap_servers if isinstance(bootstrap_servers, Cluster) else Cluster(
            bootstrap_servers, self.options, retry_timeout=self.options.retry_timeout or 60.0,
            reactor=reactor,
        )  # fmt: skip
        make = None if self.options.group_id is None else self._make_group
        self._consumer = EventedConsumer(self.cluster.driver, self.cluster, self.options, make, _log.warning)
        self._methods = ConsumerMethods(self._consumer)
        self._tasks = Tasks()

    def _make_group(self, on_event: Callable[[], None]) -> ConsumerGroup:
        options = self.options
        assert options.group_id is not None
        if options.coordinator == "zookeeper":
            from pylogd.client.deferred.zookeeper import ZooKeeperGroup  # noqa: PLC0415 - kazoo, only where it is meant

            return ZooKeeperGroup(self.cluster.reactor, options, on_event=on_event)
        return BrokerGroup(self.cluster.driver, options, on_event, _log.warning)

    def close(self, timeout: float = _CLOSE_SECONDS) -> Deferred[None]:
        """Stop reading and leave the group, within `timeout` seconds.

        With `auto_commit="after"`, first commit the offsets of processed records. A `poll` in progress fails with
        Closed.
        """
        return Deferred.fromCoroutine(self._close(timeout))

    async def _close(self, timeout: float) -> None:
        try:
            await self._consumer.close(timeout)
        finally:
            self._tasks.stop()
            if self._own_cluster:
                self.cluster.close()

    def metrics(self) -> ConsumerMetrics:
        """Return statistics of this consumer, its brokers and its partitions."""
        return self._consumer.metrics()

    # What to read, and from where

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads now."""
        return self._methods.assignment

    @property
    def paused(self) -> list[TopicPartition]:
        """The paused partitions."""
        return self._methods.paused

    def subscribe(
        self,
        topics: str | Iterable[str] | re.Pattern[str],
        *,
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> Deferred[None]:
        """Join the group and read the partitions that it assigns.

        topics: names, or a pattern that must match the whole name. The Deferred fires at once; the partitions are
        assigned during `poll`.

        `poll` calls the listeners, which may return awaitables, and fails with what they raise.
        on_assign: called with new partitions before their records are fetched, so it may call `seek`.
        on_revoke: called with revoked partitions while their offsets can still be committed.
        on_lost: called with partitions that other members may read already; default: `on_revoke`.
        """
        self._consumer.subscribe(topics, RebalanceListener(on_assign, on_revoke, on_lost))
        return succeed(None)

    def seek(self, partition: tuple[str, int], offset: Offset) -> Deferred[None]:
        """Continue at `offset` in an assigned partition, from now on. An `OffsetAndMetadata` with a leader epoch is
        checked against the log before records are read.
        """
        return execute(self._consumer.seek, partition, offset)

    partitions = deferred(ConsumerMethods.partitions)
    assign = deferred(ConsumerMethods.assign)
    unsubscribe = deferred(ConsumerMethods.unsubscribe)
    seek_to_beginning = deferred(ConsumerMethods.seek_to_beginning)
    seek_to_end = deferred(ConsumerMethods.seek_to_end)
    pause = deferred(ConsumerMethods.pause)
    resume = deferred(ConsumerMethods.resume)
    position = deferred(ConsumerMethods.position)

    # Offsets

    beginning_offsets = deferred(ConsumerMethods.beginning_offsets)
    end_offsets = deferred(ConsumerMethods.end_offsets)
    offsets_for_times = deferred(ConsumerMethods.offsets_for_times)
    committed = deferred(ConsumerMethods.committed)
    commit = deferred(ConsumerMethods.commit)

    # Transactions

    seek_to_committed = deferred(ConsumerMethods.seek_to_committed)

    def group_metadata(self) -> GroupMetadata:
        """Return the group member and generation with which offsets are committed, for `Producer.send_offsets`.

        Raises ValueError without a group.
        """
        return self._methods.group_metadata()

    def offsets_to_send(self) -> tuple[dict[TopicPartition, OffsetAndMetadata], GroupMetadata]:
        """Return what `Producer.send_offsets(consumer)` sends.

        Raises ValueError without a group, or with auto-commit.
        """
        return self._methods.offsets_to_send()

    # Reading

    poll = deferred(ConsumerMethods.poll)
    poll_chunks = deferred(ConsumerMethods.poll_chunks)
    poll_columns = deferred(ConsumerMethods.poll_columns)

    def __aiter__(self) -> AsyncIterator[Record]:
        """Iterate over all records, as they are fetched, without end. Between two records the consumer reports to its
        group, and commits. An iteration that ends leaves the next record to the next iteration or `poll`.
        """
        return self._methods.__aiter__()

    def wakeup(self) -> None:
        """End the `poll` in progress, or else the next one, as if its timeout had passed."""
        self._methods.wakeup()

    async def create_message_streams(
        self, topics: str | Mapping[str, int], count: int = 1
    ) -> dict[str, list[MessageStream]]:
        """Subscribe, and divide the assigned partitions of each topic among `count` streams: endless asynchronous
        iterators. With `auto_commit="after"`, a record is committed when its stream is asked for the next record. The
        consumer is polled in the background; `close` ends the streams.
        """
        streams: Streams = self._consumer.make_streams({topics: count} if isinstance(topics, str) else dict(topics))
        self._tasks.start(streams.run())
        return streams.by_topic
