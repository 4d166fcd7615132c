"""A group's membership rules on a clock of the test's, with a store that answers at once or when told to."""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.group import ClassicGroup
from pylogd.broker.groups.membership import Membership
from pylogd.broker.groups.states import GroupState
from pylogd.broker.groups.values import JoinAnswer, JoinRequest, SyncRequest

SESSION = 10.0
REBALANCE = 60.0
DELAY = 3.0


class GroupFixture:
    """One group and its rules.

    stored: (generation, shares) of each store. hold: stores wait for `release`. fails: what stores answer.
    """

    def __init__(self, delay: float = DELAY, most_members: int = 1000) -> None:
        self.time = Clock()
        self.time.advance(1000)
        self.now_ms = 1_700_000_000_000
        self.stored: list[tuple[int, dict[str, bytes]]] = []
        self.hold = False
        self.held: list[Deferred[ErrorCode]] = []
        self.fails = ErrorCode.NONE
        self.forgotten: list[ClassicGroup] = []
        self.rules = Membership(
            cast(IReactorTime, self.time),
            lambda: self.now_ms,
            self._store,
            self.forgotten.append,
            lambda: delay,
            lambda: most_members,
        )
        self.group = ClassicGroup("g", 0, 0)

    def _store(self, group: ClassicGroup, shares: dict[str, bytes]) -> ErrorCode | Deferred[ErrorCode]:
        self.stored.append((group.generation, dict(shares)))
        if self.hold:
            waiting: Deferred[ErrorCode] = Deferred()
            self.held.append(waiting)
            return waiting.addCallback(self._done, group)
        return self._done(self.fails, group)

    @staticmethod
    def _done(error: ErrorCode, group: ClassicGroup) -> ErrorCode:
        if not error:
            group.stored = True
        return error

    def state(self) -> GroupState:
        """Return the group's state as it is now: a type checker takes it for a new one each time."""
        return self.group.state

    def release(self) -> None:
        """Let the stores that wait be done."""
        held, self.held = self.held, []
        for waiting in held:
            waiting.callback(self.fails)

    def ask_join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = (("range", b"t"),),
        known: bool = False,
        kind: str = "consumer",
        session: float = SESSION,
        rebalance: float = REBALANCE,
        can_skip: bool = True,
        client_id: str = "c",
    ) -> JoinAnswer | Deferred[JoinAnswer]:
        """Join as a client does; `known` where it can be told its id first."""
        request = JoinRequest(
            member_id, instance_id, client_id, "/127.0.0.1", session, rebalance, kind, protocols, known, can_skip
        )
        return self.rules.join(self.group, request)

    def join(self, member_id: str = "", **fields: Any) -> PendingResult:
        """A join, and what came of it."""
        return PendingResult(self.ask_join(member_id, **fields))

    def sync(
        self, answer: JoinAnswer, shares: dict[str, bytes] | None = None, instance_id: str | None = None
    ) -> PendingResult:
        """The sync that follows a join's answer."""
        request = SyncRequest(
            answer.member_id, instance_id, answer.generation, answer.protocol_type, answer.protocol,
            shares or {},
        )  # fmt: skip
        return PendingResult(self.rules.sync(self.group, request))

    def heartbeat(self, answer: JoinAnswer, instance_id: str | None = None) -> ErrorCode:
        return self.rules.heartbeat(self.group, answer.member_id, instance_id, answer.generation)

    def form(self, count: int = 2, **fields: Any) -> list[JoinAnswer]:
        """A Stable group of new dynamic members; the leader's answer first. Each has its own id for a share."""
        joins = [self.join(**fields) for _ in range(count)]
        self.time.advance(DELAY)
        self.time.advance(DELAY)
        return self.settle([join.answer for join in joins])

    def settle(self, answers: list[JoinAnswer]) -> list[JoinAnswer]:
        """Sync all of a generation; the leader's answer first."""
        answers = sorted(answers, key=lambda answer: answer.member_id != answer.leader)
        shares = {member.member_id: member.member_id.encode() for member in answers[0].members}
        followers = [self.sync(answer) for answer in answers[1:]]
        syncs = [self.sync(answers[0], shares), *followers]
        assert [sync.answer.assignment for sync in syncs] == [answer.member_id.encode() for answer in answers]
        return answers

    @property
    def idle(self) -> bool:
        """Return whether no request waits and no timer is pending."""
        group = self.group
        missing = group.sync_wait is not None and group.sync_wait.missing
        waiting = group.waiting_joins or group.waiting_syncs or group.pending or missing or self.held
        return not waiting and not self.time.getDelayedCalls()


class PendingResult:
    """The result of a request: an answer, now or later, or none if its client disconnected."""

    def __init__(self, result: object) -> None:
        self.deferred: Deferred[Any] | None = result if isinstance(result, Deferred) else None
        self.answers: list[Any] = []
        self.gone = False
        if self.deferred is None:
            self.answers.append(result)
        else:
            self.deferred.addCallbacks(self.answers.append, self._went)

    def _went(self, _failure: object) -> None:
        self.gone = True

    @property
    def waits(self) -> bool:
        return not self.answers and not self.gone

    @property
    def answer(self) -> Any:
        """Return the answer. Fails if there is none yet."""
        (answer,) = self.answers
        return answer

    def disconnect(self) -> None:
        """Disconnect the client."""
        assert self.deferred is not None
        self.deferred.cancel()
