"""Coordinate consumer groups: what becomes of the requests of members, of offsets, and of administrators.

`led_groups` knows which groups are coordinated here, and writes them.

Rules:
- Requests for a group are answered only while its partition is led here and loaded. Otherwise the answer is
  COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, or COORDINATOR_NOT_AVAILABLE while this broker stops.
- An offset, an assignment or a deletion takes effect when its record is committed in the log, also if the client has
  disconnected meanwhile, or was answered with an error because that took too long.
- Offsets of an open transaction are kept beside the committed ones until its marker is committed (`transactions`).
- Changes of offsets take effect in the order of the log, so that a coordinator that reads it finds the same.
- Offsets count for the topic for which they were committed, by its id (`offsets`).

Must not know: requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from pylogd.base.errors import ErrorCode
from pylogd.base.limits.names import MAX_GROUP_ID, MAX_INSTANCE_ID
from pylogd.base.limits.shares import NOBODY, Share
from pylogd.broker.groups.consumer.answers import HeartbeatAnswer
from pylogd.broker.groups.consumer.group import ConsumerGroup
from pylogd.broker.groups.consumer.heartbeats import Heartbeat, HeartbeatRefused, Match
from pylogd.broker.groups.consumer.members import JOINING, TopicPartition
from pylogd.broker.groups.consumer.mixed import LeaveAnswer
from pylogd.broker.groups.group import ClassicGroup
from pylogd.broker.groups.led_groups import LedGroups
from pylogd.broker.groups.migration import upgraded
from pylogd.broker.groups.offset_memory import OffsetMemory
from pylogd.broker.groups.offsets import (
    any_outdated,
    may_commit,
    may_commit_as_consumer,
    may_commit_in_transaction,
    may_delete,
    may_fetch_as_consumer,
    unstable,
)
from pylogd.broker.groups.records import (
    Committed,
    PartitionId,
    offset_record,
)
from pylogd.broker.groups.states import GroupState
from pylogd.broker.groups.values import (
    NO_GENERATION,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
    TransactionalCommit,
)
from pylogd.broker.metadata.service import Metadata
from pylogd.broker.replica.disk_calls import InThread
from pylogd.broker.replica.internal_topic import KeyValue
from pylogd.broker.replica.service import Replicas
from pylogd.config import Settings
from pylogd.store.paths import OFFSETS_TOPIC

log = Logger()

_NONE = ErrorCode.NONE
#: If a member's metadata has this many bytes, the total of all members is checked.
_LARGE_METADATA: Final = 1 << 14
TOO_MANY_GROUPS = "There are too many groups on this broker, or of this client (groups.max): see the broker's log."


class GroupCoordinator:
    """Answers the requests of a broker's groups. Methods return their answer, or a Deferred if they have to wait."""

    def __init__(
        self,
        replicas: Replicas,
        metadata: Metadata,
        settings: Settings,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        in_thread: InThread | None = None,
    ) -> None:
        """Arguments:

        clock: times members and sweeps.
        now_ms: the wall clock, for time stamps and the age of offsets.
        in_thread: makes large changes of groups; None to make them at once.
        """
        self._led = led = LedGroups(replicas, metadata, settings, clock, now_ms, in_thread)
        self._groups = led.groups
        self._consumers = led.consumers
        self._membership = led.membership
        most_bytes = partial(settings.integer, "group.offsets.max.bytes")
        self._offset_memory = OffsetMemory(most_bytes, led.bound, led.groups.values, clock.seconds)
        self._topics = metadata.topics
        self._settings = settings
        self._now_ms = now_ms

    def start(self) -> None:
        """Begin to follow the leadership of the offsets topic. Call it before the replica manager starts."""
        self._led.start()

    def stop(self) -> None:
        """Unload every group. Waiting requests are answered NOT_COORDINATOR."""
        self._led.stop()

    @property
    def now_ms(self) -> int:
        """The wall clock in milliseconds since 1970."""
        return self._now_ms()

    # -- finding coordinators

    def coordinator_of(self, group_id: str) -> int | ErrorCode | Deferred[int | ErrorCode]:
        """Return the node id of a group's coordinator, or an error code. Creates the offsets topic if it is missing."""
        if len(group_id) > MAX_GROUP_ID:
            return ErrorCode.INVALID_GROUP_ID
        return self._led.log.topic.coordinator_of(group_id)

    def offsets_partition(self, group_id: str) -> PartitionId | None:
        """Return the topic and partition that store a group; None while the offsets topic does not exist."""
        topic = self._led.log.topic
        return None if topic.get() is None else (OFFSETS_TOPIC, topic.index_of(group_id))

    # -- members

    def join(self, group_id: str, request: JoinRequest) -> JoinAnswer | Deferred[JoinAnswer]:
        """Handle a JoinGroup request."""
        error = self._led.error_for(group_id) or _why_not_join(request, self._settings, self._metadata_bytes)
        if error:
            return JoinAnswer(error, request.member_id)
        again = partial(self.join, group_id, request)
        unloaded = JoinAnswer(ErrorCode.NOT_COORDINATOR, request.member_id)
        if (later := self._consumers.in_line(group_id, again, unloaded)) is not None:
            return later
        consumers = self._consumers.get(group_id)
        if consumers is not None:
            if consumers.members:
                return self._consumers.join(group_id, request, again)
            gone = self._consumers.delete(group_id)
            if isinstance(gone, ErrorCode) and gone:
                return JoinAnswer(gone, request.member_id)
        group = self._groups.get(group_id)
        if group is None:
            if request.member_id:
                return JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            group = self._led.found_or_new(group_id, request.share)
        if group is None:
            return JoinAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id)
        return self._membership.join(group, request)

    def _metadata_bytes(self) -> int:
        """Return how many bytes of metadata of classic members are kept."""
        members = (member for group in self._groups.values() for member in group.members.values())
        return sum(member.metadata_bytes for member in members) + self._consumers.metadata_bytes

    def consumer_heartbeat(
        self, group_id: str, request: Heartbeat, match: Match
    ) -> HeartbeatAnswer | Deferred[HeartbeatAnswer]:
        """Handle a ConsumerGroupHeartbeat request. `match` finds the topics of a regular expression."""
        error = self._led.error_for(group_id)
        if error:
            return HeartbeatAnswer(error)
        again = partial(self.consumer_heartbeat, group_id, request, match)
        later = self._consumers.in_line(group_id, again, HeartbeatAnswer(ErrorCode.NOT_COORDINATOR))
        if later is not None:
            return later
        known = group_id in self._groups
        if request.epoch == JOINING and self._consumers.get(group_id) is None:
            group = self._led.found_or_new(group_id, request.share)
            if group is None:
                return HeartbeatAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, TOO_MANY_GROUPS, request.member_id)
            if group.members or group.stored:
                return self._upgrade(group, request, match)
            self._led.handover.release(group)
        answer = self._consumers.heartbeat(group_id, request, match)
        if not known and group_id not in self._consumers:
            self._led.discard(group_id)  # the group's first member was refused
        return answer

    def keep_alive(self, group_id: str, request: Heartbeat) -> None:
        """Restart a member's session. Its heartbeat is answered later."""
        self._consumers.keep_alive(group_id, request)

    def _upgrade(
        self, group: ClassicGroup, request: Heartbeat, match: Match
    ) -> HeartbeatAnswer | Deferred[HeartbeatAnswer]:
        """Convert a classic group, which may be empty, into a group of the newer protocol. Its first member joins."""
        try:
            records = upgraded(group, self._settings, self._topics.get) if group.members else ()
        except HeartbeatRefused as refused:
            return HeartbeatAnswer(refused.code, str(refused), request.member_id)
        return self._consumers.upgrade(group.group_id, self._led.takeover(group, records), request, match)

    def _with_consumers(self, group_id: str) -> bool:
        """Return whether a group has the newer protocol and members."""
        consumers = self._consumers.get(group_id)
        return consumers is not None and bool(consumers.members)

    def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer | Deferred[SyncAnswer]:
        """Handle a SyncGroup request."""
        group = self._groups.get(group_id)
        if group is None:
            error = self._led.error_for(group_id)
            if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # some clients treat this error as fatal
                error = ErrorCode.REBALANCE_IN_PROGRESS
            return SyncAnswer(error or ErrorCode.UNKNOWN_MEMBER_ID)
        again = partial(self.sync, group_id, request)
        if (later := self._consumers.in_line(group_id, again, SyncAnswer(ErrorCode.NOT_COORDINATOR))) is not None:
            return later
        if self._with_consumers(group_id):
            return self._consumers.sync(group_id, request)
        return self._membership.sync(group, request)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Handle a Heartbeat request. While the groups are being loaded every heartbeat is accepted."""
        group = self._groups.get(group_id)
        if group is not None:
            if not group.members and self._with_consumers(group_id):
                return self._consumers.classic_heartbeat(group_id, member_id, instance_id, generation)
            return self._membership.heartbeat(group, member_id, instance_id, generation)
        error = self._led.error_for(group_id)
        if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return _NONE
        return error or ErrorCode.UNKNOWN_MEMBER_ID

    def leave(self, group_id: str, leavers: Sequence[LeavingMember]) -> LeaveAnswer | Deferred[LeaveAnswer]:
        """Handle a LeaveGroup request: return the error for the whole request, and NONE or an error for each member."""
        group = self._groups.get(group_id)
        if group is None:
            error = self._led.error_for(group_id)
            return error, [error or ErrorCode.UNKNOWN_MEMBER_ID for _ in leavers]
        unloaded = ErrorCode.NOT_COORDINATOR, [ErrorCode.NOT_COORDINATOR for _ in leavers]
        if (later := self._consumers.in_line(group_id, partial(self.leave, group_id, leavers), unloaded)) is not None:
            return later
        if self._with_consumers(group_id):
            return self._consumers.leave(group_id, leavers)
        return _NONE, self._membership.leave(group, leavers)

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
        knows_epochs: bool = True,
        share: Share = NOBODY,
    ) -> ErrorCode | Deferred[ErrorCode]:
        """Store offsets, all or none.

        records: the result of `offset_record` for each offset, if the caller has made them.
        knows_epochs: whether the client knows the epochs of the newer protocol, and their error codes.
        share: the share in which the group counts if it does not exist yet.
        """
        group = self._groups.get(group_id)
        if group is None:
            error = self._led.error_for(group_id, named=False)
            if error:
                return error
            if generation > NO_GENERATION:
                return ErrorCode.GROUP_ID_NOT_FOUND if knows_epochs else ErrorCode.ILLEGAL_GENERATION
            if (group := self._led.found_or_new(group_id, share)) is None:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        consumers = self._consumers.get(group_id)
        if consumers is not None and consumers.members:
            partitions = self._ids_of(offsets)
            error = may_commit_as_consumer(consumers, member_id, generation, partitions, knows_epochs=knows_epochs)
        else:
            error = may_commit(group, member_id, instance_id, generation)
        if error:
            self._membership.forget_unused(group)
            return error
        if member_id in group.members:
            self._membership.heartbeat(group, member_id, instance_id, generation)
        error = self._may_keep(group, offsets)
        if error or not offsets:
            self._membership.forget_unused(group)
            return error
        records = [offset_record(group_id, *offset) for offset in offsets] if records is None else records
        return self._led.commit(group, records, offsets)

    def commit_in_transaction(self, group_id: str, commit: TransactionalCommit) -> ErrorCode | Deferred[ErrorCode]:
        """Store offsets, all or none, that count once the transaction is committed. See `transaction_ended`."""
        error = self._led.error_for(group_id)
        if error:
            return error
        group = self._groups.get(group_id)
        if group is None:
            if commit.generation > NO_GENERATION:
                return ErrorCode.ILLEGAL_GENERATION
            if (group := self._led.found_or_new(group_id, commit.share)) is None:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        consumers = self._consumers.get(group_id)
        if consumers is not None and consumers.members and (commit.member_id or commit.generation > NO_GENERATION):
            partitions = self._ids_of(commit.offsets)
            error = may_commit_as_consumer(consumers, commit.member_id, commit.generation, partitions)
        else:
            error = may_commit_in_transaction(group, commit.member_id, commit.instance_id, commit.generation)
        error = error or self._may_keep(group, commit.offsets)
        if error or not commit.offsets:
            self._membership.forget_unused(group)
            return error
        return self._led.stage(group, commit)

    def _may_keep(self, group: ClassicGroup, offsets: Sequence[tuple[PartitionId, Committed]]) -> ErrorCode:
        """Return NONE if offsets can be kept: their topics exist, and there is memory for the offsets."""
        if any_outdated(offsets, self._topics.was_deleted):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return _NONE if self._offset_memory.admits(group, offsets) else ErrorCode.COORDINATOR_NOT_AVAILABLE

    def transaction_ended(self, index: int, producer_id: int, offset: int, committed: bool) -> None:
        """Note that the marker of a transaction is in a partition of the offsets topic, at `offset` of its log."""
        self._led.transaction_ended(index, producer_id, offset, committed)

    def unstable(self, group_id: str) -> frozenset[PartitionId]:
        """Return the partitions whose offset for the group an open transaction may still change."""
        group = self._groups.get(group_id)
        if group is None:
            return frozenset()
        self._led.log.shards[group.partition_index].apply_committed()
        return unstable(group, self._topics.was_deleted)

    def _ids_of(self, offsets: Iterable[tuple[PartitionId, Committed]]) -> list[TopicPartition]:
        """Return the partitions by topic id."""
        named = [(self._topics.get(topic), index) for (topic, index), _ in offsets]
        return [(topic.topic_id, index) for topic, index in named if topic is not None]

    def committed(self, group_id: str) -> Mapping[PartitionId, Committed]:
        """Return the committed offsets of a group that is coordinated here, by partition."""
        group = self._groups.get(group_id)
        return {} if group is None else self._led.offsets_of(group)

    def fetch(
        self, group_id: str, member_id: str | None = None, epoch: int = NO_GENERATION
    ) -> Mapping[PartitionId, Committed] | ErrorCode:
        """Return the committed offsets of a group, of topics that exist, or an error code.

        member_id, epoch: the member of a group of the newer protocol that asks; None and -1 for other clients.
        """
        consumers = self._consumers.get(group_id)
        if consumers is not None and (error := may_fetch_as_consumer(consumers, member_id, epoch)):
            return error
        group = self._groups.get(group_id)
        if group is not None:
            return self._led.offsets_of(group)
        return self._led.error_for(group_id, named=False) or {}

    def delete_offsets(
        self, group_id: str, partitions: Sequence[PartitionId]
    ) -> Deferred[tuple[ErrorCode, dict[PartitionId, ErrorCode]]]:
        """Delete committed offsets.

        Returns the error for the whole request, once the deletion is committed, and NONE or an error by partition.
        """
        return Deferred.fromCoroutine(self._delete_offsets(group_id, partitions))

    async def _delete_offsets(
        self, group_id: str, partitions: Sequence[PartitionId]
    ) -> tuple[ErrorCode, dict[PartitionId, ErrorCode]]:
        group = self._groups.get(group_id)
        if group is None:
            return self._led.error_for(group_id) or ErrorCode.GROUP_ID_NOT_FOUND, {}
        consumers = self._consumers.get(group_id)
        errors = {topic: may_delete(group, consumers, topic) for topic in {partition[0] for partition in partitions}}
        answers = {partition: errors[partition[0]] for partition in partitions}
        if ErrorCode.NON_EMPTY_GROUP in answers.values():
            return ErrorCode.NON_EMPTY_GROUP, {}
        known = self._led.partitions_of(group)
        to_delete = [partition for partition, error in answers.items() if not error and partition in known]
        return await self._led.drop_offsets(group, to_delete), answers

    # -- administration

    def groups(self) -> tuple[ErrorCode, list[ClassicGroup | ConsumerGroup]]:
        """Return every group that is coordinated here, with COORDINATOR_LOAD_IN_PROGRESS while some may be missing."""
        if not self._led.running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        loading = any(shard.loading for shard in self._led.log.shards.values())
        found: list[ClassicGroup | ConsumerGroup] = [
            self._consumers.get(group_id) or group for group_id, group in self._groups.items()
        ]
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else _NONE, found

    def describe(self, group_id: str) -> ClassicGroup | ErrorCode:
        """Return a classic group, or an error code: GROUP_ID_NOT_FOUND if it does not exist."""
        group = self._groups.get(group_id) if self._consumers.get(group_id) is None else None
        return group or self._led.error_for(group_id, named=False) or ErrorCode.GROUP_ID_NOT_FOUND

    def describe_consumers(self, group_id: str) -> ConsumerGroup | ErrorCode:
        """Return a group of the newer protocol, or the error code GROUP_ID_NOT_FOUND."""
        return self._consumers.get(group_id) or self._led.error_for(group_id) or ErrorCode.GROUP_ID_NOT_FOUND

    def delete(self, group_id: str) -> Deferred[ErrorCode]:
        """Delete a group and its offsets. Returns NON_EMPTY_GROUP if it has members."""
        return Deferred.fromCoroutine(self._delete(group_id))

    async def _delete(self, group_id: str) -> ErrorCode:
        group = self._groups.get(group_id)
        if group is None:
            return self._led.error_for(group_id, named=False) or ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NON_EMPTY_GROUP if group.state is not GroupState.EMPTY else await self._led.delete(group)


def _why_not_join(request: JoinRequest, settings: Settings, kept: Callable[[], int]) -> ErrorCode:
    """Return the error code for a request to join; NONE if the request must be handled.

    kept: returns how many bytes of metadata the broker keeps for all members.
    """
    low = settings.integer("group.min.session.timeout.ms")
    high = settings.integer("group.max.session.timeout.ms")
    if not low <= round(request.session * 1000) <= high:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    names = [request.protocol_type, *(name for name, _ in request.protocols)]
    if any(len(name) > MAX_INSTANCE_ID for name in (request.instance_id or "", *names)):
        return ErrorCode.INVALID_REQUEST
    return _check_metadata(sum(len(metadata) for _, metadata in request.protocols), settings, kept)


def _check_metadata(size: int, settings: Settings, kept: Callable[[], int]) -> ErrorCode:
    """Return why a member may not have `size` bytes of metadata."""
    if size > settings.integer("message.max.bytes"):
        return ErrorCode.INVALID_REQUEST  # it would not fit into a record of the offsets topic
    if size > _LARGE_METADATA and kept() + size > settings.integer("group.metadata.max.bytes"):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NONE
