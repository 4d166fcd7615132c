"""The pure parts of limits: budgets of answers, bounds of elements, log lines."""

from __future__ import annotations

from pylogd.limits.answers import AnswerBudget
from pylogd.limits.elements import NARROW, ElementBounds
from pylogd.limits.lines import LineLimit
from pylogd.wire.messages import APIS


def test_a_budget_is_spent_and_not_overdrawn() -> None:
    budget = AnswerBudget(100)
    assert budget.take(60)
    assert not budget.take(41)
    assert budget.take(40)
    assert (budget.spent, budget.take(1)) == (100, False)
    assert "100 bytes (response.max.bytes" in budget.refusal


def test_narrow_bounds_are_of_apis_and_below_the_general_one() -> None:
    assert set(NARROW) <= set(APIS)
    bounds = ElementBounds(50_000)
    assert all(bounds.of(key) == most < 50_000 for key, most in NARROW.items())
    assert bounds.of(3) == 50_000
    assert all(ElementBounds(500).of(key) == 500 for key in APIS)


def test_lines_of_a_flood_are_counted_instead_of_logged() -> None:
    now = 0.0
    lines = LineLimit(lambda: now, most=2, period=60.0)
    assert [lines.admit() for _ in range(5)] == [0, 0, None, None, None]
    now = 59.9
    assert lines.admit() is None
    now = 60.0
    assert [lines.admit() for _ in range(3)] == [4, 0, None]
