"""The committed offsets of consumer groups that work through ZooKeeper (`/consumers`, as in Kafka 0.8).

    /consumers/<group>/offsets/<topic>/<partition>    the offset of the next record to read, as decimal text

`pylogd.client.zookeeper` writes these nodes.

Rules: the nodes name topics, and nobody deletes them with a topic. An offset belongs to a topic if ZooKeeper's
transaction numbers show that it was written after the topic's node was created. An earlier offset belongs to a deleted
topic.

`RegisteredGroups` reads the groups for their lag, only on the controller's broker. Each reading reads at most
`_GROUPS_PER_READING` groups, in turn; the last readings of the other groups are kept. So with many groups the offsets
are older, but a reading is never larger. The first `_MOST_GROUPS` groups by name are read; the others count as groups
of an unknown state.

Must not know: log ends, and groups that brokers coordinate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from twisted.logger import Logger

from pylogd.store.errors import CorruptMetadata, NoNode, StoreError
from pylogd.store.interfaces import IMetadataStore, NodeStat
from pylogd.store.paths import CONSUMERS, topic_path

log = Logger()


async def committed_offsets(store: IMetadataStore, topics: Iterable[str]) -> dict[tuple[str, int], dict[str, int]]:
    """Return the offset that each group has committed, for each partition of `topics` that has one.

    Raises `CorruptMetadata` and the store's errors.
    """
    found: dict[tuple[str, int], dict[str, int]] = {}
    try:
        groups = await store.children(CONSUMERS)
    except NoNode:
        return found
    created = {topic: await created_at(store, topic) for topic in sorted(topics)}
    for group in groups:
        for topic, since in created.items():
            path = f"{CONSUMERS}/{group}/offsets/{topic}"
            try:
                nodes = await store.children_data(path)
            except NoNode:
                continue
            for name, node in nodes.items():
                if not is_current(node.stat, since):
                    continue
                try:
                    key, offset = (topic, int(name)), int(node.data)
                except ValueError as error:
                    raise CorruptMetadata(f"{path}/{name}", repr(error)) from error
                found.setdefault(key, {})[group] = offset
    return found


async def created_at(store: IMetadataStore, topic: str) -> int | None:
    """Return the number of the transaction that created a topic's node; None if there is no topic with this name."""
    stat = await store.exists(topic_path(topic))
    return None if stat is None else stat.created


def is_current(offset: NodeStat, topic_created: int | None) -> bool:
    """Return whether the node of an offset was written for the present topic of its name, not for an earlier one."""
    return topic_created is not None and offset.modified > topic_created


class RegisteredGroup(NamedTuple):
    """A group of consumers in ZooKeeper: how many members it has, and its committed offset for each partition."""

    members: int
    offsets: Mapping[tuple[str, int], int]


async def group_names(store: IMetadataStore) -> Sequence[str]:
    """Return the sorted names of the groups in ZooKeeper. Raises the store's errors."""
    try:
        return await store.children(CONSUMERS)
    except NoNode:
        return ()


async def read_group(
    store: IMetadataStore, group: str, topics: Container[str], created: dict[str, int | None]
) -> RegisteredGroup:
    """Return a group with its offsets of the topics that exist.

    Nodes with unexpected contents are ignored, since other projects' clients write there too.

    created: `created_at` of topics that were looked up before; those of this group are added.

    Raises the store's errors.
    """
    offsets: dict[tuple[str, int], int] = {}
    for topic in await _children(store, f"{CONSUMERS}/{group}/offsets"):
        if topic not in topics:
            continue
        if topic not in created:
            created[topic] = await created_at(store, topic)
        try:
            nodes = await store.children_data(f"{CONSUMERS}/{group}/offsets/{topic}")
        except NoNode:
            continue
        for name, node in nodes.items():
            if is_current(node.stat, created[topic]) and name.isdecimal() and node.data.isdigit():
                offsets[topic, int(name)] = int(node.data)
    return RegisteredGroup(len(await _children(store, f"{CONSUMERS}/{group}/ids")), offsets)


async def _children(store: IMetadataStore, path: str) -> Sequence[str]:
    try:
        return await store.children(path)
    except NoNode:
        return ()


#: The value in place of the protocol of a group's members, which need no broker.
ZOOKEEPER: Final = "zookeeper"
_MOST_GROUPS: Final = 2000
_GROUPS_PER_READING: Final = 100


class RegisteredGroups:
    """The groups in ZooKeeper, from the last readings.

    found: the groups by name; empty unless this broker is the controller.
    problem: the reason why the last reading failed, or "".
    """

    def __init__(
        self, store: IMetadataStore, topics: Callable[[], Container[str]], is_controller: Callable[[], bool]
    ) -> None:
        """`topics` returns the names of existing topics."""
        self._store = store
        self._topics = topics
        self._is_controller = is_controller
        self._last = ""  # the group that was read last
        self._unread = 0
        self.found: dict[str, RegisteredGroup] = {}
        self.problem = ""

    @property
    def members(self) -> int:
        """The members of all groups."""
        return sum(group.members for group in self.found.values())

    async def read(self) -> None:
        """Read the next groups. If ZooKeeper does not answer, the earlier readings are kept."""
        if not self._is_controller():
            self.found, self._unread = {}, 0
            return
        try:
            names = await group_names(self._store)
            self._unread = max(len(names) - _MOST_GROUPS, 0)
            known = names[:_MOST_GROUPS]
            there = set(known)
            self.found = {name: group for name, group in self.found.items() if name in there}
            created: dict[str, int | None] = {}
            topics = self._topics()
            for name in self._next(known):
                self.found[name] = await read_group(self._store, name, topics, created)
                self._last = name
            self.problem = ""
        except StoreError as error:
            self.problem = str(error)
            log.debug("Can't read the groups in ZooKeeper: {error}", error=error)

    def _next(self, names: Sequence[str]) -> Sequence[str]:
        """Return the groups to read now: those after the last one, continued with the first ones."""
        later = [name for name in names if name > self._last]
        return [*later, *names[: len(names) - len(later)]][:_GROUPS_PER_READING]

    def count(self, states: Counter[tuple[str, str]], wanted: set[tuple[str, int]]) -> Iterator[None]:
        """Count the groups by type and state, and add the partitions with offsets. Yield after each group."""
        if self._unread:
            states[ZOOKEEPER, "Unknown"] += self._unread
        for group in self.found.values():
            states[ZOOKEEPER, "Stable" if group.members else "Empty"] += 1
            wanted.update(group.offsets)
            yield
