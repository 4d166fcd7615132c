"""What a group member's state machine is made of: its states, what error codes ask for, requests, events, settings.

The tables here are the one place that says what an error code of the group APIs means to a member.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pylogd.client.core.group.assignors import Assignor
from pylogd.client.core.group.consumer_protocol import NO_GENERATION
from pylogd.client.core.model import TopicPartition
from pylogd.errors import ErrorCode, KafkaError, PylogdError


class State(Enum):
    """Where a member stands. The values are for people."""

    OUT = "not in the group"
    PREPARING = "giving up what it has, to join again"
    JOINING = "joining"
    ASSIGNING = "sharing out, as the leader"
    SYNCING = "waiting for its share"
    STABLE = "a member with its share"
    LEAVING = "leaving"
    AWAY = "out, since the application does not poll"
    FAILED = "out, since it can't be a member"


#: it has no share and wants none
OUT = frozenset({State.OUT, State.LEAVING, State.AWAY, State.FAILED})
#: it has a share or wants one
IN = frozenset(State) - OUT


class Step(Enum):
    """What an error code asks of a member."""

    RETRY = "the same again, a little later"
    FIND = "look for the coordinator, then the same again"
    REJOIN = "join again as the same member; what it has is still its own"
    RESET = "join again as a new member; what it had is lost"
    FAIL = "the application has to know; the next poll tries again"
    FENCED = "the application has to know; trying again would drive out the other one"


_COORDINATOR = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Step.RETRY,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Step.FIND,
    ErrorCode.NOT_COORDINATOR: Step.FIND,
    ErrorCode.FENCED_INSTANCE_ID: Step.FENCED,
}
_MEMBER = {**_COORDINATOR, ErrorCode.UNKNOWN_MEMBER_ID: Step.RESET, ErrorCode.ILLEGAL_GENERATION: Step.RESET}
AFTER_JOIN = {**_MEMBER, ErrorCode.REBALANCE_IN_PROGRESS: Step.RETRY}
AFTER_OTHERS = {**_MEMBER, ErrorCode.REBALANCE_IN_PROGRESS: Step.REJOIN}  # Heartbeat, SyncGroup, OffsetCommit


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The broker that coordinates the group, and where it listens."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Identity:
    """What a commit is signed with."""

    group_id: str
    generation: int = NO_GENERATION
    member_id: str = ""
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """A request to send. `at` makes the message for the version that was negotiated; it may raise UnsupportedByBroker.

    `to_coordinator`: to `member.coordinator`, else to any broker. `waits`: the answer may take `timeout` seconds by
    intent, and replies come in order: it needs a connection on which nothing else is sent.
    """

    api: type[Any]
    at: Callable[[int], Any]
    timeout: float
    to_coordinator: bool = True
    waits: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Revoke:
    """Stop reading these partitions. If `lost`, somebody else may be reading them already: committing would fail."""

    partitions: frozenset[TopicPartition]
    lost: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Assign:
    """The member's share at a new generation: all of it, and what of that is new to the application."""

    partitions: frozenset[TopicPartition]
    added: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """Something that trying again does not help."""

    error: PylogdError


Event = Revoke | Assign | Failed


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """How a member behaves. Times in seconds; Kafka's names in `Consumer`."""

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


def is_fenced(error: PylogdError) -> bool:
    """Whether another process is this static member now: trying again would only throw that one out."""
    return isinstance(error, KafkaError) and AFTER_OTHERS.get(error.code) is Step.FENCED
