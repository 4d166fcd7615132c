"""DescribeCluster, API key 60, versions 0-2. Asks for the brokers and the id of the cluster.

Generated from protocol/apis/describe_cluster.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class DescribeClusterBroker:
    """A broker."""

    #: The broker's id.
    broker_id: int = 0
    #: The host name to connect to.
    host: str = ""
    #: The port to connect to.
    port: int = 0
    #: The broker's rack; null if it has none.
    rack: str | None = None
    #: Whether the broker may not serve at the moment. Versions 2+.
    is_fenced: bool = False


@dataclass(slots=True)
class DescribeClusterRequest:
    """The request of DescribeCluster."""

    API_KEY: ClassVar[int] = 60
    API_NAME: ClassVar[str] = "DescribeCluster"

    #: Whether to answer what the client may do on the cluster.
    include_cluster_authorized_operations: bool = False
    #: Which endpoints: 1 the brokers, 2 the controllers. Versions 1+.
    endpoint_type: int = 1
    #: Whether to list brokers that may not serve at the moment. Versions 2+.
    include_fenced_brokers: bool = False


@dataclass(slots=True)
class DescribeClusterResponse:
    """The response of DescribeCluster."""

    API_KEY: ClassVar[int] = 60
    API_NAME: ClassVar[str] = "DescribeCluster"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int = 0
    #: The error code; 0 if all went well.
    error_code: int = 0
    #: What went wrong, for people; null if nothing did.
    error_message: str | None = None
    #: Which endpoints: 1 the brokers, 2 the controllers. Versions 1+.
    endpoint_type: int = 1
    #: The cluster's id.
    cluster_id: str = ""
    #: The controller's broker id.
    controller_id: int = -1
    #: The brokers of the cluster.
    brokers: list[DescribeClusterBroker] = field(default_factory=list)
    #: A bit for each operation that the client may do on the cluster; the smallest int32 if not asked for.
    cluster_authorized_operations: int = -2147483648
