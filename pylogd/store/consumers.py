"""The committed offsets of consumer groups that work through ZooKeeper (`/consumers`, as in Kafka 0.8).

    /consumers/<group>/offsets/<topic>/<partition>    the offset of the next record to read, as decimal text

`pylogd.client.zookeeper` writes these nodes.

Rules: the nodes name topics, and nobody deletes them with a topic. An offset belongs to a topic if ZooKeeper's
transaction numbers show that it was written after the topic's node was created. An earlier offset belongs to a deleted
topic.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from pylogd.store.errors import CorruptMetadata, NoNode
from pylogd.store.interfaces import IMetadataStore, NodeStat
from pylogd.store.paths import CONSUMERS, topic_path


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
