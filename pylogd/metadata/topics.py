"""The topics of the cluster: looked up in memory, changed in the tree.

Strategy: every topic is an immutable `Topic` in two dicts, by name and by id, so look-ups are synchronous and O(1)
whatever the number of topics. A change is checked, written with the version it was worked out from, and comes back
through the change feed, which is the one way into the dicts for this broker's writes and for everybody else's.

Rules: a Deferred of a change fires once the look-ups have it and subscribers were told. Nothing is written by
`validate_only`. Each change is atomic: a topic and its settings come and go together.

Must not know: requests, logs.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from twisted.internet.defer import Deferred, FirstError, gatherResults
from twisted.logger import Logger

from pylogd.config import TOPIC_SETTINGS, ConfigError, Settings
from pylogd.errors import PylogdError
from pylogd.metadata.assignment import Replicas, assign_replicas, check_assignment
from pylogd.metadata.changes import ChangeFeed
from pylogd.metadata.cluster import Cluster
from pylogd.metadata.configs import ATTEMPTS, ConfigChange, apply_changes, read_configs, write_configs
from pylogd.metadata.errors import (
    BadVersion,
    InvalidChange,
    InvalidConfig,
    InvalidNode,
    InvalidPartitions,
    InvalidTopicName,
    NodeExists,
    NoNode,
    NotEmpty,
    StalePartition,
    TopicDeletionDisabled,
    TopicExists,
    UnknownTopic,
)
from pylogd.metadata.image import (
    INTERNAL_TOPICS,
    IsrChange,
    PartitionState,
    Topic,
    TopicChange,
    TopicUpdate,
    check_topic_name,
    collision_key,
    new_id,
)
from pylogd.metadata.interfaces import Check, Create, Delete, IMetadataStore, Node, Operation, SetData
from pylogd.metadata.isr import IsrWriter
from pylogd.metadata.layout import (
    TOPIC_CONFIGS,
    TOPICS,
    Assignment,
    decode_configs,
    decode_states,
    decode_topic,
    encode_configs,
    encode_states,
    encode_topic,
    state_path,
    topic_config_path,
    topic_of_path,
    topic_path,
)

log = Logger()

TopicListener = Callable[[TopicChange], None]

#: (created, version) of a node: what it says, as long as they are the same.
_Stamp = tuple[int, int]
_NO_NODE: Final = (-1, -1)
#: What one multi of many topics has at most, well below what a store takes.
_BATCH_TOPICS: Final = 500
_BATCH_BYTES: Final = 500_000


@dataclass(frozen=True, slots=True)
class _Entry:
    """A topic as it was decoded, and of which contents of its nodes: topic, states, settings."""

    topic: Topic
    assignment: Assignment
    controller_epoch: int
    nodes: tuple[_Stamp, _Stamp, _Stamp]

    @property
    def assignment_version(self) -> int:
        return self.nodes[0][1]

    @property
    def state_version(self) -> int:
        return self.nodes[1][1]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class TopicRegistry:
    """Every topic of the cluster."""

    def __init__(
        self, store: IMetadataStore, settings: Settings, cluster: Cluster, feed: ChangeFeed,
        now_ms: Callable[[], int] = _now_ms,
    ) -> None:  # fmt: skip
        self._store = store
        self._settings = settings
        self._cluster = cluster
        self._feed = feed
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._entries: dict[str, _Entry] = {}
        self._isr = IsrWriter(self, cluster, feed, now_ms)
        #: Names by `collision_key`, those of topics in the making among them.
        self._collisions: dict[str, str] = {}
        self._listeners: list[TopicListener] = []
        feed.add(self)

    # -- look-ups

    def get(self, name: str) -> Topic | None:
        """The topic of that name."""
        return self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        """The topic of that id, 16 bytes."""
        return self._by_id.get(topic_id)

    def all(self) -> list[Topic]:
        """Every topic, in order of the names."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def __len__(self) -> int:
        return len(self._by_name)

    def subscribe(self, listener: TopicListener) -> Callable[[], None]:
        """Call `listener` with each change from now on, after the look-ups have it; returns the undoing. Before the
        registry is started every topic comes as a change.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # -- changes

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        assignment: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str | None] | None = None,
        validate_only: bool = False,
    ) -> Deferred[Topic]:
        """Make a topic, with the broker's defaults for what is None (or -1), or with replicas by partition index.

        Fails with `InvalidTopicName`, `TopicExists`, `InvalidPartitions`, `InvalidReplicationFactor`,
        `InvalidReplicaAssignment`, `InvalidConfig` or `InvalidChange`.
        """
        return Deferred.fromCoroutine(
            self._create(name, partitions, replication_factor, assignment, configs or {}, validate_only)
        )

    def delete_topic(self, name: str) -> Deferred[None]:
        """Delete a topic. Fails with `UnknownTopic` or `TopicDeletionDisabled`."""
        return Deferred.fromCoroutine(self._delete(name))

    def add_partitions(
        self,
        name: str,
        total: int,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> Deferred[Topic]:
        """Raise the number of partitions to `total`; `assignment` has the replicas of the new ones. Fails with
        `UnknownTopic`, `InvalidPartitions`, `InvalidReplicaAssignment` or `InvalidReplicationFactor`.
        """
        return Deferred.fromCoroutine(self._add_partitions(name, total, assignment, validate_only))

    def set_topic_configs(
        self, name: str, configs: Mapping[str, str | None], *, validate_only: bool = False
    ) -> Deferred[Topic]:
        """Make `configs` all of the topic's own settings. Fails with `UnknownTopic` or `InvalidConfig`."""
        return Deferred.fromCoroutine(self._write_configs(name, None, configs, validate_only))

    def alter_topic_configs(
        self, name: str, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> Deferred[Topic]:
        """Do `changes` to the topic's own settings. Fails with `UnknownTopic`, `InvalidConfig`, `InvalidChange`."""
        return Deferred.fromCoroutine(self._write_configs(name, changes, {}, validate_only))

    # -- partition states

    def alter_isr(self, changes: Sequence[IsrChange]) -> Deferred[list[PartitionState | PylogdError]]:
        """Write in-sync sets, as the leader of their partitions; what became of each, in order: the new state, once it
        is written and the look-ups have it, or why there is none.

        `FencedLeader`, `StalePartition`, `IneligibleReplica`, `UnknownTopic`: look at the partition anew. After a
        `StoreError` the write may or may not have been done.
        """
        return self._isr.alter(changes)

    def write_states(
        self,
        updates: Sequence[TopicUpdate],
        controller_epoch: int | None = None,
        guards: Sequence[Operation] = (),
        last: Sequence[Operation] = (),
    ) -> Deferred[None]:
        """Write partitions' states and assignments, all of a topic's together, many topics in few writes. The versions
        are those of the look-ups at the time of the call.

        `guards` go before each write; `last` are done with the last. Fails with what `multi` fails with: `BadVersion`
        or `NoNode` if a topic, or a guard, has changed. What was written before that stays. Fires once the look-ups
        have it all.
        """
        batches: list[tuple[list[Operation], list[str]]] = [([], [])]
        size = 0
        for update in updates:
            operations = self._update(update, controller_epoch)
            more = sum(len(one.data) for one in operations if isinstance(one, SetData))
            if len(batches[-1][1]) == _BATCH_TOPICS or (size + more > _BATCH_BYTES and batches[-1][1]):
                batches.append(([], []))
                size = 0
            batches[-1][0].extend(operations)
            batches[-1][1].append(state_path(update.before.name, update.before.topic_id))
            size += more
        batches[-1][0].extend(last)
        batches[-1][1].extend(operation.path for operation in last)
        batches[-1][1].extend(operation.path for operation in last)

        async def write() -> None:
            for operations, paths in batches:
                await self._feed.write([*guards, *operations], paths)

        return Deferred.fromCoroutine(write())

    def catch_up(self) -> Deferred[None]:
        """Fires when the look-ups have what the tree has now, whoever wrote it."""
        return Deferred.fromCoroutine(self._feed.catch_up())

    def make_missing_states(self) -> Deferred[None]:
        """Make the state nodes of topics that have none, as a tree of an earlier release. Called before anything else
        is done with the topics.
        """
        return Deferred.fromCoroutine(self._make_missing_states())

    async def _make_missing_states(self) -> None:
        missing = [entry for entry in self._entries.values() if entry.nodes[1] == _NO_NODE]
        for start in range(0, len(missing), _BATCH_TOPICS):
            operations: list[Operation] = []
            paths = []
            for entry in missing[start : start + _BATCH_TOPICS]:
                path = state_path(entry.topic.name, entry.topic.topic_id)
                states = tuple(PartitionState.initial(i, to) for i, to in enumerate(entry.assignment.replicas))
                operations.append(Create(path, encode_states(0, states)))
                paths.append(path)
            try:
                await self._feed.write(operations, paths)
            except (NodeExists, NoNode):
                await self._feed.catch_up()  # another broker does the same

    def _update(self, update: TopicUpdate, controller_epoch: int | None) -> list[Operation]:
        before, after = update
        entry = self._entries.get(before.name)
        if entry is None or entry.topic is not before:
            raise StalePartition(f'topic "{before.name}" has changed')
        path = topic_path(before.name)
        assignment = Assignment.of(before.topic_id, after)
        # The check, since the two nodes were read one after the other: what was worked out from them stands on both.
        first: Operation = Check(path, entry.assignment_version)
        if assignment != entry.assignment:
            first = SetData(path, encode_topic(assignment), entry.assignment_version)
        epoch = entry.controller_epoch if controller_epoch is None else controller_epoch
        data = encode_states(epoch, after)
        return [first, SetData(state_path(before.name, before.topic_id), data, entry.state_version)]

    # -- the change feed's side

    async def reload(self, store: IMetadataStore) -> None:
        """Read every topic; those whose nodes are as they were are not decoded again."""
        await store.ensure(TOPICS)
        await store.ensure(TOPIC_CONFIGS)
        nodes = await store.children_data(TOPICS)
        configs = await store.children_data(TOPIC_CONFIGS)
        found = await self._read(store, {name: (node, configs.get(name)) for name, node in nodes.items()})
        self._apply({**dict.fromkeys(self._by_name.keys() - found.keys()), **found})

    async def refresh(self, store: IMetadataStore, paths: Sequence[str]) -> None:
        """Read the topics again that `paths` are about."""
        names = sorted({name for name in map(topic_of_path, paths) if name is not None})
        # Asked all at once, so that the store can answer them together.
        asked = [_get_or_none(store, path(name)) for path in (topic_path, topic_config_path) for name in names]
        found = await _together(asked)
        nodes = {
            name: (node, overrides)
            for name, node, overrides in zip(names, found, found[len(names) :], strict=False)
            if node is not None
        }
        self._apply({**dict.fromkeys(names), **await self._read(store, nodes)})

    async def _read(
        self, store: IMetadataStore, nodes: Mapping[str, tuple[Node, Node | None]]
    ) -> dict[str, _Entry | None]:
        """Topics from their nodes; the state nodes, whose names the others tell, are read here."""
        assignments = {name: self._assignment(name, node) for name, (node, _) in nodes.items()}
        states = await _together(
            [_get_or_none(store, state_path(name, assignment.topic_id)) for name, assignment in assignments.items()]
        )
        return {
            name: self._decode(name, assignment, nodes[name][0], state, nodes[name][1])
            for (name, assignment), state in zip(assignments.items(), states, strict=True)
        }

    def _assignment(self, name: str, node: Node) -> Assignment:
        before = self._entries.get(name)
        if before is not None and before.nodes[0] == _stamp(node):
            return before.assignment
        return decode_topic(topic_path(name), node.data)

    def _decode(
        self, name: str, assignment: Assignment, node: Node, state: Node | None, configs: Node | None
    ) -> _Entry:
        stamps = _stamp(node), _stamp(state), _stamp(configs)
        before = self._entries.get(name)
        if before is not None and before.nodes == stamps:
            return before
        known: tuple[PartitionState, ...] = ()
        if before is not None and before.assignment.topic_id == assignment.topic_id:
            known = before.topic.partitions
        path = state_path(name, assignment.topic_id)
        data = encode_states(0, ()) if state is None else state.data
        epoch, states = decode_states(path, data, assignment, known)
        if before is not None and before.nodes[2] == stamps[2]:
            overrides = before.topic.configs
        else:
            overrides = {} if configs is None else decode_configs(topic_config_path(name), configs.data)
        return _Entry(Topic(name, assignment.topic_id, states, overrides), assignment, epoch, stamps)

    def _apply(self, found: Mapping[str, _Entry | None]) -> None:
        changes: list[TopicChange] = []
        for name, entry in found.items():
            before, after = self._by_name.get(name), None if entry is None else entry.topic
            if before is after:
                continue
            if before is not None and after is not None and before.topic_id != after.topic_id:
                changes.append(TopicChange(before, None))
                before = None
            changes.append(TopicChange(before, after))
        for before, after in changes:
            self._replace(before, after)
        self._entries.update((name, entry) for name, entry in found.items() if entry is not None)
        for change in changes:
            for listener in list(self._listeners):
                _tell(listener, change)

    def _replace(self, before: Topic | None, after: Topic | None) -> None:
        if before is not None:
            self._by_id.pop(before.topic_id, None)
        if after is not None:
            self._by_name[after.name] = after
            self._by_id[after.topic_id] = after
            self._collisions[collision_key(after.name)] = after.name
        elif before is not None:
            del self._by_name[before.name]
            self._entries.pop(before.name, None)
            if self._collisions.get(collision_key(before.name)) == before.name:
                del self._collisions[collision_key(before.name)]

    # -- how each change is done

    async def _create(
        self,
        name: str,
        partitions: int | None,
        factor: int | None,
        assignment: Mapping[int, Sequence[int]] | None,
        configs: Mapping[str, str | None],
        dry: bool,
    ) -> Topic:
        check_topic_name(name)
        if name in self._by_name:
            raise TopicExists(f'topic "{name}" exists already')
        key = collision_key(name)
        other = self._collisions.get(key, name)
        if other != name:
            raise InvalidTopicName(f'topic "{name}" collides with "{other}": they differ only in "." and "_"')
        checked = self._check_configs(configs)
        replicas = self._place(name, partitions, factor, assignment)
        topic = Topic(name, new_id(), _initial(replicas), checked)
        if dry:
            return topic
        self._collisions[key] = name
        try:
            await self._write_new(topic)
        finally:
            if name not in self._by_name and self._collisions.get(key) == name:
                del self._collisions[key]
        return self._by_name.get(name, topic)

    async def _write_new(self, topic: Topic) -> None:
        path, config_path = topic_path(topic.name), topic_config_path(topic.name)
        operations: list[Operation] = [
            Create(path, encode_topic(Assignment.of(topic.topic_id, topic.partitions))),
            Create(state_path(topic.name, topic.topic_id), encode_states(0, topic.partitions)),
            Create(config_path, encode_configs(topic.configs)),
        ]
        try:
            await self._feed.write(operations, [path])
        except NodeExists as error:
            await self._feed.catch_up()  # another writer was quicker: whoever hears so finds what it made
            raise TopicExists(f'topic "{topic.name}" exists already') from error
        except InvalidNode as error:
            raise InvalidPartitions("the topic has too many partitions or settings for one node") from error

    def _place(
        self, name: str, partitions: int | None, factor: int | None, assignment: Mapping[int, Sequence[int]] | None
    ) -> list[Replicas]:
        live = self._cluster.brokers
        if assignment:
            if partitions not in (None, -1) or factor not in (None, -1):
                raise InvalidChange("give either an assignment or numbers of partitions and replicas, not both")
            self._check_count(len(assignment))
            return check_assignment(assignment, live)
        count = self._settings.integer("num.partitions") if partitions in (None, -1) else partitions
        copies = self._settings.integer("default.replication.factor") if factor in (None, -1) else factor
        assert count is not None and copies is not None
        if name not in INTERNAL_TOPICS:  # the limit is for requests; these the broker makes
            self._check_count(count)
        racks = {broker.node_id: broker.rack for broker in live.values()}
        return assign_replicas(racks, count, copies, start=_start(name))

    def _check_count(self, count: int) -> None:
        most = self._settings.integer("max.partitions.per.request")
        if count > most:
            raise InvalidPartitions(f"{count} partitions are more than max.partitions.per.request allows, {most}")

    def _check_configs(self, configs: Mapping[str, str | None]) -> dict[str, str]:
        try:
            return self._settings.check_topic(configs)
        except ConfigError as error:
            raise InvalidConfig(str(error)) from error

    async def _delete(self, name: str) -> None:
        if not self._settings.flag("delete.topic.enable"):
            raise TopicDeletionDisabled("topics may not be deleted here: delete.topic.enable is false")
        for _ in range(ATTEMPTS):
            entry = self._entries.get(name)
            if entry is None:
                raise _unknown(name)
            nodes = dict(zip((topic_path(name), state_path(name, entry.topic.topic_id), topic_config_path(name)),
                             entry.nodes, strict=True))  # fmt: skip
            there = [path for path, stamp in nodes.items() if stamp != _NO_NODE]
            try:
                # A node goes after its children, which have the longer paths.
                await self._feed.write([Delete(path) for path in sorted(there, reverse=True)], [topic_path(name)])
            except (NoNode, NotEmpty):
                await self._feed.catch_up()
                continue
            return
        raise InvalidChange("the topic is being changed by others, try again")

    async def _add_partitions(
        self, name: str, total: int, assignment: Sequence[Sequence[int]] | None, dry: bool
    ) -> Topic:
        for _ in range(ATTEMPTS):
            topic = self._now(name)
            more = self._place_more(name, [state.target for state in topic.partitions], total, assignment)
            after = topic.partitions + _initial(more, first=len(topic.partitions))
            if dry:
                return Topic(name, topic.topic_id, after, topic.configs)
            try:
                await self.write_states([TopicUpdate(topic, after)])
            except (BadVersion, NoNode):
                await self._feed.catch_up()
                continue
            except InvalidNode as error:
                raise InvalidPartitions("the topic has too many partitions for one node") from error
            return self._now(name)
        raise InvalidChange("the topic is being changed by others, try again")

    def _place_more(
        self, name: str, replicas: Sequence[Replicas], total: int, assignment: Sequence[Sequence[int]] | None
    ) -> list[Replicas]:
        have = len(replicas)
        if total <= have:
            raise InvalidPartitions(f'topic "{name}" has {have} partitions; {total} would not be more')
        self._check_count(total - have)
        live = self._cluster.brokers
        if assignment is not None:
            if len(assignment) != total - have:
                raise InvalidChange(f"{total - have} partitions are added, but {len(assignment)} are assigned")
            placed = check_assignment(dict(enumerate(assignment, have)), live, first=have)
            if len(placed[0]) != len(replicas[0]):
                raise InvalidChange(f"partitions of this topic have {len(replicas[0])} replicas, not {len(placed[0])}")
            return placed
        racks = {broker.node_id: broker.rack for broker in live.values()}
        return assign_replicas(racks, total - have, len(replicas[0]), start=_start(name), first=have)

    async def _write_configs(
        self, name: str, changes: Sequence[ConfigChange] | None, configs: Mapping[str, str | None], dry: bool
    ) -> Topic:
        path = topic_config_path(name)
        for _ in range(ATTEMPTS):
            topic = self._by_name.get(name)
            if topic is None:
                raise _unknown(name)
            current, version = await read_configs(self._store, path)
            after = self._check_configs(configs if changes is None else apply_changes(current, changes, TOPIC_SETTINGS))
            if dry:
                return Topic(name, topic.topic_id, topic.partitions, after)
            try:
                await self._feed.write([write_configs(path, after, version)], [path])
            except (BadVersion, NodeExists, NoNode):
                continue
            return self._now(name)
        raise InvalidChange("the topic is being changed by others, try again")

    def _now(self, name: str) -> Topic:
        topic = self._by_name.get(name)
        if topic is None:
            raise _unknown(name)
        return topic


def _initial(replicas: Sequence[Replicas], first: int = 0) -> tuple[PartitionState, ...]:
    return tuple(PartitionState.initial(index, brokers) for index, brokers in enumerate(replicas, first))


def _stamp(node: Node | None) -> _Stamp:
    return _NO_NODE if node is None else (node.stat.created, node.stat.version)


def _start(name: str) -> int:
    """Where the round of brokers begins for a topic: anywhere, but always there."""
    return zlib.crc32(name.encode("utf-8"))


def _unknown(name: str) -> UnknownTopic:
    return UnknownTopic(f'there is no topic "{name[:249]}"')


def _get_or_none(store: IMetadataStore, path: str) -> Deferred[Node | None]:
    async def ask() -> Node | None:
        try:
            return await store.get(path)
        except NoNode:
            return None

    return Deferred.fromCoroutine(ask())


async def _together(asked: Sequence[Deferred[Node | None]]) -> list[Node | None]:
    """All results; if one fails, its error, and that of no other."""
    try:
        return await gatherResults(asked, consumeErrors=True)
    except FirstError as error:
        error.subFailure.raiseException()
        raise


def _tell(listener: TopicListener, change: TopicChange) -> None:
    try:
        listener(change)
    except Exception:
        log.failure("a listener to topic changes failed")
