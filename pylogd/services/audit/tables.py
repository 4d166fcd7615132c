"""Count the messages of a table, in a thread: the files that each commit added.

Strategy: every few seconds the table's last commit is read. Only new files are read, of these only the columns with
partition, offset, headers and time stamps, and only the row groups that can have rows to count. In the first look all
files are new, and only rows from the given offsets on are counted. Later all rows of new files are counted, so that a
load that was committed twice is noticed. But if files have vanished, the new ones may be the result of a compaction:
then only rows after the table's last position are counted.

Rules: reading a Parquet lake changes nothing; the other formats complete a commit whose process died. A file that
vanishes while it is read ends the look; the next look counts its rows in other files.
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
from pylogd.services.audit.columns import count_columns
from pylogd.services.audit.counting import Counted, Skip
from pylogd.services.audit.ledger import Ledger
from pylogd.services.audit.marker_files import MarkerFiles, open_location
from pylogd.services.audit.markers import Marker
from pylogd.services.audit.topics import Since
from pylogd.services.audit.windows import StageSpec

if TYPE_CHECKING:
    import pyarrow as pa

    from pylogd.lake.tables.interface import DataFile
    from pylogd.lake.tables.position import Position

log = Logger()

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
