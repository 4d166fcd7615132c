"""What a handler gets besides its request: the broker's parts, and the client.

Rules: handlers use only the attributes of `BrokerParts`, so a test can give them a simple object with those it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pylogd.security.authorizer import AclOperation, ResourceType
from pylogd.security.principal import Principal

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from pylogd.config import Settings
    from pylogd.controller.admin import PartitionAdmin
    from pylogd.groups import GroupCoordinator
    from pylogd.log.manager import LogManager
    from pylogd.metadata.cluster import Cluster
    from pylogd.metadata.configs import BrokerConfigs
    from pylogd.metadata.topic_admin import TopicAdmin
    from pylogd.metadata.topics import TopicRegistry
    from pylogd.replica.hosting import PartitionHosting
    from pylogd.replica.manager import ReplicaManager
    from pylogd.security.authentication import Authentication
    from pylogd.security.authorizer import Authorizer
    from pylogd.security.delegation_tokens import TokenManager
    from pylogd.security.scram_users import StoredUsers


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
    def replicas(self) -> ReplicaManager: ...
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
    def authorizer(self) -> Authorizer | None: ...  # None: everyone may do everything
    @property
    def scram_users(self) -> StoredUsers: ...
    @property
    def delegation_tokens(self) -> TokenManager: ...
    @property
    def node_id(self) -> int: ...
    @property
    def cluster_id(self) -> str: ...

    def advertised(self, listener: str) -> tuple[str, int]:
        """Return the (host, port) that clients of `listener` should connect to."""


class Connection(Protocol):
    """What handlers see of a client's connection: the peer's address, the name of the listener, who the client is.

    authentication: on a SASL listener, from the first request on. finish: take no more requests, and close the
    connection when all replies are sent.
    """

    authentication: Authentication | None
    host: str
    listener: str
    principal: Principal

    def finish(self) -> None: ...


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
