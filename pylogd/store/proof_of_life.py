"""Proof that the reactor's thread makes progress, which a session with ZooKeeper depends on.

Strategy: kazoo keeps the session alive by pings from its own thread. Something that stops the reactor (a write to a
disk that hangs, a lock, a debugger) does not stop that thread, and a broker that serves nobody would meanwhile stay the
leader of its partitions. So before each ping, and before it connects again, kazoo's thread asks the reactor to call a
function, and waits for the call. While the reactor stands still no ping is sent. ZooKeeper then ends the session at its
timeout, and other brokers become leaders. When the reactor continues, the next message tells that the session has
expired, and the broker registers again.

A broker may also be dead while its reactor runs: if none of its disks takes an append any more, or if its work as the
controller makes no progress. `vital` tells this, on the reactor's thread; the reactor of a dead broker gives no proof.

Rules: there is no timer, and no clock is compared, since only a thread that waits for a proof asks for it. So a clock
that jumps changes nothing, and a slow reactor delays a ping only by one of its turns.

Must not know: kazoo, sessions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

#: Seconds between two checks whether the proof is still wanted.
LOOK_SECONDS: Final = 0.1


class _Question:
    """A proof that a thread waits for.

    alive: the broker's vital sign when the reactor answered.
    """

    def __init__(self, answered: threading.Event) -> None:
        self.answered = answered
        self.alive = False


@dataclass(eq=False, slots=True)
class ProofOfLife:
    """Asks the reactor for proofs, from another thread.

    _from_thread: has the reactor call a function, like `callFromThread`.
    _seconds: a monotonic clock.
    _vital: whether the broker does its work, apart from its reactor; called by the reactor.
    """

    _from_thread: Callable[[Callable[[], object]], object]
    _seconds: Callable[[], float]
    _vital: Callable[[], bool]
    _make_event: Callable[[], threading.Event] = threading.Event

    def wait(self, wanted: Callable[[], bool]) -> float:
        """Wait until the reactor has made progress with the broker alive, or until the proof is no longer `wanted`.

        Blocks the calling thread, which must not be the reactor's. Returns for how many seconds it has waited.
        """
        began = self._seconds()
        while not self._ask(wanted) and wanted():
            self._make_event().wait(LOOK_SECONDS)
        return self._seconds() - began

    def _ask(self, wanted: Callable[[], bool]) -> bool:
        """Return whether the broker is alive, once the reactor has answered; False if that is no longer wanted."""
        question = _Question(self._make_event())
        self._from_thread(partial(self._answer, question))
        while not question.answered.wait(LOOK_SECONDS):
            if not wanted():
                return False
        return question.alive

    def _answer(self, question: _Question) -> None:  # on the reactor's thread
        question.alive = self._vital()
        question.answered.set()
