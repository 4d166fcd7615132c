"""The partitions that this broker holds, and what is done to them.

Strategy: the topic registry says what should be here; `topic_changed` makes it so, one topic's changes after the other
and different topics side by side, with the files made and deleted in threads. Requests find partitions in two flat
dicts, by name and by topic id, whose cost doesn't grow with the number of partitions.

Rules:
- Everything here runs on the reactor's thread; only calls into the log that may wait for a disk go to a thread.
- A partition appears in the dicts once its log is open, and disappears before its log is deleted. Whoever waits on it
  is woken then and finds its role to be Deleted.
- A log goes only because its topic was deleted, or its replica moved, while this broker followed the metadata. One that
  the metadata does not know when all topics were read anew (at a start, in a new session) is kept aside as `-stray`:
  the metadata store may have been put back to an older copy.
- Who is told of a partition's changes (`subscribe`) looks at the partition, which is as it is now.
- Housekeeping (retention, rolling by age, flushing) runs in a thread, one round at a time.
- A failing disk is reported in the log at the 1st, 2nd, 4th, 8th ... failure, not for every request.

It must not know requests or error codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredLock, DeferredSemaphore
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThread
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.config import ConfigError, Settings
from pylogd.log.errors import LogClosed, StorageError, StorageFailure
from pylogd.metadata.errors import StoreError
from pylogd.metadata.image import id_to_text
from pylogd.replica.configs import HostedConfig, hosted_config
from pylogd.replica.flushing import PartitionFlusher
from pylogd.replica.inspecting import InspectedAppends
from pylogd.replica.isr import IsrKeeper
from pylogd.replica.partition import Partition, Role
from pylogd.replica.purgatory import Purgatory
from pylogd.replica.selector import RackAwareSelector
from pylogd.replica.sessions import FetchSessions
from pylogd.replica.throttle import ReplicaThrottle, ReplicationQuota
from pylogd.replica.waiting import LogStartWait, PendingAppend, ReplicationWait
from pylogd.replica.watermarks import WatermarkKeeper

if TYPE_CHECKING:
    from pylogd.log.log import AppendResult, Log
    from pylogd.log.manager import LogManager
    from pylogd.log.validator import Inspections
    from pylogd.metadata.image import PartitionState, Topic, TopicChange
    from pylogd.metadata.topics import TopicRegistry
    from pylogd.wire.records import Buffer

log = Logger()

#: A round of housekeeping does all that is due; the most frequent of its duties says how often it comes.
_HOUSEKEEPING_INTERVALS = (
    "log.retention.check.interval.ms",
    "log.flush.scheduler.interval.ms",
    "log.flush.offset.checkpoint.interval.ms",
)
_NO_ID = bytes(16)

InThread = Callable[..., "Deferred[Any]"]
PartitionListener = Callable[[Partition], object]
#: (partition, whether this broker leads it from now on)
LeadershipListener = Callable[[Partition, bool], object]


class ReplicaManager:
    """Every partition hosted here.

    partitions: by (topic name, index). partitions_by_id: the same by (topic id, index).
    fetch_waits, append_waits: who waits for records, and for replicas, under (topic name, index).
    replicated: those of `partitions` that other brokers have too. isr: keeps the in-sync sets of those led here.
    throttle: which replicas are held back. sessions: the fetch sessions of this broker.
    in_thread: runs a function in a thread and returns a Deferred of its result.
    append_in_turn: `append` for batches that have to be looked into, or that come behind such; see `inspecting`.
    append_queues: what waits there, by partition; only partitions with appends that wait are in it.
    """

    def __init__(
        self,
        logs: LogManager,
        topics: TopicRegistry,
        settings: Settings,
        clock: IReactorTime,
        node_id: int,
        in_thread: InThread = deferToThread,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        """`clock` times everything that waits; `now_ms` is the wall clock, for what the metadata dates."""
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.partitions_by_id: dict[tuple[bytes, int], Partition] = {}
        self.replicated: dict[tuple[str, int], Partition] = {}
        self.fetch_waits = Purgatory(clock)
        self.append_waits = Purgatory(clock)
        self.sessions: FetchSessions[Any] = FetchSessions(
            settings.integer("max.incremental.fetch.session.cache.slots"), lambda: int(clock.seconds() * 1000),
            self.fetch_waits,
        )  # fmt: skip
        self.in_thread = in_thread
        self._logs = logs
        self._topics = topics
        self._settings = settings
        self._clock = clock
        self._node_id = node_id
        self.isr = IsrKeeper(
            topics.alter_isr, clock, self.replicated, self._isr_written,
            lambda: settings.integer("replica.lag.time.max.ms") / 1000, now_ms,
        )  # fmt: skip
        self.seconds = clock.seconds
        self.selector: RackAwareSelector | None = None
        self._listeners: list[PartitionListener] = []
        self._configs: dict[str, HostedConfig] = {}
        quota = ReplicationQuota(lambda: settings.integer("leader.replication.throttled.rate"), clock.seconds)
        self.throttle = ReplicaThrottle(self._configs, node_id, quota)
        self._watermarks = WatermarkKeeper(
            logs, self.replicated, clock, in_thread,
            settings.integer("replica.high.watermark.checkpoint.interval.ms") / 1000,
        )  # fmt: skip
        self.awaited: set[tuple[str, int]] = set()  # partitions whose records are in a directory that is away
        self._cutting: dict[Partition, PartitionState | None] = {}  # whose log is cut, and what it then becomes
        self._hosted: dict[str, dict[int, Partition]] = {}
        #: Logs that have to go, by topic: where there is a reason they are strays, and kept aside.
        self._condemned: dict[str, list[tuple[tuple[str, int], str | None]]] = {}
        self._locks: dict[str, DeferredLock] = {}
        self._unsubscribe: list[Callable[[], object]] = []
        self._leadership_listeners: list[LeadershipListener] = []
        self._led: dict[Partition, int] = {}  # what this broker leads, and the leader epoch that was told
        self._housekeeping = LoopingCall(self._tick)
        self._housekeeping.clock = clock
        self._failures = 0
        self._starting = False
        self._flushers: dict[tuple[str, int], PartitionFlusher] = {}
        inspected = InspectedAppends(self.append, in_thread)
        self.append_in_turn, self.append_queues = inspected.append, inspected.queues
        self._flush_slots = DeferredSemaphore(max(settings.integer("background.threads") // 2, 1))

    # -- life

    def start(self) -> Deferred[None]:
        """Host what the registry says, keep logs aside that it does not know, and begin the housekeeping.

        The logs have to be loaded and the registry started. Fires when every partition is there.
        """
        return Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        self._unsubscribe = [
            self._topics.subscribe(self._registry_changed),
            self._settings.subscribe(lambda _names: self._apply_configs()),
        ]
        self._starting = True
        await self._find_strays()
        for name in dict.fromkeys([*self._condemned, *(topic.name for topic in self._topics.all())]):
            await self._settle(name)
        self._starting = False
        self._keep_house()

    def subscribe(self, listener: PartitionListener) -> None:
        """Call `listener` with a partition whenever its role, its leader or its leader epoch is another one."""
        self._listeners.append(listener)

    async def _find_strays(self) -> None:
        """Look which logs the metadata does not know, once all topics were read anew."""
        try:
            await self._topics.catch_up()
        except StoreError as error:
            log.warn("Not looking for stray logs: the metadata can't be read at present: {error}", error=error)
            return
        for key, stored in list(self._logs.logs.items()):  # a disk may fail meanwhile, in another thread
            reason = self._stray_reason(stored)
            if reason is not None:
                self._condemned.setdefault(key[0], []).append((key, reason))

    def _stray_reason(self, stored: Log) -> str | None:
        """Why no partition of this broker's has this log, None if one has, or if that can't be told."""
        topic = self._topics.get(stored.topic)
        if topic is None:
            return None if stored.topic in self._topics.unreadable else "there is no such topic"
        if stored.topic_id not in (topic.topic_id, _NO_ID):
            return f"its topic id is {id_to_text(stored.topic_id)}, the topic's {id_to_text(topic.topic_id)}"
        if stored.partition >= len(topic.partitions):
            return f"the topic has {len(topic.partitions)} partitions"
        replicas = topic.partitions[stored.partition].replicas
        return None if self._node_id in replicas else f"its replicas are on the brokers {list(replicas)}"

    def stop(self) -> Deferred[None]:
        """End the housekeeping and every wait, as if its time were up, and finish the changes of topics under way.

        The logs stay open for their owner to close.
        """
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        for undo in self._unsubscribe:
            undo()
        self._unsubscribe = []
        self.isr.stop()
        for flusher in self._flushers.values():
            flusher.close()
        self.append_waits.expire_all()
        self.fetch_waits.expire_all()
        if self._housekeeping.running:
            self._housekeeping.stop()
            await self._housekeeping_done
        for name in list(self._locks):
            await self.settled(name)
        await self._watermarks.stop()

    def _keep_house(self) -> None:
        interval_ms = min(self._settings.integer(name) for name in _HOUSEKEEPING_INTERVALS)
        self._housekeeping_done = self._housekeeping.start(interval_ms / 1000, now=False)

    def _tick(self) -> Deferred[Any]:
        return self.in_thread(self._logs.tick).addCallback(self._ticked).addErrback(self._tick_failed)

    def _ticked(self, moved: Sequence[tuple[str, int]]) -> None:
        """Housekeeping has moved the starts of these logs."""
        for key in moved:
            partition = self.partitions.get(key)
            if partition is not None:
                self.became_visible(partition)

    def _tick_failed(self, failure: Failure) -> None:
        log.failure("Unexpected error in housekeeping (retention, checkpoints)", failure)

    def on_leadership(self, listener: LeadershipListener) -> Callable[[], None]:
        """Call `listener` whenever this broker begins or ceases to lead a partition from now on, on the reactor's
        thread, after the look-ups have it; returns the undoing. One that leads in a new epoch has ceased and begun.
        """
        self._leadership_listeners.append(listener)
        return lambda: self._leadership_listeners.remove(listener)

    def _leads(self, partition: Partition, leads: bool) -> None:
        for listener in list(self._leadership_listeners):
            try:
                listener(partition, leads)
            except Exception:
                log.failure("Unexpected error while announcing a change of leadership")

    # -- what requests do

    def append(
        self,
        partition: Partition,
        records: Buffer,
        acks_all: bool,
        inspections: Inspections | None = None,
        *,
        own: bool = False,
    ) -> AppendResult:
        """Append a client's batches, or the broker's `own`, and wake who waits for them.

        Raises as `Partition.append` does; after InspectionNeeded, and while the partition is in `append_queues`, a
        client's batches are for `append_in_turn`.
        """
        try:
            result = partition.append(records, acks_all, inspections, own=own)
        except StorageFailure as error:
            self._storage_failed(error)
            raise
        if result.last_offset >= partition.flush_at:
            self._flushers[partition.key].appended()
        self.fetch_waits.check(partition.key)
        return result

    def append_batches(self, partition: Partition, batches: Sequence[memoryview], acks_all: bool) -> list[int]:
        """Append with one write as many of a client's batches, from the first on, as need no closer look.

        Return their base offsets, and wake who waits for them. What is left is for `append`. Raises StorageFailure:
        nothing was appended.
        """
        try:
            bases = partition.append_batches(batches, acks_all)
        except StorageFailure as error:
            self._storage_failed(error)
            raise
        if bases:
            if partition.log.log_end_offset > partition.flush_at:
                self._flushers[partition.key].appended()
            self.fetch_waits.check(partition.key)
        return bases

    def append_fetched(self, partition: Partition, batches: Buffer, leader_hw: int, leader_start: int) -> None:
        """Append whole batches of the leader's and wake who waits. Raises as `Partition.append_fetched` does."""
        try:
            moved = partition.append_fetched(batches, leader_hw, leader_start)
        except StorageFailure as error:
            self._storage_failed(error)
            raise
        if partition.log.log_end_offset > partition.flush_at:
            self._flushers[partition.key].appended()
        if moved:
            self.fetch_waits.check(partition.key)

    def truncate(self, partition: Partition, offset: int) -> Deferred[None]:
        """Drop a follower's log from `offset` on. Fails with the log's errors."""
        return self._cut(partition, self._logs.truncate_to, partition.topic, partition.index, offset)

    def begin_at(self, partition: Partition, offset: int) -> Deferred[None]:
        """Drop all of a follower's log and go on at `offset`. Fails with the log's errors."""
        return self._cut(partition, self._logs.begin_at, partition.topic, partition.index, offset)

    def _cut(self, partition: Partition, function: Callable[..., Any], *args: Any) -> Deferred[None]:
        self._cutting[partition] = None

        def cut(result: Any) -> Any:
            state = self._cutting.pop(partition)
            if partition.online:
                partition.truncated()
            if state is not None and self.partitions.get(partition.key) is partition:
                self._refresh(partition, state, None)
            else:
                self.became_visible(partition)  # its ends are others
            if isinstance(result, Failure) and isinstance(result.value, StorageError):
                self._storage_failed(result.value)
            return result if isinstance(result, Failure) else None

        return self.in_thread(function, *args).addBoth(cut)

    def became_visible(self, partition: Partition) -> None:
        """The high watermark or the log's start has moved: wake who waits for that."""
        self.fetch_waits.check(partition.key)
        self.append_waits.check(partition.key)

    def wait_for_replicas(self, appends: list[PendingAppend], timeout_ms: int) -> Deferred[list[PendingAppend]]:
        """Fires when every append is committed or the time is up, with those that are not."""
        return self.append_waits.watch(
            ReplicationWait(appends), [append.partition.key for append in appends], max(timeout_ms, 0) / 1000
        )

    def wait_for_log_starts(self, partition: Partition, offset: int, timeout_ms: int) -> Deferred[bool]:
        """Fires once the log of every in-sync replica begins at `offset` or behind it, or time is up; whether so."""
        wait = LogStartWait(partition, offset)
        self.append_waits.watch(wait, [partition.key], max(timeout_ms, 0) / 1000)
        self.became_visible(partition)  # followers are to hear of it; and it may be so already
        return wait.done

    def _storage_failed(self, error: StorageError) -> bool:
        """Storage raised `error`, in whatever thread; whether its data directory is offline."""
        offline = self._logs.storage_failed(error)
        if not offline:
            self._report(error)
        return offline

    def went_offline(self, keys: Sequence[tuple[str, int]]) -> None:
        """These partitions' disk has failed: answer so from now on, and whoever waits on them."""
        for key in keys:
            partition = self.partitions.get(key)
            if partition is not None and partition.online:
                self._flushers.pop(key).close()
                partition.go_offline()
                self._tell(partition)

    def reopen(self, path: str) -> Deferred[None]:
        """Use a data directory again that is offline, or full. Fires when its partitions are hosted again.

        Fails as `LogManager.reopen`.
        """
        return Deferred.fromCoroutine(self._reopen(path))

    async def _reopen(self, path: str) -> None:
        keys = await self.in_thread(self._logs.reopen, path)
        for key in keys:
            partition = self.partitions.get(key)
            if partition is not None:
                self._unhost(partition)
            stored = self._logs.logs.get(key)
            reason = None if stored is None else self._stray_reason(stored)
            if reason is not None:
                self._condemned.setdefault(key[0], []).append((key, reason))
        for name in dict.fromkeys(topic for topic, _ in keys):
            await self._settle(name)

    def _report(self, error: StorageError) -> None:
        self._failures += 1
        if self._failures.bit_count() == 1:
            log.error("storage failed ({count} times so far): {error}", count=self._failures, error=error)

    # -- what the registry does

    def _registry_changed(self, change: TopicChange) -> None:
        topic = change.after or change.before
        assert topic is not None
        if change.found_out:
            self._drop_gone(topic.name, "it was missing when all topics were read anew in a new session")
        self.topic_changed(topic.name).addErrback(self._change_failed, topic.name)

    def _change_failed(self, failure: Failure, name: str) -> None:
        log.failure("Could not apply a change of topic {name}", failure, name=name)

    def topic_changed(self, name: str) -> Deferred[None]:
        """The registry has changed `name`: follow. Fires when this broker is as the registry says."""
        self._drop_gone(name)
        return Deferred.fromCoroutine(self._settle(name))

    def settled(self, name: str) -> Deferred[None]:
        """Fires when the changes of `name` that are known now have been followed."""
        lock = self._locks.get(name)
        if lock is None:
            done: Deferred[None] = Deferred()
            done.callback(None)
            return done
        return lock.run(lambda: None)

    def _drop_gone(self, name: str, reason: str | None = None) -> None:
        """Host no longer what the registry does not have here. With a `reason` its logs are strays."""
        topic = self._topics.get(name)
        hosted = self._hosted.get(name)
        if not hosted:
            return
        for partition in list(hosted.values()):
            if topic is None or topic.topic_id != partition.topic_id or not self._is_ours(topic, partition.index):
                self._drop(partition, reason)

    def _is_ours(self, topic: Topic, index: int) -> bool:
        return index < len(topic.partitions) and self._node_id in topic.partitions[index].replicas

    def _drop(self, partition: Partition, reason: str | None) -> None:
        self._condemned.setdefault(partition.topic, []).append((partition.key, reason))
        self._unhost(partition)

    def _unhost(self, partition: Partition) -> None:
        """Serve the partition no longer; its log stays."""
        hosted = self._hosted[partition.topic]
        del hosted[partition.index]
        if not hosted:
            del self._hosted[partition.topic]
            self._configs.pop(partition.topic, None)
        del self.partitions[partition.key]
        del self.partitions_by_id[partition.topic_id, partition.index]
        self._replicate(partition, False)
        partition.become(Role.DELETED)
        flusher = self._flushers.pop(partition.key, None)
        if flusher is not None:
            flusher.close()
        self._tell(partition)

    def _tell(self, partition: Partition) -> None:
        """The partition's role, leader or epoch is another one: end what waits on it, and tell who listens."""
        self.became_visible(partition)
        for listener in self._listeners:
            try:
                listener(partition)
            except Exception:
                log.failure("Unexpected error while announcing a change of {partition!r}", partition=partition)
        epoch = partition.leader_epoch if partition.role is Role.LEADING else None
        before = self._led.pop(partition, None)
        if epoch is not None:
            self._led[partition] = epoch
        if before != epoch and before is not None:
            self._leads(partition, False)
        if before != epoch and epoch is not None:
            self._leads(partition, True)

    async def _settle(self, name: str) -> None:
        lock = self._locks.setdefault(name, DeferredLock())
        await lock.acquire()
        try:
            for key, reason in self._condemned.pop(name, ()):
                await (self._delete_log(key) if reason is None else self._keep_aside(key, reason))
            topic = self._topics.get(name)
            if topic is not None:
                await self._host(topic)
        finally:
            lock.release()
            if not lock.locked:
                self._locks.pop(name, None)

    async def _delete_log(self, key: tuple[str, int]) -> None:
        try:
            await self.in_thread(self._logs.delete, *key)
        except StorageError as error:
            log.error("Could not delete the log of {topic}-{index}: {error}", topic=key[0], index=key[1], error=error)

    async def _keep_aside(self, key: tuple[str, int], reason: str) -> None:
        """Take a log out of the way that the metadata does not know."""
        try:
            path = await self.in_thread(self._logs.keep_aside, *key)
        except StorageError as error:
            log.error("Could not rename the stray log of {t}-{i}: {error}", t=key[0], i=key[1], error=error)
            return
        if path is not None:
            log.error(
                "{topic}-{index} is not known to the metadata: {reason}. Its log is kept as {path} and not served. "
                "If the metadata is right, remove that directory. If it is an older copy, stop this broker, put the "
                "newer one back, and rename the directory to {topic}-{index}",
                topic=key[0], index=key[1], reason=reason, path=path,
            )  # fmt: skip

    async def _host(self, topic: Topic) -> None:
        hosted = self._hosted.get(topic.name, {})
        config = self._config(topic)
        reconfigured = self._configs.get(topic.name) != config
        self._configs[topic.name] = config
        missing = []
        for state in topic.partitions:
            stored = self._logs.logs.get((topic.name, state.index))
            if stored is not None and state.index not in hosted:
                reason = self._stray_reason(stored)
                if reason is not None:
                    await self._keep_aside((topic.name, state.index), reason)
                    stored = None
            if self._node_id not in state.replicas:
                continue
            partition = hosted.get(state.index)
            if partition is not None and partition.key in self.awaited and not self._awaits(state):
                self._forget(partition)
                self._configs[topic.name] = config
                partition = None
            if partition is not None:
                self._refresh(partition, state, config if reconfigured else None)
                continue
            if stored is None:
                missing.append(state)
            else:
                self._add(topic, state, stored, config)
        for state in filter(self._awaits, missing):
            self.awaited.add((topic.name, state.index))
            self._add(topic, state, None, config)
        missing = [state for state in missing if not self._awaits(state)]
        if missing and self._starting and len(self._logs.healthy) < len(self._logs.directories):
            # They may well be on the disk that is away: new, empty logs would give their offsets out again.
            for state in missing:
                log.error("{t}-{i} is offline, since its data directory is offline", t=topic.name, i=state.index)
                self._add(topic, state, None, config)
        elif missing:
            made = await self.in_thread(self._make_logs, topic, missing, config)
            for state, stored in zip(missing, made, strict=True):
                self._add(topic, state, stored, config)
            self._drop_gone(topic.name)  # it may have been deleted meanwhile

    def _awaits(self, state: PartitionState) -> bool:
        """Whether only a data directory of this broker, which is not there, has a partition's records: a new, empty log
        would give their offsets out again.
        """
        return bool(state.lost) and state.last_known_leader == self._node_id

    def _forget(self, partition: Partition) -> None:
        """The records of a partition without a log here have been given up: it gets a new log."""
        self.awaited.discard(partition.key)
        self._drop(partition, None)
        self._condemned[partition.topic].remove((partition.key, None))

    def _make_logs(self, topic: Topic, states: Sequence[PartitionState], config: HostedConfig) -> list[Log | None]:
        # Runs in a thread.
        made: list[Log | None] = []
        for state in states:
            try:
                made.append(self._logs.create(topic.name, state.index, topic.topic_id, config.log))
            except StorageError as error:
                log.error("Could not create the log of {t}-{i}: {error}", t=topic.name, i=state.index, error=error)
                made.append(None)
        return made

    def _add(self, topic: Topic, state: PartitionState, stored: Log | None, config: HostedConfig) -> None:
        key = topic.name, state.index
        partition = Partition(
            topic.name, topic.topic_id, state.index, stored, self._node_id, self._storage_failed,
            self._logs.high_watermarks.pop(key, 0),
        )  # fmt: skip
        self._hosted.setdefault(topic.name, {})[state.index] = partition
        if stored is not None:
            self._flushers[partition.key] = PartitionFlusher(
                partition, config.log, self._clock, self._in_flush_thread, self.became_visible, self._flush_failed
            )
        self.partitions[partition.key] = partition
        self.partitions_by_id[topic.topic_id, state.index] = partition
        self._refresh(partition, state, config)

    def _refresh(self, partition: Partition, state: PartitionState, config: HostedConfig | None) -> None:
        """Follow the partition's state in the metadata; `config` where that is another one."""
        if config is not None:
            partition.configure(config.min_insync_replicas)
            if partition.online:
                partition.log.config = config.log
                self._flushers[partition.key].configure(config.log)
        if partition.state is state:
            return
        if partition in self._cutting:  # its log is not what it will be in a moment
            self._cutting[partition] = state
            return
        self._replicate(partition, len(state.replicas) > 1)
        if partition.apply(state, self._clock.seconds()):
            self._tell(partition)
        else:
            self.became_visible(partition)

    def _replicate(self, partition: Partition, replicated: bool) -> None:
        """Other brokers have replicas of the partition too, or none has."""
        key = partition.key
        if replicated:
            self.replicated[key] = partition
            self.fetch_waits.add(self.isr, key)
            self.isr.watch()
            self._watermarks.watch()
        elif self.replicated.pop(key, None) is not None:
            self.fetch_waits.remove(self.isr, key)

    def _isr_written(self, partition: Partition, state: PartitionState | None) -> None:
        """The in-sync set has been written; or, without a `state`, a change of it was taken back."""
        if state is not None and self.partitions.get(partition.key) is partition:
            self._refresh(partition, state, None)
        self.became_visible(partition)

    # -- flushing

    def _in_flush_thread(self, function: Callable[..., Any]) -> Deferred[Any]:
        """At most half of the threads wait for syncs: the others are for reads."""
        return self._flush_slots.run(self.in_thread, function)

    def _flush_failed(self, partition: Partition, failure: Failure) -> bool:
        """Whether there is to be no second try."""
        error = failure.value
        if isinstance(error, LogClosed):
            return True
        if isinstance(error, StorageError):
            return self._storage_failed(error)
        log.failure("Could not flush {topic}-{index}", failure, topic=partition.topic, index=partition.index)
        return True

    def _config(self, topic: Topic) -> HostedConfig:
        try:
            return hosted_config(self._settings, topic.configs)
        except ConfigError as error:
            log.error("Topic {name} has invalid settings; using the broker's: {error}", name=topic.name, error=error)
            return hosted_config(self._settings, {})

    def _apply_configs(self) -> None:
        for name, hosted in self._hosted.items():
            topic = self._topics.get(name)
            if topic is not None:
                config = self._configs[name] = self._config(topic)
                for partition in hosted.values():
                    assert partition.state is not None
                    self._refresh(partition, partition.state, config)
