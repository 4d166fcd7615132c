"""The ranges of offsets that a query reads: complete, without overlap, within the limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.lake.spark.errors import PlanError
from pylogd.lake.spark.ranges import OffsetRange, grouped, lag, limit_records, ranges_between, split

PLACES = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 4))
SPANS = st.dictionaries(PLACES, st.tuples(st.integers(0, 1 << 62), st.integers(0, 5000)), max_size=8)


def ends(spans: dict[tuple[str, int], tuple[int, int]]) -> tuple[dict[tuple[str, int], int], ...]:
    return {at: first for at, (first, _) in spans.items()}, {at: first + size for at, (first, size) in spans.items()}


@given(SPANS)
def test_ranges_between_start_and_end(spans: dict[tuple[str, int], tuple[int, int]]) -> None:
    start, end = ends(spans)
    ranges = ranges_between(start, end)
    assert {(r.topic, r.partition): (r.start, r.size) for r in ranges} == {at: s for at, s in spans.items() if s[1]}


def test_a_partition_without_start_is_an_error() -> None:
    with pytest.raises(PlanError, match="t-0 has the end offset 5, but no start offset"):
        ranges_between({}, {("t", 0): 5})


def test_an_end_before_its_start_is_empty() -> None:
    assert ranges_between({("t", 0): 5}, {("t", 0): 3}) == []


@given(SPANS, st.none() | st.integers(1, 60), st.none() | st.integers(1, 700))
def test_splits_cover_everything_once(
    spans: dict[tuple[str, int], tuple[int, int]], least: int | None, most: int | None
) -> None:
    whole = ranges_between(*ends(spans))
    pieces = split(whole, least_tasks=least, most_records=most)
    covered: list[OffsetRange] = []
    for piece in pieces:  # in order, each where the last one ended
        assert piece.size > 0
        assert most is None or piece.size <= most
        last = covered[-1] if covered else None
        if last is not None and (last.topic, last.partition) == (piece.topic, piece.partition):
            assert last.end == piece.start
            covered[-1] = OffsetRange(piece.topic, piece.partition, last.start, piece.end)
        else:
            covered.append(piece)
    assert covered == whole
    if least is not None:
        assert len(pieces) >= min(least, sum(each.size for each in whole))


def test_without_options_a_partition_is_a_task() -> None:
    whole = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 5, 5), OffsetRange("t", 2, 5, 6)]
    assert split(whole) == [whole[0], whole[2]]
    assert split(whole, least_tasks=2) == [whole[0], whole[2]]


def test_large_partitions_are_split_first() -> None:
    pieces = split([OffsetRange("t", 0, 0, 900), OffsetRange("t", 1, 0, 100)], least_tasks=10)
    assert [piece.partition for piece in pieces].count(0) == 9
    assert [piece.size for piece in pieces] == [100] * 10


@given(SPANS, st.integers(1, 9000))
def test_a_limit(spans: dict[tuple[str, int], tuple[int, int]], limit: int) -> None:
    start, latest = ends(spans)
    chosen = limit_records(start, latest, limit)
    assert chosen.keys() == latest.keys()
    taken = 0
    for at, end in chosen.items():
        assert start[at] <= end <= latest[at]
        assert end > start[at] or latest[at] == start[at]  # no partition starves
        taken += end - start[at]
    total = sum(size for _, size in spans.values())
    assert taken == total if total <= limit else taken <= limit + len(spans)


def test_a_limit_is_divided_in_proportion_to_the_lag() -> None:
    latest = {("t", 0): 900, ("t", 1): 100, ("t", 2): 50}
    assert limit_records({("t", 2): 50}, latest, 100) == {("t", 0): 90, ("t", 1): 10, ("t", 2): 50}


def test_a_partition_with_a_lower_end_contributes_nothing() -> None:
    assert limit_records({("t", 0): 500, ("t", 1): 0}, {("t", 0): 20, ("t", 1): 90}, 30) == {("t", 0): 20, ("t", 1): 30}


def test_lag() -> None:
    assert lag({("t", 0): 3, ("t", 1): 9}, {("t", 0): 5, ("t", 1): 8, ("t", 2): 4}) == {
        ("t", 0): 2,
        ("t", 1): 0,
        ("t", 2): 4,
    }


@given(st.lists(st.integers(1, 50), max_size=12), st.integers(1, 200))
def test_small_ranges_are_grouped_in_order(sizes: list[int], least: int) -> None:
    ranges = [OffsetRange("t", at, 0, size) for at, size in enumerate(sizes)]
    groups = grouped(ranges, least)
    assert [piece for group in groups for piece in group] == ranges
    for group in groups:
        assert sum(piece.size for piece in group[:-1]) < least  # no range too many
    for group in groups[:-1]:
        assert sum(piece.size for piece in group) >= least


def test_each_range_is_a_group_by_default() -> None:
    ranges = [OffsetRange("t", at, 0, 5) for at in range(3)]
    assert grouped(ranges, 1) == [[each] for each in ranges]
