"""Consumers of both protocols in one group, as clients behave, on a coordinator whose log is a list.

Classic consumers are eager or cooperative; newer ones heartbeat. A coordinator can be replaced at any moment by one
that loads the log. Answers can be lost. A `World` knows who uses which partitions, and fails if two use the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock, deferLater

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups import GroupCoordinator
from pylogd.broker.groups.consumer.embedded import assignment_for, read_assignment, read_subscription
from pylogd.broker.groups.consumer.heartbeats import Heartbeat
from pylogd.broker.groups.consumer.members import JOINING, LEAVING
from pylogd.broker.groups.group_log import Shard
from pylogd.broker.groups.loader import GroupLoader
from pylogd.broker.groups.values import JoinAnswer, JoinRequest, LeavingMember, SyncAnswer, SyncRequest
from pylogd.broker.metadata.image import Topic
from pylogd.broker.replica.internal_records import INT, SHORT, text_field
from pylogd.broker.replica.internal_topic import KeyValue
from pylogd.config import Settings
from tests.fakes.indexes import check_classic_group, check_held_group

GROUP = "g"
SESSION = 10.0
REBALANCE = 30.0
#: A topic and the index of a partition.
Partition = tuple[str, int]

_NONE = ErrorCode.NONE
_RETRY = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_ALL_COMMITTED = 1 << 62
_HEADER: Any = SimpleNamespace(is_transactional=False, producer_id=-1, producer_epoch=-1)


def subscription(topics: Iterable[str], owned: Iterable[Partition], *, cooperative: bool) -> bytes:
    """Encode what a classic consumer says when it joins, in version 1."""
    names = sorted(topics)
    parts = [SHORT.pack(1), INT.pack(len(names)), *map(text_field, names), INT.pack(-1)]
    has = sorted(owned) if cooperative else []
    parts.append(INT.pack(len(has)))
    for topic, index in has:
        parts += (text_field(topic), INT.pack(1), INT.pack(index))
    return b"".join(parts)


class OffsetsTopic:
    """The offsets topic: appends at once, or, while `waits`, when it is told to. refuses: what appends answer then."""

    def __init__(self) -> None:
        self.records: list[KeyValue] = []
        self.waits = False
        self.refuses = _NONE
        self.waiting: list[tuple[Sequence[KeyValue], Callable[[int], object] | None, Deferred[ErrorCode]]] = []

    def index_of(self, name: str) -> int:
        return 0

    def append(
        self, partition: object, records: Sequence[KeyValue], on_append: Callable[[int], object] | None = None
    ) -> ErrorCode | Deferred[ErrorCode]:
        if self.refuses:
            return self.refuses
        if self.waits or self.waiting:
            result: Deferred[ErrorCode] = Deferred()
            self.waiting.append((records, on_append, result))
            return result
        self._log(records, on_append)
        return _NONE

    def _log(self, records: Sequence[KeyValue], on_append: Callable[[int], object] | None) -> None:
        self.records += records
        if on_append is not None:
            on_append(len(self.records) - len(records))

    def go_on(self) -> None:
        """Append what waits, in order."""
        self.waits = False
        while self.waiting:
            records, on_append, result = self.waiting[0]
            self._log(records, on_append)
            del self.waiting[0]
            result.callback(_NONE)


class World:
    """A group, its coordinator, its topics and its consumers."""

    def __init__(self, topics: dict[str, Topic], **settings: str) -> None:
        self.clock = Clock()
        self.topics = topics
        self.log = OffsetsTopic()
        self.settings = Settings({"group.initial.rebalance.delay.ms": "0", **settings})
        self.consumers: list[Consumer] = []
        self.coordinator = self._coordinator()

    def _coordinator(self) -> GroupCoordinator:
        registry = SimpleNamespace(
            get=self.topics.get,
            by_id=lambda topic_id: next((one for one in self.topics.values() if one.topic_id == topic_id), None),
            was_deleted=lambda name, topic_id: name not in self.topics or self.topics[name].topic_id != topic_id,
            unreadable={},
        )
        replicas = SimpleNamespace(partitions=None, disk_calls=None, manager=None, hosting=None)
        configs = SimpleNamespace(integer=lambda group_id, name: self.settings.group_value({}, name))
        metadata = SimpleNamespace(topics=registry, topic_admin=None, group_configs=configs)
        made = GroupCoordinator(
            cast(Any, replicas), cast(Any, metadata), self.settings, cast(Any, self.clock), self._now_ms,
            partial(deferLater, cast(Any, self.clock), 0),
        )  # fmt: skip
        made._led.log.topic = cast(Any, self.log)
        made._led.running = True
        return made

    def _now_ms(self) -> int:
        return 7 + round(self.clock.seconds() * 1000)

    def load(self) -> None:
        """Let a new coordinator take over: it knows what is in the log, and nothing else."""
        before, self.coordinator = self.coordinator, self._coordinator()
        lost, self.log.waiting, self.log.waits = self.log.waiting, [], False
        log = SimpleNamespace(log_start_offset=0, log_end_offset=len(self.log.records))
        loader = GroupLoader(cast(Any, SimpleNamespace(index=0, log=log)), 1, 7)
        for offset, (key, value) in enumerate(self.log.records):
            loader.apply(_HEADER, cast(Any, SimpleNamespace(key=key, value=value, offset=offset)))
        shard = Shard(cast(Any, SimpleNamespace(index=0, high_watermark=_ALL_COMMITTED)))
        self.coordinator._led.log.shards[0] = shard
        self.coordinator._led._loaded(loader.make(), shard, loader)
        before._led._unload(0)
        before._led.log.shards.clear()
        before._consumers.unload(lambda group_id: True)
        before._led.running = False
        for _, _, result in lost:
            result.callback(ErrorCode.NOT_COORDINATOR)

    def owned(self) -> list[Partition]:
        """Return the partitions that consumers use, each as often as it is used."""
        return sorted(partition for consumer in self.consumers for partition in consumer.owned)

    def check(self) -> None:
        """Fail if two consumers use the same partition, or if an index is not in step with the members."""
        for group in self.coordinator._groups.values():
            check_classic_group(group)
        for held in self.coordinator._consumers._held.values():
            check_held_group(held)
        owned = self.owned()
        assert len(owned) == len(set(owned)), [(one.name, sorted(one.owned)) for one in self.consumers]

    def tick(self) -> None:
        """Let each consumer do what is due."""
        for consumer in list(self.consumers):
            consumer.tick()
            self.check()

    @property
    def epoch(self) -> int:
        """The epoch or generation of the group."""
        consumers = self.coordinator._consumers.get(GROUP)
        if consumers is not None:
            return consumers.epoch
        group = self.coordinator._groups.get(GROUP)
        return 0 if group is None else group.generation

    @property
    def member_ids(self) -> set[str]:
        """The members that the coordinator knows."""
        consumers = self.coordinator._consumers.get(GROUP)
        group = self.coordinator._groups.get(GROUP)
        return {*(consumers.members if consumers else ()), *(group.members if group else ())}

    def all_partitions(self) -> set[Partition]:
        """Return the partitions of all topics that any consumer subscribes to."""
        wanted = {topic for consumer in self.consumers for topic in consumer.topics}
        return {(name, index) for name in wanted for index in range(len(self.topics[name].partitions))}


def share_out(members: Iterable[Any], counts: Mapping[str, int]) -> dict[str, bytes]:
    """Assign as the leader of a classic group: what others have is left to them, or to nobody for now.

    members: as JoinGroup answers them to the leader. counts: the number of partitions of each topic.
    """
    said = {member.member_id: read_subscription(member.metadata) for member in members}
    shares: dict[str, set[Partition]] = {member_id: set() for member_id in said}
    owners = {partition: member_id for member_id, one in said.items() for partition in one.owned}
    for topic in sorted({topic for one in said.values() for topic in one.topics}):
        for index in range(counts[topic]):
            takers = [member_id for member_id, one in said.items() if topic in one.topics]
            least = min(takers, key=lambda member_id: (len(shares[member_id]), member_id))
            shares[least].add((topic, index))
    for member_id, share in shares.items():
        share -= {one for one in share if owners.get(one, member_id) != member_id}
    return {
        member_id: assignment_for(
            {topic: sorted(i for name, i in share if name == topic) for topic, _ in share}, b"\0\0"
        )
        for member_id, share in shares.items()
    }


class Consumer:
    """A consumer as the coordinator sees it. owned: the partitions that it uses. slow: it gives up none for now."""

    def __init__(self, world: World, name: str, topics: set[str], random: Random, instance_id: str | None) -> None:
        self.world = world
        self.name = name
        self.topics = topics
        self.random = random
        self.instance_id = instance_id
        self.owned: set[Partition] = set()
        self.lossy = 0.0
        world.consumers.append(self)

    @property
    def loses(self) -> bool:
        """Whether the next answer is lost."""
        return self.random.random() < self.lossy

    def tick(self) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        raise NotImplementedError

    def subscribe(self, topics: set[str]) -> None:
        self.topics = topics

    def die(self) -> None:
        """Stop without a word."""
        self.owned = set()
        self.world.consumers.remove(self)


class NewConsumer(Consumer):
    """A consumer of the newer protocol: ids are those of topics, so partitions are looked up by name."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.epoch = JOINING
        self.full = True
        self.told: frozenset[str] = frozenset()
        self.waiting: Deferred[Any] | None = None

    def tick(self) -> None:
        if self.waiting is not None:
            return
        ids = {(self.world.topics[name].topic_id, index) for name, index in self.owned}
        joins = self.epoch == JOINING
        full = self.full or joins or self.told != self.topics
        request = Heartbeat(
            self.name, self.epoch, self.instance_id,
            rebalance_ms=round(REBALANCE * 1000) if full else -1,
            topics=frozenset(self.topics) if full else None,
            owned=frozenset(ids),
        )  # fmt: skip
        lost, topics = self.loses, frozenset(self.topics)
        result = self.world.coordinator.consumer_heartbeat(GROUP, request, lambda _: frozenset())
        if isinstance(result, Deferred):
            self.waiting = result.addCallback(self._answered, lost, topics)
        else:
            self._answered(result, lost, topics)

    def _answered(self, answer: Any, lost: bool, topics: frozenset[str]) -> None:
        self.waiting = None
        if lost or answer.error in _RETRY:
            self.full = True
            return
        if answer.error:
            self.owned, self.epoch, self.full = set(), JOINING, True
            return
        self.epoch, self.full, self.told = answer.epoch, False, topics
        if answer.assignment is not None:
            names = {topic.topic_id: topic.name for topic in self.world.topics.values()}
            self.owned = {(names[topic_id], index) for topic_id, index in answer.assignment}

    def leave(self) -> None:
        self.owned = set()
        if self.epoch > JOINING:
            request = Heartbeat(self.name, LEAVING, self.instance_id)
            self.world.coordinator.consumer_heartbeat(GROUP, request, lambda _: frozenset())
        self.world.consumers.remove(self)


