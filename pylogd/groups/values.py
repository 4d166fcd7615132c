"""What members say and what they are answered, free of any version of the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pylogd.errors import ErrorCode

#: "I have no part in a group", and the answer where there is no generation.
NO_GENERATION: Final = -1

#: Name and metadata of each way of assigning, the preferred first.
Protocols = tuple[tuple[str, bytes], ...]


class JoinRequest(NamedTuple):
    """What a client says when it joins. Times in seconds. `member_id` is empty for a new member.

    needs_known_id: it can be told to join again with the id that it is given (KIP-394). can_skip: a leader that comes
    back understands that it need not assign (KIP-814).
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


class Leaver(NamedTuple):
    """A member that leaves: by its id, or by its instance id alone when an administrator removes it."""

    member_id: str
    instance_id: str | None


class JoinedMember(NamedTuple):
    """A member as the leader is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    """The answer to a join. `members` is for the leader only."""

    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: Sequence[JoinedMember] = ()
    skip_assignment: bool = False


class SyncAnswer(NamedTuple):
    """The answer to a sync."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""
