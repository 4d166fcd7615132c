"""The parts of the metadata room, put together: what a broker makes, starts and stops."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorThreads

from pylogd.config import Settings
from pylogd.metadata.changes import ChangeFeed
from pylogd.metadata.cluster import Cluster
from pylogd.metadata.configs import BrokerConfigs
from pylogd.metadata.interfaces import IMetadataStore
from pylogd.metadata.sqlite import SqliteStore
from pylogd.metadata.topics import TopicRegistry


class Metadata:
    """A broker's metadata: `cluster`, `topics` and `broker_configs` on one store."""

    def __init__(self, settings: Settings, store: IMetadataStore) -> None:
        node_id = settings.integer("node.id")
        self.store = store
        self._feed = ChangeFeed(store)
        self.cluster = Cluster(store, node_id, self._feed)
        # Before the topics: their settings fall back to the brokers'.
        self.broker_configs = BrokerConfigs(store, settings, node_id, self._feed)
        self.topics = TopicRegistry(store, settings, self.cluster, self._feed)

    def start(self) -> Deferred[None]:
        """Open the store and read everything. On failure, the store is closed."""
        return Deferred.fromCoroutine(self._start())

    def stop(self) -> Deferred[None]:
        """Follow the tree no longer, and close the store, which ends the broker's registration."""
        self._feed.stop()
        self.cluster.stop()
        return self.store.close()

    async def _start(self) -> None:
        await self.store.start()
        try:
            await self.cluster.start()
            await self._feed.start()
            await self.topics.make_missing_states()
        except BaseException:
            await self.stop()
            raise


def open_store(settings: Settings, reactor: IReactorThreads) -> IMetadataStore:
    """The store that `metadata.store` names, not started."""
    return SqliteStore(settings.metadata_path, reactor)
