"""Decide the columns of a typed table before a load.

Strategy: a loader first finds out which records it will read, and then calls `prepare`. So the columns take into
account the schema of each of these records. `prepare` makes the table, or adds the new columns in a separate commit;
then comes the load. If the load never happens, the new columns exist and are empty. Must not know: formats of tables,
Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.interface import Layout, Table
from pylogd.lake.typed.errors import NoSchema
from pylogd.lake.typed.rows import ColumnsPlan, Registry, TypedRows, plan, table_columns, typed_columns

_log = logging.getLogger(__name__)
_warned: set[tuple[str, str, int]] = set()  # (table, subject, version)


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
