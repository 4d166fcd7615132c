"""The consumer: partitions that the caller chose, or that its group gave it, read from any offset on.

Strategy: the fetcher keeps one request under way to each broker; `poll` decodes what has come, a batch at a time, while
the broker already works on the next request. While the application is busy with records, a thread looks in now and
then, takes in what has come and asks for more (`prefetch`); while `poll` runs, it does all that itself, so that no two
threads fight for the interpreter over each packet. A group has a thread of its own (`group`), which heartbeats and
commits; but partitions are given up and taken on in `poll` only, so that nothing changes under the application's hands.

Rules: a record is handed out once, in the order of its partition, to one member of a group at a time. What can't be
helped raises from `poll`, and the next `poll` goes on at the same position. What one call of `poll` returned counts as
processed when the next one is made. One thread at a time, but for `wakeup` and `close`; and not in a process that was
forked after the consumer was made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from pylogd.client.blocking.cluster import Cluster
from pylogd.client.blocking.group import BrokerGroup
from pylogd.client.blocking.partition_reader import PartitionReader, Partitions
from pylogd.client.blocking.prefetch import Prefetch
from pylogd.client.blocking.share import Group, Share
from pylogd.client.blocking.streams import MessageStream, Streams
from pylogd.client.core.consumer.fetcher import FetchSettings
from pylogd.client.core.consumer.options import GroupPositions, Offsets, ResetTo, check_options, to_commit
from pylogd.client.core.consumer.reader import Chunk, Handed
from pylogd.client.core.errors import ClientError, Closed, RequestTimedOut
from pylogd.client.core.group.assignors import Assignor, find_assignors
from pylogd.client.core.group.member_model import MemberSettings
from pylogd.client.core.group.sharing import Listener, Told
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.wire.records import Record

if TYPE_CHECKING:
    import pyarrow as pa

_FOREVER = 3600.0
_CLOSE_SECONDS = 10.0
_CLOSE_SECONDS_AFTER_ERROR = 2.0
_LOOK_SECONDS = 0.2  # how often to look for events of a coordinator that can't wake us
_SHORTEST_LOCK_WAIT = 0.05  # seconds: a thread that prefetches is done by then, unless it connects


class Consumer(GroupPositions, PartitionReader):
    """A consumer on a cluster of its own, or on one that is given. Times in seconds, but for names that end in `_ms`.

    `auto_commit`, in a group: "after" commits from time to time what was processed, so that a record is processed at
    least once; "before" commits before records are handed out: at most once; "off" leaves it to `commit`.
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
        prefetch: bool = True,
        check_crcs: bool = True,
        metadata_max_age: float = 300.0,
        request_timeout: float = 30.0,
        retry_timeout: float = 60.0,
        client_id: str = "pylogd",
    ) -> None:
        """Names are Kafka's where Kafka has the setting. `retry_timeout` is how long a partition may fail before `poll`
        raises why; `buffer_bytes` what may be held of all partitions before it is decoded; `session_timeout` 45 s by
        default, or 6 s in ZooKeeper. Nothing is connected yet.
        """
        check_options(
            auto_offset_reset=auto_offset_reset, auto_commit=auto_commit, isolation_level=isolation_level,
            coordinator=coordinator,
        )  # fmt: skip
        self._own_cluster = not isinstance(bootstrap_servers, Cluster)
        cluster = bootstrap_servers if isinstance(bootstrap_servers, Cluster) else Cluster(
            bootstrap_servers, client_id=client_id, request_timeout=request_timeout, retry_timeout=retry_timeout
        )  # fmt: skip
        read_committed = isolation_level == "read_committed"
        group: Group | None = None
        if coordinator == "zookeeper":
            if group_id is None or not zookeeper:
                raise ValueError("the ZooKeeper coordinator needs a group_id, and zookeeper='HOST:PORT[/chroot]'")
            interval = auto_commit_interval if auto_commit == "after" else None
            group = _zookeeper_group(
                zookeeper, group_id, auto_offset_reset == "latest", session_timeout or 6.0, interval, request_timeout
            )
        elif group_id is not None:
            member = MemberSettings(
                group_id, find_assignors(assignors), group_instance_id, session_timeout or 45.0, heartbeat_interval,
                max_poll_interval, metadata_max_age, request_timeout, client_rack,
            )  # fmt: skip
            group = BrokerGroup(cluster.copy(), member, on_event=self._wake, stable=read_committed)
        fetch = FetchSettings(
            fetch_min_bytes, fetch_max_wait_ms, fetch_max_bytes, partition_max_bytes, buffer_bytes,
            client_rack or "", read_committed,
        )  # fmt: skip
        super().__init__(
            cluster, fetch, reset_to=auto_offset_reset, committed=group, check_crcs=check_crcs,
            request_timeout=request_timeout, retry_timeout=retry_timeout,
        )  # fmt: skip
        self._max_poll_records = max_poll_records
        self._commits_before = auto_commit == "before"
        self._process = os.getpid()
        self._closed = False
        self._handed = Handed()
        self._prefetch = Prefetch(self._fetcher, self._lock) if prefetch and self._own_cluster else None
        self._share = None
        if group is not None:
            now, commits = self._clock.monotonic(), auto_commit == "after"
            self._share = Share(
                group, self._reader, self._placing, commits=commits, interval=auto_commit_interval, now=now
            )
            if not group.wakes:
                self._longest_wait = _LOOK_SECONDS

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:  # what was handed out last may not be processed
            self.close(_CLOSE_SECONDS_AFTER_ERROR, _processed=False)

    def close(self, timeout: float = _CLOSE_SECONDS, *, _processed: bool = True) -> None:
        """Commit what was processed, if that is the consumer's to do, leave the group, and read no more, all within
        `timeout`. From any thread. A `poll` under way raises Closed.
        """
        if self._closing:
            return
        self._closing = True
        deadline = self._clock.monotonic() + timeout
        self._fetcher.wakeup.set()
        locked = self._lock.acquire(timeout=timeout)
        try:
            if self._share is not None:
                self._share.close(self._progress_at_end(_processed), deadline - self._clock.monotonic())
        finally:
            self._closed = True
            if locked:
                self._lock.release()
            if self._prefetch is not None:
                self._prefetch.stop(max(0.1, deadline - self._clock.monotonic()))
            self._fetcher.close()
            if self._own_cluster:
                self.cluster.close()

    # What to read, and from where

    def assign(self, partitions: Partitions | Mapping[tuple[str, int], int]) -> None:
        """Read these partitions and no others: from the offsets in a mapping; else those that were read before from
        where they were, new ones from what the group has committed, if there is one, or from where
        `auto_offset_reset` says.
        """
        if self._share is not None and self._share.subscribed:
            raise ValueError("the group assigns, as this consumer has subscribed; unsubscribe first")
        given = partitions if isinstance(partitions, Mapping) else {}
        wanted = [TopicPartition(*partition) for partition in partitions]
        with self._lock:
            before = self._reader.positions
            positions = {p: before[p] for p in wanted if p in before}
            positions.update((TopicPartition(*p), offset) for p, offset in given.items())
            fresh = [p for p in wanted if p not in positions]
            if fresh and self._share is None:
                positions.update(self._placing.reset_offsets(fresh))
            for gone in {*before, *self._placing.waiting} - set(wanted):
                self._forget(gone)
            for partition in wanted:
                if partition not in positions:
                    self._placing.add([partition])
                elif before.get(partition) != positions[partition]:
                    self._move(partition, positions[partition])

    def subscribe(
        self,
        topics: str | Iterable[str] | re.Pattern[str],
        *,
        on_assign: Told | None = None,
        on_revoke: Told | None = None,
        on_lost: Told | None = None,
    ) -> None:
        """Read what the group gives this consumer of these topics, or of all whose whole names match a pattern.

        In `poll`, `on_assign` is called with partitions that are new before anything of them is read, and may `seek`;
        `on_revoke` with those that go, while they may still be committed; `on_lost` (else `on_revoke`) with those that
        others may be reading already. What they raise, `poll` raises.
        """
        share = self._in_group()
        if self._reader.positions and not share.subscribed:
            raise ValueError("partitions are assigned by hand; assign none first")
        share.listener = Listener(on_assign, on_revoke, on_lost)
        share.subscribed = True
        share.group.subscribe([topics] if isinstance(topics, str) else topics)

    def unsubscribe(self) -> None:
        """Leave the group, with what was processed committed."""
        share = self._in_group()
        with self._lock:
            share.give_up(sorted(share.assigned))
            share.subscribed = False
            share.group.leave()

    def _in_group(self) -> Share:
        self._check_open()
        if self._share is None:
            raise ValueError("this needs a group: Consumer(..., group_id=...)")
        return self._share

    # Offsets

    def committed(
        self, partitions: Partitions, timeout: float = 30.0
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed of each partition; None where it has committed nothing."""
        lookup = self._in_group().group.look_up([TopicPartition(*p) for p in partitions])
        if not lookup.wait(timeout):
            raise RequestTimedOut(f"no committed offsets in {timeout:g} s")
        return lookup.found

    def commit(
        self,
        offsets: Offsets | None = None,
        *,
        wait: bool = True,
        timeout: float = 30.0,
    ) -> None:
        """Commit these offsets, each that of the next record to read; by default all that was handed out, of an
        iteration up to and with the present record. Without `wait` it is done in the background.

        Raises CommitFailed where the group has moved on, KafkaError, RequestTimedOut.
        """
        share = self._in_group()
        with self._lock:
            chosen = to_commit(share, self._handed, offsets)
        if wait:
            share.commit(chosen, timeout)
        else:
            share.commit_soon(chosen)

    def _progress_at_end(self, processed: bool) -> dict[TopicPartition, int]:
        """What is processed for sure."""
        share = self._share
        assert share is not None
        handed = self._handed.begun or not processed
        return {**share.progress(), **(self._handed.unprocessed(last_is_done=False) if handed else {})}

    # Reading

    def __iter__(self) -> Iterator[Record]:
        """Every record, as they come, without end."""
        while True:
            self._handed = Handed(self.poll_chunks(_FOREVER))
            yield from self._handed

    def poll(self, timeout: float = 0.0, max_records: int | None = None) -> list[Record]:
        """The next records, at most `max_records`; waits up to `timeout` seconds for a first one, then returns [].

        Raises KafkaError (OFFSET_OUT_OF_RANGE with auto_offset_reset="none" and others that trying again won't help),
        CorruptRecords, or what kept a partition from being read for `retry_timeout` seconds.
        """
        chunks = self.poll_chunks(timeout, max_records)
        if len(chunks) == 1:
            return chunks[0][1]
        return [record for _, records in chunks for record in records]

    def poll_chunks(self, timeout: float, max_records: int | None = None) -> list[Chunk]:
        """As `poll`, but the records of each partition apart."""
        limit = self._max_poll_records if max_records is None else max_records
        with self._polling(timeout) as deadline:
            if deadline is None:
                return []
            chunks = self._read(deadline, lambda: self._reader.gather(limit))
            if chunks and self._share is not None:
                begins = {partition: records[0].offset for partition, records in reversed(chunks)}
                self._handed = Handed(begins=begins)  # not the records, which are cheaper if they are soon freed
                self._commit_before(begins)
        return chunks

    def poll_columns(
        self, timeout: float = 0.0, *, headers: bool = False, max_bytes: int = 64 * 1024 * 1024
    ) -> list[tuple[TopicPartition, pa.RecordBatch]]:
        """As `poll`, but as columns: for each partition `pyarrow.RecordBatch`es with key, value, offset, timestamp and
        timestampType (see `columns`), without a Python object for a record. All that has come, up to `max_bytes` when
        it is uncompressed; the last batch is whole.
        """
        with self._polling(timeout) as deadline:
            if deadline is None:
                return []
            chunks = self._read(deadline, lambda: self._reader.gather_columns(headers=headers, max_bytes=max_bytes))
            begins = {partition: position for partition, position, _ in reversed(chunks)}
            self._handed = Handed(begins=begins)
            if chunks:
                self._commit_before(begins)
        return [(partition, columns) for partition, _, columns in chunks]

    @contextmanager
    def _polling(self, timeout: float) -> Iterator[float | None]:
        """The deadline, under the lock; None if a thread that prefetches does not let go of it in time."""
        self._check_open()
        group = None if self._share is None else self._share.group
        deadline = self._clock.monotonic() + timeout
        if self._prefetch is not None:
            self._prefetch.start()
        if group is not None:
            group.polled(True)
        try:
            if not self._lock.acquire(timeout=max(timeout, _SHORTEST_LOCK_WAIT)):
                yield None
                return
            try:
                self._handed = Handed()
                yield deadline
            finally:
                self._lock.release()
        finally:
            if group is not None:
                group.polled(False)

    def create_message_streams(self, topics: str | Mapping[str, int], count: int = 1) -> dict[str, list[MessageStream]]:
        """Subscribe, and share what the group gives this consumer among so many streams for each topic: iterators that
        never end, each for a thread of its own. With `auto_commit` "after", what a stream has handed out is committed
        once it is asked for more. The consumer is polled for them; call `close` to end them.
        """
        counts = {topics: count} if isinstance(topics, str) else dict(topics)
        share = self._in_group()
        streams = Streams(self, counts, share.group.stream_of)
        share.progress = streams.progress
        self.subscribe(counts, on_assign=streams.assigned, on_revoke=streams.revoked)
        streams.start()
        return streams.by_topic

    def _commit_before(self, begins: Mapping[TopicPartition, int]) -> None:
        """With auto_commit "before": what can't be committed is not handed out."""
        if not self._commits_before or self._share is None:
            return
        positions = self._reader.positions
        try:
            self._share.commit({p: OffsetAndMetadata(positions[p]) for p in begins}, self._retry_timeout)
        except BaseException:
            for partition, offset in begins.items():
                self._move(partition, offset)
            raise

    def _look_around(self) -> None:
        if self._share is not None:
            self._share.obey()
            self._share.commit_if_due(self._clock.monotonic())

    def _begin(self, positions: Mapping[TopicPartition, int]) -> None:
        share = self._share
        if share is not None and share.subscribed and not share.group.wakes:  # so that a later owner begins there too
            share.commit_soon({partition: OffsetAndMetadata(offset) for partition, offset in positions.items()})

    @property
    def _may_hand_out(self) -> bool:
        return self._share is None or self._share.group.may_fetch

    def _wake(self) -> None:
        self._fetcher.wakeup.set()

    def _check_open(self) -> None:
        if self._closing:
            raise Closed("the consumer is closed")
        if os.getpid() != self._process:
            raise ClientError("this consumer was made in another process; make a new one after the fork")


def _zookeeper_group(
    connect: str, group_id: str, latest: bool, session_timeout: float, interval: float | None, timeout: float
) -> Group:
    """It brings Twisted along, so it is imported only here."""
    from pylogd.client.blocking.zookeeper_group import ZooKeeperGroup, ZooKeeperSettings  # noqa: PLC0415

    return ZooKeeperGroup(ZooKeeperSettings(connect, group_id, latest, session_timeout, interval, timeout))
