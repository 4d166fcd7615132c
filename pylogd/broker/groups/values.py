"""Requests and answers of group members, independent of the protocol's versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pylogd.base.errors import ErrorCode
from pylogd.base.limits.shares import NOBODY, Share
from pylogd.broker.groups.records import Committed, PartitionId

#: The generation that a client without a group sends, and that an answer without a generation has.
NO_GENERATION: Final = -1
#: The highest generation, and the highest epoch of a group of the newer protocol (32 bits).
LAST_GENERATION: Final = (1 << 31) - 1

#: (name, metadata) of each assignment protocol, the preferred one first.
Protocols = tuple[tuple[str, bytes], ...]


def next_generation(generation: int) -> int:
    """Return the generation, or group epoch, after this one. The last one is followed by 1."""
    return generation + 1 if generation < LAST_GENERATION else 1


class JoinRequest(NamedTuple):
    """A JoinGroup request.

    member_id: empty for a new member.
    session: the session timeout in seconds.
    rebalance: the rebalance timeout in seconds.
    needs_known_id: whether the client can be told to join again with the member id that it is given (KIP-394).
    can_skip: whether a returning leader understands that it must not assign again (KIP-814).
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session: float
    rebalance: float
    protocol_type: str
    protocols: Protocols
    needs_known_id: bool
    can_skip: bool
    share: Share = NOBODY


class SyncRequest(NamedTuple):
    """A SyncGroup request.

    protocol_type, protocol: None if the client does not send them.
    assignments: the leader's assignment, by member id; ignored from other members.
    """

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


class TransactionalCommit(NamedTuple):
    """A TxnOffsetCommit request: its transaction, the member that sends it, and the offsets with their records."""

    producer_id: int
    epoch: int
    member_id: str
    instance_id: str | None
    generation: int
    offsets: Sequence[tuple[PartitionId, Committed]]
    records: Sequence[tuple[bytes, bytes | None]]
    share: Share = NOBODY


class LeavingMember(NamedTuple):
    """A member that leaves, named by its id, or by its instance id alone when an administrator removes it."""

    member_id: str
    instance_id: str | None


class JoinedMember(NamedTuple):
    """A member in the form that is sent to the leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    """The answer to a JoinGroup request. `members` is empty for all but the leader."""

    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: Sequence[JoinedMember] = ()
    skip_assignment: bool = False


class SyncAnswer(NamedTuple):
    """The answer to a SyncGroup request."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""
