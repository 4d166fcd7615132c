"""DescribeGroups, API key 15, versions 0-6. Describes groups with their members.

Generated from protocol/apis/describe_groups.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class DescribedGroupMember(Message):
    """A member."""

    __slots__ = ("member_id", "group_instance_id", "client_id", "client_host", "member_metadata", "member_assignment")

    #: The member id.
    member_id: str
    #: The id that a static member was configured with; null for a dynamic one. Versions 4+.
    group_instance_id: str | None
    #: The client id in the member's latest request to join.
    client_id: str
    #: The address that it came from.
    client_host: str
    #: The member's metadata for the protocol that was chosen.
    member_metadata: bytes
    #: The member's assignment.
    member_assignment: bytes

    def __init__(
        self,
        member_id: str = "",
        group_instance_id: str | None = None,
        client_id: str = "",
        client_host: str = "",
        member_metadata: bytes = b"",
        member_assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.member_metadata = member_metadata
        self.member_assignment = member_assignment


class DescribedGroup(Message):
    """A group."""

    __slots__ = (
        "error_code",
        "error_message",
        "group_id",
        "group_state",
        "protocol_type",
        "protocol_data",
        "members",
        "authorized_operations",
    )

    #: The error code; 0 if all went well.
    error_code: int
    #: The error message, for people; null if there is no error. Versions 6+.
    error_message: str | None
    #: The group id.
    group_id: str
    #: The state by its name.
    group_state: str
    #: What kind of group it is; empty where nobody has joined.
    protocol_type: str
    #: The protocol that was chosen; empty unless the group is stable.
    protocol_data: str
    #: The members.
    members: list[DescribedGroupMember]
    #: What the client may do with the group, a bit for each operation; -2147483648 if it did not ask. Versions 3+.
    authorized_operations: int

    def __init__(
        self,
        error_code: int = 0,
        error_message: str | None = None,
        group_id: str = "",
        group_state: str = "",
        protocol_type: str = "",
        protocol_data: str = "",
        members: list[DescribedGroupMember] = UNSET,
        authorized_operations: int = -2147483648,
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.group_id = group_id
        self.group_state = group_state
        self.protocol_type = protocol_type
        self.protocol_data = protocol_data
        self.members = [] if members is UNSET else members
        self.authorized_operations = authorized_operations


class DescribeGroupsRequest(Message):
    """The request of DescribeGroups."""

    __slots__ = ("groups", "include_authorized_operations")

    API_KEY: ClassVar[int] = 15
    API_NAME: ClassVar[str] = "DescribeGroups"

    #: The ids of the groups.
    groups: list[str]
    #: Whether to say what the client may do with each group. Versions 3+.
    include_authorized_operations: bool

    def __init__(self, groups: list[str] = UNSET, include_authorized_operations: bool = False) -> None:
        self.groups = [] if groups is UNSET else groups
        self.include_authorized_operations = include_authorized_operations


class DescribeGroupsResponse(Message):
    """The response of DescribeGroups."""

    __slots__ = ("throttle_time_ms", "groups")

    API_KEY: ClassVar[int] = 15
    API_NAME: ClassVar[str] = "DescribeGroups"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 1+.
    throttle_time_ms: int
    #: The groups.
    groups: list[DescribedGroup]

    def __init__(self, throttle_time_ms: int = 0, groups: list[DescribedGroup] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.groups = [] if groups is UNSET else groups
