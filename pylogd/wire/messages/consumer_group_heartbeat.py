"""ConsumerGroupHeartbeat, API key 68, versions 0-1. Joins a consumer group of the newer protocol, stays in it, and
leaves it; the answer brings the member's partitions.

Generated from protocol/apis/consumer_group_heartbeat.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, ZERO_UUID, Message


class OwnedTopicPartitions(Message):
    """Partitions of a topic that a member has."""

    __slots__ = ("topic_id", "partitions")

    #: The topic id.
    topic_id: bytes
    #: The indexes of the partitions.
    partitions: list[int]

    def __init__(self, topic_id: bytes = ZERO_UUID, partitions: list[int] = UNSET) -> None:
        self.topic_id = topic_id
        self.partitions = [] if partitions is UNSET else partitions


class AssignedTopicPartitions(Message):
    """Partitions of a topic that a member may use."""

    __slots__ = ("topic_id", "partitions")

    #: The topic id.
    topic_id: bytes
    #: The indexes of the partitions.
    partitions: list[int]

    def __init__(self, topic_id: bytes = ZERO_UUID, partitions: list[int] = UNSET) -> None:
        self.topic_id = topic_id
        self.partitions = [] if partitions is UNSET else partitions


class HeartbeatAssignment(Message):
    """Partitions that a member has to have."""

    __slots__ = ("topic_partitions",)

    #: The partitions that it may use at once, by topic.
    topic_partitions: list[AssignedTopicPartitions]

    def __init__(self, topic_partitions: list[AssignedTopicPartitions] = UNSET) -> None:
        self.topic_partitions = [] if topic_partitions is UNSET else topic_partitions


class ConsumerGroupHeartbeatRequest(Message):
    """The request of ConsumerGroupHeartbeat."""

    __slots__ = (
        "group_id",
        "member_id",
        "member_epoch",
        "instance_id",
        "rack_id",
        "rebalance_timeout_ms",
        "subscribed_topic_names",
        "subscribed_topic_regex",
        "server_assignor",
        "topic_partitions",
    )

    API_KEY: ClassVar[int] = 68
    API_NAME: ClassVar[str] = "ConsumerGroupHeartbeat"

    #: The group id.
    group_id: str
    #: The member id. From version 1 the consumer makes it, and keeps it as long as its process lives; before, it may be
    #: empty when it joins.
    member_id: str
    #: The member's epoch; 0 to join, -1 to leave, -2 if a static member leaves for a while.
    member_epoch: int
    #: The id that a static member was configured with; null if there is none, or if it has not changed.
    instance_id: str | None
    #: The rack of the consumer; null if there is none, or if it has not changed.
    rack_id: str | None
    #: How long in milliseconds the coordinator waits for the member to give up partitions; -1 if it has not changed.
    rebalance_timeout_ms: int
    #: The topics that the member subscribes to; null if they have not changed.
    subscribed_topic_names: list[str] | None
    #: A regular expression, in RE2's syntax, for further topics; null if it has not changed, empty for none. Versions
    #: 1+.
    subscribed_topic_regex: str | None
    #: The assignor that the member asks for; null if it leaves that to the coordinator, or if it has not changed.
    server_assignor: str | None
    #: The partitions that the member has; null if they have not changed.
    topic_partitions: list[OwnedTopicPartitions] | None

    def __init__(
        self,
        group_id: str = "",
        member_id: str = "",
        member_epoch: int = 0,
        instance_id: str | None = None,
        rack_id: str | None = None,
        rebalance_timeout_ms: int = -1,
        subscribed_topic_names: list[str] | None = None,
        subscribed_topic_regex: str | None = None,
        server_assignor: str | None = None,
        topic_partitions: list[OwnedTopicPartitions] | None = None,
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.member_epoch = member_epoch
        self.instance_id = instance_id
        self.rack_id = rack_id
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.subscribed_topic_names = subscribed_topic_names
        self.subscribed_topic_regex = subscribed_topic_regex
        self.server_assignor = server_assignor
        self.topic_partitions = topic_partitions


class ConsumerGroupHeartbeatResponse(Message):
    """The response of ConsumerGroupHeartbeat."""

    __slots__ = (
        "throttle_time_ms",
        "error_code",
        "error_message",
        "member_id",
        "member_epoch",
        "heartbeat_interval_ms",
        "assignment",
    )

    API_KEY: ClassVar[int] = 68
    API_NAME: ClassVar[str] = "ConsumerGroupHeartbeat"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The error code; 0 if all went well.
    error_code: int
    #: What is wrong, for people; null if nothing is.
    error_message: str | None
    #: The member id; null on an error.
    member_id: str | None
    #: The member's epoch from now on.
    member_epoch: int
    #: Milliseconds until the member's next heartbeat is due.
    heartbeat_interval_ms: int
    #: The partitions that the member has to have; null if they have not changed.
    assignment: HeartbeatAssignment | None

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        member_id: str | None = None,
        member_epoch: int = 0,
        heartbeat_interval_ms: int = 0,
        assignment: HeartbeatAssignment | None = None,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.member_id = member_id
        self.member_epoch = member_epoch
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self.assignment = assignment
