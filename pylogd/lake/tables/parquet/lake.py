"""Commit data files and the offsets that they contain together: the commit protocol of a data lake, without Spark.

Layout below the lake's root (readers of Parquet directories ignore names that begin with an underscore):

    topic=flights/date=2026-11-21/hour=07/9f3c…-part-….parquet      data
    _pylogd/commits/00000000000000000042.json                       the document of commit 42: its files and offsets
    _pylogd/commits/00000000000000000042.done                       all files of commit 42 have been moved
    _pylogd/checkpoints/00000000000000000064.json, .parquet         the sum of the commits up to 64 (`checkpoints`)
    _pylogd/floors/00000000000000000040.json, .parquet              the sum up to 40; earlier ones expired (`expiry`)
    _pylogd/quarantine/topic=flights/9f3c…-part-….parquet           records without a valid date
    _pylogd/replaced/topic=flights/…                                files that a compaction has replaced
    _pylogd/attempts/9f3c….json, _pylogd/staging/9f3c…/…            the plan of an attempt at a commit, and its files
    _pylogd/drafts/…                                                files that are being created

Strategy: a commit takes effect by the creation of its document, which fails if the name exists (`Files.create`). The
document lists each file in staging and the path to which it is moved. Every process that opens the lake repeats the
later steps (moving files, and putting replaced files of a compaction aside) until they are complete; to repeat them
does no harm. So after a crash at any step the lake has all of a commit or nothing of it, as soon as it is opened again.

Any number of processes may commit. A process that finds the number of its commit taken reads the other commit, and
makes its own commit after that one (`changes`), unless the two contradict each other. So compactions and loads of other
partitions don't disturb a load.

Rules: opening a lake never disturbs a process at work. Documents are never changed. A reader that lists directories
instead of calling `files` may see a part of a commit, and files that a compaction replaces may vanish while it reads.
Must not know: Spark, brokers.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from pylogd.base.errors import PylogdError
from pylogd.lake.tables.errors import CommitConflict, TableError
from pylogd.lake.tables.interface import Layout
from pylogd.lake.tables.parquet import attempts, checkpoints
from pylogd.lake.tables.parquet.attempts import Claim
from pylogd.lake.tables.parquet.changes import Change
from pylogd.lake.tables.parquet.checkpoints import CheckpointPath, Snapshot
from pylogd.lake.tables.parquet.commits import VERSION, Commit, DataFile, layout_of, position_of
from pylogd.lake.tables.parquet.files import CHECKPOINTS, COMMITS, QUARANTINE, REPLACED, Files, each, numbered
from pylogd.lake.tables.parquet.history import CommitExpired, History
from pylogd.lake.tables.position import ByPartition, Position

_log = logging.getLogger(__name__)

_TRIES: Final = 20  # the tries of a commit whose number is taken
_EVERY: Final = 64  # commits from one checkpoint to the next
_SPARSE: Final = 16  # one of this many checkpoints is kept until it expires


class Lake:
    """The lake at the root of `files`. Opening it completes other processes' commits, and deletes stale files in
    staging.

    every: the number of commits between two checkpoints.
    """

    def __init__(self, files: Files, *, every: int = _EVERY) -> None:
        self._files = files
        self._every = every
        self._history = History(files)
        self._finish()

    # its contents

    @property
    def last(self) -> Commit | None:
        """The last commit; None without commits."""
        return self._history.last

    @property
    def position(self) -> Position:
        """The offsets up to which each partition is in the lake, and the logs of these offsets."""
        return position_of(self.last)

    @property
    def offsets(self) -> ByPartition:
        """The offset up to which each partition is in the lake."""
        return self.position.offsets

    @property
    def layout(self) -> Layout | None:
        """The layout of the lake; None if it has no commits, or only commits of earlier versions of pylogd."""
        return layout_of(self.last)

    def history(self) -> Iterator[Commit]:
        """Return the commits that have not expired, the oldest first."""
        return self._history.between(self._history.floor, self._history.number)

    def snapshot(self, number: int | None = None) -> Snapshot:
        """Return the contents of the lake as of a commit; by default of the last one.

        Paths are the present ones: files that were replaced later have been moved. Raises CommitExpired.
        """
        found = self._history.snapshot(number)
        if number is None or number == self._history.number:
            return found
        live = self._history.snapshot().files
        moved = {path: path if path in live else replaced_path(path) for path in found.files}
        found.files = {moved[path]: replace(file, path=moved[path]) for path, file in found.files.items()}
        return found

    def files(self, number: int | None = None) -> dict[str, DataFile]:
        """Return the data files that a reader should read, by path.

        number: see `snapshot`.
        """
        return self.snapshot(number).files

    def quarantined(self) -> list[DataFile]:
        """Return the files of quarantined records, the oldest first."""
        return list(self.snapshot().quarantined.values())

    # commits

    def attempt(self, claim: Claim) -> str:
        """Begin an attempt at a commit, and return its name. Its files must be in `attempts.directory`."""
        return attempts.begin(self._files, claim)

    def abandon(self, attempt: str) -> None:
        """Delete an attempt and its files."""
        attempts.end(self._files, attempt)

    def refresh(self) -> None:
        """Read and complete other processes' commits. This costs less than opening the lake, which does the same."""
        if self._history.floor > self._history.number:  # the commits after this one may have expired
            self._history = History(self._files)
        else:
            self._history.refresh()
        self._finish()

    def commit(self, change: Change, named: Sequence[str], base: int | None = None) -> Commit:
        """Make a change take effect, then move its files and end its attempts. Return its commit.

        named: the attempts that wrote its files.
        base: the number of the commit on which it was planned, if it is not the last one.

        Raises CommitConflict if the change contradicts other commits, or if other processes are faster each time. After
        other errors it is unknown whether it took effect: open the lake again to find out.
        """
        planned = self._history.number if base is None else base
        writer = uuid.uuid4().hex
        for _ in range(_TRIES):
            commit = change.after(self.last, list(self._history.since(planned)))
            commit = replace(commit, writer=writer, applied=self._history.applied, version=VERSION)
            if self._create(commit):
                self._history.append(commit)
                self._apply(commit)
                for attempt in named:
                    self.abandon(attempt)
                self._clean()
                self._checkpoint()
                return commit
            self._history.refresh()
        raise CommitConflict(
            f"other processes were faster {_TRIES} times: nothing was added. Run it again, with fewer of them at once"
        )

    def _create(self, commit: Commit) -> bool:
        """Make a commit's document. Return whether the commit took effect; false if its number was taken before."""
        path = numbered(COMMITS, commit.number, ".json")
        try:
            made = self._files.create(path, commit.as_bytes())
        except TableError:
            if not self._is_mine(path, commit.writer):
                raise
            made = True
        if not made and not self._is_mine(path, commit.writer):  # the file system may have repeated the request
            return False
        if self._history.floor > commit.number:
            raise CommitConflict(
                f"commit {commit.number} had been made, and has expired since this process read the lake: run it again"
            )
        return True

    def _is_mine(self, path: str, writer: str) -> bool:
        try:
            return Commit.from_bytes(path, self._files.read(path)).writer == writer
        except FileNotFoundError:
            return False

    # completion of commits

    def _finish(self) -> None:
        number = -1
        while number != self._history.number:  # applying a commit may read later ones
            number = self._history.number
            for commit in self._history.pending():
                self._apply(commit)
            self._history.applied = max(self._history.applied, number)
        self._clean()

    def _clean(self) -> None:
        """Delete other processes' attempts that can't be committed any more, unless a commit is not applied yet."""
        if self._history.applied != self._history.number:
            return
        void = attempts.void(self._files, self.position, self._history.number)
        if void and self._is_current():
            for attempt in void:
                self.abandon(attempt)

    def _is_current(self) -> bool:
        """Return whether the last commit is the last one that this process knows."""
        number = self._history.number
        made = self._files.exists(numbered(COMMITS, number + 1, ".json"))
        return not made and self._history.floor <= max(number, 1)  # the next commit may have expired

    def _apply(self, commit: Commit) -> None:
        """Move the commit's files, then put the replaced files aside."""
        moves = [(file.staged, file.path) for file in (*commit.added, *commit.quarantined) if file.staged]
        missing = [each for each in each_move(self._files, moves) if each]
        if missing and self._has_expired(commit, missing):
            self._history = History(self._files)
            return
        each_move(self._files, [(path, replaced_path(path)) for path in commit.removed])
        self._files.create(numbered(COMMITS, commit.number, ".done"), b"")
        if self._history.applied == commit.number - 1:
            self._history.applied = commit.number

    def _has_expired(self, commit: Commit, missing: Sequence[str]) -> bool:
        """Return whether a commit without these files has expired; only applied commits expire.

        If it has not expired, later commits must have replaced the files. Raises TableError if they have not.
        """
        self._history.refresh()
        if self._history.floor > commit.number:
            return True
        try:
            later = {path for each in self._history.since(commit.number) for path in each.removed}
        except CommitExpired:
            return True
        for path in missing:
            if path not in later:
                raise TableError(
                    f"{path} of commit {commit.number} is missing, in the lake and in staging. If nobody has deleted "
                    "it, open the lake again"
                )
        return False

    def _checkpoint(self) -> None:
        """Write a checkpoint if it is due. A failure is logged: the lake is complete without it."""
        written = self._history.checkpoint
        number = self._history.number
        if self.last is None or number - (written.commit.number if written else 0) < self._every:
            return
        try:
            self.write_checkpoint(CheckpointPath(number, CHECKPOINTS))
            self._history.checkpoint = checkpoints.read(self._files, CheckpointPath(number, CHECKPOINTS))
            self._prune()
        except (PylogdError, OSError) as error:
            _log.warning("Commit %d took effect, but its checkpoint was not written: %s", number, error)

    def write_checkpoint(self, place: CheckpointPath) -> None:
        """Write the checkpoint of a commit."""
        number = place.number
        commit, snapshot = self._history.read(number), self._history.snapshot(number)
        checkpoints.write(self._files, place, commit, snapshot, min(self._history.applied, number))

    def _prune(self) -> None:
        """Delete checkpoints that neither slow readers nor time travel need."""
        found = checkpoints.found(self._files, CHECKPOINTS)
        block = 0
        for place in found[:-2]:
            if place.number // (self._every * _SPARSE) == block:
                checkpoints.delete(self._files, place)
            block = place.number // (self._every * _SPARSE)


