"""Simulated histories with transactions, and faults planted in the coordinator and the log, which have to be found.

For more histories run `python -m tests.simulation --transactions --seeds 0-999`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.broker.api import write_txn_markers
from pylogd.broker.log.producers import Producers
from pylogd.broker.log.transactions import UnstableTransactions
from pylogd.broker.replica.internal_topic import InternalTopic
from pylogd.broker.replica.waiting import then
from pylogd.broker.transactions import rules
from pylogd.broker.transactions.coordinator import TransactionCoordinator
from pylogd.broker.transactions.sweeps import TransactionSweeps
from pylogd.broker.transactions.verifier import TransactionVerifier
from pylogd.store.paths import TRANSACTIONS_TOPIC
from tests.simulation.history import Violation
from tests.simulation.transactions import TransactionHistory

#: The histories of a test run, and within how many of them a planted fault has to be found.
HISTORIES, FOUND_WITHIN = 40, 40
_OUTDATED = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the log, in which restarted brokers report every simulated crash."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, HISTORIES, 10))
def test_transactions_are_whole_and_ended_whatever_fails(first: int) -> None:
    ended = {"committed": 0, "aborted": 0}
    for seed in range(first, first + 10):
        history = TransactionHistory(seed)
        history.run()
        ended = {outcome: ended[outcome] + count for outcome, count in history.ended.items()}
    assert min(ended.values()) > 10


def test_histories_of_five_brokers_have_no_violation() -> None:
    for seed in range(5):
        TransactionHistory(seed, brokers=5).run()


def test_histories_with_write_queues_have_no_violation() -> None:
    for seed in range(10):
        TransactionHistory(seed, log_write_queues="always").run()


def test_a_history_is_determined_by_its_seed() -> None:
    first, second = TransactionHistory(1), TransactionHistory(1)
    first.run(2.0)
    second.run(2.0)
    assert (first.steps, first.events, first.outcomes) == (second.steps, second.events, second.outcomes)


def violation(**settings: Any) -> str:
    """Return what is violated first in some histories."""
    for seed in range(FOUND_WITHIN):
        try:
            TransactionHistory(seed, **settings).run()
        except Violation as found:
            return str(found)
    return "nothing"


def test_a_decision_before_it_is_replicated_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = InternalTopic.committed

    def hasty(self: InternalTopic, *args: Any) -> Any:
        return ErrorCode.NONE if self.name == TRANSACTIONS_TOPIC else committed(self, *args)

    monkeypatch.setattr(InternalTopic, "committed", hasty)
    assert violation() != "nothing"


def test_a_new_coordinator_that_leaves_decided_transactions_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such transactions are taken up when a coordinator has loaded them, and by its sweeps: both are left out."""
    end_late = TransactionSweeps._end_late

    def without_markers(self: TransactionSweeps) -> None:
        monkeypatch.setattr(self, "_send_markers", lambda *_: None)
        end_late(self)

    monkeypatch.setattr(TransactionCoordinator, "_resume", lambda *_: None)
    monkeypatch.setattr(TransactionSweeps, "_end_late", without_markers)
    assert "stay open" in violation()


def test_a_coordinator_that_ignores_epochs_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = rules.may_end

    def lenient(value: Any, pending: bool, producer_id: int, epoch: int, *rest: Any) -> Any:
        return may_end(value, pending, value.producer_id, value.epoch, *rest)

    monkeypatch.setattr(rules, "may_end", lenient)
    assert violation() != "nothing"


def test_partition_leaders_that_ignore_epochs_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log checks epochs, and the coordinator tells leaders of outdated ones: both are left out."""
    check, verify = Producers.check, TransactionVerifier.verify

    def lenient(self: Producers, producer_id: int, epoch: int, *rest: Any) -> Any:
        known = self.by_id.get(producer_id)
        return None if known is not None and epoch < known.epoch else check(self, producer_id, epoch, *rest)

    def yes(self: TransactionVerifier, name: str, producer_id: int, epoch: int, keys: Any, add: bool) -> Any:
        return then(
            verify(self, name, producer_id, epoch, keys, add),
            lambda found: {key: ErrorCode.NONE if code in _OUTDATED else code for key, code in found.items()},
        )

    monkeypatch.setattr(Producers, "check", lenient)
    monkeypatch.setattr(TransactionVerifier, "verify", yes)
    assert violation() != "nothing"


def test_a_lost_marker_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    write = write_txn_markers._write

    async def forgetful(context: Any, batch: bytes, terms: Any, topic: str, answer: Any, pending: Any) -> None:
        if random.random() > 0.1:
            await write(context, batch, terms, topic, answer, pending)
        else:
            answer.error_code = ErrorCode.NONE

    monkeypatch.setattr(write_txn_markers, "_write", forgetful)
    assert violation() != "nothing"


def test_a_last_stable_offset_that_goes_back_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    stable_end = UnstableTransactions.stable_end

    def wavering(self: UnstableTransactions, high_watermark: int) -> int:
        return max(stable_end(self, high_watermark) - (2 if random.random() < 0.1 else 0), 0)

    monkeypatch.setattr(UnstableTransactions, "stable_end", wavering)
    assert "went back" in violation()


def test_readers_of_what_is_not_committed_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnstableTransactions, "stable_end", lambda self, high_watermark: high_watermark)
    assert "a reader" in violation()


def test_batches_without_verification_leave_transactions_open() -> None:
    assert "stay open" in violation(transaction_partition_verification_enable="false")
