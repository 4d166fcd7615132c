"""The values that group members work with: reactions to error codes, requests, events for the application, settings.

The tables here are the only place that says what an error code of the group APIs means to a member. The states are in
`classic_states` and `consumer_states`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Literal

from pylogd.base.errors import ErrorCode, PylogdError
from pylogd.client.core.group.assignors import Assignor
from pylogd.client.core.group.consumer_protocol import NO_GENERATION
from pylogd.client.core.model import TopicPartition

#: The protocols by which a consumer can be a member of a group, by Kafka's names.
GroupProtocol = Literal["classic", "consumer"]


class ErrorAction(Enum):
    """The reaction of a member to an error code."""

    RETRY = "Send the same request again, a little later."
    FIND = "Look up the coordinator, then send the same request again."
    REJOIN = "Join again as the same member, which keeps its partitions."
    RESET = "Join again as a new member; the partitions are lost."
    ASK = "Ask the coordinator for the member's epoch, then send the same request again."
    FAIL = "Tell the application; the next poll tries again."
    FENCED = "Tell the application. Trying again would fence the other instance."


_COORDINATOR = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorAction.RETRY,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorAction.FIND,
    ErrorCode.NOT_COORDINATOR: ErrorAction.FIND,
    ErrorCode.FENCED_INSTANCE_ID: ErrorAction.FENCED,
}
_MEMBER = {
    **_COORDINATOR,
    ErrorCode.UNKNOWN_MEMBER_ID: ErrorAction.RESET,
    ErrorCode.ILLEGAL_GENERATION: ErrorAction.RESET,
}
AFTER_JOIN = {**_MEMBER, ErrorCode.REBALANCE_IN_PROGRESS: ErrorAction.RETRY}
AFTER_OTHERS = {**_MEMBER, ErrorCode.REBALANCE_IN_PROGRESS: ErrorAction.REJOIN}  # Heartbeat, SyncGroup, OffsetCommit
#: Errors of the newer protocol (KIP-848): ConsumerGroupHeartbeat, OffsetCommit, OffsetFetch.
OF_CONSUMERS = {
    **_COORDINATOR,
    ErrorCode.UNKNOWN_MEMBER_ID: ErrorAction.RESET,
    ErrorCode.FENCED_MEMBER_EPOCH: ErrorAction.RESET,
    ErrorCode.STALE_MEMBER_EPOCH: ErrorAction.ASK,
}
#: Advice for errors of ConsumerGroupHeartbeat that need an action of the user.
ADVICE = {
    ErrorCode.GROUP_ID_NOT_FOUND: "the group has members of the classic protocol and can't be migrated with them: stop "
    'them first, or use group_protocol="classic"',
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has as many members as it may have: stop one, or raise the broker's "
    "group.consumer.max.size",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "the broker does not have this group_remote_assignor: name one of its "
    "group.consumer.assignors, or none",
    ErrorCode.UNRELEASED_INSTANCE_ID: "a member that has not left, or whose session is not over, has this "
    "group_instance_id: stop it, or wait for the broker's group.consumer.session.timeout.ms and poll again",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "the broker matches the pattern by RE2, which has no look-around and no "
    "back-references: write it without them",
}


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The group's coordinator, and its address."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The group member and generation with which offsets are committed. A coordinator refuses commits of former
    members.
    """

    group_id: str
    generation: int = NO_GENERATION
    member_id: str = ""
    instance_id: str | None = None


#: The member id and epoch of a look-up of offsets without a member.
NOBODY: tuple[str | None, int] = (None, NO_GENERATION)
#: The topic ids by name if none are known.
NO_IDS: Mapping[str, bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class MemberRequest:
    """A request to send. `build` makes the message for the version that was negotiated; it may raise
    UnsupportedByBroker.

    to_coordinator: whether to send it to `member.coordinator`; otherwise any broker will do.
    waits: whether the answer may take up to `timeout` seconds by design. A connection answers in order, so such a
    request needs its own connection.
    """

    api: type[Any]
    build: Callable[[int], Any]
    timeout: float
    to_coordinator: bool = True
    waits: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Revoke:
    """Stop reading these partitions. If `lost`, other members may read them already, and a commit would fail."""

    partitions: frozenset[TopicPartition]
    lost: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Assign:
    """The member's assignment at a new generation: all partitions, and those that are new to the application."""

    partitions: frozenset[TopicPartition]
    added: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """An error that a retry can't solve."""

    error: PylogdError


Event = Revoke | Assign | Failed


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """The options of a member, by the names of `ConsumerOptions`. Times are in seconds.

    assignors, session_timeout, heartbeat_interval: only for the classic protocol; in the newer one the broker decides.
    """

    group_id: str
    assignors: Sequence[Assignor]
    instance_id: str | None = None
    session_timeout: float = 45.0
    heartbeat_interval: float = 3.0
    max_poll_interval: float = 300.0
    metadata_max_age: float = 300.0
    request_timeout: float = 30.0
    rack: str | None = None
    auto_create_topics: bool = False
    protocol: GroupProtocol = "classic"
    remote_assignor: str | None = None
