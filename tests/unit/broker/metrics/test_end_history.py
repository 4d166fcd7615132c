"""How long ago a record was appended, from samples of the log end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.broker.metrics.group_lag import EndHistory


def history(*samples: tuple[float, int]) -> EndHistory:
    made = EndHistory()
    for now, end in samples:
        made.add(now, end)
    return made


def test_a_group_at_the_end_is_not_behind() -> None:
    assert history((0, 100), (10, 200)).seconds_behind(200, 15) == 0
    assert EndHistory().seconds_behind(5, 15) == 0


def test_the_time_of_a_record_is_interpolated() -> None:
    found = history((0, 100), (10, 200))
    assert found.seconds_behind(100, 15) == pytest.approx(15)
    assert found.seconds_behind(150, 15) == pytest.approx(10)


def test_a_quiet_time_does_not_count_as_one_of_appends() -> None:
    """Records that come after an hour of silence are as old as the last sample without them."""
    found = history((0, 100), *((float(at), 100) for at in range(10, 3600, 10)), (3600, 200))
    assert found.seconds_behind(100, 3605) == pytest.approx(15)


def test_before_the_first_sample_nothing_is_known() -> None:
    assert history((50, 100)).seconds_behind(10, 80) == 30


def test_a_truncated_log_begins_anew() -> None:
    assert history((0, 100), (10, 50), (20, 60)).seconds_behind(50, 25) == pytest.approx(15)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=400))
def test_the_size_is_bounded_and_the_error_is_that_of_the_samples_kept(steps: list[int]) -> None:
    found, end = EndHistory(), 0
    for at, step in enumerate(steps):
        end += step
        found.add(float(at), end)
    assert len(found._times) == len(found._ends) <= 24
    now = float(len(steps))
    behind = [found.seconds_behind(offset, now) for offset in range(0, end + 1, max(end // 50, 1))]
    assert behind == sorted(behind, reverse=True)
    assert all(0 <= seconds <= now for seconds in behind)
