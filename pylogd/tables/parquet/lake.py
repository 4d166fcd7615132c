"""Commit data files and the offsets that they contain together: the commit protocol of a data lake, without Spark.

Layout below the lake's root (readers of Parquet directories ignore names that begin with an underscore):

    topic=flights/date=2026-11-21/hour=07/000042-part-….parquet     data
    _pylogd/commits/00000000000000000042.json                       the document of commit 42: its files and offsets
    _pylogd/commits/00000000000000000042.done                       all files of commit 42 have been moved
    _pylogd/quarantine/topic=flights/000042-part-….parquet          records of commit 42 without a valid date
    _pylogd/staging/42/9f3c…/…                                      files that an attempt at commit 42 has written

Strategy: a commit takes effect by one rename of its document, which fails if the name exists. The document lists each
file in staging and the path that it is moved to. The steps after that (moving files, deleting files that a compaction
replaced) are repeated by every process that opens the lake until they are complete; repeating them is harmless. So
after a crash at any step the lake has all of a commit or nothing of it, as soon as it is opened again.

Each attempt stages in its own directory, so files that a killed loader left, or that its JVM still writes, never
become part of another's commit. The staging directory of a number is deleted when that commit takes effect, and not
before, because it may belong to a loader that is running.

Rules: only one loader should write at a time; a second one finds the number of its commit taken and fails. Opening a
lake never disturbs a running loader. Documents are never changed. A reader that lists directories instead of calling
`files` may see a part of a commit, and files that a compaction replaces may vanish while it reads.
Must not know: Spark, brokers.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from typing import Final, Protocol

from pylogd.tables.errors import CommitConflict, TableError
from pylogd.tables.positions import ByPartition, LoadRange, Position, by_partition, nested

_META: Final = "_pylogd"
_COMMITS: Final = f"{_META}/commits"
_STAGING: Final = f"{_META}/staging"
_QUARANTINE: Final = f"{_META}/quarantine"
_DIGITS: Final = 20
_VERSION: Final = 2
_VERSIONS: Final = (1, _VERSION)  # version 1 has no topic ids, leader epochs and quarantine


class Files(Protocol):
    """The operations of a file system that the lake needs. Paths are relative to the lake's root, separated by `/`."""

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory; nothing if it does not exist."""

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError."""

    def write(self, path: str, data: bytes) -> None:
        """Write a file, creating directories and replacing an existing file. A crash may leave a part of it."""

    def move(self, source: str, target: str) -> bool:
        """Rename a file, creating directories. Returns false if the target exists. Raises FileNotFoundError."""

    def exists(self, path: str) -> bool:
        """Return whether a file or directory exists."""

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with its content, if it exists."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a commit. `path`: its path in the lake; `staged`: the path where it was written first."""

    path: str
    staged: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Commit:
    """One entry of the lake's history.

    kind: "load" or "compaction". at_ms: when it was made, in milliseconds since 1970.
    offsets: topic -> partition -> the offset after the last one in the lake, for every partition ever loaded.
    read: how many offsets this commit added, in the same form.
    added, removed, quarantined: the files that it added and replaced, and the files of records without a valid date.
    topic_ids: the id of each topic as hexadecimal digits, where it is known.
    leader_epochs: the leader epoch at which each offset was looked up, where it is known, in the form of `offsets`.
    """

    number: int
    kind: str
    at_ms: int
    offsets: Mapping[str, Mapping[str, int]]
    read: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    added: Sequence[DataFile] = ()
    removed: Sequence[str] = ()
    version: int = _VERSION
    quarantined: Sequence[DataFile] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    leader_epochs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of rows that it added."""
        return sum(file.rows for file in self.added)

    @property
    def size(self) -> int:
        """The number of bytes that it added."""
        return sum(file.bytes for file in self.added)

    def as_bytes(self) -> bytes:
        """Return the commit's document: indented JSON."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_bytes(cls, path: str, data: bytes) -> Commit:
        """Return the commit that a document describes. Raises TableError; `path` is for its message."""
        try:
            document = json.loads(data)
            if document["version"] not in _VERSIONS:
                raise ValueError(f"version {document['version']} is not supported, only up to {_VERSION}")
            for files in ("added", "quarantined"):
                document[files] = tuple(DataFile(**each) for each in document.get(files, ()))
            return cls(**document)
        except (ValueError, KeyError, TypeError) as error:
            raise TableError(f"{path} is not a commit of a pylogd lake: {error}") from error


