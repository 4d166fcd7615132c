"""Topics by a regular expression, in RE2's syntax: matching takes time linear in the names, whatever the expression.

Source: KIP-848, which names RE2 (its package is google-re2) because it can be neither slow nor deep.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from pylogd.errors import ErrorCode
from pylogd.groups.consumer.heartbeats import HeartbeatRefused

#: The longest expression, in characters.
MAX_EXPRESSION: Final = 1024
#: Most memory of a compiled expression, in bytes: what takes more is refused.
_MOST_MEMORY: Final = 1 << 20


def matching(expression: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names that an expression matches as a whole. Raises HeartbeatRefused."""
    compiled = _compiled(expression)
    return frozenset(name for name in names if compiled.fullmatch(name))


@lru_cache(maxsize=64)
def _compiled(expression: str) -> Any:
    if len(expression) > MAX_EXPRESSION:
        raise _refused(f"The regular expression has more than {MAX_EXPRESSION} characters.")
    try:
        import re2  # noqa: PLC0415  # an optional dependency
    except ImportError as error:
        raise _refused("The broker can't match regular expressions: it needs the package google-re2.") from error
    options = re2.Options()
    options.max_mem = _MOST_MEMORY
    options.log_errors = False
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        text = error.args[0] if error.args else error
        reason = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
        raise _refused(f"The regular expression {expression!r} is not valid: {reason}.") from error


def _refused(text: str) -> HeartbeatRefused:
    return HeartbeatRefused(ErrorCode.INVALID_REGULAR_EXPRESSION, text)
