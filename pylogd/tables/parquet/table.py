"""The Parquet lake as a `Table`. Its files are written by Spark itself, on any file system that Hadoop has.

Must not know: Spark; its part is `SparkFiles`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from pylogd.tables.errors import TableError
from pylogd.tables.interface import Committed, DataFile, Layout, Rewrite, SparkStaging
from pylogd.tables.parquet import lake
from pylogd.tables.positions import LoadRange, Position, by_partition

if TYPE_CHECKING:
    import pyarrow as pa


class SparkFiles(lake.Files, Protocol):
    """`Files` of the file system that Spark writes to."""

    @property
    def root(self) -> str:
        """The lake's directory, absolute with its scheme."""

    def path(self, relative: str) -> str:
        """Return the absolute path, with its scheme, of a path relative to the root."""

    def data_files(self, directory: str) -> list[tuple[str, int]]:
        """Return (path, size in bytes) of all files below a directory whose names don't begin with `_` or a point."""

    def parquet_rows(self, path: str) -> int:
        """Return the number of rows of a Parquet file, from its footer."""


class LakeTable:
    """Implements `interface.Table` on a Parquet lake."""

    format = "parquet"

    def __init__(self, files: SparkFiles) -> None:
        self._files = files
        self._lake = lake.Lake(files)

    @property
    def location(self) -> str:
        """The lake's directory."""
        return self._files.root

    @property
    def exists(self) -> bool:
        """Whether the lake has a commit."""
        return self._lake.last is not None

    @property
    def position(self) -> Position:
        """Up to where the lake is."""
        return self._lake.position

    @property
    def layout(self) -> Layout | None:
        """The layout that the lake was made with. It is not recorded yet."""
        return None

    def refresh(self) -> None:
        """See what others have committed, and complete a commit that a process left when it died."""
        self._lake = lake.Lake(self._files)

    def create(self, layout: Layout, columns: pa.Schema | None = None) -> None:
        """Do nothing: a lake is made by its first commit."""

    def staging(self) -> SparkStaging:
        """Return a new attempt at a commit."""
        return self._staging(self._lake.staging())

    def _staging(self, directory: str) -> SparkStaging:
        def found(below: str, quarantine: bool) -> list[DataFile]:
            inside = f"{directory}/{below}" if below else directory
            return [
                self._outside(
                    lake.DataFile(
                        self._lake.target_path(path, below, quarantine=quarantine),
                        path,
                        size,
                        self._files.parquet_rows(path),
                    )
                )
                for path, size in self._files.data_files(inside)
            ]

        return SparkStaging(self._files.path(directory), found)

    def commit(
        self, expected: Position, loading: LoadRange, added: Sequence[DataFile],
        quarantined: Sequence[DataFile] = (), *, at_ms: int, columns: pa.Schema | None = None,
    ) -> Committed:  # fmt: skip
        """Add the files of a load. Raises CommitConflict if anybody has committed since the lake was opened."""
        if columns is not None:
            raise TableError("typed columns in a Parquet lake are not supported yet: use an Iceberg or a Delta table")
        self.position.check(expected, loading)
        commit = lake.load_commit(
            self._lake.last, self._lake.next_number, at_ms, loading,
            [self._inside(file) for file in added], [self._inside(file) for file in quarantined],
        )  # fmt: skip
        self._lake.commit(commit)
        return committed(commit)

    def history(self) -> Iterator[Committed]:
        """Return the commits, the oldest first."""
        return map(committed, self._lake.history())

    def files(self) -> list[DataFile]:
        """Return the data files of the lake as it is."""
        return [self._outside(file) for file in self._lake.files().values()]

    def quarantined(self) -> list[DataFile]:
        """Return the files of the quarantine."""
        return [self._outside(file) for file in self._lake.quarantined()]

    def compact(self, target_bytes: int, rewrite: Rewrite, *, at_ms: int) -> Committed | None:
        """Replace small files of each directory by large ones. Raises CommitConflict if anybody has committed."""
        small = lake.small_files(self._lake.files(), target_bytes)
        if not small or self._lake.last is None:
            return None
        added: list[lake.DataFile] = []
        for directory, group in sorted(small.items()):
            staging = self._staging(f"{self._lake.staging()}/{directory}")
            added += map(self._inside, rewrite(staging, [self._outside(file) for file in group]))
        removed = [file for group in small.values() for file in group]
        before, after = sum(file.rows for file in removed), sum(file.rows for file in added)
        if before != after:
            raise TableError(f"compacting {before} rows wrote {after}: nothing was committed")
        commit = lake.compaction_commit(self._lake.last, at_ms, added, [file.path for file in removed])
        self._lake.commit(commit)
        return committed(commit)

    def _outside(self, file: lake.DataFile) -> DataFile:
        return DataFile(self._files.path(file.path), file.bytes, file.rows, self._files.path(file.staged))

    def _inside(self, file: DataFile) -> lake.DataFile:
        root = self._files.path("")
        return lake.DataFile(file.path.removeprefix(root), file.staged.removeprefix(root), file.bytes, file.rows)


def committed(commit: lake.Commit) -> Committed:
    """Return a commit of the lake as an entry of a table's history."""
    end, counts = by_partition(commit.offsets), by_partition(commit.read)
    end = {partition: end[partition] for partition in counts}
    start = {partition: end[partition] - count for partition, count in counts.items()}
    return Committed(
        commit.number, commit.kind, commit.at_ms, LoadRange(start, end), commit.rows, len(commit.added), commit.size,
        sum(file.rows for file in commit.quarantined), len(commit.removed),
    )  # fmt: skip
