"""Partitions of a mirror are shared evenly, move only where they have to, and never have two owners."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pylogd.services.mirror.grants import WorkerRecord, assign, next_grants
from pylogd.services.mirror.membership import (
    Assignment,
    Holdings,
    dump_assignment,
    dump_holdings,
    parse_assignment,
    parse_holdings,
)
from pylogd.services.mirror.partition_copy import PartitionRoute


def partitions(count: int, route: str = "r") -> list[PartitionRoute]:
    return [PartitionRoute(route, f"topic-{number % 7}", number // 7, f"topic-{number % 7}") for number in range(count)]


def moved(before: dict[PartitionRoute, str], after: dict[PartitionRoute, str]) -> set[PartitionRoute]:
    return {path for path, owner in before.items() if after.get(path) not in (owner, None)}


@given(st.integers(0, 200), st.integers(1, 9))
def test_shares_are_even_from_the_start(count: int, workers: int) -> None:
    found = assign(partitions(count), [f"w{n}" for n in range(workers)], {})
    counts = Counter(found.values())
    assert sum(counts.values()) == count
    assert all(count // workers <= counts[f"w{n}"] <= math.ceil(count / workers) for n in range(workers))


@given(st.integers(1, 300), st.integers(1, 8))
def test_another_worker_takes_its_share_and_nothing_else_moves(count: int, workers: int) -> None:
    names = [f"w{n}" for n in range(workers)]
    before = assign(partitions(count), names, {})
    after = assign(partitions(count), [*names, "new"], before)
    assert all(after[path] == "new" for path in moved(before, after))
    assert len(moved(before, after)) == count // (workers + 1)


def test_a_fourth_worker_takes_a_quarter_at_most() -> None:
    before = assign(partitions(60), ["a", "b", "c"], {})
    after = assign(partitions(60), ["a", "b", "c", "d"], before)
    assert len(moved(before, after)) == 15


@given(st.integers(1, 300), st.integers(2, 8))
def test_of_a_worker_that_ends_only_its_own_move(count: int, workers: int) -> None:
    names = [f"w{n}" for n in range(workers)]
    before = assign(partitions(count), names, {})
    after = assign(partitions(count), names[1:], before)
    assert moved(before, after) == {path for path, owner in before.items() if owner == "w0"}


@given(st.integers(1, 100), st.integers(1, 100), st.integers(1, 5))
def test_topics_that_come_move_nothing(count: int, more: int, workers: int) -> None:
    names = [f"w{n}" for n in range(workers)]
    before = assign(partitions(count), names, {})
    after = assign(partitions(count) + partitions(more, "other"), names, before)
    assert not moved(before, after)


def test_topics_that_go_move_nothing_as_long_as_shares_stay_similar() -> None:
    before = assign(partitions(60), ["a", "b", "c"], {})
    left = [path for path in partitions(60) if path.topic != "topic-3"]
    assert not moved(before, assign(left, ["a", "b", "c"], before))


def test_without_workers_nothing_is_assigned() -> None:
    assert assign(partitions(3), [], {}) == {}


@given(st.sets(st.sampled_from(partitions(60))), st.sets(st.sampled_from(partitions(60))), st.integers(-1, 5))
def test_nodes_are_read_as_they_were_written(
    some: set[PartitionRoute], others: set[PartitionRoute], version: int
) -> None:
    assignment = Assignment(frozenset(some), frozenset(others))
    assert parse_assignment(dump_assignment(assignment)) == assignment
    holdings = Holdings(version, frozenset(some))
    assert parse_holdings(dump_holdings(holdings)) == holdings


def test_a_node_holds_the_partitions_of_a_large_mirror() -> None:
    many = frozenset(
        PartitionRoute("r", f"a-topic-of-some-team-{n}", p, f"t{n}") for n in range(12_000) for p in range(6)
    )
    assert len(dump_assignment(Assignment(many))) < 500_000


class Mirror(RuleBasedStateMachine):
    """Workers that are slow, die, are cut off and come, with controllers that change between any two steps."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: list[PartitionRoute] = []
        self.assignments: dict[str, tuple[Assignment, int]] = {}  # in the store
        self.holdings: dict[str, Holdings] = {}
        self.live: set[str] = set()
        self.seen: dict[str, tuple[Assignment, int]] = {}  # by the worker
        self.copies: dict[str, set[PartitionRoute]] = {}  # what really is copied
        self.zombies: set[str] = set()  # gone from the store, and still copying
        self.born = 0

    @initialize()
    def begin(self) -> None:
        self.wanted = partitions(12)
        self.join()

    @rule()
    def join(self) -> None:
        if len(self.live) < 5:
            self.born += 1
            worker = f"w{self.born}"
            self.live.add(worker)
            self.holdings[worker] = Holdings(-1, frozenset())
            self.copies[worker] = set()

    @rule(count=st.integers(0, 20))
    def topics_change(self, count: int) -> None:
        self.wanted = partitions(count)

    @rule(data=st.data())
    def controller_decides(self, data: st.DataObject) -> None:
        gone = [worker for worker in self.assignments if worker not in self.live]
        taken: set[PartitionRoute] = set()
        for worker in gone:
            if data.draw(st.booleans(), label=f"{worker} can be fenced"):
                del self.assignments[worker]
                self.copies.pop(worker, None)  # whatever it still does fails
                self.zombies.discard(worker)
            else:
                found = self.assignments[worker][0]
                taken |= found.partitions | found.leaving
        records = {
            worker: WorkerRecord(*found, self.holdings.get(worker))
            for worker, found in self.assignments.items()
            if worker in self.live
        }
        grants = next_grants(self.wanted, self.live, records, taken)
        for worker, assignment in grants.assignments.items():
            version = self.assignments[worker][1] + 1 if worker in self.assignments else 0
            self.assignments[worker] = assignment, version

    @rule(data=st.data())
    def worker_reads(self, data: st.DataObject) -> None:
        if self.live:
            worker = data.draw(st.sampled_from(sorted(self.live)))
            if worker in self.assignments:
                assignment, version = self.seen[worker] = self.assignments[worker]
                held = assignment.partitions | self.copies[worker]
                self.holdings[worker] = Holdings(version, frozenset(held))
                self.copies[worker] |= assignment.partitions

    @rule(data=st.data())
    def worker_stops_what_it_lost(self, data: st.DataObject) -> None:
        if self.live:
            worker = data.draw(st.sampled_from(sorted(self.live)))
            if worker in self.seen:
                assignment, version = self.seen[worker]
                self.copies[worker] &= assignment.partitions
                self.holdings[worker] = Holdings(version, frozenset(self.copies[worker] | assignment.partitions))

    @rule(data=st.data())
    def worker_is_cut_off(self, data: st.DataObject) -> None:
        if self.live:
            worker = data.draw(st.sampled_from(sorted(self.live)))
            self.live.discard(worker)
            self.holdings.pop(worker, None)
            self.seen.pop(worker, None)
            self.zombies.add(worker)

    @invariant()
    def nothing_is_copied_twice(self) -> None:
        counts = Counter(path for found in self.copies.values() for path in found)
        assert not [path for path, count in counts.items() if count > 1]

    def teardown(self) -> None:
        """Once nothing happens any more, everything that is wanted is copied."""
        if not self.live:
            self.join()
        for _ in range(20):
            self.assignments = {w: found for w, found in self.assignments.items() if w in self.live}
            for worker in self.zombies:
                self.copies.pop(worker, None)
            records = {w: WorkerRecord(*found, self.holdings.get(w)) for w, found in self.assignments.items()}
            for worker, assignment in next_grants(self.wanted, self.live, records).assignments.items():
                self.assignments[worker] = assignment, self.assignments.get(worker, (assignment, -1))[1] + 1
            for worker in sorted(self.live):
                if worker in self.assignments:
                    assignment, version = self.assignments[worker]
                    self.copies[worker] = set(assignment.partitions)
                    self.holdings[worker] = Holdings(version, assignment.partitions)
        assert set().union(*(self.copies[worker] for worker in self.live)) == set(self.wanted)


Mirror.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestNoPartitionHasTwoOwners = Mirror.TestCase
