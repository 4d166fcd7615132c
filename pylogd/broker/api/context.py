"""The context of a handler: the broker's parts, and the client.

Rules: handlers use only the attributes of `BrokerParts`, so a test can pass a simple object with the attributes that it
needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pylogd.base.limits.shares import Share
from pylogd.broker.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from pylogd.broker.security.client_share import share_of_client
from pylogd.broker.security.peers import PeerClaim
from pylogd.credentials.principal import ANONYMOUS, Principal
from pylogd.store.paths import INTERNAL_TOPICS

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IReactorTime

    from pylogd.base.limits.expressions import Matches
    from pylogd.broker.controller.admin import PartitionAdmin
    from pylogd.broker.groups import GroupCoordinator
    from pylogd.broker.isolation.laggards import LaggardThrottle
    from pylogd.broker.log.manager import LogManager
    from pylogd.broker.metadata.cluster import Cluster
    from pylogd.broker.metadata.service import Metadata
    from pylogd.broker.metadata.topics import TopicRegistry
    from pylogd.broker.quotas.clients import ClientQuotas
    from pylogd.broker.replica.hosting import PartitionHosting
    from pylogd.broker.replica.isr_updater import IsrUpdater
    from pylogd.broker.replica.manager import ReplicaManager
    from pylogd.broker.replica.partition_registry import PartitionRegistry
    from pylogd.broker.replica.purgatory import Purgatory
    from pylogd.broker.replica.replication_throttle import ReplicaThrottle
    from pylogd.broker.replica.selector import RackAwareSelector
    from pylogd.broker.replica.session_cache import FetchSessions
    from pylogd.broker.replica.smooth_expansion import SmoothJoins
    from pylogd.broker.security.authentication import Authentication
    from pylogd.broker.security.authorizer import Authorizer
    from pylogd.broker.security.service import Security
    from pylogd.broker.telemetry.service import Telemetry
    from pylogd.broker.transactions.coordinator import TransactionCoordinator
    from pylogd.broker.transactions.verification import PartitionVerifier
    from pylogd.config import Settings


@dataclass
class BrokerParts:
    """The parts of a broker that handlers use.

    metadata: settings of brokers, groups and clients, features, and changes of topics.
    replica_selector: chooses the replica that a consumer reads; None if consumers read from leaders.
    expressions: clients' regular expressions, and the topics that they match.
    verifier: verifies transactions; None if no transaction is verified.
    authorizer: the one of `security`; None if every operation is allowed.
    in_thread: runs a function in one of the broker's threads, and returns a Deferred of its result.
    advertised: returns the (host, port) that clients of a listener should connect to.
    """

    settings: Settings
    clock: IReactorTime
    metadata: Metadata
    topics: TopicRegistry
    cluster: Cluster
    logs: LogManager
    partitions: PartitionRegistry
    replicas: ReplicaManager
    hosting: PartitionHosting
    fetch_waits: Purgatory
    fetch_sessions: FetchSessions[Any]
    replica_selector: RackAwareSelector | None
    replica_throttle: ReplicaThrottle
    isr_updater: IsrUpdater
    partition_admin: PartitionAdmin
    smooth_joins: SmoothJoins
    groups: GroupCoordinator
    expressions: Matches
    transactions: TransactionCoordinator
    verifier: PartitionVerifier | None
    client_quotas: ClientQuotas
    laggards: LaggardThrottle
    telemetry: Telemetry
    security: Security
    authorizer: Authorizer | None
    in_thread: Callable[..., Deferred[Any]]
    advertised: Callable[[str], tuple[str, int]]


class Connection(Protocol):
    """A handler's view of a client's connection.

    host, port: the peer's address.
    listener: the name of the listener.
    principal: the client's principal.
    on_lost: called when the connection has ended. It is set by code that keeps something for the connection.
    claim: which broker of the cluster the client says that it is, if any.
    software: the name and version of the client's software; empty until the client sends them.
    authentication: on a SASL listener, the state of the authentication, from the first request on.
    finish: accepts no more requests, and closes the connection when all replies are sent.
    lift_element_bounds: accepts requests with more elements than clients may send.
    receive_tokens: accepts SASL messages without headers, which `step` answers, until the client is authenticated.
    """

    authentication: Authentication | None
    host: str
    port: int
    listener: str
    principal: Principal
    on_lost: Callable[[], object] | None
    claim: PeerClaim | None
    software: tuple[str, str]

    def finish(self) -> None: ...

    def lift_element_bounds(self) -> None: ...

    def receive_tokens(self, step: Callable[[bytes], Any]) -> None: ...

    def mute(self, seconds: float) -> None:
        """Take no further request from the client for this many seconds."""


class RequestContext:
    """The client of a request, and the version. Immutable: requests of one connection share it if they can.

    api: the API's name. It is empty if requests of several APIs share the context, which needs no name without an audit
        log.
    """

    __slots__ = ("api", "broker", "client_id", "connection", "version")

    def __init__(
        self,
        broker: BrokerParts,
        connection: Connection,
        version: int,
        client_id: str | None = None,
        api: str = "",
    ) -> None:
        self.broker = broker
        self.connection = connection
        self.version = version
        self.client_id = client_id
        self.api = api

    @property
    def principal(self) -> Principal:
        """The principal of the client."""
        return self.connection.principal

    def may(self, operation: AclOperation, resource: ResourceType, name: str, *, audited: bool = True) -> bool:
        """Return whether the client may do `operation` to the resource `name`.

        audited: whether a refusal goes to the audit log. False if the client did not ask for this resource, as in a
            list of all topics, or if another permission may allow the request.
        """
        authorizer = self.broker.authorizer
        if authorizer is None:
            return True
        connection = self.connection
        allowed = authorizer.authorize(connection.principal, connection.host, operation, resource, name)
        if not allowed and audited:
            self._audit_denial(operation, resource, name)
        return allowed

    def may_use_topic(self, operation: AclOperation, name: str, *, audited: bool = True) -> bool:
        """Return whether the client may do `operation` to a topic."""
        return self.broker.authorizer is None or self.may(operation, ResourceType.TOPIC, name, audited=audited)

    def may_change_topic(self, operation: AclOperation, name: str) -> bool:
        """Return whether the client may do `operation`, which changes more than records, to a topic.

        Internal topics belong to all clients. To change one, a client also needs ALTER on the cluster, since ACLs for
        `*` or a prefix are not meant for internal topics.
        """
        return self.may_use_topic(operation, name) and (
            name not in INTERNAL_TOPICS or self.may_use_cluster(AclOperation.ALTER)
        )

    @property
    def share(self) -> Share:
        """The share in which the client's work counts: its principal's, or its address's without authentication."""
        return share_of_client(self.connection.principal, self.connection.host)

    def may_use_group(self, operation: AclOperation, group_id: str, *, audited: bool = True) -> bool:
        """Return whether the client may do `operation` to a group."""
        return self.broker.authorizer is None or self.may(operation, ResourceType.GROUP, group_id, audited=audited)

    def may_use_cluster(self, operation: AclOperation, *, audited: bool = True) -> bool:
        """Return whether the client may do `operation` to the cluster."""
        return self.broker.authorizer is None or self.may(
            operation, ResourceType.CLUSTER, CLUSTER_NAME, audited=audited
        )

    def may_any(self, operation: AclOperation, resource: ResourceType) -> bool:
        """Return whether the client may do `operation` to at least one resource of a type."""
        authorizer, connection = self.broker.authorizer, self.connection
        if authorizer is None or authorizer.authorize_any(connection.principal, connection.host, operation, resource):
            return True
        self._audit_denial(operation, resource, "")
        return False

    def is_broker(self, node_id: int) -> bool:
        """Return whether the client is broker `node_id` of this cluster, and may act for the cluster."""
        return self.broker.security.peers.proven(self.connection.claim, node_id) and self.acts_for_cluster()

    def acts_for_cluster(self) -> bool:
        """Return whether the client may do operations of brokers."""
        return self.may_use_cluster(AclOperation.CLUSTER_ACTION)

    def _audit_denial(self, operation: AclOperation, resource: ResourceType, name: str) -> None:
        audit = self.broker.security.audit
        if audit is not None:
            connection = self.connection
            audit.denied(connection.principal, connection.host, self.client_id, self.api, operation, resource, name)


class _OwnConnection:
    """Stand in for a client's connection when a broker sends a request to itself."""

    authentication: Authentication | None = None
    host = ""
    port = 0
    listener = ""
    principal = ANONYMOUS
    on_lost: Callable[[], object] | None = None
    claim: PeerClaim | None = None
    software = ("", "")

    def finish(self) -> None:
        """Do nothing: there is no connection to close."""

    def lift_element_bounds(self) -> None:
        """Do nothing: requests of the broker itself have no bounds."""

    def receive_tokens(self, step: Callable[[bytes], Any]) -> None:
        """Do nothing: the broker itself is not authenticated."""

    def mute(self, seconds: float) -> None:
        """Do nothing: a broker does not throttle itself."""


class OwnContext(RequestContext):
    """The context of a request that this broker sends to itself, with the rights of a broker."""

    __slots__ = ()

    def __init__(self, broker: BrokerParts, version: int, api: str) -> None:
        super().__init__(broker, _OwnConnection(), version, None, api)

    def may(self, operation: AclOperation, resource: ResourceType, name: str, *, audited: bool = True) -> bool:
        """Return True."""
        return True

    def is_broker(self, node_id: int) -> bool:
        """Return whether this broker has the node id."""
        return node_id == self.broker.cluster.node_id