class Lake:
    """The lake at the root of `files`. Opening it completes the last commit and deletes stale files in staging."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._attempt = uuid.uuid4().hex
        names = files.names(_COMMITS)
        decided = _numbers(names, ".json")
        self.last = self._read(decided[-1]) if decided else None  # a long history is not read to add to it
        self._finish(set(decided) - set(_numbers(names, ".done")))

    def history(self) -> Iterator[Commit]:
        """Return all commits, the oldest first."""
        return map(self._read, _numbers(self._files.names(_COMMITS), ".json"))

    def _read(self, number: int) -> Commit:
        path = _document(number)
        return Commit.from_bytes(path, self._files.read(path))

    @property
    def position(self) -> Position:
        """Up to where each partition is in the lake, and which logs these offsets belong to."""
        return position_of(self.last)

    @property
    def offsets(self) -> ByPartition:
        """The offset up to which each partition is in the lake."""
        return self.position.offsets

    def files(self) -> dict[str, DataFile]:
        """Return the data files of all commits, by path, without replaced ones: what a reader should read."""
        found: dict[str, DataFile] = {}
        for commit in self.history():
            for path in commit.removed:
                found.pop(path, None)
            found.update((file.path, file) for file in commit.added)
        return found

    def quarantined(self) -> list[DataFile]:
        """Return the files of quarantined records, the oldest first."""
        return [file for commit in self.history() for file in commit.quarantined]

    @property
    def next_number(self) -> int:
        """The number of the next commit."""
        return 1 if self.last is None else self.last.number + 1

    def staging(self) -> str:
        """Return the directory to write the next commit's files to. No other loader writes there."""
        return f"{_STAGING}/{self.next_number}/{self._attempt}"

    def target_path(self, staged: str, below: str = "", *, quarantine: bool = False) -> str:
        """Return the path in the lake, or in its quarantine, of a file that was written below `staging`.

        The directories stay, less the prefix `below`; the commit's number is put in front of the name.
        """
        inner = staged.removeprefix(f"{self.staging()}/").removeprefix(f"{below}/" if below else "")
        directory, _, name = inner.rpartition("/")
        parts = [_QUARANTINE if quarantine else "", directory, f"{self.next_number:06d}-{name}"]
        return "/".join(part for part in parts if part)

    def commit(self, commit: Commit) -> None:
        """Make the commit take effect, then move its files. Raises CommitConflict if its number is taken."""
        if commit.number != self.next_number:
            raise CommitConflict(f"commit {commit.number} is not the next one, which is {self.next_number}")
        draft = f"{_STAGING}/{commit.number}/{self._attempt}.draft"
        self._files.write(draft, commit.as_bytes())
        try:
            is_mine = self._files.move(draft, _document(commit.number))
        except FileNotFoundError:  # another loader made that commit and deleted the staging directory
            is_mine = False
        if not is_mine:
            raise CommitConflict(f"another loader has made commit {commit.number} of this lake: run it again")
        self.last = commit
        self._apply(commit)

    def _finish(self, undone: Set[int]) -> None:
        for number in sorted(undone):
            self._apply(self._read(number))
        for name in self._files.names(_STAGING):
            if name.isdigit() and int(name) < self.next_number:
                self._files.delete(f"{_STAGING}/{name}")

    def _apply(self, commit: Commit) -> None:
        for file in (*commit.added, *commit.quarantined):
            self._move_file(commit, file)
        for path in commit.removed:
            self._files.delete(path)
        self._files.write(_document(commit.number).removesuffix(".json") + ".done", b"")
        self._files.delete(f"{_STAGING}/{commit.number}")

    def _move_file(self, commit: Commit, file: DataFile) -> None:
        try:
            self._files.move(file.staged, file.path)
        except (FileNotFoundError, TableError):
            if not self._files.exists(file.path):  # else it was moved before, or by another process
                raise TableError(
                    f"{file.path} of commit {commit.number} is missing, and can't be moved from {file.staged}"
                ) from None


def load_commit(
    last: Commit | None, number: int, at_ms: int, loading: LoadRange, added: Sequence[DataFile],
    quarantined: Sequence[DataFile] = (),
) -> Commit:  # fmt: skip
    """Return the commit of a load. Entries of partitions that it did not read stay, unless the topic was recreated."""
    position = position_of(last).after(loading)
    return Commit(
        number, "load", at_ms, nested(position.offsets), nested(loading.read), tuple(added),
        quarantined=tuple(quarantined), topic_ids=position.topic_ids, leader_epochs=nested(position.leader_epochs),
    )  # fmt: skip


def position_of(commit: Commit | None) -> Position:
    """Return the position of a lake whose last commit is `commit`; None if it has no commits."""
    if commit is None:
        return Position()
    return Position(by_partition(commit.offsets), commit.topic_ids, by_partition(commit.leader_epochs))


def compaction_commit(last: Commit, at_ms: int, added: Sequence[DataFile], removed: Sequence[str]) -> Commit:
    """Return the commit of a compaction, which does not change the offsets."""
    return replace(
        last,
        number=last.number + 1,
        kind="compaction",
        at_ms=at_ms,
        read={},
        added=tuple(added),
        removed=tuple(removed),
        quarantined=(),
        version=_VERSION,
    )


def small_files(files: Mapping[str, DataFile], target_bytes: int) -> dict[str, list[DataFile]]:
    """Return the files to compact by directory: those smaller than half of `target_bytes`, where there are several."""
    found: dict[str, list[DataFile]] = {}
    for path, file in sorted(files.items()):
        if file.bytes < target_bytes // 2:
            found.setdefault(path.rpartition("/")[0], []).append(file)
    return {directory: small for directory, small in found.items() if len(small) > 1}


def _document(number: int) -> str:
    return f"{_COMMITS}/{number:0{_DIGITS}d}.json"


def _numbers(names: Sequence[str], suffix: str) -> list[int]:
    """Return the numbers of the commits that have a file with this suffix, ascending."""
    stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if len(stem) == _DIGITS and stem.isdigit())
