"""The errors of tables of all formats."""

from __future__ import annotations

from pylogd.base.errors import PylogdError


class TableError(PylogdError):
    """A table is damaged, its catalog or file system failed, or it is not a table of pylogd."""


class CommitConflict(TableError):
    """Another process has committed meanwhile, and this commit can't follow that one. Nothing was added."""


class OffsetsMoved(CommitConflict):
    """Another loader has loaded the same partition, or its recreated topic, since this load was planned."""

    def __init__(self, what: tuple[str, int | None], planned: object, now: object) -> None:
        topic, partition = what
        if partition is None:
            moved = f"the table has another topic {topic!r} now: its topic id was {planned} and is {now}"
        else:
            moved = f"the table has {topic}-{partition} up to {now} now, and had it up to {planned}"
        super().__init__(f"another loader has committed meanwhile: {moved}. Nothing was added; run the loader again")


class LayoutChanged(TableError):
    """A table was opened with another layout than it was made with."""

    def __init__(self, location: str, setting: str, table: object, given: object) -> None:
        super().__init__(
            f"the table {location} was made with {setting}={table}, which can't be changed to {given}: omit the "
            "option, or load into another table"
        )
