"""LeaveGroup, API key 13, versions 0-5. Takes members out of a group at once.

Generated from protocol/apis/leave_group.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class MemberIdentity:
    """A member that leaves."""

    #: The member id; empty to remove a static member by its group instance id.
    member_id: str = ""
    #: The id that a static member was configured with; null for a dynamic one.
    group_instance_id: str | None = None
    #: Why it leaves, for people. Versions 5+.
    reason: str | None = None


@dataclass(slots=True)
class MemberResponse:
    """What became of a member."""

    #: The member id.
    member_id: str = ""
    #: The id that a static member was configured with; null for a dynamic one.
    group_instance_id: str | None = ""
    #: The error code; 0 if all went well.
    error_code: int = 0


@dataclass(slots=True)
class LeaveGroupRequest:
    """The request of LeaveGroup."""

    API_KEY: ClassVar[int] = 13
    API_NAME: ClassVar[str] = "LeaveGroup"

    #: The group id.
    group_id: str = ""
    #: The member that leaves. Versions 0-2.
    member_id: str = ""
    #: The members that leave, or are removed by an administrator. Versions 3+.
    members: list[MemberIdentity] = field(default_factory=list)


@dataclass(slots=True)
class LeaveGroupResponse:
    """The response of LeaveGroup."""

    API_KEY: ClassVar[int] = 13
    API_NAME: ClassVar[str] = "LeaveGroup"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 1+.
    throttle_time_ms: int = 0
    #: The error code; 0 if all went well.
    error_code: int = 0
    #: What became of each member. Versions 3+.
    members: list[MemberResponse] = field(default_factory=list)
