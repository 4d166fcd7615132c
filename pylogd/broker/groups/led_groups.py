"""The groups that this broker coordinates: load, find and write them.

Strategy: a group is coordinated by the leader of the partition of the offsets topic that stores it. When this broker
becomes the leader of such a partition it loads the groups in it; when it loses the leadership it unloads them. All
groups are in one dict, so a heartbeat finds its group by one look-up. Only if the group is missing, its coordinator is
determined.

The committed offsets of a group are in the ClassicGroup with its id, even if its members are in a ConsumerGroup.
Must not know: requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.errors import ErrorCode, PylogdError
from pylogd.base.limits.bounds import Bound
from pylogd.base.limits.names import MAX_GROUP_ID
from pylogd.base.limits.shares import Share
from pylogd.broker.groups import transactions
from pylogd.broker.groups.consumer.group import ConsumerGroup
from pylogd.broker.groups.consumer.mixed import GoBack, MixedGroups, Takeover
from pylogd.broker.groups.consumer.records import Record
from pylogd.broker.groups.group import ClassicGroup
from pylogd.broker.groups.handover import HandoverMembership
from pylogd.broker.groups.loader import GroupLoader
from pylogd.broker.groups.migration import Downgrade, downgraded
from pylogd.broker.groups.offset_memory import OffsetMemory
from pylogd.broker.groups.offsets import DELETED_TOPIC, CurrentOffsets
from pylogd.broker.groups.records import (
    NO_TOPIC_ID,
    Committed,
    PartitionId,
    group_key,
    group_value,
    offset_key,
    offset_record,
)
from pylogd.broker.groups.shard import Shard
from pylogd.broker.groups.states import GroupState
from pylogd.broker.groups.sweeps import OffsetSweeps
from pylogd.broker.groups.topic import OFFSETS
from pylogd.broker.metadata.image import TopicChange
from pylogd.broker.metadata.service import Metadata
from pylogd.broker.replica.disk_calls import InThread
from pylogd.broker.replica.internal_topic import MOST_RECORDS, InternalTopic, KeyValue
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.service import Replicas
from pylogd.broker.replica.waiting import shield
from pylogd.config import Settings
from pylogd.store.paths import OFFSETS_TOPIC

log = Logger()

T = TypeVar("T")

_NONE = ErrorCode.NONE
#: How long a load waits before it checks again whether enough replicas are in sync.
_RETRY_SECONDS: Final = 0.2


class LedGroups:
    """All groups that this broker coordinates. Methods return their answer, or a Deferred if they have to wait."""

    def __init__(
        self,
        replicas: Replicas,
        metadata: Metadata,
        settings: Settings,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        in_thread: InThread | None = None,
    ) -> None:
        """clock: times members and sweeps.

        now_ms: the wall clock, for time stamps and the age of offsets.
        in_thread: makes large changes of groups; None to make them at once.
        """
        self._partitions, self._disk_calls = replicas.partitions, replicas.disk_calls
        self._topics = topics = metadata.topics
        self._settings = settings
        self._clock = clock
        self._now_ms = now_ms
        self._topic = InternalTopic(OFFSETS, replicas, topics, metadata.topic_admin, settings, now_ms)
        self._shards: dict[int, Shard] = {}
        self._groups: dict[str, ClassicGroup] = {}
        self._membership = HandoverMembership(
            clock, now_ms, self._store, self._forget,
            first_delay=lambda: settings.integer("group.initial.rebalance.delay.ms") / 1000,
            most_members=lambda: settings.integer("group.max.size"),
            is_newer=lambda group_id: group_id in self._consumers,
        )  # fmt: skip
        self._undo, self._bound = list[Callable[[], object]](), _bound(settings)
        most_bytes = partial(settings.integer, "group.offsets.max.bytes")
        self._offset_memory = OffsetMemory(most_bytes, self._bound, self._groups.values, clock.seconds)
        self._consumers = MixedGroups(
            clock,
            now_ms,
            self._append_for,
            topics.get,
            topics.by_id,
            settings,
            self._downgrade,
            metadata.group_configs.integer,
            self._all_committed,
            in_thread,
        )
        self._sweeps = OffsetSweeps(clock, now_ms, settings, topics, self._sweepable, self._drop_offsets, self._delete)
        self._running = False

    # -- starting and stopping

    def start(self) -> None:
        """Begin to follow the leadership of the offsets topic. Call it before the replica manager starts."""
        self._running = True
        leadership = self._partitions.on_leadership(self._leadership)
        self._undo = [leadership, self._topics.subscribe(self._topic_changed)]
        self._sweeps.start()

    def stop(self) -> None:
        """Unload every group. Waiting requests are answered NOT_COORDINATOR."""
        self._running = False
        for undo in self._undo:
            undo()
        self._undo = []
        self._sweeps.stop()
        self._shards = {}
        self._consumers.unload(lambda group_id: True)
        for group in list(self._groups.values()):
            self._membership.unload(group, ErrorCode.NOT_COORDINATOR)

    @property
    def now_ms(self) -> int:
        """The wall clock in milliseconds since 1970."""
        return self._now_ms()

    def _topic_changed(self, change: TopicChange) -> None:
        self._consumers.topics_changed()
        if change.after is None and self._groups:
            self._sweeps.sweep_outdated()

    def _sweepable(self) -> list[tuple[ClassicGroup, ConsumerGroup | None]]:
        for shard in self._shards.values():
            shard.apply_committed()
        return [(group, self._consumers.get(group.group_id)) for group in self._groups.values()]

    # -- gaining and losing partitions

    def _leadership(self, partition: Partition, leads: bool) -> None:
        if partition.topic != OFFSETS_TOPIC:
            return
        before = self._shards.pop(partition.index, None)
        if before is not None:
            self._unload(partition.index)
        if leads:
            shard = self._shards[partition.index] = Shard(partition)
            self._load(shard)

    def _unload(self, index: int) -> None:
        self._consumers.unload(lambda group_id: self._topic.index_of(group_id) == index)
        for group in [group for group in self._groups.values() if group.partition_index == index]:
            self._membership.unload(group, ErrorCode.NOT_COORDINATOR)

    def _load(self, shard: Shard) -> None:
        try:
            slice_bytes = self._settings.integer("offsets.load.buffer.size")
            loader = GroupLoader(shard.partition, slice_bytes, self.now_ms, self._topic_id)
        except PylogdError as error:
            self._load_failed(Failure(error), shard)
            return
        if loader.empty:
            shard.loading = False
            return

        done = Deferred.fromCoroutine(self._read(shard, loader))
        done.addCallback(self._loaded, shard, loader).addErrback(self._load_failed, shard)

    async def _read(self, shard: Shard, loader: GroupLoader) -> dict[str, ClassicGroup] | None:
        """Return the stored groups, once all their records are committed; None if the partition is no longer led then.

        Records that a former leader could not get committed may still be lost, so no client may see them before.
        """
        partition = shard.partition

        def wanted() -> bool:
            return self._shards.get(partition.index) is shard

        groups = await loader.run(partial(self._disk_calls.at, partition.log.directory), wanted)
        while wanted() and partition.high_watermark < loader.end:
            outcome = self._topic.committed(partition, loader.end - 1)
            failed = await outcome if isinstance(outcome, Deferred) else outcome
            if failed or partition.high_watermark < loader.end:  # do not try again in the same turn
                pause: Deferred[None] = Deferred()
                self._clock.callLater(_RETRY_SECONDS, pause.callback, None)
                await pause
        return groups if wanted() else None

    def _loaded(self, groups: dict[str, ClassicGroup] | None, shard: Shard, loader: GroupLoader) -> None:
        if groups is None:
            return
        shard.loading = False
        self._groups.update(groups)
        for consumers in loader.consumers:
            if consumers.group_id not in groups:
                self._new(consumers.group_id)
        self._consumers.load(loader.consumers)
        for group in groups.values():
            self._membership.loaded(group)
            shard.note_open(group)
        for marker in shard.markers:
            self._close_transaction(shard, *marker)
        self._sweeps.sweep_outdated()  # topics may have been deleted while no broker coordinated the groups
        self._sweeps.store_again(loader.bound, self._store_ids)
        count = len(groups.keys() | {group.group_id for group in loader.consumers})
        log.info(
            "{topic}-{index}: loaded {groups} groups from {records} records",
            topic=OFFSETS_TOPIC, index=shard.partition.index, groups=count, records=loader.records,
        )  # fmt: skip

    def _topic_id(self, name: str) -> bytes:
        """Return the id of the topic with a name, for offsets of a release without ids. Any thread may call it."""
        topic = self._topics.get(name)
        if topic is not None:
            return topic.topic_id
        return NO_TOPIC_ID if name in self._topics.unreadable else DELETED_TOPIC

    def _load_failed(self, failure: Failure, shard: Shard) -> None:
        index = shard.partition.index
        if self._shards.get(index) is shard:
            del self._shards[index]
        log.failure(
            "Could not load the groups in {topic}-{index}: they have no coordinator until the partition gets another "
            "leader or this broker restarts",
            failure, topic=OFFSETS_TOPIC, index=index,
        )  # fmt: skip

    def _forget(self, group: ClassicGroup) -> None:
        if self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]
            self._bound.gone(group.group_id)

    def _discard(self, group_id: str) -> None:
        """Forget a group that was made needlessly. Nothing of it is stored, and no request waits."""
        if self._groups.pop(group_id, None) is not None:
            self._bound.gone(group_id)

    def coordinator_of(self, group_id: str) -> int | ErrorCode | Deferred[int | ErrorCode]:
        """Return the node id of a group's coordinator, or an error code. Creates the offsets topic if it is missing."""
        if len(group_id) > MAX_GROUP_ID:
            return ErrorCode.INVALID_GROUP_ID
        return self._topic.coordinator_of(group_id)

    def offsets_partition(self, group_id: str) -> PartitionId | None:
        """Return the topic and partition that store a group; None while the offsets topic does not exist."""
        return None if self._topic.get() is None else (OFFSETS_TOPIC, self._topic.index_of(group_id))

    # -- finding groups

    def _error_for(self, group_id: str, *, named: bool = True) -> ErrorCode:
        """Return NONE if this broker coordinates the group, even if the group does not exist; otherwise the error code.

        named: whether an empty group id is an error.
        """
        if (named and not group_id) or len(group_id) > MAX_GROUP_ID:
            return ErrorCode.INVALID_GROUP_ID
        if not self._running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        shard = self._shards.get(self._topic.index_of(group_id))
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if shard.loading else _NONE

    def _new(self, group_id: str) -> ClassicGroup:
        group = self._groups[group_id] = ClassicGroup(group_id, self._topic.index_of(group_id), self.now_ms)
        return group

    def _found_or_new(self, group_id: str, share: Share) -> ClassicGroup | None:
        """Return a group; a client with this share makes it if it does not exist. Return None if there are too many."""
        group = self._groups.get(group_id)
        if group is None and self._bound.admits(group_id, share, len(self._groups)):
            group = self._new(group_id)
        elif group is None:
            self._sweeps.sweep_empty()
        return group

    # -- writing

    def _store(self, group: ClassicGroup, assignments: dict[str, bytes]) -> ErrorCode | Deferred[ErrorCode]:
        """Store a generation. Never fails, since the group waits for the answer."""

        def failed(failure: Failure) -> ErrorCode:
            log.failure("Unexpected error while storing group {group}", failure, group=group.group_id)
            return ErrorCode.UNKNOWN_SERVER_ERROR

        try:
            record = group_key(group.group_id), group_value(group.to_stored(assignments))
            stored = self._append(group, [record], lambda offset: setattr(group, "stored", True))
        except Exception:
            return failed(Failure())
        return stored.addErrback(failed) if isinstance(stored, Deferred) else stored

    def _store_ids(self, group: ClassicGroup) -> None:
        """Write a group's offsets again, with the ids of their topics.

        Offsets that a transaction may change are not written, since the new records would count instead.
        """
        unstable = set(transactions.pending(group.transactions))
        stable = [partition for partition in self._offsets_of(group) if partition not in unstable]
        for some in _chunks(stable):
            offsets = [(partition, group.offsets[partition]) for partition in some]
            records = [offset_record(group.group_id, *offset) for offset in offsets]
            self._append(group, records, partial(self._commit, group.group_id, offsets))

    def _commit(self, group_id: str, offsets: Sequence[tuple[PartitionId, Committed]], offset: int) -> None:
        """Note offsets whose records are committed, and begin at `offset` of the log."""
        group = self._groups.get(group_id) or self._new(group_id)  # a group that was deleted meanwhile begins anew
        transactions.commit(group.transactions, group.offsets, offsets, offset)

    def _append_for(
        self, group_id: str, records: Sequence[KeyValue], appended: Callable[[], object]
    ) -> ErrorCode | Deferred[ErrorCode]:
        """Append records of a group; call `appended` once they are in the log."""
        shard = self._shards.get(self._topic.index_of(group_id))
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        result = self._topic.append(shard.partition, records, lambda offset: appended())
        return shield(result) if isinstance(result, Deferred) else result

    def _append(
        self, group: ClassicGroup, records: Sequence[KeyValue], apply: Callable[[int], object]
    ) -> ErrorCode | Deferred[ErrorCode]:
        """Append records of a group, and call `apply` once they are committed, unless the partition is lost by then.

        `apply` gets the offset of the first record. The calls come in the order of the log. If the records were not
        committed in time, `apply` is called after an error was returned.
        """
        shard = self._shards.get(group.partition_index)
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        leading = shard

        def in_log(offset: int) -> None:
            leading.apply_later(offset + len(records), partial(committed, offset))

        def committed(offset: int) -> None:
            group.uncommitted -= 1
            if self._shards.get(group.partition_index) is leading:
                apply(offset)

        def outcome(result: T) -> T:
            leading.apply_committed()
            return result

        result = self._write(group, shard, records, in_log)
        return shield(result.addBoth(outcome)) if isinstance(result, Deferred) else outcome(result)

    def _write(
        self,
        group: ClassicGroup,
        shard: Shard,
        records: Sequence[KeyValue],
        in_log: Callable[[int], object],
        **fields: Any,
    ) -> ErrorCode | Deferred[ErrorCode]:
        """Append records of a group with these fields of a batch; call `in_log` with the offset of the first one.

        The group counts them as uncommitted. If they get into the log, the caller ends that.
        """
        logged = False
        group.uncommitted += 1

        def note(offset: int) -> None:
            nonlocal logged
            logged = True
            in_log(offset)

        def outcome(result: T) -> T:
            if not logged:
                group.uncommitted -= 1
            return result

        try:
            result = self._topic.append(shard.partition, records, note, **fields)
        except BaseException:
            outcome(None)
            raise
        return result.addBoth(outcome) if isinstance(result, Deferred) else outcome(result)

    def _all_committed(self, group_id: str) -> ErrorCode | Deferred[ErrorCode]:
        """Return NONE once everything in the log of the partition that stores a group is committed."""
        shard = self._shards.get(self._topic.index_of(group_id))
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        result = self._topic.committed(shard.partition, shard.partition.log.log_end_offset - 1)
        return shield(result) if isinstance(result, Deferred) else result

    def committed(self, group_id: str) -> Mapping[PartitionId, Committed]:
        """Return the committed offsets of a group that is coordinated here, by partition."""
        group = self._groups.get(group_id)
        return {} if group is None else self._offsets_of(group)

    def _offsets_of(self, group: ClassicGroup) -> CurrentOffsets:
        """Return the committed offsets of a group, including offsets whose commit was answered too early."""
        self._shards[group.partition_index].apply_committed()
        return CurrentOffsets(group.offsets, self._topics.was_deleted)

    def _all_partitions_of(self, group: ClassicGroup) -> set[PartitionId]:
        """Return the partitions in which a group has anything to delete."""
        self._shards[group.partition_index].apply_committed()
        return transactions.all_partitions(group.offsets, group.transactions)

    # -- moving groups between the protocols

    def _takeover(self, group: ClassicGroup, records: Sequence[Record]) -> Takeover:
        """Return the conversion of a classic group into a group of the newer protocol, which these records describe."""

        def end(moved: bool) -> None:
            if moved:
                if group.members:
                    log.info("Group {group} has moved to the newer protocol with its members", group=group.group_id)
                self._membership.release(group)
            elif group.state is not GroupState.DEAD:
                self._membership.resume(group)

        begin = partial(self._membership.pause, group)
        return Takeover(records, [(group_key(group.group_id), None)], begin, end)

    def _downgrade(self, consumers: ConsumerGroup, without: Collection[str], replaced: bool) -> GoBack | None:
        found = downgraded(consumers, without, self._settings, self._topics.by_id, self.now_ms, replaced=replaced)
        return None if found is None else GoBack(found.records, partial(self._back, consumers.group_id, found))

    def _back(self, group_id: str, found: Downgrade) -> None:
        log.info("Group {group} has moved back to the classic protocol with its members", group=group_id)
        self._membership.take_back(self._groups.get(group_id) or self._new(group_id), found)

    # -- deleting

    def _drop_offsets(self, group: ClassicGroup, partitions: Sequence[PartitionId]) -> ErrorCode | Deferred[ErrorCode]:
        result: ErrorCode | Deferred[ErrorCode] = _NONE
        for some in _chunks(partitions):
            records: list[KeyValue] = [(offset_key(group.group_id, *partition), None) for partition in some]
            result = self._append(group, records, partial(self._dropped, group, some))
        return result

    @staticmethod
    def _dropped(group: ClassicGroup, partitions: Sequence[PartitionId], offset: int) -> None:
        transactions.drop(group.transactions, group.offsets, partitions, offset)

    def _delete(self, group: ClassicGroup) -> ErrorCode | Deferred[ErrorCode]:
        if self._consumers.get(group.group_id) is not None:
            error = self._consumers.delete(group.group_id)
            if isinstance(error, ErrorCode) and error:
                return error
        self._drop_offsets(group, list(self._all_partitions_of(group)))  # if this fails, the next append fails too
        return self._append(group, [(group_key(group.group_id), None)], partial(self._deleted, group))

    def _deleted(self, group: ClassicGroup, offset: int) -> None:
        group.stored = False
        if group.state is GroupState.EMPTY and not group.has_offsets:  # no member or offset has been added meanwhile
            self._membership.unload(group, ErrorCode.GROUP_ID_NOT_FOUND)

    def _close_transaction(self, shard: Shard, producer_id: int, offset: int, committed: bool) -> None:
        """Note a marker that is in the log. The transaction ends once the marker is committed."""
        keys: dict[str, int] = {}
        for group_id in shard.transactions.pop(producer_id, ()):
            group = self._groups.get(group_id)
            if group is not None:
                keys[group_id] = transactions.close(group.transactions, producer_id, offset)
        if keys:
            shard.apply_later(offset + 1, partial(self._end_transaction, keys, committed))
            shard.apply_committed()

    def _end_transaction(self, keys: Mapping[str, int], committed: bool) -> None:
        for group_id, key in keys.items():
            group = self._groups.get(group_id)
            if group is not None:
                transactions.end(group.transactions, group.offsets, key, committed=committed)


def _bound(settings: Settings) -> Bound:
    most_of_one = partial(settings.integer, "groups.max.per.principal")
    return Bound("group", "groups.max", partial(settings.integer, "groups.max"), most_of_one)


def _chunks(partitions: Sequence[PartitionId]) -> Iterable[Sequence[PartitionId]]:
    return (partitions[at : at + MOST_RECORDS] for at in range(0, len(partitions), MOST_RECORDS))
