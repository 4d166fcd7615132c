"""Coordinate the consumer groups that are stored in the partitions of the offsets topic which this broker leads.

Strategy: a group is coordinated by the leader of the partition of the offsets topic that stores it. When this broker
becomes the leader of such a partition it loads the groups in it; when it loses the leadership it unloads them. All
groups are in one dict, so a heartbeat finds its group by one look-up; only if it is missing, the coordinator checks
which broker the group belongs to.

Rules:
- Requests for a group are answered only while its partition is led here and loaded. Otherwise the answer is
  COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, or COORDINATOR_NOT_AVAILABLE while this broker stops.
- An offset, an assignment or a deletion takes effect when its record is committed in the log, also if the client has
  disconnected meanwhile.
- Offsets of an open transaction are kept beside the committed ones until its marker is committed (`transactions`).

Must not know: requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.config import Settings
from pylogd.errors import ErrorCode, PylogdError
from pylogd.groups import transactions
from pylogd.groups.group import ClassicGroup
from pylogd.groups.loader import GroupLoader
from pylogd.groups.membership import Membership
from pylogd.groups.offsets import may_commit, may_commit_in_transaction, may_delete
from pylogd.groups.records import (
    Committed,
    PartitionId,
    group_key,
    group_value,
    offset_key,
    offset_record,
)
from pylogd.groups.shard import Shard
from pylogd.groups.states import GroupState
from pylogd.groups.sweeps import OffsetSweeps
from pylogd.groups.topic import OFFSETS
from pylogd.groups.values import NO_GENERATION, JoinAnswer, JoinRequest, LeavingMember, SyncAnswer, TransactionalCommit
from pylogd.limits.names import MAX_GROUP_ID, MAX_INSTANCE_ID
from pylogd.metadata.image import OFFSETS_TOPIC
from pylogd.metadata.topic_admin import TopicAdmin
from pylogd.metadata.topics import TopicRegistry
from pylogd.replica.internal_topic import MOST_RECORDS, InternalTopic, KeyValue
from pylogd.replica.partition import Partition
from pylogd.replica.service import Replicas
from pylogd.replica.waiting import shield
from pylogd.wire.records import TRANSACTIONAL

log = Logger()

#: From so many bytes of metadata on it is checked how much all members have.
_LARGE_METADATA: Final = 1 << 14
_NONE = ErrorCode.NONE


class GroupCoordinator:
    """All groups that this broker coordinates. Methods return their answer, or a Deferred of it if it has to wait."""

    def __init__(
        self,
        replicas: Replicas,
        topics: TopicRegistry,
        topic_admin: TopicAdmin,
        settings: Settings,
        clock: IReactorTime,
        now_ms: Callable[[], int],
    ) -> None:
        """`clock` times members and sweeps; `now_ms` is the wall clock, for time stamps and the age of offsets."""
        self._partitions = replicas.partitions
        self._disk_calls = replicas.disk_calls
        self._topics = topics
        self._settings = settings
        self._now_ms = now_ms
        self._topic = InternalTopic(OFFSETS, replicas, topics, topic_admin, settings, now_ms)
        self._shards: dict[int, Shard] = {}
        self._groups: dict[str, ClassicGroup] = {}
        self._membership = Membership(
            clock,
            now_ms,
            self._store,
            self._forget,
            first_delay=lambda: settings.integer("group.initial.rebalance.delay.ms") / 1000,
            most_members=lambda: settings.integer("group.max.size"),
        )
        self._undo: list[Callable[[], object]] = []
        self._sweeps = OffsetSweeps(
            clock, now_ms, settings, self._groups.values, self._drop_offsets, self._delete
        )  # fmt: skip
        self._running = False

    # -- starting and stopping

    def start(self) -> None:
        """Begin to follow the leadership of the offsets topic. Call it before the replica manager starts."""
        self._running = True
        leadership = self._partitions.on_leadership(self._leadership)
        self._undo = [leadership, self._topics.subscribe(self._sweeps.topic_changed)]
        self._sweeps.start()

    def stop(self) -> None:
        """Unload every group; requests that wait are answered NOT_COORDINATOR."""
        self._running = False
        for undo in self._undo:
            undo()
        self._undo = []
        self._sweeps.stop()
        self._shards = {}
        for group in list(self._groups.values()):
            self._membership.unload(group, ErrorCode.NOT_COORDINATOR)

    @property
    def now_ms(self) -> int:
        """The wall clock in milliseconds since 1970."""
        return self._now_ms()

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
        for group in [group for group in self._groups.values() if group.partition_index == index]:
            self._membership.unload(group, ErrorCode.NOT_COORDINATOR)

    def _load(self, shard: Shard) -> None:
        try:
            loader = GroupLoader(shard.partition, self._settings.integer("offsets.load.buffer.size"), self.now_ms)
        except PylogdError as error:
            self._load_failed(Failure(error), shard)
            return
        if loader.empty:
            shard.loading = False
            return

        def wanted() -> bool:
            return self._shards.get(shard.partition.index) is shard

        done = Deferred.fromCoroutine(loader.run(partial(self._disk_calls.at, shard.partition.log.directory), wanted))
        done.addCallback(self._loaded, shard, loader).addErrback(self._load_failed, shard)

    def _loaded(self, groups: dict[str, ClassicGroup] | None, shard: Shard, loader: GroupLoader) -> None:
        if groups is None:
            return
        shard.loading = False
        self._groups.update(groups)
        for group in groups.values():
            self._membership.loaded(group)
            shard.note_open(group)
        for producer_id, committed in shard.ended:
            self._end_transaction(shard, producer_id, committed)
        log.info(
            "{topic}-{index}: loaded {groups} groups from {records} records",
            topic=OFFSETS_TOPIC, index=shard.partition.index, groups=len(groups), records=loader.records,
        )  # fmt: skip

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
        """Return NONE if this broker coordinates the group, existing or not, else the error code to answer with.

        `named`: whether an empty group id is an error.
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

    # -- members

    def join(self, group_id: str, request: JoinRequest) -> JoinAnswer | Deferred[JoinAnswer]:
        """Handle a JoinGroup request."""
        error = self._error_for(group_id) or self._check_join(request)
        if error:
            return JoinAnswer(error, request.member_id)
        group = self._groups.get(group_id)
        if group is None:
            if request.member_id:
                return JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            group = self._new(group_id)
        return self._membership.join(group, request)

    def _check_join(self, request: JoinRequest) -> ErrorCode:
        low = self._settings.integer("group.min.session.timeout.ms")
        high = self._settings.integer("group.max.session.timeout.ms")
        if not low <= round(request.session * 1000) <= high:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        names = [request.protocol_type, *(name for name, _ in request.protocols)]
        if any(len(name) > MAX_INSTANCE_ID for name in (request.instance_id or "", *names)):
            return ErrorCode.INVALID_REQUEST
        if request.instance_id == "":
            return ErrorCode.INVALID_REQUEST
        return self._check_metadata(sum(len(metadata) for _, metadata in request.protocols))

    def _check_metadata(self, size: int) -> ErrorCode:
        """Return why a member may not have `size` bytes of metadata."""
        if size > self._settings.integer("message.max.bytes"):
            return ErrorCode.INVALID_REQUEST  # it would not fit into a record of the offsets topic
        if size > _LARGE_METADATA:
            kept = sum(member.metadata_bytes for group in self._groups.values() for member in group.members.values())
            if kept + size > self._settings.integer("group.metadata.max.bytes"):
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return _NONE

    def sync(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol: str | None,
        assignments: dict[str, bytes],
    ) -> SyncAnswer | Deferred[SyncAnswer]:
        """Handle a SyncGroup request. `assignments`: what the leader assigns, by member id."""
        group = self._groups.get(group_id)
        if group is None:
            error = self._error_for(group_id)
            if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # some clients treat that as fatal
                error = ErrorCode.REBALANCE_IN_PROGRESS
            return SyncAnswer(error or ErrorCode.UNKNOWN_MEMBER_ID)
        return self._membership.sync(group, member_id, instance_id, generation, protocol_type, protocol, assignments)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Handle a Heartbeat request. While the groups are being loaded every heartbeat is accepted."""
        group = self._groups.get(group_id)
        if group is not None:
            return self._membership.heartbeat(group, member_id, instance_id, generation)
        error = self._error_for(group_id)
        if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return _NONE
        return error or ErrorCode.UNKNOWN_MEMBER_ID

    def leave(self, group_id: str, leavers: Sequence[LeavingMember]) -> tuple[ErrorCode, list[ErrorCode]]:
        """Handle a LeaveGroup request: return the error for the whole request, and NONE or an error for each member."""
        group = self._groups.get(group_id)
        if group is None:
            error = self._error_for(group_id)
            return error, [error or ErrorCode.UNKNOWN_MEMBER_ID for _ in leavers]
        return _NONE, self._membership.leave(group, leavers)

    def _store(self, group: ClassicGroup, assignments: dict[str, bytes]) -> ErrorCode | Deferred[ErrorCode]:
        record = group_key(group.group_id), group_value(group.to_stored(assignments))
        return self._append(group, [record], lambda: setattr(group, "stored", True))

    def _append(
        self,
        group: ClassicGroup,
        records: Sequence[KeyValue],
        then: Callable[[], object],
        on_append: Callable[[int], object] | None = None,
    ) -> ErrorCode | Deferred[ErrorCode]:
        """Append records of a group, and call `then` once they are committed, unless the group is Dead by then.

        on_append: called with the offset of the first one once they are in the log.
        """
        shard = self._shards.get(group.partition_index)
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        result = self._topic.append(shard.partition, records, on_append)
        if not isinstance(result, Deferred):
            if result == _NONE:
                then()
            return result

        def committed(error: ErrorCode) -> ErrorCode:
            if error == _NONE and group.state is not GroupState.DEAD:
                then()
            return error

        return shield(result.addCallback(committed))

    # -- offsets

    def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Sequence[tuple[PartitionId, Committed]],
        *,
        records: Sequence[KeyValue] | None = None,
        unknown_group: ErrorCode = ErrorCode.GROUP_ID_NOT_FOUND,
    ) -> ErrorCode | Deferred[ErrorCode]:
        """Store offsets, all or none.

        records: what `offset_record` makes of each, if the caller has done so. unknown_group: the error for a member of
        a group that does not exist.
        """
        group = self._groups.get(group_id)
        if group is None:
            error = self._error_for(group_id, named=False)
            if error:
                return error
            if generation > NO_GENERATION:
                return unknown_group
            group = self._new(group_id)
        error = may_commit(group, member_id, instance_id, generation)
        if error:
            return error
        if generation > NO_GENERATION:
            self._membership.heartbeat(group, member_id, instance_id, generation)
        if not offsets:
            return _NONE
        if records is None:
            records = [offset_record(group_id, *offset) for offset in offsets]
        known, open_ = group.offsets, group.transactions
        overtake = partial(transactions.overtake, open_, [partition for partition, _ in offsets]) if open_ else None
        return self._append(group, records, lambda: known.update(offsets), overtake)

    def commit_in_transaction(self, group_id: str, commit: TransactionalCommit) -> ErrorCode | Deferred[ErrorCode]:
        """Store offsets, all or none, that count once the transaction is committed. See `transaction_ended`."""
        error = self._error_for(group_id)
        if error:
            return error
        group = self._groups.get(group_id)
        if group is None:
            if commit.generation > NO_GENERATION:
                return ErrorCode.ILLEGAL_GENERATION
            group = self._new(group_id)
        error = may_commit_in_transaction(group, commit.member_id, commit.instance_id, commit.generation)
        if error or not commit.offsets:
            return error
        shard, found = self._shards[group.partition_index], group
        result = self._topic.append(
            shard.partition, commit.records, partial(shard.begin, found, commit),
            producer_id=commit.producer_id, producer_epoch=commit.epoch, attributes=TRANSACTIONAL,
        )  # fmt: skip
        return shield(result) if isinstance(result, Deferred) else result

    def transaction_ended(self, index: int, producer_id: int, committed: bool) -> None:
        """Note that the marker of a transaction is committed in a partition of the offsets topic.

        The offsets of the transaction count from now on, or never will.
        """
        shard = self._shards.get(index)
        if shard is None:
            return  # whoever leads the partition next finds the marker in the log
        if shard.loading:
            shard.ended.append((producer_id, committed))
        else:
            self._end_transaction(shard, producer_id, committed)

    def _end_transaction(self, shard: Shard, producer_id: int, committed: bool) -> None:
        for group_id in shard.transactions.pop(producer_id, ()):
            group = self._groups.get(group_id)
            if group is not None:
                transactions.end(group.transactions, producer_id, group.offsets, committed=committed)

    def unstable(self, group_id: str) -> frozenset[PartitionId]:
        """Return the partitions of which an open transaction may still change the group's offset."""
        group = self._groups.get(group_id)
        return frozenset() if group is None else frozenset(transactions.pending(group.transactions))

    def fetch(self, group_id: str) -> dict[PartitionId, Committed] | ErrorCode:
        """Return the committed offsets of a group, which the caller must not modify, or an error code."""
        group = self._groups.get(group_id)
        if group is not None:
            return group.offsets
        return self._error_for(group_id, named=False) or {}

    def delete_offsets(
        self, group_id: str, partitions: Sequence[PartitionId]
    ) -> tuple[ErrorCode | Deferred[ErrorCode], dict[PartitionId, ErrorCode]]:
        """Delete committed offsets.

        Returns the error for the whole request, once the deletion is committed, and NONE or an error by partition.
        """
        group = self._groups.get(group_id)
        if group is None:
            return self._error_for(group_id) or ErrorCode.GROUP_ID_NOT_FOUND, {}
        errors = {topic: may_delete(group, topic) for topic in {partition[0] for partition in partitions}}
        answers = {partition: errors[partition[0]] for partition in partitions}
        if ErrorCode.NON_EMPTY_GROUP in answers.values():
            return ErrorCode.NON_EMPTY_GROUP, {}
        known = transactions.all_partitions(group.offsets, group.transactions)
        to_delete = [partition for partition, error in answers.items() if not error and partition in known]
        return self._drop_offsets(group, to_delete), answers

    def _drop_offsets(self, group: ClassicGroup, partitions: Sequence[PartitionId]) -> ErrorCode | Deferred[ErrorCode]:
        result: ErrorCode | Deferred[ErrorCode] = _NONE
        for some in _chunks(partitions):
            records: list[KeyValue] = [(offset_key(group.group_id, *partition), None) for partition in some]
            result = self._append(group, records, partial(self._dropped, group, some))
        return result

    @staticmethod
    def _dropped(group: ClassicGroup, partitions: Sequence[PartitionId]) -> None:
        for partition in partitions:
            group.offsets.pop(partition, None)
        transactions.drop(group.transactions, partitions)

    # -- administration

    def groups(self) -> tuple[ErrorCode, list[ClassicGroup]]:
        """Return every group that is coordinated here, with COORDINATOR_LOAD_IN_PROGRESS while some may be missing."""
        if not self._running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        loading = any(shard.loading for shard in self._shards.values())
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else _NONE, list(self._groups.values())

    def describe(self, group_id: str) -> ClassicGroup | ErrorCode:
        """Return a group, or an error code: GROUP_ID_NOT_FOUND if it does not exist."""
        group = self._groups.get(group_id)
        return group or self._error_for(group_id, named=False) or ErrorCode.GROUP_ID_NOT_FOUND

    def delete(self, group_id: str) -> ErrorCode | Deferred[ErrorCode]:
        """Delete a group and its offsets. Returns NON_EMPTY_GROUP if it has members."""
        group = self._groups.get(group_id)
        if group is None:
            return self._error_for(group_id, named=False) or ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NON_EMPTY_GROUP if group.state is not GroupState.EMPTY else self._delete(group)

    def _delete(self, group: ClassicGroup) -> ErrorCode | Deferred[ErrorCode]:
        known = transactions.all_partitions(group.offsets, group.transactions)
        self._drop_offsets(group, list(known))  # if this fails, the next append fails too
        return self._append(group, [(group_key(group.group_id), None)], lambda: self._deleted(group))

    def _deleted(self, group: ClassicGroup) -> None:
        group.stored = False
        if group.state is GroupState.EMPTY:  # no member has joined meanwhile
            self._membership.unload(group, ErrorCode.GROUP_ID_NOT_FOUND)


def _chunks(partitions: Sequence[PartitionId]) -> Iterable[Sequence[PartitionId]]:
    return (partitions[at : at + MOST_RECORDS] for at in range(0, len(partitions), MOST_RECORDS))
