"""The changes that can be committed to a lake, such as loads and compactions. Each can be planned again after other
commits.

A change is planned on a commit. If there are later commits, the change either contradicts them or can follow them (it
is rebased). A load contradicts loads of the same partitions, a compaction contradicts compactions of the same files.
Must not know: file systems.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Protocol

import pyarrow as pa

from pylogd.lake.tables.checks import WIDER
from pylogd.lake.tables.errors import CommitConflict, TableError
from pylogd.lake.tables.interface import Layout
from pylogd.lake.tables.parquet.commits import (
    Commit,
    DataFile,
    columns_of,
    encode_columns,
    layout_of,
    position_of,
)
from pylogd.lake.tables.position import LoadRange, Position, nested


class Change(Protocol):
    """A change of the lake that can be committed."""

    def after(self, last: Commit | None, since: Sequence[Commit]) -> Commit:
        """Return the commit of this change after `last`.

        since: the commits that were not known when the change was planned.

        Raises CommitConflict if the change contradicts them.
        """


@dataclass(frozen=True, slots=True)
class Load:
    """A load that was planned at the position `expected`. Its files are in staging.

    columns: the encoded columns of a typed table, which the lake's first commit records.
    location: the lake, for errors.
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
        """Return the load's commit. Raises OffsetsMoved if a partition that it read has moved, and LayoutChanged.

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
            **position.after(self.loading).as_document(),
            read=nested(self.loading.read),
            added=tuple(self.added),
            quarantined=tuple(self.quarantined),
            layout=asdict(self.layout),
            columns=last.columns if last else self.columns,
        )


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files that a compaction replaces by new files.

    attempt: the attempt that wrote `added`.
    """

    attempt: str
    added: Sequence[DataFile]
    removed: Sequence[DataFile]


class GroupsReplaced(CommitConflict):
    """Other compactions have replaced files of some groups.

    groups: these groups.
    """

    def __init__(self, groups: Sequence[FileGroup]) -> None:
        paths = [group.removed[0].path for group in groups]
        super().__init__(
            f"another process has compacted {len(groups)} of the same directories meanwhile, such as that of {paths[0]}"
        )
        self.groups = groups


@dataclass(frozen=True, slots=True)
class Compaction:
    """Groups of files to replace. The lake's position does not change."""

    groups: Sequence[FileGroup]
    at_ms: int

    def after(self, last: Commit | None, since: Sequence[Commit]) -> Commit:
        """Return the compaction's commit. Raises GroupsReplaced if a file to replace has been replaced meanwhile."""
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
    """New columns of a typed table, or wider types. The lake's position and files do not change."""

    columns: pa.Schema
    at_ms: int

    def after(self, last: Commit | None, since: Sequence[Commit]) -> Commit:
        """Return the evolution's commit. Raises TableError if a column can't be changed."""
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


def evolved(before: pa.Schema, now: pa.Schema) -> pa.Schema:
    """Return the columns of a typed lake with the columns `before` that gets rows with the columns `now`.

    Columns are added and types are widened; nothing is removed. Files are not rewritten: older files have nulls in new
    columns, and narrower types, which Parquet's readers widen.

    Raises TableError if a column has a type that it can't be changed to.
    """
    return pa.schema(_merged(before, now))


def _merged(before: Iterable[pa.Field], now: Iterable[pa.Field]) -> list[pa.Field]:
    given = {each.name: each for each in now}
    found = []
    for field in before:
        new = given.pop(field.name, field)
        kind = _wider(field.type, new.type)
        if kind is None:
            raise TableError(
                f"the column {field.name!r} of the lake is {field.type}, which can't be changed to {new.type}: load "
                "into another table"
            )
        found.append(pa.field(field.name, kind, field.nullable or new.nullable))
    return found + list(given.values())


def _wider(before: pa.DataType, now: pa.DataType) -> pa.DataType | None:
    """Return the type that can hold the values of both types; None if there is none."""
    if before == now or (now, before) in WIDER:
        return before
    if (before, now) in WIDER:
        return now
    if pa.types.is_decimal(before) and pa.types.is_decimal(now) and before.scale == now.scale:
        return before if before.precision >= now.precision else now
    if pa.types.is_struct(before) and pa.types.is_struct(now):
        return pa.struct(_merged(before, now))
    if pa.types.is_list(before) and pa.types.is_list(now):
        element = _wider(before.value_type, now.value_type)
        return None if element is None else pa.list_(element)
    if pa.types.is_map(before) and pa.types.is_map(now) and before.key_type == now.key_type:
        item = _wider(before.item_type, now.item_type)
        return None if item is None else pa.map_(before.key_type, item)
    return None
