"""The interface of tables of all formats: `Table`, and its arguments and results.

A load has three steps; its process may die after each:

1. On the driver: `position` tells up to which offsets the table is loaded. The load is planned from there: a
`LoadRange`.
2. In tasks: the rows are written to new files with unique names, to which nothing refers yet. `staging` is the attempt
to    which the files belong. If tasks in Python write the files, it is a `TaskStaging`, which is pickled, sent to the
tasks,    and returns a `DataFile` for each file. Files of failed and of repeated tasks are never committed; each format
deletes    them by age.
3. On the driver: `commit` adds the files and moves the position; it does both or neither.

What every format promises, and `tests/unit/lake/tables/contract.py` checks:

- A commit is atomic. It names the position at which the load was planned. If the position has changed since, for a
  partition that the load read, or to another topic of the same name, `commit` raises OffsetsMoved and adds nothing.
  After   other changes (a compaction, loads of other partitions) it is repeated on the changed table.
- So the same load can be committed only once: its offsets show if it was committed by another process, or by one that
  died before it knew. After `CommitConflict`, read `position` again and make a new plan.
- After any other error in `commit`, such as of the network, it is unknown whether the commit took effect: call
  `refresh`,   then read `position`. Nothing needs to be repaired by hand.
- A commit may have files of two tables: those of the table itself and those of its quarantine. They are committed
  together: the table's commit names the quarantine's files, and after a crash the next process that   opens the table
  adds them. So a reader may see the rows of the quarantine a moment later, but never misses them or sees   them twice.
- `evolve` adds columns, or widens their types, before files with these columns are written: formats give columns ids
  that the files must contain. It is a separate commit, and harmless if no load follows. It raises TableError for a
  change   that the format does not allow. Older files are not changed, and have nulls in new columns.
- An empty commit (no files, because the offsets moved over compacted or aborted records) moves the position.
- The layout is recorded when the table is made. Opening the table with another one raises LayoutChanged.
- Readers see only whole commits. `files` names the present files of the table, for readers without the format.

Must not know: Spark, brokers. The tables' packages import their libraries only when a table is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from pylogd.lake.tables.errors import LayoutChanged, TableError
from pylogd.lake.tables.position import LoadRange, Position

if TYPE_CHECKING:
    import pyarrow as pa

#: The way in which files are partitioned -> the columns whose values all rows of a file share.
DIRECTORIES: Final[Mapping[str, tuple[str, ...]]] = {
    "hour": ("topic", "date", "hour"),
    "day": ("topic", "date"),
    "topic": ("topic",),
}
#: Types of the column `value` of tables without a schema.
VALUE_KINDS: Final = ("binary", "string")


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of a table are stored. It is recorded in the table and does not change.

    by: a key of `DIRECTORIES`.
    value: the type of the column `value`: "binary" or "string"; or "columns" if the columns come from a registered
    schema.
    """

    by: str = "hour"
    value: str = "binary"

    def check(self, location: str, recorded: Layout | None) -> None:
        """Check that a table that was made with the layout `recorded` can be used with this one.

        recorded: None if the table records no layout, since another program made it.

        Raises LayoutChanged, or TableError if there is none.
        """
        if recorded is None:
            raise TableError(f"the table {location} was not made by pylogd: load into another table")
        for setting, given, before in (("by", self.by, recorded.by), ("value", self.value, recorded.value)):
            if given != before:
                raise LayoutChanged(location, setting, before, given)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file with rows of a table.

    path: the absolute path after the commit, with its scheme if it has one.
    staged: the absolute path where it was written, if the commit moves it; else empty.
    partition: the values of the columns in `DIRECTORIES`, which all of its rows share; empty if unknown.
    facts: further data of a new file for the table's format, such as statistics of its columns. Only the format reads
    it. It has to be picklable, since tasks return it to the driver.
    """

    path: str
    bytes: int
    rows: int
    staged: str = ""
    partition: Mapping[str, Any] = field(default_factory=dict)
    facts: Any = None


@dataclass(frozen=True, slots=True)
class Committed:
    """An entry of a table's history.

    number: the number of the commit, or the id that the format gave it.
    kind: "load", "compaction", or the format's name for a change that another program made.
    at_ms: the time of the commit, in milliseconds since 1970.
    read: the ranges of offsets that a load read.
    rows, files, bytes: the numbers of rows, files and bytes that it added.
    quarantined: the number of rows that it added to the quarantine.
    replaced: the number of files that it removed.
    """

    number: int
    kind: str
    at_ms: int
    read: LoadRange
    rows: int = 0
    files: int = 0
    bytes: int = 0
    quarantined: int = 0
    replaced: int = 0

    def as_row(self) -> dict[str, Any]:
        """Return the row of `pylogd load --history`."""
        return {
            "commit": self.number,
            "kind": self.kind,
            "at_ms": self.at_ms,
            "offsets": sum(self.read.read.values()),
            "rows": self.rows,
            "quarantined": self.quarantined,
            "files": self.files,
            "bytes": self.bytes,
            "replaced": self.replaced,
        }


def commit_with(history: Iterable[Committed], topic: str, partition: int, offset: int) -> Committed | None:
    """Return the commit that loaded an offset of a partition; None if the history does not have it.

    An offset of a topic that was deleted and created again may have been loaded twice: then the last commit counts.
    """
    found = None
    for commit in history:
        start = commit.read.start.get((topic, partition))
        if start is not None and start <= offset < commit.read.end[topic, partition]:
            found = commit
    return found


class FileWriter(Protocol):
    """Writes the rows of one task to files, in the directories of the layout."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows with the columns of the table, or of the quarantine, except the columns of `DIRECTORIES`."""

    def close(self) -> list[DataFile]:
        """Finish the files and return their facts."""

    def abort(self) -> None:
        """Close open files after an error. The files are garbage, even if they are not deleted."""


