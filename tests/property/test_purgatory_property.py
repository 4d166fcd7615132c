"""Whatever happens in any order, each operation completes once, and the purgatory keeps nothing of it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock

from pylogd.broker.replica.purgatory import Operation, OperationState, Purgatory

KEYS = st.integers(0, 3)


class Counted(Operation[str]):
    """Completes once the counter of its key reaches a number."""

    def __init__(self, counters: dict[Hashable, int], wanted: int, keys: list[int]) -> None:
        super().__init__()
        self.counters = counters
        self.wanted = wanted
        self.keys = keys
        self.results: list[Any] = []

    def satisfied(self) -> bool:
        return sum(self.counters.get(key, 0) for key in set(self.keys)) >= self.wanted

    def try_complete(self, key: Hashable) -> bool:
        assert key in self.keys
        return self.satisfied() and self.complete("completed")

    def on_expire(self) -> str:
        return "expired"


class Interleavings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.purgatory = Purgatory(cast(IReactorTime, self.clock))
        self.counters: dict[Hashable, int] = {}
        self.operations: list[Counted] = []

    def _watch(self, keys: list[int], wanted: int, timeout: float | None) -> Counted:
        operation = Counted(self.counters, wanted, keys)
        self.operations.append(operation)
        operation.done.addBoth(operation.results.append)
        self.purgatory.watch(operation, keys, timeout)
        return operation

    @rule(
        keys=st.lists(KEYS, min_size=1, max_size=4),
        ahead=st.integers(0, 3),
        timeout=st.none() | st.integers(0, 5).map(float),
    )
    def watch(self, keys: list[int], ahead: int, timeout: float | None) -> None:
        """Wait for something that is still to happen, or has happened already."""
        now = sum(self.counters.get(key, 0) for key in set(keys))
        self._watch(keys, now + ahead, timeout)

    @rule(key=KEYS, other=KEYS)
    def news_lead_to_other_news(self, key: int, other: int) -> None:
        """Whoever gets a result changes something at once, and waits for what it has changed itself."""
        operation = self._watch([key], self.counters.get(key, 0) + 1, 3.0)

        def go_on(_: object) -> None:
            self.news(other)
            self._watch([key, other], self.counters.get(other, 0), None)

        operation.done.addCallback(go_on)

    @rule(key=KEYS, others=st.lists(KEYS, min_size=1, max_size=2))
    def watch_then_watch_again(self, key: int, others: list[int]) -> None:
        operation = self._watch([key], self.counters.get(key, 0) + 1, 3.0)
        operation.done.addCallback(lambda _: self._watch(others, 10_000, 2.0))

    @rule(key=KEYS)
    def news(self, key: int) -> None:
        self.counters[key] = self.counters.get(key, 0) + 1
        self.purgatory.check(key)

    @rule(seconds=st.integers(0, 3))
    def time_goes_by(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(number=st.integers(0, 50))
    def cancel(self, number: int) -> None:
        if self.operations:
            self.operations[number % len(self.operations)].done.cancel()

    @rule(number=st.integers(0, 50))
    def fail(self, number: int) -> None:
        if self.operations:
            self.operations[number % len(self.operations)].fail(ValueError("broken"))

    @rule(first=st.integers(0, 50), key=KEYS)
    def completing_one_cancels_another(self, first: int, key: int) -> None:
        operation = self._watch([key], self.counters.get(key, 0) + 1, None)
        victim = self.operations[first % len(self.operations)]
        if victim is not operation:
            operation.done.addCallback(lambda _: victim.done.cancel())

    @rule()
    def stop(self) -> None:
        self.purgatory.expire_all()

    @invariant()
    def only_what_waits_is_watched(self) -> None:
        waiting = [operation for operation in self.operations if operation.state is OperationState.WAITING]
        assert len(self.purgatory) == len(waiting)
        assert self.purgatory.watched_keys() == {key for operation in waiting for key in operation.keys}
        timers = [operation for operation in waiting if operation._timer is not None]
        assert len(self.clock.getDelayedCalls()) == len(timers)

    @invariant()
    def nothing_waits_for_what_is_there(self) -> None:
        for operation in self.operations:
            assert operation.state is not OperationState.WAITING or not operation.satisfied()

    @invariant()
    def each_ends_once(self) -> None:
        for operation in self.operations:
            ended = operation.state not in (OperationState.WAITING, OperationState.NEW)
            assert len(operation.results) == int(ended)


Interleavings.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestInterleavings = Interleavings.TestCase
