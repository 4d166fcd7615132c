"""A table of each format for the contract suite: how it is opened, staged and read, without Spark and brokers."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaProtocolError
from pyiceberg.table import Table as Loaded

from pylogd.lake.tables.delta.table import DeltaLakeTable
from pylogd.lake.tables.iceberg.catalogs import TableName, open_catalog
from pylogd.lake.tables.iceberg.table import IcebergTable
from pylogd.lake.tables.interface import DIRECTORIES, DataFile, Layout, SparkStaging, Table
from pylogd.lake.tables.parquet.local import LocalFiles
from pylogd.lake.tables.parquet.table import LakeTable
from pylogd.lake.tables.position import LoadRange, Position
from pylogd.lake.tables.records import HEADERS, RecordRows
from pylogd.lake.tables.writing import divide, with_time_columns

LAYOUT = Layout()
START_US = 1_700_000_000_000_000
STEP_US = 600_000_000
#: The columns that all formats have, in one order, to compare their rows.
COLUMNS = (
    "topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers", "date", "hour",
)  # fmt: skip
Staged = tuple[Sequence[DataFile], Sequence[DataFile]]


def records(
    first: int, end: int, *, topic: str = "t", partition: int = 0, invalid: Sequence[int] = ()
) -> pa.RecordBatch:
    """Return the records of a range of offsets, as the Spark source has them: six an hour.

    invalid: offsets of records whose time stamps can't be represented.
    """
    offsets = range(first, end)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([topic] * len(offsets), pa.string()),
            "partition": pa.array([partition] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array(
                [None if each in invalid else START_US + each * STEP_US for each in offsets], pa.timestamp("us", "UTC")
            ),
            "timestampType": pa.array([0] * len(offsets), pa.int32()),
            "timestampMs": pa.array([-1 if each in invalid else START_US // 1000 for each in offsets], pa.int64()),
            "key": pa.array([b"key %d" % (each % 3) for each in offsets], pa.binary()),
            "value": pa.array([None if each % 7 == 6 else b"value %d" % each for each in offsets], pa.binary()),
            "headers": pa.array(
                [None if each % 2 else [{"key": "n", "value": b"%d" % each}] for each in offsets], HEADERS
            ),
        }
    )


class Case(ABC):
    """A format. Each `open` is another process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @abstractmethod
    def open(self) -> Table:
        """Open the table anew."""

    @abstractmethod
    def read(self, *, quarantine: bool = False) -> pa.Table:
        """Read all rows, as a reader of the format does."""

    @abstractmethod
    def foreign_commit(self) -> None:
        """Commit as another program does, without changing the rows."""

    def made(self, layout: Layout = LAYOUT) -> Table:
        table = self.open()
        table.create(layout)
        return table

    def stage(self, table: Table, *batches: pa.RecordBatch) -> Staged:
        """Write the files of a load as tasks do."""
        staging = table.staging()
        if isinstance(staging, SparkStaging):
            return _as_spark(staging, batches)
        staging = pickle.loads(pickle.dumps(staging))
        writer, aside = staging.writer(), staging.writer(quarantine=True)
        for batch in batches:
            good, rest = RecordRows(LAYOUT).convert(batch)
            writer.write(good)
            aside.write(rest)
        return writer.close(), aside.close()

    def load(
        self, table: Table, end: int, *, topic: str = "t", partition: int = 0, topic_id: str = "aa",
        invalid: Sequence[int] = (), expected: Position | None = None,
    ) -> Any:  # fmt: skip
        """Load a partition up to an offset, planned at the table's position or at `expected`."""
        before = table.position if expected is None else expected
        start = before.offsets.get((topic, partition), 0) if before.topic_ids.get(topic, topic_id) == topic_id else 0
        staged = self.stage(table, records(start, end, topic=topic, partition=partition, invalid=invalid))
        loading = LoadRange({(topic, partition): start}, {(topic, partition): end}, {topic: topic_id})
        return table.commit(before, loading, *staged, at_ms=end)

    def offsets(self, *, topic: str = "t", partition: int = 0, quarantine: bool = False) -> list[int]:
        """Return the offsets of all rows of a partition, sorted."""
        rows = self.read(quarantine=quarantine).select(["topic", "partition", "offset"]).to_pylist()
        return sorted(row["offset"] for row in rows if (row["topic"], row["partition"]) == (topic, partition))


def _as_spark(staging: SparkStaging, batches: Sequence[pa.RecordBatch]) -> Staged:
    """Write as Spark's Parquet writer does: directories named by the values of columns, which the files lack."""
    names = DIRECTORIES[LAYOUT.by]
    for at, batch in enumerate(batches):
        good, rest = RecordRows(LAYOUT).convert(batch)
        for side, rows, columns in (("side=lake", with_time_columns(good, names), names), ("aside", rest, ("topic",))):
            for directory, part in divide(rows, columns):
                inner = "/".join(f"{name}={value}" for name, value in directory.items())
                path = Path(staging.directory) / side / inner / f"part-{at}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(pa.Table.from_batches([part]).drop_columns(list(columns)), path)
    return staging.found("side=lake", False), staging.found("aside", True)


class ParquetCase(Case):
    def open(self) -> Table:
        return LakeTable(LocalFiles(self.directory / "lake"))

    def read(self, *, quarantine: bool = False) -> pa.Table:
        import pyarrow.dataset as ds  # noqa: PLC0415

        table = self.open()
        files = [file.path for file in (table.quarantined() if quarantine else table.files())]
        parts = [("topic", pa.string()), ("date", pa.date32()), ("hour", pa.int32())]
        layout = ds.partitioning(pa.schema(parts[:1] if quarantine else parts), flavor="hive")
        root = str(self.directory / "lake" / ("_pylogd/quarantine" if quarantine else ""))
        found = ds.dataset(files, format="parquet", partitioning=layout, partition_base_dir=root)
        return found.to_table() if files else records(0, 0).select(["topic", "partition", "offset"])

    def foreign_commit(self) -> None:
        """Nobody else writes to a lake."""


class IcebergCase(Case):
    @property
    def name(self) -> TableName:
        return TableName.parse(f"{self.directory}/warehouse/demo.flights")

    def open(self) -> IcebergTable:
        return IcebergTable(open_catalog(self.name, {}), self.name)

    def loaded(self, suffix: str = "") -> Loaded:
        return open_catalog(self.name, {}).load_table(("demo", "flights" + suffix))

    def read(self, *, quarantine: bool = False) -> pa.Table:
        return self.loaded("_quarantine" if quarantine else "").scan().to_arrow()

    def foreign_commit(self) -> None:
        table = self.loaded()
        with table.transaction() as transaction, transaction.update_snapshot().fast_append():
            pass


class DeltaCase(Case):
    def open(self) -> DeltaLakeTable:
        return DeltaLakeTable(str(self.directory / "flights"), {})

    def loaded(self, suffix: str = "") -> DeltaTable:
        return DeltaTable(str(self.directory / f"flights{suffix}"))

    def read(self, *, quarantine: bool = False) -> pa.Table:
        table = self.loaded("_quarantine" if quarantine else "")
        try:
            return table.to_pyarrow_table()
        except DeltaProtocolError:  # a feature that only deltalake's own reader knows
            return pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all())

    def foreign_commit(self) -> None:
        table = self.loaded()
        table.create_write_transaction([], "append", table.schema(), table.metadata().partition_columns)


CASES: dict[str, type[Case]] = {"parquet": ParquetCase, "iceberg": IcebergCase, "delta": DeltaCase}
