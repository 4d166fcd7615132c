"""The topics of the cluster: looked up in memory, changed in the tree.

Strategy: every topic is an immutable `Topic` in two dicts, by name and by id, so look-ups are synchronous and O(1)
whatever the number of topics. A change is checked, written with the version it was worked out from, and comes back
through the change feed, which is the one way into the dicts for this broker's writes and for everybody else's.

Rules: a Deferred of a change fires once the look-ups have it and subscribers were told. Nothing is written by
`validate_only`. Each change is atomic: a topic and its settings come and go together. A topic whose nodes can't be
read stays as it was known, and can only be deleted, until its nodes can be read again; it harms no other.

Must not know: requests, logs.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.clock import wall_ms
from pylogd.config import TOPIC_SETTINGS, ConfigError, Settings
from pylogd.errors import PylogdError
from pylogd.metadata.assignment import Replicas, assign_replicas, check_assignment
from pylogd.metadata.changes import ChangeFeed
from pylogd.metadata.cluster import Cluster
from pylogd.metadata.configs import ATTEMPTS, ConfigChange, apply_changes, read_configs, write_configs
from pylogd.metadata.eligibility import min_insync_of
from pylogd.metadata.entries import NO_NODE, Entry, read_entries, read_nodes
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
from pylogd.metadata.interfaces import Check, Create, Delete, IMetadataStore, Operation, SetData
from pylogd.metadata.isr import IsrWriter
from pylogd.metadata.layout import (
    TOPIC_CONFIGS,
    TOPICS,
    Assignment,
    Change,
    CorruptMetadata,
    News,
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

#: What one multi of many topics has at most, well below what a store takes.
_BATCH_TOPICS: Final = 500
_BATCH_BYTES: Final = 350_000


class _Batch:
    """One write of many topics: twice its `size` in bytes goes to the store, since readers are told what it is."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.paths: list[str] = []
        self.news: dict[str, News] = {}
        self.size = 0

    def add(self, path: str, operations: Sequence[Operation], size: int, news: News | None) -> None:
        """Add a topic; `path` is its state node's."""
        self.operations += operations
        self.paths.append(path)
        self.size += size
        if news is not None:
            self.news[path] = news


