"""An Iceberg table as a `Table`.

Strategy: the record of the last load is in the table's properties; the range of each load is also in the summary of its
snapshot. Snapshots of other programs (a compaction by Spark or Trino) have no such summary, and expiry removes old
snapshots, so only the properties have the table's position. Each load makes a snapshot, even if it is empty: a commit
is refused if the table's snapshot has changed since the plan, and nothing else would refuse a second commit.

By default pyiceberg repeats a refused commit, which adds the files although another loader has added the same records.
This is switched off only for our commits, by a change of the property in memory.

Each commit writes all metadata again, which would grow for ever with a load every few seconds. So manifests are merged
and old metadata files deleted, as the table's properties say, and every `_EXPIRE_EVERY` loads the snapshots that are
older than `history.expire.max-snapshot-age-ms` are expired.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table import Table as Loaded
from pyiceberg.table import TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertCurrentSchemaId, AssertDefaultSpecId
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform
from pyiceberg.typedef import Record

from pylogd.lake.tables.checks import check_columns, check_unchanged, own_columns
from pylogd.lake.tables.errors import CommitConflict, TableError
from pylogd.lake.tables.iceberg.features import check_deletes_files, check_features, deletes_files, renamed
from pylogd.lake.tables.iceberg.staging import IcebergStaging, TableFiles, delete_orphans
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
    read_document,
    read_range,
)
from pylogd.lake.tables.records import of_quarantine, of_records

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema

    from pylogd.lake.tables.iceberg.catalogs import TableName

#: Properties of the table.
_RECORD: Final = "pylogd.last-load"
_LAYOUT: Final = "pylogd.layout"
_NUMBER: Final = "pylogd.load-number"
#: Entries of a snapshot's summary.
_READ: Final = "pylogd.read"
_KIND: Final = "pylogd.kind"
_QUARANTINED: Final = "pylogd.quarantined-records"
_SUFFIX: Final = "_quarantine"
#: Properties of tables that pylogd makes. Users may change them.
_SETTINGS: Final = {
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    TableProperties.MAX_SNAPSHOT_AGE_MS: str(24 * 3_600_000),  # short, since each snapshot makes commits more expensive
}
_EXPIRE_EVERY: Final = 100
_errors = partial(library_errors, "Iceberg")


class IcebergTable(RecordedTable[Loaded]):
    """Implements `interface.Table` on an Iceberg table."""

    format = "iceberg"

    def __init__(self, catalog: Catalog, name: TableName, *, codec: str = "zstd", read_only: bool = False) -> None:
        """Open a table, which need not exist.

        codec: compression of new files.
        read_only: whether no commits are completed.

        Raises TableError.
        """
        self._read_only = read_only
        self._catalog = catalog
        self._name = name
        self._codec = codec
        self._staged: IcebergStaging | None = None
        self.refresh()

    @property
    def location(self) -> str:
        """The names of namespace and table, after the warehouse if the catalog is in the warehouse."""
        return str(self._name)

    @property
    def directory(self) -> str:
        """The directory that the catalog has given the table; empty before the table is made."""
        return "" if self._table is None else str(self._table.location())

    @property
    def quarantine(self) -> str:
        """The name of the quarantine."""
        return str(self._name) + _SUFFIX

    @property
    def layout(self) -> Layout | None:
        """The layout that the table was made with; None if another program made it."""
        text = None if self._table is None else self._table.metadata.properties.get(_LAYOUT)
        return None if text is None else layout_of(text, self.location)

    @property
    def columns(self) -> pa.Schema | None:
        """The table's columns."""
        return None if self._table is None else _arrow(self._table.schema())

    def create(self, layout: Layout, columns: pa.Schema | None = None) -> None:
        """Make the table, and its quarantine, unless they exist; then check the layout."""
        with _errors(self.location):
            if self._table is None:
                self._table = _create(
                    self._catalog, self._identifier(), of_records(layout) if columns is None else columns,
                    DIRECTORIES[layout.by], {_LAYOUT: layout_json(layout)},
                )  # fmt: skip
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
            staged = self._staged.table
            check_unchanged(self.location, _arrow(staged.schema), _arrow(table.schema()))
            if staged.spec.spec_id != table.spec().spec_id:
                raise CommitConflict(
                    f"another program changed the partition spec of the Iceberg table {self.location} while rows were "
                    "written. Nothing was added; run the loader again"
                )

    def evolve(self, columns: pa.Schema) -> None:
        """Add columns and widen types."""
        table = self._made()
        with _errors(self.location), table.update_schema() as update:
            update.union_by_name(columns)
        self._read()

    def staging(self, expected: Position | None = None, loading: LoadRange | None = None) -> IcebergStaging:
        """Return a new attempt at a commit."""
        layout = self.layout
        assert layout is not None
        self._staged = None
        self._check()
        quarantine = self._quarantine()
        quarantine.check()
        self._staged = IcebergStaging(
            _files_of(self._made(), DIRECTORIES[layout.by]), _files_of(quarantine.table, ("topic",)), self._codec
        )
        return self._staged

    def history(self) -> Iterator[Committed]:
        """Return the commits whose snapshots have not been expired yet, the oldest first."""
        snapshots = [] if self._table is None else self._table.metadata.snapshots
        return map(_committed, sorted(snapshots, key=lambda each: each.sequence_number or 0))

    def files(self, number: int | None = None) -> list[DataFile]:
        """Return the data files of the table: the present ones, or those of a snapshot."""
        return [] if self._table is None else _data_files(self._table, number)

    def quarantined(self) -> list[DataFile]:
        """Return the files of the quarantine."""
        return [] if self._table is None else _data_files(self._quarantine().table)

    def compact(self, target_bytes: int, rewrite: Rewrite, *, at_ms: int) -> Committed | None:
        """Raise TableError: engines for Iceberg compact its tables."""
        raise TableError(
            "pylogd does not compact Iceberg tables: use an engine's procedure, such as Spark's rewrite_data_files. It "
            "may run beside a loader"
        )

    def clean(self, changed_before_ms: int) -> int:
        """Delete files of loaders that died, also of the quarantine."""
        tables = self._made(), self._quarantine().table
        for each in tables:
            check_deletes_files(each, ".".join(each.name()))
        with _errors(self.location):
            return sum(delete_orphans(each, changed_before_ms) for each in tables)

    def _identifier(self, suffix: str = "") -> tuple[str, ...]:
        return (*self._name.namespace.split("."), self._name.table + suffix)

    def _read(self) -> None:
        with _errors(self.location):
            try:
                self._table = self._catalog.load_table(self._identifier())
            except NoSuchTableError:
                self._table = None
        text = None if self._table is None else self._table.metadata.properties.get(_RECORD)
        self._record = LoadRecord() if text is None else LoadRecord.from_json(text, self.location)

    def _number(self) -> int:
        snapshot = self._made().current_snapshot()
        return 0 if snapshot is None else snapshot.snapshot_id

    def _append(self, record: LoadRecord, added: Sequence[DataFile], at_ms: int) -> int:
        summary = {
            _KIND: "load",
            _NUMBER: str(record.number),
            _READ: json.dumps(read_document(record.loading), separators=(",", ":")),
            _QUARANTINED: str(sum(file.rows for file in record.quarantined)),
        }
        self._table = append(self._made(), list(map(_manifest_entry, added)), {_RECORD: record.as_json()}, summary)
        number = self._number()
        if record.number % _EXPIRE_EVERY == 0 and deletes_files(self._table):
            self._table = expire(self._table, at_ms)
        return number

    def _quarantine(self) -> _IcebergQuarantine:
        return _IcebergQuarantine(self._catalog, self._identifier(_SUFFIX))


