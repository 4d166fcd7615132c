"""JoinGroup, API key 11, versions 0-9. Joins a consumer group, or takes part in its rebalance; answered when the
members of the new generation are known.

Generated from protocol/apis/join_group.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class JoinGroupRequestProtocol:
    """A way of assigning."""

    #: The name of the protocol.
    name: str = ""
    #: What the member tells the leader, such as its subscription.
    metadata: bytes = b""


@dataclass(slots=True)
class JoinGroupResponseMember:
    """A member as the leader sees it."""

    #: The member id.
    member_id: str = ""
    #: The id that a static member was configured with; null for a dynamic one. Versions 5+.
    group_instance_id: str | None = None
    #: What the member told for the protocol that was chosen.
    metadata: bytes = b""


@dataclass(slots=True)
class JoinGroupRequest:
    """The request of JoinGroup."""

    API_KEY: ClassVar[int] = 11
    API_NAME: ClassVar[str] = "JoinGroup"

    #: The group id.
    group_id: str = ""
    #: Milliseconds without a heartbeat after which the member is taken for dead.
    session_timeout_ms: int = 0
    #: Milliseconds that the coordinator waits for the members to join again in a rebalance; the session time-out before
    #: version 1. Versions 1+.
    rebalance_timeout_ms: int = -1
    #: The member id that the coordinator gave out; empty for a new member.
    member_id: str = ""
    #: The id that a static member was configured with; null for a dynamic one. Versions 5+.
    group_instance_id: str | None = None
    #: What kind of group it is: consumers say "consumer". All members have to agree.
    protocol_type: str = ""
    #: The ways of assigning that the member supports, the preferred one first.
    protocols: list[JoinGroupRequestProtocol] = field(default_factory=list)
    #: Why the member joins, for people. Versions 8+.
    reason: str | None = None


@dataclass(slots=True)
class JoinGroupResponse:
    """The response of JoinGroup."""

    API_KEY: ClassVar[int] = 11
    API_NAME: ClassVar[str] = "JoinGroup"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 2+.
    throttle_time_ms: int = 0
    #: The error code; 0 if all went well.
    error_code: int = 0
    #: The new generation.
    generation_id: int = -1
    #: The kind of group. Versions 7+.
    protocol_type: str | None = None
    #: The protocol that was chosen.
    protocol_name: str | None = ""
    #: The member id of the leader, which assigns.
    leader: str = ""
    #: Whether the leader is to leave the assignment as it is. Versions 9+.
    skip_assignment: bool = False
    #: The member id of who is answered.
    member_id: str = ""
    #: All members, for the leader; nobody for the others.
    members: list[JoinGroupResponseMember] = field(default_factory=list)