class TopicRegistry:
    """Every topic of the cluster. generation: another number after each change of any.

    unreadable: topics whose nodes can't be read, and why. Those known from before are among the look-ups, too.
    """

    def __init__(
        self, store: IMetadataStore, settings: Settings, cluster: Cluster, feed: ChangeFeed,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:  # fmt: skip
        self._store = store
        self._settings = settings
        self._cluster = cluster
        self._feed = feed
        self.generation = 0
        self.unreadable: dict[str, CorruptMetadata] = {}
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._entries: dict[str, Entry] = {}
        self._isr = IsrWriter(self, cluster, feed, now_ms, partial(min_insync_of, settings))
        self._held: Counter[int] = Counter()  # partitions by broker, those in the making among them
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

    def keeps_state(self, topic: Topic) -> bool:
        """Whether a topic's records are a state that readers build from the first on: it is internal or compacted."""
        try:
            policy = self._settings.topic_config(topic.configs)["cleanup.policy"]
        except ConfigError:
            return True  # set by another release: nobody can tell
        return topic.internal or (isinstance(policy, tuple) and "compact" in policy)

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
        have it all. Topics that can't be read are left out.
        """
        batches = [_Batch()]
        for update in updates:
            if update.before.name in self.unreadable:  # it could not be written, and would fail the others
                continue
            operations, news = self._update(update, controller_epoch)
            size = sum(len(one.data) for one in operations if isinstance(one, SetData))
            if len(batches[-1].paths) == _BATCH_TOPICS or (batches[-1].size + size > _BATCH_BYTES and batches[-1].size):
                batches.append(_Batch())
            batches[-1].add(state_path(update.before.name, update.before.topic_id), operations, size, news)
        batches[-1].operations.extend(last)
        batches[-1].paths.extend(operation.path for operation in last)

        async def write() -> None:
            for batch in batches:
                news = batch.news if batch.size <= _BATCH_BYTES else {}
                await self._feed.write([*guards, *batch.operations], batch.paths, news)

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
        missing = [entry for entry in self._entries.values() if entry.nodes[1] == NO_NODE]
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

    def _update(self, update: TopicUpdate, controller_epoch: int | None) -> tuple[list[Operation], News | None]:
        """What writes a topic's states; and, unless its node changes too, what readers need to know of it."""
        before, after = update
        entry = self._entries.get(before.name)
        if entry is None or entry.topic is not before:
            raise StalePartition(f'topic "{before.name}" has changed')
        path = topic_path(before.name)
        assignment = Assignment.of(before.topic_id, after)
        # The check, since the two nodes were read one after the other: what was worked out from them stands on both.
        first: Operation = Check(path, entry.assignment_version)
        moves = assignment != entry.assignment
        if moves:
            first = SetData(path, encode_topic(assignment), entry.assignment_version)
        epoch = entry.controller_epoch if controller_epoch is None else controller_epoch
        data = encode_states(epoch, after)
        news = None if moves else News(entry.assignment_version, entry.state_version + 1, data)
        return [first, SetData(state_path(before.name, before.topic_id), data, entry.state_version)], news

    # -- the change feed's side

    async def reload(self, store: IMetadataStore) -> None:
        """Read every topic; those whose nodes are as they were are not decoded again."""
        await store.ensure(TOPICS)
        await store.ensure(TOPIC_CONFIGS)
        nodes = await store.children_data(TOPICS)
        configs = await store.children_data(TOPIC_CONFIGS)
        asked = {name: (node, configs.get(name)) for name, node in nodes.items()}
        found, unreadable = await read_entries(store, asked, self._entries)
        self._note_unreadable(unreadable)
        self._apply({**dict.fromkeys(name for name in self._by_name if name not in asked), **found})

    async def refresh(self, store: IMetadataStore, change: Change) -> None:
        """Have what a write changed, from what is told of it, or by reading the topics again."""
        found: dict[str, Entry | None] = dict.fromkeys(filter(None, map(topic_of_path, change.paths)))
        for path, news in change.states.items():
            name = topic_of_path(path) or ""
            entry = self._entries.get(name)
            told = None if entry is None else entry.with_states(path, news)
            if told is not None:
                found[name] = told
        # Those that can't be read are tried again with every change: somebody may have mended them.
        asked = sorted({name for name, entry in found.items() if entry is None} | self.unreadable.keys())
        nodes = await read_nodes(store, asked)
        entries, unreadable = await read_entries(store, nodes, self._entries)
        self._note_unreadable(unreadable)
        changed = found | dict.fromkeys(asked) | entries
        self._apply({name: entry for name, entry in changed.items() if name not in unreadable})

    def _note_unreadable(self, unreadable: Mapping[str, CorruptMetadata]) -> None:
        for name, error in unreadable.items():
            if str(error) != str(self.unreadable.get(name)):
                log.error(
                    "topic {name} can't be read: {error}. {now}. Write the node anew, as it was, or delete the topic; "
                    "brokers read it again with the next change of any topic, and when they start",
                    name=name, error=error,
                    now="It stays as it was" if name in self._by_name else "It is not served; its logs are left alone",
                )  # fmt: skip
        for name in self.unreadable.keys() - unreadable.keys():
            log.info("topic {name} can be read again, or was deleted", name=name)
        self.unreadable = dict(unreadable)

    def _apply(self, found: Mapping[str, Entry | None]) -> None:
        changes: list[TopicChange] = []
        found_out = self._feed.in_new_session
        for name, entry in found.items():
            before, after = self._by_name.get(name), None if entry is None else entry.topic
            if before is after:
                continue
            if before is not None and after is not None and before.topic_id != after.topic_id:
                changes.append(TopicChange(before, None, found_out))
                before = None
            changes.append(TopicChange(before, after, found_out and before is not None))
        self.generation += bool(changes)
        for before, after, _ in changes:
            self._replace(before, after)
        self._entries.update((name, entry) for name, entry in found.items() if entry is not None)
        for change in changes:
            for listener in list(self._listeners):
                _tell(listener, change)

    def _replace(self, before: Topic | None, after: Topic | None) -> None:
        placed = [[] if one is None else [state.replicas for state in one.partitions] for one in (before, after)]
        if placed[0] != placed[1]:
            self._held.subtract(node for nodes in placed[0] for node in nodes)
            self._held.update(node for nodes in placed[1] for node in nodes)
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
        if name in self._by_name or name in self.unreadable:
            raise TopicExists(f'topic "{name}" exists already')
        key = collision_key(name)
        other = self._collisions.get(key, name)
        if other != name:
            raise InvalidTopicName(f'topic "{name}" collides with "{other}": they differ only in "." and "_"')
        checked = self._check_configs(configs)
        replicas = self._place(name, partitions, factor, assignment)
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

    def room_on(self, broker: int) -> int | None:
        """Return how many more partitions a live broker may hold, None if it has no limit."""
        found = self._cluster.brokers.get(broker)
        limit = None if found is None else found.partition_limit
        return None if limit is None else max(limit - self._held[broker], 0)

    def _check_room(self, name: str, replicas: Sequence[Replicas]) -> None:
        """Refuse partitions that a broker could not open the files of. The broker's own topics are always made."""
        if name in INTERNAL_TOPICS:
            return
        for broker, count in Counter(node for nodes in replicas for node in nodes).items():
            room = self.room_on(broker)
            if room is not None and count > room:
                raise InvalidPartitions(
                    f"broker {broker} has room for {room} more partitions, not for {count}: it may hold as many as its "
                    "limit of open files allows (LimitNOFILE= of the service, ulimit -n)"
                )

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
            if name in self.unreadable:
                await self._delete_unreadable(name)
                return
            entry = self._entries.get(name)
            if entry is None:
                raise _unknown(name)
            nodes = dict(zip((topic_path(name), state_path(name, entry.topic.topic_id), topic_config_path(name)),
                             entry.nodes, strict=True))  # fmt: skip
            there = [path for path, stamp in nodes.items() if stamp != NO_NODE]
            try:
                # A node goes after its children, which have the longer paths.
                await self._feed.write([Delete(path) for path in sorted(there, reverse=True)], [topic_path(name)])
            except (NoNode, NotEmpty):
                await self._feed.catch_up()
                continue
            return
        raise InvalidChange("the topic is being changed by others, try again")

    async def _delete_unreadable(self, name: str) -> None:
        """Delete all nodes of a topic, whatever they hold."""
        path, config_path = topic_path(name), topic_config_path(name)
        below = [f"{path}/{child}" for child in await self._store.children(path)]
        overrides = [config_path] if await self._store.exists(config_path) is not None else []
        await self._feed.write([Delete(one) for one in [*below, path, *overrides]], [path])

    async def _add_partitions(
        self, name: str, total: int, assignment: Sequence[Sequence[int]] | None, dry: bool
    ) -> Topic:
        for _ in range(ATTEMPTS):
            topic = self._now(name)
            more = self._place_more(name, [state.target for state in topic.partitions], total, assignment)
            self._check_room(name, more)
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
            topic = self._now(name)
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
        if name in self.unreadable:
            raise InvalidChange(f'topic "{name}" can\'t be changed: {self.unreadable[name]}')
        if topic is None:
            raise _unknown(name)
        return topic


def _initial(replicas: Sequence[Replicas], first: int = 0) -> tuple[PartitionState, ...]:
    return tuple(PartitionState.initial(index, brokers) for index, brokers in enumerate(replicas, first))


def _start(name: str) -> int:
    """Where the round of brokers begins for a topic: anywhere, but always there."""
    return zlib.crc32(name.encode("utf-8"))


def _unknown(name: str) -> UnknownTopic:
    return UnknownTopic(f'there is no topic "{name[:249]}"')


def _tell(listener: TopicListener, change: TopicChange) -> None:
    try:
        listener(change)
    except Exception:
        log.failure("a listener to topic changes failed")
