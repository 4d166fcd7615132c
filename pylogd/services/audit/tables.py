"""Count the messages of a table, in a thread: the files that each commit added.

Strategy: every few seconds the table's last commit is read. Only new files are read, of these only the columns with
partition, offset, headers and time stamps, and only the row groups that can have rows to count. In the first look all
files are new, and only rows from the given offsets on are counted. Later all rows of new files are counted, so that a
load that was committed twice is noticed. But if files have vanished, the new ones may be the result of a compaction:
then only rows after the table's last position are counted.

Rules: reading a Parquet lake changes nothing; the other formats complete a commit whose process died. A file that
vanishes while it is read ends the look; the next look counts its rows in other files.

Messages are counted like in `counting`, but from columns, without a Python object for each message:
pyarrow's functions find the stamps, parse and group them. Python only handles each group, which has the
messages of a producer in a window. Few rows, rows with several stamps and stamps that can't be parsed are counted one
by one: the results are the same (`test_columns_are_counted_as_rows_are`).

Rows without stamps are those of clients that are not audited. They are counted by their own time stamps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.errors import PylogdError
from pylogd.client.core.audit import HEADER
from pylogd.services.audit.counting import AHEAD_MS, Counted, Origin, Row, Skip, Tally, WindowRows
from pylogd.services.audit.ledger import Ledger
from pylogd.services.audit.markers import Marker, MarkerFiles, open_location
from pylogd.services.audit.topics import Since
from pylogd.services.audit.windows import StageSpec

if TYPE_CHECKING:
    import pyarrow as pa

    from pylogd.lake.tables.interface import DataFile
    from pylogd.lake.tables.position import Position


log = Logger()


#: With fewer rows, Python alone is as fast.
_FEW: Final = 300
_LOG_APPEND: Final = 1  # the type of a time stamp that a broker has given


def count_columns(
    counted: Counted, partition: int, columns: pa.RecordBatch, width: int, now_ms: int, skip: Skip
) -> None:
    """Add rows of a partition. Rows of a window below its offset in `skip` are left out.

    columns: offset, headers (lists of key and value), and, if they are known, timestamp and timestampType.
    width: the length of a window in milliseconds.
    now_ms: the present time, to recognize impossible stamps.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - slow to load

    headers = columns.column("headers")
    pairs = pc.list_flatten(headers)
    mine = pc.equal(pc.struct_field(pairs, [0]), HEADER)
    parents = pc.list_parent_indices(headers).filter(mine)
    values = pc.struct_field(pairs, [1]).filter(mine)
    count = pc.count_distinct(parents).as_py()
    if count:
        stamps = _parse(values, now_ms + AHEAD_MS) if count == len(parents) >= _FEW else None
        if stamps is None:
            counted.count(partition, _rows(columns, parents, values), width, now_ms, skip)
        else:
            _count_stamps(counted, partition, columns.column("offset").take(parents), stamps, width, skip)
    if count < columns.num_rows:
        _count_unstamped(counted, partition, columns, parents, width, now_ms, skip)


def _rows(columns: pa.RecordBatch, parents: pa.Array, values: pa.Array) -> Iterator[Row]:
    """Yield the stamped rows."""
    offsets = columns.column("offset").take(parents).to_pylist()
    before = offset = -1
    stamps: list[tuple[str, bytes | None]] = []
    for parent, at, value in zip(parents.to_pylist(), offsets, values.to_pylist(), strict=True):
        if parent != before and stamps:
            yield offset, stamps
            stamps = []
        before, offset = parent, at
        stamps.append((HEADER, value))
    if stamps:
        yield offset, stamps


