"""Mask data that users must not see: whole values of some topics, or fields of values.

Rules: masked data never leaves the console's process: pages, exports and filters get the masked value. A value that
lacks a rule's field, or can't be decoded, is masked whole, since its contents are unknown. So is a part of a value that
should have the field, such as a `card` without a `number`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

MASK: Final = "***"


class MaskingRule(NamedTuple):
    """A rule for the topics that match a shell's pattern. It masks fields by paths such as `card.number`; empty masks
    the value.
    """

    topics: str
    fields: tuple[str, ...] = ()


class Masking:
    """The masking rules of a configuration: which fields of which topics are shown as stars."""

    def __init__(self, rules: Sequence[MaskingRule] = ()) -> None:
        self._rules = tuple(rules)

    def concerns(self, topic: str) -> bool:
        """Return whether there is a rule for this topic."""
        return any(fnmatchcase(topic, rule.topics) for rule in self._rules)

    def apply(self, topic: str, value: Any) -> Any:
        """Return a decoded value without its masked parts. The argument is not changed."""
        rules = [rule for rule in self._rules if fnmatchcase(topic, rule.topics)]
        if not rules or value is None:
            return value
        if any(not rule.fields for rule in rules) or not isinstance(value, dict | list):
            return MASK
        for rule in rules:
            for field in rule.fields:
                value = _masked(value, field.split("."))
        return value


def _masked(value: Any, path: Sequence[str]) -> Any:
    """Return a copy of a decoded value in which one field is replaced by `MASK`.

    path: the names that lead to the field. A list on the way means each of its elements. A part that should have the
    field and does not is replaced whole; null stays, since it has no contents.
    """
    if value is None:
        return None
    if isinstance(value, list):
        return [_masked(one, path) for one in value]
    if not isinstance(value, dict) or path[0] not in value:
        return MASK
    return {
        name: (MASK if len(path) == 1 else _masked(one, path[1:])) if name == path[0] else one
        for name, one in value.items()
    }
