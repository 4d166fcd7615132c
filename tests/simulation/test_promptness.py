"""Simulated histories without lost wake-ups, and lost wake-ups that are planted, which have to be found.

For more histories run `python -m tests.simulation --prompt --seeds 0-999`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from pylogd.broker.replica.manager import ReplicaManager
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.sessions import FetchSession
from pylogd.broker.replica.waiting import ReplicationWait
from tests.simulation.history import Violation
from tests.simulation.promptness import BOUND_WITH_QUEUES, PromptGroupHistory, PromptHistory

#: The histories of a test run, and within how many of them a planted fault has to be found.
HISTORIES, FOUND_WITHIN = 10, 10
QUEUES: tuple[Any, ...] = ("always", "slow")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, HISTORIES, 5))
def test_nothing_that_is_committed_stays_unseen(first: int) -> None:
    for seed in range(first, first + 5):
        history = PromptHistory(seed)
        history.run()
        assert history.expected > 200
        assert min(history.ended.values()) > 0 or history.ended["committed"] > 10


@pytest.mark.parametrize("queues", QUEUES)
def test_nothing_stays_unseen_behind_write_queues(queues: str) -> None:
    for seed in range(3):
        history = PromptHistory(seed, bound=BOUND_WITH_QUEUES, log_write_queues=queues)
        history.run()
        assert history.expected > 50


def test_nothing_stays_unseen_that_is_visible_after_a_flush() -> None:
    for seed in range(2):
        PromptHistory(seed, log_flush_visible="true").run()


def test_members_of_a_group_are_answered_in_time() -> None:
    for seed in range(4):
        history = PromptGroupHistory(seed)
        history.run()
        assert history.answered > 100


def violation(make: type[PromptHistory | PromptGroupHistory] = PromptHistory) -> str:
    """Return what is violated first in some histories."""
    for seed in range(FOUND_WITHIN):
        try:
            make(seed).run()
        except Violation as found:
            return str(found)
    return "nothing"


def _nothing(*_: object) -> bool:
    return False


def test_a_fetch_of_a_session_that_does_not_look_again_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a follower's fetch has confirmed lets the coordinator write a marker, which that
    same fetch does not see.
    """
    monkeypatch.setattr(FetchSession, "look_at_dirty", _nothing)
    assert "is committed to" in violation()
    assert "TxnOffsetCommitRequest took" in violation(PromptGroupHistory)


def test_appends_that_do_not_look_again_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch of a request is committed while a thread looks into another one, which is then refused."""
    look = ReplicationWait.look
    monkeypatch.setattr(ReplicationWait, "try_complete", lambda self, key: look(self))
    monkeypatch.setattr(ReplicationWait, "look", _nothing)
    assert "a Produce request took" in violation()


def test_appends_that_wake_nobody_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_: ReplicaManager, partition: Partition, *args: Any, **named: Any) -> Any:
        return partition.append(*args, **named)

    monkeypatch.setattr(ReplicaManager, "append", silent)
    assert "is committed to" in violation()


def test_a_high_watermark_that_wakes_nobody_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for replicas is told, and who waits for records is not."""
    init = ReplicaManager.__init__

    def half(self: ReplicaManager, *args: Any, **named: Any) -> None:
        init(self, *args, **named)

        def became_visible(partition: Partition) -> None:
            self.append_waits.check(partition.key)

        self.became_visible = became_visible

    monkeypatch.setattr(ReplicaManager, "__init__", half)
    assert "may be read to" in violation()


@pytest.mark.parametrize("seed", [1])
def test_a_history_is_determined_by_its_seed(seed: int) -> None:
    make = partial(PromptHistory, seed)
    first, second = make(), make()
    first.run(2.0)
    second.run(2.0)
    assert (first.steps, first.expected, first.outcomes) == (second.steps, second.expected, second.outcomes)
