"""Read a lake's history: the last commit, later commits, and the contents of the lake as of any kept commit.

Strategy: read the newest checkpoint, then the commits after it by their numbers, until one does not exist. So opening a
lake costs a listing of a small directory and at most some tens of reads, however long its history is. A lake without
checkpoints is young, or was written by an earlier version: then all of its commits are listed once.

Commits below the floor have expired: readers ignore their remaining files (`expiry`). Must not know: who commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.parquet import checkpoints
from pylogd.lake.tables.parquet.checkpoints import Checkpoint, Snapshot
from pylogd.lake.tables.parquet.commits import Commit
from pylogd.lake.tables.parquet.files import COMMITS, FLOORS, Files, each, numbered, numbers

_TRIES: Final = 5
_BATCH: Final = 64  # the number of commits that `between` reads at once
_REPLACED: Final = "the lake's checkpoints are being replaced faster than they can be read: try again"
_KNOWN: Final = 1024  # the most commits that are kept in memory


class CommitExpired(TableError):
    """A commit has expired, or does not exist yet."""


class History:
    """The history of the lake at the root of `files`, as of the last `refresh`.

    last: the last commit; None if there is none.
    checkpoint: the checkpoint from which the history was read; None if there was none.
    applied: the number up to which all commits are known to be applied.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self.checkpoint = self._newest()
        self.last: Commit | None = None
        self.applied = 0
        self._known: dict[int, Commit] = {}
        if self.checkpoint is not None:
            self.last, self.applied = self.checkpoint.commit, self.checkpoint.applied
        else:
            self._list()
        self.refresh()

    @property
    def number(self) -> int:
        """The number of the last commit; 0 without commits."""
        return 0 if self.last is None else self.last.number

    def refresh(self) -> list[Commit]:
        """Read the commits that were made meanwhile, and return them."""
        found: list[Commit] = []
        count = 1
        while True:
            begin = self.number + 1
            for commit in each(self._files, self._read_or_none, range(begin, begin + count)):
                if commit is None:
                    return found
                self.append(commit)
                found.append(commit)
            count = min(2 * count, self._files.threads)

    def append(self, commit: Commit) -> None:
        """Record that this is the next commit."""
        self.last = self._known[commit.number] = commit
        self._known.pop(commit.number - _KNOWN, None)
        self.applied = max(self.applied, commit.applied or 0)

    def since(self, number: int) -> Iterator[Commit]:
        """Return the commits after a number up to the last one."""
        return self.between(number + 1, self.number)

    def between(self, begin: int, end: int) -> Iterator[Commit]:
        """Return the commits of these numbers. Raises CommitExpired."""
        for at in range(begin, end + 1, _BATCH):
            yield from each(self._files, self.read, range(at, min(at + _BATCH, end + 1)))

    def read(self, number: int) -> Commit:
        """Return a commit. Raises CommitExpired."""
        found = self._read_or_none(number)
        if found is None:
            raise CommitExpired(
                f"commit {number} has expired, or was never made: kept are {self.floor} to {self.number}"
            )
        return found

    @property
    def floor(self) -> int:
        """The number of the oldest commit that is kept; 1 if there are no commits."""
        return max([1, *(place.number for place in checkpoints.found(self._files, FLOORS))])

    def snapshot(self, number: int | None = None) -> Snapshot:
        """Return the contents of the lake as of a commit.

        number: the number of the commit; default: the last one.

        Raises CommitExpired.
        """
        at = self.number if number is None else number
        for _ in range(_TRIES):
            floor = self.floor
            if self.number and not floor <= at <= self.number:
                raise CommitExpired(f"there is no commit {at} in the lake: kept are {floor} to {self.number}")
            place = checkpoints.newest(self._files, at)
            try:
                found = checkpoints.read_snapshot(self._files, place) if place else Snapshot()
            except FileNotFoundError:  # a newer checkpoint has replaced it
                continue
            for commit in self.between(place.number + 1 if place else 1, at):
                found.add(commit)
            return found
        raise TableError(_REPLACED)

    def _newest(self) -> Checkpoint | None:
        for _ in range(_TRIES):
            place = checkpoints.newest(self._files)
            if place is None:
                return None
            try:
                return checkpoints.read(self._files, place)
            except FileNotFoundError:  # the commit has expired meanwhile
                continue
        raise TableError(_REPLACED)

    def _list(self) -> None:
        """Find the last commit, and the applied commits, by a listing of all commits."""
        names = self._files.names(COMMITS)
        decided, done = numbers(names, ".json"), set(numbers(names, ".done"))
        self.applied = next((number - 1 for number in decided if number not in done), decided[-1] if decided else 0)
        if decided:
            self.append(self.read(decided[-1]))

    def pending(self) -> Sequence[Commit]:
        """Return the commits that may not be applied yet, ascending."""
        undone = [
            number
            for number in range(self.applied + 1, self.number + 1)
            if not self._files.exists(numbered(COMMITS, number, ".done"))
        ]
        return each(self._files, self.read, undone)

    def _read_or_none(self, number: int) -> Commit | None:
        if number in self._known:
            return self._known[number]
        path = numbered(COMMITS, number, ".json")
        try:
            return Commit.from_bytes(path, self._files.read(path))
        except FileNotFoundError:
            return None
