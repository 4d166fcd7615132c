"""Log ends and lags over time."""

from __future__ import annotations

from array import array

import pytest

from pylogd.services.console.series import POINTS, TopicSeries


def series(*samples: tuple[float, list[int]]) -> TopicSeries:
    made = TopicSeries()
    for now, ends in samples:
        made.add(now, array("q", ends))
    return made


def test_the_rate_is_of_all_partitions_between_two_samples() -> None:
    made = series((0, [0, 0]), (10, [50, 30]), (20, [50, 30]), (30, [50, 40]))
    assert list(made.rates) == [8.0, 0.0, 1.0]


def test_how_long_ago_a_record_was_appended_is_interpolated() -> None:
    made = series((0, [0]), (10, [100]), (20, [300]))
    assert made.seconds_behind(0, 50, 20) == pytest.approx(15)
    assert made.seconds_behind(0, 200, 20) == pytest.approx(5)
    assert made.seconds_behind(0, 300, 20) == 0
    assert made.seconds_behind(1, 0, 20) == 0, "there is no such partition"


def test_a_record_from_before_the_first_sample_is_as_old_as_that() -> None:
    assert series((5, [100]), (20, [100])).seconds_behind(0, 10, 20) == 15


def test_an_idle_topic_costs_two_arrays_however_long_it_is_watched() -> None:
    made = series((0, [7]), *((float(at), [7]) for at in range(1, 1000)))
    assert len(made._ends) == 2 and len(made.rates) == POINTS
    made.add(1000, array("q", [17]))
    assert made.seconds_behind(0, 12, 1000) == pytest.approx(0.5)


def test_a_busy_topic_costs_a_bounded_number_of_arrays_that_reach_back() -> None:
    made = series(*((float(at), [at * 10]) for at in range(1000)))
    assert len(made._ends) <= 24 and len(made.rates) == POINTS
    assert made.seconds_behind(0, 9000, 999) == pytest.approx(99, rel=0.1)


def test_a_truncated_log_or_new_partitions_begin_anew() -> None:
    made = series((0, [100]), (10, [200]), (20, [50]))
    assert made.seconds_behind(0, 10, 30) == 10
    made.add(40, array("q", [60, 5]))
    assert made.seconds_behind(0, 10, 50) == 10 and list(made.ends) == [60, 5]


def test_an_end_that_is_not_known_stays_what_it_was() -> None:
    made = series((0, [100, 7]), (10, [-1, 17]))
    assert list(made.ends) == [100, 17] and made.rates[-1] == 1.0
