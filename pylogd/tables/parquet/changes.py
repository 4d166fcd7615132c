"""The changes that can be committed to a lake: loads and compactions. Each plans its commit again after others'
commits.

A change is planned on a commit. If others have committed since, the change either contradicts them, or is as good after
them (it is rebased): a load contradicts loads of the same partitions, a compaction the compactions of the same files.
Must not know: file systems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Protocol

import pyarrow as pa

from pylogd.tables.errors import CommitConflict
from pylogd.tables.interface import Layout
from pylogd.tables.parquet.commits import (
    Commit,
    DataFile,
    columns_of,
    encode_columns,
    layout_of,
    position_fields,
    position_of,
)
from pylogd.tables.parquet.evolution import evolved
from pylogd.tables.position import LoadRange, Position, nested


class Change(Protocol):
    """Something to commit."""

    def after(self, last: Commit | None, since: Sequence[Commit]) -> Commit:
        """Return the commit of this change after `last`. since: the commits that were not known when it was planned.

        Raises CommitConflict if it contradicts them.
        """


@dataclass(frozen=True, slots=True)
class Load:
    """A load that was planned at the position `expected`. Its files are in staging.

    columns: those of a typed table, encoded, which the lake's first commit records. location: the lake, for errors.
    """

    expected: Position
    loading: LoadRange
    added: Sequence[DataFile]
    quarantined: Sequence[DataFile]
    at_ms: int
    layout: Layout
    columns: str | None = None
    location: str = ""

    def after(self, last: Commit | None, since: Sequence[Commit]) -> Commit:
        """Return its commit. Raises OffsetsMoved if a partition that it read has moved, and LayoutChanged.

        Raises CommitConflict if another process made the lake meanwhile with other columns.
        """
        recorded = layout_of(last)
        if recorded is not None:
            self.layout.check(self.location, recorded)
        position = position_of(last)
        position.check(self.expected, self.loading)
        if self.columns is not None and since and since[0].number == 1 and since[-1].columns != self.columns:
            raise CommitConflict("another process made the lake meanwhile, with other columns")
        return Commit(
            1 if last is None else last.number + 1,
            "load",
            self.at_ms,
            **position_fields(position.after(self.loading)),
            read=nested(self.loading.read),
            added=tuple(self.added),
            quarantined=tuple(self.quarantined),
            layout=asdict(self.layout),
            columns=last.columns if last else self.columns,
        )


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files that a compaction replaces by others. attempt: the attempt that wrote `added`."""

    attempt: str
    added: Sequence[DataFile]
    removed: Sequence[DataFile]


class GroupsReplaced(CommitConflict):
    """Other compactions have replaced files of some groups. groups: these."""

    def __init__(self, groups: Sequence[FileGroup]) -> None:
        paths = [group.removed[0].path for group in groups]
        super().__init__(
            f"another process has compacted {len(groups)} of the same directories meanwhile, such as that of {paths[0]}"
        )
        self.groups = groups


@dataclass(frozen=True, slots=True)
class Compaction:
    """Groups of files to replace. It does not change where the lake is."""

    groups: Sequence[FileGroup]
    at_ms: int

    def after(self, last: Commit | None, since: Sequence[Commit]) -> Commit:
        """Return its commit. Raises GroupsReplaced if a file that it replaces has been replaced meanwhile."""
        gone = {path for commit in since for path in commit.removed}
        replaced = [group for group in self.groups if any(file.path in gone for file in group.removed)]
        if replaced:
            raise GroupsReplaced(replaced)
        if last is None:
            raise CommitConflict("a lake without commits has nothing to compact")
        return replace(
            last,
            number=last.number + 1,
            kind="compaction",
            at_ms=self.at_ms,
            read={},
            added=tuple(file for group in self.groups for file in group.added),
            removed=tuple(file.path for group in self.groups for file in group.removed),
            quarantined=(),
        )


@dataclass(frozen=True, slots=True)
class Evolution:
    """New columns of a typed table, or wider types. It does not change where the lake is, nor its files."""

    columns: pa.Schema
    at_ms: int

    def after(self, last: Commit | None, since: Sequence[Commit]) -> Commit:
        """Return its commit. Raises TableError if a column can't be changed."""
        if last is None:
            raise CommitConflict("a lake without commits has no columns to change")
        before = columns_of(last)
        now = evolved(pa.schema([]) if before is None else before, self.columns)
        return replace(
            last,
            number=last.number + 1,
            kind="columns",
            at_ms=self.at_ms,
            read={},
            added=(),
            removed=(),
            quarantined=(),
            columns=encode_columns(now),
        )
