"""ConsumerGroupDescribe, API key 69, versions 0-1. Describes consumer groups of the newer protocol with their members.

Generated from protocol/apis/consumer_group_describe.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, ZERO_UUID, Message


class DescribedTopicPartitions(Message):
    """Partitions of a topic."""

    __slots__ = ("topic_id", "topic_name", "partitions")

    #: The topic id.
    topic_id: bytes
    #: The topic name.
    topic_name: str
    #: The indexes of the partitions.
    partitions: list[int]

    def __init__(self, topic_id: bytes = ZERO_UUID, topic_name: str = "", partitions: list[int] = UNSET) -> None:
        self.topic_id = topic_id
        self.topic_name = topic_name
        self.partitions = [] if partitions is UNSET else partitions


class DescribedAssignment(Message):
    """Partitions of a member."""

    __slots__ = ("topic_partitions",)

    #: The partitions, by topic.
    topic_partitions: list[DescribedTopicPartitions]

    def __init__(self, topic_partitions: list[DescribedTopicPartitions] = UNSET) -> None:
        self.topic_partitions = [] if topic_partitions is UNSET else topic_partitions


class ConsumerGroupMember(Message):
    """A member of a consumer group."""

    __slots__ = (
        "member_id",
        "instance_id",
        "rack_id",
        "member_epoch",
        "client_id",
        "client_host",
        "subscribed_topic_names",
        "subscribed_topic_regex",
        "assignment",
        "target_assignment",
        "member_type",
    )

    #: The member id.
    member_id: str
    #: The id that a static member was configured with; null for a dynamic one.
    instance_id: str | None
    #: The rack of the member; null if it named none.
    rack_id: str | None
    #: The member's epoch.
    member_epoch: int
    #: The client id in the member's latest heartbeat.
    client_id: str
    #: The address that it came from.
    client_host: str
    #: The topics that the member subscribes to.
    subscribed_topic_names: list[str]
    #: The regular expression that it subscribes to; null if there is none.
    subscribed_topic_regex: str | None
    #: The partitions that the member has.
    assignment: DescribedAssignment
    #: The partitions that it is to have.
    target_assignment: DescribedAssignment
    #: 0 for a member of the classic protocol, 1 for one of the newer protocol; -1 if it is not known. Versions 1+.
    member_type: int

    def __init__(
        self,
        member_id: str = "",
        instance_id: str | None = None,
        rack_id: str | None = None,
        member_epoch: int = 0,
        client_id: str = "",
        client_host: str = "",
        subscribed_topic_names: list[str] = UNSET,
        subscribed_topic_regex: str | None = None,
        assignment: DescribedAssignment = UNSET,
        target_assignment: DescribedAssignment = UNSET,
        member_type: int = -1,
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.rack_id = rack_id
        self.member_epoch = member_epoch
        self.client_id = client_id
        self.client_host = client_host
        self.subscribed_topic_names = [] if subscribed_topic_names is UNSET else subscribed_topic_names
        self.subscribed_topic_regex = subscribed_topic_regex
        self.assignment = DescribedAssignment() if assignment is UNSET else assignment
        self.target_assignment = DescribedAssignment() if target_assignment is UNSET else target_assignment
        self.member_type = member_type


class DescribedConsumerGroup(Message):
    """A consumer group."""

    __slots__ = (
        "error_code",
        "error_message",
        "group_id",
        "group_state",
        "group_epoch",
        "assignment_epoch",
        "assignor_name",
        "members",
        "authorized_operations",
    )

    #: The error code; 0 if all went well.
    error_code: int
    #: What is wrong, for people; null if nothing is.
    error_message: str | None
    #: The group id.
    group_id: str
    #: The state by its name; empty on an error.
    group_state: str
    #: The group epoch: raised by each change of the members or their topics.
    group_epoch: int
    #: The group epoch that the target assignment is made for.
    assignment_epoch: int
    #: The assignor in use.
    assignor_name: str
    #: The members.
    members: list[ConsumerGroupMember]
    #: What the client may do with the group, a bit for each operation; -2147483648 if it did not ask.
    authorized_operations: int

    def __init__(
        self,
        error_code: int = 0,
        error_message: str | None = None,
        group_id: str = "",
        group_state: str = "",
        group_epoch: int = 0,
        assignment_epoch: int = 0,
        assignor_name: str = "",
        members: list[ConsumerGroupMember] = UNSET,
        authorized_operations: int = -2147483648,
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.group_id = group_id
        self.group_state = group_state
        self.group_epoch = group_epoch
        self.assignment_epoch = assignment_epoch
        self.assignor_name = assignor_name
        self.members = [] if members is UNSET else members
        self.authorized_operations = authorized_operations


class ConsumerGroupDescribeRequest(Message):
    """The request of ConsumerGroupDescribe."""

    __slots__ = ("group_ids", "include_authorized_operations")

    API_KEY: ClassVar[int] = 69
    API_NAME: ClassVar[str] = "ConsumerGroupDescribe"

    #: The ids of the groups.
    group_ids: list[str]
    #: Whether to say what the client may do with each group.
    include_authorized_operations: bool

    def __init__(self, group_ids: list[str] = UNSET, include_authorized_operations: bool = False) -> None:
        self.group_ids = [] if group_ids is UNSET else group_ids
        self.include_authorized_operations = include_authorized_operations


class ConsumerGroupDescribeResponse(Message):
    """The response of ConsumerGroupDescribe."""

    __slots__ = ("throttle_time_ms", "groups")

    API_KEY: ClassVar[int] = 69
    API_NAME: ClassVar[str] = "ConsumerGroupDescribe"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The groups.
    groups: list[DescribedConsumerGroup]

    def __init__(self, throttle_time_ms: int = 0, groups: list[DescribedConsumerGroup] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.groups = [] if groups is UNSET else groups
