"""Simulated histories: what must hold does, whatever happens. More: `python -m tests.simulation --seeds 0-9999`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from pylogd.replica import admission
from pylogd.replica import partition as partitions
from pylogd.security.peers import Peers
from tests.simulation.history import History, Violation

#: Histories of a test run, 3 brokers and 5. Each takes a fraction of a second.
OF_THREE, OF_FIVE = 60, 10


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Every simulated crash is logged by whoever comes back."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, OF_THREE, 10))
def test_three_brokers(first: int) -> None:
    for seed in range(first, first + 10):
        History(seed).run()


@pytest.mark.parametrize("first", range(0, OF_FIVE, 5))
def test_five_brokers(first: int) -> None:
    for seed in range(first, first + 5):
        History(seed, brokers=5).run()


@pytest.mark.parametrize("seed", [1, 3])
def test_a_history_is_what_its_seed_says(seed: int) -> None:
    first, second = History(seed), History(seed)
    first.run(2.0)
    second.run(2.0)
    assert first.steps == second.steps
    assert first.events == second.events
    assert [ledger.data for ledger in first.ledgers] == [ledger.data for ledger in second.ledgers]


def found_out(seeds: int) -> bool:
    """Whether one of so many histories goes wrong."""
    for seed in range(seeds):
        try:
            History(seed).run()
        except Violation:
            return True
    return False


def test_a_leader_that_counts_nobody_but_itself_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "committed_end", lambda end, isr, followers: end)
    assert found_out(50)


def test_a_leader_that_counts_replicas_only_once_it_hears_that_they_are_in_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partitions.Partition, "_maximal_isr", lambda self: self.isr)
    assert found_out(50)


def test_a_leader_that_lets_anybody_join_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        partitions.Partition,
        "may_join",
        lambda self, node: node in self.followers and node not in self.isr and self.pending_isr is None,
    )
    assert found_out(50)


def test_followers_that_do_not_cut_their_logs_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions.Partition, "divergence", lambda self, epoch, offset: None)
    assert found_out(50)


def test_a_leader_that_commits_with_too_few_in_sync_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "commits", lambda state, min_insync: True)
    assert found_out(50)


def test_a_broker_that_comes_back_as_if_it_had_lost_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_correct_state", lambda node, topic, state, *_: state)
    assert found_out(50)


def test_a_leader_that_believes_whoever_says_it_is_a_follower_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peers, "proven", lambda self, claim, node: True)
    assert found_out(50)