def _parse(values: pa.Array, latest: int) -> dict[str, pa.Array] | None:
    """Return times, producers, numbers and servers of stamps; None if some stamps have another form."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    if values.null_count:
        return None
    try:
        parts = pc.split_pattern(values.cast(pa.string()), "/", max_splits=3)
        if pc.min(pc.list_value_length(parts)).as_py() < 4:  # see `Stamp.encode`
            return None
        time, producer, number, server = (pc.list_element(parts, at) for at in range(4))
        if not all(pc.all(pc.ascii_is_decimal(each)).as_py() for each in (time, number)):
            return None
        time, number = time.cast(pa.int64()), number.cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    if pc.max(time).as_py() > latest:
        return None
    return {"time": time, "producer": producer, "number": number, "server": server}


def _count_stamps(
    counted: Counted, partition: int, offsets: pa.Array, stamps: dict[str, pa.Array], width: int, skip: Skip
) -> None:
    import pyarrow as pa  # noqa: PLC0415

    table = pa.table({**stamps, "start": _starts(stamps["time"], width), "offset": offsets})
    table = _rows_from(table.drop_columns("time"), partition, skip)
    ranges = [("offset", "min"), ("offset", "max")]
    found = table.group_by(["start", "producer", "server"], use_threads=False).aggregate([*ranges, ("number", "list")])
    for at, window in _windows(counted, partition, found):
        numbers = found.column("number_list")[at].as_py()
        origin = Origin((found.column("producer")[at].as_py(),), 0, found.column("server")[at].as_py())
        window.tallies.setdefault(origin, Tally()).add(len(numbers), numbers)


def _count_unstamped(
    counted: Counted, partition: int, columns: pa.RecordBatch, parents: pa.Array, width: int, now_ms: int, skip: Skip
) -> None:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    if not _is_timed(columns.schema):
        counted.restamped = True
        return
    if len(parents):
        every = pa.array(range(columns.num_rows), parents.type)
        columns = columns.filter(pc.invert(pc.is_in(every, parents)))
    if "timestampType" in columns.schema.names:
        counted.restamped |= bool(pc.any(pc.equal(columns.column("timestampType"), _LOG_APPEND)).as_py())
    times = _milliseconds(columns.column("timestamp"))
    possible = pc.fill_null(pc.and_(pc.greater_equal(times, 0), pc.less_equal(times, now_ms + AHEAD_MS)), False)
    table = pa.table({"start": _starts(times, width), "offset": columns.column("offset")}).filter(possible)
    counted.invalid += columns.num_rows - table.num_rows
    table = _rows_from(table, partition, skip)
    found = table.group_by("start", use_threads=False).aggregate(
        [("offset", "min"), ("offset", "max"), ("offset", "count")]
    )
    for at, window in _windows(counted, partition, found):
        window.unstamped += found.column("offset_count")[at].as_py()


def _is_timed(schema: pa.Schema) -> bool:
    """Return whether rows have time stamps. The column of a typed table need not be a time."""
    import pyarrow as pa  # noqa: PLC0415

    at = schema.get_field_index("timestamp")
    return at >= 0 and bool(pa.types.is_timestamp(schema.types[at]) or pa.types.is_int64(schema.types[at]))


def _windows(counted: Counted, partition: int, found: pa.Table) -> Iterator[tuple[int, WindowRows]]:
    """Yield the window of each group, with its index, and record its offsets."""
    bounds = zip(*(found.column(name).to_pylist() for name in ("start", "offset_min", "offset_max")), strict=True)
    for at, (start, least, most) in enumerate(bounds):
        window = counted.windows.setdefault(start, WindowRows())
        window.note(partition, least)
        window.note(partition, most)
        yield at, window


def _rows_from(table: pa.Table, partition: int, skip: Skip) -> pa.Table:
    """Leave out rows that are counted already."""
    import pyarrow.compute as pc  # noqa: PLC0415

    for start, counted in skip.items():
        until = counted.get(partition, 0)
        if until:
            known = pc.and_(pc.equal(table.column("start"), start), pc.less(table.column("offset"), until))
            table = table.filter(pc.invert(known))
    return table


def _starts(times: pa.Array, width: int) -> pa.Array:
    """Return the starts of the windows of times. Times must not be negative."""
    import pyarrow.compute as pc  # noqa: PLC0415

    return pc.multiply(pc.divide(times, width), width)


def _milliseconds(times: Any) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_timestamp(times.type):
        times = times.cast(pa.timestamp("ms", times.type.tz), safe=False)
    return times.cast(pa.int64())


_LOOK_SECONDS: Final = 5.0
_ABSENT_SECONDS: Final = 1.0  # seconds before a missing file is looked for again
_PATIENCE_SECONDS: Final = 60.0  # a file that is missing for longer is an error
_TOPIC: Final = re.compile(r"/topic=([^/]+)/")
_BATCH: Final = 50_000

Partition = tuple[str, int]


class NotAudited(PylogdError):
    """A table lacks the columns for stamps."""


class ReadableTable(Protocol):
    """The methods of a table that this module needs: a part of `tables.interface.Table`."""

    @property
    def directory(self) -> str:
        """The directory of its files; empty if it is unknown before the table is made."""

    @property
    def position(self) -> Position:
        """The offsets up to which the table is loaded."""

    def refresh(self) -> None:
        """Read the commits."""

    def files(self) -> list[DataFile]:
        """Return the data files."""

    def quarantined(self) -> list[DataFile]:
        """Return the files of the quarantine."""


@dataclass(slots=True)
class Look:
    """The result of one reading of a table: counts by topic, and the offsets that the table has reached."""

    counted: dict[str, Counted] = field(default_factory=dict)
    reached: Mapping[Partition, int] = field(default_factory=dict)


class TableReader:
    """Reads a table. Not threadsafe: one look at a time, in any thread."""

    def __init__(self, table: ReadableTable, topics: Collection[str], width_ms: int) -> None:
        self._table = table
        self._topics = frozenset(topics)
        self._width_ms = width_ms
        self._seen: set[str] | None = None

    def position(self) -> Mapping[Partition, int]:
        """Return the offsets that the table has reached. From now on all of its files count as counted."""
        self._table.refresh()
        self._seen = {file.path for file in (*self._table.files(), *self._table.quarantined())}
        return self._reached()

    def write(self, marker: Marker) -> None:
        """Write a marker into the table's directory. Raises PylogdError and OSError."""
        if self._table.directory:
            MarkerFiles(self._table.directory, in_table=True).write(marker)

    def look(self, since: Mapping[Partition, int], skip: Mapping[str, Skip], now_ms: int) -> Look:
        """Count the rows of files that are new since the last look.

        since: the offsets up to which rows were counted.
        skip: see `Ledger.skip`, by topic.

        Raises PylogdError and OSError.
        """
        self._table.refresh()
        files = {file.path: file for file in (*self._table.files(), *self._table.quarantined())}
        seen = self._seen or set()
        again = self._seen is None or not files.keys() >= seen
        found = Look(reached=self._reached())
        for path in sorted(files.keys() - seen):
            for topic, partition, rows in self._rows(files[path], since if again else {}):
                counted = found.counted.setdefault(topic, Counted())
                count_columns(counted, partition, rows, self._width_ms, now_ms, skip.get(topic, {}))
        self._seen = set(files)
        return found

    def _reached(self) -> dict[Partition, int]:
        return {each: offset for each, offset in self._table.position.offsets.items() if each[0] in self._topics}

    def _rows(self, data: DataFile, since: Mapping[Partition, int]) -> Iterator[tuple[str, int, pa.RecordBatch]]:
        """Yield the rows of a file from the offsets in `since` on, by topic and partition."""
        import pyarrow.compute as pc  # noqa: PLC0415 - slow to load
        import pyarrow.parquet as pq  # noqa: PLC0415 - slow to load

        path = data.path
        found = _TOPIC.search(path)
        topic = data.partition.get("topic") or (unquote(found[1]) if found else None)
        if topic is not None and topic not in self._topics:
            return
        files, name = open_location(path)
        with files.open_input_file(name) as source, pq.ParquetFile(source) as file:
            columns, there = ["partition", "offset", "headers"], set(file.schema_arrow.names)
            if missing := set(columns) - there:
                raise NotAudited(f"{path} has no {' and '.join(sorted(missing))}: a table without them has no stamps")
            if topic is None:
                columns.append("topic")
            time = next((name for name in ("timestampMs", "timestamp") if name in there), None)  # first: quarantines
            columns += [name for name in (time or "", "timestampType") if name in there]
            least = min((since.get(each, 0) for each in self._reached()), default=0)
            groups = [group for group in range(file.num_row_groups) if _greatest(file, group) >= least]
            for batch in file.iter_batches(_BATCH, row_groups=groups, columns=columns) if groups else ():
                for name_of, partition, rows in divided(_timed(batch, time), topic):
                    begin = since.get((name_of, partition), 0)
                    if name_of in self._topics:
                        yield name_of, partition, rows.filter(pc.greater_equal(rows.column("offset"), begin))


