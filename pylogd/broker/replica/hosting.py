"""Host the partitions that the topic registry assigns to this broker.

Strategy: `topic_changed` hosts and removes a topic's partitions according to the topic registry. Changes of one topic
are made one after the other, those of different topics concurrently; threads create and delete files.

Rules:
- Everything here runs on the reactor's thread; only calls into the log that may wait for a disk go to a thread.
- A partition is in the look-ups once its log is open, and out of them before its log is deleted. Operations that wait
  on the partition are woken then, and find its role to be Deleted.
- A log is deleted only because its topic was deleted, or its replica moved, while this broker followed the metadata. A
  log that the metadata does not know after all topics were read again (at a start, in a new session) is kept aside; see
  `strays`.

Must not know: requests, error codes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, DeferredLock, gatherResults, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.broker.log.errors import StorageError, StorageFailure
from pylogd.broker.metadata.image import PartitionState, Topic, TopicChange
from pylogd.broker.replica.configs import HostedConfig, hosted_config
from pylogd.broker.replica.disk_calls import DiskCalls
from pylogd.broker.replica.manager import ReplicaManager
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.roles import RoleEvent
from pylogd.broker.replica.strays import StrayLogs
from pylogd.config import ConfigError, Settings

if TYPE_CHECKING:
    from pylogd.broker.log.log import Log
    from pylogd.broker.log.manager import LogManager
    from pylogd.broker.metadata.topics import TopicRegistry
    from pylogd.broker.replica.flushing import Flushers
    from pylogd.broker.replica.high_watermark_checkpoint import HighWatermarkCheckpoint
    from pylogd.broker.replica.isr_updater import IsrUpdater
    from pylogd.broker.replica.partition_registry import PartitionRegistry
    from pylogd.broker.replica.storage_failures import StorageFailures

log = Logger()

#: The most new partitions that are hosted in one turn of the reactor; this takes some milliseconds.
_AT_ONCE = 500


class PartitionHosting:
    """Adds, changes and removes this broker's partitions as the metadata says."""

    def __init__(
        self,
        logs: LogManager,
        topics: TopicRegistry,
        settings: Settings,
        node_id: int,
        disk_calls: DiskCalls,
        *,
        registry: PartitionRegistry,
        replicas: ReplicaManager,
        isr_updater: IsrUpdater,
        flushers: Flushers,
        failures: StorageFailures,
        watermarks: HighWatermarkCheckpoint,
        configs: dict[str, HostedConfig],
    ) -> None:
        """Keep `registry` and `configs` up to date. `configs` has the settings of hosted topics, by name."""
        self._logs = logs
        self._topics = topics
        self._settings = settings
        self._node_id = node_id
        self._disk_calls = disk_calls
        self._registry = registry
        self._replicas = replicas
        self._isr_updater = isr_updater
        self._flushers = flushers
        self._storage_failed = failures.report  # one object for all partitions
        self._watermarks = watermarks
        self._configs = configs
        self._strays = StrayLogs(logs, topics, node_id, disk_calls)
        #: The logs to remove, by topic, each with a reason. A log without a reason is deleted, others are kept aside as
        #: strays.
        self._to_remove: dict[str, list[tuple[tuple[str, int], str | None]]] = {}
        self._locks: dict[str, DeferredLock] = {}
        #: The topics as they were hosted last; None while a topic is being hosted. A topic is missing if one of its
        #: partitions was removed since: then all its partitions have to be looked at.
        self._hosted: dict[str, Topic | None] = {}
        self._unsubscribe: list[Callable[[], object]] = []
        self._starting = False
        replicas.on_truncated = self._truncated

    # -- start and stop

    async def start(self) -> None:
        """Host the partitions in the topic registry, and keep logs aside that the registry does not know.

        The logs must be loaded and the registry started. Returns when every partition is hosted.
        """
        self._unsubscribe = [
            self._topics.subscribe(self._registry_changed),
            self._settings.subscribe(lambda names: self._apply_configs() if names else None),
        ]
        self._starting = True
        self._remove_strays(await self._strays.find())
        for name in dict.fromkeys([*self._to_remove, *(topic.name for topic in self._topics.all())]):
            await self._settle(name)
        self._starting = False

    def unsubscribe(self) -> None:
        """Stop following changes of the metadata and of settings."""
        for undo in self._unsubscribe:
            undo()
        self._unsubscribe = []

    async def settle_all(self) -> None:
        """Wait until the changes of all topics that are under way are done."""
        for name in list(self._locks):
            await self.settled(name)

    # -- changes of topics

    def topic_changed(self, change: TopicChange) -> Deferred[None]:
        """Host a topic's partitions according to the topic registry. Fires when that is done."""
        topic = change.after or change.before
        assert topic is not None
        if change.found_out:
            self._drop_removed(topic.name, "it was missing when all topics were read again in a new session")
        if change.after is None or any(self._node_id not in state.replicas for state in change.states):
            self._drop_removed(topic.name)
        return Deferred.fromCoroutine(self._settle(topic.name))

    def settled(self, name: str) -> Deferred[None]:
        """Return a Deferred that fires when the changes of a topic that are known now are done."""
        lock = self._locks.get(name)
        return succeed(None) if lock is None else lock.run(lambda: None)

    def _registry_changed(self, change: TopicChange) -> None:
        self.topic_changed(change).addErrback(self._change_failed, change)

    def _change_failed(self, failure: Failure, change: TopicChange) -> None:
        topic = change.after or change.before
        log.failure("Could not apply a change of topic {name}", failure, name=topic and topic.name)

    async def _settle(self, name: str) -> None:
        lock = self._locks.setdefault(name, DeferredLock())
        await lock.acquire()
        try:
            for key, reason in self._to_remove.pop(name, ()):
                await (self._delete_log(key) if reason is None else self._strays.keep_aside(key, reason))
            topic = self._topics.get(name)
            if topic is not None:
                await self._host(topic)
            elif not self._registry.of_topic(name):
                self._hosted.pop(name, None)
                self._configs.pop(name, None)
        finally:
            lock.release()
            if not lock.locked:
                self._locks.pop(name, None)

    # -- partitions that are no longer here

    def _remove_strays(self, strays: Sequence[tuple[tuple[str, int], str]]) -> None:
        for key, reason in strays:
            self._to_remove.setdefault(key[0], []).append((key, reason))

    def _drop_removed(self, name: str, stray_reason: str | None = None) -> None:
        """Stop hosting the partitions of a topic that the topic registry does not have on this broker.

        Their logs are deleted later, or kept aside if there is a `stray_reason`.
        """
        topic = self._topics.get(name)
        for partition in list(self._registry.of_topic(name).values()):
            if topic is None or topic.topic_id != partition.topic_id or not self._is_ours(topic, partition.index):
                self._drop(partition, stray_reason)

    def _is_ours(self, topic: Topic, index: int) -> bool:
        return index < len(topic.partitions) and self._node_id in topic.partitions[index].replicas

    def _drop(self, partition: Partition, stray_reason: str | None) -> None:
        self._to_remove.setdefault(partition.topic, []).append((partition.key, stray_reason))
        self._unhost(partition)

    def _unhost(self, partition: Partition) -> None:
        """Stop serving the partition; its log stays."""
        self._set_replicated(partition, False)
        self._registry.remove(partition)
        self._hosted.pop(partition.topic, None)
        if not self._registry.of_topic(partition.topic):
            self._configs.pop(partition.topic, None)
        self._flushers.remove(partition)
        partition.change_role(RoleEvent.REMOVE)
        self._announce(partition)

    async def _delete_log(self, key: tuple[str, int]) -> None:
        try:
            await self._disk_calls.at(self._logs.path_of(key), self._logs.delete, *key)
        except StorageError as error:
            log.error("Could not delete the log of {topic}-{index}: {error}", topic=key[0], index=key[1], error=error)

    # -- partitions that are to be here

    async def _host(self, topic: Topic) -> None:
        config = self._config(topic)
        changed_config = config if self._configs.get(topic.name) != config else None
        before = self._hosted.get(topic.name) if changed_config is None else None
        self._hosted[topic.name] = None
        self._configs[topic.name] = config
        hosted = self._registry.of_topic(topic.name)
        missing = []
        for state in TopicChange(before, topic).states:
            partition, stored = hosted.get(state.index), None
            if partition is None:
                stored = self._logs.logs.get((topic.name, state.index))
                reason = None if stored is None else self._strays.reason(stored, topic)
                if reason is not None:
                    await self._strays.keep_aside((topic.name, state.index), reason)
                    stored = None
            if self._node_id not in state.replicas:
                continue
            if partition is not None and self._is_given_up(partition, state):
                self._forget(partition)
                self._configs[topic.name] = config
                partition, stored = None, self._logs.logs.get((topic.name, state.index))
            if partition is not None:
                self.refresh(partition, state, changed_config)
            elif stored is None:
                missing.append(state)
            else:
                self._add(topic, state, stored, config)
        await self._host_missing(topic, missing, config)
        if topic.name in self._hosted:
            self._hosted[topic.name] = topic

    async def _host_missing(self, topic: Topic, missing: Sequence[PartitionState], config: HostedConfig) -> None:
        """Host partitions that have no log here: offline, or with a new log."""
        awaiting = [state for state in missing if self._awaits_directory(state)]
        for state in awaiting:
            self._registry.awaiting_directory.add((topic.name, state.index))
            self._add(topic, state, None, config)
        missing = [state for state in missing if not self._awaits_directory(state)]
        if missing and self._starting and len(self._logs.healthy) < len(self._logs.directories):
            # Their logs may be in the offline directory. New, empty logs would assign the offsets of existing records
            # again.
            for state in missing:
                log.error("{t}-{i} is offline, since its data directory is offline", t=topic.name, i=state.index)
                self._add(topic, state, None, config)
        elif missing:
            for start in range(0, len(missing), _AT_ONCE):
                some = missing[start : start + _AT_ONCE]
                await self._host_new(topic, some, config)
            self._drop_removed(topic.name)  # the topic may have been deleted meanwhile

    async def _host_new(self, topic: Topic, states: Sequence[PartitionState], config: HostedConfig) -> None:
        """Host partitions with new logs. If disks have their own threads, each disk is handled separately."""
        chosen: Sequence[str | None] = [None] * len(states)
        if self._disk_calls.separate:
            chosen = self._logs.choose_directories(len(states))
        by_directory: dict[str | None, list[PartitionState]] = {}
        for state, directory in zip(states, chosen, strict=True):
            by_directory.setdefault(directory, []).append(state)
        await gatherResults(
            Deferred.fromCoroutine(self._host_in(one, topic, some, config)) for one, some in by_directory.items()
        )

    async def _host_in(
        self, directory: str | None, topic: Topic, states: Sequence[PartitionState], config: HostedConfig
    ) -> None:
        try:
            made = await self._disk_calls.at(directory, self._make_logs, topic, states, config, directory)
        except StorageError as error:
            log.error("Could not create logs of {topic}: {error}", topic=topic.name, error=error)
            made = [None] * len(states)
        for state, stored in zip(states, made, strict=True):
            self._add(topic, state, stored, config)

    def _awaits_directory(self, state: PartitionState) -> bool:
        """Return whether the partition's records are only in a directory of this broker that is missing.

        A new, empty log would assign the offsets of these records again.
        """
        return bool(state.lost) and state.last_known_leader == self._node_id

    def _is_given_up(self, partition: Partition, state: PartitionState) -> bool:
        """Return whether the records in a missing directory were given up, so that a new log may be made."""
        return partition.key in self._registry.awaiting_directory and not self._awaits_directory(state)

    def _forget(self, partition: Partition) -> None:
        """Stop hosting a partition without a log, so that it gets a new one."""
        self._registry.awaiting_directory.discard(partition.key)
        self._drop(partition, None)
        self._to_remove[partition.topic].remove((partition.key, None))

    def _make_logs(
        self, topic: Topic, states: Sequence[PartitionState], config: HostedConfig, directory: str | None
    ) -> list[Log | None]:
        # Runs in a thread.
        indexes = [state.index for state in states]
        made: list[Log | None] = []
        for index, one in zip(
            indexes, self._logs.create_all(topic.name, indexes, topic.topic_id, config.log, directory), strict=True
        ):
            if isinstance(one, StorageError):
                log.error("Could not create the log of {t}-{i}: {error}", t=topic.name, i=index, error=one)
                made.append(None)
            else:
                made.append(one)
        return made

    def _add(self, topic: Topic, state: PartitionState, stored: Log | None, config: HostedConfig) -> None:
        key = topic.name, state.index
        partition = Partition(
            topic.name, topic.topic_id, state.index, stored, self._node_id, self._storage_failed,
            self._logs.high_watermarks.pop(key, 0),
        )  # fmt: skip
        partition.min_insync_replicas = config.min_insync_replicas
        if stored is not None:
            if stored.config is not config.log and stored.config != config.log:
                stored.config = config.log
            self._flushers.add(partition, config.log)
        self._registry.add(partition)
        self.refresh(partition, state)

    # -- changes of hosted partitions

    def refresh(self, partition: Partition, state: PartitionState, config: HostedConfig | None = None) -> None:
        """Apply the partition's state in the metadata, and `config` if the settings have changed."""
        if config is not None:
            partition.configure(config.min_insync_replicas)
            if partition.online and partition.log.config is not config.log and partition.log.config != config.log:
                partition.log.config = config.log
                self._flushers.configure(partition, config.log)
        if partition.state is state or self._replicas.defer_state(partition, state):
            if config is not None:  # a new min.insync.replicas may commit more, or refuse waiting appends
                self._replicas.became_visible(partition)
            return
        self._set_replicated(partition, len(state.replicas) > 1)
        if partition.apply(state, self._replicas.seconds()):
            self._announce(partition)
        else:
            self._replicas.became_visible(partition)

    def isr_written(self, partition: Partition, state: PartitionState | None) -> None:
        """Apply a state with a new in-sync set that was written; None means that a proposed set was withdrawn."""
        if state is not None and self._registry.by_name.get(partition.key) is partition:
            self.refresh(partition, state)
        self._replicas.became_visible(partition)

    def _truncated(self, partition: Partition, state: PartitionState | None) -> None:
        if state is not None and self._registry.by_name.get(partition.key) is partition:
            self.refresh(partition, state)
        else:
            self._replicas.became_visible(partition)

    def _announce(self, partition: Partition) -> None:
        self._replicas.became_visible(partition)
        self._registry.announce(partition)

    def _set_replicated(self, partition: Partition, replicated: bool) -> None:
        """Note whether other brokers also have replicas of the partition."""
        key, isr = partition.key, self._isr_updater
        if replicated:
            self._registry.replicated[key] = partition
            self._replicas.fetch_waits.add(isr, key)
            self._watermarks.watch()
        elif self._registry.replicated.pop(key, None) is not None:
            self._replicas.fetch_waits.remove(isr, key)

    def _config(self, topic: Topic) -> HostedConfig:
        try:
            config = hosted_config(self._settings, topic.configs)
            # The object that logs are opened with: an equal copy would be compared field by field for each log.
            return config._replace(log=self._logs.config) if config.log == self._logs.config else config
        except ConfigError as error:
            log.error("Topic {name} has invalid settings; using the broker's: {error}", name=topic.name, error=error)
            return hosted_config(self._settings, {})

    def _apply_configs(self) -> None:
        for name in self._registry.topics():
            topic = self._topics.get(name)
            if topic is not None:
                config = self._configs[name] = self._config(topic)
                for partition in self._registry.of_topic(name).values():
                    assert partition.state is not None
                    self.refresh(partition, partition.state, config)

    # -- log directories

    def went_offline(self, keys: Sequence[tuple[str, int]]) -> None:
        """Take partitions offline whose log directory has failed. Operations that wait on them are answered."""
        for key in keys:
            partition = self._registry.by_name.get(key)
            if partition is not None and partition.online:
                self._flushers.remove(partition)
                partition.go_offline()
                self._announce(partition)

    def reopen(self, path: str) -> Deferred[None]:
        """Use a log directory again that was offline or full. Fires when its partitions are hosted again.

        Fails with the errors of `LogManager.reopen`.
        """
        return Deferred.fromCoroutine(self._reopen(path))

    async def _reopen(self, path: str) -> None:
        path = os.path.abspath(path)
        stuck = self._disk_calls.stuck(path)
        if stuck:  # they could write into files that others use by then
            why = f"{stuck} calls to it have not returned yet: its disk still hangs"
            raise StorageFailure(path, OSError(errno.EBUSY, why))
        self._disk_calls.reopened(path)
        own = path if any(entry.path == path for entry in self._logs.directories) else None
        keys = await self._disk_calls.at(own, self._logs.reopen, path)
        for key in keys:
            partition = self._registry.by_name.get(key)
            if partition is not None:
                self._unhost(partition)
            stored = self._logs.logs.get(key)
            reason = None if stored is None else self._strays.reason(stored, self._topics.get(key[0]))
            if reason is not None:
                self._remove_strays([(key, reason)])
        for name in dict.fromkeys(topic for topic, _ in keys):
            await self._settle(name)
