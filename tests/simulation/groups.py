"""A seeded history with a consumer group: its coordinator, members of both protocols that come and go, and all faults.

Real are the coordinator on every broker, `__consumer_offsets` with its replicas, the handlers, and what `transactions`
has, as some members commit in transactions. The group moves between the protocols with its members. Checked, besides
what `transactions` checks, in the log of the offsets topic at the end:

- after each batch no partition is assigned to two members, also while one is giving it up;
- what a member was told to have, with an epoch or generation, is in the log so;
- the commits of each tenure stand together, in the order in which they were sent, behind the commit that the tenure
  began from: nobody goes back behind what another member has committed, and no former owner commits in between;
- what a member found committed was no older than what was acknowledged to anybody before it asked;
- each commit that was acknowledged is there, and none that was refused; of a transaction, none if it was aborted;
- the coordinator knows the offsets that the log has;
- after everything has healed, every partition is with one living member, and the coordinator knows no others.
"""

from __future__ import annotations

import random
import uuid
from typing import Any, cast
from unittest import mock

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups import GroupCoordinator
from pylogd.broker.groups.consumer.embedded import read_assignment
from pylogd.broker.groups.consumer.records import CurrentAssignment, RecordType, Removed, decode, is_of_consumer_group
from pylogd.broker.groups.records import GroupKey, OffsetKey, read_group_value, read_key, read_offset_value
from pylogd.broker.log.markers import read_marker
from pylogd.store.paths import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from pylogd.wire.records import Record, decode_batch, iter_batches
from tests.simulation.group_clients import ABORTED, ACKED, GROUP, REFUSED, ClassicMember, Ledger, Member, NewMember
from tests.simulation.history import Violation
from tests.simulation.nemesis import TOPIC
from tests.simulation.transactions import TransactionHistory
from tests.simulation.world import SimBroker

_SETTINGS: dict[str, Any] = {
    "offsets_topic_num_partitions": 1,
    "offsets_commit_timeout_ms": 1000,
    "group_initial_rebalance_delay_ms": 0,
    "group_min_session_timeout_ms": 100,
    "group_consumer_session_timeout_ms": 1200,
    "group_consumer_heartbeat_interval_ms": 100,
}
_MOST_MEMBERS = 4
#: Seconds after all faults within which the group has to be stable.
_SETTLE_SECONDS = 30.0


class _Features:
    """Features at their newest levels."""

    def level(self, name: str) -> int:
        return 2


class OffsetsLog:
    """What the log of the offsets topic says about the group, batch by batch. Raises Violation.

    held: the partitions of each member now, those included that it is giving up. told: all that members ever had:
    member id, epoch or generation, partitions. offsets: the metadata of all commits that count, by partition, in order.
    """

    def __init__(self, log: bytes) -> None:
        self.held: dict[str, frozenset[int]] = {}
        self.told: set[tuple[str, int, frozenset[int]]] = set()
        self.offsets: dict[int, list[tuple[int, str]]] = {}
        self._open: dict[int, dict[int, tuple[int, str]]] = {}  # by producer id and partition
        for header, view in iter_batches(log):
            if header.is_control:
                marker = read_marker(header, view)
                counted = self._open.pop(header.producer_id, {})
                if marker is not None and marker.committed:
                    for index, commit in counted.items():
                        self.offsets.setdefault(index, []).append(commit)
                continue
            for record in decode_batch(view, header):
                self._apply(record, header.producer_id if header.is_transactional else None)
            self._check(header.base_offset)

    def _apply(self, record: Record, producer_id: int | None) -> None:
        assert record.key is not None
        if is_of_consumer_group(record.key):
            self._apply_member(decode(record.key, record.value))
            return
        key = read_key(record.key)
        if isinstance(key, GroupKey):
            self._apply_classic(record.value)
        elif isinstance(key, OffsetKey) and record.value is not None:
            committed = read_offset_value(record.value)
            commit = committed.offset, committed.metadata
            if producer_id is None:
                self.offsets.setdefault(key.partition, []).append(commit)
            else:
                self._open.setdefault(producer_id, {})[key.partition] = commit

    def _apply_member(self, found: Any) -> None:
        if isinstance(found, CurrentAssignment):
            assigned = frozenset(index for _, index in found.assigned)
            self.held[found.member_id] = assigned | {index for _, index in found.revoking}
            self.told.add((found.member_id, found.epoch, assigned))
        elif isinstance(found, Removed) and found.kind is RecordType.CURRENT_OF_MEMBER:
            self.held.pop(found.name, None)

    def _apply_classic(self, value: bytes | None) -> None:
        self.held.clear()
        group = None if value is None else read_group_value(value)
        for member in () if group is None else group.members:
            assigned = frozenset(index for _, index in read_assignment(member.assignment)[0])
            self.held[member.member_id] = assigned
            if group is not None:
                self.told.add((member.member_id, group.generation, assigned))

    def _check(self, offset: int) -> None:
        all_held = [index for indexes in self.held.values() for index in indexes]
        if len(all_held) != len(set(all_held)):
            raise Violation(f"a partition has two owners at {offset} of the offsets topic: {self.held}")