def _timed(batch: pa.RecordBatch, time: str | None) -> pa.RecordBatch:
    """Return a batch whose time stamps, if it has any, are in the column `timestamp`."""
    return batch.rename_columns(["timestamp" if name == time else name for name in batch.schema.names])


def divided(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """Yield the rows of each topic and partition.

    topic: the topic of all rows; None if a column has it.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - slow to load

    for name in [topic] if topic is not None else pc.unique(batch.column("topic")).to_pylist():
        mine = batch if topic is not None else batch.filter(pc.equal(batch.column("topic"), name))
        partitions = mine.column("partition")
        for partition in pc.unique(partitions).to_pylist():
            yield name, partition, mine.filter(pc.equal(partitions, partition))


def _greatest(file: Any, group: int) -> float:
    """Return the greatest offset in a row group; infinite if the file does not have it."""
    of_group = file.metadata.row_group(group)
    for index in range(of_group.num_columns):
        column = of_group.column(index)
        if column.path_in_schema == "offset":
            return (
                float("inf") if not column.is_stats_set or not column.statistics.has_min_max else column.statistics.max
            )
    return float("inf")


class TableStage:
    """Implements `stages.Stage` on a table. `behind` is the error of the last reading; "" if it succeeded."""

    def __init__(
        self, reactor: Any, spec: StageSpec, open_table: Callable[[], ReadableTable], ledger: Ledger, since: Since,
        now_ms: Callable[[], int], *, interval: float = _LOOK_SECONDS, has_markers: bool = False,
    ) -> None:  # fmt: skip
        """Nothing is opened yet.

        open_table: opens the table, in a thread.
        interval: the seconds between two looks.
        has_markers: whether markers of complete periods are written to the table's directory.
        """
        self.spec = spec
        self._reactor = reactor
        self._open = open_table
        self._ledger = ledger
        self._since = since
        self._now_ms = now_ms
        self._interval = interval
        self._has_markers = has_markers
        self._reader: TableReader | None = None
        self._absent_since: float | None = None  # since when a file of a commit is missing
        self._stopping = False
        self._running: Deferred[None] | None = None

    def start(self, positions: Mapping[Partition, int] | None) -> Deferred[None]:
        """Open the table, and begin to read it."""
        return Deferred.fromCoroutine(self._start(positions))

    async def _start(self, positions: Mapping[Partition, int] | None) -> None:
        if positions is not None:
            self._note(positions)
        elif self._since.at_ms is None:
            reader = await self._thread(self._make)
            self._note(await self._thread(reader.position))
            self._reader = reader
        self._running = Deferred.fromCoroutine(self._run())
        self._running.addErrback(self._ended)

    def ends(self, topic: str) -> Deferred[dict[int, int]]:
        """Raise NotImplementedError: a table has no offsets."""
        raise NotImplementedError(f"the table {self.spec.name} has no offsets of its own for {topic}")

    def refresh(self) -> Deferred[None]:
        """Do nothing: each reading finds the commits."""
        return succeed(None)

    def publish(self, marker: Marker) -> Deferred[None]:
        """Write the marker into the table, if markers are wanted."""
        if self._has_markers and self._reader is not None:  # without a reader nothing was judged
            return self._thread(self._reader.write, marker)
        return succeed(None)

    def stop(self) -> Deferred[None]:
        """Stop reading. The Deferred fires once the last look has ended."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        self._stopping = True
        if self._running is not None:
            self._running.cancel()
            await self._running

    async def _run(self) -> None:
        while not self._stopping:
            pause = self._interval
            try:
                await self._look()
                self._absent_since = None
            except FileNotFoundError as error:
                pause = min(pause, _ABSENT_SECONDS)
                self._note_absent(error)
            except (PylogdError, OSError) as error:
                self._failed(error)
            await deferLater(self._reactor, pause, lambda: None)

    def _note_absent(self, error: FileNotFoundError) -> None:
        """Record that a file is missing: a loader moves files to their places shortly after its commit."""
        now = self._reactor.seconds()
        if self._absent_since is None:
            self._absent_since = now
        if now - self._absent_since >= _PATIENCE_SECONDS:
            self._absent_since = now
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._ledger.failures += 1
        log.error("Can't read the table {name}, trying again: {error}", name=self.spec.name, error=str(error))

    async def _look(self) -> None:
        if self._reader is None:
            self._reader = await self._thread(self._make)
        ledger, name = self._ledger, self.spec.name
        since = dict(ledger.positions[name])
        skip = {topic: ledger.skip(name, topic) for topic in ledger.topics}
        found = await self._thread(self._reader.look, since, skip, self._now_ms())
        for topic in ledger.topics:
            reached = {each[1]: offset for each, offset in found.reached.items() if each[0] == topic}
            ledger.add(name, topic, found.counted.get(topic, Counted()), reached)

    def _make(self) -> TableReader:
        return TableReader(self._open(), self._ledger.topics, self._ledger.options.width_ms)

    def _note(self, positions: Mapping[Partition, int]) -> None:
        for (topic, partition), offset in positions.items():
            self._ledger.add(self.spec.name, topic, Counted(), {partition: offset})

    def _thread(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), function, *arguments)

    def _ended(self, failure: Failure) -> None:
        if not (self._stopping and failure.check(CancelledError)):
            log.failure("Unexpected error while reading the table {name}", failure, name=self.spec.name)
