"""The topics of the cluster: looked up in memory, kept up to date with the tree.

Strategy: every topic is an immutable `Topic` in two dicts, by name and by id, so look-ups are synchronous and O(1)
whatever the number of topics. Changes arrive through the change feed only, both this broker's writes and those of
others. `topic_admin` creates, changes and deletes topics; this module writes partition states, for leaders and the
controller.

Rules: a Deferred of a write fires once the look-ups have it and subscribers were called. A topic whose nodes can't be
read keeps its last known state until its nodes can be read again; it does not affect other topics.

Must not know: requests, logs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, KeysView, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, takewhile
from types import MappingProxyType
from typing import Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.broker.metadata.change_notes import Change, News
from pylogd.broker.metadata.changes import ChangeFeed
from pylogd.broker.metadata.configs import write_configs
from pylogd.broker.metadata.entries import NO_NODE, Entry, read_entries, read_nodes
from pylogd.broker.metadata.errors import StalePartition
from pylogd.broker.metadata.image import NO_LEADER, PartitionState, Topic, TopicChange, TopicUpdate, changed_states
from pylogd.broker.metadata.layout import (
    Assignment,
    encode_states,
    encode_topic,
    state_path,
    topic_config_path,
    topic_of_path,
)
from pylogd.broker.metadata.state_steps import steps_between
from pylogd.config import ConfigError, Settings
from pylogd.store.errors import CorruptMetadata, NodeExists, NoNode
from pylogd.store.interfaces import Check, Create, IMetadataStore, Operation, SetData
from pylogd.store.paths import TOPIC_CONFIGS, TOPICS, topic_path

log = Logger()

TopicListener = Callable[[TopicChange], None]

#: The most topics and bytes of one multi, without the new states in its two notes: these are compressed, and the whole
#: is well below the limit of a store.
_BATCH_TOPICS: Final = 500
_BATCH_BYTES: Final = 400_000
_OPERATION_BYTES: Final = 64  # the bytes of an operation besides its path and data
_WITH_DATA: Final = (SetData, Create)
#: The names of this many changed topics are kept.
_CHANGES_KEPT: Final = 1000
#: After this many changes at once, sorting all names is cheaper than finding the position of each.
_MANY_CHANGES: Final = 100


class _Batch:
    """One write of many topics. Twice its `size` in bytes goes to the store, since readers get the content too."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.paths: list[str] = []
        self.news: dict[str, News] = {}
        self.size = 0

    def add(self, path: str, operations: Sequence[Operation], size: int, news: News | None) -> None:
        """Add a topic.

        path: the path of its state node.
        size: the size of the operations.
        news: the note for readers, if any.
        """
        self.operations += operations
        self.paths.append(path)
        self.size += size
        if news is not None:
            self.news[path] = news


