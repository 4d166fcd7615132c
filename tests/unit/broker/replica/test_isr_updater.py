"""In-sync sets: proposed, written, and in effect only when written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import PylogdError
from pylogd.broker.metadata.errors import IneligibleReplica, StalePartition
from pylogd.broker.metadata.image import IsrChange, PartitionState
from pylogd.broker.replica.isr_updater import IsrUpdater
from pylogd.broker.replica.partition import Partition
from pylogd.store.errors import ConnectionLost
from tests.fakes.parts import Parts


class Case:
    """A partition with three replicas, led by broker 1, and writes of in-sync sets, to which the test responds."""

    def __init__(self, parts: Parts, isr: tuple[int, ...]) -> None:
        self.parts = parts
        parts.create("t")
        self.partition: Partition = parts.set_state("t", replicas=(1, 2, 3), isr=isr, leader_epoch=5)
        self.asked: list[tuple[Sequence[IsrChange], Deferred[Any]]] = []
        known = {self.partition.key: self.partition}
        self.keeper = IsrUpdater(self.alter, parts.clock, known, self.written, lambda: 10.0, parts.now_ms)
        parts.replicas.fetch_waits.add(self.keeper, self.partition.key)
        parts.isr_updater.stop()
        parts.isr_updater = parts.replica_parts.isr_updater = parts.hosting._isr_updater = self.keeper

    def alter(self, changes: Sequence[IsrChange]) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self.asked.append((changes, done))
        return done

    def written(self, partition: Partition, state: PartitionState | None) -> None:
        if state is not None:
            partition.apply(state, 0.0)

    def fetched(self, node: int, offset: int) -> None:
        self.partition.follower_fetched(node, offset, 0, self.parts.time.seconds())
        self.keeper.follower_came(self.partition, node)
        self.parts.time.advance(0)

    def answer(self, result: PartitionState | PylogdError) -> None:
        changes, done = self.asked.pop(0)
        done.callback([result] * len(changes))

    def new_state(self, isr: tuple[int, ...]) -> PartitionState:
        assert self.partition.state is not None
        return replace(self.partition.state, isr=isr, partition_epoch=self.partition.state.partition_epoch + 1)


@pytest.fixture
def parts(tmp_path: Path) -> Any:
    made = Parts(tmp_path)
    yield made
    made.close()


def test_a_follower_joins_when_it_has_what_is_committed(parts: Parts) -> None:
    case = Case(parts, (1, 2))
    parts.append("t")
    case.fetched(2, 1)
    case.fetched(3, 0)
    assert not case.asked
    case.fetched(3, 1)
    ((change,), _) = case.asked[0]
    assert (change.isr, change.leader_epoch, change.partition_epoch) == (
        (1, 2, 3),
        5,
        case.new_state(()).partition_epoch - 1,
    )
    assert list(case.partition.isr) == [1, 2]
    case.answer(case.new_state((1, 2, 3)))
    assert list(case.partition.isr) == [1, 2, 3]
    assert case.partition.pending_isr is None


def test_a_follower_joins_only_with_all_records_of_the_leader_s_start(parts: Parts) -> None:
    case = Case(parts, (1,))
    parts.append("t")
    parts.set_state("t", isr=(1, 2), leader_epoch=6)
    case.fetched(3, 0)
    case.fetched(3, 0)
    assert not case.asked
    case.fetched(3, 1)
    assert len(case.asked) == 1


def test_lagging_followers_leave_the_in_sync_set(parts: Parts) -> None:
    case = Case(parts, (1, 2, 3))
    case.fetched(2, 0)
    case.fetched(3, 0)
    parts.append("t")
    for second in range(12):
        parts.time.advance(1)
        case.fetched(2, 1)
        case.keeper.look()
        parts.time.advance(0)
        assert bool(case.asked) == (second >= 10), second
    assert case.asked[0][0][0].isr == (1, 2)


def test_the_timer_runs_only_while_a_follower_may_lag(parts: Parts) -> None:
    case = Case(parts, (1, 2, 3))
    assert not _timers(parts, case)
    parts.append("t")
    assert len(_timers(parts, case)) == 1
    parts.time.advance(1)
    assert len(_timers(parts, case)) == 1
    case.fetched(2, 1)
    case.fetched(3, 1)
    parts.time.advance(1)
    assert not _timers(parts, case)
    assert not case.asked


def _timers(parts: Parts, case: Case) -> list[Any]:
    calls: Sequence[Any] = parts.time.getDelayedCalls()
    return [call for call in calls if getattr(call.func, "__self__", None) is case.keeper]


@pytest.mark.parametrize("told_before", [False, True], ids=["answered", "told before the answer"])
def test_written_sets_are_counted(parts: Parts, told_before: bool) -> None:
    """Stores often tell of a change before they answer the write."""
    case = Case(parts, (1, 2))

    def write(isr: tuple[int, ...]) -> None:
        assert case.asked[0][0][0].isr == isr
        state = case.new_state(isr)
        if told_before:
            case.partition.apply(state, 0.0)
        case.answer(state)

    case.fetched(3, 0)
    write((1, 2, 3))
    parts.append("t")
    for _ in range(11):
        parts.time.advance(1)
        case.fetched(2, 1)
    write((1, 2))
    case.fetched(3, 1)
    write((1, 2, 3))
    assert (case.keeper.shrinks, case.keeper.expands) == (1, 2)


def test_a_write_without_an_answer_is_asked_for_again_and_counts_meanwhile(parts: Parts) -> None:
    case = Case(parts, (1,))
    case.fetched(2, 0)
    case.asked.pop(0)[1].errback(ConnectionLost("/"))
    assert not case.partition.alone
    parts.time.advance(1)
    case.keeper.look()
    parts.time.advance(0)
    case.answer(IneligibleReplica("it died"))  # but the first write may have succeeded
    assert not case.partition.alone
    # So the present set is written again: after that, no write with an earlier version can succeed.
    parts.time.advance(0)
    ((change,), _) = case.asked[0]
    assert (change.isr, change.epochs) == ((1,), {})
    assert not case.partition.alone
    case.answer(case.new_state((1,)))
    assert case.partition.alone
    assert case.partition.pending_isr is None


def test_a_join_that_is_refused_after_an_earlier_write_had_no_answer_is_withdrawn(parts: Parts) -> None:
    """The next partition state decides a write without a response, which then has no effect on later proposals."""
    case = Case(parts, (1,))
    case.fetched(2, 0)
    case.asked.pop(0)[1].errback(ConnectionLost("/"))
    case.partition.apply(case.new_state((1, 2)), 0.0)
    parts.append("t")
    case.fetched(2, 1)
    assert case.partition.high_watermark == 1
    case.partition.apply(case.new_state((1,)), 0.0)
    case.fetched(3, 1)
    case.answer(IneligibleReplica("it died"))
    assert case.partition.pending_isr is None
    parts.append("t")
    assert case.partition.high_watermark == 2


def test_a_join_names_the_broker_epoch_in_which_the_follower_was_complete(parts: Parts) -> None:
    case = Case(parts, (1,))
    case.partition.follower_fetched(2, 0, 0, 0.0, 7)
    case.keeper.follower_came(case.partition, 2)
    parts.time.advance(0)
    case.answer(StalePartition("try again"))
    # It restarts with fewer records, in another epoch; the proposal still names the epoch in which it was caught up.
    case.partition.follower_fetched(2, 0, 0, 0.0, 8)
    parts.time.advance(1)
    case.keeper.look()
    parts.time.advance(0)
    ((change,), _) = case.asked[0]
    assert (change.isr, change.epochs) == ((1, 2), {2: 7})


def test_a_refused_join_is_tried_again_after_a_pause(parts: Parts) -> None:
    case = Case(parts, (1,))
    case.fetched(2, 0)
    case.answer(IneligibleReplica("it is stopping"))
    assert case.partition.alone
    case.fetched(2, 0)
    assert not case.asked
    parts.time.advance(1)
    case.fetched(2, 0)
    assert len(case.asked) == 1


def test_replicas_read_after_their_epoch_are_added(parts: Parts) -> None:
    """A topic's two nodes are read one after the other; a reassignment between the reads changes both."""
    case = Case(parts, (1, 2))
    case.fetched(3, 0)
    torn = case.new_state((1, 2))
    case.partition.apply(torn, 0.0)
    case.asked.clear()
    case.fetched(3, 0)
    pending = case.partition.pending_isr
    assert pending is not None
    assert not case.partition.apply(replace(torn, replicas=(1, 2, 3, 4), adding=(4,)), 0.0)
    assert case.partition.followers.keys() == {2, 3, 4}
    assert case.partition.pending_isr is pending  # whether that was written is still unknown
    case.partition.check_follower(4, 5)


def test_a_stale_change_waits_for_the_new_state(parts: Parts) -> None:
    case = Case(parts, (1,))
    case.fetched(2, 0)
    case.answer(StalePartition("changed"))
    assert not case.partition.alone


def test_a_replica_without_the_old_records_waits_for_its_time(parts: Parts) -> None:
    case = Case(parts, (1,))
    until = parts.now_ms() + 5000
    parts.set_state("t", adding=(3,), latest_until_ms=until)
    case.fetched(3, 0)
    assert not case.asked
    parts.time.advance(5)
    case.fetched(3, 0)
    assert len(case.asked) == 1


def test_changes_of_one_reactor_turn_are_requested_together(parts: Parts) -> None:
    case = Case(parts, (1,))
    case.partition.follower_fetched(2, 0, 0, 0.0)
    case.keeper.follower_came(case.partition, 2)
    case.keeper.follower_came(case.partition, 2)
    parts.time.advance(0)
    assert len(case.asked) == 1
