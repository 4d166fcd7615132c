"""Find which of many filters selects an ACL, without comparing the ACL with each of them.

Strategy: filters that compare the same fields are kept in one table, by the values that they want. So an ACL takes one
look-up for each set of compared fields, of which there are at most 128, however many filters there are. Filters of the
pattern type MATCH also select by prefixes, and are compared one by one, so a request may have only a few of them.

Must not know: requests, where ACLs are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import compress
from typing import Any, Final, TypeAlias

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.broker.security.acls import AclBinding, AclEntry, AclFilter, PatternType, Permission, ResourcePattern
from pylogd.broker.security.authorizer import AclOperation, ResourceType

#: The most filters of the pattern type MATCH, with different values, in one request.
MOST_MATCHING: Final = 100

_ANY: Final = (ResourceType.ANY, None, PatternType.ANY, None, None, AclOperation.ANY, Permission.ANY)
_PATTERN_FIELDS: Final = 3  # the number of filter fields about the pattern; they come first

#: For each field, whether it is compared.
_Fields: TypeAlias = tuple[bool, ...]


class FilterTable:
    """Many filters, each identified by its position in the request."""

    def __init__(self, filters: Iterable[AclFilter] = ()) -> None:
        """Raises KafkaError(INVALID_REQUEST) for too many filters of the pattern type MATCH."""
        self._count = 0
        self._tables: dict[_Fields, dict[tuple[Any, ...], int]] = {}
        self._patterns: dict[_Fields, set[tuple[Any, ...]]] = {}
        self._matching: dict[AclFilter, int] = {}
        for one in filters:
            self.add(one)

    def add(self, one: AclFilter) -> None:
        """Add a filter at the end. Raises the errors of the constructor."""
        place, self._count = self._count, self._count + 1
        if one.pattern is PatternType.MATCH and one.name is not None:
            self._matching.setdefault(one, place)
            if len(self._matching) > MOST_MATCHING:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"A request may have at most {MOST_MATCHING} filters of the pattern type MATCH with a name.",
                )
            return
        if one.pattern is PatternType.MATCH:  # without a name it selects the same as ANY
            one = one._replace(pattern=PatternType.ANY)
        fields = tuple(value != free for value, free in zip(one, _ANY, strict=True))
        self._tables.setdefault(fields, {}).setdefault(tuple(compress(one, fields)), place)
        compared = fields[:_PATTERN_FIELDS]
        self._patterns.setdefault(compared, set()).add(tuple(compress(one, compared)))

    def may_select(self, pattern: ResourcePattern) -> bool:
        """Return whether a filter selects ACLs of a pattern, if they have the right entries."""
        return any(tuple(compress(pattern, fields)) in wanted for fields, wanted in self._patterns.items()) or any(
            one.matches_pattern(pattern) for one in self._matching
        )

    def first(self, pattern: ResourcePattern, entry: AclEntry) -> int | None:
        """Return the position of the first filter that selects an ACL, None if none does."""
        return min(self._found(pattern, entry), default=None)

    def _found(self, pattern: ResourcePattern, entry: AclEntry) -> Iterator[int]:
        values = (*pattern, str(entry.principal), *entry[1:])
        for fields, table in self._tables.items():
            place = table.get(tuple(compress(values, fields)))
            if place is not None:
                yield place
        for one, place in self._matching.items():
            if one.matches(AclBinding(pattern, entry)):
                yield place
