"""Members of one consumer group in simulated histories, of both protocols, which read and commit as clients do.

A member reads nothing: it counts on from the offset that its group has committed, and commits what it has counted, by
itself or in transactions. What it does with a partition from the moment it is given to it until it is taken away is a
*tenure*. Each commit has metadata of its own, the number of its tenure and its own number in that, so that it is found
in the log of the offsets topic and in what members are told.

Members end without a word, leave, or stop for a while and go on as if nothing had happened. A commit that a member
still had to send when a tenure ended may arrive much later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, cast

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.consumer.embedded import read_assignment
from pylogd.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, OwnedTopicPartitions
from pylogd.wire.messages.heartbeat import HeartbeatRequest
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pylogd.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from pylogd.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from pylogd.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from pylogd.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.fakes.group_histories import share_out, subscription
from tests.simulation.nemesis import TOPIC
from tests.simulation.transactional_clients import PASSING, Client, Process, TransactionalProducer, error_in
from tests.simulation.world import SimBroker

GROUP: Final = "g"
SESSION_MS, REBALANCE_MS = 1200, 1500
#: Seconds that a member waits for the answers that others delay.
_REBALANCE_PATIENCE: Final = 4.0
#: How often a request in a transaction is sent before that is given up.
_TRIES: Final = 20
_E = ErrorCode
#: Refusals of a commit that leave the member what it has.
_BETWEEN: Final = frozenset({_E.STALE_MEMBER_EPOCH, _E.REBALANCE_IN_PROGRESS})
#: Refusals after which a member has nothing any more.
_LOST: Final = frozenset(
    {_E.UNKNOWN_MEMBER_ID, _E.FENCED_MEMBER_EPOCH, _E.ILLEGAL_GENERATION, _E.GROUP_ID_NOT_FOUND,
     _E.INCONSISTENT_GROUP_PROTOCOL}
)  # fmt: skip
ACKED, UNKNOWN, REFUSED, ABORTED = "acknowledged", "unknown", "refused", "aborted"


@dataclass
class Tenure:
    """What a member does with a partition while it has it.

    base: the metadata of the committed offset from which it counts on, empty if there was none. known: the metadata of
    the last commit of the partition that was acknowledged to anybody before that was asked for.
    """

    number: int
    member: str
    index: int
    base: str
    known: str
    offset: int
    count: int = 0

    def next(self, step: int) -> tuple[int, str]:
        """Count on; return the offset to commit and its metadata."""
        self.offset += step
        self.count += 1
        return self.offset, f"{self.number}:{self.count}"


@dataclass
class Ledger:
    """What members did and were told.

    commits: by metadata, how each commit ended. acknowledged: by partition, the metadata of the last acknowledged
    commit. told: member id, epoch or generation, and the partitions that the member was told to have.
    """

    tenures: list[Tenure] = field(default_factory=list)
    commits: dict[str, str] = field(default_factory=dict)
    acknowledged: dict[int, str] = field(default_factory=dict)
    told: list[tuple[str, int, frozenset[int]]] = field(default_factory=list)


def error_in_commit(response: Any) -> ErrorCode:
    """Return the error code of the one partition of a commit."""
    return ErrorCode(response.topics[0].partitions[0].error_code)


class Member(Client):
    """A member. places: the partitions that it has; None as long as it does not know the committed offset."""

    def __init__(self, history: Any, number: int) -> None:
        super().__init__(history)
        self.history = history
        self.name = f"m{number}"
        self.member_id = ""
        self.epoch = 0
        self.places: dict[int, Tenure | None] = {}
        self.ends = ""
        self.sleep = 0.0
        self._producer = TransactionalProducer(history, 100 + number) if number % 2 == 0 else None
        self._process: Process | None = None

    # -- what both protocols have

    async def live(self) -> None:
        """Be a member until told to end."""
        rng = self.history.rng
        while not self.ends:
            await self.stay()
            for _ in range(rng.randint(1, 3)):
                if not (self.history.stopping or self.ends):
                    await self._work()
            pause, self.sleep = self.sleep + rng.uniform(0.03, 0.15), 0.0
            await self.pause(pause)
        self.drop(self.places)
        if self.ends == "leave":
            await self.leave()

    async def stay(self) -> None:
        """Join, or tell the coordinator that the member is there."""
        raise NotImplementedError

    async def leave(self) -> None:
        """Leave the group."""
        raise NotImplementedError

    def coordinator(self) -> SimBroker | None:
        """Return what some broker takes for the coordinator; that creates its topic if it is missing."""
        asked = self.any_broker()
        node = None if asked is None else cast(Any, asked).groups.coordinator_of(GROUP)
        return self.history.brokers.get(node) if type(node) is int else None

    async def ask_coordinator(self, message: Any, version: int, patience: float = 0.5) -> Any:
        """Return the response; None if there is none."""
        coordinator = self.coordinator()
        return None if coordinator is None else await self.ask(coordinator, message, version, patience=patience)

    def told(self, epoch: int, indexes: frozenset[int]) -> None:
        """Note which partitions the member has."""
        self.history.ledger.told.append((self.member_id, epoch, indexes))
        self.drop(self.places.keys() - indexes)
        for index in sorted(indexes - self.places.keys()):
            self.places[index] = None

    def drop(self, indexes: Any, *, late: bool = True) -> None:
        """Give up partitions. late: what the member had still to commit may arrive later, and is then to be refused.

        That may not be if it joins again: it can get the same partition with the same epoch.
        """
        for index in sorted(indexes):
            tenure = self.places.pop(index)
            if late and tenure is not None and self._producer is None and self.history.rng.random() < 0.3:
                offset, text = self._next(tenure)
                message, coordinator = self._commit(tenure, offset, text), self.coordinator()
                if coordinator is not None:
                    asked = self.ask(coordinator, message, 9, self.history.rng.uniform(0.05, 2.0))
                    asked.addCallback(self._committed, index, text)

    def lose(self) -> None:
        """Have nothing any more, and begin anew."""
        self.drop(list(self.places))
        self.epoch = 0

    def _next(self, tenure: Tenure) -> tuple[int, str]:
        """Return the offset to commit next and its metadata."""
        offset, text = tenure.next(self.history.rng.randint(1, 5))
        self.history.ledger.commits[text] = UNKNOWN
        return offset, text

    # -- offsets

    async def _work(self) -> None:
        for index, tenure in sorted(self.places.items()):
            if tenure is None:
                await self._find(index)
        places = [tenure for tenure in self.places.values() if tenure is not None]
        if places and self.history.rng.random() < 0.7:
            if self._producer is not None:
                await self._commit_in_transaction(places)
            else:
                await self._commit_one(self.history.rng.choice(places))

    async def _find(self, index: int) -> None:
        """Ask for the committed offset of a partition, and begin the tenure with it."""
        ledger = self.history.ledger
        known = ledger.acknowledged.get(index, "")
        group = OffsetFetchRequestGroup(GROUP, topics=[OffsetFetchRequestTopics(TOPIC, partition_indexes=[index])])
        if self.sends_epoch:
            group.member_id, group.member_epoch = self.member_id, self.epoch
        response = await self.ask_coordinator(OffsetFetchRequest(groups=[group], require_stable=True), 9)
        if response is None or response.groups[0].error_code:
            return
        found = response.groups[0].topics[0].partitions[0]
        if found.error_code or index not in self.places:
            return
        tenure = Tenure(
            len(ledger.tenures), self.member_id, index, found.metadata or "", known, max(found.committed_offset, 0)
        )
        ledger.tenures.append(tenure)
        self.places[index] = tenure

    sends_epoch = False

    def _commit(self, tenure: Tenure, offset: int, text: str) -> OffsetCommitRequest:
        partition = OffsetCommitRequestPartition(tenure.index, offset, -1, text)
        return OffsetCommitRequest(
            GROUP, self.epoch, self.member_id, None, -1, [OffsetCommitRequestTopic(TOPIC, partitions=[partition])]
        )

    async def _commit_one(self, tenure: Tenure) -> None:
        offset, text = self._next(tenure)
        response = await self.ask_coordinator(self._commit(tenure, offset, text), 9)
        if response is None:
            self.ends = self.ends or "crash"  # a client sends it again; here its successor finds out
        elif self._committed(response, tenure.index, text) in _LOST:
            self.lose()

    def _committed(self, response: Any, index: int, text: str) -> ErrorCode | None:
        """Note the outcome of a commit, and return it; None if there is no answer."""
        ledger = self.history.ledger
        code = None if response is None else error_in_commit(response)
        if code is _E.NONE:
            ledger.commits[text] = ACKED
            ledger.acknowledged[index] = text
        elif code in _BETWEEN | _LOST:
            ledger.commits[text] = REFUSED
        return code

    # -- offsets in transactions

    async def _commit_in_transaction(self, places: list[Tenure]) -> None:
        assert self._producer is not None
        if self._process is None:
            process = Process(self._producer)
            if not await process.initialize():
                return
            self._process = process
        else:
            process = self._process
        rng, commits = self.history.rng, self.history.ledger.commits
        counted = [(tenure, *self._next(tenure)) for tenure in places]
        for _, _, text in counted:
            commits[text] = ABORTED  # until it is asked to be committed
        commit = await self._add(process, counted) and rng.random() < 0.75
        if rng.random() < 0.4:
            await self.pause(rng.uniform(0.0, 1.5))
        if not commit and rng.random() < 0.3:
            self.ends = self.ends or "crash"  # and leave the transaction to its timeout
            return
        if commit:
            for _, _, text in counted:
                commits[text] = UNKNOWN
        ended = await process.end(commit=commit) is _E.NONE
        if ended and commit:
            for tenure, _, text in counted:
                commits[text] = ACKED
                self.history.ledger.acknowledged[tenure.index] = text
            return
        self._process = process if ended else None
        for tenure in places:
            if self.places.get(tenure.index) is tenure:
                self.places[tenure.index] = None  # it goes on from what is committed

    async def _add(self, process: Process, counted: list[tuple[Tenure, int, str]]) -> bool:
        """Add offsets to a transaction. Return whether they are."""
        partitions = [TxnOffsetCommitRequestPartition(one.index, offset, -1, text) for one, offset, text in counted]
        message = TxnOffsetCommitRequest(
            process.producer.name, GROUP, process.producer_id, process.epoch, self.epoch, self.member_id, None,
            [TxnOffsetCommitRequestTopic(TOPIC, partitions)],
        )  # fmt: skip
        for _ in range(_TRIES):
            response = await self.ask_coordinator(message, 5)
            if response is not None:
                codes = {ErrorCode(one.error_code) for one in response.topics[0].partitions}
                if codes == {_E.NONE}:
                    return True
                if not codes <= PASSING | {_E.NONE}:
                    return False
            await self.pause()
        return False


class NewMember(Member):
    """A member of the newer protocol."""

    sends_epoch = True

    def __init__(self, history: Any, number: int) -> None:
        super().__init__(history, number)
        self.member_id = self.name
        self._full = True

    def _owned(self) -> list[OwnedTopicPartitions]:
        return [OwnedTopicPartitions(self.history.topic_id, sorted(self.places))] if self.places else []

    async def stay(self) -> None:
        full = self._full or not self.epoch
        message = ConsumerGroupHeartbeatRequest(
            GROUP, self.member_id, self.epoch,
            rebalance_timeout_ms=REBALANCE_MS if full else -1,
            subscribed_topic_names=[TOPIC] if full else None,
            topic_partitions=self._owned(),
        )  # fmt: skip
        response = await self.ask_coordinator(message, 1)
        if response is None or response.error_code in PASSING:
            self._full = True
        elif response.error_code:
            self.lose()
        else:
            self.epoch, self._full = response.member_epoch, False
            if response.assignment is not None:
                found = [index for topic in response.assignment.topic_partitions for index in topic.partitions]
                self.told(self.epoch, frozenset(found))

    async def leave(self) -> None:
        if self.epoch:
            await self.ask_coordinator(ConsumerGroupHeartbeatRequest(GROUP, self.member_id, -1), 1)


class ClassicMember(Member):
    """A member of the classic protocol, eager or cooperative."""

    def __init__(self, history: Any, number: int) -> None:
        super().__init__(history, number)
        self.cooperative = history.cooperative
        self._joins = True

    def lose(self) -> None:
        super().lose()
        self._joins = True

    async def stay(self) -> None:
        if self._joins:
            await self._join()
            return
        response = await self.ask_coordinator(HeartbeatRequest(GROUP, self.epoch, self.member_id), 4)
        if response is not None:
            self._failed(error_in(response))

    def _failed(self, code: ErrorCode) -> None:
        """Do what an error code asks for."""
        if code is _E.NONE or code in PASSING:
            return
        self._joins = True
        if code is not _E.REBALANCE_IN_PROGRESS:
            self.lose()
        if code is _E.UNKNOWN_MEMBER_ID:
            self.member_id = ""

    async def _join(self) -> None:
        if not self.cooperative:
            self.drop(list(self.places), late=False)
        owned = [(TOPIC, index) for index in self.places]
        metadata = subscription([TOPIC], owned, cooperative=self.cooperative)
        name = "cooperative-sticky" if self.cooperative else "range"
        message = JoinGroupRequest(
            GROUP,
            SESSION_MS,
            REBALANCE_MS,
            self.member_id,
            None,
            "consumer",
            [JoinGroupRequestProtocol(name, metadata)],
        )
        response = await self.ask_coordinator(message, 9, _REBALANCE_PATIENCE)
        if response is None:
            return
        code = ErrorCode(response.error_code)
        if code is _E.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        elif code:
            self._failed(code)
        else:
            await self._sync(response)

    async def _sync(self, joined: Any) -> None:
        self.member_id, self.epoch = joined.member_id, joined.generation_id
        leads = joined.leader == self.member_id and not joined.skip_assignment
        given = share_out(joined.members, {TOPIC: self.history.partitions}) if leads else {}
        message = SyncGroupRequest(
            GROUP, self.epoch, self.member_id, None, joined.protocol_type, joined.protocol_name,
            [SyncGroupRequestAssignment(*one) for one in given.items()],
        )  # fmt: skip
        response = await self.ask_coordinator(message, 5, _REBALANCE_PATIENCE)
        if response is None:
            return
        code = ErrorCode(response.error_code)
        if code:
            self._failed(code)
            return
        found = frozenset(index for _, index in read_assignment(response.assignment)[0])
        gives_up = bool(self.places.keys() - found)
        self.told(self.epoch, found)
        self._joins = gives_up and self.cooperative

    async def leave(self) -> None:
        if self.member_id:
            message = LeaveGroupRequest(GROUP, members=[MemberIdentity(self.member_id)])
            await self.ask_coordinator(message, 5)
