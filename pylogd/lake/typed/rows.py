"""Make rows of a typed table from records: the fields of each record, and the columns of its value.

Strategy: the driver decides the columns, from all versions of the topic's subject (`plan`), and sends them to the tasks
with these schemas. Tasks ask the registry only for schemas of other subjects. A task's process keeps a decoder for each
table, with the schemas that it has looked up.

Rules: the driver reads the ends of the log first and the versions after that. A producer registers its schema before it
sends, so the driver has seen the schema of each record before these ends, unless the schema is of another subject. Rows
of such a schema fit if the table has all of their columns; else they go to the quarantine. Must not know: formats,
Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pylogd.client.registry.api_client import RegistryApi
from pylogd.lake.tables.interface import Layout
from pylogd.lake.tables.records import HEADERS, INVALID_TIME, RECORD, divide, quarantined, with_directories
from pylogd.lake.typed.decoding import Decoder, Readers
from pylogd.lake.typed.errors import NotColumns
from pylogd.lake.typed.evolution import evolved, plain
from pylogd.lake.typed.registry import Registered, SchemaId, SchemaLookup, Version

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
