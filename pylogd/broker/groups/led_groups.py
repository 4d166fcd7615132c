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
from typing import Final, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.errors import ErrorCode, PylogdError
from pylogd.base.limits.bounds import Bound
from pylogd.base.limits.names import MAX_GROUP_ID
from pylogd.base.limits.shares import Share
from pylogd.broker.groups.consumer.group import ConsumerGroup
from pylogd.broker.groups.consumer.mixed import GoBack, MixedGroups, Takeover
from pylogd.broker.groups.consumer.records import Record
from pylogd.broker.groups.group import ClassicGroup
from pylogd.broker.groups.group_log import OFFSETS, GroupLog, Shard
from pylogd.broker.groups.handover import Handover
from pylogd.broker.groups.loader import GroupLoader
from pylogd.broker.groups.membership import Membership
from pylogd.broker.groups.migration import Downgrade, downgraded, needs_rebalance
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
from pylogd.broker.groups.states import GroupState
from pylogd.broker.groups.sweeps import OffsetSweeps
from pylogd.broker.groups.values import TransactionalCommit
from pylogd.broker.metadata.image import TopicChange
from pylogd.broker.metadata.service import Metadata
from pylogd.broker.replica.disk_calls import InThread
from pylogd.broker.replica.internal_topic import MOST_RECORDS, InternalTopic, KeyValue
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.service import Replicas
from pylogd.broker.replica.waiting import shield
from pylogd.config import Settings
from pylogd.store.paths import OFFSETS_TOPIC
from pylogd.wire.records import TRANSACTIONAL

log = Logger()

T = TypeVar("T")

_NONE = ErrorCode.NONE
#: How long a load waits before it checks again whether enough replicas are in sync.
_RETRY_SECONDS: Final = 0.2


