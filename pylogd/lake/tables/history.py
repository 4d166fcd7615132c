"""Find the commit that loaded a record, to read the table as of that commit.

Must not know: formats.
"""

from __future__ import annotations

from collections.abc import Iterable

from pylogd.lake.tables.interface import Committed


def commit_with(history: Iterable[Committed], topic: str, partition: int, offset: int) -> Committed | None:
    """Return the commit that loaded an offset of a partition; None if the history does not have it.

    An offset of a topic that was deleted and created again may have been loaded twice: then the last commit counts.
    """
    found = None
    for commit in history:
        start = commit.read.start.get((topic, partition))
        if start is not None and start <= offset < commit.read.end[topic, partition]:
            found = commit
    return found
