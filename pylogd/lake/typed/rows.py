"""Make rows of a typed table from records: the fields of each record, and the columns of its value.

Strategy: a loader first finds out which records it will read, and then calls `prepare` on its driver. `prepare` decides
the columns, from all versions of the topic's subject (`plan`). It makes the table, or adds the new columns in a
separate commit; then comes the load. If the load never happens, the new columns exist and are empty.

`prepare` returns the maker of the rows (`TypedRows`), which is sent to the tasks with these schemas. Tasks ask the
registry only for schemas of other subjects. A task's process keeps a decoder for each table, with the schemas that it
has looked up.

Rules: the driver reads the ends of the log first and the versions after that. A producer registers its schema before it
sends, so the driver has seen the schema of each record before these ends, unless the schema is of another subject. Rows
of such a schema fit if the table has all of their columns; else they go to the quarantine. Must not know: formats,
Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pylogd.client.registry.api_client import RegistryApi
from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.interface import Layout, Table
from pylogd.lake.tables.records import HEADERS, INVALID_TIME, RECORD, divide, quarantined, with_directories
from pylogd.lake.typed.decoding import Decoder, Readers
from pylogd.lake.typed.errors import NoSchema, NotColumns
from pylogd.lake.typed.evolution import evolved, plain
from pylogd.lake.typed.registry import Registered, SchemaId, SchemaLookup, Version

_log = logging.getLogger(__name__)
_warned: set[tuple[str, str, int]] = set()  # (table, subject, version)

#: The columns of each table besides those of its schemas.
RECORD_COLUMNS: Final = (*RECORD, pa.field("headers", HEADERS))
#: Names that the columns of schemas can't have, in lower case. Spark's writer adds the last one.
RESERVED: Final = frozenset({*(each.name.lower() for each in RECORD_COLUMNS), "date", "hour", "pylogd_side"})


@dataclass(frozen=True, slots=True)
class Registry:
    """The address and the settings of a registry.

    settings: TLS and credentials, see `pylogd.client.registry.access`.

    The object's text contains neither, since both may contain passwords.
    """

    url: str = field(repr=False)
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def lookup(self) -> SchemaLookup:
        """Return the look-up of the registry, the same one for each call in a process. Raises ValueError for wrong
        settings.
        """
        return _lookup(self)


@lru_cache
def _lookup(registry: Registry) -> SchemaLookup:
    return SchemaLookup(RegistryApi(registry.url, settings=dict(registry.settings)))


@dataclass(frozen=True, slots=True)
class SchemaSource:
    """The source of a typed table's columns.

    registry: the schema registry.
    subject: "" for `<topic>-value`.
    message: the full name of a Protobuf message type; "" for the file's first type.
    """

    registry: Registry
    subject: str = ""
    message: str = ""

    @classmethod
    def at(cls, url: str, settings: Mapping[str, str], subject: str = "", message: str = "") -> SchemaSource:
        """Return the source from the registry at a URL. Raises ValueError for wrong settings.

        settings: TLS and credentials, see `pylogd.client.registry.access`.
        """
        registry = Registry(url, tuple(sorted(settings.items())))
        registry.lookup()  # this refuses wrong settings
        return cls(registry, subject, message)

    def subject_of(self, topic: str) -> str:
        """Return the subject of a topic's values."""
        return self.subject or f"{topic}-value"


@dataclass(frozen=True, slots=True)
class ColumnsPlan:
    """The columns that a table gets from the versions of a subject.

    columns: the typed columns.
    latest: the newest version; None if the subject has no version.
    schemas: the schemas of all versions, by id.
    conflicts: the reason for each version that the table can't follow; its rows go to the quarantine.
    """

    columns: pa.Schema
    latest: Version | None = None
    schemas: Mapping[SchemaId, Registered] = field(default_factory=dict)
    conflicts: Mapping[int, str] = field(default_factory=dict)


def plan(
    table: pa.Schema, lookup: SchemaLookup, subject: str, *, message: str = "", can_change: bool = True
) -> ColumnsPlan:
    """Return the columns that a table has after all versions of a subject.

    table: the present typed columns of the table.
    message: the full name of the Protobuf message type with the columns; "" for the file's first type.
    can_change: see `evolution.evolved`.

    Raises SchemaRegistryError.
    """
    readers = Readers(lookup, RESERVED)
    versions = lookup.versions(subject)
    conflicts: dict[int, str] = {}
    for version in versions:
        try:
            change = evolved(table, readers.columns(version.schema_id, message), can_change=can_change)
        except NotColumns as error:
            conflicts[version.number] = str(error)
            continue
        table = change.columns
        if change.conflicts:
            conflicts[version.number] = "; ".join(change.conflicts)
    schemas: dict[SchemaId, Registered] = {version.schema_id: lookup.schema(version.schema_id) for version in versions}
    return ColumnsPlan(table, versions[-1] if versions else None, schemas, conflicts)


