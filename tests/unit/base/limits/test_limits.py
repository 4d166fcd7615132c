"""Budgets of responses, and bounds on elements, without a broker."""

from __future__ import annotations

from pylogd.base.limits.answers import AnswerBudget
from pylogd.base.limits.elements import NARROW, ElementBounds
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