class GroupHistory(TransactionHistory):
    """A history with a consumer group.

    members: those that live. ledger: what all of them did. cooperative: how classic members rebalance. joined: how many
    members of each kind there were.
    """

    internal = (TRANSACTIONS_TOPIC, OFFSETS_TOPIC)
    partitions = 3

    def __init__(self, seed: int, brokers: int = 3, **settings: Any) -> None:
        super().__init__(seed, brokers, producers=0, **{**_SETTINGS, **settings})
        self.producers = self.producers[:1]
        self.cooperative = bool(seed % 3)
        self.members: list[Member] = []
        self.ledger = Ledger()
        self.joined = {NewMember: 0, ClassicMember: 0}
        self.log: OffsetsLog | None = None
        self.topic_id = b""

    # -- running

    def run(self, seconds: float = 10.0, nemesis: bool = True) -> None:
        """Run; the member ids that the coordinators make follow from the seed."""
        with mock.patch("uuid.uuid4", lambda: uuid.UUID(int=random.getrandbits(128))):
            super().run(seconds, nemesis)

    def admitted(self, broker: SimBroker) -> None:
        """Start the coordinators, as a broker does before it hosts partitions."""
        super().admitted(broker)
        groups = GroupCoordinator(broker.replica_parts, broker.metadata, broker.settings, broker.clock, broker.now_ms)
        broker.groups = groups  # type: ignore[attr-defined]
        broker.metadata.features = cast(Any, _Features())
        groups.start()

    def start_clients(self) -> None:
        super().start_clients()
        topic = next(broker.topics.get(TOPIC) for broker in self.brokers.values() if broker.ready)
        assert topic is not None
        self.topic_id = topic.topic_id
        self.begin(self._conduct())

    async def _conduct(self) -> None:
        """Have members come and go until the history stops."""
        self._add()
        while not self.stopping:
            self._change()
            done: Deferred[None] = Deferred()
            self.clock.callLater(self.rng.uniform(0.1, 0.7), done.callback, None)
            await done
        self._add()  # others may be about to end

    def _add(self) -> None:
        number = sum(self.joined.values())
        kind = self.rng.choice((NewMember, ClassicMember))
        self.joined[kind] += 1
        member = kind(self, number)
        self.members.append(member)
        self.say(f"{member.name} joins, {kind.__name__}")
        live = Deferred.fromCoroutine(member.live())
        live.addCallback(lambda _: self.members.remove(member)).addErrback(self.fault)

    def _change(self) -> None:
        what = self.rng.random()
        alive = [member for member in self.members if not member.ends]
        if len(alive) < 2 or (what < 0.3 and len(alive) < _MOST_MEMBERS):
            self._add()
        elif what < 0.8:
            member = self.rng.choice(alive)
            if what < 0.5:
                member.sleep = self.rng.uniform(0.3, 2.5)
            else:
                member.ends = "leave" if what < 0.65 else "crash"
            self.say(f"{member.name} {member.ends or 'sleeps'}")

    # -- the end

    def _recover(self) -> None:
        super()._recover()
        if not self.advance(_SETTLE_SECONDS, lambda: not self._unsettled()):
            raise Violation(f"the group does not settle: {self._unsettled()}\n{self.describe()}")

    def _coordinator(self) -> GroupCoordinator | None:
        """Return the group coordinator, None if there is none."""
        for state in self._internal.get(OFFSETS_TOPIC, ()):
            broker = self.brokers.get(state.leader)
            if broker is not None and broker.alive and broker.ready:
                groups: GroupCoordinator = broker.groups  # type: ignore[attr-defined]
                return groups
        return None

    def _unsettled(self) -> str:
        """Return why the group is not stable yet; empty if it is."""
        coordinator = self._coordinator()
        if coordinator is None:
            return "there is no coordinator"
        known = self._known_members(coordinator)
        living = {member.member_id for member in self.members}
        has = sorted(index for member in self.members for index in member.places)
        if known != living or has != list(range(self.partitions)):
            shares = {member.member_id: sorted(member.places) for member in self.members}
            return f"the coordinator knows {sorted(known)}, the living have {shares}"
        return ""

    @staticmethod
    def _known_members(coordinator: GroupCoordinator) -> set[str]:
        _, found = coordinator.groups()
        return {member_id for group in found if group.group_id == GROUP for member_id in group.members}

    def _conclude(self) -> None:
        super()._conclude()
        self.log = log = OffsetsLog(self._offsets_log())
        for told in self.ledger.told:
            if told not in log.told:
                raise Violation(f"a member was told what is not in the log (member, epoch, partitions): {told}")
        for index in range(self.partitions):
            self._check_tenures(index, [text for _, text in log.offsets.get(index, [])])
        self._check_commits({text for commits in log.offsets.values() for _, text in commits})
        coordinator = self._coordinator()
        assert coordinator is not None
        known = coordinator.fetch(GROUP)
        for index, commits in log.offsets.items():
            found = None if isinstance(known, ErrorCode) else known.get((TOPIC, index))
            if found is None or (found.offset, found.metadata) != commits[-1]:
                raise Violation(f"the coordinator has {found} of {index}, the log {commits[-1]}")

    def _offsets_log(self) -> bytes:
        """Return the committed part of the offsets topic."""
        (state,) = self._internal[OFFSETS_TOPIC]
        partition = cast(Any, self.brokers[state.leader].partition(OFFSETS_TOPIC, 0))
        data = bytes(self.brokers[state.leader].bytes_of(OFFSETS_TOPIC, 0))
        end = 0
        for header, view in iter_batches(data):
            if header.next_offset > partition.high_watermark:
                break
            end += len(view)
        return data[:end]

    def _check_tenures(self, index: int, commits: list[str]) -> None:
        """Check that the commits of each tenure stand together, in order, behind what the tenure began from."""
        places = {text: at for at, text in enumerate(commits)}
        if len(places) != len(commits):
            raise Violation(f"an offset of {index} is committed twice: {commits}")
        mine: dict[int, list[int]] = {}
        for at, text in enumerate(commits):
            mine.setdefault(int(text.partition(":")[0]), []).append(at)
        for tenure in self.ledger.tenures:
            if tenure.index != index:
                continue
            base = places.get(tenure.base, -1)
            if tenure.base and base < 0:
                raise Violation(f"{tenure} began from a commit that is not in the log")
            if base < places.get(tenure.known, -1):
                raise Violation(f"{tenure} began from what is older than {tenure.known}, which was acknowledged before")
            found = mine.get(tenure.number, [])
            if found != list(range(base + 1, base + 1 + len(found))) and found:
                raise Violation(f"{tenure} began at {base}, and its commits are at {found} of {commits}")
            numbers = [int(commits[at].partition(":")[2]) for at in found]
            if numbers != sorted(numbers):
                raise Violation(f"the commits of {tenure} are out of order: {numbers}")

    def _check_commits(self, there: set[str]) -> None:
        for text, outcome in self.ledger.commits.items():
            if outcome == ACKED and text not in there:
                raise Violation(f"{self._tenure(text)}: commit {text} was acknowledged, and is not there")
            if outcome in (REFUSED, ABORTED) and text in there:
                raise Violation(f"{self._tenure(text)}: commit {text} was {outcome}, and is there")

    def _tenure(self, text: str) -> Any:
        return self.ledger.tenures[int(text.partition(":")[0])]
