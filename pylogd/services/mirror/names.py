"""Select the topics that a route copies, by the patterns in the file.

Patterns are regular expressions of google-re2, which match in linear time, and have to match a topic's whole name.
Topics that clusters and mirrors keep for themselves are never copied: their names begin with two underscores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

INTERNAL: Final = "__"


class InvalidPattern(ValueError):
    """A pattern is not a regular expression, or can't be matched here."""


class TopicPatterns:
    """The patterns of a route."""

    def __init__(self, include: Sequence[str], exclude: Sequence[str] = ()) -> None:
        """Raises InvalidPattern."""
        self._texts = (tuple(include), tuple(exclude))
        self._include = [_compiled(pattern) for pattern in include]
        self._exclude = [_compiled(pattern) for pattern in exclude]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicPatterns) and self._texts == other._texts

    def __hash__(self) -> int:
        return hash(self._texts)

    def matches(self, topic: str) -> bool:
        """Return whether a topic of this name is copied."""
        if topic.startswith(INTERNAL):
            return False
        return any(p.fullmatch(topic) for p in self._include) and not any(p.fullmatch(topic) for p in self._exclude)

    def select(self, topics: Iterable[str]) -> list[str]:
        """Return the topics that are copied, sorted."""
        return sorted(topic for topic in topics if self.matches(topic))


def _compiled(pattern: str) -> Any:
    try:
        import re2  # noqa: PLC0415  # an optional dependency
    except ImportError:
        raise InvalidPattern(
            "topics are matched with the package google-re2: pip install 'pylogd-broker[mirror]'"
        ) from None
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        text = error.args[0] if error.args else error
        reason = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
        raise InvalidPattern(f"the pattern {pattern!r} is not a regular expression: {reason}") from None
