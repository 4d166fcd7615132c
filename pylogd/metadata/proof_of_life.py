"""Proof that the reactor's thread makes progress, which a session with ZooKeeper depends on.

Strategy: kazoo keeps the session alive by pings from a thread of its own. Whatever stops the reactor (a write to a disk
that hangs, a lock, a debugger) does not stop that thread, and a broker that serves nobody would stay the leader of its
partitions for as long as that lasts. So kazoo's thread has the reactor call a function before each ping, and before it
connects again, and waits until it was called. While the reactor stands still nothing is sent; ZooKeeper then ends the
session at its timeout, and other brokers take over. When the reactor continues, the next message tells that the session
has expired, and the broker registers again.

A broker may also be dead while its reactor runs: if none of its disks takes an append any more, or if its work as the
controller does not get on. `vital` says so, on the reactor's thread; a reactor whose broker is dead gives no proof.

Rules: there is no timer, and no clock is compared: a proof is only ever asked for by a thread that waits for it. So a
clock that jumps changes nothing, and a reactor that is only slow delays a ping by as long as one of its turns takes.

Must not know: kazoo, sessions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Final

#: Seconds between two looks at whether the proof is still wanted.
LOOK_SECONDS: Final = 0.1


class _Question:
    """A proof that a thread waits for. alive: what the broker's vital sign was when the reactor answered."""

    def __init__(self, answered: threading.Event) -> None:
        self.answered = answered
        self.alive = False


class ProofOfLife:
    """Asks the reactor for proofs, from another thread."""

    def __init__(
        self,
        from_thread: Callable[[Callable[[], object]], object],
        seconds: Callable[[], float],
        vital: Callable[[], bool],
        make_event: Callable[[], threading.Event] = threading.Event,
    ) -> None:
        """from_thread: has the reactor call a function, as `callFromThread`. seconds: a monotonic clock.

        vital: whether the broker does its work, apart from its reactor; called by the reactor.
        """
        self._from_thread = from_thread
        self._vital = vital
        self._seconds = seconds
        self._make_event = make_event

    def wait(self, wanted: Callable[[], bool]) -> float:
        """Wait until the reactor has made progress with the broker alive, or until the proof is not `wanted` any more.

        Blocks the calling thread, which must not be the reactor's. Returns for how many seconds it has waited.
        """
        began = self._seconds()
        while not self._ask(wanted) and wanted():
            self._make_event().wait(LOOK_SECONDS)
        return self._seconds() - began

    def _ask(self, wanted: Callable[[], bool]) -> bool:
        """Return whether the broker is alive, once the reactor has answered that; False if that is not wanted."""
        question = _Question(self._make_event())
        self._from_thread(partial(self._answer, question))
        while not question.answered.wait(LOOK_SECONDS):
            if not wanted():
                return False
        return question.alive

    def _answer(self, question: _Question) -> None:  # on the reactor's thread
        question.alive = self._vital()
        question.answered.set()
