"""A lake of data files whose content and whose offsets are committed together: the commit protocol, without Spark.

Layout below the lake's root (what begins with an underscore is passed over by readers of Parquet directories):

    topic=flights/date=2026-11-21/hour=07/000042-part-….parquet     data
    _pylogd/commits/00000000000000000042.json                       what commit 42 added, and up to which offsets
    _pylogd/commits/00000000000000000042.done                       its files are in their places
    _pylogd/quarantine/topic=flights/000042-part-….parquet          records of commit 42 that fit no directory
    _pylogd/staging/42/9f3c…/…                                      what an attempt at commit 42 has written

Strategy: a commit is decided by one rename that fails if the name is taken: of its document, which lists every file in
staging and the place that it gets. What follows (moving the files there, deleting those that a compaction replaces) is
done again by whoever opens the lake next, as often as need be, for moving a file that was moved changes nothing. So
after a crash at any step the lake has all of a commit or none of it, once the next loader, or reader by `files`, has
looked.

Each attempt stages in a directory of its own, so what a loader that was killed leaves, or its JVM that lives on for a
moment still writes, is no part of another's commit. What was staged for a number counts for nothing once that commit
is decided, and is deleted then, not before: it may be the work of a loader that is alive.

Rules: one loader at a time is meant to write; a second one finds the number of its commit taken and fails. Opening a
lake never disturbs one. Documents are never changed. A reader that lists directories instead of asking `files` may see
a commit in the midst of its moves, and the files of a compaction that began after it has looked vanish.
Must not know: Spark, brokers.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Protocol

from pylogd.errors import PylogdError
from pylogd.spark.options import ByPartition, by_partition
from pylogd.spark.ranges import recreated

_META: Final = "_pylogd"
_COMMITS: Final = f"{_META}/commits"
_STAGING: Final = f"{_META}/staging"
_QUARANTINE: Final = f"{_META}/quarantine"
_DIGITS: Final = 20
_VERSION: Final = 2
_VERSIONS: Final = (1, _VERSION)  # 1 has no ids, epochs and quarantine


class LakeError(PylogdError):
    """The lake holds something else than it should."""


class CommitConflict(LakeError):
    """Another loader has committed meanwhile. Nothing of this one's was added; run it again."""


class Files(Protocol):
    """What is needed of a file system. Paths are relative to the lake's root, with `/` between names."""

    def names(self, directory: str) -> list[str]:
        """What is in a directory, nothing if it is not there."""

    def read(self, path: str) -> bytes:
        """All of a file; FileNotFoundError."""

    def write(self, path: str, data: bytes) -> None:
        """A file, with its directories, in the place of one that may be there. May be cut off by a crash."""

    def move(self, source: str, target: str) -> bool:
        """Rename a file, making directories; false, with nothing done, if the target is there. FileNotFoundError."""

    def exists(self, path: str) -> bool:
        """Whether something is there."""

    def delete(self, path: str) -> None:
        """Remove a file or a directory with all in it; nothing if it is not there."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a commit. `path` is its place in the lake, `staged` where it was written."""

    path: str
    staged: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Commit:
    """One entry of the lake's history.

    kind: "load" or "compaction". offsets: topic -> partition -> the offset behind the last that the lake has, for all
    that it ever loaded. read: the same form, how many offsets this commit took in. removed: files that it replaced.
    quarantined: files of records that are kept aside, with the reason. topic_ids: topic -> the id of the topic that the
    offsets belong to, as hexadecimal digits. leader_epochs: in the form of `offsets`, the leader's epoch when they were
    looked up. Of these two, what was never known is left out.
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
        """Rows that it added."""
        return sum(file.rows for file in self.added)

    @property
    def size(self) -> int:
        """Bytes that it added."""
        return sum(file.bytes for file in self.added)

    def as_bytes(self) -> bytes:
        """The document, for people too."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_bytes(cls, path: str, data: bytes) -> Commit:
        """The inverse; `LakeError`."""
        try:
            document = json.loads(data)
            if document["version"] not in _VERSIONS:
                raise ValueError(f"version {document['version']}, where {_VERSION} is the last that is known")
            for files in ("added", "quarantined"):
                document[files] = tuple(DataFile(**each) for each in document.get(files, ()))
            return cls(**document)
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(f"{path} is not a commit of a pylogd lake: {error}") from error


@dataclass(frozen=True, slots=True)
class Loading:
    """What a load reads: from `start` to before `end`, of topics with these ids, at these leader epochs."""

    start: ByPartition
    end: ByPartition
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    leader_epochs: ByPartition = field(default_factory=dict)


