"""DescribeGroups, API key 15, versions 0-6. Describes groups with their members.

Generated from protocol/apis/describe_groups.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class DescribedGroupMember:
    """A member."""

    #: The member id.
    member_id: str = ""
    #: The id that a static member was configured with; null for a dynamic one. Versions 4+.
    group_instance_id: str | None = None
    #: The client id in the member's latest request to join.
    client_id: str = ""
    #: The address that it came from.
    client_host: str = ""
    #: What the member told for the protocol that was chosen.
    member_metadata: bytes = b""
    #: The member's share.
    member_assignment: bytes = b""


@dataclass(slots=True)
class DescribedGroup:
    """A group."""

    #: The error code; 0 if all went well.
    error_code: int = 0
    #: What went wrong, for people; null if nothing did. Versions 6+.
    error_message: str | None = None
    #: The group id.
    group_id: str = ""
    #: The state by its name.
    group_state: str = ""
    #: What kind of group it is; empty where nobody has joined.
    protocol_type: str = ""
    #: The protocol that was chosen; empty unless the group is stable.
    protocol_data: str = ""
    #: The members.
    members: list[DescribedGroupMember] = field(default_factory=list)
    #: What the client may do with the group, a bit for each operation; -2147483648 if it did not ask. Versions 3+.
    authorized_operations: int = -2147483648


@dataclass(slots=True)
class DescribeGroupsRequest:
    """The request of DescribeGroups."""

    API_KEY: ClassVar[int] = 15
    API_NAME: ClassVar[str] = "DescribeGroups"

    #: The ids of the groups.
    groups: list[str] = field(default_factory=list)
    #: Whether to say what the client may do with each group. Versions 3+.
    include_authorized_operations: bool = False


@dataclass(slots=True)
class DescribeGroupsResponse:
    """The response of DescribeGroups."""

    API_KEY: ClassVar[int] = 15
    API_NAME: ClassVar[str] = "DescribeGroups"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 1+.
    throttle_time_ms: int = 0
    #: The groups.
    groups: list[DescribedGroup] = field(default_factory=list)
