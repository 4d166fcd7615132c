"""The parts of the metadata package together, as a broker creates, starts and stops them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from pylogd.base.clock import wall_ms
from pylogd.broker.metadata.changes import ChangeFeed
from pylogd.broker.metadata.cluster import Cluster
from pylogd.broker.metadata.configs import BrokerConfigs
from pylogd.broker.metadata.delegation_tokens import DelegationTokens
from pylogd.broker.metadata.eligibility import min_insync_of
from pylogd.broker.metadata.entity_configs import EntityConfigs
from pylogd.broker.metadata.features import Features
from pylogd.broker.metadata.isr_writer import IsrWriter
from pylogd.broker.metadata.named_configs import ClientMetricsConfigs, GroupConfigs
from pylogd.broker.metadata.producer_ids import ProducerIds
from pylogd.broker.metadata.topic_admin import TopicAdmin
from pylogd.broker.metadata.topics import TopicRegistry
from pylogd.config import Settings
from pylogd.config.metadata_store import store_file, store_socket
from pylogd.store.interfaces import IMetadataStore
from pylogd.store.spare_room import SpareRoom
from pylogd.store.sqlite import SqliteStore

#: Seconds after the session timeout within which ZooKeeper ends a session.
_SESSION_END_SECONDS: Final = 5.0
#: A write that takes longer than this part of the session timeout is no sign of life.
_WRITE_SHARE: Final = 4
#: How many session timeouts a controller may wait for one answer: in a large cluster some answers take seconds.
_DECISION_SESSIONS: Final = 4


class Metadata:
    """A broker's metadata on one store.

    Its parts are `cluster`, `topics`, `topic_admin`, `isr_writer`, `broker_configs`, `entity_configs` (of users and
    client ids), `group_configs`, `client_metrics`, `delegation_tokens`, `features`, `producer_ids`, and `feed`,
    through which brokers learn of each other's writes.
    """

    def __init__(self, settings: Settings, store: IMetadataStore, clock: IReactorTime | None = None) -> None:
        """With a clock, a start waits for an earlier session of this broker to end."""
        node_id = settings.integer("node.id")
        self.store = store
        self._settings = settings
        self.feed = ChangeFeed(store, clock, lambda: len(self.cluster.brokers))
        patience = settings.integer("zookeeper.session.timeout.ms") / 1000 + _SESSION_END_SECONDS
        self.cluster = Cluster(store, node_id, self.feed, clock, patience)
        # They are read before the topics, whose settings fall back to the broker's.
        self.broker_configs = BrokerConfigs(store, settings, node_id, self.feed)
        self.entity_configs = EntityConfigs(store, self.feed)
        self.group_configs = GroupConfigs(store, settings, self.feed)
        self.client_metrics = ClientMetricsConfigs(store, self.feed)
        self.delegation_tokens = DelegationTokens(store, self.feed)
        self.features = Features(self.feed, self.cluster)
        self.topics = TopicRegistry(settings, self.feed)
        self.topic_admin = TopicAdmin(store, settings, self.cluster, self.feed, self.topics)
        self.producer_ids = ProducerIds(store, node_id)
        self.isr_writer = IsrWriter(self.topics, self.cluster, self.feed, wall_ms, partial(min_insync_of, settings))

    def live_by(self, is_stuck: Callable[[float], bool], stand_still: Callable[[float], bool] | None) -> None:
        """Let the session end if this broker does no work, even if its reactor runs, so that others become leaders.

        is_stuck: returns whether its decisions as the controller have made no progress for a number of seconds.
        stand_still: returns whether its disks have taken no append for a number of seconds; None if this can't be told.
        """
        seconds = self._settings.integer("zookeeper.session.timeout.ms") / 1000
        write_seconds, decision_seconds = seconds / _WRITE_SHARE, seconds * _DECISION_SESSIONS

        def alive() -> bool:
            return not ((stand_still is not None and stand_still(write_seconds)) or is_stuck(decision_seconds))

        self.store.vital = alive

    def start(self) -> Deferred[None]:
        """Open the store and read everything. If that fails, the store is closed."""
        return Deferred.fromCoroutine(self._start())

    def stop(self) -> Deferred[None]:
        """Follow no more changes, and close the store, which ends the broker's registration."""
        self.feed.stop()
        self.cluster.stop()
        return self.store.close()

    async def _start(self) -> None:
        await self.store.start()
        try:
            await self.cluster.start()
            await self.feed.start()
            await self.topics.make_missing_states()
        except Exception:
            await self.stop()
            raise


def open_store(settings: Settings, reactor: Any) -> IMetadataStore:
    """Return the store that `zookeeper.connect` or `metadata.store` names. It is not started."""
    connect = settings.text("zookeeper.connect")
    if connect:
        # Imported here, so that a broker without ZooKeeper doesn't load kazoo.
        from pylogd.store.zookeeper import ZooKeeperStore  # noqa: PLC0415

        return ZooKeeperStore(
            connect,
            reactor,
            session_timeout_ms=settings.integer("zookeeper.session.timeout.ms"),
            connection_timeout_ms=settings["zookeeper.connection.timeout.ms"],
            security=settings.zookeeper_security,
        )
    path = store_file(settings)
    if path is not None:
        SpareRoom(path).give_up_if_full()  # the logs, which are loaded first, may need some space too
        return SqliteStore(path, reactor)
    from pylogd.store.remote import RemoteStore, unix_endpoint  # noqa: PLC0415 - a broker alone does not need it

    socket = store_socket(settings)
    assert socket is not None
    timeout_ms = settings.integer("zookeeper.session.timeout.ms")
    return RemoteStore(
        unix_endpoint(reactor, socket), reactor, session_timeout_ms=timeout_ms,
        connection_timeout_ms=settings["zookeeper.connection.timeout.ms"] or timeout_ms,
    )  # fmt: skip
