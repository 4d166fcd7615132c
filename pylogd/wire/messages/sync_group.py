"""SyncGroup, API key 14, versions 0-5. Asks for the member's assignment; the leader's request brings the assignments of
all members.

Generated from protocol/apis/sync_group.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class SyncGroupRequestAssignment(Message):
    """The assignment of a member."""

    __slots__ = ("member_id", "assignment")

    #: The member id.
    member_id: str
    #: The member's assignment, in a format that only members understand.
    assignment: bytes

    def __init__(self, member_id: str = "", assignment: bytes = b"") -> None:
        self.member_id = member_id
        self.assignment = assignment


class SyncGroupRequest(Message):
    """The request of SyncGroup."""

    __slots__ = (
        "group_id",
        "generation_id",
        "member_id",
        "group_instance_id",
        "protocol_type",
        "protocol_name",
        "assignments",
    )

    API_KEY: ClassVar[int] = 14
    API_NAME: ClassVar[str] = "SyncGroup"

    #: The group id.
    group_id: str
    #: The generation of the group that the member belongs to.
    generation_id: int
    #: The member id that the coordinator gave out.
    member_id: str
    #: The id that a static member was configured with; null for a dynamic one. Versions 3+.
    group_instance_id: str | None
    #: The kind of group, which is checked if it is given. Versions 5+.
    protocol_type: str | None
    #: The protocol that was chosen, which is checked if it is given. Versions 5+.
    protocol_name: str | None
    #: The assignment of each member, from the leader; empty from the others.
    assignments: list[SyncGroupRequestAssignment]

    def __init__(
        self,
        group_id: str = "",
        generation_id: int = 0,
        member_id: str = "",
        group_instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        assignments: list[SyncGroupRequestAssignment] = UNSET,
    ) -> None:
        self.group_id = group_id
        self.generation_id = generation_id
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.protocol_type = protocol_type
        self.protocol_name = protocol_name
        self.assignments = [] if assignments is UNSET else assignments


class SyncGroupResponse(Message):
    """The response of SyncGroup."""

    __slots__ = ("throttle_time_ms", "error_code", "protocol_type", "protocol_name", "assignment")

    API_KEY: ClassVar[int] = 14
    API_NAME: ClassVar[str] = "SyncGroup"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 1+.
    throttle_time_ms: int
    #: The error code; 0 if all went well.
    error_code: int
    #: The kind of group. Versions 5+.
    protocol_type: str | None
    #: The protocol that was chosen. Versions 5+.
    protocol_name: str | None
    #: The member's assignment.
    assignment: bytes

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        assignment: bytes = b"",
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.protocol_type = protocol_type
        self.protocol_name = protocol_name
        self.assignment = assignment
