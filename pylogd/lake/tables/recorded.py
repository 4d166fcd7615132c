"""Commits of tables whose format has atomic commits with a place for pylogd's record: Iceberg and Delta.

Strategy: each load's commit contains a `LoadRecord`: the position, the number of the load, and the quarantine's files.
The commit succeeds only if the table has not changed since it was read. The libraries' own retries are off, because
they add the same files again without checking the offsets. After a refused commit, read the table, check the offsets,
and commit again with a record that follows the present one.

The quarantine is a separate table, so its files can't be in the same commit of the format. The table's record names the
files; then they are added to the quarantine, together with the number of the load. A process that opens the table adds
them if the quarantine's number is smaller. This happens before another load can be committed, so the quarantine never
lacks the files of more than one load.

Must not know: formats.
"""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Generic, TypeVar

from pylogd.base.errors import PylogdError
from pylogd.lake.tables.errors import CommitConflict, TableError
from pylogd.lake.tables.interface import Committed, DataFile, Layout
from pylogd.lake.tables.position import LoadRange, Position, by_partition, nested

#: The most attempts at a commit, each after a commit of another process that does not conflict with it.
_ATTEMPTS: Final = 20
_VERSION: Final = 1
Made = TypeVar("Made")


class Refused(Exception):
    """A format's commit was refused because the table has changed since it was read."""


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """The record of a load's commit, which is stored in the table.

    number: the number of the load in the table, from 1.
    attempt: a unique id of the attempt at this commit.
    position: the position of the table after the load.
    loading: the range that the load read.
    quarantined: the files of the quarantine, without their facts.
    """

    number: int = 0
    attempt: str = ""
    position: Position = field(default_factory=Position)
    loading: LoadRange = field(default_factory=lambda: LoadRange({}, {}))
    quarantined: Sequence[DataFile] = ()

    def as_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps(
            {
                "version": _VERSION,
                "number": self.number,
                "attempt": self.attempt,
                "position": self.position.as_document(),
                "read": read_document(self.loading),
                "quarantined": [[file.path, file.bytes, file.rows, dict(file.partition)] for file in self.quarantined],
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str, where: str) -> LoadRecord:
        """Return the record from its JSON.

        where: the table, for the message of the TableError that it may raise.
        """
        try:
            document = json.loads(text)
            if document["version"] != _VERSION:
                raise ValueError(f"version {document['version']} is not supported, only {_VERSION}")
            return cls(
                int(document["number"]),
                str(document["attempt"]),
                Position.from_document(document["position"]),
                read_range(document["read"]),
                tuple(
                    DataFile(str(path), int(size), int(rows), partition=dict(partition))
                    for path, size, rows, partition in document["quarantined"]
                ),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TableError(f"what {where} says about its last load can't be read: {error}") from error


def read_document(loading: LoadRange) -> dict[str, Any]:
    """Return the ranges of a load as a JSON document, without empty ranges."""
    return {
        "start": nested({partition: loading.start[partition] for partition in loading.read}),
        "end": nested({partition: loading.end[partition] for partition in loading.read}),
    }


def read_range(document: Mapping[str, Any]) -> LoadRange:
    """Return the ranges in a document of `read_document`."""
    return LoadRange(by_partition(document["start"]), by_partition(document["end"]))


def layout_json(layout: Layout) -> str:
    """Return a layout as JSON."""
    return json.dumps(asdict(layout), separators=(",", ":"))


def layout_of(text: str, where: str) -> Layout:
    """Return the layout from its JSON. Raises TableError; `where` is for its message."""
    try:
        return Layout(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise TableError(f"the layout that {where} records can't be read: {error}") from error


class Quarantine(ABC):
    """The table of a quarantine."""

    @property
    @abstractmethod
    def number(self) -> int:
        """The number of the last load whose files it has; 0 before the first load."""

    @abstractmethod
    def refresh(self) -> None:
        """Read the commits of other processes."""

    @abstractmethod
    def append(self, number: int, files: Sequence[DataFile]) -> None:
        """Add the files of the load of this number, atomically with the number. Raises Refused."""

    def complete(self, record: LoadRecord) -> None:
        """Add the files of a load, unless the quarantine has them."""
        for _ in range(_ATTEMPTS):
            if self.number >= record.number:
                return
            try:
                self.append(record.number, record.quarantined)
            except Refused:
                self.refresh()
        raise CommitConflict("the quarantine is changed too often by other processes: run the command again")


class RecordedTable(ABC, Generic[Made]):
    """The part of `interface.Table` that formats with a `LoadRecord` share."""

    format: str
    #: The table in the form of the format's library; None if it has not been made.
    _table: Made | None = None
    _record: LoadRecord
    #: The columns for which files were written last, until they are committed; None if there are none.
    _staged: Any = None
    #: Whether the table was opened read-only: then no commits are completed.
    _read_only: bool = False

    @property
    @abstractmethod
    def location(self) -> str:
        """The place of the table, as users name it."""

    @property
    def exists(self) -> bool:
        """Whether the table has been made."""
        return self._table is not None

    @property
    def position(self) -> Position:
        """The offsets up to which the table is loaded."""
        return self._record.position

    def refresh(self) -> None:
        """Read the commits of other processes, and complete a commit whose process died."""
        self._read()
        self._complete()

    def commit(
        self, expected: Position, loading: LoadRange, added: Sequence[DataFile],
        quarantined: Sequence[DataFile] = (), *, at_ms: int,
    ) -> Committed:  # fmt: skip
        """Add the files of a load. Raises OffsetsMoved, or CommitConflict if other processes commit all the time."""
        if not self.exists:
            raise TableError("the table was not created before the commit")
        try:
            return self._commit(expected, loading, added, quarantined, at_ms)
        finally:
            self._staged = None

    def _commit(
        self, expected: Position, loading: LoadRange, added: Sequence[DataFile], quarantined: Sequence[DataFile],
        at_ms: int,
    ) -> Committed:  # fmt: skip
        attempt = uuid.uuid4().hex
        refused: Refused | None = None
        for _ in range(_ATTEMPTS):
            self._record.position.check(expected, loading)
            self._check()
            record = LoadRecord(
                self._record.number + 1, attempt, self.position.after(loading), loading, tuple(quarantined)
            )
            try:
                number = self._append(record, added, at_ms)
            except Refused as error:
                refused = error
                self.refresh()
                if self._record.attempt != attempt:  # otherwise it took effect, and only the answer was lost
                    continue
                number = self._number()
            self._record = record
            self._complete()
            return committed(number, "load", at_ms, record, added)
        raise CommitConflict(
            "the table is changed too often by other processes: run the loader again. The last commit was refused "
            f"with: {refused.__cause__ if refused else None}"
        ) from refused

    def _made(self) -> Made:
        """Return the table. Raises TableError if it has not been made."""
        if self._table is None:
            raise TableError(f"the {self.format.title()} table {self.location} does not exist")
        return self._table

    def _complete(self) -> None:
        if self._record.quarantined and not self._read_only:
            self._quarantine().complete(self._record)

    @abstractmethod
    def _check(self) -> None:
        """Check that the table, which other programs may have changed, still takes the files that were written for it.

        Raises TableError if a change is not supported, and CommitConflict if the files have to be written again.
        """

    @abstractmethod
    def _read(self) -> None:
        """Read the table, and set `_record`."""

    @abstractmethod
    def _number(self) -> int:
        """Return the number of the commit that was read last, in the format's history."""

    @abstractmethod
    def _append(self, record: LoadRecord, added: Sequence[DataFile], at_ms: int) -> int:
        """Commit files and record, if the table has not changed since it was read. Return the commit's number. Raises
        Refused.
        """

    @abstractmethod
    def _quarantine(self) -> Quarantine:
        """Open the quarantine; make it if it does not exist."""


@contextmanager
def library_errors(kind: str, where: str) -> Iterator[None]:
    """Raise TableError for errors of a format's library and of those below it: catalogs, storage, HTTP.

    kind: the format, for the message.
    where: the table, for the message.
    """
    try:
        yield
    except (PylogdError, Refused):
        raise
    except Exception as error:
        raise TableError(f"the {kind} table {where}: {error or type(error).__name__}") from error


def committed(number: int, kind: str, at_ms: int, record: LoadRecord, added: Sequence[DataFile]) -> Committed:
    """Return the entry of the history for a load."""
    return Committed(
        number, kind, at_ms, read_range(read_document(record.loading)),
        sum(file.rows for file in added), len(added), sum(file.bytes for file in added),
        sum(file.rows for file in record.quarantined),
    )  # fmt: skip
