"""Smooth expansion: replicas that began with the latest offset join once no group needs the records that they lack.

Strategy: in a reassignment new replicas may begin with the leader's latest offset (`PartitionState.latest_until_ms`),
so that no old records are read from disk. Until that time they don't join the in-sync set, since a consumer that is
further behind would lose records if one of them led. The partition's leader knows where they begin. Every
`LOOK_SECONDS` it asks all brokers which offsets their groups have committed, and the metadata for those of groups in
ZooKeeper. Once every group that has an offset of the partition is past that point, it ends the wait in the partition's
state. When the time is over first, it asks once more and logs which groups were not waited for.

Rules: no wait is ended while a broker can't be asked. Groups without an offset of the partition, and consumers outside
of groups, are not waited for; the time is meant for them.

Must not know: how groups are kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from pylogd.errors import KafkaError, PylogdError, error_for
from pylogd.metadata.cluster import Cluster
from pylogd.metadata.topics import TopicRegistry
from pylogd.replica.partition_registry import PartitionRegistry
from pylogd.wire.messages.list_groups import ListGroupsRequest
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics

log = Logger()

LOOK_SECONDS = 5.0
_OFFSETS_TOPIC = "__consumer_offsets"
#: Of OffsetFetch: the version with many groups and topics by name.
_VERSION = 8

Key = tuple[str, int]
#: The offset that each group has committed, by partition.
GroupOffsets = dict[Key, dict[str, int]]


class GroupsConnection(Protocol):
    """What is needed of a connection to a broker."""

    def request(self, message: Any, *, version: int | None = None) -> Deferred[Any]: ...
    def close(self) -> object: ...


class SmoothJoins:
    """Ends the waits of new replicas, of partitions that this broker leads."""

    def __init__(
        self,
        partitions: PartitionRegistry,
        cluster: Cluster,
        topics: TopicRegistry,
        connect: Callable[[int], Deferred[Any]],
        committed: Callable[[Iterable[str]], Awaitable[Mapping[Key, Mapping[str, int]]]],
        release: Callable[[Iterable[Key]], Deferred[Any]],
        clock: IReactorTime,
        now_ms: Callable[[], int],
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """connect: opens a connection to a broker by its id. committed: returns the offsets that groups in ZooKeeper
        have committed, for each partition of the given topics. release: ends the wait of partitions. now_ms: the wall
        clock, by which waits end. look_seconds: the time between two looks at the groups.
        """
        self._partitions = partitions
        self._cluster = cluster
        self._topics = topics
        self._connect = connect
        self._committed = committed
        self._release = release
        self._clock = clock
        self._now_ms = now_ms
        self._look_seconds = look_seconds
        self._call: IDelayedCall | None = None
        #: Of each partition that waited at the last look: where its new replicas begin, and until when it waits.
        self._waits: dict[Key, tuple[int, int]] = {}

    def start(self) -> None:
        """Look at the groups from time to time."""
        self._call = self._clock.callLater(self._look_seconds, self._look)

    def stop(self) -> None:
        """Stop looking."""
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._call = None

    def _look(self) -> None:
        begins = self._begins()
        now_ms, waited = self._now_ms(), self._waits
        late = {key: begin for key, (begin, until) in waited.items() if key not in begins and until <= now_ms}
        self._waits = {key: (begin, self._until(key)) for key, begin in begins.items()}
        done = Deferred.fromCoroutine(self._end_waits(begins, late)) if begins or late else Deferred()
        done.addErrback(lambda failure: log.failure("Unexpected error while reading group offsets", failure=failure))
        done.addBoth(lambda _: self.start() if self._call is not None else None)
        if not begins and not late:
            done.callback(None)

    def _until(self, key: Key) -> int:
        state = self._partitions.replicated[key].state
        return 0 if state is None else state.latest_until_ms or 0

    def _begins(self) -> dict[Key, int]:
        """Return, for each partition led here that has a wait, the offset from which all new replicas have records."""
        now_ms = self._now_ms()
        found = {}
        for key, partition in self._partitions.replicated.items():
            state = partition.state
            if state is None or (state.latest_until_ms or 0) <= now_ms or state.leader != self._cluster.node_id:
                continue
            progress = [partition.followers.get(node) for node in state.adding if node not in state.isr]
            starts = [one.log_start if one is not None else -1 for one in progress]
            if starts and min(starts) >= 0:
                found[key] = max(starts)
        return found

    async def _end_waits(self, begins: Mapping[Key, int], late: Mapping[Key, int]) -> None:
        """End the waits that no group needs; report the groups that others no longer wait for."""
        try:
            behind = await self._behind({**begins, **late})
        except PylogdError as error:
            log.info("Smooth expansion: the offsets of all consumer groups can't be read yet: {error}", error=error)
            self._waits.update((key, (begin, 0)) for key, begin in late.items())  # report them at the next look
            return
        for key, begin in late.items():
            _report_late(key, begin, behind.get(key, {}))
        free = [key for key in begins if key not in behind]
        if free:
            log.info("Smooth expansion: every group has read up to the start of the new replicas of {keys}", keys=free)
            for key in free:
                self._waits.pop(key, None)
            await self._release(free)

    async def _behind(self, begins: Mapping[Key, int]) -> GroupOffsets:
        """Return the groups that have not yet read the records that the new replicas lack, by partition."""
        offsets = self._topics.get(_OFFSETS_TOPIC)
        brokers = self._cluster.brokers
        if offsets is not None and any(state.leader not in brokers for state in offsets.partitions):
            raise PylogdError(f"a partition of {_OFFSETS_TOPIC} has no leader")
        behind: GroupOffsets = {}
        for node in brokers:
            connection: GroupsConnection = await self._connect(node)
            try:
                await _add_behind(behind, connection, begins)
            finally:
                connection.close()
        for key, groups in (await self._committed({topic for topic, _ in begins})).items():
            for group, offset in groups.items():
                if offset < begins.get(key, 0):
                    behind.setdefault(key, {})[group] = offset
        return behind


async def _add_behind(behind: GroupOffsets, connection: GroupsConnection, begins: Mapping[Key, int]) -> None:
    """Add the groups of a broker that are behind."""
    listed = await connection.request(ListGroupsRequest())
    _check(listed.error_code)
    indexes: dict[str, list[int]] = {}
    for topic, index in begins:
        indexes.setdefault(topic, []).append(index)
    topics = [OffsetFetchRequestTopics(name, partition_indexes=found) for name, found in indexes.items()]
    groups = [OffsetFetchRequestGroup(group.group_id, topics=topics) for group in listed.groups]
    if not groups:
        return
    fetched = await connection.request(OffsetFetchRequest(groups=groups), version=_VERSION)
    for group in fetched.groups:
        _check(group.error_code)
        for topic in group.topics:
            for one in topic.partitions:
                _check(one.error_code)
                key = (topic.name, one.partition_index)
                if 0 <= one.committed_offset < begins[key]:
                    behind.setdefault(key, {})[group.group_id] = one.committed_offset


def _report_late(key: Key, begin: int, groups: Mapping[str, int]) -> None:
    """Log that the time is over, and which groups have not read up to the begin of the new replicas."""
    name = f"{key[0]}-{key[1]}"
    if not groups:
        log.info("Smooth expansion of {name}: its time is over; no consumer group is behind", name=name)
        return
    log.warn(
        "Smooth expansion of {name}: its time is over, and its new replicas, which begin at offset {begin}, may join "
        "and lead without waiting for these groups: {groups}. To keep the records that they have not read, cancel the "
        "reassignment if it still runs, or have them read on before one of the new replicas leads",
        name=name, begin=begin,
        groups=", ".join(f"{group} (at offset {offset})" for group, offset in sorted(groups.items())),
    )  # fmt: skip


def _check(code: int) -> None:
    if code:
        raise KafkaError(error_for(code))
