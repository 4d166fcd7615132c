"""What a handler gets besides its request: the broker's parts, and the client.

Rules: handlers use only the attributes of `BrokerParts`, so a test can give them a simple object with those it needs.
Each is the part that a handler works with; a handler does not reach through one part for another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pylogd.security.authorizer import AclOperation, ResourceType
from pylogd.security.principal import Principal

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IReactorTime

    from pylogd.config import Settings
    from pylogd.controller.admin import PartitionAdmin
    from pylogd.groups import GroupCoordinator
    from pylogd.log.manager import LogManager
    from pylogd.metadata.cluster import Cluster
    from pylogd.metadata.configs import BrokerConfigs
    from pylogd.metadata.entity_configs import EntityConfigs
    from pylogd.metadata.topic_admin import TopicAdmin
    from pylogd.metadata.topics import TopicRegistry
    from pylogd.quotas.clients import ClientQuotas
    from pylogd.replica.hosting import PartitionHosting
    from pylogd.replica.isr_updater import IsrUpdater
    from pylogd.replica.manager import ReplicaManager
    from pylogd.replica.partition_registry import PartitionRegistry
    from pylogd.replica.purgatory import Purgatory
    from pylogd.replica.selector import RackAwareSelector
    from pylogd.replica.sessions import FetchSessions
    from pylogd.replica.throttle import ReplicaThrottle
    from pylogd.security.authorizer import Authorizer


class BrokerParts(Protocol):
    """The parts of a broker that handlers use."""

    @property
    def clock(self) -> IReactorTime: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def topics(self) -> TopicRegistry: ...
    @property
    def cluster(self) -> Cluster: ...
    @property
    def broker_configs(self) -> BrokerConfigs: ...
    @property
    def partitions(self) -> PartitionRegistry: ...
    @property
    def replicas(self) -> ReplicaManager: ...
    @property
    def fetch_waits(self) -> Purgatory: ...
    @property
    def fetch_sessions(self) -> FetchSessions[Any]: ...
    @property
    def replica_selector(self) -> RackAwareSelector | None: ...  # None: consumers read from leaders
    @property
    def replica_throttle(self) -> ReplicaThrottle: ...
    @property
    def isr_updater(self) -> IsrUpdater: ...
    @property
    def hosting(self) -> PartitionHosting: ...
    @property
    def topic_admin(self) -> TopicAdmin: ...
    @property
    def partition_admin(self) -> PartitionAdmin: ...
    @property
    def groups(self) -> GroupCoordinator: ...
    @property
    def logs(self) -> LogManager: ...
    @property
    def client_quotas(self) -> ClientQuotas: ...
    @property
    def entity_configs(self) -> EntityConfigs: ...
    @property
    def authorizer(self) -> Authorizer | None: ...  # None: everyone may do everything
    @property
    def node_id(self) -> int: ...
    @property
    def cluster_id(self) -> str: ...

    def advertised(self, listener: str) -> tuple[str, int]:
        """Return the (host, port) that clients of `listener` should connect to."""

    def in_thread(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """Run `function` in one of the broker's threads; return a Deferred of its result."""


class Connection(Protocol):
    """What handlers see of a client's connection: the peer's address, the name of the listener, who the client is."""

    host: str
    listener: str
    principal: Principal

    def mute(self, seconds: float) -> None:
        """Take no further request from the client for so many seconds."""


class RequestContext:
    """The client of a request, and the version. Immutable: requests of one connection share it if they can."""

    __slots__ = ("broker", "client_id", "connection", "version")

    def __init__(
        self,
        broker: BrokerParts,
        connection: Connection,
        version: int,
        client_id: str | None = None,
    ) -> None:
        self.broker = broker
        self.connection = connection
        self.version = version
        self.client_id = client_id

    @property
    def principal(self) -> Principal:
        """Who the client is."""
        return self.connection.principal

    def may(self, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        """Return whether the client may do `operation` to the resource `name`."""
        authorizer = self.broker.authorizer
        connection = self.connection
        return authorizer is None or authorizer.authorize(
            connection.principal, connection.host, operation, resource, name
        )
