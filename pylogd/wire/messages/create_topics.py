"""CreateTopics, API key 19, versions 0-7. Creates topics.

Generated from protocol/apis/create_topics.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from pylogd.wire.values import ZERO_UUID


@dataclass(slots=True)
class CreatableReplicaAssignment:
    """Which brokers hold a partition."""

    #: The partition's number.
    partition_index: int = 0
    #: The broker ids of the replicas, the preferred leader first.
    broker_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class CreatableTopicConfig:
    """A setting of the new topic."""

    #: The setting's name.
    name: str = ""
    #: The setting's value.
    value: str | None = ""


@dataclass(slots=True)
class CreatableTopic:
    """A topic to create."""

    #: The topic name.
    name: str = ""
    #: How many partitions; -1 for the default, or if replicas are assigned by hand.
    num_partitions: int = 0
    #: How many replicas; -1 for the default, or if replicas are assigned by hand.
    replication_factor: int = 0
    #: Which brokers hold each partition; empty to let the cluster decide.
    assignments: list[CreatableReplicaAssignment] = field(default_factory=list)
    #: The settings.
    configs: list[CreatableTopicConfig] = field(default_factory=list)


@dataclass(slots=True)
class CreatableTopicConfigs:
    """A setting that the topic got."""

    #: The setting's name.
    name: str = ""
    #: The setting's value.
    value: str | None = ""
    #: Whether the setting can not be changed while the broker runs.
    read_only: bool = False
    #: Where the value comes from: 1 topic, 2 broker, 3 all brokers, 4 broker file, 5 default, 6 broker logger.
    config_source: int = -1
    #: Whether the value is a secret, which is then left out.
    is_sensitive: bool = False


@dataclass(slots=True)
class CreatableTopicResult:
    """What became of a topic."""

    #: The topic name.
    name: str = ""
    #: The topic's id. Versions 7+.
    topic_id: bytes = ZERO_UUID
    #: The error code; 0 if all went well.
    error_code: int = 0
    #: What went wrong, for people; null if nothing did. Versions 1+.
    error_message: str | None = ""
    #: Why the settings are left out of the response; 0 if they are not. Versions 5+.
    topic_config_error_code: int = 0
    #: How many partitions the topic got; -1 if not known. Versions 5+.
    num_partitions: int = -1
    #: How many replicas each partition got; -1 if not known. Versions 5+.
    replication_factor: int = -1
    #: The settings that the topic got; null if they are left out. Versions 5+.
    configs: list[CreatableTopicConfigs] | None = field(default_factory=list)


@dataclass(slots=True)
class CreateTopicsRequest:
    """The request of CreateTopics."""

    API_KEY: ClassVar[int] = 19
    API_NAME: ClassVar[str] = "CreateTopics"

    #: The topics.
    topics: list[CreatableTopic] = field(default_factory=list)
    #: How many milliseconds the broker may take.
    timeout_ms: int = 60000
    #: Only check whether it could be done. Versions 1+.
    validate_only: bool = False


@dataclass(slots=True)
class CreateTopicsResponse:
    """The response of CreateTopics."""

    API_KEY: ClassVar[int] = 19
    API_NAME: ClassVar[str] = "CreateTopics"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 2+.
    throttle_time_ms: int = 0
    #: The topics.
    topics: list[CreatableTopicResult] = field(default_factory=list)
