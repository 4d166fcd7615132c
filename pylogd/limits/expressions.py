"""Bound regular expressions of clients: their length, the memory of their program, and who waits while they match.

Strategy: expressions are in RE2's syntax, whose engine needs time linear in the text, whatever the expression. Linear
can still be slow: 5 ms for a name of 249 characters, as `(x?){1000}x` takes. So more than a few names are matched in a
thread, and what has been found is kept for the next time.

Source: KIP-848 and KIP-1152, which name RE2 (its package is google-re2).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred, DeferredLock

#: The longest expression, in characters.
MAX_EXPRESSION: Final = 1024
#: Most memory of a compiled expression, in bytes: what takes more is refused.
_MOST_MEMORY: Final = 1 << 16
#: So many names are matched without a thread.
_AT_ONCE: Final = 2
#: Processor time that matching all names may take.
_MOST_SECONDS: Final = 2.0
_KEPT: Final = 64


class InvalidExpression(ValueError):
    """An expression that is not valid, too large, or can't be matched here. The text is for the client."""


def is_available() -> bool:
    """Return whether the package google-re2 is installed."""
    return find_spec("re2") is not None  # it is not imported yet: a broker's start asks, and few clients need it


def matching(expression: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names that an expression matches as a whole.

    Raises InvalidExpression, also if matching takes too long.
    """
    compiled = check(expression)
    found, end = [], time.thread_time() + _MOST_SECONDS
    for name in names:
        if compiled.fullmatch(name):
            found.append(name)
        if time.thread_time() > end:
            raise InvalidExpression(f"Matching the regular expression takes more than {_MOST_SECONDS:g} s.")
    return frozenset(found)


@lru_cache(maxsize=_KEPT)
def check(expression: str) -> Any:
    """Return an expression compiled. Raises InvalidExpression."""
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
    """The matches of expressions among names that change at times, such as names of topics.

    Kept are the last expressions that were asked for. One expression is matched at a time, or clients with slow ones
    would take all threads.
    """

    def __init__(self, in_thread: Callable[..., Deferred[Any]], names: Callable[[], Iterable[str]]) -> None:
        """in_thread: calls a function in a thread. names: returns the names as they are now."""
        self._in_thread = in_thread
        self._names = names
        self._version = 0
        self._found: OrderedDict[str, _Found] = OrderedDict()
        self._lock = DeferredLock()

    def changed(self) -> None:
        """Match again: the names have changed."""
        self._version += 1

    def prepare(self, expression: str) -> Deferred[None] | None:
        """Match the new names. Return a Deferred if there are so many that a thread has to do it.

        Raises InvalidExpression, as does the Deferred.
        """
        check(expression)
        if len(self._new(expression)) > _AT_ONCE:
            return self._lock.run(self._match_new, expression)
        self.find(expression)
        return None

    def find(self, expression: str) -> frozenset[str]:
        """Return the names that an expression matches as a whole; call `prepare` before. Raises InvalidExpression."""
        known = self._found.get(expression, _NOTHING)
        if known.version != self._version:
            names = frozenset(self._names())
            self._note(expression, names, known, matching(expression, names - known.tried))
        return self._found[expression].matching

    def among(self, expression: str, names: Collection[str]) -> Deferred[frozenset[str]]:
        """Return a Deferred of the matches among other names. These matches are not kept."""
        return self._lock.run(self._in_thread, matching, expression, names)

    def _new(self, expression: str) -> frozenset[str]:
        known = self._found.get(expression, _NOTHING)
        return frozenset() if known.version == self._version else frozenset(self._names()) - known.tried

    async def _match_new(self, expression: str) -> None:
        new = self._new(expression)
        if len(new) > _AT_ONCE:  # else another client has waited for the same
            known = self._found.get(expression, _NOTHING)
            matched = await self._in_thread(matching, expression, new)
            self._note(expression, known.tried | new, known, matched)

    def _note(self, expression: str, names: frozenset[str], before: _Found, new: frozenset[str]) -> None:
        """Remember what matches of `names`: what did before, and the new ones."""
        current = names == frozenset(self._names())
        self._found[expression] = _Found(
            names, (before.matching & names) | new, self._version if current else _NOTHING.version
        )
        self._found.move_to_end(expression)
        if len(self._found) > _KEPT:
            self._found.popitem(last=False)


class _Found(NamedTuple):
    """The names that an expression was compared with, and its matches.

    version: the version of the names, if current.
    """

    tried: frozenset[str] = frozenset()
    matching: frozenset[str] = frozenset()
    version: int = -1


_NOTHING: Final = _Found()
