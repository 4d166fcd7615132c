"""CreateTopics, API key 19, versions 0-7. Creates topics.

Generated from protocol/apis/create_topics.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, ZERO_UUID, Message


class CreatableReplicaAssignment(Message):
    """Which brokers hold a partition."""

    __slots__ = ("partition_index", "broker_ids")

    #: The partition's number.
    partition_index: int
    #: The broker ids of the replicas, the preferred leader first.
    broker_ids: list[int]

    def __init__(self, partition_index: int = 0, broker_ids: list[int] = UNSET) -> None:
        self.partition_index = partition_index
        self.broker_ids = [] if broker_ids is UNSET else broker_ids


class CreatableTopicConfig(Message):
    """A setting of the new topic."""

    __slots__ = ("name", "value")

    #: The setting's name.
    name: str
    #: The setting's value.
    value: str | None

    def __init__(self, name: str = "", value: str | None = "") -> None:
        self.name = name
        self.value = value


class CreatableTopic(Message):
    """A topic to create."""

    __slots__ = ("name", "num_partitions", "replication_factor", "assignments", "configs")

    #: The topic name.
    name: str
    #: How many partitions; -1 for the default, or if replicas are assigned by hand.
    num_partitions: int
    #: How many replicas; -1 for the default, or if replicas are assigned by hand.
    replication_factor: int
    #: Which brokers hold each partition; empty to let the cluster decide.
    assignments: list[CreatableReplicaAssignment]
    #: The settings.
    configs: list[CreatableTopicConfig]

    def __init__(
        self,
        name: str = "",
        num_partitions: int = 0,
        replication_factor: int = 0,
        assignments: list[CreatableReplicaAssignment] = UNSET,
        configs: list[CreatableTopicConfig] = UNSET,
    ) -> None:
        self.name = name
        self.num_partitions = num_partitions
        self.replication_factor = replication_factor
        self.assignments = [] if assignments is UNSET else assignments
        self.configs = [] if configs is UNSET else configs


class CreatableTopicConfigs(Message):
    """A setting that the topic got."""

    __slots__ = ("name", "value", "read_only", "config_source", "is_sensitive")

    #: The setting's name.
    name: str
    #: The setting's value.
    value: str | None
    #: Whether the setting cannot be changed while the broker runs.
    read_only: bool
    #: Where the value comes from: 1 topic, 2 broker, 3 all brokers, 4 broker file, 5 default, 6 broker logger.
    config_source: int
    #: Whether the value is a secret, which is then left out.
    is_sensitive: bool

    def __init__(
        self,
        name: str = "",
        value: str | None = "",
        read_only: bool = False,
        config_source: int = -1,
        is_sensitive: bool = False,
    ) -> None:
        self.name = name
        self.value = value
        self.read_only = read_only
        self.config_source = config_source
        self.is_sensitive = is_sensitive


class CreatableTopicResult(Message):
    """The result for a topic."""

    __slots__ = (
        "name",
        "topic_id",
        "error_code",
        "error_message",
        "topic_config_error_code",
        "num_partitions",
        "replication_factor",
        "configs",
    )

    #: The topic name.
    name: str
    #: The topic's id. Versions 7+.
    topic_id: bytes
    #: The error code; 0 if all went well.
    error_code: int
    #: The error message, for people; null if there is no error. Versions 1+.
    error_message: str | None
    #: Why the settings are left out of the response; 0 if they are not. Versions 5+.
    topic_config_error_code: int
    #: How many partitions the topic got; -1 if not known. Versions 5+.
    num_partitions: int
    #: How many replicas each partition got; -1 if not known. Versions 5+.
    replication_factor: int
    #: The settings that the topic got; null if they are left out. Versions 5+.
    configs: list[CreatableTopicConfigs] | None

    def __init__(
        self,
        name: str = "",
        topic_id: bytes = ZERO_UUID,
        error_code: int = 0,
        error_message: str | None = "",
        topic_config_error_code: int = 0,
        num_partitions: int = -1,
        replication_factor: int = -1,
        configs: list[CreatableTopicConfigs] | None = UNSET,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.error_code = error_code
        self.error_message = error_message
        self.topic_config_error_code = topic_config_error_code
        self.num_partitions = num_partitions
        self.replication_factor = replication_factor
        self.configs = [] if configs is UNSET else configs


class CreateTopicsRequest(Message):
    """The request of CreateTopics."""

    __slots__ = ("topics", "timeout_ms", "validate_only")

    API_KEY: ClassVar[int] = 19
    API_NAME: ClassVar[str] = "CreateTopics"

    #: The topics.
    topics: list[CreatableTopic]
    #: How many milliseconds the broker may take.
    timeout_ms: int
    #: Whether to check the request only, without changing anything. Versions 1+.
    validate_only: bool

    def __init__(
        self, topics: list[CreatableTopic] = UNSET, timeout_ms: int = 60000, validate_only: bool = False
    ) -> None:
        self.topics = [] if topics is UNSET else topics
        self.timeout_ms = timeout_ms
        self.validate_only = validate_only


class CreateTopicsResponse(Message):
    """The response of CreateTopics."""

    __slots__ = ("throttle_time_ms", "topics")

    API_KEY: ClassVar[int] = 19
    API_NAME: ClassVar[str] = "CreateTopics"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 2+.
    throttle_time_ms: int
    #: The topics.
    topics: list[CreatableTopicResult]

    def __init__(self, throttle_time_ms: int = 0, topics: list[CreatableTopicResult] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = [] if topics is UNSET else topics
