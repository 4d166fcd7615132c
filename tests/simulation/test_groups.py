"""Simulated histories of a consumer group, and faults planted in the group coordinator, which have to be found.

For more histories run `python -m tests.simulation --groups --seeds 0-999`.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups import coordinator, migration
from pylogd.broker.groups.consumer import heartbeats, reconciliation
from pylogd.broker.groups.consumer.records import CurrentAssignment
from pylogd.broker.groups.coordinator import GroupCoordinator
from pylogd.broker.groups.loader import GroupLoader
from pylogd.broker.replica.internal_topic import InternalTopic
from pylogd.store.paths import OFFSETS_TOPIC
from tests.simulation.group_clients import ABORTED, ACKED, ClassicMember, NewMember
from tests.simulation.groups import GroupHistory
from tests.simulation.history import Violation

#: The histories of a test run, and within how many of them a planted fault has to be found.
HISTORIES, FOUND_WITHIN = 16, 40


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the log, in which restarted brokers report every simulated crash."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, HISTORIES, 8))
def test_a_group_has_one_owner_for_each_partition_and_loses_no_offset(first: int) -> None:
    outcomes: Counter[str] = Counter()
    joined: Counter[type] = Counter()
    for seed in range(first, first + 8):
        history = GroupHistory(seed)
        history.run()
        outcomes.update(history.ledger.commits.values())
        joined.update(history.joined)
    assert outcomes[ACKED] > 50
    assert outcomes[ABORTED] > 5
    assert min(joined[NewMember], joined[ClassicMember]) > 10


def test_histories_with_an_interval_between_assignments_have_no_violation() -> None:
    for seed in range(100, 103):
        GroupHistory(seed, group_consumer_assignment_interval_ms=700).run()


def test_histories_with_write_queues_have_no_violation() -> None:
    for seed in range(200, 203):
        GroupHistory(seed, log_write_queues="always").run()


def test_a_history_is_determined_by_its_seed() -> None:
    first, second = GroupHistory(1), GroupHistory(1)
    first.run(2.0)
    second.run(2.0)
    assert (first.steps, first.events, first.ledger) == (second.steps, second.events, second.ledger)


def violation(first: int = 0) -> str:
    """Return what is violated first in some histories.

    first: the history to begin with, because it is known to have the violation. The others follow if it has none.
    """
    for number in range(FOUND_WITHIN):
        try:
            GroupHistory(first + number).run()
        except Violation as found:
            return str(found)
    return "nothing"


def test_answers_before_a_change_is_replicated_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = InternalTopic.committed

    def hasty(self: InternalTopic, *args: Any) -> Any:
        return ErrorCode.NONE if self.name == OFFSETS_TOPIC else committed(self, *args)

    monkeypatch.setattr(InternalTopic, "committed", hasty)
    assert "not in the log" in violation()


def test_commits_of_former_owners_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    for check in ("may_commit", "may_commit_as_consumer", "may_commit_in_transaction"):
        monkeypatch.setattr(coordinator, check, lambda *_, **__: ErrorCode.NONE)
    assert "its commits are at" in violation(first=33)


def test_partitions_that_are_given_away_before_they_are_given_up_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    next_step = reconciliation.next_step

    def hasty(member: Any, target: Any, epoch: int, taken: Any, owned: Any) -> Any:
        return next_step(member, target, epoch, (), owned)

    monkeypatch.setattr(heartbeats, "next_step", hasty)
    assert "two owners" in violation()


def test_a_new_coordinator_that_forgets_offsets_in_open_transactions_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = GroupLoader.make

    def forgetful(self: GroupLoader) -> Any:
        for offsets in self._offsets.values():
            offsets.transactions.clear()
        return make(self)

    monkeypatch.setattr(GroupLoader, "make", forgetful)
    assert re.search("began from what is older|the coordinator has", violation())


def test_offsets_that_are_told_beside_an_open_transaction_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupCoordinator, "unstable", lambda self, group_id: frozenset())
    assert re.search("began from what is older|its commits are at", violation(52))


def test_a_move_that_forgets_what_classic_members_still_use_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    upgraded = migration.upgraded

    def hasty(*args: Any) -> Any:
        return [
            record._replace(assigned={}) if isinstance(record, CurrentAssignment) else record
            for record in upgraded(*args)
        ]

    monkeypatch.setattr(coordinator, "upgraded", hasty)
    assert re.search("began from what is older|its commits are at", violation())
