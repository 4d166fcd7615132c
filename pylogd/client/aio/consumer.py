"""The consumer on asyncio: reads partitions that the caller chose or its group assigned.

    async with Consumer("localhost:9092", group_id="readers") as consumer:
        consumer.subscribe("events")
        async for record in consumer:
            print(record.partition, record.offset, record.key, record.value)

Strategy: `evented.EventedConsumer` does the work. Heartbeats and commits continue whether the application polls or not;
partitions are revoked and assigned only inside `poll`.

Rules: those of the blocking face apply. Only one `poll`, or one iteration, may run at a time. Decoding runs on the
loop: `max_poll_records` bounds how long that takes at a time.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pylogd.client.aio.cluster import Cluster
from pylogd.client.core.consumer.metrics import ConsumerMetrics
from pylogd.client.core.consumer.options import ConsumerOptions, Offset
from pylogd.client.core.group.assignment import RebalanceCallback, RebalanceListener
from pylogd.client.evented.consumer import EventedConsumer
from pylogd.client.evented.face import ConsumerMethods
from pylogd.client.evented.group import BrokerGroup, ConsumerGroup
from pylogd.client.evented.streams import MessageStream

_CLOSE_SECONDS = 10.0
_CLOSE_SECONDS_AFTER_ERROR = 2.0

_log = logging.getLogger(__name__)


class Consumer(ConsumerMethods):
    """A consumer. It has its own connections, unless it is given a `Cluster`. Create it inside a running loop."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Cluster = "localhost:9092",
        options: ConsumerOptions | None = None,
        **settings: Any,
    ) -> None:
        """Pass options as `ConsumerOptions`, by name, or both. No connection is opened yet.

        Raises TypeError for a name that is no option, ValueError for options that contradict each other, or for
        `coordinator="zookeeper"`, which only the other two faces support.
        """
        self.options = ConsumerOptions.of(options, settings)
        if self.options.coordinator == "zookeeper":
            raise ValueError("groups in ZooKeeper need pylogd.client or pylogd.client.deferred: kazoo has no asyncio")
        self._own_cluster = not isinstance(bootstrap_servers, Cluster)
        self.cluster = bootstrap_servers if isinstance(bootstrap_servers, Cluster) else Cluster(
            bootstrap_servers, self.options, retry_timeout=self.options.retry_timeout or 60.0
        )  # fmt: skip
        make = None if self.options.group_id is None else self._make_group
        super().__init__(EventedConsumer(self.cluster.driver, self.cluster, self.options, make, _log.warning))
        self._tasks: set[asyncio.Task[None]] = set()

    def _make_group(self, on_event: Callable[[], None]) -> ConsumerGroup:
        return BrokerGroup(self.cluster.driver, self.options, on_event, _log.warning)

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:  # the application may not have processed the records of the last poll
            await self._close(_CLOSE_SECONDS_AFTER_ERROR, processed=False)

    async def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Stop reading and leave the group, within `timeout` seconds.

        With `auto_commit="after"`, first commit the offsets of processed records. A `poll` in progress raises Closed.
        """
        await self._close(timeout, processed=True)

    async def _close(self, timeout: float, *, processed: bool) -> None:
        try:
            await self._consumer.close(timeout, processed=processed)
        finally:
            for task in self._tasks:
                task.cancel()
            if self._own_cluster:
                self.cluster.close()

    def metrics(self) -> ConsumerMetrics:
        """Return statistics of this consumer, its brokers and its partitions."""
        return self._consumer.metrics()

    # What to read

    def subscribe(
        self,
        topics: str | Iterable[str] | re.Pattern[str],
        *,
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Join the group, and read the partitions that it assigns of these topics, or of those that match a pattern.

        A pattern must match a topic's whole name. `poll` calls the listeners, which may be coroutine functions, and
        raises what they raise.

        on_assign: called with new partitions before their records are fetched, so it may call `seek`.
        on_revoke: called with revoked partitions while their offsets can still be committed.
        on_lost: called with partitions that other members may read already; default: `on_revoke`.
        """
        self._consumer.subscribe(topics, RebalanceListener(on_assign, on_revoke, on_lost))

    def seek(self, partition: tuple[str, int], offset: Offset) -> None:
        """Continue at `offset` in an assigned partition. An `OffsetAndMetadata` with a leader epoch is checked against
        the log before records are read.
        """
        self._consumer.seek(partition, offset)

    async def create_message_streams(
        self, topics: str | Mapping[str, int], count: int = 1
    ) -> dict[str, list[MessageStream]]:
        """Subscribe, and divide the assigned partitions of each topic among `count` streams: endless asynchronous
        iterators. With `auto_commit="after"`, a record is committed when its stream is asked for the next record. A
        background task polls the consumer; `close` ends the streams.
        """
        streams = self._consumer.make_streams({topics: count} if isinstance(topics, str) else dict(topics))
        task = asyncio.get_running_loop().create_task(streams.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return streams.by_topic