class _IcebergQuarantine(Quarantine):
    """The quarantine: the table with `_quarantine` after its name."""

    def __init__(self, catalog: Catalog, identifier: tuple[str, ...]) -> None:
        self._catalog = catalog
        self._identifier = identifier
        with _errors(".".join(identifier)):
            try:
                self.table = catalog.load_table(identifier)
            except NoSuchTableError:
                self.table = _create(catalog, identifier, of_quarantine(), ("topic",), {})

    @property
    def number(self) -> int:
        """The number of the last load whose files it has."""
        return int(self.table.metadata.properties.get(_NUMBER, "0"))

    def refresh(self) -> None:
        """Read the commits of other processes."""
        with _errors(".".join(self._identifier)):
            self.table = self._catalog.load_table(self._identifier)

    def check(self) -> None:
        """Check that the table takes rows. Raises TableError."""
        _check_table(self.table, ".".join(self._identifier), of_quarantine(), ("topic",))

    def append(self, number: int, files: Sequence[DataFile]) -> None:
        """Add the files of a load. Their footers are read, since the table's record has no statistics."""
        self.check()
        with _errors(".".join(self._identifier)):
            entries = [parquet_file_to_data_file(self.table.io, self.table.metadata, file.path) for file in files]
            self.table = append(self.table, entries, {_NUMBER: str(number)}, {_NUMBER: str(number)})


def append(
    table: Loaded, files: Sequence[IcebergFile], properties: Mapping[str, str], summary: Mapping[str, str]
) -> Loaded:
    """Add files and set properties in one commit, which makes a snapshot even without files.

    Returns the table with this commit. Raises Refused if the table's snapshot has changed.
    """
    # only for this object: other users of pyiceberg and other engines read the property too
    table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
    with _errors(".".join(table.name())):
        try:
            transaction = _Commit(table)
            transaction.require_same_columns()
            with transaction.update_snapshot(snapshot_properties=dict(summary)).merge_append() as adding:
                for file in files:
                    adding.append_data_file(file)
            transaction.set_properties(dict(properties))
            return transaction.commit_transaction()
        except (CommitFailedException, ValidationException) as error:
            raise Refused from error


