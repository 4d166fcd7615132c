"""The topics of the cluster: looked up in memory, changed in the tree.

Strategy: every topic is an immutable `Topic` in two dicts, by name and by id, so look-ups are synchronous and O(1)
whatever the number of topics. A change is checked, written with the version it was worked out from, and comes back
through the change feed, which is the one way into the dicts for this broker's writes and for everybody else's.

Rules: a Deferred of a change fires once the look-ups have it and subscribers were told. Nothing is written by
`validate_only`. Each change is atomic: a topic and its settings come and go together.

Must not know: requests, logs.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.config import TOPIC_SETTINGS, ConfigError, Settings
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
    TopicDeletionDisabled,
    TopicExists,
    UnknownTopic,
)
from pylogd.metadata.image import (
    INTERNAL_TOPICS,
    PartitionState,
    Topic,
    TopicChange,
    check_topic_name,
    collision_key,
    new_id,
)
from pylogd.metadata.interfaces import Create, Delete, IMetadataStore, Node, Operation, SetData
from pylogd.metadata.layout import (
    TOPIC_CONFIGS,
    TOPICS,
    decode_configs,
    decode_topic,
    encode_configs,
    encode_topic,
    topic_config_path,
    topic_path,
)

log = Logger()

TopicListener = Callable[[TopicChange], None]

#: What a topic's two nodes were when they were decoded: (created, version) of each.
_Stamp = tuple[int, int, int, int]
_NO_NODE: Final = (-1, -1)


class TopicRegistry:
    """Every topic of the cluster."""

    def __init__(self, store: IMetadataStore, settings: Settings, cluster: Cluster, feed: ChangeFeed) -> None:
        self._store = store
        self._settings = settings
        self._cluster = cluster
        self._feed = feed
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._stamps: dict[str, _Stamp] = {}
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

    # -- the change feed's side

    async def reload(self, store: IMetadataStore) -> None:
        """Read every topic; those whose nodes are as they were are not decoded again."""
        await store.ensure(TOPICS)
        await store.ensure(TOPIC_CONFIGS)
        nodes = await store.children_data(TOPICS)
        configs = await store.children_data(TOPIC_CONFIGS)
        found = {name: self._decode(name, node, configs.get(name)) for name, node in nodes.items()}
        self._apply({**dict.fromkeys(self._by_name.keys() - found.keys()), **found})

    async def refresh(self, store: IMetadataStore, paths: Sequence[str]) -> None:
        """Read the topics again that `paths` are about."""
        names = {path.rpartition("/")[2] for path in paths if path.rpartition("/")[0] in (TOPICS, TOPIC_CONFIGS)}
        # Asked all at once, so that the store can answer them together.
        asked = [
            (name, _get_or_none(store, topic_path(name)), _get_or_none(store, topic_config_path(name)))
            for name in sorted(names)
        ]
        found: dict[str, tuple[Topic, _Stamp] | None] = {}
        for name, topic, configs in asked:
            node, overrides = await topic, await configs
            found[name] = None if node is None else self._decode(name, node, overrides)
        self._apply(found)

    def _decode(self, name: str, node: Node, configs: Node | None) -> tuple[Topic, _Stamp]:
        config_stamp = _NO_NODE if configs is None else (configs.stat.created, configs.stat.version)
        stamp = (node.stat.created, node.stat.version, *config_stamp)
        before = self._by_name.get(name)
        if before is not None and self._stamps.get(name) == stamp:
            return before, stamp
        topic_id, replicas = decode_topic(topic_path(name), node.data)
        overrides = {} if configs is None else decode_configs(topic_config_path(name), configs.data)
        return Topic(name, topic_id, _states(replicas, before), overrides), stamp

    def _apply(self, found: Mapping[str, tuple[Topic, _Stamp] | None]) -> None:
        changes: list[TopicChange] = []
        for name, entry in found.items():
            before, after = self._by_name.get(name), None if entry is None else entry[0]
            if before is after:
                continue
            if before is not None and after is not None and before.topic_id != after.topic_id:
                changes.append(TopicChange(before, None))
                before = None
            changes.append(TopicChange(before, after))
            if entry is not None:
                self._stamps[name] = entry[1]
        for before, after in changes:
            self._replace(before, after)
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
            self._stamps.pop(before.name, None)
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
        topic = Topic(name, new_id(), _states(replicas, None), checked)
        if dry:
            return topic
        self._collisions[key] = name
        try:
            await self._write_new(topic, replicas)
        finally:
            if name not in self._by_name and self._collisions.get(key) == name:
                del self._collisions[key]
        return self._by_name.get(name, topic)

    async def _write_new(self, topic: Topic, replicas: Sequence[Replicas]) -> None:
        path, config_path = topic_path(topic.name), topic_config_path(topic.name)
        operations: list[Operation] = [
            Create(path, encode_topic(topic.topic_id, replicas)),
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
        if name not in self._by_name:
            raise _unknown(name)
        operations: list[Operation] = [Delete(topic_path(name))]
        if await self._store.exists(topic_config_path(name)) is not None:
            operations.append(Delete(topic_config_path(name)))
        try:
            await self._feed.write(operations, [topic_path(name)])
        except NoNode as error:
            raise _unknown(name) from error

    async def _add_partitions(
        self, name: str, total: int, assignment: Sequence[Sequence[int]] | None, dry: bool
    ) -> Topic:
        path = topic_path(name)
        for _ in range(ATTEMPTS):
            node = await _get_or_none(self._store, path)
            topic = self._by_name.get(name)
            if node is None or topic is None:
                raise _unknown(name)
            topic_id, replicas = decode_topic(path, node.data)
            replicas += self._place_more(name, replicas, total, assignment)
            if dry:
                return Topic(name, topic_id, _states(replicas, topic), topic.configs)
            data = encode_topic(topic_id, replicas)
            try:
                await self._feed.write([SetData(path, data, node.stat.version)], [path])
            except (BadVersion, NoNode):
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


def _states(replicas: Sequence[Replicas], before: Topic | None) -> tuple[PartitionState, ...]:
    """The states of a topic's partitions; those that `before` has with the same replicas are kept."""
    states = []
    for index, brokers in enumerate(replicas):
        known = before.partitions[index] if before is not None and index < len(before.partitions) else None
        keep = known is not None and known.replicas == brokers
        states.append(known if keep and known is not None else PartitionState.initial(index, brokers))
    return tuple(states)


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


def _tell(listener: TopicListener, change: TopicChange) -> None:
    try:
        listener(change)
    except Exception:
        log.failure("a listener to topic changes failed")
