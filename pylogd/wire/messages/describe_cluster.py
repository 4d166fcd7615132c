"""DescribeCluster, API key 60, versions 0-2. Asks for the brokers and the id of the cluster.

Generated from protocol/apis/describe_cluster.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class DescribeClusterBroker(Message):
    """A broker."""

    __slots__ = (
        "broker_id",
        "host",
        "port",
        "rack",
        "is_fenced",
        "labels",
        "host_id",
        "is_cordoned",
        "has_full_volume",
        "partition_room",
    )

    #: The broker's id.
    broker_id: int
    #: The host name to connect to.
    host: str
    #: The port to connect to.
    port: int
    #: The broker's rack; null if it has none.
    rack: str | None
    #: Whether the broker may not serve at the moment. Versions 2+.
    is_fenced: bool
    #: Particular to pylogd. The labels that the broker carries.
    labels: list[str]
    #: Particular to pylogd. The machine that the broker shares with others (host.id); null if it names none.
    host_id: str | None
    #: Particular to pylogd. Whether the broker gets no new replicas, since all of its usable data directories are
    #: cordoned.
    is_cordoned: bool
    #: Particular to pylogd. Whether a volume of the broker has no room, so that new replicas go to other brokers if
    #: possible.
    has_full_volume: bool
    #: Particular to pylogd. How many more partitions the broker may hold; -1 for no limit.
    partition_room: int

    def __init__(
        self,
        broker_id: int = 0,
        host: str = "",
        port: int = 0,
        rack: str | None = None,
        is_fenced: bool = False,
        labels: list[str] = UNSET,
        host_id: str | None = None,
        is_cordoned: bool = False,
        has_full_volume: bool = False,
        partition_room: int = -1,
    ) -> None:
        self.broker_id = broker_id
        self.host = host
        self.port = port
        self.rack = rack
        self.is_fenced = is_fenced
        self.labels = [] if labels is UNSET else labels
        self.host_id = host_id
        self.is_cordoned = is_cordoned
        self.has_full_volume = has_full_volume
        self.partition_room = partition_room


class DescribeClusterRequest(Message):
    """The request of DescribeCluster."""

    __slots__ = ("include_cluster_authorized_operations", "endpoint_type", "include_fenced_brokers")

    API_KEY: ClassVar[int] = 60
    API_NAME: ClassVar[str] = "DescribeCluster"

    #: Whether to answer what the client may do on the cluster.
    include_cluster_authorized_operations: bool
    #: Which endpoints: 1 the brokers, 2 the controllers. Versions 1+.
    endpoint_type: int
    #: Whether to list brokers that may not serve at the moment. Versions 2+.
    include_fenced_brokers: bool

    def __init__(
        self,
        include_cluster_authorized_operations: bool = False,
        endpoint_type: int = 1,
        include_fenced_brokers: bool = False,
    ) -> None:
        self.include_cluster_authorized_operations = include_cluster_authorized_operations
        self.endpoint_type = endpoint_type
        self.include_fenced_brokers = include_fenced_brokers


class DescribeClusterResponse(Message):
    """The response of DescribeCluster."""

    __slots__ = (
        "throttle_time_ms",
        "error_code",
        "error_message",
        "endpoint_type",
        "cluster_id",
        "controller_id",
        "brokers",
        "cluster_authorized_operations",
    )

    API_KEY: ClassVar[int] = 60
    API_NAME: ClassVar[str] = "DescribeCluster"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The error code; 0 if all went well.
    error_code: int
    #: The error message, for people; null if there is no error.
    error_message: str | None
    #: Which endpoints: 1 the brokers, 2 the controllers. Versions 1+.
    endpoint_type: int
    #: The cluster's id.
    cluster_id: str
    #: The controller's broker id.
    controller_id: int
    #: The brokers of the cluster.
    brokers: list[DescribeClusterBroker]
    #: A bit for each operation that the client may do on the cluster; the smallest int32 if not asked for.
    cluster_authorized_operations: int

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        endpoint_type: int = 1,
        cluster_id: str = "",
        controller_id: int = -1,
        brokers: list[DescribeClusterBroker] = UNSET,
        cluster_authorized_operations: int = -2147483648,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.endpoint_type = endpoint_type
        self.cluster_id = cluster_id
        self.controller_id = controller_id
        self.brokers = [] if brokers is UNSET else brokers
        self.cluster_authorized_operations = cluster_authorized_operations
