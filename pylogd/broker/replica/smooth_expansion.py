"""Smooth expansion: replicas that began with the latest offset join once no group needs the records that they lack.

Strategy: in a reassignment new replicas may begin with the leader's latest offset (`PartitionState.latest_until_ms`),
so that no old records are read from disk. Until that time they don't join the in-sync set, since a consumer that is
further behind would lose records if one of them led. The partition's leader knows where they begin. Every
`LOOK_SECONDS` it asks all brokers for the committed offsets of their groups, and the metadata for those of groups in
ZooKeeper. Once every group with an offset of the partition is past that point, the leader ends the wait in the
partition's state. If the time is over before, it asks once more and logs which groups were not waited for.

Rules: no wait is ended while a broker can't be asked. Groups without an offset of the partition, and consumers outside
of groups, are not considered; the time limit is for them. A wait is not ended either after a new replica's broker has
registered again: it may have another disk, on which its log begins later, after offsets that groups have yet to read.
Idempotent producers are waited for too, for `PRODUCER_SECONDS`, if the new replicas have no batch of theirs: if such a
producer sent an earlier batch again, a new leader without that batch would append it a second time.

Must not know: how groups are kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from pylogd.base.errors import KafkaError, PylogdError, error_for
from pylogd.broker.metadata.cluster import Cluster
from pylogd.broker.metadata.image import SmoothWait
from pylogd.broker.metadata.topics import TopicRegistry
from pylogd.broker.replica.partition_registry import PartitionRegistry
from pylogd.wire.messages.list_groups import ListGroupsRequest
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics

log = Logger()

LOOK_SECONDS = 5.0
#: How long a producer may send a batch again whose answer was lost: Kafka's default of `delivery.timeout.ms`.
PRODUCER_SECONDS = 120.0
_OFFSETS_TOPIC = "__consumer_offsets"
#: The version of OffsetFetch with many groups and topics by name.
_VERSION = 8

Key = tuple[str, int]
#: The offset that each group has committed, by partition.
GroupOffsets = dict[Key, dict[str, int]]


class GroupsConnection(Protocol):
    """The methods of a connection to a broker that this module needs."""

    def request(self, message: Any, *, version: int | None = None) -> Deferred[Any]: ...
    def close(self) -> object: ...


@dataclass(slots=True)
class _Wait:
    """A wait.

    begin: the offset from which all new replicas have records.
    since: when the wait was first seen, in seconds.
    """

    begin: int
    state: SmoothWait
    since: float


class AwaitedProducers(NamedTuple):
    """Producers whose last batch is before an offset are waited for until a time, in ms since 1970."""

    before: int
    until_ms: int


class SmoothJoins:
    """Ends the waits of new replicas, for partitions that this broker leads."""

    def __init__(
        self,
        partitions: PartitionRegistry,
        cluster: Cluster,
        topics: TopicRegistry,
        connect: Callable[[int], Deferred[Any]],
        committed: Callable[[Iterable[str]], Awaitable[Mapping[Key, Mapping[str, int]]]],
        release: Callable[[Mapping[Key, SmoothWait]], Deferred[Any]],
        clock: IReactorTime,
        now_ms: Callable[[], int],
        look_seconds: float = LOOK_SECONDS,
        producer_seconds: float = PRODUCER_SECONDS,
    ) -> None:
        """End waits.

        connect: takes a broker's id, and returns a connection to the broker.
        committed: returns the offsets that groups in ZooKeeper have committed, for each partition of the given topics.
        release: ends the wait of partitions, and fires with the error for each, or None.
        now_ms: the wall clock, by which waits end.
        look_seconds: the time between two checks of the groups.
        producer_seconds: how long producers are waited for.
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
        self._producer_seconds = producer_seconds
        self._call: IDelayedCall | None = None
        #: The partitions that were waiting at the last check.
        self._waits: dict[Key, _Wait] = {}

    def start(self) -> None:
        """Check the groups periodically."""
        self._call = self._clock.callLater(self._look_seconds, self._look)

    def stop(self) -> None:
        """Stop checking."""
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._call = None

    def _look(self) -> None:
        waits = self._find_waits()
        now_ms = self._now_ms()
        late = {key: one for key, one in self._waits.items() if key not in waits and one.state.until_ms <= now_ms}
        self._waits = waits
        done = Deferred.fromCoroutine(self._end_waits(dict(waits), late)) if waits or late else succeed(None)
        done.addErrback(lambda failure: log.failure("Unexpected error while reading group offsets", failure=failure))
        done.addBoth(lambda _: self.start() if self._call is not None else None)

    def _find_waits(self) -> dict[Key, _Wait]:
        """Return the waits of partitions led here whose new replicas have all reported their first offset."""
        now_ms, now = self._now_ms(), self._clock.seconds()
        found = {}
        for key, partition in self._partitions.replicated.items():
            state = partition.state
            if state is None or (state.latest_until_ms or 0) <= now_ms or state.leader != self._cluster.node_id:
                continue
            progress = {node: partition.followers.get(node) for node in state.adding if node not in state.isr}
            starts = [-1 if one is None else one.log_start for one in progress.values()]
            if starts and min(starts) >= 0:
                epochs = {node: one.broker_epoch for node, one in progress.items() if one is not None}
                wait = _Wait(max(starts), SmoothWait(state.latest_until_ms or 0, epochs), now)
                before = self._waits.get(key)
                if before is not None and (before.begin, before.state) == (wait.begin, wait.state):
                    wait.since = before.since
                found[key] = wait
        return found

    async def _end_waits(self, waits: Mapping[Key, _Wait], late: Mapping[Key, _Wait]) -> None:
        """End the waits that no group needs. Report the groups of waits whose time is over."""
        try:
            behind = await self._behind({key: wait.begin for key, wait in {**waits, **late}.items()})
        except PylogdError as error:
            log.info("Smooth expansion: the offsets of all consumer groups can't be read yet: {error}", error=error)
            self._waits.update(late)  # report them at the next check
            return
        for key, wait in late.items():
            _report_late(key, wait.begin, behind.get(key, {}))
        free = {key: wait for key, wait in waits.items() if key not in behind and not self._producers_behind(key, wait)}
        if not free:
            return
        try:
            outcomes = await self._release({key: wait.state for key, wait in free.items()})
        except PylogdError as error:
            log.info("Smooth expansion: the wait of {keys} can't be ended yet: {error}", keys=list(free), error=error)
            return
        ended = [key for key in free if outcomes.get(key) is None]
        for key in ended:
            self._waits.pop(key, None)
        if ended:
            log.info("Smooth expansion: every group has read up to the start of the new replicas of {keys}", keys=ended)

    def awaited_producers(self, key: Key) -> AwaitedProducers | None:
        """Return which producers the new replicas of a partition that is led here wait for, and until when.

        Return None if they wait for none, or were not seen yet.
        """
        wait = self._waits.get(key)
        return None if wait is None else self._awaited(wait)

    def _awaited(self, wait: _Wait) -> AwaitedProducers | None:
        left = self._producer_seconds - (self._clock.seconds() - wait.since)
        if left <= 0:
            return None
        return AwaitedProducers(wait.begin, int(min(self._now_ms() + left * 1000, wait.state.until_ms)))

    def _producers_behind(self, key: Key, wait: _Wait) -> bool:
        """Return whether a producer may send a batch again that the new replicas do not have."""
        partition, awaited = self._partitions.replicated.get(key), self._awaited(wait)
        if partition is None or not partition.online or awaited is None:
            return False
        return any(one.last_offset < awaited.before for one in list(partition.log.producers.by_id.values()))

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
    """Add the groups of a broker that have not read far enough."""
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
        log.info("Smooth expansion of {name}: the wait has timed out; no consumer group is behind", name=name)
        return
    log.warn(
        "Smooth expansion of {name}: the wait has timed out. Its new replicas, which begin at offset {begin}, may "
        "join and lead, although these groups have not read up to it: {groups}. To keep the unread records, cancel "
        "the reassignment if it is still in progress, or let the groups read the records before a new replica leads",
        name=name, begin=begin,
        groups=", ".join(f"{group} (at offset {offset})" for group, offset in sorted(groups.items())),
    )  # fmt: skip


def _check(code: int) -> None:
    if code:
        raise KafkaError(error_for(code))
