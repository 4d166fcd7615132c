"""The coordinator of the groups whose partition of the offsets topic this broker leads.

Strategy: the partition that a group is kept in decides who coordinates it. When this broker begins to lead such a
partition it reads the groups in it; when it ceases to, it forgets them. All groups are in one dict, so that a heartbeat
finds its group in one look-up; only where it is not there it is asked whose the group is.

Rules:
- A group is found here only while its partition is led and loaded: otherwise COORDINATOR_LOAD_IN_PROGRESS,
  NOT_COORDINATOR, or COORDINATOR_NOT_AVAILABLE while this broker stops.
- An offset, an assignment or a deletion takes effect once it is committed in the log, and never before. A client that
  leaves in between changes nothing about that.
- Old offsets, those of deleted topics, and groups that have nothing left are swept out a few groups at a time.

It must not know requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.config import Settings
from pylogd.errors import ErrorCode, PylogdError
from pylogd.groups.group import Group
from pylogd.groups.loader import Loader
from pylogd.groups.membership import Membership
from pylogd.groups.offsets import expired, may_commit, may_delete
from pylogd.groups.records import MOST_TEXT, Committed, group_key, group_value, offset_key, offset_value
from pylogd.groups.states import GroupState
from pylogd.groups.topic import MOST_RECORDS, KeyValue, OffsetsTopic
from pylogd.groups.values import NO_GENERATION, JoinAnswer, JoinRequest, Leaver, SyncAnswer
from pylogd.metadata.cluster import Cluster
from pylogd.metadata.image import NO_LEADER, OFFSETS_TOPIC, TopicChange
from pylogd.metadata.topic_admin import TopicAdmin
from pylogd.metadata.topics import TopicRegistry
from pylogd.replica.partition import Partition
from pylogd.replica.service import Replicas
from pylogd.replica.waiting import shield

log = Logger()


#: Groups that are looked at in one turn of the reactor when old offsets are swept out.
_SWEPT_AT_ONCE: Final = 100
_MOST_INSTANCE_ID: Final = 249
_MINUTE_MS: Final = 60_000
_NONE = ErrorCode.NONE

Place = tuple[str, int]  # a topic and a partition of it


class Shard:
    """A partition of the offsets topic that is led here. It is replaced, not used again, when the lead comes back."""

    __slots__ = ("loading", "partition")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.loading = True


class GroupCoordinator:
    """Every group that is coordinated here. Answers are values, or Deferreds of them where something is waited for."""

    def __init__(
        self,
        replicas: Replicas,
        topics: TopicRegistry,
        topic_admin: TopicAdmin,
        cluster: Cluster,
        settings: Settings,
        clock: IReactorTime,
        now_ms: Callable[[], int],
    ) -> None:
        """`clock` times members and sweeps; `now_ms` is the wall clock, for time stamps and the age of offsets."""
        self._partitions = replicas.partitions
        self._in_thread = replicas.manager.in_thread
        self._topics = topics
        self._settings = settings
        self._clock = clock
        self._now_ms = now_ms
        self._topic = OffsetsTopic(replicas, topics, topic_admin, cluster, settings, now_ms)
        self._shards: dict[int, Shard] = {}
        self._groups: dict[str, Group] = {}
        self._membership = Membership(
            clock,
            now_ms,
            self._store,
            self._forget,
            first_delay=lambda: settings.integer("group.initial.rebalance.delay.ms") / 1000,
            most_members=lambda: settings.integer("group.max.size"),
        )
        self._undo: list[Callable[[], object]] = []
        self._sweeper: IDelayedCall | None = None
        self._sweeps: list[IDelayedCall] = []  # the next turn of each sweep under way
        self._running = False

    # -- life

    def start(self) -> None:
        """Follow the leadership of the offsets topic. Before the replica manager starts, so that nothing is missed."""
        self._running = True
        self._undo = [self._partitions.on_leadership(self._leadership), self._topics.subscribe(self._topic_changed)]
        self._sweep_later()

    def stop(self) -> None:
        """Forget every group, and tell who waits for one to look for another coordinator."""
        self._running = False
        for undo in self._undo:
            undo()
        self._undo = []
        for call in (self._sweeper, *self._sweeps):
            if call is not None and call.active():
                call.cancel()
        self._shards = {}
        for group in list(self._groups.values()):
            self._membership.unload(group, ErrorCode.NOT_COORDINATOR)

    @property
    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return self._now_ms()

    # -- taking over and giving up

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
        for group in [group for group in self._groups.values() if group.shard == index]:
            self._membership.unload(group, ErrorCode.NOT_COORDINATOR)

    def _load(self, shard: Shard) -> None:
        try:
            loader = Loader(shard.partition, self._settings.integer("offsets.load.buffer.size"), self.now_ms)
        except PylogdError as error:
            self._load_failed(Failure(error), shard)
            return
        if loader.empty:
            shard.loading = False
            return

        def wanted() -> bool:
            return self._shards.get(shard.partition.index) is shard

        done = Deferred.fromCoroutine(loader.run(self._in_thread, wanted))
        done.addCallback(self._loaded, shard, loader).addErrback(self._load_failed, shard)

    def _loaded(self, groups: dict[str, Group] | None, shard: Shard, loader: Loader) -> None:
        if groups is None:
            return
        shard.loading = False
        self._groups.update(groups)
        for group in groups.values():
            self._membership.loaded(group)
        log.info(
            "{topic}-{index}: coordinating {groups} groups, read from {records} records",
            topic=OFFSETS_TOPIC, index=shard.partition.index, groups=len(groups), records=loader.records,
        )  # fmt: skip

    def _load_failed(self, failure: Failure, shard: Shard) -> None:
        index = shard.partition.index
        if self._shards.get(index) is shard:
            del self._shards[index]
        log.failure("the groups in {topic}-{index} could not be read", failure, topic=OFFSETS_TOPIC, index=index)

    def _forget(self, group: Group) -> None:
        if self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]

    def coordinator_of(self, group_id: str) -> int | ErrorCode | Deferred[int | ErrorCode]:
        """The node id of the broker that coordinates a group, or why there is none. Makes the topic if need be."""
        if self._topic.get() is None or self._topic.making:
            made = self._topic.ensure()
            return shield(made.addCallbacks(lambda _: self._leader_of(group_id), self._not_made))
        return self._leader_of(group_id)

    def _leader_of(self, group_id: str) -> int | ErrorCode:
        topic = self._topic.get()
        leader = NO_LEADER if topic is None else topic.partitions[self._topic.index_of(group_id)].leader
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if leader == NO_LEADER else leader

    @staticmethod
    def _not_made(failure: Failure) -> ErrorCode:
        if failure.check(PylogdError):
            log.error("could not make {topic}: {error}", topic=OFFSETS_TOPIC, error=failure.value)
        else:
            log.failure("could not make {topic}", failure, topic=OFFSETS_TOPIC)
        return ErrorCode.COORDINATOR_NOT_AVAILABLE

    # -- finding groups

    def _why_not(self, group_id: str, *, named: bool = True) -> ErrorCode:
        """NONE if a group of this id is, or would be, coordinated here. `named`: an empty id is refused."""
        if (named and not group_id) or (len(group_id) * 4 > MOST_TEXT and len(group_id.encode()) > MOST_TEXT):
            return ErrorCode.INVALID_GROUP_ID
        if not self._running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        shard = self._shards.get(self._topic.index_of(group_id))
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if shard.loading else _NONE

    def _new(self, group_id: str) -> Group:
        group = self._groups[group_id] = Group(group_id, self._topic.index_of(group_id), self.now_ms)
        return group

    # -- members

    def join(self, group_id: str, request: JoinRequest) -> JoinAnswer | Deferred[JoinAnswer]:
        """A client joins a group."""
        error = self._why_not(group_id) or self._check_join(request)
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
        if any(len(name) > _MOST_INSTANCE_ID for name in (request.instance_id or "", *names)):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.INVALID_REQUEST if request.instance_id == "" else _NONE

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
        """A member asks for its share of the work."""
        group = self._groups.get(group_id)
        if group is None:
            error = self._why_not(group_id)
            if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # some clients take that for the end
                error = ErrorCode.REBALANCE_IN_PROGRESS
            return SyncAnswer(error or ErrorCode.UNKNOWN_MEMBER_ID)
        return self._membership.sync(group, member_id, instance_id, generation, protocol_type, protocol, assignments)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """A member says that it lives. While the groups are being read it is believed."""
        group = self._groups.get(group_id)
        if group is not None:
            return self._membership.heartbeat(group, member_id, instance_id, generation)
        error = self._why_not(group_id)
        if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return _NONE
        return error or ErrorCode.UNKNOWN_MEMBER_ID

    def leave(self, group_id: str, leavers: Sequence[Leaver]) -> tuple[ErrorCode, list[ErrorCode]]:
        """Members leave: the error for all, or what became of each."""
        group = self._groups.get(group_id)
        if group is None:
            error = self._why_not(group_id)
            return error, [error or ErrorCode.UNKNOWN_MEMBER_ID for _ in leavers]
        return _NONE, self._membership.leave(group, leavers)

    def _store(self, group: Group, shares: dict[str, bytes]) -> ErrorCode | Deferred[ErrorCode]:
        record = group_key(group.group_id), group_value(group.to_stored(shares))
        return self._append(group, [record], lambda: setattr(group, "stored", True))

    def _append(
        self, group: Group, records: Sequence[KeyValue], then: Callable[[], object]
    ) -> ErrorCode | Deferred[ErrorCode]:
        """Append records of a group, and call `then` once they are committed."""
        shard = self._shards.get(group.shard)
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        result = self._topic.append(shard.partition, records)
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
        offsets: Sequence[tuple[Place, Committed]],
        *,
        unknown_group: ErrorCode = ErrorCode.GROUP_ID_NOT_FOUND,
    ) -> ErrorCode | Deferred[ErrorCode]:
        """Store offsets, all or none. A member of a group that is not there is answered `unknown_group`."""
        group = self._groups.get(group_id)
        if group is None:
            error = self._why_not(group_id, named=False)
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
        records = [(offset_key(group_id, *place), offset_value(committed)) for place, committed in offsets]
        known = group.offsets
        return self._append(group, records, lambda: known.update(offsets))

    def fetch(self, group_id: str) -> dict[Place, Committed] | ErrorCode:
        """The offsets of a group, not to be changed."""
        group = self._groups.get(group_id)
        if group is not None:
            return group.offsets
        return self._why_not(group_id, named=False) or {}

    def delete_offsets(
        self, group_id: str, places: Sequence[Place]
    ) -> tuple[ErrorCode | Deferred[ErrorCode], dict[Place, ErrorCode]]:
        """Delete offsets: the error for all (once the deletion is committed), and for each why it may not go."""
        group = self._groups.get(group_id)
        if group is None:
            return self._why_not(group_id) or ErrorCode.GROUP_ID_NOT_FOUND, {}
        answers = {place: may_delete(group, place[0]) for place in places}
        if ErrorCode.NON_EMPTY_GROUP in answers.values():
            return ErrorCode.NON_EMPTY_GROUP, {}
        going = [place for place, error in answers.items() if not error and place in group.offsets]
        return self._drop_offsets(group, going), answers

    def _drop_offsets(self, group: Group, places: Sequence[Place]) -> ErrorCode | Deferred[ErrorCode]:
        result: ErrorCode | Deferred[ErrorCode] = _NONE
        for some in _chunks(places):
            records: list[KeyValue] = [(offset_key(group.group_id, *place), None) for place in some]
            result = self._append(group, records, partial(self._dropped, group, some))
        return result

    @staticmethod
    def _dropped(group: Group, places: Sequence[Place]) -> None:
        for place in places:
            group.offsets.pop(place, None)

    # -- groups as administrators see them

    def groups(self) -> tuple[ErrorCode, list[Group]]:
        """Every group that is coordinated here, and COORDINATOR_LOAD_IN_PROGRESS while that may not be all."""
        if not self._running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        loading = any(shard.loading for shard in self._shards.values())
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else _NONE, list(self._groups.values())

    def describe(self, group_id: str) -> Group | ErrorCode:
        """A group, or why it is not here: GROUP_ID_NOT_FOUND if there is none."""
        group = self._groups.get(group_id)
        return group or self._why_not(group_id, named=False) or ErrorCode.GROUP_ID_NOT_FOUND

    def delete(self, group_id: str) -> ErrorCode | Deferred[ErrorCode]:
        """Delete a group that has no members, with its offsets."""
        group = self._groups.get(group_id)
        if group is None:
            return self._why_not(group_id, named=False) or ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NON_EMPTY_GROUP if group.state is not GroupState.EMPTY else self._delete(group)

    def _delete(self, group: Group) -> ErrorCode | Deferred[ErrorCode]:
        self._drop_offsets(group, list(group.offsets))  # if that fails, so does what follows
        return self._append(group, [(group_key(group.group_id), None)], lambda: self._deleted(group))

    def _deleted(self, group: Group) -> None:
        group.stored = False
        if group.state is GroupState.EMPTY:  # nobody has joined meanwhile
            self._membership.unload(group, ErrorCode.GROUP_ID_NOT_FOUND)

    # -- sweeping

    def _sweep_later(self) -> None:
        interval_ms = self._settings.integer("offsets.retention.check.interval.ms")
        self._sweeper = self._clock.callLater(interval_ms / 1000, self._sweep_old)

    def _sweep_old(self) -> None:
        self._sweep_later()
        now_ms = self.now_ms
        retention_ms = self._settings.integer("offsets.retention.minutes") * _MINUTE_MS
        self._sweep(lambda group: list(expired(group, now_ms, retention_ms)), forget_idle=True)

    def _topic_changed(self, change: TopicChange) -> None:
        if change.after is not None or change.before is None:
            return
        name, now_ms = change.before.name, self.now_ms
        self._sweep(
            lambda group: [
                place for place, found in group.offsets.items() if place[0] == name and found.committed_ms <= now_ms
            ],
            forget_idle=False,
        )

    def _sweep(self, going: Callable[[Group], list[Place]], *, forget_idle: bool) -> None:
        """Delete the offsets that `going` names in every group, and groups that have nothing left."""
        self._sweep_some(iter(list(self._groups.values())), going, forget_idle)

    def _sweep_some(self, groups: Iterator[Group], going: Callable[[Group], list[Place]], forget_idle: bool) -> None:
        some = list(islice(groups, _SWEPT_AT_ONCE))
        for group in some:
            if group.state is not GroupState.DEAD:
                self._drop_offsets(group, going(group))
                if forget_idle and group.state is GroupState.EMPTY and not (group.offsets or group.pending):
                    self._delete(group)
        self._sweeps = [call for call in self._sweeps if call.active()]
        if len(some) == _SWEPT_AT_ONCE and self._running:
            self._sweeps.append(self._clock.callLater(0, self._sweep_some, groups, going, forget_idle))


def _chunks(places: Sequence[Place]) -> Iterable[Sequence[Place]]:
    return (places[at : at + MOST_RECORDS] for at in range(0, len(places), MOST_RECORDS))
