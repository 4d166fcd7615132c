"""The producer ids that this broker hands out.

Strategy: ids are taken from the metadata store in blocks. A block is written as taken before its first id is handed
out, so no id is ever given twice, by any broker, across any crash.
"""

from __future__ import annotations

from typing import Final

from twisted.internet.defer import Deferred, DeferredLock

from pylogd.broker.metadata.errors import ProducerIdsExhausted
from pylogd.broker.metadata.layout import decode_producer_block_end, encode_producer_block
from pylogd.store.errors import BadVersion
from pylogd.store.interfaces import IMetadataStore
from pylogd.store.paths import PRODUCER_IDS

#: How many producer ids are taken from the tree at a time (Kafka's size).
PRODUCER_ID_BLOCK: Final = 1000
_LAST_PRODUCER_ID: Final = (1 << 63) - 1


class ProducerIds:
    """The ids of the block that was taken last."""

    def __init__(self, store: IMetadataStore, node_id: int) -> None:
        self._store = store
        self._node_id = node_id
        self._ids = iter(range(0))
        self._lock = DeferredLock()

    def next(self) -> Deferred[int]:
        """Return a Deferred of an id that no producer has had."""
        result: Deferred[int] = self._lock.run(lambda: Deferred.fromCoroutine(self._take()))
        return result

    async def _take(self) -> int:
        while (found := next(self._ids, None)) is None:
            node = await self._store.get(PRODUCER_IDS)
            start = decode_producer_block_end(node.data) + 1
            end = start + PRODUCER_ID_BLOCK
            if end - 1 > _LAST_PRODUCER_ID:
                raise ProducerIdsExhausted(
                    f"all producer ids up to {_LAST_PRODUCER_ID} are given out: look at the node {PRODUCER_IDS}"
                )
            try:
                block = encode_producer_block(self._node_id, start, end - 1)
                await self._store.set(PRODUCER_IDS, block, node.stat.version)
            except BadVersion:
                continue
            self._ids = iter(range(start, end))
        return found
