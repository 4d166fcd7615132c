"""The lag of a group as `pylogd groups describe` adds it up: unknown lags are not 0."""

from __future__ import annotations

from typing import Any

import pytest

from pylogd.cli.groups import _total, total_lag


def rows(*lags: int | None) -> list[dict[str, Any]]:
    return [{"lag": lag} for lag in lags]


@pytest.mark.parametrize(
    ("lags", "total", "text"),
    [
        ((), (0, 0), "lag 0"),
        ((100, 20, 0), (120, 0), "lag 120"),
        ((100, None, 20, None), (120, 2), "lag 120, 2 partitions unknown"),
        ((0, None), (0, 1), "lag 0, 1 partition unknown"),
        ((None, None), (None, 2), "lag unknown"),
    ],
)
def test_lags_that_are_not_known_are_counted_beside_the_sum(
    lags: tuple[int | None, ...], total: tuple[int | None, int], text: str
) -> None:
    assert total_lag(rows(*lags)) == total
    assert _total(rows(*lags)) == text
