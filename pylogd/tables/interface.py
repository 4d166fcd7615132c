"""The interface of tables of all formats: `Table`, and its arguments and results.

A load has three steps, each of which may be the last one of its process:

1. On the driver: `position` says up to where the table is. The load is planned from there: a `LoadRange`.
2. In tasks: the rows are written to new files, each with a unique name. Nothing refers to them yet. `staging` is the
   attempt that the files belong to; of a table whose files are written by tasks in Python it is a `TaskStaging`, which
   is pickled, sent to the tasks, and returns a `DataFile` for each file. Files of failed tasks, and of the repeated
   attempts that Spark makes, are never committed; each format deletes them by age.
3. On the driver: `commit` adds the files and moves the position, both or neither.

What every format promises, and `tests/unit/tables/contract.py` checks:

- A commit is atomic. It names the position that the load was planned at. If the table has moved since, for a partition
  that the load read, or to another topic of the same name, `commit` raises OffsetsMoved and adds nothing. If others
  changed anything else (a compaction, loads of other partitions), it is repeated on the table as it is then.
- So the same load can be committed once only: a load that was committed by a process that died before it knew, or by
  another process, is refused by its offsets. After `CommitConflict` read `position` again, and plan anew.
- Any other error in `commit` (a network that fails) leaves open whether the commit took effect. `refresh`, then
  `position`, tells. Nothing needs to be repaired by hand.
- A commit may have files of two tables: those of the table itself and those of its quarantine. They are committed
  together: the quarantine's files are named in the table's commit, and whoever opens the table next completes what a
  crash left. So a reader may see the rows of the quarantine a moment later, but never lose them or see them twice.
- `evolve` adds columns, or widens their types, before the files that have them are written: formats give columns ids
  that the files must contain. It is a commit of its own, and harmless if the load after it never happens. What the
  format can't change raises TableError. Older files stay as they are, and have nulls in new columns.
- An empty commit (no files; offsets that moved over compacted or aborted records) moves the position.
- The layout is recorded when the table is made. Opening the table with another one raises LayoutChanged.
- Readers see whole commits only. `files` names the files of the table as it is, for readers without the format.

Must not know: Spark, brokers. The tables' packages import their libraries only when a table is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from pylogd.tables.errors import LayoutChanged, TableError
from pylogd.tables.position import LoadRange, Position

if TYPE_CHECKING:
    import pyarrow as pa

#: How files are partitioned -> the columns whose values all rows of a file have in common.
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

    by: a key of `DIRECTORIES`. value: the type of the column `value`, "binary" or "string"; "columns" in a table whose
    columns come from a registered schema.
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

    path: where it is after the commit, absolute with its scheme if it has one. staged: the same of where it was
    written, if the commit moves it; else empty.
    partition: the values that all its rows have in common, of the columns in `DIRECTORIES`; empty where unknown.
    facts: what else the table's format has to know of a new file, such as statistics of its columns. Only the format
    looks at it; it has to be picklable, since tasks return it to the driver.
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

    number: the number of the commit, or the id that the format gave it. kind: "load", "compaction", or what else the
    format calls a change that was not made by pylogd. at_ms: when, in milliseconds since 1970.
    read: of a load, the ranges of offsets that it read. rows, files, bytes: what it added. quarantined: rows that it
    added to the quarantine. replaced: how many files it removed.
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


class FileWriter(Protocol):
    """Writes the rows of one task to files, in the directories of the layout."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows. They have the columns of the table, or of the quarantine, without the columns of `DIRECTORIES`."""

    def close(self) -> list[DataFile]:
        """Finish the files and return their facts."""

    def abort(self) -> None:
        """Close open files after an error. The files are garbage, even if they are not deleted."""


