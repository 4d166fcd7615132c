"""The consumer on Twisted: partitions that the caller chose, or that its group gave it, read from any offset on.

Strategy: `evented.EventedConsumer` does the work; what waits there is a Deferred here. Group membership goes on by the
reactor whether anybody polls or not; but partitions are given up and taken on in `poll` only, so that nothing changes
under the application's hands.

Rules: as the blocking face's. One `poll`, or one iteration, at a time. Decoding runs on the reactor: `max_poll_records`
bounds how long a turn of it takes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from twisted.internet.defer import Deferred, succeed

from pylogd.client.core.consumer.metrics import ConsumerMetrics
from pylogd.client.core.consumer.options import ConsumerOptions, Offsets
from pylogd.client.core.consumer.reader import Chunk
from pylogd.client.core.group.sharing import Listener, Told
from pylogd.client.core.model import OffsetAndMetadata, OffsetAndTime, TopicPartition
from pylogd.client.deferred.cluster import Cluster
from pylogd.client.deferred.tasks import Tasks
from pylogd.client.evented.consumer import EventedConsumer, Partitions
from pylogd.client.evented.group import BrokerGroup, Group
from pylogd.client.evented.streams import MessageStream, Streams
from pylogd.errors import PylogdError
from pylogd.wire.records import Record

if TYPE_CHECKING:
    import pyarrow as pa

P = ParamSpec("P")
T = TypeVar("T")

_FOREVER = 3600.0
_CLOSE_SECONDS = 10.0

_log = logging.getLogger(__name__)


def _deferred(
    method: Callable[Concatenate[Consumer, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Consumer, P], Deferred[T]]:
    """Return a coroutine method as one that returns a Deferred."""

    @wraps(method)
    def deferred(self: Consumer, /, *args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        return Deferred.fromCoroutine(method(self, *args, **kwargs))

    return deferred


class Consumer:
    """A consumer on a cluster of its own, or on one that is given. The options are `ConsumerOptions`."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Cluster = "localhost:9092",
        options: ConsumerOptions | None = None,
        *,
        tls: Callable[[str], Any] | None = None,
        reactor: Any = None,
        **settings: Any,
    ) -> None:
        """Nothing is connected yet. Options are given as `ConsumerOptions`, by name, or both; `tls` and `reactor` are
        `Cluster`'s. Raises TypeError for a name that is no option, ValueError for options that contradict each other.
        """
        self.options = ConsumerOptions.of(options, settings)
        self._own_cluster = not isinstance(bootstrap_servers, Cluster)
        self.cluster = bootstrap_servers if isinstance(bootstrap_servers, Cluster) else Cluster(
            bootstrap_servers, self.options, retry_timeout=self.options.retry_timeout or 60.0, tls=tls,
            reactor=reactor,
        )  # fmt: skip
        make = None if self.options.group_id is None else self._make_group
        self._consumer = EventedConsumer(self.cluster.driver, self.cluster, self.options, make, _log.warning)
        self._tasks = Tasks()

    def _make_group(self, on_event: Callable[[], None]) -> Group:
        options = self.options
        assert options.group_id is not None
        if options.coordinator == "zookeeper":
            from pylogd.client.deferred.zookeeper import ZooKeeperGroup  # noqa: PLC0415 - kazoo, only where it is meant

            return ZooKeeperGroup(
                self.cluster.reactor, options.zookeeper, options.group_id, options.session_seconds, on_event=on_event
            )
        return BrokerGroup(
            self.cluster.driver, options.member, stable=options.read_committed,
            request_timeout=options.request_timeout, on_event=on_event, unheard=self._unheard,
        )  # fmt: skip

    def _unheard(self, partition: TopicPartition, error: PylogdError) -> None:
        _log.warning("group %s: the offset of %s was not committed: %s", self.options.group_id, partition, error)

    @_deferred
    async def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Commit what was processed, if that is the consumer's to do, leave the group, and read no more, all within
        `timeout`. A `poll` in progress fails with Closed.
        """
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
        """The partitions that are read."""
        return self._consumer.core.assignment

    @property
    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return self._consumer.reader.paused()

    @_deferred
    async def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic. Fails with KafkaError if there is none."""
        return await self._consumer.partitions(topic)

    @_deferred
    async def assign(self, partitions: Partitions | Mapping[tuple[str, int], int]) -> None:
        """Read these partitions and no others: from the offsets in a mapping; else those that were read before from
        where they were, new ones from what the group has committed, if there is one, or from where
        `auto_offset_reset` says.
        """
        await self._consumer.assign(partitions)

    def subscribe(
        self,
        topics: str | Iterable[str] | re.Pattern[str],
        *,
        on_assign: Told | None = None,
        on_revoke: Told | None = None,
        on_lost: Told | None = None,
    ) -> Deferred[None]:
        """Read what the group gives this consumer of these topics, or of all whose whole names match a pattern. Fires
        at once; partitions come in `poll`.

        In `poll`, `on_assign` is called with partitions that are new before anything of them is read, and may `seek`;
        `on_revoke` with those that go, while they may still be committed; `on_lost` (else `on_revoke`) with those that
        others may be reading already. Each may return an awaitable. What they raise, `poll` fails with.
        """
        self._consumer.subscribe(topics, Listener(on_assign, on_revoke, on_lost))
        return succeed(None)

    @_deferred
    async def unsubscribe(self) -> None:
        """Leave the group, with what was processed committed."""
        await self._consumer.unsubscribe()

    @_deferred
    async def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Go to the first record that there still is, in these partitions or in all."""
        await self._consumer.seek_to(partitions, first=True)

    @_deferred
    async def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Go behind the last record, in these partitions or in all."""
        await self._consumer.seek_to(partitions, first=False)

    @_deferred
    async def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Go on at `offset` in a partition that is assigned. It is done when this returns."""
        self._consumer.seek(partition, offset)

    @_deferred
    async def pause(self, *partitions: tuple[str, int]) -> None:
        """Hand out nothing of these partitions, or of all, until `resume`. What has come of them is kept while there is
        room for what others bring.
        """
        await self._consumer.pause(partitions, True)

    @_deferred
    async def resume(self, *partitions: tuple[str, int]) -> None:
        """Go on with these partitions, or with all."""
        await self._consumer.pause(partitions, False)

    @_deferred
    async def position(self, partition: tuple[str, int]) -> int:
        """The offset of the next record that `poll` hands out, or that would be if it were there.

        Fails with ValueError for a partition that is not assigned, and RequestTimedOut.
        """
        return await self._consumer.position(partition)

    # Offsets

    @_deferred
    async def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The first offset that each partition still has."""
        return await self._consumer.ends(partitions, first=True)

    @_deferred
    async def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The offset that the next record of each partition will have."""
        return await self._consumer.ends(partitions, first=False)

    @_deferred
    async def offsets_for_times(
        self, times: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTime | None]:
        """The first offset in each partition at or after a time in milliseconds since 1970; None if there is none."""
        return await self._consumer.offsets_for_times(times)

    @_deferred
    async def committed(
        self, partitions: Partitions, timeout: float = 30.0
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed of each partition; None where it has committed nothing."""
        return await self._consumer.committed(partitions, timeout)

    @_deferred
    async def commit(self, offsets: Offsets | None = None, *, wait: bool = True, timeout: float = 30.0) -> None:
        """Commit these offsets, each that of the next record to read; by default all that was handed out, of an
        iteration up to and with the present record. Without `wait` it is done in the background.

        Fails with CommitFailed where the group has moved on, KafkaError, RequestTimedOut.
        """
        await self._consumer.commit(offsets, wait=wait, timeout=timeout)

    # Reading

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Every record, as they come, without end. Between two of them the consumer shows life, and commits."""
        async for record in self._consumer.records(_FOREVER):
            yield record

    @_deferred
    async def poll(self, timeout: float = 0.0, max_records: int | None = None) -> list[Record]:
        """The next records, at most `max_records`; waits up to `timeout` seconds for a first one, then fires with [].

        Fails with KafkaError (OFFSET_OUT_OF_RANGE with auto_offset_reset="none" and others that trying again won't
        help), CorruptRecords, or what kept a partition from being read for `retry_timeout` seconds, if there is one.
        """
        chunks = await self._consumer.poll_chunks(timeout, max_records)
        return [record for _, records in chunks for record in records]

    @_deferred
    async def poll_chunks(self, timeout: float = 0.0, max_records: int | None = None) -> list[Chunk]:
        """As `poll`, but the records of each partition apart."""
        return await self._consumer.poll_chunks(timeout, max_records)

    @_deferred
    async def poll_columns(
        self, timeout: float = 0.0, *, headers: bool = False, max_bytes: int = 64 * 1024 * 1024
    ) -> list[tuple[TopicPartition, pa.RecordBatch]]:
        """As `poll`, but as columns: for each partition `pyarrow.RecordBatch`es with key, value, offset, timestamp and
        timestampType, without a Python object for a record.
        """
        return await self._consumer.poll_columns(timeout, headers=headers, max_bytes=max_bytes)

    def wakeup(self) -> None:
        """End the `poll` in progress, or else the next one, as if its time were over."""
        self._consumer.wakeup()

    async def create_message_streams(
        self, topics: str | Mapping[str, int], count: int = 1
    ) -> dict[str, list[MessageStream]]:
        """Subscribe, and share what the group gives this consumer among so many streams for each topic: asynchronous
        iterators that never end. With `auto_commit` "after", what a stream has handed out is committed once it is asked
        for more. The consumer is polled for them; call `close` to end them.
        """
        streams: Streams = self._consumer.make_streams({topics: count} if isinstance(topics, str) else dict(topics))
        self._tasks.start(streams.run())
        return streams.by_topic
