"""Simulated histories without violations. For more run `python -m tests.simulation --seeds 0-9999`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.broker.controller import admin
from pylogd.broker.metadata.topics import TopicRegistry
from pylogd.broker.replica import admission
from pylogd.broker.replica import partition as partitions
from pylogd.broker.replica.smooth_expansion import SmoothJoins
from pylogd.broker.security.peers import Peers
from tests.simulation.expansion import SmoothHistory
from tests.simulation.history import History, Violation
from tests.simulation.labels import LabelledHistory
from tests.simulation.nemesis import TOPIC

#: The histories of a test run with 3 and with 5 brokers. Each takes a fraction of a second.
OF_THREE, OF_FIVE = 60, 10
#: The same with five labelled brokers.
OF_LABELLED = 10


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the log, in which restarted brokers report every simulated crash."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, OF_THREE, 10))
def test_histories_of_three_brokers_have_no_violation(first: int) -> None:
    for seed in range(first, first + 10):
        History(seed).run()


@pytest.mark.parametrize("first", range(0, OF_FIVE, 5))
def test_histories_of_five_brokers_have_no_violation(first: int) -> None:
    for seed in range(first, first + 5):
        History(seed, brokers=5).run()


@pytest.mark.parametrize("first", range(0, OF_LABELLED, 5))
def test_no_replica_leaves_its_label(first: int) -> None:
    for seed in range(first, first + 5):
        history = LabelledHistory(seed)
        history.run()
        assert history.checked > 10


@pytest.mark.parametrize("first", range(0, OF_THREE, 10))
def test_histories_with_write_queues_have_no_violation(first: int) -> None:
    for seed in range(first, first + 10):
        History(seed, log_write_queues="always").run()


@pytest.mark.parametrize("first", range(0, OF_THREE, 10))
def test_histories_with_disks_that_become_slow_have_no_violation(first: int) -> None:
    for seed in range(first, first + 10):
        History(seed, log_write_queues="slow").run()


@pytest.mark.parametrize("seed", [1, 3])
def test_a_history_is_determined_by_its_seed(seed: int) -> None:
    first, second = History(seed), History(seed)
    first.run(2.0)
    second.run(2.0)
    assert first.steps == second.steps
    assert first.events == second.events
    assert [ledger.data for ledger in first.ledgers] == [ledger.data for ledger in second.ledgers]


def violation_found(seeds: int, make: Callable[[int], History] = History, *, first: int = 0) -> bool:
    """Return whether one of `seeds` histories has a violation.

    first: the history to begin with, because it is known to have one. The others follow if it has none.
    """
    for number in range(seeds):
        try:
            make((first + number) % seeds).run()
        except Violation:
            return True
    return False


def test_a_leader_that_commits_alone_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "committed_end", lambda end, isr, followers: end)
    assert violation_found(50)


def test_a_leader_that_ignores_pending_in_sync_replicas_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partitions.Partition, "_maximal_isr", lambda self: self.isr)
    assert violation_found(50, first=19)


def test_a_leader_that_admits_lagging_replicas_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        partitions.Partition,
        "may_join",
        lambda self, node: node in self.followers and node not in self.isr and self.pending_isr is None,
    )
    assert violation_found(50)


def test_followers_that_do_not_truncate_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions.Partition, "divergence", lambda self, epoch, offset: None)
    assert violation_found(50)


def test_a_leader_that_commits_with_too_few_in_sync_replicas_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "commits", lambda state, min_insync: True)
    assert violation_found(50)


def test_a_broker_that_hides_the_loss_of_its_disk_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_correct_state", lambda node, topic, state, *_: state)
    assert violation_found(50, first=26)


def test_a_leader_that_believes_any_client_to_be_a_follower_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peers, "proven", lambda self, claim, node: True)
    assert violation_found(50)


def test_a_reassignment_that_ignores_labels_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "check_within", lambda *_: None)
    assert violation_found(20, LabelledHistory)


def test_a_label_that_is_written_apart_from_the_moves_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    write = TopicRegistry.write_states

    def without_label(self: TopicRegistry, *args: Any, configs: Any = None, **named: Any) -> Any:
        return write(self, *args, **named)

    monkeypatch.setattr(TopicRegistry, "write_states", without_label)
    assert violation_found(20, LabelledHistory)


#: The histories with smooth expansions of a test run.
SMOOTH = 20


@pytest.mark.parametrize("first", range(0, SMOOTH, 10))
def test_smooth_expansions_lose_nothing_that_a_group_has_yet_to_read(first: int) -> None:
    expanded = 0
    for seed in range(first, first + 10):
        history = SmoothHistory(seed)
        history.run()
        expanded += len(history.expanded)
    assert expanded  # replicas without the first records did join


@pytest.mark.parametrize("seed", [*range(5), 37])
def test_smooth_expansions_with_write_queues_have_no_violation(seed: int) -> None:
    SmoothHistory(seed, log_write_queues="always").run()  # in 37 a log is deleted while it is written, and made again


def test_a_replica_that_joins_before_the_groups_are_there_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody(*_: object) -> dict[object, object]:
        return {}

    monkeypatch.setattr(SmoothJoins, "_behind", nobody)
    with pytest.raises(Violation, match="the group is at"):
        for seed in range(20):
            SmoothHistory(seed).run()


class WipedWhileAsked(SmoothHistory):
    """One expansion of partition 0, whose new replica gets an empty disk while the leader asks the groups."""

    wiped = 0

    def cause_trouble(self) -> None:
        """Begin the expansion."""
        self.read_states()
        replicas = self.states[0].replicas
        (self.joining,) = set(self.brokers) - set(replicas)
        target = [*replicas[:2], self.joining]
        self.brokers[replicas[0]].partition_admin.move({(TOPIC, 0): target}, latest_wait_ms=self.latest_wait_ms)

    def _commit(self) -> None:
        if not self.wiped or self.nemesis_over:  # meanwhile the group reads no further
            super()._commit()

    def wipe(self) -> Deferred[None]:
        """Empty the new replica's disk. Fires when its broker is back and its log begins later than before."""
        broker = self.brokers[self.joining]
        self.wiped = self._begin(broker, 0)
        broker.kill(wipe=True)
        self.damaged.add(self.joining)
        broker.start()
        done: Deferred[None] = Deferred()

        def look() -> None:
            if self._begin(broker, 0) > self.wiped:
                done.callback(None)
            else:
                self.clock.callLater(0.001, look)

        look()
        return done


def wiped_while_asked(monkeypatch: pytest.MonkeyPatch) -> WipedWhileAsked:
    """Run such a history."""
    history, behind = WipedWhileAsked(1), SmoothJoins._behind

    async def wipe_meanwhile(joins: SmoothJoins, begins: Any) -> Any:
        found = await behind(joins, begins)
        if not history.wiped and not found:
            await history.wipe()
        return found

    monkeypatch.setattr(SmoothJoins, "_behind", wipe_meanwhile)
    history.run()
    return history


def test_a_replica_that_is_wiped_while_the_groups_are_asked_is_waited_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = wiped_while_asked(monkeypatch)
    assert history.wiped
    assert max(begin for node, _, begin in history.expanded if node == history.joining) > history.wiped


def test_a_wait_that_is_ended_for_another_copy_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    change = admin.PartitionAdmin._change

    def unguarded(self: admin.PartitionAdmin, *args: Any, guards: Any = None) -> Any:
        return change(self, *args)

    monkeypatch.setattr(admin.PartitionAdmin, "_change", unguarded)
    with pytest.raises(Violation, match="the group is at"):
        wiped_while_asked(monkeypatch)
