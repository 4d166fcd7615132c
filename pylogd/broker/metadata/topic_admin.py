"""Create, change and delete topics.

Strategy: a change is checked, written with the versions from which it was computed, and arrives in the look-ups of
`TopicRegistry` through the change feed. If others changed the topic meanwhile, the change is computed again.

Rules: a Deferred of a change fires once the look-ups have it and subscribers were called. `validate_only` writes
nothing. Each change is atomic: a topic and its settings are created and deleted together. A topic whose nodes can't be
read can only be deleted.

Must not know: requests, logs.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from twisted.internet.defer import Deferred

from pylogd.base.placement.brokers import Brokers, Replicas
from pylogd.broker.metadata.assignment import assign_replicas, check_assignment
from pylogd.broker.metadata.changes import ChangeFeed
from pylogd.broker.metadata.cluster import Cluster
from pylogd.broker.metadata.configs import ATTEMPTS, ConfigChange, apply_changes, read_configs, write_configs
from pylogd.broker.metadata.entries import NO_NODE
from pylogd.broker.metadata.errors import (
    InvalidChange,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidTopicName,
    OutsideLabel,
    TooManyPartitions,
    TopicDeletionDisabled,
    TopicExists,
    UnknownTopic,
)
from pylogd.broker.metadata.image import (
    PartitionState,
    Topic,
    TopicChange,
    TopicUpdate,
    check_topic_name,
    collision_key,
    new_id,
)
from pylogd.broker.metadata.labels import candidates, check_within, label_at, label_of, with_label
from pylogd.broker.metadata.layout import (
    Assignment,
    encode_configs,
    encode_states,
    encode_topic,
    state_path,
    topic_config_path,
)
from pylogd.broker.metadata.topics import TopicRegistry
from pylogd.config import TOPIC_SETTINGS, ConfigError, Settings
from pylogd.config.labels import COORDINATOR_LABELS, parse_coordinators
from pylogd.store.errors import BadVersion, InvalidNode, NodeExists, NoNode, NotEmpty
from pylogd.store.interfaces import Check, Create, Delete, IMetadataStore, Operation
from pylogd.store.paths import INTERNAL_TOPICS, topic_path


class TopicAdmin:
    """Changes the topics of the cluster on behalf of clients."""

    def __init__(
        self, store: IMetadataStore, settings: Settings, cluster: Cluster, feed: ChangeFeed, topics: TopicRegistry
    ) -> None:
        """Create this object before the registry is started, so that every topic arrives as a change."""
        self._store = store
        self._settings = settings
        self._cluster = cluster
        self._feed = feed
        self._topics = topics
        #: How many partitions each broker has, including those of topics that are being created.
        self._held: Counter[int] = Counter()
        #: Names by `collision_key`, including those of topics that are being created.
        self._collisions: dict[str, str] = {}
        topics.subscribe(self._topic_changed)

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
        """Create a topic.

        partitions, replication_factor: None or -1 for the broker's defaults.
        assignment: the replicas by partition index, instead of the two numbers.
        configs: the topic's own settings.

        Fails with `InvalidTopicName`, `TopicExists`, `InvalidPartitions`, `InvalidReplicationFactor`,
        `InvalidReplicaAssignment`, `InvalidConfig` or `InvalidChange`.
        """
        return Deferred.fromCoroutine(
            self._create(name, partitions, replication_factor, assignment, configs or {}, validate_only)
        )

    def delete_topic(self, name: str, topic_id: bytes | None = None) -> Deferred[None]:
        """Delete a topic, but only if it has this id. Fails with `UnknownTopic` or `TopicDeletionDisabled`."""
        return Deferred.fromCoroutine(self._delete(name, topic_id))

    def add_partitions(
        self,
        name: str,
        total: int,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> Deferred[Topic]:
        """Raise the number of partitions to `total`.

        assignment: the replicas of each new partition.

        Fails with `UnknownTopic`, `InvalidPartitions`, `InvalidReplicaAssignment` or `InvalidReplicationFactor`.
        """
        return Deferred.fromCoroutine(self._add_partitions(name, total, assignment, validate_only))

    def set_topic_configs(
        self, name: str, configs: Mapping[str, str | None], *, validate_only: bool = False
    ) -> Deferred[Topic]:
        """Replace the topic's own settings. Fails with `UnknownTopic`, `InvalidConfig` or `OutsideLabel`."""
        return Deferred.fromCoroutine(self._write_configs(name, None, configs, validate_only))

    def alter_topic_configs(
        self, name: str, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> Deferred[Topic]:
        """Change the topic's own settings.

        Fails with `UnknownTopic`, `InvalidConfig`, `InvalidChange`, or `OutsideLabel` for a label that brokers
        with replicas of the topic do not carry.
        """
        return Deferred.fromCoroutine(self._write_configs(name, changes, {}, validate_only))

    # -- creating

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
        if self._topics.get(name) is not None or name in self._topics.unreadable:
            raise TopicExists(f'topic "{name}" exists already')
        key = collision_key(name)
        other = self._collisions.get(key, name)
        if other != name:
            raise InvalidTopicName(f'topic "{name}" collides with "{other}": they differ only in "." and "_"')
        default = self._settings.text("default.placement.label")
        own = {**with_label({}, default or ""), **configs}
        labels = ",".join(self._settings["coordinator.labels"])
        if name in INTERNAL_TOPICS and labels:
            own = {COORDINATOR_LABELS.name: labels, **own}
        checked = self._check_configs(own)
        replicas = self._assign(name, partitions, factor, assignment, checked)
        self._check_room(name, replicas)
        topic = Topic(name, new_id(), _initial(replicas), checked)
        if dry:
            return topic
        self._collisions[key] = name
        making = Counter(node for nodes in replicas for node in nodes)
        self._held.update(making)
        try:
            await self._write_new(topic)
        finally:
            self._held.subtract(making)
            if self._topics.get(name) is None and self._collisions.get(key) == name:
                del self._collisions[key]
        return self._topics.get(name) or topic

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
            await self._feed.catch_up()  # another writer was first, and a client that is told so must find the topic
            raise TopicExists(f'topic "{topic.name}" exists already') from error
        except InvalidNode as error:
            raise InvalidPartitions("the topic has too many partitions or settings for one node") from error

    def _assign(
        self, name: str, partitions: int | None, factor: int | None, assignment: Mapping[int, Sequence[int]] | None,
        configs: Mapping[str, str],
    ) -> list[Replicas]:  # fmt: skip
        if assignment:
            if partitions not in (None, -1) or factor not in (None, -1):
                raise InvalidChange("give either an assignment or numbers of partitions and replicas, not both")
            self._check_count(len(assignment))
            _check_coordinators(name, len(assignment), configs)
            return self._check_assignment(assignment, configs)
        count = self._settings.integer("num.partitions") if partitions in (None, -1) else partitions
        copies = self._settings.integer("default.replication.factor") if factor in (None, -1) else factor
        assert count is not None and copies is not None
        if name not in INTERNAL_TOPICS:  # the limit is for requests; brokers create internal topics
            self._check_count(count)
        _check_coordinators(name, count, configs)
        return self._place(name, configs, range(count), copies)

    def _candidates(self, name: str) -> Brokers:
        """Return the brokers for replicas of a topic. Internal topics are always created, whatever space there is."""
        if name in INTERNAL_TOPICS:
            return candidates(self._cluster.brokers)
        return candidates(self._cluster.brokers, self.room_on)

    def _place(self, name: str, configs: Mapping[str, str], indexes: range, copies: int) -> list[Replicas]:
        """Return replicas for partitions of a topic with these settings, each within its label."""
        brokers = self._candidates(name)
        labels = [label_at(configs, index) for index in indexes]
        placed: dict[str, list[Replicas]] = {}
        for label in dict.fromkeys(labels) or [label_of(configs)]:
            most = copies
            if name in INTERNAL_TOPICS:  # a group must not wait for brokers to join; the controller adds replicas later
                most = min(copies, max(brokers.machines(brokers.open(label)), 1))
            placed[label] = assign_replicas(
                brokers, len(indexes), most, start=_start(name), first=indexes.start, label=label
            )
        return [placed[label][at] for at, label in enumerate(labels)]

    def _check_assignment(
        self, assignment: Mapping[int, Sequence[int]], configs: Mapping[str, str], first: int = 0
    ) -> list[Replicas]:
        """Return a client's assignment as a list. Raises `InvalidReplicaAssignment`."""
        return check_assignment(
            assignment, candidates(self._cluster.brokers), label_at=lambda index: label_at(configs, index), first=first
        )

    def _check_count(self, count: int) -> None:
        most = self._settings.integer("max.partitions.per.request")
        if count > most:
            raise TooManyPartitions(f"{count} partitions are more than max.partitions.per.request allows, {most}")

    def _check_configs(self, configs: Mapping[str, str | None]) -> dict[str, str]:
        try:
            return self._settings.check_topic(configs)
        except ConfigError as error:
            raise InvalidConfig(str(error)) from error

    async def _delete(self, name: str, topic_id: bytes | None) -> None:
        if not self._settings.flag("delete.topic.enable"):
            raise TopicDeletionDisabled("topics may not be deleted here: delete.topic.enable is false")
        for _ in range(ATTEMPTS):
            if name in self._topics.unreadable:
                await self._delete_unreadable(name)
                return
            entry = self._topics.entry(name)
            if entry is None or topic_id not in (None, entry.topic.topic_id):
                raise _unknown(name)
            nodes = dict(zip((topic_path(name), state_path(name, entry.topic.topic_id), topic_config_path(name)),
                             entry.nodes, strict=True))  # fmt: skip
            there = [path for path, stamp in nodes.items() if stamp != NO_NODE]
            try:
                # Children have longer paths, and are deleted first.
                await self._feed.write([Delete(path) for path in sorted(there, reverse=True)], [topic_path(name)])
            except (NoNode, NotEmpty):
                await self._feed.catch_up()
                continue
            return
        raise InvalidChange("the topic is being changed by another request, try again")

    async def _delete_unreadable(self, name: str) -> None:
        """Delete all nodes of a topic, even if their content is invalid."""
        path, config_path = topic_path(name), topic_config_path(name)
        below = [f"{path}/{child}" for child in await self._store.children(path)]
        overrides = [config_path] if await self._store.exists(config_path) is not None else []
        await self._feed.write([Delete(one) for one in [*below, path, *overrides]], [path])

    async def _add_partitions(
        self, name: str, total: int, assignment: Sequence[Sequence[int]] | None, dry: bool
    ) -> Topic:
        for _ in range(ATTEMPTS):
            topic = self._current(name)
            more = self._assign_more(topic, total, assignment)
            self._check_room(name, more)
            after = topic.partitions + _initial(more, first=len(topic.partitions))
            if dry:
                return Topic(name, topic.topic_id, after, topic.configs)
            try:
                await self._topics.write_states([TopicUpdate(topic, after)])
            except (BadVersion, NoNode):
                await self._feed.catch_up()
                continue
            except InvalidNode as error:
                raise InvalidPartitions("the topic has too many partitions for one node") from error
            return self._current(name)
        raise InvalidChange("the topic is being changed by another request, try again")

    def _assign_more(self, topic: Topic, total: int, assignment: Sequence[Sequence[int]] | None) -> list[Replicas]:
        name = topic.name
        replicas = [state.target for state in topic.partitions]
        have = len(replicas)
        if total <= have:
            raise InvalidPartitions(f'topic "{name}" has {have} partitions; {total} would not be more')
        self._check_count(total - have)
        if assignment is not None:
            if len(assignment) != total - have:
                raise InvalidReplicaAssignment(
                    f"{total - have} partitions are added, but {len(assignment)} are assigned"
                )
            assigned = self._check_assignment(dict(enumerate(assignment, have)), topic.configs, have)
            if len(assigned[0]) != len(replicas[0]):
                raise InvalidReplicaAssignment(
                    f"partitions of this topic have {len(replicas[0])} replicas, not {len(assigned[0])}"
                )
            return assigned
        return self._place(name, topic.configs, range(have, total), len(replicas[0]))

    async def _write_configs(
        self, name: str, changes: Sequence[ConfigChange] | None, configs: Mapping[str, str | None], dry: bool
    ) -> Topic:
        path = topic_config_path(name)
        for _ in range(ATTEMPTS):
            topic = self._current(name)
            current, version = await read_configs(self._store, path)
            after = self._check_configs(
                configs if changes is None else apply_changes(current, changes, TOPIC_SETTINGS.get)
            )
            if after.get(COORDINATOR_LABELS.name, "") != current.get(COORDINATOR_LABELS.name, ""):
                raise OutsideLabel(
                    f"{COORDINATOR_LABELS.name} of a topic can't be changed: groups and transactional ids would be "
                    "looked for in other partitions than those that store them"
                )
            relabels = label_of(after) != label_of(current)
            if relabels:
                self._check_label(topic, after)
            if dry:
                return Topic(name, topic.topic_id, topic.partitions, after)
            entry = self._topics.entry(name)
            checks = []
            if entry is not None and entry.nodes[1] != NO_NODE:  # they belong to this topic, not to one created since
                checks.append(Check(state_path(name, topic.topic_id)))
            if relabels and entry is not None:
                checks.append(Check(topic_path(name), entry.assignment_version))
            try:
                await self._feed.write([*checks, write_configs(path, after, version)], [path])
            except (BadVersion, NodeExists, NoNode):
                await self._feed.catch_up()  # the topic, or its replicas, may have changed
                continue
            return self._current(name)
        raise InvalidChange("the topic is being changed by another request, try again")

    def _check_label(self, topic: Topic, configs: Mapping[str, str]) -> None:
        """Raise `OutsideLabel` if the topic has replicas on brokers that do not carry its new label."""
        label = label_of(configs)
        nodes = _by_label(configs, ((state.index, state.target) for state in topic.partitions)).get(label, [])
        try:
            check_within(nodes, label, self._cluster.brokers, self._cluster.known)
        except InvalidReplicaAssignment as error:
            raise OutsideLabel(
                f'topic "{topic.name}" has replicas on brokers {", ".join(map(str, nodes))}, and {error}; '
                f"`pylogd topics relabel {topic.name} {label}` moves them and changes the label"
            ) from error

    def _current(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if name in self._topics.unreadable:
            raise InvalidChange(f'topic "{name}" can\'t be changed: {self._topics.unreadable[name]}')
        if topic is None:
            raise _unknown(name)
        return topic

    # -- the resources that topics need

    def _topic_changed(self, change: TopicChange) -> None:
        before, after = change.before, change.after
        old, new = ([] if one is None else [state.replicas for state in one.partitions] for one in (before, after))
        if old != new:
            self._held.subtract(node for nodes in old for node in nodes)
            self._held.update(node for nodes in new for node in nodes)
        if after is not None:
            self._collisions[collision_key(after.name)] = after.name
        elif before is not None and self._collisions.get(collision_key(before.name)) == before.name:
            del self._collisions[collision_key(before.name)]

    def room_on(self, broker: int) -> int | None:
        """Return how many more partitions a live broker may hold; None if it has no limit."""
        found = self._cluster.brokers.get(broker)
        limit = None if found is None else found.partition_limit
        return None if limit is None else max(limit - self._held[broker], 0)

    def _check_room(self, name: str, replicas: Sequence[Replicas]) -> None:
        """Refuse partitions for which a broker lacks file descriptors. Internal topics are always created."""
        if name in INTERNAL_TOPICS:
            return
        for broker, count in Counter(node for nodes in replicas for node in nodes).items():
            room = self.room_on(broker)
            if room is not None and count > room:
                raise InvalidPartitions(
                    f"broker {broker} has room for {room} more partitions, not for {count}: it may hold as many as its "
                    "limit of open files allows (LimitNOFILE= of the service, ulimit -n)"
                )


def _initial(replicas: Sequence[Replicas], first: int = 0) -> tuple[PartitionState, ...]:
    return tuple(PartitionState.initial(index, brokers) for index, brokers in enumerate(replicas, first))


def _start(name: str) -> int:
    """Return the index of the broker at which a topic's assignment starts, which is the same each time for a name."""
    return zlib.crc32(name.encode("utf-8"))


def _unknown(name: str) -> UnknownTopic:
    return UnknownTopic(f'there is no topic "{name[:249]}"')


def _by_label(configs: Mapping[str, str], replicas: Iterable[tuple[int, Sequence[int]]]) -> dict[str, list[int]]:
    """Return the brokers of partitions, by the partition's label.

    replicas: the replicas by partition.
    """
    found: dict[str, set[int]] = {}
    for index, nodes in replicas:
        found.setdefault(label_at(configs, index), set()).update(nodes)
    return {label: sorted(nodes) for label, nodes in found.items()}


def _check_coordinators(name: str, count: int, configs: Mapping[str, str]) -> None:
    """Check `coordinator.labels` of a new topic with this many partitions. Raises InvalidConfig."""
    labels = configs.get(COORDINATOR_LABELS.name)
    if not labels:
        return
    if name not in INTERNAL_TOPICS:
        raise InvalidConfig(f"{COORDINATOR_LABELS.name} is only for {' and '.join(sorted(INTERNAL_TOPICS))}")
    try:
        parse_coordinators(labels).check_count(count)
    except ConfigError as error:
        raise InvalidConfig(str(error)) from error
