"""The parts of the metadata room, put together: what a broker makes, starts and stops."""

from __future__ import annotations

from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from pylogd.config import Settings
from pylogd.metadata.changes import ChangeFeed
from pylogd.metadata.cluster import Cluster
from pylogd.metadata.configs import BrokerConfigs
from pylogd.metadata.interfaces import IMetadataStore
from pylogd.metadata.sqlite import SqliteStore
from pylogd.metadata.topics import TopicRegistry

#: Beyond a session's timeout: until ZooKeeper has noticed its end.
_SESSION_END_SECONDS: Final = 5.0


class Metadata:
    """A broker's metadata: `cluster`, `topics` and `broker_configs` on one store."""

    def __init__(self, settings: Settings, store: IMetadataStore, clock: IReactorTime | None = None) -> None:
        """With a clock, a start waits for this broker's own earlier session to end."""
        node_id = settings.integer("node.id")
        self.store = store
        self._feed = ChangeFeed(store)
        patience = settings.integer("zookeeper.session.timeout.ms") / 1000 + _SESSION_END_SECONDS
        self.cluster = Cluster(store, node_id, self._feed, clock, patience)
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
        except Exception:
            await self.stop()
            raise


def open_store(settings: Settings, reactor: Any) -> IMetadataStore:
    """The store that `zookeeper.connect` or `metadata.store` names, not started."""
    connect = settings.text("zookeeper.connect")
    if connect:
        # kazoo is for those who have a ZooKeeper.
        from pylogd.metadata.zookeeper import ZooKeeperStore  # noqa: PLC0415

        return ZooKeeperStore(
            connect,
            reactor,
            session_timeout_ms=settings.integer("zookeeper.session.timeout.ms"),
            connection_timeout_ms=settings["zookeeper.connection.timeout.ms"],
            security=settings.zookeeper_security,
        )
    return SqliteStore(settings.metadata_path, reactor)
