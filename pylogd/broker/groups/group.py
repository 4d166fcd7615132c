"""A classic consumer group in memory: its members, their common protocol, and their committed offsets.

Strategy: this module only keeps the state. `membership` decides what happens to members and when; `offsets` decides how
long offsets are kept. All requests that wait for the group are in `waiting_joins` and `waiting_syncs`, so that none is
left unanswered.

Rules: the state changes only along `CLASSIC_GROUP`. `votes` counts the members that support each protocol, so that the
protocols supported by all members are known without asking each. It is kept in step with the members, as is
`instances` (`member_table`).
Must not know: the clock, the reactor, logs, requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.consumer.embedded import CONSUMER
from pylogd.broker.groups.group_offsets import GroupOffsets
from pylogd.broker.groups.member_table import MemberTable
from pylogd.broker.groups.records import StoredGroup, StoredMember, consumer_topics
from pylogd.broker.groups.states import CLASSIC_GROUP, GroupEvent, GroupState
from pylogd.broker.groups.values import JoinAnswer, JoinedMember, JoinRequest, Protocols, SyncAnswer

NEVER = float("inf")


@dataclass(slots=True, eq=False)
class Member:
    """A member of a group.

    session: the session timeout in seconds.
    rebalance: the rebalance timeout in seconds.
    protocols: (name, metadata) of each assignment protocol that it supports, the preferred one first.
    deadline: when its session ends, in the clock's seconds.
    is_new: whether it has not been part of a generation yet.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session: float
    rebalance: float
    protocols: Protocols
    assignment: bytes = b""
    deadline: float = NEVER
    is_new: bool = True

    @property
    def metadata_bytes(self) -> int:
        """How many bytes of metadata are kept for all protocols."""
        return sum(len(metadata) for _, metadata in self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol; empty if it does not support the protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


class _Members(MemberTable[Member]):
    """The members, with the index `votes`: how many members support each protocol."""

    __slots__ = ("_votes", "votes")

    def __init__(self) -> None:
        super().__init__()
        self._votes: Counter[str] = Counter()
        self.votes: Mapping[str, int] = self._votes

    def _enter(self, member: Member) -> None:
        super()._enter(member)
        self._votes.update({name for name, _ in member.protocols})

    def _leave(self, member: Member) -> None:
        super()._leave(member)
        for name in {name for name, _ in member.protocols}:
            self._votes[name] -= 1
            if not self._votes[name]:
                del self._votes[name]


class JoinWait:
    """The wait for members to join in a rebalance.

    until: when it ends, in the clock's seconds.
    extensible: by how many seconds the wait for the first members of a group may still be extended. Such a wait always
        takes its whole time. None for another wait.
    newcomers: whether a member joined since the last extension.
    """

    __slots__ = ("extensible", "newcomers", "until")

    def __init__(self, until: float, extensible: float | None = None) -> None:
        self.until = until
        self.extensible = extensible
        self.newcomers = False


class SyncWait:
    """The wait for the SyncGroup requests of a generation.

    until: when it ends, in the clock's seconds.
    missing: ids of members of the generation that have not sent SyncGroup yet.
    storing: whether the leader's assignment is being stored.
    """

    __slots__ = ("missing", "storing", "until")

    def __init__(self, until: float, missing: set[str]) -> None:
        self.until = until
        self.missing = missing
        self.storing = False


class ClassicGroup:
    """A group, its members and its offsets.

    partition_index: the partition of the offsets topic that stores the group.
    members: the members by member id, in order of joining.
    pending: member ids of clients that have still to join with them (KIP-394), each with the time at which it expires,
        in the clock's seconds (`pending` adds and removes them).
    waiting_joins, waiting_syncs: the requests that wait for an answer, by member id.
    join_wait: the wait for joins; None unless the group is PREPARING.
    sync_wait: the wait for syncs of this generation; None before the first generation and once the wait has ended.
    offsets: the offsets, committed and in open transactions.
    uncommitted: how many changes of the group are being appended, or wait for the replicas.
    stored: whether the group has a record in the offsets topic.
    """

    __slots__ = (
        "_table", "generation", "group_id", "join_wait", "leader", "members", "offsets", "partition_index", "pending",
        "protocol", "protocol_type", "since_ms", "state", "stored", "sync_wait", "timer", "uncommitted",
        "waiting_joins", "waiting_syncs",
    )  # fmt: skip

    def __init__(self, group_id: str, partition_index: int, since_ms: int) -> None:
        """Make an empty group, which has been Empty since `since_ms` (milliseconds since 1970)."""
        self.group_id = group_id
        self.partition_index = partition_index
        self.state = CLASSIC_GROUP.initial
        self.since_ms = since_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self._table = _Members()
        self.members = self._table.members
        self.pending: dict[str, float] = {}
        self.waiting_joins: dict[str, Deferred[JoinAnswer]] = {}
        self.waiting_syncs: dict[str, Deferred[SyncAnswer]] = {}
        self.join_wait: JoinWait | None = None
        self.sync_wait: SyncWait | None = None
        self.offsets = GroupOffsets()
        self.uncommitted = 0
        self.stored = False
        self.timer: IDelayedCall | None = None

    # -- state

    def handle(self, event: GroupEvent, now_ms: int) -> None:
        """Change the state according to `CLASSIC_GROUP`. Raises UnexpectedEvent."""
        self.state = CLASSIC_GROUP.next(self.state, event)
        self.since_ms = now_ms

    @property
    def unused(self) -> bool:
        """Whether the group can be removed from memory without losing anything."""
        return self.state is GroupState.EMPTY and not (self.offsets or self.pending or self.stored)

    # -- members

    @property
    def instances(self) -> Mapping[str, str]:
        """The member id by group instance id."""
        return self._table.instances

    def add(self, member: Member) -> None:
        """Add a member. The first one becomes the leader."""
        self._table.put(member)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member: Member) -> None:
        """Remove a member. The caller answers the requests that wait under its id."""
        self._table.remove(member.member_id)
        if self.sync_wait is not None:
            self.sync_wait.missing.discard(member.member_id)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def remove_all(self) -> None:
        """Remove all members, and everything that their generation agreed on."""
        self._table.clear()
        self.join_wait = self.sync_wait = None
        self.protocol_type = self.protocol = self.leader = None

    def replace(self, old_id: str, new_id: str) -> Member:
        """Give a restarted static member its new id, and return the member. Order and leadership are unchanged."""

        def rename(member: Member) -> Member:
            member.member_id = new_id
            return member

        member = self._table.change(old_id, rename)
        if self.leader == old_id:
            self.leader = new_id
        if self.sync_wait is not None and old_id in self.sync_wait.missing:
            self.sync_wait.missing.remove(old_id)
            self.sync_wait.missing.add(new_id)
        return member

    def update(self, member: Member, request: JoinRequest) -> None:
        """Note what a member says of itself when it joins again."""
        if len(self.members) == 1:
            self.protocol_type = request.protocol_type

        def change(member: Member) -> Member:
            member.protocols = request.protocols
            return member

        self._table.change(member.member_id, change)
        member.client_id, member.client_host = request.client_id, request.client_host
        member.session, member.rebalance = request.session, request.rebalance

    @property
    def longest_rebalance(self) -> float:
        """The longest rebalance timeout of all members, in seconds."""
        return max((member.rebalance for member in self.members.values()), default=0.0)

    # -- protocols

    def supports(self, protocol_type: str, protocols: Protocols, member: Member | None = None) -> bool:
        """Return whether a client with these protocols can join: all members must support one of them.

        member: the client, if it is in the group already.
        """
        if not protocol_type or not protocols:
            return False
        others = len(self.members) - (member is not None)
        if not others:
            return True
        if protocol_type != self.protocol_type:
            return False
        own = {name for name, _ in member.protocols} if member is not None else set()
        return any(self._table.votes.get(name, 0) - (name in own) == others for name, _ in protocols)

    def choose_protocol(self) -> str:
        """Return the protocol that most members prefer among those that all members support."""
        everybody = len(self.members)
        ballots: Counter[str] = Counter()
        for member in self.members.values():
            ballots[next(name for name, _ in member.protocols if self._table.votes.get(name) == everybody)] += 1
        return ballots.most_common(1)[0][0]

    @property
    def topics(self) -> frozenset[str] | None:
        """The topics that members subscribe to, or None if that is unknown: only consumers send subscriptions."""
        if self.protocol_type != CONSUMER or self.protocol is None or not self.members:
            return None
        found: set[str] = set()
        for member in self.members.values():
            subscribed = consumer_topics(member.metadata(self.protocol))
            if subscribed is None:
                return None
            found |= subscribed
        return frozenset(found)

    def answer_join(self, member: Member) -> JoinAnswer:
        """Return the present generation as the answer to a JoinGroup request; the leader gets all members."""
        leader = self.leader or ""
        members: Sequence[JoinedMember] = ()
        if leader == member.member_id:
            members = [
                JoinedMember(one.member_id, one.instance_id, one.metadata(self.protocol))
                for one in self.members.values()
            ]
        return JoinAnswer(
            ErrorCode.NONE, member.member_id, self.generation, self.protocol_type, self.protocol, leader, members
        )

    def answer_sync(self, member: Member) -> SyncAnswer:
        """Return a member's assignment as the answer to a SyncGroup request."""
        return SyncAnswer(ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment)

    def check(self, member_id: str, instance_id: str | None) -> Member | ErrorCode:
        """Return the member that sent a request, or UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID (KIP-345)."""
        if instance_id is not None:
            current = self.instances.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return self.members.get(member_id) or ErrorCode.UNKNOWN_MEMBER_ID

    # -- time

    def is_expired(self, member: Member, now: float) -> bool:
        """Return whether a member's session has expired. It does not while one of its requests waits."""
        waits = member.member_id in self.waiting_joins or member.member_id in self.waiting_syncs
        return member.deadline <= now and not waits

    def next_deadline(self) -> float:
        """Return the next time at which something may be due, in the clock's seconds; NEVER if nothing is."""
        waits = [wait.until for wait in (self.join_wait, self.sync_wait) if wait is not None]
        at = min([*waits, *self.pending.values()], default=NEVER)
        for member_id, member in self.members.items():
            if member.deadline < at and member_id not in self.waiting_joins and member_id not in self.waiting_syncs:
                at = member.deadline
        return at

    # -- the stored form

    def to_stored(self, assignments: dict[str, bytes]) -> StoredGroup:
        """Return the record of this generation, with the assignment of each member by its id."""
        members = tuple(
            StoredMember(
                member.member_id, member.instance_id, member.client_id, member.client_host,
                round(member.rebalance * 1000), round(member.session * 1000), member.metadata(self.protocol),
                assignments.get(member.member_id, b""),
            )
            for member in self.members.values()
        )  # fmt: skip
        return StoredGroup(
            self.protocol_type or "", self.generation, self.protocol, self.leader, self.since_ms, members
        )

    @classmethod
    def from_stored(cls, group_id: str, partition_index: int, stored: StoredGroup, now_ms: int) -> ClassicGroup:
        """Return the group that a record describes: Stable if it has members, else Empty."""
        group = cls(group_id, partition_index, stored.state_since_ms if stored.state_since_ms >= 0 else now_ms)
        group.generation = stored.generation
        group.protocol_type = stored.protocol_type or None
        group.stored = True
        if not stored.members:
            return group
        group.state = GroupState.STABLE
        group.protocol = stored.protocol
        for known in stored.members:
            member = Member(
                known.member_id, known.instance_id, known.client_id, known.client_host, known.session_ms / 1000,
                known.rebalance_ms / 1000, ((stored.protocol or "", known.metadata),),
            )  # fmt: skip
            member.assignment = known.assignment
            member.is_new = False
            group.add(member)
        group.leader = stored.leader  # null if the group came back from the newer protocol and has to rebalance
        return group
