"""The purgatory, one behaviour in each test; the property test covers combinations."""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogd.broker.replica.purgatory import Operation, OperationState, Purgatory


class WaitFor(Operation[str]):
    """An operation that completes when the test sets `satisfied`."""

    def __init__(self, *, raises: bool = False) -> None:
        super().__init__()
        self.satisfied = False
        self.raises = raises
        self.asked: list[Hashable] = []

    def try_complete(self, key: Hashable) -> bool:
        self.asked.append(key)
        if self.raises:
            raise ValueError("broken")
        return self.satisfied and self.complete("completed")

    def on_expire(self) -> str:
        if self.raises:
            raise ValueError("broken at the end too")
        return "expired"


class PurgatoryTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.purgatory = Purgatory(cast(IReactorTime, self.clock))

    def assert_nothing_left(self) -> None:
        self.assertEqual(len(self.purgatory), 0)
        self.assertEqual(self.purgatory.watched_keys(), set())
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_an_event_of_an_unwatched_key_checks_no_operation(self) -> None:
        operation = WaitFor()
        self.purgatory.watch(operation, ["a"], 1.0)
        self.assertEqual(self.purgatory.check("b"), 0)
        self.assertEqual(operation.asked, ["a"])

    def test_what_is_over_when_it_begins_to_wait_ends_at_once(self) -> None:
        """A caller has looked, then something happened, then it calls `watch`."""
        operation = WaitFor()
        operation.satisfied = True
        done = self.purgatory.watch(operation, ["a", "b"], 1.0)
        self.assertEqual(self.successResultOf(done), "completed")
        self.assertEqual(operation.asked, ["a"])
        self.assert_nothing_left()

    def test_it_looks_at_every_key_when_it_begins_to_wait(self) -> None:
        class Second(WaitFor):
            def try_complete(self, key: Hashable) -> bool:
                self.satisfied = key == "b"
                return super().try_complete(key)

        done = self.purgatory.watch(Second(), ["a", "b"], 1.0)
        self.assertEqual(self.successResultOf(done), "completed")
        self.assert_nothing_left()

    def test_what_breaks_when_it_begins_to_wait_fails_at_once(self) -> None:
        failed = self.purgatory.watch(WaitFor(raises=True), ["a"], 1.0)
        self.failureResultOf(failed, ValueError)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        self.assert_nothing_left()

    def test_completes_on_an_event(self) -> None:
        operation = WaitFor()
        done = self.purgatory.watch(operation, ["a", "b"], 1.0)
        self.assertEqual(self.purgatory.check("a"), 0)
        self.assertNoResult(done)
        operation.satisfied = True
        self.assertEqual(self.purgatory.check("b"), 1)
        self.assertEqual(self.successResultOf(done), "completed")
        self.assertEqual(operation.asked, ["a", "b", "a", "b"])
        self.assert_nothing_left()

    def test_expires(self) -> None:
        operation = WaitFor()
        done = self.purgatory.watch(operation, ["a"], 0.5)
        self.clock.advance(0.4)
        self.assertNoResult(done)
        self.clock.advance(0.1)
        self.assertEqual(self.successResultOf(done), "expired")
        self.assertIs(operation.state, OperationState.EXPIRED)
        self.assert_nothing_left()

    def test_no_timeout_waits_for_ever(self) -> None:
        done = self.purgatory.watch(WaitFor(), ["a"], None)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.clock.advance(1e9)
        self.assertNoResult(done)

    def test_cancelling_leaves_nothing_behind(self) -> None:
        operation = WaitFor()
        done = self.purgatory.watch(operation, ["a", "b"], 1.0)
        done.cancel()
        self.failureResultOf(done, CancelledError)
        self.assertIs(operation.state, OperationState.WITHDRAWN)
        self.assert_nothing_left()

    def test_same_key_twice(self) -> None:
        operation = WaitFor()
        done = self.purgatory.watch(operation, ["a", "a"], 1.0)
        operation.satisfied = True
        self.assertEqual(self.purgatory.check("a"), 1)
        self.assertEqual(self.successResultOf(done), "completed")
        self.assert_nothing_left()

    def test_ends_once(self) -> None:
        operation = WaitFor()
        done = self.purgatory.watch(operation, ["a"], 1.0)
        self.assertTrue(operation.complete("first"))
        self.assertFalse(operation.complete("second"))
        self.assertFalse(operation.expire())
        self.assertEqual(self.successResultOf(done), "first")

    def test_an_operation_is_filed_once(self) -> None:
        operation = WaitFor()
        done = self.purgatory.watch(operation, ["a"], 1.0)
        self.assertIs(self.purgatory.watch(operation, ["b"], 1.0), done)
        self.assertEqual(self.purgatory.watched_keys(), {"a"})

    def test_a_broken_operation_fails_alone(self) -> None:
        broken, sound = WaitFor(), WaitFor()
        failed = self.purgatory.watch(broken, ["a"], 1.0)
        completed = self.purgatory.watch(sound, ["a"], 1.0)
        broken.raises = sound.satisfied = True
        self.assertEqual(self.purgatory.check("a"), 1)
        self.failureResultOf(failed, ValueError)
        self.assertEqual(self.successResultOf(completed), "completed")
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        self.assert_nothing_left()

    def test_an_expiry_that_raises_fails_the_operation(self) -> None:
        operation = WaitFor()
        done = self.purgatory.watch(operation, ["a"], 1.0)
        operation.raises = True
        self.clock.advance(1)
        self.failureResultOf(done, ValueError)
        self.assert_nothing_left()

    def test_completing_one_may_end_another_under_the_same_key(self) -> None:
        first, second = WaitFor(), WaitFor()
        self.purgatory.watch(first, ["a"], 1.0).addCallback(lambda _: second.done.cancel())
        withdrawn = self.purgatory.watch(second, ["a"], 1.0)
        first.satisfied = second.satisfied = True
        self.assertEqual(self.purgatory.check("a"), 1)
        self.failureResultOf(withdrawn, CancelledError)
        self.assertEqual(second.asked, ["a"])
        self.assert_nothing_left()

    def test_completing_one_may_file_another_under_the_same_key(self) -> None:
        first, second = WaitFor(), WaitFor()
        self.purgatory.watch(first, ["a"], 1.0).addCallback(lambda _: self.purgatory.watch(second, ["a"], 1.0))
        first.satisfied = True
        self.assertEqual(self.purgatory.check("a"), 1)
        self.assertIs(second.state, OperationState.WAITING)
        second.satisfied = True
        self.assertEqual(self.purgatory.check("a"), 1)
        self.assert_nothing_left()

    def test_operations_are_checked_in_order(self) -> None:
        order: list[int] = []
        operations = [WaitFor() for _ in range(3)]
        for number, operation in enumerate(operations):
            self.purgatory.watch(operation, ["a"], 1.0).addCallback(lambda _, n: order.append(n), number)
        for operation in operations:
            operation.satisfied = True
        self.purgatory.check("a")
        self.assertEqual(order, [0, 1, 2])

    def test_stopping_expires_all(self) -> None:
        waits = [self.purgatory.watch(WaitFor(), [number], 9.0) for number in range(3)]
        self.assertEqual(self.purgatory.expire_all(), 3)
        self.assertEqual([self.successResultOf(done) for done in waits], ["expired"] * 3)
        self.assert_nothing_left()