def replaced_path(path: str) -> str:
    """Return the path at which a replaced file of a compaction is kept."""
    return f"{REPLACED}/{path}"


def target_path(attempt: str, staged: str, below: str = "", *, quarantine: bool = False) -> str:
    """Return the path in the lake, or in its quarantine, of a file that an attempt has written.

    The directories stay, without the prefix `below`. The name is prefixed with the beginning of the attempt's name.
    """
    inner = staged.removeprefix(f"{attempts.directory(attempt)}/").removeprefix(f"{below}/" if below else "")
    directory, _, name = inner.rpartition("/")
    parts = [QUARANTINE if quarantine else "", directory, f"{attempt[:12]}-{name}"]
    return "/".join(part for part in parts if part)


def each_move(files: Files, moves: Sequence[tuple[str, str]]) -> list[str]:
    """Move files (from, to) that were not moved before. Return the paths that exist at neither place."""

    def move(paths: tuple[str, str]) -> str:
        source, target = paths
        try:
            if not files.move(source, target):
                files.delete(source)  # a move on an object store was interrupted before the deletion
        except FileNotFoundError:
            return "" if files.exists(target) else target
        except TableError:  # Hadoop's error if another process moves the file at the same time
            if files.exists(source) or not files.exists(target):
                raise
        return ""

    return [path for path in each(files, move, moves) if path]
