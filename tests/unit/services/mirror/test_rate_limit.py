"""A limit of bytes per second is exact on average, whatever the sizes are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.services.mirror.feeds import ByteRateLimit


def test_without_a_limit_nothing_waits() -> None:
    throttle = ByteRateLimit(0)
    throttle.used(1 << 40, 1.0)
    assert throttle.wait(1.0) == 0.0


def test_a_debt_is_paid_off_by_time() -> None:
    throttle = ByteRateLimit(100)
    throttle.wait(1000.0)
    throttle.used(400, 1000.0)  # of which a second's worth was saved up
    assert throttle.wait(1000.0) == pytest.approx(3.0)
    assert throttle.wait(1002.0) == pytest.approx(1.0)
    assert throttle.wait(1003.0) == pytest.approx(0.0, abs=1e-9)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=50))
def test_the_average_is_the_limit(sizes: list[int]) -> None:
    throttle, now = ByteRateLimit(1000), 5.0
    throttle.wait(now)
    for size in sizes:
        now += throttle.wait(now)
        throttle.used(size, now)
    now += throttle.wait(now)
    assert now - 5.0 >= sum(sizes) / 1000 - 1.0 - 1e-6
    assert now - 5.0 <= sum(sizes) / 1000 + 1e-6
