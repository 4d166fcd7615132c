"""JoinGroup, API key 11, versions 0-9. Joins a consumer group, or takes part in its rebalance; answered when the
members of the new generation are known.

Generated from protocol/apis/join_group.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class JoinGroupRequestProtocol(Message):
    """An assignment protocol."""

    __slots__ = ("name", "metadata")

    #: The name of the protocol.
    name: str
    #: The member's metadata for the leader, such as its subscription.
    metadata: bytes

    def __init__(self, name: str = "", metadata: bytes = b"") -> None:
        self.name = name
        self.metadata = metadata


class JoinGroupResponseMember(Message):
    """A member as the leader sees it."""

    __slots__ = ("member_id", "group_instance_id", "metadata")

    #: The member id.
    member_id: str
    #: The id that a static member was configured with; null for a dynamic one. Versions 5+.
    group_instance_id: str | None
    #: The member's metadata for the protocol that was chosen.
    metadata: bytes

    def __init__(self, member_id: str = "", group_instance_id: str | None = None, metadata: bytes = b"") -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.metadata = metadata


class JoinGroupRequest(Message):
    """The request of JoinGroup."""

    __slots__ = (
        "group_id",
        "session_timeout_ms",
        "rebalance_timeout_ms",
        "member_id",
        "group_instance_id",
        "protocol_type",
        "protocols",
        "reason",
    )

    API_KEY: ClassVar[int] = 11
    API_NAME: ClassVar[str] = "JoinGroup"

    #: The group id.
    group_id: str
    #: Milliseconds without a heartbeat after which the member is removed from the group.
    session_timeout_ms: int
    #: Milliseconds that the coordinator waits for the members to join again in a rebalance; the session timeout before
    #: version 1. Versions 1+.
    rebalance_timeout_ms: int
    #: The member id that the coordinator gave out; empty for a new member.
    member_id: str
    #: The id that a static member was configured with; null for a dynamic one. Versions 5+.
    group_instance_id: str | None
    #: What kind of group it is: consumers say "consumer". All members have to agree.
    protocol_type: str
    #: The assignment protocols that the member supports, the preferred one first.
    protocols: list[JoinGroupRequestProtocol]
    #: Why the member joins, for people. Versions 8+.
    reason: str | None

    def __init__(
        self,
        group_id: str = "",
        session_timeout_ms: int = 0,
        rebalance_timeout_ms: int = -1,
        member_id: str = "",
        group_instance_id: str | None = None,
        protocol_type: str = "",
        protocols: list[JoinGroupRequestProtocol] = UNSET,
        reason: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.protocol_type = protocol_type
        self.protocols = [] if protocols is UNSET else protocols
        self.reason = reason


class JoinGroupResponse(Message):
    """The response of JoinGroup."""

    __slots__ = (
        "throttle_time_ms",
        "error_code",
        "generation_id",
        "protocol_type",
        "protocol_name",
        "leader",
        "skip_assignment",
        "member_id",
        "members",
    )

    API_KEY: ClassVar[int] = 11
    API_NAME: ClassVar[str] = "JoinGroup"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 2+.
    throttle_time_ms: int
    #: The error code; 0 if all went well.
    error_code: int
    #: The new generation.
    generation_id: int
    #: The kind of group. Versions 7+.
    protocol_type: str | None
    #: The protocol that was chosen.
    protocol_name: str | None
    #: The member id of the leader, which assigns.
    leader: str
    #: Whether the leader is to leave the assignment as it is. Versions 9+.
    skip_assignment: bool
    #: The member id of the client that is answered.
    member_id: str
    #: All members, for the leader; empty for the others.
    members: list[JoinGroupResponseMember]

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        generation_id: int = -1,
        protocol_type: str | None = None,
        protocol_name: str | None = "",
        leader: str = "",
        skip_assignment: bool = False,
        member_id: str = "",
        members: list[JoinGroupResponseMember] = UNSET,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.generation_id = generation_id
        self.protocol_type = protocol_type
        self.protocol_name = protocol_name
        self.leader = leader
        self.skip_assignment = skip_assignment
        self.member_id = member_id
        self.members = [] if members is UNSET else members
