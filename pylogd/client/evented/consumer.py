"""The consumer on an event loop: the code that the faces share.

Strategy: `PartitionsCore` and the group are driven whether the application polls or not, so that fetches, heartbeats
and commits continue. Partitions are revoked and assigned only inside `poll`, so that nothing changes while the
application works on records. `poll` returns fetched records, or waits for them with a `Notifier`.

Rules: a record is returned once, in the order of its partition, to one member of a group at a time. Errors that retries
do not help are raised by `poll`, and the next `poll` continues at the same position. The records of one `poll` count as
processed when the next one is called; in an iteration, a record counts as processed when the next one is requested. One
`poll` at a time; iterations and polls may take turns, and continue where the last one ended (`RecordBuffer`). Whether
the group lets this member read (`_may_hand_out`) is checked before records are decoded, so that no work is wasted, and
again afterwards, immediately before they are handed out: the process may have been frozen in between.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pylogd.client.core.admin.calls import Calls, refresh
from pylogd.client.core.call import Call
from pylogd.client.core.consumer.interceptors import ConsumerHooks
from pylogd.client.core.consumer.metrics import ConsumerMeters, ConsumerMetrics
from pylogd.client.core.consumer.options import ConsumerOptions, Offset
from pylogd.client.core.consumer.partitions import PartitionsCore
from pylogd.client.core.consumer.reader import ColumnChunk, begins_of
from pylogd.client.core.consumer.record_buffer import Chunk
from pylogd.client.core.consumer.streams import StreamTable
from pylogd.client.core.errors import ClientError, Closed
from pylogd.client.core.group.assignment import (
    GroupAssignment,
    RebalanceCallback,
    RebalanceListener,
    Topics,
    is_subscribed,
)
from pylogd.client.core.metrics import StatisticsReporter
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.client.evented.driver import Driver
from pylogd.client.evented.group import ConsumerGroup
from pylogd.client.evented.loop import Notifier, OneAtATime, Promise
from pylogd.client.evented.rebalancing import Rebalancing
from pylogd.client.evented.streams import Streams
from pylogd.wire.records import Record

if TYPE_CHECKING:
    import pyarrow as pa


from pylogd.base.errors import PylogdError
from pylogd.client.core.admin.offsets import EARLIEST, LATEST, find_offsets
from pylogd.client.core.consumer.options import Offsets
from pylogd.client.core.consumer.reader import BatchChunk
from pylogd.client.core.errors import RequestTimedOut
from pylogd.client.core.group.member_model import GroupMetadata
from pylogd.client.core.model import OffsetAndTime

T = TypeVar("T")
Partitions = Iterable[tuple[str, int]]

#: for `assign`: partitions are read without end
NO_ENDS: Final[Mapping[tuple[str, int], int]] = MappingProxyType({})

_CALLBACK_PERIOD = 1.0  # seconds after which an iteration reports to the group, and commits
_SLICE_SECONDS = 0.02  # an iteration lets the loop do other work after this time
_SESSION_SECONDS = 1.0  # the time for brokers to answer that they have closed fetch sessions
_LOOK_SECONDS = 0.2  # seconds between checks for events of a group that does not wake a `poll`


class EventedConsumer:
    """See the module. Every method that waits is a coroutine; times are in seconds."""

    def __init__(
        self,
        driver: Driver,
        calls: Calls,
        options: ConsumerOptions,
        make_group: Callable[[Callable[[], None]], ConsumerGroup] | None,
        warn: Callable[[str], None],
    ) -> None:
        """`make_group(on_event)` makes the group, or is None; `warn` logs a line."""
        self.options = options
        self._driver = driver
        self._loop = driver.loop
        self._calls = calls
        self._notifier = Notifier(driver.loop)
        self.group = None if make_group is None else make_group(self._notifier.notify)
        self.core = PartitionsCore(
            options, driver.network.metadata, None if self.group is None else self.group.look_up,
            on_found=self._starts_found, soon=driver.turn, warn=warn,
        )  # fmt: skip
        self.reader = self.core.reader
        self._meters = ConsumerMeters(driver.network.meters, self.core)
        self._statistics = StatisticsReporter(options.statistics_interval, options.on_statistics, self._meters.snapshot)
        self._hooks = ConsumerHooks(options.interceptors)
        self.rebalancing: Rebalancing | None = None
        self.streams: StreamTable[Any] | None = None
        if self.group is not None:
            self.group.on_commit(self._hooks.committed)
            assignment = GroupAssignment(
                self.group, self.reader, self.core.starts, commits=options.auto_commit == "after",
                interval=options.auto_commit_interval, now=driver.loop.now(),
            )  # fmt: skip
            self.rebalancing = Rebalancing(self.group, assignment, self.core, self.call_listener, warn)
        self._woken = self._refused = self.closing = False
        self._polls = OneAtATime()
        self._look_at = self._yielded_at = 0.0
        # The number of partitions without a position at the last turn; -1 if a position was found since.
        self._without_position = 0
        driver.add(self)

    async def close(self, timeout: float, *, processed: bool = True) -> None:
        """Stop reading and leave the group, within `timeout` seconds.

        With `auto_commit="after"`, first commit the offsets of processed records.
        processed: whether the records of the last poll count as processed.
        """
        if self.closing:
            return
        self.closing = True
        self._notifier.notify()
        deadline = self._loop.now() + timeout
        try:
            try:
                if self.rebalancing is not None:
                    await self._leave_group(self.rebalancing, deadline, processed)
            finally:
                self.reader.buffer.clear()
                await self._close_sessions(deadline)
        finally:
            self._driver.remove(self)
            if self.group is not None:
                self.group.stop()
            self._hooks.close()

    def metrics(self) -> ConsumerMetrics:
        """Return statistics of this consumer, its brokers and its partitions."""
        return self._meters.snapshot(self._loop.now())

    async def _close_sessions(self, deadline: float) -> None:
        """Close the fetch sessions at the brokers, which take up space until they are evicted (KIP-227)."""
        for call in self.core.fetcher.close(self._driver.network.is_ready):
            self._driver.send(call)
        # A fetch that waits for records is answered first.
        deadline = min(deadline, self._loop.now() + self.options.fetch_max_wait_ms / 1000 + _SESSION_SECONDS)
        while self.core.fetcher.closing and self._loop.now() < deadline:
            await self._notifier.wait(deadline)

    async def _leave_group(self, rebalancing: Rebalancing, deadline: float, processed: bool) -> None:
        assignment = rebalancing.assignment
        try:
            assignment.commit_soon(assignment.unsaved(rebalancing.processed(polled=processed)))
            self.reader.buffer.clear()  # the next owner reads these records
            if assignment.assigned:
                await rebalancing.tell(assignment.listener.revoked, sorted(assignment.assigned))
        finally:
            await rebalancing.group.close(max(0.0, deadline - self._loop.now()))

    # What to read, and from where

    async def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic. Raises KafkaError if the topic does not exist."""
        known = self._calls.metadata.topics.get(topic)
        if known is None:
            [known] = await self._calls.call(lambda: refresh(self._calls, [topic]))
        return [TopicPartition(topic, partition.index) for partition in known.partitions]

    async def assign(
        self, partitions: Partitions | Mapping[tuple[str, int], int], until: Mapping[tuple[str, int], int] = NO_ENDS
    ) -> None:
        """Read these partitions and no others. A mapping gives their offsets.

        Otherwise partitions that were read before continue at their positions, and new ones begin at their start
        offsets.
        until: offsets at which to stop fetching.
        """
        if self.rebalancing is not None and self.rebalancing.assignment.subscribed:
            raise ValueError("this consumer has subscribed, so its group assigns the partitions; unsubscribe first")
        given = {TopicPartition(*p): o for p, o in partitions.items()} if isinstance(partitions, Mapping) else {}
        wanted = [TopicPartition(*partition) for partition in partitions]
        self.core.fetcher.ends = {TopicPartition(*partition): end for partition, end in until.items()}
        before = self.reader.progress()
        for gone in {*before, *self.core.starts.waiting} - set(wanted):
            self._forget(gone)
        fresh = []
        for partition in wanted:
            offset = given.get(partition)
            if offset is not None:
                if before.get(partition) != offset:
                    self.core.move(partition, offset)
            elif partition not in before and partition not in self.core.starts.waiting:
                fresh.append(partition)
        self.core.starts.add(fresh)
        self._driver.soon()
        if fresh and not self.core.starts.has_group:  # a wrong name raises here
            await self._until_positioned(fresh, self._call_seconds)

    @property
    def _call_seconds(self) -> float:
        """How long a call that sends requests may take, in seconds."""
        patience = self.options.retry_timeout
        return 60.0 if patience is None else patience

    async def _until_positioned(self, partitions: Sequence[TopicPartition], timeout: float) -> None:
        deadline = self._loop.now() + timeout
        starts = self.core.starts
        while not starts.waiting.isdisjoint(partitions) and self._loop.now() < deadline:
            self.core.raise_error()
            await self._notifier.wait(deadline)

    def subscribe(self, topics: Topics | Iterable[str], listener: RebalanceListener) -> None:
        """Read the partitions that the group assigns of these topics, or of topics whose whole names match a pattern.

        Records of other topics are no longer returned, although the group takes their partitions away only later.
        """
        assignment, group = self.in_group()
        if self.reader.positions and not assignment.subscribed:
            raise ValueError("partitions are assigned by hand; call assign([]) first")
        if not isinstance(topics, re.Pattern | Mapping):
            topics = [topics] if isinstance(topics, str) else list(topics)
        group.subscribe(topics)
        assignment.listener = listener
        assignment.subscribed = True
        self.core.want(partial(is_subscribed, topics))
        self.reader.buffer.interrupt()

    async def unsubscribe(self) -> None:
        """Leave the group. The offsets of processed records are committed first."""
        assignment, group = self.in_group()
        assert self.rebalancing is not None
        await self.rebalancing.give_up(sorted(assignment.assigned))
        assignment.subscribed = False
        await group.leave()

    def in_group(self) -> tuple[GroupAssignment, ConsumerGroup]:
        """Return the group and its assignment. Raises ValueError without a group, and Closed."""
        self._check_open()
        if self.rebalancing is None:
            raise ValueError("this call needs a consumer group: Consumer(..., group_id=...)")
        return self.rebalancing.assignment, self.rebalancing.group

    def seek(self, partition: tuple[str, int], offset: Offset) -> None:
        """Continue at `offset` in an assigned partition; an offset with a leader epoch is validated first (KIP-320)."""
        chosen = TopicPartition(*partition)
        found = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
        if found.offset < 0:
            raise ValueError(f"offset {found.offset} is negative")
        self.core.check_assigned(chosen)
        self.core.move(chosen, found.offset, found.leader_epoch)
        if self.streams is not None:
            self.streams.move(chosen, found.offset)
        self._driver.soon()

    async def seek_to(self, partitions: Sequence[tuple[str, int]], *, first: bool) -> None:
        """Continue at the first available record, or after the last one, in these partitions or in all."""
        for partition, offset in (await self.ends(partitions or self.core.assignment, first=first)).items():
            self.seek(partition, offset)

    async def pause(self, partitions: Sequence[tuple[str, int]], paused: bool) -> None:
        """Pause or resume these partitions, or all."""
        for partition in [TopicPartition(*p) for p in partitions] or self.core.assignment:
            self.core.check_assigned(partition)
            self.core.pause(partition, paused)
        self._driver.soon()

    async def position(self, partition: tuple[str, int]) -> int:
        """Return the offset of the next record that `poll` returns, whether it exists yet or not."""
        chosen = TopicPartition(*partition)
        self.core.check_assigned(chosen)
        self._driver.soon()
        await self._until_positioned([chosen], self._call_seconds)
        return self.reader.position(chosen)

    def _forget(self, partition: TopicPartition) -> None:
        if self.rebalancing is not None:
            self.rebalancing.forget(partition)
        else:
            self.core.forget(partition)

    # Offsets

    async def ends(self, partitions: Partitions, *, first: bool) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition, or its end offset for the isolation level."""
        wanted = {TopicPartition(*partition): EARLIEST if first else LATEST for partition in partitions}
        found = await find_offsets(self._calls, wanted, committed=self.options.read_committed)
        return {partition: answer.offset for partition, answer in found.items()}

    async def offsets_for_times(
        self, times: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTime | None]:
        """Return each partition's first offset at or after a time in milliseconds since 1970; None if there is none."""
        wanted = {TopicPartition(*partition): time for partition, time in times.items()}
        found = await find_offsets(self._calls, wanted, committed=self.options.read_committed)
        return {partition: (answer if answer.offset >= 0 else None) for partition, answer in found.items()}

    async def committed(self, partitions: Partitions, timeout: float) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offset of each partition, or None if it has not committed any."""
        _, group = self.in_group()
        promise: Promise[Any] = self._loop.promise()

        def done(found: Any, error: PylogdError | None) -> None:
            if error is not None:
                promise.fail(error)
            else:
                promise.succeed(dict(found))

        timer = self._loop.later(
            timeout, lambda: promise.fail(RequestTimedOut(f"no committed offsets in {timeout:g} s"))
        )
        try:
            group.look_up([TopicPartition(*partition) for partition in partitions], done)
            found: dict[TopicPartition, OffsetAndMetadata | None] = await promise
        finally:
            timer.cancel()
        return found

    async def commit(self, offsets: Offsets | None, *, wait: bool, timeout: float) -> None:
        """Commit these offsets, or those of all returned records; in an iteration, including the current record."""
        assignment, group = self.in_group()
        chosen = self._to_commit(assignment, offsets)
        if not wait:
            assignment.commit_soon(chosen)
        elif chosen:
            await group.commit(chosen, timeout)
            assignment.note_committed(chosen)

    def _to_commit(
        self, assignment: GroupAssignment, offsets: Offsets | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            return assignment.unsaved(self._progress(assignment))
        return {
            TopicPartition(*p): offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
            for p, offset in offsets.items()
        }

    def _progress(self, assignment: GroupAssignment) -> Mapping[TopicPartition, int]:
        """Return the offsets after all returned records; in an iteration, including the current record.

        With auto_commit "before", return the committed offsets, which are ahead of an iteration.
        """
        return assignment.progress() if self.options.auto_commit != "before" else self.core.reader.positions

    # Transactions

    def group_metadata(self) -> GroupMetadata:
        """Return the group member with which offsets are committed now. Raises ValueError, Closed."""
        return self.in_group()[1].metadata()

    def offsets_to_send(self) -> tuple[dict[TopicPartition, OffsetAndMetadata], GroupMetadata]:
        """Return the offsets after the returned records, for a transaction to commit, and the group member that commits
        them.
        """
        if self.options.auto_commit in ("after", "before"):
            raise ValueError(
                f'a consumer with auto_commit="{self.options.auto_commit}" commits by itself, also what a transaction '
                f'then aborts: make it with auto_commit="transaction"'
            )
        assignment, group = self.in_group()
        return assignment.with_epochs(self._progress(assignment)), group.metadata()

    async def seek_to_committed(self) -> None:
        """Seek all assigned partitions to the group's committed offsets: records returned since then are read again.

        A partition without a committed offset starts as with a new assignment.
        """
        self.in_group()
        # With auto_commit "before", records that were not handed out are committed already.
        waiting = self.core.reader.buffer.positions() if self.options.auto_commit == "before" else {}
        self.core.start_again([partition for partition in self.core.assignment if partition not in waiting])
        for partition, offset in waiting.items():
            self.core.rewind(partition, offset)
        self._driver.soon()

    # Reading

    async def poll_chunks(self, timeout: float, max_records: int | None = None) -> list[Chunk]:
        """Return the next records of each partition, at most `max_records`; [] if none arrive within `timeout`."""
        await self.fill(timeout, max_records)
        return self.take(max_records)

    def take(self, max_records: int | None = None) -> list[Chunk]:
        """Return buffered records, at most `max_records`."""
        return self.reader.buffer.take(self._limit(max_records)) if self._may_hand_out else []

    def _limit(self, max_records: int | None) -> int:
        return self.options.max_poll_records if max_records is None else max_records

    async def fill(self, timeout: float, max_records: int | None = None) -> None:
        """Do the work that is due between two records, and wait for buffered records, at most `timeout` seconds.

        Buffered records are handed out before others are read. Records that were handed out before count as processed.
        """
        await self._alone(partial(self._fill, timeout, self._limit(max_records)))

    async def _fill(self, timeout: float, limit: int) -> None:
        if not await self._read(timeout, lambda: self.reader.fill(limit)):
            return
        buffer = self.reader.buffer
        unaccepted = buffer.unaccepted
        if unaccepted and self.rebalancing is not None:
            ends = {found.partition: found.end for found in unaccepted}
            await self.rebalancing.commit_before(ends, self._call_seconds)
        for found in unaccepted:
            buffer.accept(found, self._hooks.consumed(found.records))

    async def poll_columns(
        self, timeout: float, *, headers: bool, max_bytes: int
    ) -> list[tuple[TopicPartition, pa.RecordBatch]]:
        """Return the same as `poll_chunks`, as columns."""
        chunks = await self._alone(partial(self._poll_columns, timeout, headers, max_bytes))
        for partition, _, columns in chunks:
            self._meters.consumed(partition, columns.num_rows)
        return [(partition, columns) for partition, _, columns in chunks]

    async def _poll_columns(self, timeout: float, headers: bool, max_bytes: int) -> list[ColumnChunk]:
        def gather() -> list[ColumnChunk]:
            self.core.unbuffer()
            chunks = self.reader.gather_columns(headers=headers, max_bytes=max_bytes)
            if self._may_hand_out:
                return chunks
            self._put_back(chunks)
            return []

        chunks = await self._read(timeout, gather) or []
        begins = begins_of(chunks)
        try:
            self.reader.buffer.note_handed_out(begins)
            if self.rebalancing is not None:
                positions = self.reader.positions
                await self.rebalancing.commit_before({p: positions[p] for p in begins}, self._call_seconds)
        except BaseException:
            self._put_back(chunks)
            raise
        if not self._may_hand_out:
            self._put_back(chunks)
            return []
        return chunks

    def _put_back(self, chunks: list[ColumnChunk]) -> None:
        """Have undelivered columns read again."""
        for partition, offset in begins_of(chunks).items():
            self.core.rewind(partition, offset)

    def open_next(self) -> Iterator[Record] | None:
        """Return an iterator over the next records of one partition; None if `fill` has to be called first.

        Call `look_between` between two of its records.
        """
        return self.reader.buffer.open_next() if self._may_hand_out else None

    def look_between(self) -> None:
        """Between two records of an iteration: report to the group, and commit. If `fill` is needed, no more records
        are handed out before it.
        """
        now = self._loop.now()
        if self.rebalancing is None or now < self._look_at:
            return
        self._look_at = now + _CALLBACK_PERIOD
        assignment, group = self.rebalancing.assignment, self.rebalancing.group
        group.polled(False)
        self.reader.buffer.report()
        assignment.commit_if_due(now)
        if group.has_event or not group.may_fetch:
            self.reader.buffer.interrupt()

    async def records(self, timeout: float) -> AsyncIterator[Record]:
        """Iterate over all records, without end."""
        group, now = self.group, self._loop.now
        leased = group if group is not None and group.leased else None
        while True:
            await self.fill(timeout)
            while (records := self.open_next()) is not None:
                for record in records:
                    yield record
                    if group is not None and now() >= self._look_at:
                        self.look_between()
                    if leased is not None and not leased.may_fetch:  # other members may be reading the rest
                        self.reader.buffer.interrupt()
            if self._loop.now() - self._yielded_at > _SLICE_SECONDS:
                await self._yield()

    async def _yield(self) -> None:
        """Let the loop do other work, although more records are available."""
        promise: Promise[None] = self._loop.promise()
        self._loop.later(0.0, lambda: promise.succeed(None))
        await promise
        self._yielded_at = self._loop.now()

    def make_streams(self, counts: Mapping[str, int]) -> Streams:
        """Subscribe, and divide the assigned partitions among streams; `run` of the result feeds them."""
        assignment, group = self.in_group()
        streams = Streams(
            self._loop, self.poll_chunks, self.pause, self.wakeup, lambda: group.may_fetch, group.stream_of, counts
        )
        assignment.streams = self.streams = streams
        self.subscribe(counts, RebalanceListener(streams.assigned, streams.revoked))
        return streams

    def wakeup(self) -> None:
        """End the `poll` in progress, or else the next one, as if its timeout had passed."""
        self._woken = True
        self._notifier.notify()

    def wake_poll(self) -> None:
        """Call `wakeup` from another thread; the loop has to be woken too."""
        self._woken = True

    def closing_soon(self) -> None:
        """End the `poll` in progress with Closed, from another thread; the loop has to be woken too."""
        self._refused = True

    def _check_open(self) -> None:
        if self.closing or self._refused:
            raise Closed("the consumer is closed")

    async def _alone(self, poll: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await a poll, unless another one is in progress."""
        self._check_open()
        if self._polls.busy:
            raise ClientError("another poll of this consumer is in progress")
        self.reader.buffer.processed()
        self._look_at = self._loop.now() + _CALLBACK_PERIOD
        polled = (lambda _: None) if self.group is None else self.group.polled
        polled(True)
        try:
            return await self._polls.run(poll)
        finally:
            polled(False)

    async def _read(self, timeout: float, gather: Callable[[], T]) -> T | None:
        """Return the result of `gather` once it is not empty; otherwise after `timeout`, or when woken."""
        deadline = self._loop.now() + timeout
        while True:
            self._check_open()
            if self.rebalancing is not None:
                await self.rebalancing.handle_events(self._loop.now())
            self.core.raise_error()
            found = gather() if self._may_hand_out else None
            if found:
                return found
            if not self._driver.turning:
                self.pump()
            self._check_open()  # `pump` may have consumed the wake-up of `close`
            if self._woken or self._loop.now() >= deadline:
                self._woken = False
                return gather() if self._may_hand_out else None
            if not (self.reader.ready and self._may_hand_out) and not self.core.has_error and not self._has_event:
                wakes = self.group is None or (self.group.wakes and self._may_hand_out)
                await self._notifier.wait(deadline if wakes else min(deadline, self._loop.now() + _LOOK_SECONDS))

    def pump(self) -> None:
        """Do the due work."""
        self._driver.turn()

    @property
    def _may_hand_out(self) -> bool:
        return self.group is None or self.group.may_fetch

    @property
    def _has_event(self) -> bool:
        return self.group is not None and self.group.has_event

    def call_listener(self, callback: RebalanceCallback, partitions: list[TopicPartition]) -> Awaitable[Any] | None:
        """Call a listener; a face may override this."""
        found: Awaitable[Any] | None = callback(partitions)
        return found

    def _starts_found(
        self, committed: dict[TopicPartition, OffsetAndMetadata], reset: dict[TopicPartition, int]
    ) -> None:
        self._without_position = -1  # also for partitions that were added after the last turn
        if self.rebalancing is not None:
            self.rebalancing.note_start(committed, reset)

    # What the driver calls

    def turn(self, now: float) -> list[Call]:
        """Do the due work, and return the requests to send."""
        return self.core.turn(now)

    def next_time(self, now: float) -> float | None:
        """Return when to call `turn`, unless an event comes first."""
        times = [self.core.next_time(now), self._statistics.next_time(now)]
        return min((time for time in times if time is not None), default=None)

    def settle(self) -> None:
        """Wake waiting callers for whom something has changed."""
        waiting = len(self.core.starts.waiting)
        found = waiting != self._without_position
        self._without_position = waiting
        can_read = self.reader.ready and self._may_hand_out
        if can_read or found or self.core.has_error or self._has_event or self._woken or self.closing or self._refused:
            self._notifier.notify()
        self._statistics.report(self._loop.now())

    def reset(self) -> None:
        """Drop all requests in flight: the connections are closed, and no answer will arrive."""
        self.core.reset()


class BatchConsumer(EventedConsumer):
    """Reads assigned partitions batch by batch. Call no other `poll` method of it, and give it no group."""

    async def poll_batches(self, timeout: float, *, max_bytes: int) -> list[BatchChunk]:
        """Return the next batches of each partition, with the position from which they were read, until `max_bytes`.

        The first batch of a chunk may begin before the position. A chunk is empty if only the position moved, because
        control batches and batches of aborted transactions are left out. Waits up to `timeout` seconds for the first
        chunk. Raises CorruptRecords, and the errors of `poll`.
        """
        assert self.group is None
        found = await self._alone(lambda: self._read(timeout, lambda: self.reader.gather_batches(max_bytes)))
        return found or []
