"""A Delta table as a `Table`.

Strategy: each load is one commit of the table's log, with the files, the record of the load as metadata, and the number
of the load as a transaction of the application `pylogd`. The number is a part of the table's state, so checkpoints keep
it. The record is looked up in the newest commits, back to the commit with that number. Commits of other programs
(optimize, vacuum) may lie between.

By default deltalake repeats a refused commit after checking for conflicts of files, but not of offsets. This is off.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from pylogd.base.clock import wall_ms
from pylogd.lake.tables.checks import check_columns, check_unchanged, own_columns
from pylogd.lake.tables.delta.features import check_features, unreadable
from pylogd.lake.tables.delta.staging import DeltaStaging, TableFiles
from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.interface import DIRECTORIES, Committed, DataFile, Layout, Rewrite
from pylogd.lake.tables.position import LoadRange, Position
from pylogd.lake.tables.recorded import (
    LoadRecord,
    Quarantine,
    RecordedTable,
    Refused,
    layout_json,
    layout_of,
    library_errors,
)
from pylogd.lake.tables.records import of_quarantine, of_records

if TYPE_CHECKING:
    import pyarrow as pa

#: The application of transactions, and the key of a commit's metadata.
_APP: Final = "pylogd"
_LAYOUT: Final = "pylogd.layout"
_SUFFIX: Final = "_quarantine"
#: The number of commits that are searched first, and its factor for each further search.
_LOOK: Final = 8
_HOUR_MS: Final = 3_600_000
_errors = partial(library_errors, "Delta")


class DeltaLakeTable(RecordedTable[DeltaTable]):
    """Implements `interface.Table` on a Delta table."""

    format = "delta"

    def __init__(
        self, uri: str, options: Mapping[str, str], *, codec: str = "zstd", read_only: bool = False
    ) -> None:  # fmt: skip
        """Open a table, which need not exist.

        uri: its directory (a path, s3://...).
        options: the options of its storage.
        codec: compression of new files.
        read_only: whether nothing is made or completed.
        """
        self._read_only = read_only
        self._uri = uri.rstrip("/") if "://" in uri else str(Path(uri).resolve())  # tasks have other directories
        self._options = dict(options)
        self._codec = codec
        self._staged: pa.Schema | None = None  # the columns of the written files
        self.refresh()

    @property
    def location(self) -> str:
        """The table's directory."""
        return self._uri

    @property
    def directory(self) -> str:
        """The table's directory."""
        return self._uri

    @property
    def quarantine(self) -> str:
        """The directory of the quarantine."""
        return self._uri + _SUFFIX

    @property
    def layout(self) -> Layout | None:
        """The layout that the table was made with; None if another program made it."""
        text = None if self._table is None else self._table.metadata().configuration.get(_LAYOUT)
        return None if text is None else layout_of(text, self.location)

    @property
    def columns(self) -> pa.Schema | None:
        """The table's columns."""
        return None if self._table is None else _columns(self._table)

    def create(self, layout: Layout, columns: pa.Schema | None = None) -> None:
        """Make the table unless it exists; then check its layout."""
        if self._table is None:
            made = of_records(layout) if columns is None else columns
            _create(self._uri, self._options, made, DIRECTORIES[layout.by], {_LAYOUT: layout_json(layout)})
            self._read()
        layout.check(self.location, self.layout)
        self._check()

    def _check(self) -> None:
        """Check that the table takes rows. Raises TableError, or CommitConflict if columns of files have changed."""
        table, layout = self._made(), self.layout
        if layout is None:
            return
        _check_table(table, self.location, own_columns(layout), DIRECTORIES[layout.by])
        if self._staged is not None:
            check_unchanged(self.location, self._staged, _columns(table))

    def evolve(self, columns: pa.Schema) -> None:
        """Add columns. Raises TableError if the type of a column would have to change."""
        table = self._made()
        known = _columns(table)
        for field in columns:
            if field.name in known.names and known.field(field.name).type != field.type:
                raise TableError(
                    f"column {field.name} of the Delta table {self.location} has the type "
                    f"{known.field(field.name).type}, which can't be changed to {field.type}"
                )
        new = [field.with_nullable(True) for field in columns if field.name not in known.names]
        if new:
            with _errors(self.location):
                table.alter.add_columns(list(_delta_schema(new).fields))
            self._read()

    def staging(self, expected: Position | None = None, loading: LoadRange | None = None) -> DeltaStaging:
        """Return a new attempt at a commit."""
        layout = self.layout
        assert layout is not None
        self._staged = None
        self._check()
        self._quarantine().check()  # makes it, since tasks can't write to a missing directory
        self._staged = _columns(self._made())
        return DeltaStaging(
            TableFiles(self._uri, self._options, self._staged, DIRECTORIES[layout.by]),
            TableFiles(self._uri + _SUFFIX, self._options, of_quarantine(), ("topic",)),
            self._codec,
        )

    def history(self) -> Iterator[Committed]:
        """Return the commits that the log still has, the oldest first."""
        if self._table is None:
            return iter(())
        with _errors(self.location):
            return map(_committed, reversed(self._table.history()))

    def files(self, number: int | None = None) -> list[DataFile]:
        """Return the data files of the table: the present ones, or those of a version."""
        table = self._table if number is None else _open(self._uri, self._options, number)
        if table is not None:
            _check_no_deletions(table)
        return [] if table is None else _data_files(table)

    def quarantined(self) -> list[DataFile]:
        """Return the files of the quarantine."""
        found = _open(self._uri + _SUFFIX, self._options)
        return [] if found is None else _data_files(found)

    def compact(self, target_bytes: int, rewrite: Rewrite, *, at_ms: int) -> Committed | None:
        """Merge small files. deltalake does it in this process."""
        table = self._made()
        self._check()
        _check_no_deletions(table)
        with _errors(self.location):
            properties = CommitProperties(custom_metadata={f"{_APP}.kind": "compaction"})
            found = table.optimize.compact(target_size=target_bytes, commit_properties=properties)
        self.refresh()
        if not found["numFilesAdded"]:
            return None
        return Committed(
            self._number(), "compaction", at_ms, LoadRange({}, {}), 0, found["numFilesAdded"],
            _total(found["filesAdded"]), replaced=found["numFilesRemoved"],
        )  # fmt: skip

    def clean(self, changed_before_ms: int) -> int:
        """Delete files, also of the quarantine, that no version of the log names, or only versions before the time."""
        hours = max((wall_ms() - changed_before_ms) // _HOUR_MS, 0)
        tables = [each for each in (self._made(), _open(self._uri + _SUFFIX, self._options)) if each is not None]
        for table in tables:
            check_features(table, table.table_uri)
            _check_no_deletions(table)
        with _errors(self.location):
            return sum(
                len(table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)) for table in tables
            )

    def _read(self) -> None:
        self._table = _open(self._uri, self._options)
        self._record = LoadRecord() if self._table is None else _last_record(self._table, self.location)

    def _number(self) -> int:
        return self._made().version()

    def _append(self, record: LoadRecord, added: Sequence[DataFile], at_ms: int) -> int:
        table = self._made()
        append(
            table, [_action(file, at_ms) for file in added], record.number,
            {_APP: record.as_json(), f"{_APP}.kind": "load", **_added(added)},
        )  # fmt: skip
        return table.version()

    def _quarantine(self) -> _DeltaQuarantine:
        return _DeltaQuarantine(self._uri + _SUFFIX, self._options)


class _DeltaQuarantine(Quarantine):
    """The quarantine: the table with `_quarantine` after its name."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        self._uri = uri
        self._options = options
        if _open(uri, options) is None:
            _create(uri, options, of_quarantine(), ("topic",), {})
        self.refresh()

    @property
    def number(self) -> int:
        """The number of the last load whose files it has."""
        return _load_number(self._table)

    def refresh(self) -> None:
        """Read the commits of other processes."""
        table = _open(self._uri, self._options)
        if table is None:
            raise TableError(f"the quarantine {self._uri} was deleted")
        self._table = table

    def check(self) -> None:
        """Check that the table takes rows. Raises TableError."""
        _check_table(self._table, self._uri, of_quarantine(), ("topic",))

    def append(self, number: int, files: Sequence[DataFile]) -> None:
        """Add the files of a load. The only statistic is the number of rows, which the table's record has."""
        self.check()
        actions = [
            AddAction(file.path, file.bytes, file.partition, 0, True, json.dumps({"numRecords": file.rows}))
            for file in files
        ]
        append(self._table, actions, number, {f"{_APP}.kind": "load"})


def append(table: DeltaTable, actions: Sequence[AddAction], number: int, metadata: Mapping[str, Any]) -> None:
    """Add files in one commit with the number of the load. Raises Refused if the table has changed.

    Afterwards `table` has this commit. The commit is not retried, so it directly follows the version that was read.
    """
    version = table.version() + 1
    properties = CommitProperties(
        custom_metadata=dict(metadata), max_commit_retries=0, app_transactions=[Transaction(_APP, number)]
    )
    with _errors(table.table_uri):
        try:
            table.create_write_transaction(
                list(actions), "append", table.schema(), table.metadata().partition_columns,
                commit_properties=properties,
            )  # fmt: skip
        except CommitFailedError as error:
            raise Refused from error
        table.load_as_version(version)


def _open(uri: str, options: Mapping[str, str], version: int | None = None) -> DeltaTable | None:
    with _errors(uri):
        try:
            return DeltaTable(uri, version=version, storage_options=dict(options) or None)
        except TableNotFoundError as error:
            if "Unknown scheme" in str(error):
                raise
            return None
        except DeltaError as error:
            raise unreadable(uri, error) or error from error


def _create(
    uri: str, options: Mapping[str, str], columns: pa.Schema, directories: Sequence[str], settings: Mapping[str, str]
) -> None:
    """Make a table. If another process makes it meanwhile, use that table."""
    with _errors(uri):
        DeltaTable.create(
            uri, columns, mode="ignore", partition_by=list(directories), configuration=dict(settings),
            storage_options=dict(options) or None, raise_if_key_not_exists=False,
        )  # fmt: skip


def _load_number(table: DeltaTable) -> int:
    return table.transaction_version(_APP) or 0


def _last_record(table: DeltaTable, where: str) -> LoadRecord:
    """Return the record of the last load. Raises TableError if the log does not have its commit any more."""
    number = _load_number(table)
    if not number:
        return LoadRecord()
    limit = _LOOK
    while True:
        with _errors(where):
            commits = table.history(limit)
        for commit in commits:
            if _APP in commit and commit["version"] <= table.version():
                record = LoadRecord.from_json(commit[_APP], where)
                if record.number == number:
                    return record
        if len(commits) < limit:
            raise TableError(
                f"the log of the Delta table {where} does not have the commit of load {number} any more, so it is not "
                "known up to which offsets it was loaded: load into another table. Raise delta.logRetentionDuration "
                "above the longest time between two loads"
            )
        limit *= _LOOK


def _check_table(table: DeltaTable, where: str, own: pa.Schema, directories: Sequence[str]) -> None:
    """Check that a table takes rows with the columns `own`. Raises TableError."""
    check_features(table, where)
    check_columns(where, _columns(table), own)
    found = tuple(table.metadata().partition_columns)
    if found != tuple(directories):
        raise TableError(
            f"the table {where} is partitioned by {', '.join(found) or 'nothing'} now, and was by "
            f"{', '.join(directories)}: another program changed it. Nothing was added; load into another table"
        )


def _check_no_deletions(table: DeltaTable) -> None:
    """Raise TableError if rows of the table's files are deleted by deletion vectors."""
    import pyarrow as pa  # noqa: PLC0415

    with _errors(table.table_uri):
        found = pa.table(table.deletion_vectors()).num_rows
    if found:
        raise TableError(
            f"{found} files of the Delta table {table.table_uri} have rows that deletion vectors delete, which readers "
            "of the files alone would see, and deltalake does not keep when it merges or deletes files: remove them "
            "first (REORG TABLE ... APPLY (PURGE), then VACUUM), or read the table by its format"
        )


def _added(added: Sequence[DataFile]) -> dict[str, int]:
    """Return what a load added, for the commit's metadata."""
    return {
        f"{_APP}.rows": sum(file.rows for file in added),
        f"{_APP}.files": len(added),
        f"{_APP}.bytes": sum(file.bytes for file in added),
    }


def _action(file: DataFile, at_ms: int) -> AddAction:
    return AddAction(file.path, file.bytes, file.partition, at_ms, True, file.facts)


def _columns(table: DeltaTable) -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415

    return pa.schema(table.schema().to_arrow())


def _delta_schema(fields: Sequence[pa.Field]) -> Any:
    import pyarrow as pa  # noqa: PLC0415
    from deltalake import Schema  # noqa: PLC0415

    return Schema.from_arrow(pa.schema(fields))


def _data_files(table: DeltaTable) -> list[DataFile]:
    import pyarrow as pa  # noqa: PLC0415

    with _errors(table.table_uri):
        found = pa.table(table.get_add_actions(flatten=True)).select(["path", "size_bytes", "num_records"])
        root = table.table_uri.rstrip("/")
    return [
        DataFile(f"{root}/{each['path']}", each["size_bytes"], each["num_records"] or 0) for each in found.to_pylist()
    ]


def _committed(commit: Mapping[str, Any]) -> Committed:
    version, at_ms = int(commit["version"]), int(commit.get("timestamp", 0))
    if _APP in commit:
        record = LoadRecord.from_json(commit[_APP], "the table")
        rows, files, size = (int(commit.get(f"{_APP}.{name}", 0)) for name in ("rows", "files", "bytes"))
        aside = sum(file.rows for file in record.quarantined)
        return Committed(version, "load", at_ms, record.loading, rows, files, size, aside)
    kind = commit.get(f"{_APP}.kind") or str(commit.get("operation", "other")).lower()
    return Committed(version, kind, at_ms, LoadRange({}, {}))


def _total(said: Any) -> int:
    """Return the bytes of files that optimize reports, as a document or as its JSON."""
    document = json.loads(said) if isinstance(said, str) else said
    return int(document["totalSize"])
