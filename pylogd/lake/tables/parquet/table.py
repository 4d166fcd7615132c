"""The Parquet lake as a `Table`. Spark itself writes its files, on any file system of Hadoop.

Must not know: Spark, whose part is `files.SparkFiles`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from pylogd.base.clock import wall_ms
from pylogd.lake.tables.interface import DIRECTORIES, Committed, DataFile, Layout, Rewrite, SparkStaging
from pylogd.lake.tables.parquet import attempts, commits
from pylogd.lake.tables.parquet.attempts import Claim
from pylogd.lake.tables.parquet.changes import Evolution, Load, evolved
from pylogd.lake.tables.parquet.commits import Commit, columns_of, decode_columns, encode_columns
from pylogd.lake.tables.parquet.compaction import compact
from pylogd.lake.tables.parquet.expiry import Expired, expire
from pylogd.lake.tables.parquet.files import QUARANTINE, NewFiles, SparkFiles
from pylogd.lake.tables.parquet.lake import Lake, target_path
from pylogd.lake.tables.position import LoadRange, Position, by_partition
from pylogd.lake.tables.records import with_directories


class LakeTable:
    """Implements `interface.Table` on a Parquet lake.

    threads: how many directories a compaction rewrites at once.

    `staging` may be called several times before a commit: then the commit can have files of all these attempts.
    """

    format = "parquet"

    def __init__(self, files: SparkFiles, *, threads: int = 1) -> None:
        self._files = files
        self._threads = threads
        self._lake = Lake(files)
        self._made: tuple[Layout, str | None] = (Layout(), None)  # the arguments of `create`
        self._attempts: list[str] = []  # the attempts that the next commit ends

    @property
    def location(self) -> str:
        """The lake's directory."""
        return self._files.root

    @property
    def directory(self) -> str:
        """The lake's directory."""
        return self.location

    @property
    def quarantine(self) -> str:
        """The directory of the quarantine."""
        return self._files.path(QUARANTINE)

    @property
    def exists(self) -> bool:
        """Whether the lake has a commit."""
        return self._lake.last is not None

    @property
    def position(self) -> Position:
        """The offsets up to which the lake is loaded."""
        return self._lake.position

    @property
    def layout(self) -> Layout | None:
        """The layout that the lake was made with; None if it has no commits."""
        return self._lake.layout or self._layout_of_files()

    @property
    def columns(self) -> pa.Schema | None:
        """The columns of a typed table, with the columns of its directories; None in a table of records."""
        columns, layout = columns_of(self._lake.last), self._lake.layout
        return None if columns is None or layout is None else with_directories(list(columns), layout)

    def can_write(self) -> None:
        """Check whether files can be written, without writing one, if the file system can tell.

        Raises TableError.
        """
        probe = getattr(self._files, "can_write", None)
        if probe is not None:
            probe()

    def refresh(self) -> None:
        """Read the commits of other processes, and complete a commit whose process died."""
        self._lake.refresh()

    def create(self, layout: Layout, columns: pa.Schema | None = None) -> None:
        """Check the layout. The lake is made by its first commit, which records layout and columns."""
        recorded = self.layout
        if recorded is not None:
            layout.check(self.location, recorded)
        self._made = layout, None if columns is None or self.exists else encode_columns(columns)

    def evolve(self, columns: pa.Schema) -> None:
        """Change the columns of a typed table, in a separate commit.

        Before the first commit no such commit is needed.
        """
        layout, made = self._made
        if not self.exists:
            before = pa.schema([]) if made is None else decode_columns(made)
            self._made = layout, encode_columns(evolved(before, columns))
        elif self.columns is None or evolved(self.columns, columns) != self.columns:
            self._lake.commit(Evolution(columns, wall_ms()), [])

    def staging(self, expected: Position | None = None, loading: LoadRange | None = None) -> SparkStaging:
        """Return a new attempt at a commit."""
        claim = Claim() if expected is None or loading is None else Claim.of_load(expected, loading)
        attempt = self._lake.attempt(claim)
        self._attempts.append(attempt)
        return self._staging(attempt, attempts.directory(attempt))

    def _staging(self, attempt: str, directory: str) -> SparkStaging:
        def found(below: str, quarantine: bool) -> list[DataFile]:
            inside = f"{directory}/{below}" if below else directory
            return [
                DataFile(
                    self._files.path(target_path(attempt, path, below, quarantine=quarantine)),
                    size,
                    self._files.parquet_rows(path),
                    self._files.path(path),
                )
                for path, size in self._files.data_files(inside)
            ]

        files = self._files if isinstance(self._files, NewFiles) else None
        create = None if files is None else lambda path: files.new_file(f"{directory}/{path}")
        return SparkStaging(self._files.path(directory), found, create)

    def commit(
        self, expected: Position, loading: LoadRange, added: Sequence[DataFile],
        quarantined: Sequence[DataFile] = (), *, at_ms: int,
    ) -> Committed:  # fmt: skip
        """Add the files of a load, after other processes' commits. Raises OffsetsMoved, CommitConflict."""
        layout, columns = self._made
        change = Load(
            expected, loading, self._inside(added), self._inside(quarantined), at_ms, layout, columns, self.location
        )  # fmt: skip
        attempts, self._attempts = self._attempts, []
        return committed(self._lake.commit(change, attempts))

    def history(self) -> Iterator[Committed]:
        """Return the commits that have not expired, the oldest first."""
        return map(committed, self._lake.history())

    def files(self, number: int | None = None) -> list[DataFile]:
        """Return the data files of the lake: the present ones, or those of a commit. Raises CommitExpired."""
        return self._outside(self._lake.files(number).values())

    def quarantined(self) -> list[DataFile]:
        """Return the files of the quarantine."""
        return self._outside(self._lake.quarantined())

    def expire(self, *, older_than_ms: int, keep: int) -> Expired:
        """Delete the commits made before a time, except the last `keep` ones, and the files that only they have."""
        done = expire(self._files, older_than_ms=older_than_ms, keep=keep)
        self.refresh()
        return done

    def compact(self, target_bytes: int, rewrite: Rewrite, *, at_ms: int) -> Committed | None:
        """Replace small files of each directory by large ones. Return the sum of the commits that were made.

        Raises CompactionConflict if other processes compact the same directories repeatedly.
        """

        def group(attempt: str, directory: str, small: Sequence[commits.DataFile]) -> list[commits.DataFile]:
            staging = self._staging(attempt, "/".join((attempts.directory(attempt), directory)).rstrip("/"))
            return self._inside(rewrite(staging, self._outside(small)))

        done = [
            committed(each)
            for each in compact(self._files, target_bytes, group, now_ms=lambda: at_ms, threads=self._threads)
        ]
        self.refresh()
        return _sum(done)

    def _layout_of_files(self) -> Layout | None:
        """Return the layout of a lake of an earlier version of pylogd, which did not record it."""
        path = next((file.path for commit in self._lake.history() for file in commit.added), None)
        if path is None:
            return None
        found = tuple(each.partition("=")[0] for each in path.split("/")[:-1])
        by = next((name for name, directories in DIRECTORIES.items() if directories == found), None)
        live = next(iter(self._lake.files()), None)
        if by is None or live is None:
            return None
        return Layout(by, "string" if self._files.has_strings(live, "value") else "binary")

    def clean(self, changed_before_ms: int) -> int:
        """Delete nothing: the next process that opens the lake deletes attempts that can't be committed any more."""
        return 0

    def _outside(self, files: Iterable[commits.DataFile]) -> list[DataFile]:
        return [DataFile(self._files.path(file.path), file.bytes, file.rows) for file in files]

    def _inside(self, files: Iterable[DataFile]) -> list[commits.DataFile]:
        root = self._files.path("")
        return [
            commits.DataFile(file.path.removeprefix(root), file.staged.removeprefix(root), file.bytes, file.rows)
            for file in files
        ]


def committed(commit: Commit) -> Committed:
    """Return a commit of the lake as an entry of a table's history."""
    end, counts = by_partition(commit.offsets), by_partition(commit.read)
    end = {partition: end[partition] for partition in counts}
    start = {partition: end[partition] - count for partition, count in counts.items()}
    return Committed(
        commit.number, commit.kind, commit.at_ms, LoadRange(start, end), commit.rows, len(commit.added), commit.size,
        sum(file.rows for file in commit.quarantined), len(commit.removed),
    )  # fmt: skip


def _sum(done: Sequence[Committed]) -> Committed | None:
    """Return the sum of several compactions, with the number of the last one."""
    if not done:
        return None
    return replace(
        done[-1],
        rows=sum(each.rows for each in done),
        files=sum(each.files for each in done),
        bytes=sum(each.bytes for each in done),
        replaced=sum(each.replaced for each in done),
    )
