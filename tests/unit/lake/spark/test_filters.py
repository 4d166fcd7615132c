"""What filters leave to read, without brokers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from pylogd.lake.spark.filters import Filters

TOPIC, PARTITION, OFFSET, STAMP, VALUE = (
    (name,) for name in ("topic", "partition", "offset", "timestamp", "value")
)  # fmt: skip
PARTITIONS = [("a", 0), ("a", 1), ("ab", 0)]


def kept(given: Filter) -> list[tuple[str, int]]:
    filters = Filters()
    assert filters.take(given)
    return [each for each in PARTITIONS if filters.keeps(*each)]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (EqualTo(TOPIC, "a"), [("a", 0), ("a", 1)]),
        (EqualNullSafe(TOPIC, "ab"), [("ab", 0)]),
        (EqualNullSafe(TOPIC, None), []),
        (Not(EqualNullSafe(TOPIC, None)), PARTITIONS),
        (In(TOPIC, ("ab", "c")), [("ab", 0)]),
        (Not(In(TOPIC, ("ab", "c"))), [("a", 0), ("a", 1)]),
        (StringStartsWith(TOPIC, "ab"), [("ab", 0)]),
        (StringEndsWith(TOPIC, "b"), [("ab", 0)]),
        (StringContains(TOPIC, "a"), PARTITIONS),
        (GreaterThan(TOPIC, "a"), [("ab", 0)]),
        (LessThanOrEqual(TOPIC, "a"), [("a", 0), ("a", 1)]),
        (Not(EqualTo(PARTITION, 0)), [("a", 1)]),
        (GreaterThanOrEqual(PARTITION, 1), [("a", 1)]),
        (LessThan(PARTITION, 1), [("a", 0), ("ab", 0)]),
        (IsNull(PARTITION), []),
        (Not(IsNull(PARTITION)), PARTITIONS),
        # A comparison with null is null, and so is its negation.
        (EqualTo(TOPIC, None), []),
        (Not(EqualTo(TOPIC, None)), []),
        (In(TOPIC, ("a", None)), [("a", 0), ("a", 1)]),
        (Not(In(TOPIC, ("a", None))), []),
    ],
)
def test_topics_and_partitions(given: Filter, found: list[tuple[str, int]]) -> None:
    assert kept(given) == found


@pytest.mark.parametrize(
    ("given", "first", "end"),
    [
        (EqualTo(OFFSET, 5), 5, 6),
        (EqualNullSafe(OFFSET, 5), 5, 6),
        (GreaterThan(OFFSET, 5), 6, None),
        (GreaterThanOrEqual(OFFSET, 5), 5, None),
        (LessThan(OFFSET, 5), 0, 5),
        (LessThanOrEqual(OFFSET, 5), 0, 6),
        (LessThan(OFFSET, -5), 0, -5),
        (IsNotNull(OFFSET), 0, None),
    ],
)
def test_offsets(given: Filter, first: int, end: int | None) -> None:
    filters = Filters()
    assert filters.take(given)
    assert (filters.first, filters.end) == (first, end)


def test_the_narrowest_bounds_hold() -> None:
    filters = Filters()
    for given in (GreaterThan(OFFSET, 3), GreaterThan(OFFSET, 1), LessThan(OFFSET, 9), LessThan(OFFSET, 12)):
        assert filters.take(given)
    assert (filters.first, filters.end) == (4, 9)
    assert filters.take(EqualTo(TOPIC, "a")) and filters.take(EqualTo(PARTITION, 1))
    assert [each for each in PARTITIONS if filters.keeps(*each)] == [("a", 1)]


def test_several_offsets_bound_the_range_and_spark_looks_for_them_there() -> None:
    filters = Filters()
    assert not filters.take(In(OFFSET, (7, None, 3)))
    assert (filters.first, filters.end) == (3, 8)
    assert not filters.take(In(OFFSET, (None,)))
    assert filters.end == 0


def stamp(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_a_time_stamp_moves_the_start_and_spark_applies_it_again() -> None:
    filters = Filters()
    for given, since in (
        (LessThan(STAMP, stamp(5)), None),
        (In(STAMP, (stamp(90), stamp(60))), 60),
        (GreaterThan(STAMP, stamp(70)), 70),
        (EqualTo(STAMP, stamp(65)), 70),
        (EqualTo(STAMP, None), 70),
        (GreaterThanOrEqual(STAMP, stamp(80)), 80),
        (IsNotNull(STAMP), 80),  # null where Spark can't represent the time stamp
    ):
        assert not filters.take(given)
        assert filters.since_ms == since


@pytest.mark.parametrize(
    "given",
    [
        EqualTo(VALUE, b"x"),
        IsNotNull(VALUE),
        Not(EqualTo(OFFSET, 3)),
        EqualTo(OFFSET, None),
        IsNull(OFFSET),
        EqualTo(("headers", "partition"), 1),
    ],
)
def test_other_filters_are_left_to_spark(given: Filter) -> None:
    filters = Filters()
    assert not filters.take(given)
    assert filters == Filters()
