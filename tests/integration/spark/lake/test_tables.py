"""`pylogd load` into Iceberg and Delta tables, and what other programs read there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pylogd.client import Admin, NewTopic, Producer
from pylogd.lake.spark.load import LoadPlan, follow, load
from pylogd.lake.spark.opening import open_table
from pylogd.lake.tables.iceberg.catalogs import TableName, open_catalog
from pylogd.lake.tables.interface import Committed
from tests.integration.conftest import Address
from tests.integration.spark.lake.lakes import START_MS, Command, Row, documents, fill, log_of
from tests.kills.processes import Loader

pytestmark = pytest.mark.timeout(600)
SECONDS = 300


def name_of(kind: str, root: Path) -> str:
    """Return the table as the option `--table` names it."""
    return f"iceberg:{root}/warehouse/demo.flights" if kind == "iceberg" else f"delta:{root}/flights"


def read(kind: str, root: Path, suffix: str = "") -> pa.Table:
    """Read a table with the format's own library."""
    if kind == "iceberg":
        name = TableName.parse(f"{root}/warehouse/demo.flights")
        return open_catalog(name, {}).load_table(("demo", f"flights{suffix}")).scan().to_arrow()
    return DeltaTable(f"{root}/flights{suffix}").to_pyarrow_table()


def rows_of(kind: str, root: Path) -> list[Row]:
    table = read(kind, root)
    times = table.column("timestamp").cast(pa.int64()).to_pylist()
    partitions, offsets, keys, values = (
        table.column(name).to_pylist() for name in ("partition", "offset", "key", "value")
    )
    columns = zip(partitions, offsets, keys, values, [micros // 1000 for micros in times], strict=True)
    rows = [Row(*row) for row in columns]
    return sorted(rows, key=lambda row: row[:2])


@pytest.fixture(params=["iceberg", "delta"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_each_load_adds_the_new_records(
    broker: Address, run: Command, create: Callable[..., None], topic: str, tmp_path: Path, kind: str
) -> None:
    create(topic)
    fill(broker.address, topic, range(200))
    table = name_of(kind, tmp_path)
    (first,) = documents(run("load", topic, "--table", table, "--json"))
    assert (first["rows"], first["offsets"], first["kind"], first["quarantined"]) == (200, 200, "load", 0)
    assert "nothing to do" in run("load", topic, "--table", table).stderr
    fill(broker.address, topic, range(200, 230))
    (second,) = documents(run("load", topic, "--table", table, "--json", "--gather"))
    assert (second["rows"], second["files"]) == (30, 2)
    assert rows_of(kind, tmp_path) == log_of(broker.address, topic)
    history = documents(run("load", "--table", table, "--history", "--json"))
    assert [(each["commit"], each["rows"]) for each in history if each["kind"] == "load"] == [
        (first["commit"], 200), (second["commit"], 30),
    ]  # fmt: skip
    fill(broker.address, topic, range(230, 231))
    refused = run("load", topic, "--table", table, "--by", "day")
    assert refused.exit_code == 1
    assert "was made with by=hour, which can't be changed to day" in refused.stderr


def test_records_with_invalid_time_stamps_are_in_the_quarantine(
    broker: Address, run: Command, new_topic: Callable[[], str], tmp_path: Path, kind: str
) -> None:
    topic = new_topic()
    keep = {"retention.ms": "-1", "message.timestamp.after.max.ms": str((1 << 63) - 1)}
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(topic, 1, 1, keep)])
    stamps = [START_MS, 253_402_300_799_999, 253_402_300_800_000, (1 << 63) - 1, 0]
    with Producer(broker.address) as producer:
        for stamp in stamps:
            producer.send(topic, b"%d" % stamp, timestamp=stamp, partition=0, headers=[("n", b"1")])
    done = run("load", topic, "--table", name_of(kind, tmp_path), "--json")
    (told,) = documents(done)
    assert (told["rows"], told["quarantined"]) == (3, 2)
    assert "2 records were not loaded, but written to " in done.stderr
    assert [(row.offset, row.time_ms) for row in rows_of(kind, tmp_path)] == [(0, stamps[0]), (1, stamps[1]), (4, 0)]
    kept = sorted(read(kind, tmp_path, "_quarantine").to_pylist(), key=lambda row: row["offset"])
    assert [(row["offset"], row["timestampMs"], row["value"], row["headers"]) for row in kept] == [
        (at, stamps[at], b"%d" % stamps[at], [{"key": "n", "value": b"1"}]) for at in (2, 3)
    ]


def test_follow_loads_beside_another_loader(
    spark: Any, broker: Address, create: Callable[..., None], topic: str, tmp_path: Path, kind: str
) -> None:
    """Two loaders of one table that load different topics rebase their commits."""
    other = f"{topic}-other"
    create(topic)
    create(other)
    fill(broker.address, other, range(30))
    table = name_of(kind, tmp_path)
    told: list[Committed] = []

    def wait(_: float) -> bool:
        if len(told) == 3:
            return True
        if told:
            beside = LoadPlan(broker.address, ("subscribe", other), max_offsets=10)
            assert load(spark, open_table(None, table), beside) is not None
        fill(broker.address, topic, range(len(told) * 10, len(told) * 10 + 10))
        return False

    plan = LoadPlan(broker.address, ("subscribe", topic))
    follow(spark, open_table(None, table), plan, seconds=0.1, on_commit=told.append, wait=wait)
    assert [commit.rows for commit in told] == [10, 10, 10]
    assert len(rows_of(kind, tmp_path)) == 50


def test_a_killed_loader_loses_nothing_and_loads_nothing_twice(
    spark: Any, broker: Address, create: Callable[..., None], topic: str, tmp_path: Path, kind: str
) -> None:
    """Killed with its JVM and its workers in the middle of a commit; the next one goes on."""
    create(topic)
    fill(broker.address, topic, range(2000), step_ms=1000)
    table = name_of(kind, tmp_path)
    arguments = [topic, "--table", table, "-b", broker.address, "--follow", "--max-offsets", "100", "--interval", "0.1"]
    loader = Loader(arguments, tmp_path / "loader.log", "local[2]", tmp_path)
    try:
        deadline = time.monotonic() + SECONDS
        while len(list(tmp_path.rglob("*.parquet"))) < 3:
            assert loader.process.poll() is None, loader.output()
            assert time.monotonic() < deadline, loader.output()
            time.sleep(0.002)  # leaves the processor to the loader
    finally:
        loader.kill_all()
    load(spark, open_table(None, table), LoadPlan(broker.address, ("subscribe", topic)))
    assert rows_of(kind, tmp_path) == log_of(broker.address, topic)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--table", "iceberg:flights"], "does not name an Iceberg table"),
        (["--table", "iceberg:demo.flights"], "no catalog is known"),
        (["--table", "iceberg:demo.flights", "--property", "uri=http://127.0.0.1:1"], "catalog can't be opened"),
        (["--table", "delta:"], "names no table"),
        (["--table", "delta:nowhere://there"], "the Delta table nowhere://there"),
        (["--table", "parquet:LAKE", "--property", "a=b"], "has no properties"),
    ],
)
def test_errors_are_one_line(
    run: Command, create: Callable[..., None], topic: str, tmp_path: Path, arguments: list[str], text: str
) -> None:
    create(topic)
    done = run("load", topic, *(each.replace("LAKE", str(tmp_path)) for each in arguments))
    assert done.exit_code == 1, done.output
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_history_and_compaction_of_a_table_that_does_not_exist(run: Command, tmp_path: Path, kind: str) -> None:
    for mode in ("--history", "--compact"):
        done = run("load", "--table", name_of(kind, tmp_path), mode)
        assert (done.exit_code, "is not a table: it has no commits" in done.stderr) == (1, True), done.output
