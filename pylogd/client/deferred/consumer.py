"""The consumer on Twisted: partitions that the caller chose, or that its group gave it, read from any offset on.

Strategy: the fetcher keeps one request under way to each broker; `poll` decodes what has come, a batch at a time, while
the broker already works on the next request. Group membership goes on by the reactor's timer whether anybody polls or
not; but partitions are given up and taken on in `poll` only, so that nothing changes under the application's hands.

Rules: as the blocking face's. One `poll`, or one iteration, at a time. Decoding runs on the reactor: `max_poll_records`
bounds how long a turn of it takes.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from twisted.internet.defer import Deferred

from pylogd.client.core.consumer.fetcher import FetchSettings
from pylogd.client.core.consumer.options import GroupPositions, Offsets, ResetTo, check_options, to_commit
from pylogd.client.core.consumer.reader import Chunk, Handed
from pylogd.client.core.errors import Closed
from pylogd.client.core.group.assignors import Assignor, find_assignors
from pylogd.client.core.group.member_model import MemberSettings
from pylogd.client.core.group.sharing import Listener, Told
from pylogd.client.core.model import OffsetAndMetadata, OffsetAndTime, TopicPartition
from pylogd.client.deferred.cluster import Cluster
from pylogd.client.deferred.group import BrokerGroup
from pylogd.client.deferred.partition_reader import PartitionReader
from pylogd.client.deferred.sharing import Group, Share
from pylogd.client.deferred.streams import MessageStream, Streams
from pylogd.wire.records import Record

P = ParamSpec("P")
T = TypeVar("T")
Partitions = Iterable[tuple[str, int]]

_FOREVER = 3600.0
_CLOSE_SECONDS = 10.0
_SESSION, _ZOOKEEPER_SESSION = 45.0, 6.0  # seconds


def _deferred(
    method: Callable[Concatenate[Consumer, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Consumer, P], Deferred[T]]:
    """A coroutine method as one that returns a Deferred."""

    @wraps(method)
    def deferred(self: Consumer, /, *args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        return Deferred.fromCoroutine(method(self, *args, **kwargs))

    return deferred


class Consumer(GroupPositions, PartitionReader):
    """A consumer on a cluster of its own, or on one that is given. Times in seconds, but for names that end in `_ms`.

    The options are those of the blocking face; `tls` and `reactor` are `Cluster`'s.
    """

    _share: Share | None

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Cluster = "localhost:9092",
        *,
        group_id: str | None = None,
        group_instance_id: str | None = None,
        coordinator: Literal["broker", "zookeeper"] = "broker",
        zookeeper: str = "",
        assignors: Sequence[str | Assignor] = ("range", "roundrobin"),
        session_timeout: float | None = None,
        heartbeat_interval: float = 1.0,
        max_poll_interval: float = 300.0,
        auto_commit: Literal["after", "before", "off"] = "after",
        auto_commit_interval: float = 5.0,
        auto_offset_reset: ResetTo = "earliest",
        isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
        client_rack: str | None = None,
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 16 * 1024 * 1024,
        partition_max_bytes: int = 1024 * 1024,
        buffer_bytes: int = 64 * 1024 * 1024,
        max_poll_records: int = 10_000,
        check_crcs: bool = True,
        metadata_max_age: float = 300.0,
        request_timeout: float = 30.0,
        retry_timeout: float = 60.0,
        client_id: str = "pylogd",
        tls: Callable[[str], Any] | None = None,
        reactor: Any = None,
    ) -> None:
        """Nothing is connected yet. `coordinator` "zookeeper": the group lives in the ZooKeeper at `zookeeper`,
        "host:port,host:port/chroot". `session_timeout` is 45 s by default, 6 s with ZooKeeper. ValueError: an option
        that is none.
        """
        check_options(
            auto_offset_reset=auto_offset_reset, auto_commit=auto_commit, isolation_level=isolation_level,
            coordinator=coordinator,
        )  # fmt: skip
        self._own_cluster = not isinstance(bootstrap_servers, Cluster)
        cluster = bootstrap_servers if isinstance(bootstrap_servers, Cluster) else Cluster(
            bootstrap_servers, client_id=client_id, request_timeout=request_timeout, retry_timeout=retry_timeout,
            tls=tls, reactor=reactor,
        )  # fmt: skip
        read_committed = isolation_level == "read_committed"
        group: Group | None = None
        if group_id is not None and coordinator == "zookeeper":
            from pylogd.client.deferred.zookeeper import ZooKeeperGroup  # noqa: PLC0415 - kazoo, only where it is meant

            timeout = _ZOOKEEPER_SESSION if session_timeout is None else session_timeout
            group = ZooKeeperGroup(cluster.reactor, zookeeper, group_id, timeout, on_event=self._wake)
        elif group_id is not None:
            member = MemberSettings(
                group_id, find_assignors(assignors), group_instance_id,
                _SESSION if session_timeout is None else session_timeout, heartbeat_interval, max_poll_interval,
                metadata_max_age, request_timeout, client_rack,
            )  # fmt: skip
            group = BrokerGroup(cluster, member, on_event=self._wake, stable=read_committed)
        fetch = FetchSettings(
            fetch_min_bytes, fetch_max_wait_ms, fetch_max_bytes, partition_max_bytes, buffer_bytes,
            client_rack or "", read_committed,
        )  # fmt: skip
        super().__init__(
            cluster, fetch, reset_to=auto_offset_reset, look_up=None if group is None else group.look_up,
            check_crcs=check_crcs, request_timeout=request_timeout, retry_timeout=retry_timeout,
        )  # fmt: skip
        self._max_poll_records = max_poll_records
        self._commits_before = auto_commit == "before"
        self._handed = Handed()
        self._share = None
        if group is not None:
            self._share = Share(
                group, self._reader, self._placing, commits=auto_commit == "after", interval=auto_commit_interval,
                now=cluster.seconds(),
            )  # fmt: skip

    @_deferred
    async def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Commit what was processed, if that is the consumer's to do, leave the group, and read no more, all within
        `timeout`. A `poll` under way fails with Closed.
        """
        if self._closing:
            return
        self._closing = True
        self._wake()
        try:
            if self._share is not None:
                handed = self._handed.unprocessed(last_is_done=False) if self._handed.begun else {}
                await self._share.close({**self._share.progress(), **handed}, timeout)
        finally:
            self._stop()
            if self._own_cluster:
                self.cluster.close()

    # What to read, and from where

    @_deferred
    async def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic. Fails with KafkaError if there is none."""
        return await self._partitions(topic)

    @_deferred
    async def assign(self, partitions: Partitions | Mapping[tuple[str, int], int]) -> None:
        """Read these partitions and no others: from the offsets in a mapping; else those that were read before from
        where they were, new ones from what the group has committed, if there is one, or from where
        `auto_offset_reset` says.
        """
        if self._share is not None and self._share.subscribed:
            raise ValueError("the group assigns, as this consumer has subscribed; unsubscribe first")
        given = partitions if isinstance(partitions, Mapping) else {}
        await self._assign([TopicPartition(*p) for p in partitions], {TopicPartition(*p): o for p, o in given.items()})

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
        others may be reading already. What they raise, `poll` fails with.
        """
        done: Deferred[None] = Deferred()
        share = self._in_group()
        if self._reader.positions and not share.subscribed:
            raise ValueError("partitions are assigned by hand; assign none first")
        share.listener = Listener(on_assign, on_revoke, on_lost)
        share.subscribed = True
        if isinstance(topics, re.Pattern):
            share.group.subscribe(topics)
        else:
            share.group.subscribe([topics] if isinstance(topics, str) else topics)
        done.callback(None)
        return done

    @_deferred
    async def unsubscribe(self) -> None:
        """Leave the group, with what was processed committed."""
        share = self._in_group()
        await share.give_up(sorted(share.assigned))
        share.subscribed = False
        share.group.leave()

    def _in_group(self) -> Share:
        if self._closing:
            raise Closed("the consumer is closed")
        if self._share is None:
            raise ValueError("this needs a group: Consumer(..., group_id=...)")
        return self._share

    @_deferred
    async def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Go to the first record that there still is, in these partitions or in all."""
        for partition, offset in (await self._ends(partitions or self.assignment, first=True)).items():
            self._seek(partition, offset)

    @_deferred
    async def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Go behind the last record, in these partitions or in all."""
        for partition, offset in (await self._ends(partitions or self.assignment, first=False)).items():
            self._seek(partition, offset)

    @_deferred
    async def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Go on at `offset` in a partition that is assigned. It is done when this returns."""
        self._seek(partition, offset)

    @_deferred
    async def pause(self, *partitions: tuple[str, int]) -> None:
        """Hand out nothing of these partitions, or of all, until `resume`. What has come of them is kept."""
        await self._pause(partitions, True)

    @_deferred
    async def resume(self, *partitions: tuple[str, int]) -> None:
        """Go on with these partitions, or with all."""
        await self._pause(partitions, False)

    @_deferred
    async def position(self, partition: tuple[str, int]) -> int:
        """The offset of the next record that `poll` hands out, or that would be if it were there.

        Fails with ValueError for a partition that is not assigned, and RequestTimedOut.
        """
        return await self._position(TopicPartition(*partition))

    # Offsets

    @_deferred
    async def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The first offset that each partition still has."""
        return await self._ends(partitions, first=True)

    @_deferred
    async def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The offset that the next record of each partition will have."""
        return await self._ends(partitions, first=False)

    @_deferred
    async def offsets_for_times(
        self, times: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTime | None]:
        """The first offset in each partition at or after a time in milliseconds since 1970; None if there is none."""
        found = await self._find(times)
        return {partition: (answer if answer.offset >= 0 else None) for partition, answer in found.items()}

    def committed(
        self, partitions: Partitions, timeout: float = 30.0
    ) -> Deferred[dict[TopicPartition, OffsetAndMetadata | None]]:
        """What the group has committed of each partition; None where it has committed nothing."""
        looking = Deferred.fromCoroutine(self._in_group().group.look_up([TopicPartition(*p) for p in partitions]))
        return self._in_time(looking, timeout, f"no committed offsets in {timeout:g} s")

    @_deferred
    async def commit(
        self,
        offsets: Offsets | None = None,
        *,
        wait: bool = True,
        timeout: float = 30.0,
    ) -> None:
        """Commit these offsets, each that of the next record to read; by default all that was handed out, of an
        iteration up to and with the present record. Without `wait` it is done in the background.

        Fails with CommitFailed where the group has moved on, KafkaError, RequestTimedOut.
        """
        share = self._in_group()
        chosen = to_commit(share, self._handed, offsets)
        if wait:
            await share.commit(chosen, timeout)
        else:
            share.commit_soon(chosen)

    # Reading

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Every record, as they come, without end."""
        while True:
            self._handed = Handed(await self._poll_chunks(_FOREVER))
            for record in self._handed:
                yield record

    @_deferred
    async def poll(self, timeout: float = 0.0, max_records: int | None = None) -> list[Record]:
        """The next records, at most `max_records`; waits up to `timeout` seconds for a first one, then fires with [].

        Fails with KafkaError (OFFSET_OUT_OF_RANGE with auto_offset_reset="none" and others that trying again won't
        help), CorruptRecords, or what kept a partition from being read for `retry_timeout` seconds.
        """
        return [record for _, records in await self._poll_chunks(timeout, max_records) for record in records]

    @_deferred
    async def poll_chunks(self, timeout: float = 0.0, max_records: int | None = None) -> list[Chunk]:
        """As `poll`, but the records of each partition apart."""
        return await self._poll_chunks(timeout, max_records)

    async def _poll_chunks(self, timeout: float, max_records: int | None = None) -> list[Chunk]:
        limit = self._max_poll_records if max_records is None else max_records
        group = None if self._share is None else self._share.group
        self._begin_poll()
        if group is not None:
            group.polled(True)
        try:
            self._handed = Handed()
            chunks = await self._read(self.cluster.seconds() + timeout, lambda: self._reader.gather(limit))
            self._handed = Handed(chunks)
            if chunks:
                await self._commit_before({partition: records[0].offset for partition, records in reversed(chunks)})
            return chunks
        finally:
            self._end_poll()
            if group is not None:
                group.polled(False)

    async def create_message_streams(
        self, topics: str | Mapping[str, int], count: int = 1
    ) -> dict[str, list[MessageStream]]:
        """Subscribe, and share what the group gives this consumer among so many streams for each topic: asynchronous
        iterators that never end. With `auto_commit` "after", what a stream has handed out is committed once it is asked
        for more. The consumer is polled for them; call `close` to end them.
        """
        counts = {topics: count} if isinstance(topics, str) else dict(topics)
        streams = Streams(self._poll_chunks, self._pause, self.wakeup, counts)
        self._in_group().progress = streams.progress
        await self.subscribe(counts, on_assign=streams.assigned, on_revoke=streams.revoked)
        self._tasks.start(streams.run())
        return streams.by_topic

    async def _commit_before(self, begins: Mapping[TopicPartition, int]) -> None:
        """With auto_commit "before": what can't be committed is not handed out."""
        if not self._commits_before or self._share is None:
            return
        positions = self._reader.positions
        try:
            await self._share.commit({p: OffsetAndMetadata(positions[p]) for p in begins}, self._retry_timeout)
        except BaseException:
            for partition, offset in begins.items():
                self._move(partition, offset)
            raise

    async def _look_around(self) -> None:
        if self._share is not None:
            await self._share.obey()
            self._share.commit_if_due(self.cluster.seconds())

    @property
    def _may_hand_out(self) -> bool:
        return self._share is None or self._share.group.may_fetch
