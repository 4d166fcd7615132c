"""Regular expressions of clients: whole names, in bounded time and memory, and most of them in a thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, execute
from twisted.trial.unittest import SynchronousTestCase

from pylogd.base.limits import expressions
from pylogd.base.limits.expressions import MAX_EXPRESSION, InvalidExpression, Matches, matching

CASE = SynchronousTestCase()


class Threads:
    """Calls that wait for a thread. tried: how many names each of those made tried."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Deferred[Any], Callable[..., Any], tuple[Any, ...]]] = []
        self.tried: list[int] = []

    def call(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        deferred: Deferred[Any] = Deferred()
        self.waiting.append((deferred, function, arguments))
        return deferred

    def run(self) -> None:
        waiting, self.waiting = self.waiting, []
        for deferred, function, arguments in waiting:
            self.tried.append(len(arguments[1]))
            execute(function, *arguments).chainDeferred(deferred)


def test_whole_names_are_matched() -> None:
    assert matching("a.*", ["a", "ab", "ba"]) == {"a", "ab"}
    assert matching("(a+)+$", ["a" * 200 + "b"]) == frozenset(), "a backtracking engine would never end"


@pytest.mark.parametrize("expression", ["(", "a{1000}{1000}", "(?=a)", "x" * (MAX_EXPRESSION + 1), "\\1", "\\pL{400}"])
def test_expressions_that_are_refused(expression: str) -> None:
    with pytest.raises(InvalidExpression):
        matching(expression, ["a"])
    with pytest.raises(InvalidExpression):
        Matches(Threads().call, lambda: ["a"]).prepare(expression)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    assert not expressions.is_available()
    with pytest.raises(InvalidExpression, match="google-re2"):
        matching("never compiled before", ["a"])


def test_an_expression_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "_MOST_SECONDS", -1.0)
    with pytest.raises(InvalidExpression, match="takes more than"):
        matching("a.*", ["a"])


def test_many_names_are_matched_in_a_thread_and_then_only_new_ones() -> None:
    threads, names = Threads(), [f"topic-{number}" for number in range(100)]
    matches = Matches(threads.call, lambda: names)
    waiting = matches.prepare(".*-[0-4]")
    assert waiting is not None
    CASE.assertNoResult(waiting)
    threads.run()
    CASE.successResultOf(waiting)
    assert matches.find(".*-[0-4]") == {f"topic-{number}" for number in range(5)}
    assert matches.prepare(".*-[0-4]") is None
    names[:] = [*names[2:], "new-1"]
    matches.changed()
    assert matches.prepare(".*-[0-4]") is None, "a single name does not need a thread"
    assert matches.find(".*-[0-4]") == {"topic-2", "topic-3", "topic-4", "new-1"}
    assert threads.tried == [100]
    names += [f"more-{number}" for number in range(10)]
    matches.changed()
    again = matches.prepare(".*-[0-4]")
    threads.run()
    assert again is not None
    CASE.successResultOf(again)
    assert threads.tried == [100, 10]
    assert "more-4" in matches.find(".*-[0-4]")


def test_one_expression_at_a_time_and_each_once() -> None:
    threads, names = Threads(), [f"topic-{number}" for number in range(100)]
    matches = Matches(threads.call, lambda: names)
    waiting = [one for expression in ("a", "a", "b") if (one := matches.prepare(expression)) is not None]
    assert len(threads.waiting) == 1
    threads.run()
    for one in waiting[:2]:
        CASE.successResultOf(one)
    CASE.assertNoResult(waiting[2])
    threads.run()
    CASE.successResultOf(waiting[2])
    assert threads.tried == [100, 100]


def test_names_that_change_while_they_are_matched() -> None:
    threads, names = Threads(), [f"topic-{number}" for number in range(100)]
    matches = Matches(threads.call, lambda: names)
    waiting = matches.prepare(".*9")
    names[:] = [*names[:50], "topic-99999"]
    matches.changed()
    threads.run()
    assert waiting is not None
    CASE.successResultOf(waiting)
    assert matches.find(".*9") == {"topic-9", "topic-19", "topic-29", "topic-39", "topic-49", "topic-99999"}


def test_a_failure_does_not_stop_others(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, names = Threads(), [f"topic-{number}" for number in range(100)]
    matches = Matches(threads.call, lambda: names)
    slow, other = matches.prepare("a.*"), matches.prepare("b.*")
    assert slow is not None
    assert other is not None
    with monkeypatch.context() as patched:
        patched.setattr(expressions, "_MOST_SECONDS", -1.0)
        threads.run()
    CASE.failureResultOf(slow, InvalidExpression)
    threads.run()
    CASE.successResultOf(other)


def test_few_expressions_are_kept() -> None:
    threads = Threads()
    matches = Matches(threads.call, lambda: ["a", "b"])
    for number in range(1000):
        assert matches.find(f"a|x{number}") == {"a"}
    assert len(matches._found) == expressions._KEPT and matches._matches == expressions._KEPT
    found = matches.among("a.*", ["ab", "cd"])
    threads.run()
    assert CASE.successResultOf(found) == {"ab"}


class Turns(Threads):
    """Calls that are made one by one. made: the expressions of the calls so far."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    def turn(self) -> None:
        deferred, function, arguments = self.waiting.pop(0)
        self.made.append(arguments[0])
        execute(function, *arguments).chainDeferred(deferred)


def test_a_slow_expression_is_matched_in_turns_with_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,500 topics and slow expressions held one lock, and other groups' heartbeats waited for 154 s."""
    monkeypatch.setattr(expressions, "_TURN_SECONDS", 0.0)  # a name each
    monkeypatch.setattr(expressions._piece, "__defaults__", (0.0,))
    threads, names = Turns(), [f"topic-{number}" for number in range(50)]
    matches = Matches(threads.call, lambda: names)
    for number in range(20):
        matches.prepare(f"slow{number}.*", "crowd")
    other = matches.prepare("topic-1", "other")
    assert other is not None
    while not other.called:
        threads.turn()
    assert threads.made.count("topic-1") == 50
    assert len(threads.made) <= 101, "every other turn is the client's"
    assert matches.find("topic-1") == {"topic-1"}


def test_an_expression_of_a_member_goes_before_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, names = Turns(), [f"topic-{number}" for number in range(50)]
    matches = Matches(threads.call, lambda: names)
    for number in range(100):
        matches.prepare(f"{number}.*", f"stranger-{number}")
    member = matches.prepare("topic-.*", "member", member=True)
    threads.turn()
    threads.turn()
    assert member is not None and member.called


def test_many_expressions_of_one_client_do_not_make_others_be_forgotten() -> None:
    matches = Matches(Threads().call, lambda: ["a", "b"])
    matches.find("a", "quiet")
    for number in range(2 * expressions._KEPT):
        matches.find(f"a|x{number}", "crowd")
    assert "a" in matches._found and len(matches._found) == expressions._KEPT


def test_what_is_kept_of_all_expressions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "_MOST_MATCHES", 5)
    matches = Matches(Threads().call, lambda: ["a", "b"])
    for number in range(10):
        assert matches.find(f"a|b|x{number}") == {"a", "b"}
    assert matches._matches == 4 and len(matches._found) == 2