class TopicRegistry:
    """Every topic of the cluster.

    generation: a number that differs after each change of any topic.
    unreadable: topics whose nodes can't be read, with the reason. If they could be read earlier, look-ups return their
        last known state.
    """

    def __init__(self, settings: Settings, feed: ChangeFeed) -> None:
        self._settings = settings
        self._feed = feed
        self.generation = 0
        self.unreadable: dict[str, CorruptMetadata] = {}
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._ordered: list[str] | None = None  # all names; None if they have to be sorted again
        self._on_broker: dict[int, set[str]] = {}  # the names of topics of which a broker has replicas
        self._changed: deque[tuple[int, str]] = deque(maxlen=_CHANGES_KEPT)  # (generation, name) of changed topics
        self._entries: dict[str, Entry] = {}
        self._listeners: list[TopicListener] = []
        feed.add(self)

    # -- look-ups

    def get(self, name: str) -> Topic | None:
        """Return the topic with this name."""
        return self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        """Return the topic with this id (16 bytes)."""
        return self._by_id.get(topic_id)

    def was_deleted(self, name: str, topic_id: bytes) -> bool:
        """Return whether the topic that had a name and an id was deleted, even if another topic has the name now.

        Code that keeps state of topics outside the metadata asks this when it uses the state, since it may not run at
        the moment of the deletion. A topic whose nodes can't be read counts as existing.
        """
        topic = self._by_name.get(name)
        return name not in self.unreadable if topic is None else topic.topic_id != topic_id

    def leader_of(self, name: str, partition: int) -> int | None:
        """Return the node id of a partition's leader; None if the partition does not exist.

        The result is NO_LEADER while the partition has no leader or its nodes can't be read.
        """
        topic = self._by_name.get(name)
        if topic is None:
            return NO_LEADER if name in self.unreadable else None
        return topic.partitions[partition].leader if partition < len(topic.partitions) else None

    def entry(self, name: str) -> Entry | None:
        """Return a topic with the versions of its nodes, which a write of these nodes has to check."""
        return self._entries.get(name)

    def all(self) -> list[Topic]:
        """Return every topic, in order of the names."""
        return list(map(self._by_name.__getitem__, self.ordered()))

    def ordered(self) -> Sequence[str]:
        """Return the names of all topics, in order. Use the result only before the next change."""
        if self._ordered is None:
            self._ordered = sorted(self._by_name)
        return self._ordered

    def changed_since(self, generation: int) -> set[str] | None:
        """Return the names of topics that were created, changed or deleted since a generation; None for too many."""
        changed = self._changed
        if self.generation - generation > len(changed):  # each generation has at least one
            return None
        found = {name for _, name in takewhile(lambda one: one[0] > generation, reversed(changed))}
        whole = len(changed) < _CHANGES_KEPT or changed[0][0] <= generation
        return found if whole else None

    def on_broker(self, node_id: int) -> AbstractSet[str]:
        """Return the names of topics of which a broker has replicas."""
        return self._on_broker.get(node_id, frozenset())

    def names(self) -> KeysView[str]:
        """Return the names of all topics."""
        return self._by_name.keys()

    def __len__(self) -> int:
        return len(self._by_name)

    def keeps_state(self, topic: Topic) -> bool:
        """Return whether readers need all of a topic's records to build a state: it is internal or compacted."""
        try:
            policy = self._settings.topic_config(topic.configs)["cleanup.policy"]
        except ConfigError:
            return True  # the setting is unknown to this release
        return topic.internal or (isinstance(policy, tuple) and "compact" in policy)

    def subscribe(self, listener: TopicListener) -> Callable[[], None]:
        """Call `listener` with each change, after the look-ups have it. Return a function that ends this.

        A listener that subscribes before the registry is started gets every topic as a change.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # -- partition states

    def write_states(
        self,
        updates: Sequence[TopicUpdate],
        controller_epoch: int | None = None,
        guards: Sequence[Operation] = (),
        last: Sequence[Operation] = (),
        configs: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    ) -> Deferred[None]:
        """Write partitions' states and assignments: each topic at once, many topics in few writes.

        controller_epoch: the epoch to write with the states, None to keep it.
        guards: operations that are put before each write.
        last: operations that are done with the last write.
        configs: new settings of topics, by name, each to be written together with the topic's states.

        Fires once the look-ups have everything. Fails like `multi`, with `BadVersion` or `NoNode` if a topic, or a node
        that a guard checks, has changed since the call; earlier writes stay. Topics that can't be read are left out.
        """
        batches = [_Batch()]
        for update in updates:
            if update.before.name in self.unreadable:  # writing it would fail, and with it the others of its batch
                continue
            path = state_path(update.before.name, update.before.topic_id)
            operations, news = self._update(update, path, controller_epoch, configs.get(update.before.name))
            size = _size(operations, path)
            if len(batches[-1].paths) == _BATCH_TOPICS or (batches[-1].size + size > _BATCH_BYTES and batches[-1].size):
                batches.append(_Batch())
            batches[-1].add(path, operations, size, news)
        batches[-1].operations.extend(last)
        batches[-1].paths.extend(operation.path for operation in last)

        async def write() -> None:
            for batch in batches:
                news = batch.news if batch.size <= _BATCH_BYTES else {}
                await self._feed.write([*guards, *batch.operations], batch.paths, news)

        return Deferred.fromCoroutine(write())

    def catch_up(self) -> Deferred[None]:
        """Return a Deferred that fires when the look-ups have the present state of the tree, whoever wrote it."""
        return Deferred.fromCoroutine(self._feed.catch_up())

    def make_missing_states(self) -> Deferred[None]:
        """Create the state nodes of topics that have none, since an earlier release created them.

        Call this before anything else is done with the topics.
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

    def _update(
        self, update: TopicUpdate, states: str, controller_epoch: int | None, configs: Mapping[str, str] | None
    ) -> tuple[list[Operation], News | None]:
        """Return the operations that write a topic's states, and the note for readers: None if other nodes change too.

        states: the path of the topic's state node.
        configs: the topic's new settings, None to keep them.
        """
        before, after = update
        entry = self._entries.get(before.name)
        if entry is None or entry.topic is not before:
            raise StalePartition(f'topic "{before.name}" has changed')
        path = topic_path(before.name)
        known = before.partitions
        changed = changed_states(known, after)
        # The topic's node is checked too, since the update was computed from both nodes.
        operations: list[Operation] = [Check(path, entry.assignment_version)]
        moves = len(after) != len(known) or _is_placement_changed(known, changed)
        if moves:
            assignment = Assignment.of(before.topic_id, after)
            operations = [SetData(path, encode_topic(assignment), entry.assignment_version)]
        config_path = topic_config_path(before.name)
        if configs is not None:
            there = entry.nodes[2] != NO_NODE
            operations.append(write_configs(config_path, configs, entry.configs_version if there else None))
        elif moves and entry.nodes[2] != NO_NODE:
            operations.append(Check(config_path, entry.configs_version))  # new replicas have to fit the label in it
        epoch = entry.controller_epoch if controller_epoch is None else controller_epoch
        operations.append(SetData(states, encode_states(epoch, after), entry.state_version))
        if moves or configs is not None:
            return operations, None
        told = steps_between(epoch, known, changed) or encode_states(epoch, changed)
        return operations, News(entry.assignment_version, entry.state_version + 1, told, (epoch, after))

    # -- the change feed's side

    async def reload(self, store: IMetadataStore) -> None:
        """Read every topic. Topics whose nodes have not changed are not decoded again."""
        await store.ensure(TOPICS)
        await store.ensure(TOPIC_CONFIGS)
        nodes = await store.children_data(TOPICS)
        configs = await store.children_data(TOPIC_CONFIGS)
        asked = {name: (node, configs.get(name)) for name, node in nodes.items()}
        found, unreadable = await read_entries(store, asked, self._entries)
        self._note_unreadable(unreadable)
        self._apply({**dict.fromkeys(name for name in self._by_name if name not in asked), **found})

    async def refresh(self, store: IMetadataStore, change: Change) -> None:
        """Update the topics that a write changed, from its note or by reading them again."""
        found: dict[str, Entry | None] = dict.fromkeys(filter(None, map(topic_of_path, change.paths)))
        for path, news in change.states.items():
            name = topic_of_path(path) or ""
            entry = self._entries.get(name)
            told = None if entry is None else entry.with_states(path, news)
            if told is not None:
                found[name] = told
        # Unreadable topics are read again with every change, since they may have been repaired.
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
        if len(changes) > _MANY_CHANGES:
            self._ordered = None
        for before, after, _ in changes:
            topic = after or before
            assert topic is not None
            self._changed.append((self.generation, topic.name))
            self._index(topic.name, found[topic.name])
            self._replace(before, after)
        self._entries.update((name, entry) for name, entry in found.items() if entry is not None)
        for change in changes:
            for listener in list(self._listeners):
                _tell(listener, change)

    def _index(self, name: str, after: Entry | None) -> None:
        """Note which brokers have replicas of a topic from now on."""
        before = self._entries.get(name)
        if before is not None and after is not None and before.assignment is after.assignment:
            return
        old = set() if before is None else set(chain.from_iterable(before.assignment.replicas))
        new = set() if after is None else set(chain.from_iterable(after.assignment.replicas))
        for node_id in old - new:
            self._on_broker[node_id].discard(name)
        for node_id in new - old:
            self._on_broker.setdefault(node_id, set()).add(name)

    def _replace(self, before: Topic | None, after: Topic | None) -> None:
        """Apply a change. If the topic has another id, the old topic was deleted, and then a new one was created."""
        if after is not None:
            if self._ordered is not None and after.name not in self._by_name:
                insort(self._ordered, after.name)
            self._by_name[after.name] = after
            self._by_id[after.topic_id] = after
        elif before is not None:
            if self._ordered is not None:
                del self._ordered[bisect_left(self._ordered, before.name)]
            del self._by_name[before.name]
            self._by_id.pop(before.topic_id, None)
            self._entries.pop(before.name, None)


def _size(operations: Sequence[Operation], path: str) -> int:
    """Return about how many bytes operations add to a write, including their paths, which it notes twice."""
    size = 2 * len(path)
    for one in operations:
        size += len(one.path) + _OPERATION_BYTES
        if isinstance(one, _WITH_DATA):
            size += len(one.data)
    return size


def _is_placement_changed(known: Sequence[PartitionState], changed: Sequence[PartitionState]) -> bool:
    """Return whether the part of any state that is kept in the topic's node has changed."""
    for new in changed:
        old = known[new.index]
        if (
            (old.replicas is not new.replicas and old.replicas != new.replicas)
            or old.adding != new.adding
            or old.removing != new.removing
            or old.latest_until_ms != new.latest_until_ms
        ):
            return True
    return False


def _tell(listener: TopicListener, change: TopicChange) -> None:
    try:
        listener(change)
    except Exception:
        log.failure("a listener to topic changes failed")
