"""Any order of joins, syncs, heartbeats, leaves, timeouts, lost connections, and slow or failing stores.

What must hold throughout: a generation has one leader, and only the leader is told the members; in a Stable group every
member has the assignment that the leader gave in this generation; only members of the present generation commit;
whoever waits is a member, and waits for an event that can come. What must hold at the end: when the clients are gone
the group is Empty or Dead, nobody waits, and no timer runs.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.group import ClassicGroup
from pylogd.broker.groups.offsets import may_commit
from pylogd.broker.groups.states import GroupState
from pylogd.broker.groups.values import JoinAnswer, LeavingMember
from tests.fakes.groups import REBALANCE, SESSION, GroupFixture, PendingResult
from tests.fakes.indexes import check_classic_group

INSTANCES = st.sampled_from([None, None, "i1", "i2"])
PROTOCOLS = st.sampled_from([(("range", b"a"),), (("range", b"b"),), (("rr", b"a"), ("range", b"a"))])
NUMBERS = st.integers(0, 1000)


class Client:
    """One consumer: how it joined, and which response it waits for."""

    def __init__(self, instance_id: str | None) -> None:
        self.instance_id = instance_id
        self.joining: PendingResult | None = None
        self.syncing: PendingResult | None = None
        self.joined: JoinAnswer | None = None

    @property
    def waiting(self) -> PendingResult | None:
        for waiting in (self.joining, self.syncing):
            if waiting is not None and waiting.waits:
                return waiting
        return None


class GroupMachine(RuleBasedStateMachine):
    @initialize(delay=st.sampled_from([0.0, 3.0]), most=st.sampled_from([3, 100]))
    def begin(self, delay: float, most: int) -> None:
        self.parts = GroupFixture(delay, most)
        self.clients: list[Client] = []
        self.given: dict[int, dict[str, bytes]] = {}  # by generation, the assignment that the leader gave
        self.leaders: dict[int, str] = {}
        self.seen: list[tuple[str, int]] = []

    @property
    def group(self) -> ClassicGroup:
        return self.parts.group

    def pick(self, number: int) -> Client:
        return self.clients[number % len(self.clients)]

    # -- actions of clients

    @rule(instance_id=INSTANCES, protocols=PROTOCOLS, known=st.booleans(), can_skip=st.booleans())
    def join_anew(self, instance_id: str | None, protocols: Any, known: bool, can_skip: bool) -> None:
        if self.group.state is GroupState.DEAD:
            self.parts.group = ClassicGroup("g", 0, 0)
            self.given, self.leaders, self.seen = {}, {}, []
        client = Client(instance_id)
        self.clients.append(client)
        self.join(client, "", protocols=protocols, known=known, can_skip=can_skip)

    def join(self, client: Client, member_id: str, **fields: Any) -> None:
        client.joining = PendingResult(self.parts.ask_join(member_id, instance_id=client.instance_id, **fields))
        self.collect()

    @precondition(lambda self: self.clients)
    @rule(number=NUMBERS, protocols=PROTOCOLS)
    def join_again(self, number: int, protocols: Any) -> None:
        client = self.pick(number)
        if client.joined is not None and self.group.state is not GroupState.DEAD:
            self.join(client, client.joined.member_id, protocols=protocols)

    @precondition(lambda self: self.clients)
    @rule(number=NUMBERS)
    def sync(self, number: int) -> None:
        client = self.pick(number)
        joined = client.joined
        if joined is None or joined.generation < 0:
            return
        shares = {}
        if joined.members:
            shares = {one.member_id: f"{joined.generation}/{one.member_id}".encode() for one in joined.members}
            mine = joined.member_id == self.group.leader and joined.generation == self.group.generation
            if mine and not joined.skip_assignment:
                self.given[joined.generation] = shares
        client.syncing = self.parts.sync(joined, shares, client.instance_id)
        self.collect()

    @precondition(lambda self: self.clients)
    @rule(number=NUMBERS)
    def heartbeat(self, number: int) -> None:
        client = self.pick(number)
        if client.joined is not None:
            error = self.parts.heartbeat(client.joined, client.instance_id)
            current = client.joined.generation == self.group.generation
            assert current or error != ErrorCode.NONE

    @precondition(lambda self: self.clients)
    @rule(number=NUMBERS)
    def leave(self, number: int) -> None:
        client = self.pick(number)
        if client.joined is not None:
            self.parts.rules.leave(self.group, [LeavingMember(client.joined.member_id, client.instance_id)])
            self.collect()

    @precondition(lambda self: self.clients)
    @rule(number=NUMBERS)
    def disconnect(self, number: int) -> None:
        waiting = self.pick(number).waiting
        if waiting is not None:
            waiting.disconnect()
            assert waiting.gone
            self.collect()

    @precondition(lambda self: self.seen)
    @rule(number=NUMBERS)
    def commit_in_some_generation(self, number: int) -> None:
        member_id, generation = self.seen[number % len(self.seen)]
        if generation != self.group.generation or member_id not in self.group.members:
            assert may_commit(self.group, member_id, None, generation) != ErrorCode.NONE

    @rule(seconds=st.sampled_from([0.5, 3.0, SESSION, REBALANCE]))
    def advance(self, seconds: float) -> None:
        self.parts.time.advance(seconds)
        self.collect()

    @rule(hold=st.booleans(), fails=st.sampled_from([ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE]))
    def store(self, hold: bool, fails: ErrorCode) -> None:
        self.parts.hold, self.parts.fails = hold, fails
        if not hold:
            self.parts.release()
            self.collect()

    def collect(self) -> None:
        """Process the responses that have arrived."""
        for client in self.clients:
            if client.joining is not None and client.joining.answers:
                answer: JoinAnswer = client.joining.answer
                client.joining = None
                self.take(client, answer)
            if client.syncing is not None and client.syncing.answers:
                answer = client.syncing.answer
                client.syncing = None

    def take(self, client: Client, answer: JoinAnswer) -> None:
        if answer.error == ErrorCode.MEMBER_ID_REQUIRED:
            client.joined = answer
        elif answer.error == ErrorCode.NONE:
            client.joined = answer
            self.seen.append((answer.member_id, answer.generation))
            if answer.members:
                assert answer.leader == answer.member_id
                assert answer.member_id in {member.member_id for member in answer.members}
            if client.instance_id is None:
                leader = self.leaders.setdefault(answer.generation, answer.leader)
                # The leader's id differs only if it is a static member that has rejoined since.
                assert leader == answer.leader or leader.startswith("i")

    # -- what must hold

    @invariant()
    def indexes_are_in_step(self) -> None:
        if hasattr(self, "parts"):
            check_classic_group(self.group)

    @invariant()
    def holds(self) -> None:
        group = self.group
        members = group.members
        assert set(group.waiting_joins) <= set(members)
        assert set(group.waiting_syncs) <= set(members)
        assert group.sync_wait is None or group.sync_wait.missing <= set(members)
        assert not group.waiting_joins or group.state is GroupState.PREPARING
        assert not group.waiting_syncs or group.state is GroupState.COMPLETING
        assert (group.leader in members) if members else (group.leader is None)
        assert {member.instance_id: one for one, member in members.items() if member.instance_id} == group.instances
        for name, votes in group._table.votes.items():
            assert votes == sum(name in dict(member.protocols) for member in members.values())
        if group.state in (GroupState.EMPTY, GroupState.DEAD):
            assert not members
        if group.state is GroupState.STABLE:
            given = self.given.get(group.generation, {})
            for member in members.values():
                shares = [given.get(member.member_id, b"")]
                if member.instance_id is not None:  # it may have rejoined under another id
                    shares += given.values()
                assert member.assignment in shares
        for client in self.clients:
            if client.waiting is not None and not client.waiting.gone:
                assert group.timer is not None or self.parts.held

    def teardown(self) -> None:
        if not hasattr(self, "parts"):
            return
        self.parts.hold, self.parts.fails = False, ErrorCode.NONE
        self.parts.release()
        for client in self.clients:
            if client.waiting is not None:
                client.waiting.disconnect()
        for _ in range(40):
            self.parts.time.advance(SESSION)
        assert self.group.state in (GroupState.EMPTY, GroupState.DEAD)
        assert self.parts.idle
        assert all(client.waiting is None for client in self.clients)


TestGroups = GroupMachine.TestCase
TestGroups.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