class ClassicConsumer(Consumer):
    """A consumer of the classic protocol, eager or cooperative."""

    def __init__(self, *args: Any, cooperative: bool) -> None:
        super().__init__(*args)
        self.cooperative = cooperative
        self.member_id = ""
        self.generation = -1
        self.joins = True
        self.joined_with: dict[str, int] = {}
        self.waiting: Deferred[Any] | None = None

    def tick(self) -> None:
        if self.waiting is not None:
            return
        if self.joins or self.joined_with != self._counts():
            self._join()
            return
        error = self.world.coordinator.heartbeat(GROUP, self.member_id, self.instance_id, self.generation)
        if not self.loses:
            self._failed(error)

    def _counts(self) -> dict[str, int]:
        """Return the numbers of partitions of its topics: a consumer that sees them change joins again."""
        return {name: len(self.world.topics[name].partitions) for name in self.topics}

    def _failed(self, error: ErrorCode) -> None:
        if error in (_NONE, *_RETRY):
            return
        self.joins = True
        if error == ErrorCode.REBALANCE_IN_PROGRESS:
            return
        self.owned = set()
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""

    def _join(self) -> None:
        if not self.cooperative:
            self.owned = set()
        self.joined_with = self._counts()
        name = "cooperative-sticky" if self.cooperative else "range"
        metadata = subscription(self.topics, self.owned, cooperative=self.cooperative)
        request = JoinRequest(
            self.member_id, self.instance_id, self.name, "/h", SESSION, REBALANCE, "consumer", ((name, metadata),),
            needs_known_id=True, can_skip=True,
        )  # fmt: skip
        self._ask(self.world.coordinator.join(GROUP, request), self._joined)

    def _ask(self, result: Any, then: Callable[[Any], None]) -> None:
        lost = self.loses

        def answered(answer: Any) -> None:
            self.waiting = None
            if self not in self.world.consumers:
                return
            if lost:
                self.joins = True
            else:
                then(answer)

        if isinstance(result, Deferred):
            self.waiting = result
            result.addCallback(answered)
        else:
            answered(result)

    def _joined(self, answer: JoinAnswer) -> None:
        if answer.error == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return
        if answer.error:
            self._failed(answer.error)
            return
        self.member_id, self.generation = answer.member_id, answer.generation
        leads = answer.leader == self.member_id and not answer.skip_assignment
        counts = {name: len(topic.partitions) for name, topic in self.world.topics.items()}
        given = share_out(answer.members, counts) if leads else {}
        request = SyncRequest(
            self.member_id, self.instance_id, self.generation, answer.protocol_type, answer.protocol, given
        )
        result = self.world.coordinator.sync(GROUP, request)
        self._ask(result, self._synced)

    def _synced(self, answer: SyncAnswer) -> None:
        if answer.error:
            self._failed(answer.error if answer.error not in _RETRY else ErrorCode.REBALANCE_IN_PROGRESS)
            return
        found, _ = read_assignment(answer.assignment)
        lost, self.owned = self.owned - found, set(found)
        self.joins = bool(lost) and self.cooperative

    def leave(self) -> None:
        self.owned = set()
        self.world.consumers.remove(self)
        if self.member_id:
            self.world.coordinator.leave(GROUP, [LeavingMember(self.member_id, self.instance_id)])
