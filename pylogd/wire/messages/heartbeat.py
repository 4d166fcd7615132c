"""Heartbeat, API key 12, versions 0-4. Tells the coordinator that a member is alive; the answer says whether it has to
join again.

Generated from protocol/apis/heartbeat.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import Message


class HeartbeatRequest(Message):
    """The request of Heartbeat."""

    __slots__ = ("group_id", "generation_id", "member_id", "group_instance_id")

    API_KEY: ClassVar[int] = 12
    API_NAME: ClassVar[str] = "Heartbeat"

    #: The group id.
    group_id: str
    #: The generation of the group that the member belongs to.
    generation_id: int
    #: The member id that the coordinator gave out.
    member_id: str
    #: The id that a static member was configured with; null for a dynamic one. Versions 3+.
    group_instance_id: str | None

    def __init__(
        self, group_id: str = "", generation_id: int = 0, member_id: str = "", group_instance_id: str | None = None
    ) -> None:
        self.group_id = group_id
        self.generation_id = generation_id
        self.member_id = member_id
        self.group_instance_id = group_instance_id


class HeartbeatResponse(Message):
    """The response of Heartbeat."""

    __slots__ = ("throttle_time_ms", "error_code")

    API_KEY: ClassVar[int] = 12
    API_NAME: ClassVar[str] = "Heartbeat"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 1+.
    throttle_time_ms: int
    #: The error code; 0 if all went well.
    error_code: int

    def __init__(self, throttle_time_ms: int = 0, error_code: int = 0) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
