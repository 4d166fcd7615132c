"""SyncGroup, API key 14, versions 0-5. Fetches the member's share of the group's work; the leader brings the
assignment.

Generated from protocol/apis/sync_group.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class SyncGroupRequestAssignment:
    """What a member is to do."""

    #: The member id.
    member_id: str = ""
    #: Its share, in a form that only members understand.
    assignment: bytes = b""


@dataclass(slots=True)
class SyncGroupRequest:
    """The request of SyncGroup."""

    API_KEY: ClassVar[int] = 14
    API_NAME: ClassVar[str] = "SyncGroup"

    #: The group id.
    group_id: str = ""
    #: The generation of the group that the member belongs to.
    generation_id: int = 0
    #: The member id that the coordinator gave out.
    member_id: str = ""
    #: The id that a static member was configured with; null for a dynamic one. Versions 3+.
    group_instance_id: str | None = None
    #: The kind of group, which is checked if it is there. Versions 5+.
    protocol_type: str | None = None
    #: The protocol that was chosen, which is checked if it is there. Versions 5+.
    protocol_name: str | None = None
    #: What each member is to do, from the leader; nothing from the others.
    assignments: list[SyncGroupRequestAssignment] = field(default_factory=list)


@dataclass(slots=True)
class SyncGroupResponse:
    """The response of SyncGroup."""

    API_KEY: ClassVar[int] = 14
    API_NAME: ClassVar[str] = "SyncGroup"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 1+.
    throttle_time_ms: int = 0
    #: The error code; 0 if all went well.
    error_code: int = 0
    #: The kind of group. Versions 5+.
    protocol_type: str | None = None
    #: The protocol that was chosen. Versions 5+.
    protocol_name: str | None = None
    #: The member's share.
    assignment: bytes = b""
