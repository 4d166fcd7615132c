"""Determine the offsets that a batch query has to read, from the filters that Spark pushes down.

Strategy: the topic and the partition are the same for all records of a partition, so any filter on them is decided for
the whole partition. Filters on the offset bound the range. A time stamp only moves the start: all records before the
first record with a late enough time stamp are earlier, but later records may be in any order.

Rules: `take` returns True only if the filter is true for all remaining records; else Spark applies the filter again.
Conditions are true, false or null as in SQL; rows for which a condition is null are left out. Must not know: brokers,
ranges.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

_COMPARISONS: Final[Mapping[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    StringContains: operator.contains,
    StringEndsWith: str.endswith,
    StringStartsWith: str.startswith,
}
_OF_PARTITION: Final = ("topic", "partition")
_NEVER_NULL: Final = (*_OF_PARTITION, "offset", "timestampType")


@dataclass(slots=True)
class Filters:
    """The result of a query's filters: offsets from `first` up to, but not including, `end`, of some partitions.

    since_ms: the least time stamp, in milliseconds since 1970.
    """

    first: int = 0
    end: int | None = None
    since_ms: int | None = None
    _of_partition: list[tuple[str, Filter]] = field(default_factory=list)

    def keeps(self, topic: str, partition: int) -> bool:
        """Return whether records of a partition may pass the filters."""
        constant: dict[str, str | int] = {"topic": topic, "partition": partition}
        return all(_holds(given, constant[column]) for column, given in self._of_partition)

    def take(self, given: Filter) -> bool:
        """Narrow the partitions and offsets to read. Return whether Spark need not apply the filter again."""
        column = _column(given)
        if column in _NEVER_NULL and isinstance(given, IsNotNull):
            return True
        if column in _OF_PARTITION:
            if not _is_known(given):
                return False
            self._of_partition.append((column, given))
            return True
        if column == "offset":
            return self._take_offset(given)
        if column == "timestamp":
            self._take_time(given)
        return False

    def _take_offset(self, given: Filter) -> bool:
        if isinstance(given, In):
            offsets = [each for each in given.value if isinstance(each, int)]
            self._bound(min(offsets, default=0), max(offsets, default=-1) + 1)
            return False  # Spark filters the offsets between these
        value = getattr(given, "value", None)
        if not isinstance(value, int):
            return False
        if isinstance(given, EqualTo | EqualNullSafe):
            self._bound(value, value + 1)
        elif isinstance(given, GreaterThan | GreaterThanOrEqual):
            self._bound(value + isinstance(given, GreaterThan), None)
        elif isinstance(given, LessThan | LessThanOrEqual):
            self._bound(0, value + isinstance(given, LessThanOrEqual))
        else:
            return False
        return True

    def _bound(self, first: int, end: int | None) -> None:
        self.first = max(self.first, first)
        if end is not None:
            self.end = end if self.end is None else min(self.end, end)

    def _take_time(self, given: Filter) -> None:
        if isinstance(given, In):
            times = [each for each in given.value if isinstance(each, datetime)]
        elif isinstance(given, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
            times = [given.value] if isinstance(given.value, datetime) else []
        else:
            return
        if times:
            self.since_ms = max(int(min(times).timestamp() * 1000), self.since_ms or 0)


def _column(given: Filter) -> str:
    """Return the name of a filter's column; "" for a field within a column."""
    while isinstance(given, Not):
        given = given.child
    path: tuple[str, ...] = getattr(given, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _is_known(given: Filter) -> bool:
    while isinstance(given, Not):
        given = given.child
    return isinstance(given, EqualNullSafe | In | IsNull | IsNotNull) or type(given) in _COMPARISONS


def _holds(given: Filter, value: str | int) -> bool | None:
    """Return the value of a filter for a value that is not null: true, false, or None for null."""
    if isinstance(given, Not):
        holds = _holds(given.child, value)
        return None if holds is None else not holds
    if isinstance(given, IsNull | IsNotNull):
        return isinstance(given, IsNotNull)
    if isinstance(given, EqualNullSafe):
        return bool(given.value == value)
    if isinstance(given, In):
        return True if value in given.value else None if None in given.value else False
    other = given.value  # type: ignore[attr-defined]  # of every filter in `_COMPARISONS`
    return None if other is None else _COMPARISONS[type(given)](value, other)