def typed_columns(table: pa.Schema | None) -> pa.Schema:
    """Return the columns of a table that come from its schemas."""
    fields = [] if table is None else [each for each in table if each.name.lower() not in RESERVED]
    return pa.schema([pa.field(each.name, plain(each.type)) for each in fields])


def table_columns(columns: pa.Schema, layout: Layout) -> pa.Schema:
    """Return all columns of a table with these typed columns."""
    return with_directories([*RECORD_COLUMNS, *columns], layout)


def prepare(table: Table, topic: str, source: SchemaSource, layout: Layout) -> tuple[TypedRows, int]:
    """Make a typed table, or add the columns of new versions to it. Return the maker of its rows, and a schema's id.

    The id is that of the subject's newest version. As long as no version can be columns, the table has no columns of a
    schema, and records go to the quarantine. Raises NoSchema if the subject has no version; SchemaRegistryError;
    TableError.
    """
    existed, before = table.exists, typed_columns(table.columns)
    subject = source.subject_of(topic)
    lookup = source.registry.lookup()
    found = plan(before, lookup, subject, message=source.message)
    if found.latest is None:
        raise NoSchema(f"the registry has no subject {subject!r}: register a schema, or name another subject")
    table.create(layout, table_columns(found.columns, layout))  # this checks the layout of an existing table
    if existed and found.columns != before:
        found = _evolved(table, before, found, source, subject, layout)
    _warn(table.location, subject, found)
    assert found.latest is not None
    return TypedRows(found.columns, source.registry, tuple(found.schemas.items())), found.latest.schema_id


def _warn(location: str, subject: str, found: ColumnsPlan) -> None:
    """Log a warning, once in this process, with the schema versions whose changes the table can't follow."""
    for version, why in found.conflicts.items():
        if (location, subject, version) not in _warned:
            _warned.add((location, subject, version))
            _log.warning(
                "Version %d of %s does not fit the table %s: %s. Its records go to the quarantine.",
                version, subject, location, why,
            )  # fmt: skip


def _evolved(
    table: Table, before: pa.Schema, found: ColumnsPlan, source: SchemaSource, subject: str, layout: Layout
) -> ColumnsPlan:
    """Give a table its new columns. Return the columns that it has afterwards."""
    try:
        table.evolve(table_columns(found.columns, layout))
        return found
    except TableError:
        fixed = plan(before, source.registry.lookup(), subject, message=source.message, can_change=False)
        if fixed.columns == found.columns:
            raise
    if fixed.columns != before:  # the format can't change the type of a column
        table.evolve(table_columns(fixed.columns, layout))
    return fixed


@dataclass(frozen=True, slots=True)
class TypedRows:
    """Implements `pylogd.lake.tables.interface.Rows`: makes a row of each record whose value fits the typed columns.

    schemas: the schemas of the subject, by id.
    registry: the source of other schemas.
    """

    columns: pa.Schema
    registry: Registry
    schemas: tuple[tuple[SchemaId, Registered], ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows, without the columns of directories."""
        return pa.schema([*RECORD_COLUMNS, *self.columns])

    def convert(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the rows of the table, and the rows of its quarantine. Raises SchemaRegistryError."""
        timed, timeless = divide(records, INVALID_TIME)
        found = _decoder(self).decode(timed.column("value"), timed.column("headers"))
        schema = self.schema
        typed = dict(zip(self.columns.names, found.rows.flatten(), strict=True))
        arrays = [
            typed[each.name] if each.name in typed else timed.column(each.name).cast(each.type) for each in schema
        ]
        rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
        if not len(found.reasons) - found.reasons.null_count:
            return rows, timeless
        fits = found.reasons.is_null()
        bad = pc.invert(fits)
        misfits = quarantined(timed.filter(bad), found.reasons.filter(bad).to_pylist())
        both = pa.concat_batches([misfits, timeless])
        return rows.filter(fits), both


@lru_cache(maxsize=16)
def _decoder(rows: TypedRows) -> Decoder:
    lookup = rows.registry.lookup()
    lookup.add(dict(rows.schemas))
    return Decoder(rows.columns, Readers(lookup, RESERVED))
