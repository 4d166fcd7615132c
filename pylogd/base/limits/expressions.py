"""Bound clients' regular expressions: their length, the memory of their programs, and who waits while they match.

Strategy: expressions have RE2's syntax. RE2's engine needs time linear in the text for any expression. This can still
be slow: an expression like `(x?){1000}x` takes 5 ms for a name of 249 characters. So more than a few names are matched
in a thread, a piece at a time, by turns of the clients (`limits.shares`), and matches are kept for the next time. Each
client also has a share of what is kept: no expression is forgotten because another client has many.

Source: KIP-848 and KIP-1152, which name RE2 (its package is google-re2).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred

from pylogd.base.limits.shares import FairWork, Places

#: The longest expression, in characters.
MAX_EXPRESSION: Final = 1024
#: The most memory of a compiled expression, in bytes; larger expressions are refused.
_MOST_MEMORY: Final = 1 << 16
#: Up to this many names are matched without a thread.
_AT_ONCE: Final = 2
#: The seconds of processor time that matching all names may take.
_MOST_SECONDS: Final = 2.0
#: The seconds of processor time that a client has in one turn.
_TURN_SECONDS: Final = 0.05
#: The number of expressions whose matches are kept.
_KEPT: Final = 512
#: The number of matches that are kept, of all expressions together.
_MOST_MATCHES: Final = 200_000


class InvalidExpression(ValueError):
    """An expression is not valid, too large, or can't be matched here. The text is for the client."""


def is_available() -> bool:
    """Return whether the package google-re2 is installed."""
    # It is not imported yet: a broker asks this at its start, and few clients need it.
    return find_spec("re2") is not None


