"""Compare a copy of a partition with its source."""

from __future__ import annotations

from collections import Counter

#: (offset, value), in order
Rows = list[tuple[int, bytes]]


def compare(index: int, source: Rows, target: Rows) -> list[str]:
    """Return what is wrong with the copy of a partition: missing, there twice, or in another order."""
    there, copied = Counter(value for _, value in source), Counter(value for _, value in target)
    faults = [f"partition {index}: {value!r} was not copied" for value in (there - copied)]
    faults += [f"partition {index}: {value!r} was copied {copied[value]} times" for value in (copied - there)]
    if not faults and [value for _, value in source] != [value for _, value in target]:
        faults = [f"partition {index}: the copy is in another order"]
    return faults[:5]
