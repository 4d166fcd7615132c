"""Searches of logs for clients: few at a time, and clients take turns."""

from __future__ import annotations

from pathlib import Path

from twisted.internet.defer import Deferred

from pylogd.base.limits.shares import Share
from tests.fakes.parts import Parts

ALICE = Share("User:alice", True)
STRANGERS = [Share("10.0.0.8", False), Share("10.0.0.9", False)]


def test_a_search_does_not_wait_for_those_of_somebody_who_has_sent_many(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    try:
        done: list[str] = []

        def ask(share: Share) -> Deferred[None]:
            return parts.replicas.look_up(share, None, done.append, share.name)

        parts.threads.hold = True
        for _ in range(100):
            for stranger in STRANGERS:
                ask(stranger)
        ask(ALICE)
        parts.threads.release()
        assert len(done) == 201
        assert done.index(ALICE.name) <= 3  # two had begun, and a stranger may have had the next turn
        assert done[4:8].count(STRANGERS[0].name) == 2  # the others take turns
    finally:
        parts.close()