class LedGroups:
    """The groups that this broker coordinates, in memory.

    groups: the classic groups, and the offsets of all groups, by group id.
    consumers: the groups of the newer protocol.
    membership: the rules of classic groups.
    handover: moves members from one protocol to the other.
    log: where groups are stored.
    bound: who has made the groups, and how many there may be.
    running: whether requests are answered.
    """

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
        self.log = GroupLog(InternalTopic(OFFSETS, replicas, topics, metadata.topic_admin, settings, now_ms))
        self.groups: dict[str, ClassicGroup] = {}
        self.membership = Membership(
            clock, now_ms, self._store, self._forget,
            first_delay=lambda: settings.integer("group.initial.rebalance.delay.ms") / 1000,
            most_members=lambda: settings.integer("group.max.size"),
            # Otherwise a refused commit, whoever sends it, would take the group from its members.
            is_kept=lambda group_id: group_id in self.consumers,
        )  # fmt: skip
        self.handover = Handover(self.membership, now_ms)
        self._undo, self.bound = list[Callable[[], object]](), _bound(settings)
        self.consumers = MixedGroups(
            clock, now_ms, self.log.append_for, topics.get, topics.by_id, settings, self._downgrade,
            metadata.group_configs.integer, self.log.all_committed, in_thread,
        )  # fmt: skip
        self._sweeps = OffsetSweeps(clock, now_ms, settings, topics, self._sweepable, self.drop_offsets, self.delete)
        self.running = False

    # -- starting and stopping

    def start(self) -> None:
        """Begin to follow the leadership of the offsets topic. Call it before the replica manager starts."""
        self.running = True
        leadership = self._partitions.on_leadership(self._leadership)
        self._undo = [leadership, self._topics.subscribe(self._topic_changed)]
        self._sweeps.start()

    def stop(self) -> None:
        """Unload every group. Waiting requests are answered NOT_COORDINATOR."""
        self.running = False
        for undo in self._undo:
            undo()
        self._undo = []
        self._sweeps.stop()
        self.log.shards.clear()
        self.consumers.unload(lambda group_id: True)
        for group in list(self.groups.values()):
            self.membership.unload(group, ErrorCode.NOT_COORDINATOR)

    def _topic_changed(self, change: TopicChange) -> None:
        self.consumers.topics_changed()
        if change.after is None and self.groups:
            self._sweeps.sweep_outdated()

    def _sweepable(self) -> list[tuple[ClassicGroup, ConsumerGroup | None]]:
        for shard in self.log.shards.values():
            shard.apply_committed()
        return [(group, self.consumers.get(group.group_id)) for group in self.groups.values()]

    # -- gaining and losing partitions

    def _leadership(self, partition: Partition, leads: bool) -> None:
        if partition.topic != OFFSETS_TOPIC:
            return
        before = self.log.shards.pop(partition.index, None)
        if before is not None:
            self._unload(partition.index)
        if leads:
            shard = self.log.shards[partition.index] = Shard(partition)
            self._load(shard)

    def _unload(self, index: int) -> None:
        self.consumers.unload(lambda group_id: self.log.topic.index_of(group_id) == index)
        for group in [group for group in self.groups.values() if group.partition_index == index]:
            self.membership.unload(group, ErrorCode.NOT_COORDINATOR)

    def _load(self, shard: Shard) -> None:
        try:
            slice_bytes = self._settings.integer("offsets.load.buffer.size")
            loader = GroupLoader(shard.partition, slice_bytes, self._now_ms(), self._topic_id)
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
            return self.log.leads(shard)

        groups = await loader.run(partial(self._disk_calls.at, partition.log.directory), wanted)
        while wanted() and partition.high_watermark < loader.end:
            outcome = self.log.topic.committed(partition, loader.end - 1)
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
        self.groups.update(groups)
        for consumers in loader.consumers:
            if consumers.group_id not in groups:
                self.new(consumers.group_id)
        self.consumers.load(loader.consumers)
        for group in groups.values():
            self.membership.renew_sessions(group)
            if needs_rebalance(group):
                self.membership.rebalance(group)
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
        if self.log.leads(shard):
            del self.log.shards[index]
        log.failure(
            "Could not load the groups in {topic}-{index}: they have no coordinator until the partition gets another "
            "leader or this broker restarts",
            failure, topic=OFFSETS_TOPIC, index=index,
        )  # fmt: skip

    def _forget(self, group: ClassicGroup) -> None:
        if self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
            self.bound.gone(group.group_id)

    def discard(self, group_id: str) -> None:
        """Forget a group that was made needlessly. Nothing of it is stored, and no request waits."""
        if self.groups.pop(group_id, None) is not None:
            self.bound.gone(group_id)

    # -- finding groups

    def error_for(self, group_id: str, *, named: bool = True) -> ErrorCode:
        """Return NONE if this broker coordinates the group, even if the group does not exist; otherwise the error code.

        named: whether an empty group id is an error.
        """
        if (named and not group_id) or len(group_id) > MAX_GROUP_ID:
            return ErrorCode.INVALID_GROUP_ID
        if not self.running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        shard = self.log.shard_of(group_id)
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if shard.loading else _NONE

    def new(self, group_id: str) -> ClassicGroup:
        group = self.groups[group_id] = ClassicGroup(group_id, self.log.topic.index_of(group_id), self._now_ms())
        return group

    def found_or_new(self, group_id: str, share: Share) -> ClassicGroup | None:
        """Return a group; a client with this share makes it if it does not exist. Return None if there are too many."""
        group = self.groups.get(group_id)
        if group is None and self.bound.admits(group_id, share, len(self.groups)):
            group = self.new(group_id)
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
            stored = self.log.append(group, [record], lambda offset: setattr(group, "stored", True))
        except Exception:
            return failed(Failure())
        return stored.addErrback(failed) if isinstance(stored, Deferred) else stored

    def _store_ids(self, group: ClassicGroup) -> None:
        """Write a group's offsets again, with the ids of their topics.

        Offsets that a transaction may change are not written, since the new records would count instead.
        """
        unstable = set(group.offsets.pending())
        stable = [partition for partition in self.offsets_of(group) if partition not in unstable]
        for some in _chunks(stable):
            offsets = [(partition, group.offsets.committed[partition]) for partition in some]
            records = [offset_record(group.group_id, *offset) for offset in offsets]
            self.commit(group, records, offsets)

    def commit(
        self, group: ClassicGroup, records: Sequence[KeyValue], offsets: Sequence[tuple[PartitionId, Committed]]
    ) -> ErrorCode | Deferred[ErrorCode]:
        """Store offsets, whose records are given, as committed."""
        return self.log.append(group, records, partial(self._committed, group.group_id, offsets))

    def _committed(self, group_id: str, offsets: Sequence[tuple[PartitionId, Committed]], offset: int) -> None:
        """Note offsets whose records are committed, and begin at `offset` of the log."""
        group = self.groups.get(group_id) or self.new(group_id)  # a group that was deleted meanwhile begins anew
        group.offsets.commit(offsets, offset)

    def stage(self, group: ClassicGroup, commit: TransactionalCommit) -> ErrorCode | Deferred[ErrorCode]:
        """Append offsets of a transaction. They are pending once they are in the log."""
        shard, group_id = self.log.shards[group.partition_index], group.group_id

        def begin(offset: int) -> None:
            group.uncommitted -= 1
            if self.log.leads(shard):
                shard.begin(self.groups.get(group_id) or self.new(group_id), commit, offset)

        result = self.log.write(
            group, shard, commit.records, begin,
            producer_id=commit.producer_id, producer_epoch=commit.epoch, attributes=TRANSACTIONAL,
        )  # fmt: skip
        return shield(result) if isinstance(result, Deferred) else result

    def offsets_of(self, group: ClassicGroup) -> CurrentOffsets:
        """Return the committed offsets of a group, including offsets whose commit was answered too early."""
        self.log.shards[group.partition_index].apply_committed()
        return CurrentOffsets(group.offsets.committed, self._topics.was_deleted)

    def partitions_of(self, group: ClassicGroup) -> set[PartitionId]:
        """Return the partitions in which a group has anything to delete."""
        self.log.shards[group.partition_index].apply_committed()
        return group.offsets.partitions()

    # -- moving groups between the protocols

    def takeover(self, group: ClassicGroup, records: Sequence[Record]) -> Takeover:
        """Return the conversion of a classic group into a group of the newer protocol, which these records describe."""

        def end(moved: bool) -> None:
            if moved:
                if group.members:
                    log.info("Group {group} has moved to the newer protocol with its members", group=group.group_id)
                self.handover.release(group)
            elif group.state is not GroupState.DEAD:
                self.handover.resume(group)

        begin = partial(self.handover.pause, group)
        return Takeover(records, [(group_key(group.group_id), None)], begin, end)

    def _downgrade(self, consumers: ConsumerGroup, without: Collection[str], replaced: bool) -> GoBack | None:
        found = downgraded(consumers, without, self._settings, self._topics.by_id, self._now_ms(), replaced=replaced)
        return None if found is None else GoBack(found.records, partial(self._back, consumers.group_id, found))

    def _back(self, group_id: str, found: Downgrade) -> None:
        log.info("Group {group} has moved back to the classic protocol with its members", group=group_id)
        self.handover.take_back(self.groups.get(group_id) or self.new(group_id), found)

    # -- deleting

    async def drop_offsets(self, group: ClassicGroup, partitions: Sequence[PartitionId]) -> ErrorCode:
        """Delete offsets of a group. Return NONE once the deletion is committed."""
        result: ErrorCode | Deferred[ErrorCode] = _NONE
        for some in _chunks(partitions):
            records: list[KeyValue] = [(offset_key(group.group_id, *partition), None) for partition in some]
            result = self.log.append(group, records, partial(group.offsets.drop, some))
        return await result if isinstance(result, Deferred) else result

    async def delete(self, group: ClassicGroup) -> ErrorCode:
        """Delete a group without members, and its offsets. Return NONE once the deletion is committed."""
        if self.consumers.get(group.group_id) is not None:
            error = self.consumers.delete(group.group_id)
            if isinstance(error, ErrorCode) and error:
                return error
        # If this fails, the next append fails too.
        Deferred.fromCoroutine(self.drop_offsets(group, list(self.partitions_of(group))))
        result = self.log.append(group, [(group_key(group.group_id), None)], partial(self._deleted, group))
        return await result if isinstance(result, Deferred) else result

    def _deleted(self, group: ClassicGroup, offset: int) -> None:
        group.stored = False
        if group.state is GroupState.EMPTY and not group.offsets:  # no member or offset has been added meanwhile
            self.membership.unload(group, ErrorCode.GROUP_ID_NOT_FOUND)

    def transaction_ended(self, index: int, producer_id: int, offset: int, committed: bool) -> None:
        """Note that the marker of a transaction is in a partition of the offsets topic, at `offset` of its log.

        Once the marker is committed, the offsets of the transaction count, or are forgotten.
        """
        shard = self.log.shards.get(index)
        if shard is None:
            return  # the next leader of the partition finds the marker in the log
        if shard.loading:
            shard.markers.append((producer_id, offset, committed))
        else:
            self._close_transaction(shard, producer_id, offset, committed)

    def _close_transaction(self, shard: Shard, producer_id: int, offset: int, committed: bool) -> None:
        """Note a marker that is in the log. The transaction ends once the marker is committed."""
        keys: dict[str, int] = {}
        for group_id in shard.transactions.pop(producer_id, ()):
            group = self.groups.get(group_id)
            if group is not None:
                keys[group_id] = group.offsets.close(producer_id, offset)
        if keys:
            shard.apply_later(offset + 1, partial(self._end_transaction, keys, committed))
            shard.apply_committed()

    def _end_transaction(self, keys: Mapping[str, int], committed: bool) -> None:
        for group_id, key in keys.items():
            group = self.groups.get(group_id)
            if group is not None:
                group.offsets.end(key, committed=committed)


def _bound(settings: Settings) -> Bound:
    most_of_one = partial(settings.integer, "groups.max.per.principal")
    return Bound("group", "groups.max", partial(settings.integer, "groups.max"), most_of_one)


def _chunks(partitions: Sequence[PartitionId]) -> Iterable[Sequence[PartitionId]]:
    return (partitions[at : at + MOST_RECORDS] for at in range(0, len(partitions), MOST_RECORDS))