def matching(expression: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names that an expression matches as a whole.

    Raises InvalidExpression, even if matching takes too long.
    """
    found, tried, used = _piece(expression, all_names := list(names), 0, _MOST_SECONDS)
    if tried < len(all_names) or used > _MOST_SECONDS:
        raise _too_slow()
    return frozenset(found)


def _piece(
    expression: str, names: Sequence[str], begin: int, seconds: float = _TURN_SECONDS
) -> tuple[list[str], int, float]:
    """Match names from a position on for some seconds. Return the matches, the next position, and the time used."""
    compiled, found, start = check(expression), [], time.thread_time()
    for position in range(begin, len(names)):
        if compiled.fullmatch(names[position]):
            found.append(names[position])
        used = time.thread_time() - start
        if used > seconds:
            return found, position + 1, used
    return found, len(names), time.thread_time() - start


def _too_slow() -> InvalidExpression:
    return InvalidExpression(f"Matching the regular expression takes more than {_MOST_SECONDS:g} s.")


@lru_cache(maxsize=64)
def check(expression: str) -> Any:
    """Return a compiled expression. Raises InvalidExpression."""
    if len(expression) > MAX_EXPRESSION:
        raise InvalidExpression(f"The regular expression has more than {MAX_EXPRESSION} characters.")
    try:
        import re2  # noqa: PLC0415  # an optional dependency
    except ImportError:
        raise InvalidExpression(
            "The broker can't match regular expressions: it needs the package google-re2."
        ) from None
    options = re2.Options()
    options.max_mem = _MOST_MEMORY
    options.log_errors = False
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        text = error.args[0] if error.args else error
        reason = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
        raise InvalidExpression(f"The regular expression {expression!r} is not valid: {reason}.") from error


class Matches:
    """The matches of expressions among names that sometimes change, such as names of topics.

    One piece of one expression is matched at a time; otherwise clients with slow expressions would take all threads.
    """

    def __init__(self, in_thread: Callable[..., Deferred[Any]], names: Callable[[], Iterable[str]]) -> None:
        """Arguments:

        in_thread: calls a function in a thread.
        names: returns the present names.
        """
        self._names = names
        self._version = 0
        self._current: tuple[int, frozenset[str]] = (-1, frozenset())
        self._found: dict[str, _Found] = {}
        self._kept: Places[str] = Places()  # expressions, by the share of the first client that asked for each
        self._matches = 0  # the number of matches of all expressions that are kept
        self._under_way: dict[tuple[str, str], list[Deferred[None]]] = {}
        self._work = FairWork(in_thread, 1)

    def changed(self) -> None:
        """Match again, since the names have changed."""
        self._version += 1

    def prepare(self, expression: str, share: str = "", *, member: bool = False) -> Deferred[None] | None:
        """Match the new names. Return a Deferred if there are so many that a thread has to do it.

        share: the client's share; clients take turns by their shares.
        member: whether a member of a group asks. Members do not wait for clients that are not members.

        Raises InvalidExpression. The Deferred may fail with it too, and with `limits.shares.Crowded`.
        """
        if expression not in self._found:
            check(expression)
        if len(self._new(expression)) > _AT_ONCE:
            return self._match_once(expression, share, member=member)
        self.find(expression, share)
        return None

    def find(self, expression: str, share: str = "") -> frozenset[str]:
        """Return the names that an expression matches as a whole. Call `prepare` first. Raises InvalidExpression."""
        known = self._found.get(expression, _NOTHING)
        if known.version != self._version:
            names = self._all()
            self._note(expression, share, names, known, matching(expression, names - known.tried))
        return self._found[expression].matching

    def among(self, expression: str, names: Collection[str], share: str = "") -> Deferred[frozenset[str]]:
        """Return a Deferred of the matches among other names, which are not kept. It fails like that of `prepare`."""
        return Deferred.fromCoroutine(self._match(expression, names, share, member=False))

    def _all(self) -> frozenset[str]:
        """Return all names. The same object is returned until they change, so that kept entries take little memory."""
        if self._current[0] != self._version:
            self._current = (self._version, frozenset(self._names()))
        return self._current[1]

    def _new(self, expression: str) -> frozenset[str]:
        known = self._found.get(expression, _NOTHING)
        return frozenset() if known.version == self._version else self._all() - known.tried

    def _match_once(self, expression: str, share: str, *, member: bool) -> Deferred[None]:
        """Match the new names. If this is already under way for the same client, wait for it."""
        key, waiting = (expression, share), Deferred[None]()
        others = self._under_way.get(key)
        if others is not None:
            others.append(waiting)
            return waiting
        self._under_way[key] = [waiting]

        def done(result: Any) -> None:
            for one in self._under_way.pop(key):
                one.callback(result)  # a Failure makes it fail

        Deferred.fromCoroutine(self._match_new(expression, share, member=member)).addBoth(done)
        return waiting

    async def _match_new(self, expression: str, share: str, *, member: bool) -> None:
        new = self._new(expression)
        known = self._found.get(expression, _NOTHING)
        matched = await self._match(expression, new, share, member=member)
        self._note(expression, share, known.tried | new, known, matched)

    async def _match(self, expression: str, names: Collection[str], share: str, *, member: bool) -> frozenset[str]:
        """Match names in turns."""
        found: list[str] = []
        used, position, ordered = 0.0, 0, list(names)
        while position < len(ordered):
            work = self._work.run(share, _piece, expression, ordered, position, remembered=member)
            matched, position, more = await work
            found += matched
            used += more
            if used > _MOST_SECONDS:
                raise _too_slow()
        return frozenset(found)

    def _note(self, expression: str, share: str, names: frozenset[str], before: _Found, new: frozenset[str]) -> None:
        """Remember which of `names` match: the earlier matches, and the new ones."""
        current = self._all()
        is_current = names == current
        found = _Found(
            current if is_current else names, (before.matching & names) | new,
            self._version if is_current else _NOTHING.version,
        )  # fmt: skip
        former = self._found.get(expression)
        if former is None:
            self._kept.enter(expression, share)
        self._matches += len(found.matching) - (0 if former is None else len(former.matching))
        self._found[expression] = found
        while len(self._found) > _KEPT or (self._matches > _MOST_MATCHES and len(self._found) > 1):
            forgotten = self._kept.gives_way()
            if forgotten == expression:  # the newest expression is about to be used
                self._kept.leave(expression)
                forgotten = self._kept.gives_way()
                self._kept.enter(expression, share)
            self._kept.leave(forgotten)
            self._matches -= len(self._found.pop(forgotten).matching)


class _Found(NamedTuple):
    """The names with which an expression was compared, and its matches.

    version: the version of the names, if they are the present ones.
    """

    tried: frozenset[str] = frozenset()
    matching: frozenset[str] = frozenset()
    version: int = -1


_NOTHING: Final = _Found()
