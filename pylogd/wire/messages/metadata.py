"""Metadata, API key 3, versions 0-13. Asks for brokers, topics, partitions, and who leads each partition.

Generated from protocol/apis/metadata.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from pylogd.wire.values import ZERO_UUID


@dataclass(slots=True)
class MetadataRequestTopic:
    """A topic asked for."""

    #: The topic's id; zero to ask by name. Versions 10+.
    topic_id: bytes = ZERO_UUID
    #: The topic name; null to ask by id.
    name: str | None = ""


@dataclass(slots=True)
class MetadataResponseBroker:
    """A broker."""

    #: The broker's id.
    node_id: int = 0
    #: The host name to connect to.
    host: str = ""
    #: The port to connect to.
    port: int = 0
    #: The broker's rack; null if it has none. Versions 1+.
    rack: str | None = None


@dataclass(slots=True)
class MetadataResponsePartition:
    """A partition."""

    #: The error code; 0 if all went well.
    error_code: int = 0
    #: The partition's number.
    partition_index: int = 0
    #: The leader's broker id; -1 if there is none.
    leader_id: int = 0
    #: The epoch of the leader; -1 if not known. Versions 7+.
    leader_epoch: int = -1
    #: The broker ids of all replicas.
    replica_nodes: list[int] = field(default_factory=list)
    #: The broker ids of the replicas that are in sync.
    isr_nodes: list[int] = field(default_factory=list)
    #: The broker ids of the replicas that are down. Versions 5+.
    offline_replicas: list[int] = field(default_factory=list)


@dataclass(slots=True)
class MetadataResponseTopic:
    """A topic."""

    #: The error code; 0 if all went well.
    error_code: int = 0
    #: The topic name; null if an unknown topic id was asked for.
    name: str | None = ""
    #: The topic's id; zero if an unknown name was asked for. Versions 10+.
    topic_id: bytes = ZERO_UUID
    #: Whether the topic is for the use of brokers only. Versions 1+.
    is_internal: bool = False
    #: The partitions.
    partitions: list[MetadataResponsePartition] = field(default_factory=list)
    #: A bit for each operation that the client may do on the topic; the smallest int32 if not asked for. Versions 8+.
    topic_authorized_operations: int = -2147483648


@dataclass(slots=True)
class MetadataRequest:
    """The request of Metadata."""

    API_KEY: ClassVar[int] = 3
    API_NAME: ClassVar[str] = "Metadata"

    #: The topics asked for; null asks for all (at version 0 an empty array does).
    topics: list[MetadataRequestTopic] | None = field(default_factory=list)
    #: Whether the broker may create topics that do not exist yet. Versions 4+.
    allow_auto_topic_creation: bool = True
    #: Whether to answer what the client may do on the cluster. Versions 8-10.
    include_cluster_authorized_operations: bool = False
    #: Whether to answer what the client may do on each topic. Versions 8+.
    include_topic_authorized_operations: bool = False


@dataclass(slots=True)
class MetadataResponse:
    """The response of Metadata."""

    API_KEY: ClassVar[int] = 3
    API_NAME: ClassVar[str] = "Metadata"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 3+.
    throttle_time_ms: int = 0
    #: The brokers of the cluster.
    brokers: list[MetadataResponseBroker] = field(default_factory=list)
    #: The cluster's id; null if it has none. Versions 2+.
    cluster_id: str | None = None
    #: The broker id of the controller; -1 if there is none. Versions 1+.
    controller_id: int = -1
    #: The topics.
    topics: list[MetadataResponseTopic] = field(default_factory=list)
    #: A bit for each operation that the client may do on the cluster; the smallest int32 if not asked for. Versions
    #: 8-10.
    cluster_authorized_operations: int = -2147483648
    #: The error code; 0 if all went well. Versions 13+.
    error_code: int = 0
