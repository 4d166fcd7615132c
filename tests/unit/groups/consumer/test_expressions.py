"""Topics by regular expressions: whole names, in bounded time and memory."""

from __future__ import annotations

import sys

import pytest

from pylogd.errors import ErrorCode
from pylogd.groups.consumer.expressions import MAX_EXPRESSION, matching
from pylogd.groups.consumer.heartbeats import HeartbeatRefused


def test_whole_names_are_matched() -> None:
    assert matching("a.*", ["a", "ab", "ba"]) == {"a", "ab"}
    assert matching("(a+)+$", ["a" * 200 + "b"]) == frozenset(), "a backtracking engine would never end"


@pytest.mark.parametrize("expression", ["(", "a{1000}{1000}", "(?=a)", "x" * (MAX_EXPRESSION + 1), "\\1"])
def test_expressions_that_are_refused(expression: str) -> None:
    with pytest.raises(HeartbeatRefused) as caught:
        matching(expression, ["a"])
    assert caught.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(HeartbeatRefused, match="google-re2"):
        matching("never compiled before", ["a"])
