"""Copy partitions of several sources to one target: the loop of a worker.

Strategy: batches from the sources (`source.SourceReader`) are appended to the target as they come, until the commit
interval is over; then everything is flushed and committed with its checkpoints, or nothing is. After any failure of the
target the loop starts again from the target's committed state: a new target is opened, which fences the old one, the
checkpoints are read, and every partition starts there (`starting`). After an error that concerns one partition, only
that partition is set aside for a while.

Partitions are added and removed between two commits; other partitions do not wait for this. A removed partition is
committed before `held` leaves it out, so that another worker can take it over.

Rules: one coroutine does all of this, so no state changes during a commit. Callbacks only record events and wake it.
Batches of a partition are appended in the order of the source.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.consumer.reader import BatchChunk
from pylogd.client.core.errors import CorruptRecords, LogTruncation, UnknownTopic, is_retriable
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.client.deferred.tasks import Tasks
from pylogd.client.zookeeper.waiting import Sleeper
from pylogd.services.mirror.batches import BatchCopy
from pylogd.services.mirror.errors import MirrorError, NotAMember, TopicRecreated
from pylogd.services.mirror.feeds import ByteRateLimit, CopiedRoute, RouteFeed, RouteFigures, figures_of
from pylogd.services.mirror.membership import SESSION_ENDED
from pylogd.services.mirror.partition_copy import LagMark, PartitionCopy, PartitionRoute
from pylogd.services.mirror.starting import SourceState, start_of
from pylogd.services.mirror.target import Checkpoint, SourcePartition, Target
from pylogd.wire.exceptions import InvalidRecordBatch

_log = logging.getLogger(__name__)

#: Seconds for which a partition is set aside after an error, and after a retriable error.
_ASIDE_SECONDS, _RETRY_SECONDS = 5.0, 1.0
#: Seconds after a batch that can't be decoded: each attempt costs all partitions the work since the last commit.
_DAMAGED_SECONDS: Final = 60.0
_STARTS_AT_ONCE: Final = 500
#: The longest time between two calls of `_look`.
_LOOK_SECONDS: Final = 1.0
#: The time between two samples of the lag.
_LAG_SECONDS: Final = 2.0
#: Errors after which a partition is started again at once; the start finds out the cause.
_STARTS_OVER = (LogTruncation, TopicRecreated)


class CommitPace(NamedTuple):
    """A commit is due this many seconds after the first uncommitted batch, or when this many bytes were appended."""

    seconds: float
    bytes: int = 512 << 20


class Copier:
    """Copies partitions to one target.

    failed: the partitions that are set aside, each with the reason.
    interruptions: how often copying has started again at the last checkpoints.
    """

    def __init__(
        self,
        routes: Callable[[str], CopiedRoute | None],
        make_target: Callable[[], Target],
        *,
        reactor: Any,
        now_ms: Callable[[], int],
        pace: CommitPace,
        throttle: ByteRateLimit,
        still_member: Callable[[], Awaitable[None]],
        on_released: Callable[[], None],
    ) -> None:
        """routes: returns a route by its name.
        make_target: returns a new target, which is not open.
        still_member: fails with NotAMember once other workers may have taken over.
        on_released: called when `held` has become smaller.
        """
        self._routes, self._make_target = routes, make_target
        self._reactor, self._now_ms = reactor, now_ms
        self._pace, self._throttle = pace, throttle
        self._still_member, self._on_released = still_member, on_released
        self._target: Target | None = None
        self._wanted: set[PartitionRoute] = set()
        self._copies: dict[PartitionRoute, PartitionCopy] = {}
        self._starting: set[PartitionRoute] = set()
        self._feeds: dict[str, RouteFeed] = {}
        self._dirty: dict[PartitionCopy, None] = {}
        self._divergences: dict[PartitionRoute, OffsetAndMetadata] = {}
        self._not_before: dict[PartitionRoute, float] = {}
        self._errors: list[tuple[PartitionRoute, PylogdError]] = []
        self.failed: dict[PartitionRoute, str] = {}
        self._ending_routes: set[str] = set()  # routes whose partitions stop although they are wanted
        self._failure: PylogdError | None = None
        self._appended_bytes, self._began = 0, 0.0
        self._changed = False  # whether a partition had an event
        self._look_at = self._lag_at = float("-inf")
        self._is_full = False  # whether the target's buffers are full
        self._sleeper = Sleeper(reactor)
        self._wake = self._sleeper.wake
        self._backoff, self._tasks = Backoff(0.2, 5.0), Tasks()
        self.stopped = False
        self.commits = self.interruptions = 0
        #: whether `run` has returned
        self.has_ended = False

    # Calls of the worker

    def assign(self, wanted: Iterable[PartitionRoute]) -> None:
        """Copy these partitions and no others."""
        self._wanted = set(wanted)
        for path in [path for path in self._not_before if path not in self._wanted]:
            del self._not_before[path]
            self.failed.pop(path, None)
        self._note_change()

    @property
    def held(self) -> set[PartitionRoute]:
        """The partitions that are wanted, being started, or not committed yet."""
        return self._wanted | self._copies.keys() | self._starting

    async def run(self) -> None:
        """Copy until `stop`. Raises NotAMember or StoreError once other workers may have taken over."""
        try:
            while not self.stopped:
                await self._run_once()
        finally:
            self.has_ended = True
            self._on_released()

    async def _run_once(self) -> None:
        """Open the target and copy there, until `stop` or a failure."""
        target = self._target = self._make_target()
        try:
            await target.open()
            await self._still_member()
            await self._copy_to(target)
        except PylogdError as error:
            if isinstance(error, (NotAMember, *SESSION_ENDED)):
                raise
            self.interruptions += 1
            _log.warning("copying was interrupted, and resumes at the last checkpoints: %s", error)
        finally:
            self._forget_all()
            await target.close()
        if not self.stopped:
            await self._sleeper.sleep(self._backoff.next())

    def stop(self) -> None:
        """Commit the appended batches, and end. The Deferred fires when that is done."""
        self.stopped = True
        self._wanted = set()
        self._note_change()

    def begin_again(self, routes: set[str]) -> None:
        """Stop copying by these routes after the next commit, then start them again with their new settings."""
        self._ending_routes |= routes
        self._note_change()

    def figures(self) -> dict[str, RouteFigures]:
        """Return the figures of each route for operators."""
        return figures_of(self._feeds, self._copies, self._wanted, self.failed, self._reactor.seconds())

    # The loop

    async def _copy_to(self, target: Target) -> None:
        self._tasks = Tasks()
        self._changed = True
        while not self.stopped or self._dirty or self._copies:
            now = self._reactor.seconds()
            if self._changed or now >= self._look_at:
                self._look(target, now)
            if self._dirty or any(feed.has_batches for feed in self._feeds.values()):
                await target.begin()
                self._pump(target)
            if self._failure is not None:
                raise self._failure
            now = self._reactor.seconds()
            if self._dirty and self._is_due(now):
                await self._commit(target)
            elif not (self._changed or (self.stopped and not self._copies)):
                await self._sleeper.sleep(self._next_pause(now))

    def _look(self, target: Target, now: float) -> None:
        """Handle errors, drop unwanted partitions, and start missing ones."""
        self._changed, self._look_at = False, now + _LOOK_SECONDS
        if now >= self._lag_at:
            self._lag_at = now + _LAG_SECONDS
            self.figures()  # this records the progress of each partition
        self._take_errors()
        self._drop_unwanted()
        self._start_missing(target, now)

    def _note_change(self) -> None:
        self._changed = True
        self._wake()

    def _is_due(self, now: float) -> bool:
        return now >= self._began + self._pace.seconds or self._appended_bytes >= self._pace.bytes

    def _next_pause(self, now: float) -> float:
        pauses = [max(0.0, self._look_at - now)]
        if self._dirty:
            pauses.append(max(0.0, self._began + self._pace.seconds - now))
        pauses += [wait for feed in self._feeds.values() if feed.has_batches and (wait := self._throttled(feed, now))]
        return min(pauses)

    def _throttled(self, feed: RouteFeed, now: float) -> float:
        return max(feed.route.throttle.wait(now), self._throttle.wait(now))

    # Copying

    def _pump(self, target: Target) -> None:
        """Append batches of all routes in turns, until the target is full or throttles apply."""
        feeds = deque(self._feeds.values())
        while feeds:
            feed = feeds.popleft()
            now = self._reactor.seconds()
            is_held = self._throttled(feed, now) > 0 and feed.has_batches
            feed.route.meter.held(is_held, now)
            if is_held or not self._fill(feed):
                continue
            if not self._append(feed, target, now):
                self._is_full = True
                return
            feeds.append(feed)
        self._is_full = False

    def _fill(self, feed: RouteFeed) -> bool:
        """If no batches wait, take those of one partition from the reader. Return whether any wait now."""
        while not feed.waiting:
            chunk = feed.reader.take()
            if chunk is None:
                return False
            self._take(feed, chunk)
        return True

    def _take(self, feed: RouteFeed, chunk: BatchChunk) -> None:
        partition, position, batches = chunk
        path = feed.paths.get(partition)
        copy = None if path is None else self._copies.get(path)
        if copy is None or self._target is None:
            return
        for header, batch in batches:
            try:
                found = self._target.copy_of(header, batch, position)
            except InvalidRecordBatch as error:
                feed.reader.forget(partition)
                self._errors.append((copy.path, MirrorError(f"{partition} at offset {header.base_offset}: {error}")))
                self._changed = True
                return
            if found is not None:
                feed.waiting.append((copy, found, header.next_offset, header.leader_epoch))
        end = feed.reader.position(partition)
        if end is not None:
            feed.waiting.append((copy, None, end, feed.reader.epoch(partition)))

    def _append(self, feed: RouteFeed, target: Target, now: float) -> bool:
        """Append the waiting batches of `feed` to the target, in order, until the target's buffers are full.

        Return whether all were appended. A batch that the target can't take sets its partition aside.
        """
        waiting, size, records = feed.waiting, 0, 0
        full = False
        while waiting:
            copy, batch, offset, epoch = waiting[0]
            if batch is not None:
                taken = self._offer(target, copy, batch)
                if taken is None:  # the partition is set aside
                    feed.drop(copy)
                    break
                if not taken:
                    full = True
                    break
                size += len(batch.batch)
                records += batch.records
            waiting.popleft()
            self._moved(copy, offset, epoch)
        if size:
            self._appended_bytes += size
            feed.route.throttle.used(size, now)
            self._throttle.used(size, now)
            feed.route.meter.appended(size, records)
        return not full

    def _offer(self, target: Target, copy: PartitionCopy, batch: BatchCopy) -> bool | None:
        """Return whether the target has accepted a batch; None if the partition is set aside."""

        def appended(offset: int, error: PylogdError | None) -> None:
            if error is not None:
                self._append_failed(copy, error)
            elif offset >= 0:
                copy.appended(batch, offset)
            if self._is_full:  # once for all batches of one answer
                self._is_full = False
                self._reactor.callLater(0, self._wake)

        try:
            return target.append(copy.target, batch, appended)
        except KafkaError as error:
            self._errors.append((copy.path, error))
            self._changed = True
            return None

    def _append_failed(self, copy: PartitionCopy, error: PylogdError) -> None:
        """Record that a batch was not written, so that no batch since the last commit will be."""
        self._failure = self._failure or error
        self._wake()
        if isinstance(error, KafkaError) and not error.retriable:
            self._set_aside(copy.path, error)
        elif isinstance(error, CorruptRecords) and (error.topic, error.partition) == copy.target:
            self._set_aside(copy.path, error, _DAMAGED_SECONDS)

    def _moved(self, copy: PartitionCopy, offset: int, epoch: int) -> None:
        copy.position, copy.epoch = offset, max(epoch, copy.epoch)
        if not self._dirty:
            self._began = self._reactor.seconds()
        self._dirty[copy] = None

    async def _commit(self, target: Target) -> None:
        """Commit all appended batches, with the checkpoints of their partitions."""
        dirty, self._dirty = self._dirty, {}
        self._appended_bytes = 0
        await target.begin()
        await target.flush()
        now_ms = self._now_ms()
        found = {copy.key: copy.next_checkpoint(now_ms) for copy in dirty}
        await target.commit(
            {key: checkpoint for key, (checkpoint, _) in found.items()}, {key: runs for key, (_, runs) in found.items()}
        )
        self.commits += 1
        self._backoff.reset()
        for copy in dirty:
            copy.committed(found[copy.key][0])
        self._changed = True  # partitions that waited for this commit can continue

    # Added and removed partitions

    def _drop_unwanted(self) -> None:
        """Stop copying unwanted partitions. Partitions with uncommitted batches stay until the next commit."""
        leaving = [copy for path, copy in self._copies.items() if self._leaves(path)]
        for copy in leaving:
            self._stop_reading(copy)
            if copy in self._dirty:
                self._began = float("-inf")  # the next commit is due now
            else:
                del self._copies[copy.path]
        if any(copy not in self._dirty for copy in leaving):
            self._on_released()
        if self._ending_routes:
            self._ending_routes &= {path.route for path in self._copies}

    def _leaves(self, path: PartitionRoute) -> bool:
        return path not in self._wanted or path.route in self._ending_routes

    def _stop_reading(self, copy: PartitionCopy) -> None:
        feed = self._feeds.get(copy.path.route)
        if feed is not None and copy.path.source in feed.paths:
            feed.drop(copy)
            if not feed.paths:
                feed.reader.close()
                del self._feeds[copy.path.route]

    def _forget_all(self) -> None:
        """Forget all positions that are not committed: partitions start again at their checkpoints."""
        self._tasks.stop()
        for feed in self._feeds.values():
            feed.reader.close()
        self._feeds.clear()
        self._copies.clear()
        self._dirty.clear()
        self._starting.clear()
        self._errors.clear()
        self._failure = None
        self._appended_bytes = 0
        self._is_full = False
        self._on_released()

    def _start_missing(self, target: Target, now: float) -> None:
        """Start in the background the wanted partitions that are not copied, route by route."""
        missing: dict[str, list[PartitionRoute]] = {}
        for path in self._wanted - self._copies.keys() - self._starting:
            if self._not_before.get(path, 0.0) <= now and path.route not in self._ending_routes:
                missing.setdefault(path.route, []).append(path)
        for name, paths in missing.items():
            route = self._routes(name)
            if route is not None:
                paths.sort()
                for first in range(0, len(paths), _STARTS_AT_ONCE):
                    some = paths[first : first + _STARTS_AT_ONCE]
                    self._starting.update(some)
                    self._tasks.start(self._start(route, some, target))

    async def _start(self, route: CopiedRoute, paths: list[PartitionRoute], target: Target) -> None:
        """Look up the checkpoints of partitions, and start to read each after its checkpoint."""
        try:
            checkpoints = await target.checkpoints()
            state = await route.look_up([path.source for path in paths])
            found = [path for path in paths if path.source in state.ranges]
            ends = await target.end_offsets([path.target for path in found])
        except PylogdError as error:
            for path in paths:
                self._set_aside(path, error)
        else:
            for path in paths:
                if path.topic in state.errors:
                    self._set_aside(path, state.errors[path.topic])
            for path in found:
                end = ends.get(path.target)
                if end is None:
                    self._set_aside(path, MirrorError(f"topic {path.target_topic} is not there yet at the target"))
                else:
                    self._start_one(route, path, state, checkpoints, end)
        finally:
            self._starting.difference_update(paths)
            self._note_change()

    def _start_one(
        self, route: CopiedRoute, path: PartitionRoute, state: SourceState,
        checkpoints: Mapping[SourcePartition, Checkpoint], end: int,
    ) -> None:  # fmt: skip
        key = SourcePartition(state.cluster_id, path.topic, path.partition, path.target_topic)
        topic_id, known = state.topic_ids[path.topic], checkpoints.get(key)
        start = start_of(topic_id, state.ranges[path.source], known, self._divergences.pop(path, None), route.start)
        if start.warning is not None:
            _log.warning("route %s: %s: %s", route.name, key, start.warning)
            route.meter.lost(start.lost)
        checkpoint = Checkpoint(topic_id, start.offset, start.epoch, end, self._now_ms())
        late = 0.0 if known is None or known.time_ms < 0 else max(0.0, (checkpoint.time_ms - known.time_ms) / 1000)
        lag = LagMark(self._reactor.seconds() - late)
        if self._target is not None:
            self._target.start(key, known, start.offset, topic_id)
        copy = PartitionCopy(path, key, checkpoint, start.offset, start.epoch, end, lag)
        self._begin(route, copy, is_new=known is None or start.warning is not None)

    def _begin(self, route: CopiedRoute, copy: PartitionCopy, *, is_new: bool) -> None:
        """Start reading a partition. The start of a new partition is committed, so that it is decided only once."""
        path = copy.path
        if path not in self._wanted:
            return
        feed = self._feeds.get(path.route)
        if feed is None:
            name = path.route
            reader = route.reader(self._wake, lambda partition, error: self._read_failed(name, partition, error))
            feed = self._feeds[name] = RouteFeed(route, reader)
        self._copies[path] = copy
        feed.paths[path.source] = path
        self._not_before.pop(path, None)
        self.failed.pop(path, None)
        if is_new:
            self._moved(copy, copy.position, copy.epoch)
        feed.reader.read(path.source, copy.position, copy.epoch, copy.checkpoint.topic_id)

    # Errors of single partitions

    def _read_failed(self, route: str, partition: TopicPartition, error: PylogdError) -> None:
        feed = self._feeds.get(route)
        if feed is not None and partition in feed.paths:
            self._errors.append((feed.paths[partition], error))
            self._note_change()

    def _take_errors(self) -> None:
        """Stop the partitions that had errors. They are started again, at once or after a while."""
        errors, self._errors = self._errors, []
        for path, error in errors:
            copy = self._copies.get(path)
            if copy is None:
                continue
            if copy in self._dirty:  # first commit its appended batches
                self._began = float("-inf")
                self._errors.append((path, error))
                continue
            self._stop_reading(copy)
            del self._copies[path]
            if isinstance(error, LogTruncation):
                self._divergences[path] = error.divergent_offsets.get(path.source) or OffsetAndMetadata(-1)
            over = isinstance(error, _STARTS_OVER) or (
                isinstance(error, KafkaError) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE
            )
            if not over:
                self._set_aside(path, error)

    def _set_aside(self, path: PartitionRoute, error: PylogdError, seconds: float = _ASIDE_SECONDS) -> None:
        known = self.failed.get(path)
        pause = _RETRY_SECONDS if is_retriable(error) else seconds
        self._not_before[path] = self._reactor.seconds() + pause
        self.failed[path] = str(error)
        if known != str(error) and not isinstance(error, UnknownTopic):
            _log.warning("route %s: %s is set aside: %s", path.route, path.source, error)