class NewWriter(Protocol):
    """Makes the writer of new files of a table, or of its quarantine."""

    def __call__(self, *, quarantine: bool = False) -> FileWriter: ...


class LoadFiles:
    """The files of a load in a process: those of the table, and those of its quarantine if it has any.

    added, quarantined: the files that are finished.
    """

    def __init__(self, new_writer: NewWriter) -> None:
        self._new_writer = new_writer
        self._good = new_writer()
        self._aside: FileWriter | None = None
        self.added: list[DataFile] = []
        self.quarantined: list[DataFile] = []

    def write(self, good: pa.RecordBatch, rest: pa.RecordBatch) -> None:
        """Add rows of the table, and rows of the quarantine."""
        self._good.write(good)
        if rest.num_rows:
            self._aside = self._aside or self._new_writer(quarantine=True)
            self._aside.write(rest)

    def finish(self) -> None:
        """Finish the open files. Raises OSError."""
        self.added += self._good.close()
        self.quarantined += [] if self._aside is None else self._aside.close()

    def abort(self) -> None:
        """Close open files after an error."""
        for writer in (self._good, self._aside):
            if writer is not None:
                writer.abort()


class TaskStaging(Protocol):
    """The files of one attempt at a commit, for tasks. It is pickled and sent to them.

    Several tasks run at once, and a task may run again for the same rows; so each writer writes to its own files.
    """

    def writer(self, *, quarantine: bool = False) -> FileWriter:
        """Return a writer of new files of the table, or of its quarantine."""

    def read(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Return the rows of a file of the table, in the form that `FileWriter.write` takes."""


class Rows(Protocol):
    """Converts records to rows of a table. It is pickled and sent to the tasks."""

    def convert(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the rows of the table, and the rows of its quarantine (`pylogd.lake.tables.records.of_quarantine`).

        records: the columns of the Spark source, with `headers` and `timestampMs`, the time stamp as a number;
        `timestamp` is null if the time stamp can't be represented.
        """


@dataclass(frozen=True, slots=True)
class SparkStaging:
    """The files of one attempt at a commit, for a format that adopts all files below a directory.

    directory: the absolute path, with its scheme, to which Spark writes.
    found: called on the driver when the job has succeeded, with a directory below `directory`, and whether its files
    are for the quarantine. Returns the files; names of directories such as `topic=flights` stay in their paths.
    create: opens a new file for writing, by its path below `directory`, for processes without Spark; None if only Spark
    can write there. Closing the file makes it durable.
    """

    directory: str
    found: Callable[[str, bool], list[DataFile]]
    create: Callable[[str], Any] | None = None


#: The function with which a compaction writes: it takes a staging and the files to merge, runs the tasks, and returns
#: the new files.
Rewrite = Callable[[TaskStaging | SparkStaging, Sequence[DataFile]], list[DataFile]]


class Table(Protocol):
    """A table of any format. Methods block on the file system or catalog, and raise TableError. Not threadsafe.

    An object sees the state of the table when it was opened, or at its last `refresh` or `commit`.
    """

    @property
    def format(self) -> str:
        """The format's name: "parquet", "iceberg" or "delta"."""

    @property
    def location(self) -> str:
        """The place of the table, as users name it."""

    @property
    def directory(self) -> str:
        """The directory of its files, with its scheme if it has one; empty if unknown before the table is made."""

    @property
    def quarantine(self) -> str:
        """The place of the quarantine, as users name it."""

    @property
    def exists(self) -> bool:
        """Whether the table has been made."""

    @property
    def position(self) -> Position:
        """The offsets up to which the table is loaded; empty if it does not exist."""

    @property
    def layout(self) -> Layout | None:
        """The layout that the table was made with; None if there is no table, or it is older than this record."""

    def refresh(self) -> None:
        """Read the commits of other processes, and complete a commit whose process died."""

    def create(self, layout: Layout, columns: pa.Schema | None = None) -> None:
        """Make the table unless it exists, then check its layout. Raises LayoutChanged.

        columns: the columns of a typed table; None for a table of records (`pylogd.lake.tables.records.of_records`).
        """

    @property
    def columns(self) -> pa.Schema | None:
        """The table's columns, with those of its directories; None if it does not exist or does not record them."""

    def evolve(self, columns: pa.Schema) -> None:
        """Add the columns that the table does not have, and widen the types of others.

        columns: all columns that rows have from now on. Other columns of the table stay.

        Raises TableError if a type can't be changed.
        """

    def staging(
        self, expected: Position | None = None, loading: LoadRange | None = None
    ) -> TaskStaging | SparkStaging:  # fmt: skip
        """Return a new attempt at a commit, with the present columns. Attempts do not disturb each other.

        expected, loading: the arguments that `commit` will get. A table may use them to find out later whether the
        attempt of a process that died can still be committed.
        """

    def commit(
        self, expected: Position, loading: LoadRange, added: Sequence[DataFile],
        quarantined: Sequence[DataFile] = (), *, at_ms: int,
    ) -> Committed:  # fmt: skip
        """Add the files of a load that was planned at the position `expected`, and move the position to the load's end.

        at_ms: the time for the history, in milliseconds since 1970.

        Raises OffsetsMoved, CommitConflict.
        """

    def history(self) -> Iterator[Committed]:
        """Return the commits that the table still has, the oldest first."""

    def files(self, number: int | None = None) -> list[DataFile]:
        """Return the data files of the table: the present ones, or those as of the commit with a number
        (`Committed.number`).

        Raises TableError if the table does not keep that commit any more.
        """

    def quarantined(self) -> list[DataFile]:
        """Return the files of the quarantine."""

    def compact(self, target_bytes: int, rewrite: Rewrite, *, at_ms: int) -> Committed | None:
        """Replace small files by files of about `target_bytes`. Return the commit; None if there was nothing to do.

        Loads may continue meanwhile. Raises CommitConflict if another process replaced one of the same files.
        """

    def clean(self, changed_before_ms: int) -> int:
        """Delete files of loaders that died: files that no commit names and that were last changed before a time.

        changed_before_ms: this time in milliseconds since 1970, well before the beginning of any running load.

        Returns the number of deleted files.
        """
