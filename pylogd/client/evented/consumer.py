"""The consumer on an event loop: what the faces have in common.

Strategy: `PartitionsCore` and the group are driven whether the application polls or not, so that fetches, heartbeats
and commits go on; but partitions are given up and taken on in `poll` only, so that nothing changes under the
application's hands. `poll` hands out what has come, and waits on a bell for more.

Rules: a record is handed out once, in the order of its partition, to one member of a group at a time. What can't be
helped raises from `poll`, and the next `poll` goes on at the same position. What one call of `poll` returned counts as
processed when the next one is made; in an iteration, a record counts as processed when the next one is asked for. One
`poll`, or one iteration, at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pylogd.client.core.admin.calls import Calls, refresh
from pylogd.client.core.admin.offsets import EARLIEST, LATEST, find_offsets
from pylogd.client.core.call import Call
from pylogd.client.core.consumer.interceptors import ConsumerHooks
from pylogd.client.core.consumer.metrics import ConsumerMeters, ConsumerMetrics
from pylogd.client.core.consumer.options import ConsumerOptions, Offsets
from pylogd.client.core.consumer.partitions import PartitionsCore
from pylogd.client.core.consumer.reader import Chunk, Handed
from pylogd.client.core.errors import ClientError, Closed, RequestTimedOut
from pylogd.client.core.group.member_model import Failed, Revoke
from pylogd.client.core.group.sharing import COMMIT_SECONDS, Holdings, Listener, Told, Topics
from pylogd.client.core.metrics import StatisticsReporter
from pylogd.client.core.model import OffsetAndMetadata, OffsetAndTime, TopicPartition
from pylogd.client.evented.bell import Bell
from pylogd.client.evented.driver import Driver
from pylogd.client.evented.group import BrokerGroup, Group
from pylogd.client.evented.loop import Promise
from pylogd.client.evented.streams import Streams
from pylogd.errors import PylogdError
from pylogd.wire.records import Record

if TYPE_CHECKING:
    import pyarrow as pa

Partitions = Iterable[tuple[str, int]]
T = TypeVar("T")

_CALLBACK_PERIOD = 1.0  # seconds after which an iteration shows life, and commits
_SLICE_SECONDS = 0.02  # an iteration hands out records for so long before the loop does other work
_LOOK_SECONDS = 0.2  # how often to look for events of a coordinator that can't wake us


class EventedConsumer:
    """See the module. Every method that waits is a coroutine; times are in seconds."""

    def __init__(
        self,
        driver: Driver,
        calls: Calls,
        options: ConsumerOptions,
        make_group: Callable[[Callable[[], None]], Group] | None,
        warn: Callable[[str], None],
    ) -> None:
        """`make_group(on_event)` makes the group, if there is to be one; `warn` logs a line."""
        self.options = options
        self._driver = driver
        self._loop = driver.loop
        self._calls = calls
        self._warn = warn
        self._bell = Bell(driver.loop)
        self.group = None if make_group is None else make_group(self._ring)
        self.core = PartitionsCore(
            options, driver.network.metadata, None if self.group is None else self.group.look_up,
            on_found=self._found, soon=driver.turn,
        )  # fmt: skip
        self.reader = self.core.reader
        self._meters = ConsumerMeters(driver.network.meters, self.core)
        self._statistics = StatisticsReporter(options.statistics_interval, options.on_statistics, self._meters.snapshot)
        self._hooks = ConsumerHooks(options.interceptors)
        if isinstance(self.group, BrokerGroup):
            self.group.on_commit(self._hooks.committed)
        self.share: Holdings | None = None
        if self.group is not None:
            self.share = Holdings(
                self.group, self.reader, self.core.starts, commits=options.auto_commit == "after",
                interval=options.auto_commit_interval, now=driver.loop.now(),
            )  # fmt: skip
        self._handed = Handed()
        self._polling = self._woken = self._refused = self.closing = False
        self._looked_at = self._yielded_at = 0.0
        self._unplaced = 0  # partitions that had no position at the last turn
        driver.add(self)

    async def close(self, timeout: float, *, processed: bool = True) -> None:
        """Commit what was processed, if that is the consumer's to do, leave the group, and read no more, all within
        `timeout`. `processed`: what was handed out last counts as processed.
        """
        if self.closing:
            return
        self.closing = True
        self._ring()
        deadline = self._loop.now() + timeout
        try:
            if self.share is not None and self.group is not None:
                progress = self._progress_at_end(self.share, processed)
                try:
                    if self.options.auto_commit == "after":
                        self.share.commit_soon(self.share.unsaved(progress))
                    if self.share.assigned:
                        await self._tell(self.share.listener.revoked, sorted(self.share.assigned))
                finally:
                    await self.group.close(max(0.0, deadline - self._loop.now()))
        finally:
            self._driver.remove(self)
            if self.group is not None:
                self.group.stop()
            self._hooks.close()

    def metrics(self) -> ConsumerMetrics:
        """Return statistics of this consumer, its brokers and its partitions."""
        return self._meters.snapshot(self._loop.now())

    def _progress_at_end(self, share: Holdings, processed: bool) -> dict[TopicPartition, int]:
        """What is processed for sure."""
        handed = self._handed.begun or not processed
        return {**share.progress(), **(self._handed.unprocessed(last_is_done=False) if handed else {})}

    # What to read, and from where

    async def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic. Raises KafkaError if there is none."""
        known = self._calls.metadata.topics.get(topic)
        if known is None:
            [known] = await self._calls.call(lambda: refresh(self._calls, [topic]))
        return [TopicPartition(topic, partition.index) for partition in known.partitions]

    async def assign(self, partitions: Partitions | Mapping[tuple[str, int], int]) -> None:
        """Read these partitions and no others: from the offsets in a mapping; else those that were read before from
        where they were, and new ones from where they start.
        """
        if self.share is not None and self.share.subscribed:
            raise ValueError("the group assigns, as this consumer has subscribed; unsubscribe first")
        given = {TopicPartition(*p): o for p, o in partitions.items()} if isinstance(partitions, Mapping) else {}
        wanted = [TopicPartition(*partition) for partition in partitions]
        before = self.reader.positions
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
        if fresh and not self.core.starts.has_group:  # a wrong name is an error here and now
            await self._until_placed(fresh, self._call_seconds)

    @property
    def _call_seconds(self) -> float:
        """How long a call that asks brokers may take."""
        patience = self.options.retry_timeout
        return 60.0 if patience is None else patience

    async def _until_placed(self, partitions: Sequence[TopicPartition], timeout: float) -> None:
        deadline = self._loop.now() + timeout
        starts = self.core.starts
        while not starts.waiting.isdisjoint(partitions) and self._loop.now() < deadline:
            self.core.raise_error()
            await self._bell.wait(deadline)

    def subscribe(self, topics: Topics | str, listener: Listener) -> None:
        """Read what the group gives this consumer of these topics, or of all whose whole names match a pattern."""
        share, group = self.in_group()
        if self.reader.positions and not share.subscribed:
            raise ValueError("partitions are assigned by hand; assign none first")
        share.listener = listener
        share.subscribed = True
        group.subscribe([topics] if isinstance(topics, str) else topics)

    async def unsubscribe(self) -> None:
        """Leave the group, with what was processed committed."""
        share, group = self.in_group()
        await self._give_up(share, sorted(share.assigned))
        share.subscribed = False
        await group.leave()

    def in_group(self) -> tuple[Holdings, Group]:
        """Return what belongs to the group. Raises ValueError without one, Closed."""
        self._check_open()
        if self.share is None or self.group is None:
            raise ValueError("this needs a group: Consumer(..., group_id=...)")
        return self.share, self.group

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Go on at `offset` in a partition that is assigned."""
        place = TopicPartition(*partition)
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        self.core.check_assigned(place)
        self.core.move(place, offset)
        self._driver.soon()

    async def seek_to(self, partitions: Sequence[tuple[str, int]], *, first: bool) -> None:
        """Go to the first record that there still is, or behind the last, in these partitions or in all."""
        for partition, offset in (await self.ends(partitions or self.core.assignment, first=first)).items():
            self.seek(partition, offset)

    async def pause(self, partitions: Sequence[tuple[str, int]], paused: bool) -> None:
        """Hand out nothing of these partitions, or of all, until they are resumed."""
        for partition in [TopicPartition(*p) for p in partitions] or self.core.assignment:
            self.core.check_assigned(partition)
            if partition not in self.reader.positions:
                await self.position(partition)
            self.reader.pause(partition, paused)
        self._driver.soon()

    async def position(self, partition: tuple[str, int]) -> int:
        """Return the offset of the next record that `poll` hands out, or that would be if it were there."""
        place = TopicPartition(*partition)
        self.core.check_assigned(place)
        self._driver.soon()
        await self._until_placed([place], self._call_seconds)
        return self.reader.position(place)

    def _forget(self, partition: TopicPartition) -> None:
        self.core.forget(partition)
        if self.share is not None:
            self.share.forget([partition])

    # Offsets

    async def ends(self, partitions: Partitions, *, first: bool) -> dict[TopicPartition, int]:
        """Return the first offset that each partition still has, or that of its next record."""
        wanted = {TopicPartition(*partition): EARLIEST if first else LATEST for partition in partitions}
        return {partition: found.offset for partition, found in (await find_offsets(self._calls, wanted)).items()}

    async def offsets_for_times(
        self, times: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTime | None]:
        """Return the first offset in each partition at or after a time in milliseconds since 1970, None if none is."""
        found = await find_offsets(self._calls, {TopicPartition(*p): time for p, time in times.items()})
        return {partition: (answer if answer.offset >= 0 else None) for partition, answer in found.items()}

    async def committed(self, partitions: Partitions, timeout: float) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return what the group has committed of each partition; None where it has committed nothing."""
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
        """Commit these offsets, or all that was handed out, of an iteration up to and with the present record."""
        share, group = self.in_group()
        chosen = self._to_commit(share, offsets)
        if not wait:
            share.commit_soon(chosen)
        elif chosen:
            await group.commit(chosen, timeout)
            share.note_committed(chosen)

    def _to_commit(self, share: Holdings, offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            unprocessed = self._handed.unprocessed(last_is_done=True) if self._handed.begun else {}
            return share.unsaved({**share.progress(), **unprocessed})
        return {
            TopicPartition(*p): offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
            for p, offset in offsets.items()
        }

    # Reading

    async def poll_chunks(self, timeout: float, max_records: int | None = None) -> list[Chunk]:
        """Return the next records of each partition, at most `max_records`; [] if none come within `timeout`."""
        limit = self.options.max_poll_records if max_records is None else max_records
        self._begin_poll()
        try:
            chunks = await self._read(timeout, lambda: self.reader.gather(limit))
            if chunks and self.share is not None:
                begins = {partition: records[0].offset for partition, records in reversed(chunks)}
                self._handed = Handed(begins=begins)  # not the records, which are cheaper if they are soon freed
                await self._commit_before(self.share, begins)
        finally:
            self._end_poll()
        self._meters.consumed((partition, len(records)) for partition, records in chunks)
        return self._hooks.consumed(chunks)

    async def poll_columns(
        self, timeout: float, *, headers: bool, max_bytes: int
    ) -> list[tuple[TopicPartition, pa.RecordBatch]]:
        """As `poll_chunks`, but as columns."""
        self._begin_poll()
        try:
            chunks = await self._read(timeout, lambda: self.reader.gather_columns(headers=headers, max_bytes=max_bytes))
            begins = {partition: position for partition, position, _ in reversed(chunks)}
            self._handed = Handed(begins=begins)
            if chunks and self.share is not None:
                await self._commit_before(self.share, begins)
        finally:
            self._end_poll()
        self._meters.consumed((partition, columns.num_rows) for partition, _, columns in chunks)
        return [(partition, columns) for partition, _, columns in chunks]

    def iterate(self, chunks: list[Chunk]) -> Handed:
        """Return the records of a poll, one by one; `look_between` is to be called now and then."""
        self._handed = Handed(chunks)
        self._looked_at = self._loop.now()
        return self._handed

    def look_between(self) -> bool:
        """Between two records of an iteration: show life and commit. False: the rest is not to be handed out.

        What is not handed out is read again behind the next `poll`, if it still is this consumer's then.
        """
        now = self._loop.now()
        if self.share is None or self.group is None or now - self._looked_at < _CALLBACK_PERIOD:
            return not self.closing
        self._looked_at = now
        self.group.polled(False)
        unprocessed = self._handed.unprocessed(last_is_done=True)
        self.share.commit_if_due(now, {**self.share.progress(), **unprocessed})
        if not self.group.has_event and self.group.may_fetch and not self.closing:
            return True
        for partition, offset in unprocessed.items():
            if partition in self.reader.positions:
                self.core.move(partition, offset)
        self._handed = Handed()
        return False

    async def records(self, timeout: float) -> AsyncIterator[Record]:
        """Hand out every record, as they come, without end."""
        group = self.group
        while True:
            for record in self.iterate(await self.poll_chunks(timeout)):
                if group is not None and not group.may_fetch:
                    break  # others may be reading these already
                yield record
                if not self.look_between():
                    break
            if self._loop.now() - self._yielded_at > _SLICE_SECONDS:
                await self._yield()

    async def _yield(self) -> None:
        """Let the loop do other work: there is always more to hand out."""
        promise: Promise[None] = self._loop.promise()
        self._loop.later(0.0, lambda: promise.succeed(None))
        await promise
        self._yielded_at = self._loop.now()

    def make_streams(self, counts: Mapping[str, int]) -> Streams:
        """Subscribe, and share what the group gives this consumer among streams; `run` of the result feeds them."""
        share, group = self.in_group()
        streams = Streams(
            self._loop, self.poll_chunks, self.pause, self.wakeup, lambda: group.may_fetch, group.stream_of, counts
        )
        share.progress = streams.progress
        self.subscribe(counts, Listener(streams.assigned, streams.revoked))
        return streams

    def wakeup(self) -> None:
        """End the `poll` that is in progress, or else the next one, as if its time were over."""
        self._woken = True
        self._ring()

    def wake_poll(self) -> None:
        """As `wakeup`, from another thread; the loop has to be woken too."""
        self._woken = True

    def closing_soon(self) -> None:
        """End the `poll` that is in progress with Closed, from another thread; the loop has to be woken too."""
        self._refused = True

    def _ring(self) -> None:
        self._bell.ring()

    def _check_open(self) -> None:
        if self.closing or self._refused:
            raise Closed("the consumer is closed")

    def _begin_poll(self) -> None:
        self._check_open()
        if self._polling:
            raise ClientError("another poll of this consumer is in progress")
        self._polling = True
        self._handed = Handed()
        if self.group is not None:
            self.group.polled(True)

    def _end_poll(self) -> None:
        self._polling = False
        if self.group is not None:
            self.group.polled(False)

    async def _read(self, timeout: float, gather: Callable[[], list[T]]) -> list[T]:
        """Return what `gather` has, as soon as that is anything; nothing after `timeout`, or when woken."""
        deadline = self._loop.now() + timeout
        while True:
            self._check_open()
            await self._look_around()
            self.core.raise_error()
            chunks = gather() if self._may_hand_out else []
            if chunks:
                return chunks
            if not self._driver.turning:
                self._driver.turn()
                self.pump()
            self._check_open()  # `pump` may have taken the wake-up that told of it
            if self._woken or self._loop.now() >= deadline:
                self._woken = False
                return gather() if self._may_hand_out else []
            if not (self.core.fetcher.ready and self._may_hand_out) and not self.core.has_error and not self._has_event:
                wakes = self.group is None or (self.group.wakes and self._may_hand_out)
                await self._bell.wait(deadline if wakes else min(deadline, self._loop.now() + _LOOK_SECONDS))

    def pump(self) -> None:
        """Take in what has come, if the loop runs only while somebody calls it."""

    @property
    def _may_hand_out(self) -> bool:
        return self.group is None or self.group.may_fetch

    @property
    def _has_event(self) -> bool:
        return self.group is not None and self.group.has_event

    # What the group decides

    async def _look_around(self) -> None:
        """Carry out what the coordinator decided, and commit from time to time."""
        if self.share is None or self.group is None:
            return
        share, group = self.share, self.group
        while group.has_event and (event := group.next_event()) is not None:
            if isinstance(event, Failed):
                group.done(event)
                raise event.error
            try:
                if isinstance(event, Revoke):
                    await self._give_up(share, sorted(event.partitions), lost=event.lost)
                else:
                    added = sorted(event.added)
                    share.take_on(added)
                    await self._tell(share.listener.assigned, added)
            finally:
                group.done(event)
        share.commit_if_due(self._loop.now())

    async def _give_up(self, share: Holdings, partitions: list[TopicPartition], *, lost: bool = False) -> None:
        """Read these no more: commit what is processed, tell the listener, then stop."""
        try:
            if not lost and self.options.auto_commit == "after" and self.group is not None:
                positions = share.progress()
                offsets = share.unsaved({p: positions[p] for p in partitions if p in positions})
                try:
                    if offsets:
                        await self.group.commit(offsets, COMMIT_SECONDS)
                        share.note_committed(offsets)
                except PylogdError as error:
                    self._warn(f"partitions were given up with offsets that could not be committed: {error}; "
                               f"their next owner reads from what was committed before")  # fmt: skip
            await self._tell(share.listener.when_gone(lost), partitions)
        finally:
            for partition in partitions:
                self._forget(partition)

    async def _tell(self, told: Told | None, partitions: list[TopicPartition]) -> None:
        """Call the application's listener, which may be a coroutine function."""
        if told is not None:
            outcome = self.call_listener(told, partitions)
            if inspect.isawaitable(outcome):
                await outcome

    def call_listener(self, told: Told, partitions: list[TopicPartition]) -> Awaitable[Any] | None:
        """Call a listener; a face may do it in its own way."""
        found: Awaitable[Any] | None = told(partitions)
        return found

    async def _commit_before(self, share: Holdings, begins: Mapping[TopicPartition, int]) -> None:
        """With auto_commit "before": what can't be committed is not handed out."""
        if self.options.auto_commit != "before" or self.group is None:
            return
        positions = self.reader.positions
        try:
            chosen = {partition: OffsetAndMetadata(positions[partition]) for partition in begins}
            await self.group.commit(chosen, self._call_seconds)
            share.note_committed(chosen)
        except BaseException:
            for partition, offset in begins.items():
                self.core.move(partition, offset)
            raise

    def _found(self, committed: dict[TopicPartition, int], reset: dict[TopicPartition, int]) -> None:
        """Positions were found for partitions that start."""
        share, group = self.share, self.group
        if share is None or group is None:
            return
        share.placed(committed)
        if share.subscribed and not group.wakes and reset:  # so that a later owner starts there too
            share.commit_soon({partition: OffsetAndMetadata(offset) for partition, offset in reset.items()})

    # What the driver calls

    def turn(self, now: float) -> list[Call]:
        """Do what is due, and return what to send."""
        return self.core.turn(now)

    def next_time(self, now: float) -> float | None:
        """When to call `turn` if nothing happens before."""
        times = [self.core.next_time(now), self._statistics.next_time(now)]
        return min((time for time in times if time is not None), default=None)

    def settle(self) -> None:
        """Wake whoever waits, if there is something for it."""
        waiting = len(self.core.starts.waiting)
        placed, self._unplaced = waiting != self._unplaced, waiting
        can_read = self.core.fetcher.ready and self._may_hand_out
        if can_read or placed or self.core.has_error or self._has_event or self._woken or self._refused:
            self._bell.ring()
        self._statistics.report(self._loop.now())

    def reset(self) -> None:
        """Forget what is in flight: the connections are gone, and no answer will come."""
        self.core.reset()