class _Commit(Transaction):
    """A transaction that does not copy the metadata before it has changed it.

    pyiceberg copies all metadata at each access, 17 times a commit, and the metadata grows with the snapshots.
    """

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata with the changes of the transaction."""
        return super().table_metadata if self._updates else self._table.metadata

    def require_same_columns(self) -> None:
        """Have the commit refused if columns or the partition spec have changed since the table was read.

        pyiceberg itself only checks the snapshot.
        """
        now = self._table.metadata
        self._requirements += (
            AssertCurrentSchemaId.model_validate({"current-schema-id": now.current_schema_id}),
            AssertDefaultSpecId.model_validate({"default-spec-id": now.default_spec_id}),
        )


def expire(table: Loaded, now_ms: int) -> Loaded:
    """Expire the snapshots that the table's properties allow to. Return the table without them.

    If the table has changed meanwhile, nothing is done until the next call.
    """
    own = table.metadata.properties
    age = int(own.get(TableProperties.MAX_SNAPSHOT_AGE_MS, TableProperties.MAX_SNAPSHOT_AGE_MS_DEFAULT))
    keep = int(own.get(TableProperties.MIN_SNAPSHOTS_TO_KEEP, TableProperties.MIN_SNAPSHOTS_TO_KEEP_DEFAULT))
    protected = {each.snapshot_id for each in table.metadata.refs.values()}
    newest_first = sorted(table.metadata.snapshots, key=lambda each: -each.timestamp_ms)
    old = [each.snapshot_id for each in newest_first[keep:] if each.timestamp_ms < now_ms - age]
    found = [each for each in old if each not in protected]
    with _errors(".".join(table.name())):
        if found:
            with suppress(CommitFailedException):
                table.maintenance.expire_snapshots().by_ids(found).commit()
            table.refresh()
    return table


def _create(
    catalog: Catalog, identifier: tuple[str, ...], columns: pa.Schema, directories: Sequence[str],
    properties: Mapping[str, str],
) -> Loaded:  # fmt: skip
    """Make a table with its namespace. If another process makes it meanwhile, return that table."""
    with suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace(identifier[:-1])
    with (
        suppress(TableAlreadyExistsError, CommitFailedException),
        catalog.create_table_transaction(identifier, schema=columns, properties={**_SETTINGS, **properties}) as making,
        making.update_spec() as spec,
    ):
        spec.add_field("topic", IdentityTransform(), "topic")
        if "hour" in directories:
            spec.add_field("timestamp", HourTransform(), "timestamp_hour")
        elif "date" in directories:
            spec.add_field("timestamp", DayTransform(), "timestamp_day")
    return catalog.load_table(identifier)


def _check_table(table: Loaded, where: str, own: pa.Schema, directories: Sequence[str]) -> None:
    """Check that a table takes rows with the columns `own`. Raises TableError."""
    with _errors(where):
        check_features(table, where, directories)
        check_columns(where, _arrow(table.schema()), own, renamed(table))


def _arrow(schema: Schema) -> pa.Schema:
    return schema_to_pyarrow(schema, include_field_ids=False)


def _files_of(table: Loaded, directories: Sequence[str]) -> TableFiles:
    own = {name: value for name, value in table.metadata.properties.items() if not name.startswith("pylogd.")}
    return TableFiles(
        table.location(), own, dict(table.io.properties), table.schema(), table.spec(), tuple(directories)
    )


def _manifest_entry(file: DataFile) -> IcebergFile:
    facts = dict(file.facts)
    return IcebergFile.from_args(
        content=DataFileContent.DATA, file_path=file.path, file_format=FileFormat.PARQUET,
        partition=Record(*facts.pop("partition")), file_size_in_bytes=file.bytes, sort_order_id=None, equality_ids=None,
        key_metadata=None, **facts,
    )  # fmt: skip


def _data_files(table: Loaded, snapshot: int | None = None) -> list[DataFile]:
    with _errors(".".join(table.name())):
        tasks = list(table.scan(snapshot_id=snapshot).plan_files())
    if any(task.delete_files for task in tasks):
        raise TableError(
            f"files of the Iceberg table {'.'.join(table.name())} have rows that delete files delete, which readers of "
            "the data files alone would see: rewrite them (CALL ... rewrite_data_files), or read the table as Iceberg"
        )
    return [DataFile(each.file.file_path, each.file.file_size_in_bytes, each.file.record_count) for each in tasks]


def _committed(snapshot: Snapshot) -> Committed:
    summary = snapshot.summary
    said: Mapping[str, Any] = {} if summary is None else summary.additional_properties

    def number(name: str) -> int:
        return int(said.get(name, 0))

    kind = said.get(_KIND) or ("other" if summary is None else str(summary.operation.value))
    read = read_range(json.loads(said[_READ])) if _READ in said else LoadRange({}, {})
    return Committed(
        snapshot.snapshot_id, kind, snapshot.timestamp_ms, read, number("added-records"), number("added-data-files"),
        number("added-files-size"), number(_QUARANTINED), number("deleted-data-files"),
    )  # fmt: skip
