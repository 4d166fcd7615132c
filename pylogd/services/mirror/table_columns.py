"""Let the columns of a typed table follow the registry while a worker writes to the table. Runs in a thread.

Strategy: the columns are decided before the first rows of each commit. If later rows go to the quarantine and name an
unknown schema, it may be a new version of the subject: the columns are decided again, and the rows are converted again.
So the columns take into account the schema of each record, as with `pylogd load`. The registry is asked for its
versions once for each commit, and once more for new schemas.

Must not know: the reactor, routes, formats of tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pylogd.lake.tables.interface import Layout, Table
from pylogd.services.mirror.errors import MirrorError

if TYPE_CHECKING:
    import pyarrow as pa

    from pylogd.lake.tables.interface import Rows
    from pylogd.lake.typed.preparing import SchemaSource
    from pylogd.lake.typed.registry import SchemaId
    from pylogd.lake.typed.rows import TypedRows
    from pylogd.services.mirror.settings import SchemaSettings


#: The most remembered schemas, since invalid messages may name ever new ones.
_MOST_ASKED: Final = 10_000


class RecordColumns:
    """The columns of a table of records, which never change."""

    #: The columns in the form that `LakeWriter` takes.
    schema: pa.Schema | None = None
    schema_id: int | None = None

    def __init__(self, layout: Layout) -> None:
        from pylogd.lake.tables.records import RecordRows  # noqa: PLC0415 - pyarrow, an extra

        self._layout = layout
        self._rows = RecordRows(layout)

    def open(self, table: Table) -> None:
        """Make the table unless it exists. Raises LayoutChanged."""
        table.create(self._layout)

    def prepare(self, table: Table, topic: str, *, again: bool = False) -> Rows:
        """Return the converter of a topic's records to rows."""
        return self._rows

    def is_outdated(self, quarantined: pa.RecordBatch) -> bool:
        """Return False: these columns never change."""
        return False


class TypedColumns:
    """The columns of a typed table.

    schema_id: the id of the subject's newest version, after `prepare`.
    """

    def __init__(self, schemas: SchemaSettings, layout: Layout) -> None:
        self._schemas = schemas
        self._layout = layout
        self._source: SchemaSource | None = None
        self._rows: TypedRows | None = None
        self._asked: set[SchemaId] = set()  # the schemas that messages have named since the last commit
        self.schema_id: int | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows, without the columns of directories. Call `prepare` before."""
        assert self._rows is not None
        return self._rows.schema

    def open(self, table: Table) -> None:
        """Check the layout of an existing table. Raises LayoutChanged."""
        if table.layout is not None:
            self._layout.check(table.location, table.layout)

    def prepare(self, table: Table, topic: str, *, again: bool = False) -> TypedRows:
        """Make the table, or add the columns of new versions to it. Return the converter of a topic's records to rows.

        again: whether it was called before for the same commit.

        Raises NoSchema; SchemaRegistryError; TableError; MirrorError if the table has another topic.
        """
        from pylogd.lake.typed.preparing import SchemaSource, prepare  # noqa: PLC0415 - an extra

        for known, _ in table.position.offsets:
            if known != topic:
                raise MirrorError(f"{table.location} is a typed table of the topic {known}: it can't take {topic} too")
        if self._source is None:
            given = self._schemas
            self._source = SchemaSource.at(given.url, given.properties, given.subject, given.message)
        self._rows, self.schema_id = prepare(table, topic, self._source, self._layout)
        if not again or len(self._asked) > _MOST_ASKED:
            self._asked.clear()
        self._asked |= {schema_id for schema_id, _ in self._rows.schemas}
        return self._rows

    def is_outdated(self, quarantined: pa.RecordBatch) -> bool:
        """Return whether rows of the quarantine name schemas that may have been registered since `prepare`."""
        from pylogd.lake.typed.framing import schema_ids  # noqa: PLC0415 - an extra

        if not quarantined.num_rows:
            return False
        unknown = schema_ids(quarantined.column("value"), quarantined.column("headers")) - self._asked
        self._asked |= unknown
        return bool(unknown)
