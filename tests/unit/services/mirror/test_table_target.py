"""A table as the end of a route, with real tables of each format: rows and checkpoints are committed together, once.

Parquet lakes are tried in a local directory and on an S3 server.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyiceberg.types import StringType

from pylogd.client.core.errors import CorruptRecords
from pylogd.lake.tables.errors import LayoutChanged, OffsetsMoved, TableError
from pylogd.lake.tables.iceberg.catalogs import TableName, open_catalog
from pylogd.lake.tables.interface import Layout
from pylogd.lake.tables.opening import open_table
from pylogd.services.mirror.table_load import Slice, TableLoader
from pylogd.services.mirror.table_target import TableCheckpoints
from pylogd.services.mirror.target import Checkpoint, SourcePartition
from pylogd.wire.records import NewRecord, encode_batch
from tests.fakes.s3 import KEY, REGION, SECRET, S3Server, environment
from tests.tables import read_files

FORMATS = ("parquet", "s3", "iceberg", "delta")
LAYOUT = Layout("hour")
HOUR_MS = 3_600_000
ID, OTHER_ID = bytes(15) + b"1", bytes(15) + b"2"
P0, P1 = ("events", 0), ("events", 1)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture(params=FORMATS)
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "s3":
        for variable, value in environment(request.getfixturevalue("server").address).items():
            monkeypatch.setenv(variable, value)
    return {
        "parquet": f"parquet:{tmp_path}/lake",
        "s3": f"parquet:s3://{S3Server.bucket}/{tmp_path.name}",
        "iceberg": f"iceberg:{tmp_path}/warehouse/demo.events",
        "delta": f"delta:{tmp_path}/delta",
    }[str(request.param)]


def loader(name: str, layout: Layout = LAYOUT) -> TableLoader:
    found = TableLoader(lambda: open_table(name), layout)
    found.open()
    return found


def batch(offset: int, *values: bytes | None, stamp: int = HOUR_MS, compression: int = 0) -> memoryview:
    records = [
        NewRecord(b"k%d" % (offset + index), value, stamp, [("h", b"1")] if index % 2 else [])
        for index, value in enumerate(values)
    ]
    return memoryview(encode_batch(records, base_offset=offset, leader_epoch=3, compression=compression))


def at(offset: int, topic_id: bytes = ID, epoch: int = 3) -> Checkpoint:
    return Checkpoint(topic_id, offset, epoch, offset, 0)


def known(loader: TableLoader, partition: tuple[str, int] = P0) -> Checkpoint | None:
    topic, number = partition
    return TableCheckpoints(loader.position()).get(SourcePartition("any", topic, number, topic))


def rows(name: str) -> list[tuple[int, int, bytes | None]]:
    """The rows of a table: partition, offset and value, sorted."""
    found = []
    table = open_table(name)
    for row in read_files(table, table.files()):
        found += list(
            zip(*(row.column(column).to_pylist() for column in ("partition", "offset", "value")), strict=True)
        )
    return sorted(found)


def load(loader: TableLoader, *slices: Slice, ends: dict[tuple[str, int], Checkpoint]) -> None:
    loader.write(slices)
    loader.commit(ends, at_ms=1)


def test_rows_and_checkpoints_are_committed_together(name: str) -> None:
    first = loader(name)
    first.begin(P0, known(first), 5, ID)
    first.begin(P1, known(first, P1), 0, ID)
    first.write(
        [Slice(P0, 5, [batch(5, b"a", None, b"c"), batch(8, b"d", compression=4)]), Slice(P1, 0, [batch(0, b"x")])]
    )
    seen = known(loader(name))
    assert rows(name) == [] and seen is not None and seen.offset == 5, "the topic is known, and nothing of it is there"
    first.commit({P0: at(9), P1: at(1)}, at_ms=1)
    assert rows(name) == [(0, 5, b"a"), (0, 6, None), (0, 7, b"c"), (0, 8, b"d"), (1, 0, b"x")]
    again = loader(name)
    assert known(again) == Checkpoint(ID, 9, 3, 9, -1)
    assert known(again, P1) == Checkpoint(ID, 1, 3, 1, -1)
    assert known(again, ("events", 2)) is None
    load(first, Slice(P0, 9, [batch(9, b"e")]), ends={P0: at(10)})
    assert rows(name)[-2:] == [(0, 9, b"e"), (1, 0, b"x")]


def test_what_is_not_committed_is_not_there_after_a_crash(name: str) -> None:
    first = loader(name)
    first.begin(P0, None, 0, ID)
    load(first, Slice(P0, 0, [batch(0, b"a")]), ends={P0: at(1)})
    first.write([Slice(P0, 1, [batch(1, b"lost")])])
    again = loader(name)  # the first one's process is gone
    again.begin(P0, known(again), 1, ID)
    load(again, Slice(P0, 1, [batch(1, b"b")]), ends={P0: at(2)})
    assert rows(name) == [(0, 0, b"a"), (0, 1, b"b")]


def test_a_worker_whose_partition_others_have_taken_over_is_refused(name: str) -> None:
    first, second = loader(name), loader(name)
    for each in (first, second):
        each.begin(P0, known(each), 0, ID)
    for each in (first, second):
        each.write([Slice(P0, 0, [batch(0, b"a")])])
    first.commit({P0: at(1)}, at_ms=1)
    assert rows(name) == [(0, 0, b"a")]  # whoever opens a lake deletes what can't be committed any more
    with pytest.raises(OffsetsMoved):
        second.commit({P0: at(1)}, at_ms=1)
    second.abort()
    assert rows(name) == [(0, 0, b"a")]


def test_workers_that_load_different_partitions_do_not_disturb_each_other(name: str) -> None:
    first, second = loader(name), loader(name)
    first.begin(P0, known(first), 0, ID)
    second.begin(P1, known(second, P1), 0, ID)
    for number in range(3):  # the topic's id is written by whoever comes first
        load(first, Slice(P0, number, [batch(number, b"a")]), ends={P0: at(number + 1)})
        load(second, Slice(P1, number, [batch(number, b"b")]), ends={P1: at(number + 1)})
    assert [row[:2] for row in rows(name)] == [(partition, offset) for partition in (0, 1) for offset in range(3)]


def test_a_commit_without_rows_moves_the_position(name: str) -> None:
    first = loader(name)
    first.begin(P0, None, 0, ID)
    first.commit({P0: at(17)}, at_ms=1)
    assert known(loader(name)) == Checkpoint(ID, 17, 3, 17, -1)


def test_a_recreated_topic_is_loaded_from_its_first_record_beside_the_former_rows(name: str) -> None:
    first = loader(name)
    first.begin(P0, None, 0, ID)
    load(first, Slice(P0, 0, [batch(0, b"old")]), ends={P0: at(1)})
    first.begin(P0, known(first), 0, OTHER_ID)
    load(first, Slice(P0, 0, [batch(0, b"new")]), ends={P0: at(1, OTHER_ID)})
    assert sorted(row[2] or b"" for row in rows(name)) == [b"new", b"old"]
    assert known(loader(name)) == Checkpoint(OTHER_ID, 1, 3, 1, -1)


def test_a_time_stamp_that_a_table_can_not_have_goes_to_the_quarantine(name: str) -> None:
    first = loader(name)
    first.begin(P0, None, 0, ID)
    load(first, Slice(P0, 0, [batch(0, b"good"), batch(1, b"odd", stamp=1 << 60)]), ends={P0: at(2)})
    assert rows(name) == [(0, 0, b"good")]
    table = open_table(name)
    assert sum(file.rows for file in table.quarantined()) == 1


def test_records_before_the_first_offset_are_left_out(name: str) -> None:
    first = loader(name)
    first.begin(P0, None, 2, ID)
    load(first, Slice(P0, 2, [batch(0, b"a", b"b", b"c")]), ends={P0: at(3)})
    assert rows(name) == [(0, 2, b"c")]


def test_a_batch_that_can_not_be_decoded_names_its_partition(name: str) -> None:
    damaged = bytearray(batch(0, b"a" * 500, compression=4))
    damaged[70:90] = bytes(20)
    first = loader(name)
    first.begin(P0, None, 0, ID)
    with pytest.raises(CorruptRecords) as caught:
        first.write([Slice(P0, 0, [memoryview(bytes(damaged))])])
    assert (caught.value.topic, caught.value.partition) == P0


def test_another_layout_is_refused(name: str) -> None:
    first = loader(name)
    first.begin(P0, None, 0, ID)
    load(first, Slice(P0, 0, [batch(0, b"a")]), ends={P0: at(1)})
    with pytest.raises(LayoutChanged):
        loader(name, Layout("day"))


def test_a_lake_on_s3_takes_its_properties_from_the_file(server: S3Server, tmp_path: Path) -> None:
    name = f"parquet:s3a://{S3Server.bucket}/{tmp_path.name}"
    properties = {
        "s3.endpoint": server.address, "s3.access-key-id": KEY, "s3.secret-access-key": SECRET, "s3.region": REGION,
    }  # fmt: skip
    first = TableLoader(lambda: open_table(name, properties), LAYOUT)
    first.open()
    first.begin(P0, None, 0, ID)
    load(first, Slice(P0, 0, [batch(0, b"a")]), ends={P0: at(1)})
    assert [file.rows for file in open_table(name, properties).files()] == [1]
    with pytest.raises(TableError, match=r"no property 'endpoint', but: s3\.endpoint"):
        open_table(name, {"endpoint": server.address})
    with pytest.raises(TableError, match="no properties"):
        open_table(f"parquet:{tmp_path}/lake", properties)


@pytest.mark.parametrize(
    ("name", "text"),
    [("delta:", "names no table"), ("iceberg:flights", "does not name an Iceberg table"), ("gs://h/x", "local")],
)
def test_names_that_stand_for_no_table_that_can_be_written(name: str, text: str) -> None:
    with pytest.raises(TableError, match=text):
        open_table(name)


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_columns_of_other_programs_do_not_stop_a_worker(tmp_path: Path, kind: str) -> None:
    """As it was found: KeyError, for ever."""
    name = {"iceberg": f"iceberg:{tmp_path}/warehouse/demo.events", "delta": f"delta:{tmp_path}/delta"}[kind]
    worker = loader(name)
    worker.begin(P0, known(worker), 0, ID)
    load(worker, Slice(P0, 0, [batch(0, b"a")]), ends={P0: at(1)})
    if kind == "delta":
        DeltaTable(f"{tmp_path}/delta").alter.add_columns([Field("note", PrimitiveType("string"))])
    else:
        foreign = TableName.parse(f"{tmp_path}/warehouse/demo.events")
        table = open_catalog(foreign, {}).load_table(("demo", "events"))
        with table.update_schema() as update:
            update.add_column("note", StringType())
    load(worker, Slice(P0, 1, [batch(1, b"b")]), ends={P0: at(2)})
    assert rows(name) == [(0, 0, b"a"), (0, 1, b"b")]
    if kind == "delta":
        DeltaTable(f"{tmp_path}/delta").alter.add_constraint({"young": '"offset" < 2'})
    else:
        with open_catalog(foreign, {}).load_table(("demo", "events")).update_schema() as update:
            update.rename_column("value", "payload")
    with pytest.raises(TableError, match=r"checkConstraints|'value' .* was renamed to 'payload'"):
        load(worker, Slice(P0, 2, [batch(2, b"c")]), ends={P0: at(3)})
