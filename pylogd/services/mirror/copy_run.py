"""Copy partitions of several sources to one open target, until it fails or copying is stopped.

Strategy: batches from the sources (`source.SourceReader`) are appended to the target as they come, until the commit
interval is over; then everything is flushed and committed with its checkpoints, or nothing is. Every partition starts
at its checkpoint (`starting`). After an error that concerns one partition, only that partition is set aside for a
while.

Partitions are added and removed between two commits; other partitions do not wait for this. A removed partition is
committed before `held` leaves it out, so that another worker can take it over.

Rules: one coroutine does all of this, so no state changes during a commit. Callbacks only record events and wake it.
Batches of a partition are appended in the order of the source. Must not know: what happens after a failure (`copying`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.client.core.consumer.reader import BatchChunk
from pylogd.client.core.errors import CorruptRecords, LogTruncation, UnknownTopic, is_retriable
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.client.deferred.tasks import Tasks
from pylogd.client.zookeeper.waiting import Sleeper
from pylogd.services.mirror.batches import BatchCopy
from pylogd.services.mirror.errors import MirrorError, TopicRecreated
from pylogd.services.mirror.feeds import ByteRateLimit, CopiedRoute, RouteFeed, RouteFigures, figures_of
from pylogd.services.mirror.partition_copy import CommitPace, LagMark, PartitionCopy, PartitionRoute, Uncommitted
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


@dataclass(frozen=True, slots=True)
class CopierOptions:
    """What a copier of partitions to one target needs.

    routes: returns a route by its name.
    make_target: returns a new target, which is not open.
    throttle: limits the bytes of all routes of this process.
    still_member: fails with NotAMember once other workers may have taken over.
    on_released: called when `held` has become smaller.
    """

    routes: Callable[[str], CopiedRoute | None]
    make_target: Callable[[], Target]
    reactor: Any
    now_ms: Callable[[], int]
    pace: CommitPace
    throttle: ByteRateLimit
    still_member: Callable[[], Awaitable[None]]
    on_released: Callable[[], None]


class SetAside:
    """Partitions that had an error, and are started again after a while.

    failed: the reason for each.
    divergences: where the source's log differs from what was copied, for partitions that found this out.
    """

    def __init__(self) -> None:
        self.failed: dict[PartitionRoute, str] = {}
        self.divergences: dict[PartitionRoute, OffsetAndMetadata] = {}
        self._not_before: dict[PartitionRoute, float] = {}

    def add(self, path: PartitionRoute, error: PylogdError, now: float, seconds: float = _ASIDE_SECONDS) -> None:
        """Set a partition aside for `seconds`, or for a shorter time after a retriable error."""
        known = self.failed.get(path)
        self._not_before[path] = now + (_RETRY_SECONDS if is_retriable(error) else seconds)
        self.failed[path] = str(error)
        if known != str(error) and not isinstance(error, UnknownTopic):
            _log.warning("route %s: %s is set aside: %s", path.route, path.source, error)

    def may_start(self, path: PartitionRoute, now: float) -> bool:
        """Return whether a partition may be started."""
        return self._not_before.get(path, 0.0) <= now

    def forget(self, path: PartitionRoute) -> None:
        """Forget the error of a partition."""
        self._not_before.pop(path, None)
        self.failed.pop(path, None)

    def keep(self, wanted: set[PartitionRoute]) -> None:
        """Forget the errors of all partitions but these."""
        for path in self._not_before.keys() - wanted:
            self.forget(path)


@dataclass(slots=True)
class Assigned:
    """What a copier is to copy.

    ending_routes: routes whose partitions stop although they are wanted.
    """

    wanted: set[PartitionRoute] = field(default_factory=set)
    ending_routes: set[str] = field(default_factory=set)
    aside: SetAside = field(default_factory=SetAside)


class CopyRun:
    """Copies partitions to one open target.

    copies: the partitions that are being copied.
    starting: the partitions whose checkpoint is being looked up.
    """

    def __init__(
        self, options: CopierOptions, assigned: Assigned, target: Target, sleeper: Sleeper,
        is_stopped: Callable[[], bool], on_commit: Callable[[], None],
    ) -> None:  # fmt: skip
        """is_stopped: whether to commit what was appended, and end."""
        self._options, self._target = options, target
        self._assigned, self._aside = assigned, assigned.aside
        self._sleeper, self._is_stopped, self._on_commit = sleeper, is_stopped, on_commit
        self.copies: dict[PartitionRoute, PartitionCopy] = {}
        self.starting: set[PartitionRoute] = set()
        self._feeds: dict[str, RouteFeed] = {}
        self._uncommitted = Uncommitted(options.pace)
        self._errors: list[tuple[PartitionRoute, PylogdError]] = []
        self._failure: PylogdError | None = None
        self._changed = True  # whether a partition had an event
        self._look_at = self._lag_at = float("-inf")
        self._is_full = False  # whether the target's buffers are full
        self._tasks = Tasks()

    async def copy(self) -> None:
        """Copy until `is_stopped`. Raises PylogdError after a failure of the target."""
        target = self._target
        while not self._is_stopped() or self._uncommitted or self.copies:
            now = self._seconds()
            if self._changed or now >= self._look_at:
                self._look(now)
            if self._uncommitted or any(feed.has_batches for feed in self._feeds.values()):
                await target.begin()
                self._pump()
            if self._failure is not None:
                raise self._failure
            now = self._seconds()
            if self._uncommitted.is_due(now):
                await self._commit()
            elif not (self._changed or (self._is_stopped() and not self.copies)):
                await self._sleeper.sleep(self._next_pause(now))

    def _look(self, now: float) -> None:
        """Handle errors, drop unwanted partitions, and start missing ones."""
        self._changed, self._look_at = False, now + _LOOK_SECONDS
        if now >= self._lag_at:
            self._lag_at = now + _LAG_SECONDS
            self.figures()  # this records the progress of each partition
        self._take_errors()
        self._drop_unwanted()
        self._start_missing(now)

    def note_change(self) -> None:
        """Look at all partitions soon."""
        self._changed = True
        self._sleeper.wake()

    def _next_pause(self, now: float) -> float:
        pauses = [max(0.0, self._look_at - now)]
        if self._uncommitted:
            pauses.append(self._uncommitted.wait(now))
        pauses += [wait for feed in self._feeds.values() if feed.has_batches and (wait := self._throttled(feed, now))]
        return min(pauses)

    def _throttled(self, feed: RouteFeed, now: float) -> float:
        return max(feed.route.throttle.wait(now), self._options.throttle.wait(now))

    def figures(self) -> dict[str, RouteFigures]:
        """Return the figures of each route for operators."""
        assigned = self._assigned
        return figures_of(self._feeds, self.copies, assigned.wanted, assigned.aside.failed, self._seconds())

    def _seconds(self) -> float:
        return float(self._options.reactor.seconds())

    # Copying

    def _pump(self) -> None:
        """Append batches of all routes in turns, until the target is full or throttles apply."""
        feeds = deque(self._feeds.values())
        while feeds:
            feed = feeds.popleft()
            now = self._seconds()
            is_held = self._throttled(feed, now) > 0 and feed.has_batches
            feed.route.meter.held(is_held, now)
            if is_held or not self._fill(feed):
                continue
            if not self._append(feed, now):
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
        copy = None if path is None else self.copies.get(path)
        if copy is None:
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

    def _append(self, feed: RouteFeed, now: float) -> bool:
        """Append the waiting batches of `feed` to the target, in order, until the target's buffers are full.

        Return whether all were appended. A batch that the target can't take sets its partition aside.
        """
        waiting, size, records = feed.waiting, 0, 0
        full = False
        while waiting:
            copy, batch, offset, epoch = waiting[0]
            if batch is not None:
                taken = self._offer(copy, batch)
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
            self._uncommitted.appended(size)
            feed.route.throttle.used(size, now)
            self._options.throttle.used(size, now)
            feed.route.meter.appended(size, records)
        return not full

    def _offer(self, copy: PartitionCopy, batch: BatchCopy) -> bool | None:
        """Return whether the target has accepted a batch; None if the partition is set aside."""

        def appended(offset: int, error: PylogdError | None) -> None:
            if error is not None:
                self._append_failed(copy, error)
            elif offset >= 0:
                copy.appended(batch, offset)
            if self._is_full:  # once for all batches of one answer
                self._is_full = False
                self._options.reactor.callLater(0, self._sleeper.wake)

        try:
            return self._target.append(copy.target, batch, appended)
        except KafkaError as error:
            self._errors.append((copy.path, error))
            self._changed = True
            return None

    def _append_failed(self, copy: PartitionCopy, error: PylogdError) -> None:
        """Record that a batch was not written, so that no batch since the last commit will be."""
        self._failure = self._failure or error
        self._sleeper.wake()
        if isinstance(error, KafkaError) and not error.retriable:
            self._set_aside(copy.path, error)
        elif isinstance(error, CorruptRecords) and (error.topic, error.partition) == copy.target:
            self._set_aside(copy.path, error, _DAMAGED_SECONDS)

    def _moved(self, copy: PartitionCopy, offset: int, epoch: int) -> None:
        copy.position, copy.epoch = offset, max(epoch, copy.epoch)
        self._uncommitted.add(copy, self._seconds())

    async def _commit(self) -> None:
        """Commit all appended batches, with the checkpoints of their partitions."""
        copies, target = self._uncommitted.take(), self._target
        await target.begin()
        await target.flush()
        now_ms = self._options.now_ms()
        found = {copy.key: copy.next_checkpoint(now_ms) for copy in copies}
        await target.commit(
            {key: checkpoint for key, (checkpoint, _) in found.items()}, {key: runs for key, (_, runs) in found.items()}
        )
        self._on_commit()
        for copy in copies:
            copy.committed(found[copy.key][0])
        self._changed = True  # partitions that waited for this commit can continue

    # Added and removed partitions

    def _drop_unwanted(self) -> None:
        """Stop copying unwanted partitions. Partitions with uncommitted batches stay until the next commit."""
        leaving = [copy for path, copy in self.copies.items() if self._leaves(path)]
        for copy in leaving:
            self._stop_reading(copy)
            if copy in self._uncommitted:
                self._uncommitted.make_due()
            else:
                del self.copies[copy.path]
        if any(copy not in self._uncommitted for copy in leaving):
            self._options.on_released()
        if self._assigned.ending_routes:
            self._assigned.ending_routes &= {path.route for path in self.copies}

    def _leaves(self, path: PartitionRoute) -> bool:
        return path not in self._assigned.wanted or path.route in self._assigned.ending_routes

    def _stop_reading(self, copy: PartitionCopy) -> None:
        feed = self._feeds.get(copy.path.route)
        if feed is not None and copy.path.source in feed.paths:
            feed.drop(copy)
            if not feed.paths:
                feed.reader.close()
                del self._feeds[copy.path.route]

    def close(self) -> None:
        """Stop reading. The positions that are not committed are forgotten."""
        self._tasks.stop()
        for feed in self._feeds.values():
            feed.reader.close()
        self._feeds.clear()
        self.copies.clear()
        self.starting.clear()

    def _start_missing(self, now: float) -> None:
        """Start in the background the wanted partitions that are not copied, route by route."""
        missing: dict[str, list[PartitionRoute]] = {}
        for path in self._assigned.wanted - self.copies.keys() - self.starting:
            if self._aside.may_start(path, now) and path.route not in self._assigned.ending_routes:
                missing.setdefault(path.route, []).append(path)
        for name, paths in missing.items():
            route = self._options.routes(name)
            if route is not None:
                paths.sort()
                for first in range(0, len(paths), _STARTS_AT_ONCE):
                    some = paths[first : first + _STARTS_AT_ONCE]
                    self.starting.update(some)
                    self._tasks.start(self._start(route, some))

    async def _start(self, route: CopiedRoute, paths: list[PartitionRoute]) -> None:
        """Look up the checkpoints of partitions, and start to read each after its checkpoint."""
        try:
            checkpoints = await self._target.checkpoints()
            state = await route.look_up([path.source for path in paths])
            found = [path for path in paths if path.source in state.ranges]
            ends = await self._target.end_offsets([path.target for path in found])
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
            self.starting.difference_update(paths)
            self.note_change()

    def _start_one(
        self, route: CopiedRoute, path: PartitionRoute, state: SourceState,
        checkpoints: Mapping[SourcePartition, Checkpoint], end: int,
    ) -> None:  # fmt: skip
        key = SourcePartition(state.cluster_id, path.topic, path.partition, path.target_topic)
        topic_id, known = state.topic_ids[path.topic], checkpoints.get(key)
        start = start_of(
            topic_id, state.ranges[path.source], known, self._aside.divergences.pop(path, None), route.start
        )
        if start.warning is not None:
            _log.warning("route %s: %s: %s", route.name, key, start.warning)
            route.meter.lost(start.lost)
        checkpoint = Checkpoint(topic_id, start.offset, start.epoch, end, self._options.now_ms())
        late = 0.0 if known is None or known.time_ms < 0 else max(0.0, (checkpoint.time_ms - known.time_ms) / 1000)
        lag = LagMark(self._seconds() - late)
        self._target.start(key, known, start.offset, topic_id)
        copy = PartitionCopy(path, key, checkpoint, start.offset, start.epoch, end, lag)
        self._begin(route, copy, is_new=known is None or start.warning is not None)

    def _begin(self, route: CopiedRoute, copy: PartitionCopy, *, is_new: bool) -> None:
        """Start reading a partition. The start of a new partition is committed, so that it is decided only once."""
        path = copy.path
        if path not in self._assigned.wanted:
            return
        feed = self._feeds.get(path.route)
        if feed is None:
            name = path.route
            reader = route.reader(
                self._sleeper.wake, lambda partition, error: self._read_failed(name, partition, error)
            )
            feed = self._feeds[name] = RouteFeed(route, reader)
        self.copies[path] = copy
        feed.paths[path.source] = path
        self._aside.forget(path)
        if is_new:
            self._moved(copy, copy.position, copy.epoch)
        feed.reader.read(path.source, copy.position, copy.epoch, copy.checkpoint.topic_id)

    # Errors of single partitions

    def _read_failed(self, route: str, partition: TopicPartition, error: PylogdError) -> None:
        feed = self._feeds.get(route)
        if feed is not None and partition in feed.paths:
            self._errors.append((feed.paths[partition], error))
            self.note_change()

    def _take_errors(self) -> None:
        """Stop the partitions that had errors. They are started again, at once or after a while."""
        errors, self._errors = self._errors, []
        for path, error in errors:
            copy = self.copies.get(path)
            if copy is None:
                continue
            if copy in self._uncommitted:  # first commit its appended batches
                self._uncommitted.make_due()
                self._errors.append((path, error))
                continue
            self._stop_reading(copy)
            del self.copies[path]
            if isinstance(error, LogTruncation):
                self._aside.divergences[path] = error.divergent_offsets.get(path.source) or OffsetAndMetadata(-1)
            over = isinstance(error, _STARTS_OVER) or (
                isinstance(error, KafkaError) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE
            )
            if not over:
                self._set_aside(path, error)

    def _set_aside(self, path: PartitionRoute, error: PylogdError, seconds: float = _ASIDE_SECONDS) -> None:
        self._aside.add(path, error, self._seconds(), seconds)
