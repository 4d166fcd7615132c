"""A proof is given by the reactor alone, and is not waited for when nobody wants it any more."""

from __future__ import annotations

import threading
from collections.abc import Callable

from twisted.internet.task import Clock

from pylogd.store.proof_of_life import LOOK_SECONDS, ProofOfLife


class Machine:
    """A reactor that stands still until `continues_at`, and the thread that waits for it."""

    def __init__(self, continues_at: float) -> None:
        self.clock = Clock()
        self.continues_at = continues_at
        self.alive_at = 0.0
        self.asked: list[Callable[[], object]] = []
        self.proof = ProofOfLife(self.asked.append, self.clock.seconds, self._vital, self._event)

    def _vital(self) -> bool:
        return self.clock.seconds() >= self.alive_at

    def _event(self) -> threading.Event:
        machine = self

        class Event(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                if machine.clock.seconds() >= machine.continues_at:
                    while machine.asked:
                        machine.asked.pop()()
                if not self.is_set():
                    machine.clock.advance(timeout or 0.0)
                return self.is_set()

        return Event()


def test_a_reactor_that_makes_progress_is_not_waited_for() -> None:
    machine = Machine(0.0)
    assert machine.proof.wait(lambda: True) == 0.0


def test_the_proof_waits_for_as_long_as_the_reactor_stands_still() -> None:
    machine = Machine(1000.0)
    most = 0

    def wanted() -> bool:
        nonlocal most
        most = max(most, len(machine.asked))
        return True

    assert 1000.0 <= machine.proof.wait(wanted) <= 1000.0 + 2 * LOOK_SECONDS
    assert most == 1  # it is not asked again and again, which would be a flood when it continues


def test_a_proof_that_is_not_wanted_any_more_is_not_waited_for() -> None:
    machine = Machine(1000.0)
    assert machine.proof.wait(lambda: machine.clock.seconds() < 5.0) < 5.0 + 2 * LOOK_SECONDS


def test_a_reactor_whose_broker_does_no_work_gives_no_proof() -> None:
    """It is asked again, until the broker works."""
    machine = Machine(0.0)
    machine.alive_at = 20.0
    assert 20.0 <= machine.proof.wait(lambda: True) <= 20.0 + 2 * LOOK_SECONDS
