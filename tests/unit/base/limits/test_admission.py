"""A limit on how often something is admitted: its rate, in every part of the time, however the attempts come."""

from __future__ import annotations

from bisect import bisect_left
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.base.limits.admission import AdmissionRate


def admitted(limit: float, wanted: float, seconds: float, jitter: float) -> list[float]:
    """Return when attempts were admitted that come `wanted` times a second. jitter: the part by which times differ."""
    rate, chance, now, times = AdmissionRate(), Random(1), 1000.0, []
    while now < 1000.0 + seconds:
        if rate.admit(limit, now):
            times.append(now - 1000.0)
        now += (1 + jitter * chance.uniform(-1, 1)) / wanted
    return times


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("limit", "wanted"), [(1, 5), (3, 7), (10, 14), (10, 40), (10, 1000), (100, 400)])
def test_an_address_that_always_wants_more_connections_has_its_quota(
    limit: float, wanted: float, jitter: float
) -> None:
    """In 22 seconds, which are two times all windows, in five minutes, and in every part of these."""
    times = admitted(limit, wanted, 300, jitter)
    assert len(times) / 300 == pytest.approx(limit, rel=0.02)
    for start in range(279):
        found = bisect_left(times, start + 22) - bisect_left(times, start)
        assert abs(found - 22 * limit) <= max(0.02 * 22 * limit, 1.5)


@given(
    gaps=st.lists(st.sampled_from([0.0, 0.001, 0.09, 0.1, 0.3, 0.999, 1.0, 2.5, 30.0]), max_size=200),
    limit=st.integers(1, 20),
)
def test_no_time_has_more_connections_than_the_quota_of_one_window_beyond_it(gaps: list[float], limit: int) -> None:
    rate, now, times = AdmissionRate(), 0.0, []
    for gap in gaps:
        now += gap
        if rate.admit(limit, now):
            times.append(now)
    for first, last in combinations(range(len(times)), 2):
        assert last - first + 1 <= limit * (times[last] - times[first] + 1) + 1.001


def test_an_address_without_connections_is_idle_after_a_window() -> None:
    rate = AdmissionRate()
    assert rate.idle(0.0)
    assert [rate.admit(2, 10.0) for _ in range(3)] == [True, True, False]
    assert not rate.idle(11.9)
    assert rate.idle(12.0)
    assert [rate.admit(2, 12.0) for _ in range(3)] == [True, True, False]


def test_the_delay_is_the_time_until_one_more_is_admitted() -> None:
    rate = AdmissionRate()
    for _ in range(10):
        assert rate.delay(10, 100.0) == 0.0
        rate.take(10, 100.0)
    assert rate.delay(10, 100.0) == pytest.approx(1.0)
    assert rate.delay(10, 100.9) == pytest.approx(0.1)
    assert rate.delay(10, 101.0) == 0.0
    assert rate.delay(2**31 - 1, 101.0) == 0.0
    rate.take(10, 101.0)
    assert not rate.admit(10, 101.05)
    assert rate.delay(10, 101.05) == pytest.approx(0.05)