class Lake:
    """The lake at the root of `files`. Opening it finishes what was decided and clears away what was not."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._attempt = uuid.uuid4().hex
        names = files.names(_COMMITS)
        decided = _numbers(names, ".json")
        self.last = self._read(decided[-1]) if decided else None  # a long history is not read to add to it
        self._finish(set(decided) - set(_numbers(names, ".done")))

    def history(self) -> Iterator[Commit]:
        """All commits, the oldest first."""
        return map(self._read, _numbers(self._files.names(_COMMITS), ".json"))

    def _read(self, number: int) -> Commit:
        path = _document(number)
        return Commit.from_bytes(path, self._files.read(path))

    @property
    def offsets(self) -> ByPartition:
        """Up to where each partition is in the lake."""
        return {} if self.last is None else by_partition(self.last.offsets)

    @property
    def leader_epochs(self) -> ByPartition:
        """The leader epoch of each partition's offset, where it is known."""
        return {} if self.last is None else by_partition(self.last.leader_epochs)

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """The ids of the topics that the offsets belong to, where they are known."""
        return {} if self.last is None else self.last.topic_ids

    def files(self) -> dict[str, DataFile]:
        """The data files of all commits, by their paths: what a reader should read."""
        found: dict[str, DataFile] = {}
        for commit in self.history():
            for path in commit.removed:
                found.pop(path, None)
            found.update((file.path, file) for file in commit.added)
        return found

    def quarantined(self) -> list[DataFile]:
        """The files of records that are kept aside, the oldest first."""
        return [file for commit in self.history() for file in commit.quarantined]

    @property
    def next_number(self) -> int:
        """The number of the next commit."""
        return 1 if self.last is None else self.last.number + 1

    def staging(self) -> str:
        """Where the next commit's files are to be written: a directory that nobody else writes to."""
        return f"{_STAGING}/{self.next_number}/{self._attempt}"

    def place_of(self, staged: str, below: str = "", *, quarantine: bool = False) -> str:
        """Where a file that was written to the directory `below` in `staging` belongs: the same directories from there,
        in the lake or in its quarantine, with the commit's number in front of its name.
        """
        inner = staged.removeprefix(f"{self.staging()}/").removeprefix(f"{below}/" if below else "")
        directory, _, name = inner.rpartition("/")
        parts = [_QUARANTINE if quarantine else "", directory, f"{self.next_number:06d}-{name}"]
        return "/".join(part for part in parts if part)

    def commit(self, commit: Commit) -> None:
        """Decide it, then put its files in place. `CommitConflict` if its number is taken."""
        if commit.number != self.next_number:
            raise CommitConflict(f"commit {commit.number} is not the next one, {self.next_number} is")
        draft = f"{_STAGING}/{commit.number}/{self._attempt}.draft"
        self._files.write(draft, commit.as_bytes())
        try:
            is_mine = self._files.move(draft, _document(commit.number))
        except FileNotFoundError:  # cleared away with all else that was staged for that number
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
            self._place(commit, file)
        for path in commit.removed:
            self._files.delete(path)
        self._files.write(_document(commit.number).removesuffix(".json") + ".done", b"")
        self._files.delete(f"{_STAGING}/{commit.number}")

    def _place(self, commit: Commit, file: DataFile) -> None:
        try:
            self._files.move(file.staged, file.path)
        except (FileNotFoundError, LakeError):
            if not self._files.exists(file.path):  # else it was moved before, or another process finishes this commit
                raise LakeError(
                    f"commit {commit.number} added {file.path}: it is not there, nor can it be moved from {file.staged}"
                ) from None


def loaded(
    last: Commit | None, number: int, at_ms: int, loading: Loading, added: Sequence[DataFile],
    quarantined: Sequence[DataFile] = (),
) -> Commit:  # fmt: skip
    """The commit of a load. What was known of topics that it did not read stays, but for those that were replaced."""
    replaced = recreated(last.topic_ids, loading.topic_ids) if last else []
    offsets = _kept(last.offsets if last else {}, replaced)
    epochs = _kept(last.leader_epochs if last else {}, replaced)
    read: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(loading.end.items()):
        offsets.setdefault(topic, {})[str(partition)] = offset
        epoch = loading.leader_epochs.get((topic, partition))
        if epoch is None:
            epochs.get(topic, {}).pop(str(partition), None)
        else:
            epochs.setdefault(topic, {})[str(partition)] = epoch
        count = offset - loading.start[topic, partition]
        if count:
            read.setdefault(topic, {})[str(partition)] = count
    return Commit(
        number, "load", at_ms, offsets, read, tuple(added), quarantined=tuple(quarantined),
        topic_ids={**(last.topic_ids if last else {}), **loading.topic_ids}, leader_epochs=epochs,
    )  # fmt: skip


def _kept(document: Mapping[str, Mapping[str, int]], replaced: Sequence[str]) -> dict[str, dict[str, int]]:
    return {topic: dict(partitions) for topic, partitions in document.items() if topic not in replaced}


def compacted(last: Commit, at_ms: int, added: Sequence[DataFile], removed: Sequence[str]) -> Commit:
    """The commit of a compaction: the offsets stay."""
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
    """By directory, the files that should become fewer: those under half of the target, where there are two or more."""
    found: dict[str, list[DataFile]] = {}
    for path, file in sorted(files.items()):
        if file.bytes < target_bytes // 2:
            found.setdefault(path.rpartition("/")[0], []).append(file)
    return {directory: small for directory, small in found.items() if len(small) > 1}


def _document(number: int) -> str:
    return f"{_COMMITS}/{number:0{_DIGITS}d}.json"


def _numbers(names: Sequence[str], suffix: str) -> list[int]:
    """Of the commits that have a file with this suffix, in order."""
    stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if len(stem) == _DIGITS and stem.isdigit())


def as_table(commits: Sequence[Commit]) -> list[dict[str, Any]]:
    """Commits as rows for people."""
    return [
        {
            "commit": commit.number,
            "kind": commit.kind,
            "at_ms": commit.at_ms,
            "offsets": sum(sum(partitions.values()) for partitions in commit.read.values()),
            "rows": commit.rows,
            "quarantined": sum(file.rows for file in commit.quarantined),
            "files": len(commit.added),
            "bytes": commit.size,
            "replaced": len(commit.removed),
        }
        for commit in commits
    ]
