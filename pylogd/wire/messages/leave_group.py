"""LeaveGroup, API key 13, versions 0-5. Takes members out of a group at once.

Generated from protocol/apis/leave_group.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class MemberIdentity(Message):
    """A member that leaves."""

    __slots__ = ("member_id", "group_instance_id", "reason")

    #: The member id; empty to remove a static member by its group instance id.
    member_id: str
    #: The id that a static member was configured with; null for a dynamic one.
    group_instance_id: str | None
    #: Why it leaves, for people. Versions 5+.
    reason: str | None

    def __init__(self, member_id: str = "", group_instance_id: str | None = None, reason: str | None = None) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.reason = reason


class MemberResponse(Message):
    """The result for a member."""

    __slots__ = ("member_id", "group_instance_id", "error_code")

    #: The member id.
    member_id: str
    #: The id that a static member was configured with; null for a dynamic one.
    group_instance_id: str | None
    #: The error code; 0 if all went well.
    error_code: int

    def __init__(self, member_id: str = "", group_instance_id: str | None = "", error_code: int = 0) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.error_code = error_code


class LeaveGroupRequest(Message):
    """The request of LeaveGroup."""

    __slots__ = ("group_id", "member_id", "members")

    API_KEY: ClassVar[int] = 13
    API_NAME: ClassVar[str] = "LeaveGroup"

    #: The group id.
    group_id: str
    #: The member that leaves. Versions 0-2.
    member_id: str
    #: The members that leave, or are removed by an administrator. Versions 3+.
    members: list[MemberIdentity]

    def __init__(self, group_id: str = "", member_id: str = "", members: list[MemberIdentity] = UNSET) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.members = [] if members is UNSET else members


class LeaveGroupResponse(Message):
    """The response of LeaveGroup."""

    __slots__ = ("throttle_time_ms", "error_code", "members")

    API_KEY: ClassVar[int] = 13
    API_NAME: ClassVar[str] = "LeaveGroup"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 1+.
    throttle_time_ms: int
    #: The error code; 0 if all went well.
    error_code: int
    #: The result for each member. Versions 3+.
    members: list[MemberResponse]

    def __init__(self, throttle_time_ms: int = 0, error_code: int = 0, members: list[MemberResponse] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.members = [] if members is UNSET else members
