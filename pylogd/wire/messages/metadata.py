"""Metadata, API key 3, versions 0-13. Asks for brokers, topics, partitions, and the leader of each partition.

Generated from protocol/apis/metadata.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, ZERO_UUID, Message


class MetadataRequestTopic(Message):
    """A topic asked for."""

    __slots__ = ("topic_id", "name")

    #: The topic's id; zero to ask by name. Versions 10+.
    topic_id: bytes
    #: The topic name; null to ask by id.
    name: str | None

    def __init__(self, topic_id: bytes = ZERO_UUID, name: str | None = "") -> None:
        self.topic_id = topic_id
        self.name = name


class MetadataResponseBroker(Message):
    """A broker."""

    __slots__ = ("node_id", "host", "port", "rack")

    #: The broker's id.
    node_id: int
    #: The host name to connect to.
    host: str
    #: The port to connect to.
    port: int
    #: The broker's rack; null if it has none. Versions 1+.
    rack: str | None

    def __init__(self, node_id: int = 0, host: str = "", port: int = 0, rack: str | None = None) -> None:
        self.node_id = node_id
        self.host = host
        self.port = port
        self.rack = rack


class MetadataResponsePartition(Message):
    """A partition."""

    __slots__ = (
        "error_code",
        "partition_index",
        "leader_id",
        "leader_epoch",
        "replica_nodes",
        "isr_nodes",
        "offline_replicas",
    )

    #: The error code; 0 if all went well.
    error_code: int
    #: The partition's number.
    partition_index: int
    #: The leader's broker id; -1 if there is none.
    leader_id: int
    #: The epoch of the leader; -1 if not known. Versions 7+.
    leader_epoch: int
    #: The broker ids of all replicas.
    replica_nodes: list[int]
    #: The broker ids of the replicas that are in sync.
    isr_nodes: list[int]
    #: The broker ids of the replicas that are down. Versions 5+.
    offline_replicas: list[int]

    def __init__(
        self,
        error_code: int = 0,
        partition_index: int = 0,
        leader_id: int = 0,
        leader_epoch: int = -1,
        replica_nodes: list[int] = UNSET,
        isr_nodes: list[int] = UNSET,
        offline_replicas: list[int] = UNSET,
    ) -> None:
        self.error_code = error_code
        self.partition_index = partition_index
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.replica_nodes = [] if replica_nodes is UNSET else replica_nodes
        self.isr_nodes = [] if isr_nodes is UNSET else isr_nodes
        self.offline_replicas = [] if offline_replicas is UNSET else offline_replicas


class MetadataResponseTopic(Message):
    """A topic."""

    __slots__ = ("error_code", "name", "topic_id", "is_internal", "partitions", "topic_authorized_operations")

    #: The error code; 0 if all went well.
    error_code: int
    #: The topic name; null if an unknown topic id was asked for.
    name: str | None
    #: The topic's id; zero if an unknown name was asked for. Versions 10+.
    topic_id: bytes
    #: Whether the topic is for the use of brokers only. Versions 1+.
    is_internal: bool
    #: The partitions.
    partitions: list[MetadataResponsePartition]
    #: A bit for each operation that the client may do on the topic; the smallest int32 if not asked for. Versions 8+.
    topic_authorized_operations: int

    def __init__(
        self,
        error_code: int = 0,
        name: str | None = "",
        topic_id: bytes = ZERO_UUID,
        is_internal: bool = False,
        partitions: list[MetadataResponsePartition] = UNSET,
        topic_authorized_operations: int = -2147483648,
    ) -> None:
        self.error_code = error_code
        self.name = name
        self.topic_id = topic_id
        self.is_internal = is_internal
        self.partitions = [] if partitions is UNSET else partitions
        self.topic_authorized_operations = topic_authorized_operations


class MetadataRequest(Message):
    """The request of Metadata."""

    __slots__ = (
        "topics",
        "allow_auto_topic_creation",
        "include_cluster_authorized_operations",
        "include_topic_authorized_operations",
    )

    API_KEY: ClassVar[int] = 3
    API_NAME: ClassVar[str] = "Metadata"

    #: The topics asked for; null asks for all (at version 0 an empty array does).
    topics: list[MetadataRequestTopic] | None
    #: Whether the broker may create topics that do not exist yet. Versions 4+.
    allow_auto_topic_creation: bool
    #: Whether to answer what the client may do on the cluster. Versions 8-10.
    include_cluster_authorized_operations: bool
    #: Whether to answer what the client may do on each topic. Versions 8+.
    include_topic_authorized_operations: bool

    def __init__(
        self,
        topics: list[MetadataRequestTopic] | None = UNSET,
        allow_auto_topic_creation: bool = True,
        include_cluster_authorized_operations: bool = False,
        include_topic_authorized_operations: bool = False,
    ) -> None:
        self.topics = [] if topics is UNSET else topics
        self.allow_auto_topic_creation = allow_auto_topic_creation
        self.include_cluster_authorized_operations = include_cluster_authorized_operations
        self.include_topic_authorized_operations = include_topic_authorized_operations


class MetadataResponse(Message):
    """The response of Metadata."""

    __slots__ = (
        "throttle_time_ms",
        "brokers",
        "cluster_id",
        "controller_id",
        "topics",
        "cluster_authorized_operations",
        "error_code",
    )

    API_KEY: ClassVar[int] = 3
    API_NAME: ClassVar[str] = "Metadata"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 3+.
    throttle_time_ms: int
    #: The brokers of the cluster.
    brokers: list[MetadataResponseBroker]
    #: The cluster's id; null if it has none. Versions 2+.
    cluster_id: str | None
    #: The broker id of the controller; -1 if there is none. Versions 1+.
    controller_id: int
    #: The topics.
    topics: list[MetadataResponseTopic]
    #: A bit for each operation that the client may do on the cluster; the smallest int32 if not asked for. Versions
    #: 8-10.
    cluster_authorized_operations: int
    #: The error code; 0 if all went well. Versions 13+.
    error_code: int

    def __init__(
        self,
        throttle_time_ms: int = 0,
        brokers: list[MetadataResponseBroker] = UNSET,
        cluster_id: str | None = None,
        controller_id: int = -1,
        topics: list[MetadataResponseTopic] = UNSET,
        cluster_authorized_operations: int = -2147483648,
        error_code: int = 0,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.brokers = [] if brokers is UNSET else brokers
        self.cluster_id = cluster_id
        self.controller_id = controller_id
        self.topics = [] if topics is UNSET else topics
        self.cluster_authorized_operations = cluster_authorized_operations
        self.error_code = error_code