class TaskStaging(Protocol):
    """The files of one attempt at a commit, as tasks see it. It is pickled and sent to them.

    Tasks run several times at once, and again for the same rows; each writer writes to files of its own.
    """

    def writer(self, *, quarantine: bool = False) -> FileWriter:
        """Return a writer of new files of the table, or of its quarantine."""

    def read(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Return the rows of a file of the table, as `FileWriter.write` takes them."""


class Rows(Protocol):
    """How records become rows of a table. It is pickled and sent to the tasks."""

    def convert(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the rows of the table, and the rows of its quarantine (`pylogd.tables.columns.of_quarantine`).

        records: the columns of the Spark source, with `headers` and `timestampMs`, the time stamp as a number;
        `timestamp` is null where it can't be represented.
        """


@dataclass(frozen=True, slots=True)
class SparkStaging:
    """The files of one attempt at a commit, of a format that adopts all files below a directory, whoever wrote them.

    directory: where Spark writes, absolute with its scheme. found: called on the driver when the job has succeeded;
    returns the files below a directory inside of it. Arguments: that directory, and whether the files are for the
    quarantine. The names of the directories between, such as `topic=flights`, stay in the files' paths.
    create: opens a new file for writing, by its path below `directory`, for processes that write without Spark; None if
    only Spark can write there. Closing the file makes it durable.
    """

    directory: str
    found: Callable[[str, bool], list[DataFile]]
    create: Callable[[str], Any] | None = None


#: How a compaction writes: called with a staging and the files to merge, returns the new files. It runs the tasks.
Rewrite = Callable[[TaskStaging | SparkStaging, Sequence[DataFile]], list[DataFile]]


class Table(Protocol):
    """A table of any format. Methods wait for the file system or catalog, and raise TableError. Not threadsafe.

    An object sees the table as it was when it was opened, or at its last `refresh` or `commit`.
    """

    @property
    def format(self) -> str:
        """The format's name: "parquet", "iceberg" or "delta"."""

    @property
    def location(self) -> str:
        """Where the table is, as users name it."""

    @property
    def directory(self) -> str:
        """Where its files are: a directory, with its scheme if it has one; empty if not known before it is made."""

    @property
    def quarantine(self) -> str:
        """Where the quarantine is, as users name it."""

    @property
    def exists(self) -> bool:
        """Whether the table has been made."""

    @property
    def position(self) -> Position:
        """Up to where the table is; empty if it does not exist."""

    @property
    def layout(self) -> Layout | None:
        """The layout that the table was made with; None if it does not exist, or is older than this record."""

    def refresh(self) -> None:
        """See what others have committed, and complete a commit that a process left when it died."""

    def create(self, layout: Layout, columns: pa.Schema | None = None) -> None:
        """Make the table unless it exists; then check its layout. Raises LayoutChanged.

        columns: the columns of a typed table; None for those of records, `pylogd.tables.columns.of_records`.
        """

    @property
    def columns(self) -> pa.Schema | None:
        """The table's columns, with those of its directories; None if it does not exist or does not record them."""

    def evolve(self, columns: pa.Schema) -> None:
        """Add the columns that the table does not have, and widen the types of others.

        columns: all columns that rows have from now on. Those of the table that are not among them stay. Raises
        TableError if a type can't be changed.
        """

    def staging(
        self, expected: Position | None = None, loading: LoadRange | None = None
    ) -> TaskStaging | SparkStaging:  # fmt: skip
        """Return a new attempt at a commit, with the columns as they are. Attempts do not disturb each other.

        expected, loading: what will be passed to `commit`. A table may use them to find out later whether the attempt
        of a process that died can still be committed.
        """

    def commit(
        self, expected: Position, loading: LoadRange, added: Sequence[DataFile],
        quarantined: Sequence[DataFile] = (), *, at_ms: int,
    ) -> Committed:  # fmt: skip
        """Add the files of a load that was planned at the position `expected`, and move the position to its end.

        at_ms: the time for the history, in milliseconds since 1970. Raises OffsetsMoved, CommitConflict.
        """

    def history(self) -> Iterator[Committed]:
        """Return the commits, the oldest first, as far back as the table keeps them."""

    def files(self, number: int | None = None) -> list[DataFile]:
        """Return the data files of the table, as of now or of the commit with a number (`Committed.number`).

        Raises TableError if the table does not keep that commit any more.
        """

    def quarantined(self) -> list[DataFile]:
        """Return the files of the quarantine."""

    def compact(self, target_bytes: int, rewrite: Rewrite, *, at_ms: int) -> Committed | None:
        """Replace small files by files of about `target_bytes`. Return the commit; None if there was nothing to do.

        Loads may continue meanwhile. Raises CommitConflict if another process replaced one of the same files.
        """

    def clean(self, changed_before_ms: int) -> int:
        """Delete files of loaders that died: files that no commit names and that are older than a time.

        changed_before_ms: in milliseconds since 1970, well before the beginning of any load that is running. Returns
        how many files were deleted.
        """
