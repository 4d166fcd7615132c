"""The committed offsets of consumer groups that work through ZooKeeper (`/consumers`, as in Kafka 0.8).

    /consumers/<group>/offsets/<topic>/<partition>    the offset of the next record to read, as decimal text

`pylogd.client.zookeeper` writes these nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from pylogd.metadata.errors import NoNode
from pylogd.metadata.interfaces import IMetadataStore
from pylogd.metadata.layout import CONSUMERS, CorruptMetadata


async def committed_offsets(store: IMetadataStore, topics: Iterable[str]) -> dict[tuple[str, int], dict[str, int]]:
    """Return the offset that each group has committed, for each partition of `topics` that has one.

    Raises `CorruptMetadata` and the store's errors.
    """
    found: dict[tuple[str, int], dict[str, int]] = {}
    try:
        groups = await store.children(CONSUMERS)
    except NoNode:
        return found
    wanted = sorted(topics)
    for group in groups:
        for topic in wanted:
            path = f"{CONSUMERS}/{group}/offsets/{topic}"
            try:
                nodes = await store.children_data(path)
            except NoNode:
                continue
            for name, node in nodes.items():
                try:
                    key, offset = (topic, int(name)), int(node.data)
                except ValueError as error:
                    raise CorruptMetadata(f"{path}/{name}", repr(error)) from error
                found.setdefault(key, {})[group] = offset
    return found
