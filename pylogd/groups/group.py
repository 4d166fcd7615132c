"""One consumer group as it lives in memory: who is in it, what they agreed on, how far they have read.

Strategy: bookkeeping only. What happens when, and to whom, is decided in `membership`; how long offsets are kept, in
`offsets`. Everybody who waits for the group is in two dicts here, so that it is easy to see that nobody is left.

Rules: state changes go along `TRANSITIONS` only. `votes` counts the members that support each protocol, so that what
all of them support is known without asking each.
Must not know: the clock, the reactor, logs, requests.
"""

from __future__ import annotations

from collections import Counter

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall

from pylogd.errors import ErrorCode
from pylogd.groups.records import Committed, StoredGroup, StoredMember, consumer_topics
from pylogd.groups.states import TRANSITIONS, GroupState
from pylogd.groups.values import JoinAnswer, JoinedMember, Protocols, SyncAnswer

#: The kind of group whose members' metadata are subscriptions.
CONSUMER = "consumer"
NEVER = float("inf")


class Member:
    """One member. `deadline`: the clock's seconds at which its session ends; times in seconds.

    is_new: it has not been part of a generation yet. protocols: (name, metadata), the preferred first.
    """

    __slots__ = (
        "assignment", "client_host", "client_id", "deadline", "instance_id", "is_new", "member_id", "protocols",
        "rebalance", "session",
    )  # fmt: skip

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        session: float,
        rebalance: float,
        protocols: Protocols,
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session = session
        self.rebalance = rebalance
        self.protocols = protocols
        self.assignment = b""
        self.deadline = NEVER
        self.is_new = True

    def metadata(self, protocol: str | None) -> bytes:
        """What it told for a protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


class Group:
    """A group and its members.

    members: by member id, in order of joining. instances: member id by group instance id. pending: ids given out to
    clients that are to join with them (KIP-394), each with the clock's seconds at which it is taken back.
    waiting_joins, waiting_syncs: by member id. unsynced: members of this generation that have not synced yet.
    rebalance_at, sync_at: when the present wait for joins, and for syncs, is over.
    first_wait: the present wait is for a group's first members, and goes its whole time; `delay_left` is how much of
    it may still be added, `newcomers` whether somebody came since it was last added to.
    offsets: by (topic, partition). storing: a generation is being stored. stored: the group itself has a record.
    """

    __slots__ = (
        "delay_left", "first_wait", "generation", "group_id", "instances", "leader", "members", "newcomers", "offsets",
        "pending", "protocol", "protocol_type", "rebalance_at", "shard", "since_ms", "state", "stored", "storing",
        "sync_at", "timer", "timer_at", "unsynced", "votes", "waiting_joins", "waiting_syncs",
    )  # fmt: skip

    def __init__(self, group_id: str, shard: int, since_ms: int) -> None:
        """`shard`: the partition of the offsets topic that keeps it."""
        self.group_id = group_id
        self.shard = shard
        self.state = GroupState.EMPTY
        self.since_ms = since_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}
        self.pending: dict[str, float] = {}
        self.votes: Counter[str] = Counter()
        self.waiting_joins: dict[str, Deferred[JoinAnswer]] = {}
        self.waiting_syncs: dict[str, Deferred[SyncAnswer]] = {}
        self.unsynced: set[str] = set()
        self.rebalance_at = NEVER
        self.sync_at = NEVER
        self.first_wait = False
        self.delay_left = 0.0
        self.newcomers = False
        self.offsets: dict[tuple[str, int], Committed] = {}
        self.storing = False
        self.stored = False
        self.timer: IDelayedCall | None = None
        self.timer_at = NEVER

    # -- state

    def become(self, state: GroupState, now_ms: int) -> None:
        """Change state, along `TRANSITIONS` only."""
        if state not in TRANSITIONS[self.state]:
            raise ValueError(f"group {self.group_id!r} can't go from {self.state.value} to {state.value}")
        self.state = state
        self.since_ms = now_ms

    @property
    def unused(self) -> bool:
        """Whether nothing would be lost if the group were forgotten."""
        return self.state is GroupState.EMPTY and not (self.offsets or self.pending or self.stored)

    # -- members

    def add(self, member: Member) -> None:
        """A member joins. The first one leads."""
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        self.votes.update({name for name, _ in member.protocols})
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member: Member) -> None:
        """A member goes. Whoever waits under its id is the caller's to answer."""
        del self.members[member.member_id]
        if member.instance_id is not None:
            self.instances.pop(member.instance_id, None)
        self._take_votes(member)
        self.unsynced.discard(member.member_id)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def replace(self, old_id: str, new_id: str) -> Member:
        """A static member has come back: the same member under a new id, in the same place."""
        member = self.members[old_id]
        member.member_id = new_id
        self.members = {new_id if key == old_id else key: value for key, value in self.members.items()}
        assert member.instance_id is not None
        self.instances[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.unsynced:
            self.unsynced.remove(old_id)
            self.unsynced.add(new_id)
        return member

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        """A member says anew what it supports."""
        self._take_votes(member)
        member.protocols = protocols
        self.votes.update({name for name, _ in protocols})

    def _take_votes(self, member: Member) -> None:
        self.votes.subtract({name for name, _ in member.protocols})
        self.votes += Counter()  # drops what nobody supports any more

    @property
    def longest_rebalance(self) -> float:
        """The longest time that a member needs for a rebalance, in seconds."""
        return max((member.rebalance for member in self.members.values()), default=0.0)

    # -- protocols

    def supports(self, protocol_type: str, protocols: Protocols, member: Member | None = None) -> bool:
        """Whether who offers `protocols` can be in the group; `member` is who offers, if it is in already."""
        if not protocol_type or not protocols:
            return False
        others = len(self.members) - (member is not None)
        if not others:
            return True
        if protocol_type != self.protocol_type:
            return False
        own = {name for name, _ in member.protocols} if member is not None else set()
        return any(self.votes[name] - (name in own) == others for name, _ in protocols)

    def choose_protocol(self) -> str:
        """The protocol that most members prefer, of those that all support."""
        everybody = len(self.members)
        ballots: Counter[str] = Counter()
        for member in self.members.values():
            ballots[next(name for name, _ in member.protocols if self.votes[name] == everybody)] += 1
        return ballots.most_common(1)[0][0]

    @property
    def topics(self) -> frozenset[str] | None:
        """The topics that members subscribe to; None if that is not known, which it is only of consumers."""
        if self.protocol_type != CONSUMER or self.protocol is None or not self.members:
            return None
        found: set[str] = set()
        for member in self.members.values():
            subscribed = consumer_topics(member.metadata(self.protocol))
            if subscribed is None:
                return None
            found |= subscribed
        return frozenset(found)

    def roster(self) -> list[JoinedMember]:
        """All members, as the leader is told of them."""
        return [
            JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol))
            for member in self.members.values()
        ]

    def check(self, member_id: str, instance_id: str | None) -> Member | ErrorCode:
        """The member that asks, or why it may not: UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID (KIP-345)."""
        if instance_id is not None:
            current = self.instances.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return self.members.get(member_id) or ErrorCode.UNKNOWN_MEMBER_ID

    # -- the stored form

    def to_stored(self, assignments: dict[str, bytes]) -> StoredGroup:
        """This generation with these shares."""
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
    def from_stored(cls, group_id: str, shard: int, stored: StoredGroup, now_ms: int) -> Group:
        """The group as it was when it was stored: Stable if it has members, else Empty."""
        group = cls(group_id, shard, stored.state_since_ms if stored.state_since_ms >= 0 else now_ms)
        group.generation = stored.generation
        group.protocol_type = stored.protocol_type or None
        group.stored = True
        if not stored.members:
            return group
        group.state = GroupState.STABLE
        group.protocol = stored.protocol
        group.leader = stored.leader
        for known in stored.members:
            member = Member(
                known.member_id, known.instance_id, known.client_id, known.client_host, known.session_ms / 1000,
                known.rebalance_ms / 1000, ((stored.protocol or "", known.metadata),),
            )  # fmt: skip
            member.assignment = known.assignment
            member.is_new = False
            group.add(member)
        return group
