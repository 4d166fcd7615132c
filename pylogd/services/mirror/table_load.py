"""Load record batches into a mirrored table: write rows to files, and add the files and the offsets in one commit.

A load is the data that one commit adds. Everything here runs in a thread. Must not know: the reactor, routes.

The columns of a typed table follow the registry: they are decided before the first rows of each commit. If later rows
go to the quarantine and name an unknown schema, it may be a new version of the subject: the columns are decided again,
and the rows are converted again. So the columns take into account the schema of each record, as with `pylogd load`. The
registry is asked for its versions once for each commit, and once more for new schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from pylogd.base.clock import wall_ms
from pylogd.lake.tables.interface import DataFile, Layout, LoadFiles, Table
from pylogd.lake.tables.position import LoadRange, Position
from pylogd.services.mirror.errors import MirrorError
from pylogd.services.mirror.target import Checkpoint
from pylogd.wire.records import parse_header

if TYPE_CHECKING:
    import pyarrow as pa

    from pylogd.lake.tables.interface import Rows
    from pylogd.lake.typed.registry import SchemaId
    from pylogd.lake.typed.rows import SchemaSource, TypedRows
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
        from pylogd.lake.typed.rows import SchemaSource, prepare  # noqa: PLC0415 - an extra

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


#: Records are decoded in portions of about this many bytes.
_DECODED_BYTES: Final = 16 << 20
#: A partition of a table: the name of the topic in the table, and the number.
TablePartition = tuple[str, int]
#: The rows of the table, and those of its quarantine.
Converted = tuple["pa.RecordBatch", "pa.RecordBatch"]


class Slice(NamedTuple):
    """Record batches of a partition, in order.

    first: records with lower offsets are not written.
    """

    partition: TablePartition
    first: int
    batches: list[memoryview]


@dataclass(slots=True)
class _Start:
    """The start of a load of a partition.

    known, topic_id: the partition's offset in the table, and the id of the offset's topic; None if the table has none.
    at: the offset from which records are copied.
    own_id: the id of the copied topic.
    """

    known: int | None
    topic_id: str | None
    at: int
    own_id: str | None


@dataclass(slots=True)
class TableLoader:
    """Loads batches into one table. Not threadsafe: one call at a time.

    open_table: opens the table.
    schemas: the source of a typed table's columns; None for a table of records.

    Methods block on files, and on the registry of a typed table. They raise PylogdError; for batches that can't be
    decoded it is CorruptRecords.
    """

    open_table: Callable[[], Table]
    layout: Layout
    schemas: SchemaSettings | None = None
    _table: Table | None = None
    _columns: RecordColumns | TypedColumns | None = None
    _rows: Rows | None = None
    _open: LoadFiles | None = None
    _starts: dict[TablePartition, _Start] = field(default_factory=dict)

    def open(self) -> None:
        """Open the table. A table of records is made unless it exists; a typed table is made when its columns are
        known.
        """
        table = self.open_table()
        self._columns = RecordColumns(self.layout) if self.schemas is None else TypedColumns(self.schemas, self.layout)
        self._columns.open(table)
        self._table = table

    def position(self) -> Position:
        """Read the offsets up to which the table has each partition, and return them."""
        self.table.refresh()
        return self.table.position

    @property
    def table(self) -> Table:
        """The table, once it is open."""
        assert self._table is not None
        return self._table

    def begin(self, partition: TablePartition, known: Checkpoint | None, offset: int, topic_id: bytes) -> None:
        """Set where the next load of a partition begins.

        known: the partition's checkpoint in the table; None if it has none.
        offset: the offset of the first record to load.
        topic_id: the id of the copied topic.
        """
        before, its_topic = (None, None) if known is None else (known.offset, _id(known.topic_id))
        self._starts[partition] = _Start(before, its_topic, offset, _id(topic_id))

    def write(self, slices: Sequence[Slice]) -> None:
        """Write the records of batches to files of the next commit."""
        from pylogd.lake.tables.records import source_rows  # noqa: PLC0415 - pyarrow, an extra

        for each in slices:
            for columns in _decoded(each):
                load, (good, rest) = self._converted(each.partition, source_rows(columns, *each.partition))
                load.write(good, rest)

    def _converted(self, partition: TablePartition, records: pa.RecordBatch) -> tuple[LoadFiles, Converted]:
        """Return the rows of records, the rows for the quarantine, and the load that takes both."""
        load, columns = self._load(partition), self._columns
        assert self._rows is not None and columns is not None
        found = self._rows.convert(records)
        if columns.is_outdated(found[1]):
            before = columns.schema
            self.table.refresh()
            self._rows = columns.prepare(self.table, partition[0], again=True)
            if columns.schema != before:
                load.finish()
                load = self._begin_files(partition, load)
            found = self._rows.convert(records)
        return load, found

    def commit(self, checkpoints: Mapping[TablePartition, Checkpoint], at_ms: int) -> None:
        """Commit the written rows, and move partitions to their checkpoints. Raises OffsetsMoved, CommitConflict."""
        load, self._open = self._open, None
        loading = self._range(checkpoints)
        if load is None:
            self._commit(loading, (), (), at_ms)
        else:
            try:
                load.finish()
            except OSError:
                load.abort()
                self.table.refresh()  # a worker that has loaded the same partitions may have deleted the files
                self.table.position.check(self._expected(loading), loading)
                raise
            self._commit(loading, load.added, load.quarantined, at_ms)
        for partition, checkpoint in checkpoints.items():
            own = _id(checkpoint.topic_id)
            self._starts[partition] = _Start(checkpoint.offset, own, checkpoint.offset, own)

    def _commit(
        self, loading: LoadRange, added: Sequence[DataFile], quarantined: Sequence[DataFile], at_ms: int
    ) -> None:
        self.table.refresh()
        if not self.table.exists:
            for topic in sorted({topic for topic, _ in loading.end}):
                self._prepare(topic)
        self.table.commit(self._expected(loading), loading, added, quarantined, at_ms=at_ms)

    def abort(self) -> None:
        """Delete the files that were written since the last commit."""
        load, self._open = self._open, None
        if load is not None:
            load.abort()

    def _expected(self, loading: LoadRange) -> Position:
        """Return the position at which a load was planned, which `Table.commit` compares with the table's position.

        The first worker that commits a partition of a topic records the topic's id. Another worker may have recorded
        the same id meanwhile, which is no conflict: then the table's present id is expected.
        """
        offsets, ids = {}, {}
        now = self.table.position.topic_ids
        for partition in loading.end:
            start, topic = self._starts[partition], partition[0]
            if start.known is not None:
                offsets[partition] = start.known
            found = now.get(topic) if now.get(topic) == loading.topic_ids.get(topic) else start.topic_id
            if found is not None:
                ids[topic] = found
        return Position(offsets, ids)

    def _load(self, partition: TablePartition) -> LoadFiles:
        """Return the open load. If no load is open, open one whose first rows are from this partition."""
        if self._open is None:
            start, topic = self._starts[partition], partition[0]
            self.table.refresh()
            if not self.table.exists or start.own_id != self.table.position.topic_ids.get(topic):
                # A staged file belongs to the topic with this id, so the table has to know the id first. And if several
                # workers make a typed table at once, the first commit decides its columns.
                self._commit(_planned(partition, start), (), (), wall_ms())
                self._starts[partition] = _Start(start.at, start.own_id, start.at, start.own_id)
            self._prepare(topic)
            self._open = self._begin_files(partition)
        return self._open

    def _prepare(self, topic: str) -> None:
        assert self._columns is not None
        self._rows = self._columns.prepare(self.table, topic)

    def _begin_files(self, partition: TablePartition, before: LoadFiles | None = None) -> LoadFiles:
        """Begin files with the current columns.

        before: the load so far, with finished files.
        """
        from pylogd.lake.tables.parquet.staging import new_writer  # noqa: PLC0415 - pyarrow, an extra

        assert self._columns is not None
        planned = _planned(partition, self._starts[partition])
        staging = self.table.staging(self._expected(planned), planned)
        self._open = LoadFiles(new_writer(staging, self.layout, self._columns.schema))
        if before is not None:
            self._open.added, self._open.quarantined = before.added, before.quarantined
        return self._open

    def _range(self, checkpoints: Mapping[TablePartition, Checkpoint]) -> LoadRange:
        """Return the offsets of a load: from the start of each partition to its checkpoint."""
        ids = {partition[0]: _id(checkpoint.topic_id) for partition, checkpoint in checkpoints.items()}
        schema_id = None if self._columns is None else self._columns.schema_id
        return LoadRange(
            {partition: self._starts[partition].at for partition in checkpoints},
            {partition: checkpoint.offset for partition, checkpoint in checkpoints.items()},
            {topic: found for topic, found in ids.items() if found is not None},
            {partition: each.epoch for partition, each in checkpoints.items() if each.epoch >= 0},
            {} if schema_id is None else dict.fromkeys(ids, schema_id),
        )  # fmt: skip


def _planned(partition: TablePartition, start: _Start) -> LoadRange:
    """Return the range of a load of a partition that has read nothing yet."""
    ids = {} if start.own_id is None else {partition[0]: start.own_id}
    return LoadRange({partition: start.at}, {partition: start.at}, ids)


def _id(topic_id: bytes) -> str | None:
    """Return a topic's id in the form that tables record; None if the broker gave none."""
    return topic_id.hex() if any(topic_id) else None


def _decoded(each: Slice) -> Iterator[pa.RecordBatch]:
    """Yield the records of batches as columns, in portions, because a few bytes may decompress to gigabytes."""
    from pylogd.client.core.consumer.columns import decode_batches  # noqa: PLC0415 - pyarrow, an extra

    topic, number = each.partition
    batches = [(parse_header(batch), batch) for batch in each.batches]
    at = each.first
    while batches:
        columns = decode_batches(
            batches, from_offset=at, headers=True, check_crcs=False, topic=topic, partition=number,
            max_bytes=_DECODED_BYTES,
        )  # fmt: skip
        yield columns.records
        at = columns.next_offset
        batches = [] if columns.ended else [pair for pair in batches if pair[0].last_offset >= at]
