"""The cluster: its id, its live brokers, and the producer ids that it hands out.

Strategy: a broker is live while its ephemeral node exists; one watch on the children of `/brokers/ids` keeps the table
of live brokers up to date. Producer ids are taken from the tree in blocks: a block is written as taken, with the
version that was read, before its first id is handed out, so no id is ever given twice, by any broker, over any crash.

Must not know: topics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from twisted.internet.defer import Deferred, DeferredLock
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.metadata.errors import BadVersion, NodeExists, NodeIdInUse
from pylogd.metadata.image import Broker, id_to_text, new_id
from pylogd.metadata.interfaces import IMetadataStore, SessionState, WatchEvent, parent_of
from pylogd.metadata.layout import (
    BROKERS,
    CLUSTER_ID,
    PRODUCER_IDS,
    CorruptMetadata,
    decode_broker,
    decode_cluster_id,
    decode_producer_block_end,
    encode_broker,
    encode_cluster_id,
    encode_producer_block,
)

log = Logger()

#: Producer ids taken from the tree at a time (Kafka's size).
PRODUCER_ID_BLOCK: Final = 1000

ClusterListener = Callable[[], None]


class Cluster:
    """What this broker knows of its cluster. `cluster_id` is 22 characters, empty before `start`."""

    def __init__(self, store: IMetadataStore, node_id: int) -> None:
        self._store = store
        self.node_id = node_id
        self._brokers: dict[int, Broker] = {}
        self._self: Broker | None = None
        self._registered_in = 0
        self._watched = False
        self._next_id, self._ids_end = 0, 0
        self._id_lock = DeferredLock()
        self._listeners: list[ClusterListener] = []
        self._forget: Callable[[], None] | None = None
        self.cluster_id = ""

    @property
    def brokers(self) -> Mapping[int, Broker]:
        """The live brokers by id."""
        return MappingProxyType(self._brokers)

    @property
    def controller_id(self) -> int:
        """The broker that clients are to send administrative requests to, -1 if none lives. Any broker carries them
        out, so it is the one asked, if it is live.
        """
        return self.node_id if self.node_id in self._brokers else min(self._brokers, default=-1)

    def subscribe(self, listener: ClusterListener) -> Callable[[], None]:
        """Call `listener` after each change of the live brokers; returns the undoing."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def start(self) -> Deferred[None]:
        """Learn, or make up, the cluster's id, and learn the live brokers."""
        return Deferred.fromCoroutine(self._start())

    def stop(self) -> None:
        """Follow the tree no longer. The broker's own node ends with the store's session."""
        if self._forget is not None:
            self._forget()
            self._forget = None

    def register(self, broker: Broker) -> Deferred[None]:
        """Make this broker known, from now on and after every loss of the session. Fails with `NodeIdInUse`."""
        assert broker.node_id == self.node_id
        self._self = broker
        return Deferred.fromCoroutine(self._register(broker))

    def next_producer_id(self) -> Deferred[int]:
        """An id that no producer has had."""
        result: Deferred[int] = self._id_lock.run(lambda: Deferred.fromCoroutine(self._take_id()))
        return result

    async def _start(self) -> None:
        await self._store.ensure(BROKERS)
        await self._store.ensure(parent_of(CLUSTER_ID))
        await self._store.ensure(PRODUCER_IDS)
        proposal = id_to_text(new_id())
        try:
            await self._store.create(CLUSTER_ID, encode_cluster_id(proposal))
            self.cluster_id = proposal
        except NodeExists:
            self.cluster_id = decode_cluster_id((await self._store.get(CLUSTER_ID)).data)
        self._forget = self._store.on_session(self._session)
        await self._reload()

    async def _register(self, broker: Broker) -> None:
        path = f"{BROKERS}/{broker.node_id}"
        try:
            await self._store.create(path, encode_broker(broker), ephemeral=True)
        except NodeExists:
            stat = await self._store.exists(path)
            if stat is not None and stat.owner != self._store.session_id:
                raise NodeIdInUse(f"another broker with node.id {broker.node_id} is alive in this cluster") from None
            await self._store.set(path, encode_broker(broker))
        self._registered_in = self._store.session_id
        await self._reload()

    async def _reload(self) -> None:
        if not self._watched:
            self._watched = True
            await self._store.children(BROKERS, self._changed)
        nodes = await self._store.children_data(BROKERS)
        found = {}
        for name, node in nodes.items():
            try:
                broker = decode_broker(f"{BROKERS}/{name}", node.data)
            except CorruptMetadata as error:
                log.error("a broker is passed over: {error}", error=str(error))
            else:
                found[broker.node_id] = broker
        if found != self._brokers:
            self._brokers = found
            for listener in list(self._listeners):
                listener()

    async def _take_id(self) -> int:
        while self._next_id == self._ids_end:
            node = await self._store.get(PRODUCER_IDS)
            start = decode_producer_block_end(node.data) + 1
            end = start + PRODUCER_ID_BLOCK
            try:
                block = encode_producer_block(self.node_id, start, end - 1)
                await self._store.set(PRODUCER_IDS, block, node.stat.version)
            except BadVersion:
                continue
            self._next_id, self._ids_end = start, end
        self._next_id += 1
        return self._next_id - 1

    def _changed(self, _: WatchEvent) -> None:
        self._watched = False
        if self._forget is not None:
            Deferred.fromCoroutine(self._reload()).addErrback(self._failed)

    def _session(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED:
            return
        self._watched = False
        again = self._self is not None and self._registered_in != self._store.session_id
        work = self._register(self._self) if again and self._self is not None else self._reload()
        Deferred.fromCoroutine(work).addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        self._watched = False
        log.failure("can't follow the brokers of the cluster", failure=failure)
