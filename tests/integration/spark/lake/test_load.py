"""`pylogd load` with a real Spark and a real broker: the lake has exactly the records of the topic.

The command runs in the test's process, with the Spark session that all tests share; `test_kills` runs it as a process.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pylogd.cli.main import pylogd
from pylogd.client import Admin, NewTopic, Producer, TopicPartition
from pylogd.lake.spark.hadoop import HadoopFiles
from pylogd.lake.spark.load import LoadPlan, follow
from pylogd.lake.spark.opening import open_table
from pylogd.lake.tables.interface import Committed
from pylogd.lake.tables.parquet.lake import Lake
from tests.integration.conftest import Address
from tests.integration.spark.lake.lakes import START_MS, Command, documents, fill, lake_of, log_of

pytestmark = pytest.mark.timeout(600)
SMALL_FETCHES = ("-s", "kafka.max.partition.fetch.bytes=1000", "-s", "kafka.fetch.max.bytes=1000")


def files_below(root: Path) -> list[Path]:
    return [path for path in root.rglob("*.parquet") if "_pylogd" not in path.parts]


def times_in(root: Path) -> set[str]:
    """Return the Parquet types of the time stamps."""
    schemas = [pq.ParquetFile(path).schema for path in files_below(root)]
    return {schema.column(schema.names.index("timestamp")).physical_type for schema in schemas}


@pytest.mark.parametrize(
    "way",
    [
        [],  # the default
        ["--isolation", "committed"],
        ["--set", "kafka.isolation.level=read_committed", "-s", "kafka.client.rack=here", *SMALL_FETCHES],
    ],
)
def test_committed_records_are_loaded_when_they_are(
    broker: Address, run: Command, create: Callable[..., None], topic: str, tmp_path: Path, way: list[str]
) -> None:
    create(topic, 1)
    with Producer(broker.address, transactional_id=topic, transaction_timeout=500) as producer:
        for number in range(4):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number, timestamp=START_MS + number)
            producer.flush()
            if number < 3:
                (producer.abort_transaction if number == 1 else producer.commit_transaction)()
        loading = ["load", topic, "--to", tmp_path, *way, "--json"]
        (first,) = documents(run(*loading))
        assert (first["rows"], first["offsets"]) == (2, 6)
        producer.commit_transaction()
    (second,) = documents(run(*loading))
    assert (second["rows"], second["offsets"]) == (1, 2)
    values = [value for path in files_below(tmp_path) for value in pq.ParquetFile(path).read()["value"].to_pylist()]
    assert sorted(values) == [b"0", b"2", b"3"]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_each_load_adds_the_new_records(
    spark: Any, broker: Address, run: Command, create: Callable[..., None], topic: str, tmp_path: Path, zone: str
) -> None:
    create(topic)
    fill(broker.address, topic, range(200))
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        (first,) = documents(run("load", topic, "--to", tmp_path, "--json"))
        assert (first["rows"], first["offsets"], first["kind"]) == (200, 200, "load")
        assert "nothing to do" in run("load", topic, "--to", tmp_path).stderr
        fill(broker.address, topic, range(200, 230))
        (second,) = documents(run("load", topic, "--to", tmp_path, "--json"))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert (second["commit"], second["rows"]) == (2, 30)
    assert lake_of(spark, tmp_path, topic) == log_of(broker.address, topic)
    moments = [datetime.fromtimestamp(START_MS / 1000 + 60 * number, UTC) for number in range(230)]
    found = {str(path.parent.relative_to(tmp_path)) for path in files_below(tmp_path)}
    assert found == {f"topic={topic}/date={moment:%Y-%m-%d}/hour={moment:%H}" for moment in moments}
    assert times_in(tmp_path) == {"INT64"}
    assert spark.conf.get("spark.sql.parquet.outputTimestampType", None) is None
    rows = spark.read.parquet(str(tmp_path))
    assert {"key", "value", "headers", "timestamp", "topic", "date", "hour"} <= set(rows.columns)
    assert rows.where("offset = 3 and partition = 1").first().headers[0].value == b"7"
    history = run("load", "--to", tmp_path, "--history")
    assert [line.split("\t")[:2] for line in history.stdout.splitlines()] == [["1", "load"], ["2", "load"]]


def test_small_files_are_merged(
    spark: Any, broker: Address, run: Command, create: Callable[..., None], topic: str, tmp_path: Path
) -> None:
    create(topic)
    for begin in range(0, 90, 30):
        fill(broker.address, topic, range(begin, begin + 30))
        run("load", topic, "--to", tmp_path)
    before = len(files_below(tmp_path))
    (done,) = documents(run("load", "--to", tmp_path, "--compact", "--json"))
    directories = {path.parent for path in files_below(tmp_path)}
    assert len(files_below(tmp_path)) == len(directories) < before
    assert times_in(tmp_path) == {"INT64"}
    assert (done["kind"], done["replaced"] > done["files"]) == ("compaction", True)
    assert lake_of(spark, tmp_path, topic) == log_of(broker.address, topic)
    assert "nothing to do" in run("load", "--to", tmp_path, "--compact").stderr
    fill(broker.address, topic, range(90, 100))
    (after,) = documents(run("load", topic, "--to", tmp_path, "--json"))
    assert after["rows"] == 10
    assert lake_of(spark, tmp_path, topic) == log_of(broker.address, topic)


def test_topics_of_a_pattern_are_loaded_in_commits_of_limited_size(
    spark: Any, broker: Address, run: Command, create: Callable[..., None], topic: str, tmp_path: Path
) -> None:
    create(f"{topic}-a")
    fill(broker.address, f"{topic}-a", range(40))
    load = ("load", "--pattern", f"{topic}-.", "--to", tmp_path, "--json", "--max-offsets", "25", "--min-tasks", "3")
    assert documents(run(*load))[0]["offsets"] <= 26
    create(f"{topic}-b", 1)
    with Admin(broker.address) as admin:
        admin.create_partitions(f"{topic}-a", 3)
    fill(broker.address, f"{topic}-a", range(40, 55), partitions=3)
    fill(broker.address, f"{topic}-b", range(20), partitions=1)
    loads = itertools.takewhile(lambda done: "nothing to do" not in done.stderr, (run(*load) for _ in range(10)))
    assert 2 <= sum(len(documents(done)) for done in loads) < 10
    for name in (f"{topic}-a", f"{topic}-b"):
        assert lake_of(spark, tmp_path, name) == log_of(broker.address, name)


def test_strings_are_loaded_with_one_file_per_day(
    spark: Any, broker: Address, run: Command, create: Callable[..., None], topic: str, tmp_path: Path
) -> None:
    create(topic)
    fill(broker.address, topic, range(50), step_ms=3_600_000)
    run("load", topic, "--to", tmp_path, "--value", "string", "--by", "day", "--gather", "--codec", "snappy")
    assert dict(spark.read.parquet(str(tmp_path)).dtypes)["value"] == "string"
    assert lake_of(spark, tmp_path, topic) == log_of(broker.address, topic)
    days = {datetime.fromtimestamp(START_MS / 1000 + 3600 * number, UTC).date() for number in range(50)}
    assert [path.parent.name for path in sorted(files_below(tmp_path))] == [f"date={day}" for day in sorted(days)]


def test_follow_loads_new_records_until_stopped(
    spark: Any, broker: Address, create: Callable[..., None], topic: str, tmp_path: Path
) -> None:
    create(topic)
    told: list[Committed] = []

    def wait(_: float) -> bool:
        if len(told) == 3:
            return True
        fill(broker.address, topic, range(len(told) * 10, len(told) * 10 + 10))
        return False

    plan = LoadPlan(broker.address, ("subscribe", topic))
    follow(spark, open_table(spark, str(tmp_path)), plan, seconds=1.0, on_commit=told.append, wait=wait)
    assert [commit.rows for commit in told] == [10, 10, 10]
    assert lake_of(spark, tmp_path, topic) == log_of(broker.address, topic)


def test_deleted_records_are_an_error_or_skipped(
    spark: Any, broker: Address, run: Command, create: Callable[..., None], topic: str, tmp_path: Path
) -> None:
    create(topic, 1)
    fill(broker.address, topic, range(10), partitions=1)
    run("load", topic, "--to", tmp_path)
    fill(broker.address, topic, range(10, 40), partitions=1)
    with Admin(broker.address) as admin:
        admin.delete_records({TopicPartition(topic, 0): 20})
    failed = run("load", topic, "--to", tmp_path)
    assert failed.exit_code == 1
    assert "Some data may have been lost" in failed.stderr
    assert len(lake_of(spark, tmp_path, topic)) == 10
    (done,) = documents(run("load", topic, "--to", tmp_path, "--accept-data-loss", "--json"))
    assert done["rows"] == 20
    assert [row.offset for row in lake_of(spark, tmp_path, topic)] == [*range(10), *range(20, 40)]


@pytest.mark.parametrize("way", [("--by", "hour"), ("--by", "topic", "--value", "string", "--gather")])
def test_records_with_time_stamps_beyond_spark_s_range_are_put_aside(
    spark: Any, broker: Address, run: Command, new_topic: Callable[[], str], tmp_path: Path, way: tuple[str, ...]
) -> None:
    """Records outside of the years 1 to 9999 are stored elsewhere with the reason; all others are loaded."""
    topic = f"{new_topic()}.007"
    stamps = [0, START_MS, 253_402_300_799_999, 253_402_300_800_000, START_MS * 1000, (1 << 63) - 1, START_MS + 1]
    keep = {"retention.ms": "-1", "message.timestamp.after.max.ms": str((1 << 63) - 1)}
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(topic, 1, 1, keep)])
    values = [b"0", b"1", b"2", b"\xff3", b"", None, b"6"]
    with Producer(broker.address) as producer:
        for number, (stamp, value) in enumerate(zip(stamps[1:], values[1:], strict=True), start=1):
            producer.send(
                topic, value, key=b"k%d" % number, timestamp=stamp, partition=0, headers=[("n", b"%d" % number)]
            )
    (done,) = documents(run("load", topic, "--to", tmp_path, "--json", *way))
    assert (done["offsets"], done["rows"], done["quarantined"]) == (6, 3, 3)
    assert [row.offset for row in lake_of(spark, tmp_path, topic)] == [0, 1, 5]
    kept = [
        (row["offset"], row["timestampMs"], row["key"], row["value"], [(h["key"], h["value"]) for h in row["headers"]])
        for path in sorted((tmp_path / "_pylogd/quarantine" / f"topic={topic}").glob("*.parquet"))
        for row in pq.ParquetFile(path).read().to_pylist()
        if "outside of the years 1 to 9999" in row["reason"] and row["partition"] == 0 and row["timestampType"] == 0
    ]
    assert kept == [
        (number - 1, stamps[number], b"k%d" % number, values[number], [("n", b"%d" % number)]) for number in (3, 4, 5)
    ]
    assert len(Lake(HadoopFiles(spark, str(tmp_path))).quarantined()) == 1
    fill(broker.address, topic, range(3), partitions=1)
    again = run("load", topic, "--to", tmp_path, *way)
    assert (again.stdout.split("\t")[3:6], again.stderr) == (["3", "3", "0"], "")
    assert len(lake_of(spark, tmp_path, topic)) == 6


def recreate(address: str, topic: str, partitions: int) -> None:
    with Admin(address) as admin:
        admin.delete_topic(topic)
        admin.create_topics([NewTopic(topic, partitions, 1, {"retention.ms": "-1"})])


@pytest.mark.parametrize("count", [30, 20, 6])
def test_a_recreated_topic_is_an_error_until_confirmed(
    spark: Any, broker: Address, run: Command, create: Callable[..., None], topic: str, tmp_path: Path, count: int
) -> None:
    """It is recognized by its id, whether it is longer than what the lake has of the old topic, equal, or shorter."""
    create(topic, 2)
    fill(broker.address, topic, range(20), partitions=2)
    run("load", topic, "--to", tmp_path)
    recreate(broker.address, topic, 1)
    fill(broker.address, topic, range(100, 100 + count), partitions=1)
    for more in ((), ("--accept-data-loss",)):
        failed = run("load", topic, "--to", tmp_path, *more)
        assert failed.exit_code == 1
        assert "deleted and created again" in failed.stderr and "--on-recreated restart" in failed.stderr
    assert len(lake_of(spark, tmp_path, topic)) == 20
    (done,) = documents(run("load", topic, "--to", tmp_path, "--on-recreated", "restart", "--json"))
    assert (done["rows"], done["offsets"]) == (count, count)
    values = [row.value for row in lake_of(spark, tmp_path, topic)]
    assert len(values) == 20 + count and set(values) >= {row.value for row in log_of(broker.address, topic)}
    assert Lake(HadoopFiles(spark, str(tmp_path))).offsets == {(topic, 0): count}
    fill(broker.address, topic, range(3), partitions=1)
    assert documents(run("load", topic, "--to", tmp_path, "--json"))[0]["rows"] == 3


def test_a_lake_written_before_topic_ids_were_stored_is_continued(
    spark: Any, broker: Address, run: Command, create: Callable[..., None], topic: str, tmp_path: Path
) -> None:
    create(topic, 1)
    fill(broker.address, topic, range(10), partitions=1)
    run("load", topic, "--to", tmp_path)
    (path,) = (tmp_path / "_pylogd/commits").glob("*.json")
    document = json.loads(path.read_text())
    for name in ("topic_ids", "leader_epochs", "quarantined"):
        del document[name]
    path.write_text(json.dumps({**document, "version": 1}))
    fill(broker.address, topic, range(5), partitions=1)
    assert documents(run("load", topic, "--to", tmp_path, "--json"))[0]["rows"] == 5
    recreate(broker.address, topic, 1)
    fill(broker.address, topic, range(30), partitions=1)
    assert "deleted and created again" in run("load", topic, "--to", tmp_path).stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["load", "not-there", "--to", "LAKE"], "not-there"),
        (["load", "not-there", "--to", "LAKE", "-b", "127.0.0.1:1"], "127.0.0.1:1: can't connect"),
        (["load", "TOPIC", "--to", "nowhere://there"], 'No FileSystem for scheme "nowhere"'),
        (["load", "TOPIC", "--to", "GARBAGE"], "is not a commit of a pylogd lake"),
        (["load", "TOPIC", "--to", "FILE"], "is a file, where a lake is a directory"),
        (["load", "--pattern", "(", "--to", "LAKE"], "has to be a regular expression"),
        (["load", "--to", "FILE", "--history"], "is a file, where a lake is a directory"),
        (["load", "--to", "LAKE", "--history"], "is not a table: it has no commits"),
        (["load", "--to", "LAKE", "--compact"], "is not a table: it has no commits"),
        (["load", "--to", "GARBAGE", "--compact"], "is not a commit of a pylogd lake"),
        (["load", "--to", "GARBAGE", "--history"], "is not a commit of a pylogd lake"),
    ],
)
def test_errors_are_one_line(
    run: Command, create: Callable[..., None], topic: str, tmp_path: Path, arguments: list[str], text: str
) -> None:
    if "TOPIC" in arguments:
        create(topic)
    (tmp_path / "FILE").write_text("a file")
    commits = tmp_path / "GARBAGE/_pylogd/commits"
    commits.mkdir(parents=True)
    (commits / f"{1:020}.json").write_text('{"version": 1')
    replacements = {"TOPIC": topic, **{name: str(tmp_path / name) for name in ("LAKE", "GARBAGE", "FILE")}}
    done = run(*(replacements.get(each, each) for each in arguments))
    assert done.exit_code == 1, done.output
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "LAKE").exists()


@pytest.mark.parametrize("arguments", [["t"], ["--pattern", "x"]])
def test_an_unreachable_broker_is_an_error_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]
) -> None:
    monkeypatch.setattr("pylogd.cli.spark.session", None)
    done = CliRunner().invoke(pylogd, ["load", *arguments, "--to", str(tmp_path / "lake"), "-b", "127.0.0.1:1"])
    assert (done.exit_code, "can't connect" in done.stderr) == (1, True)


@pytest.mark.parametrize("arguments", [[], ["t", "--pattern", "x"], ["t", "--history"], ["t", "--conf", "x"]])
def test_wrong_options_are_a_usage_error(run: Command, tmp_path: Path, arguments: list[str]) -> None:
    assert run("load", "--to", tmp_path, *arguments).exit_code == 2


def test_names_on_file_systems_that_list_a_subclass(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3A lists an array of S3AFileStatus. Spark's own jars have none of these, but other subclasses."""
    files = HadoopFiles(spark, str(tmp_path))
    for name in ("two", "one"):
        files.create(f"x/{name}", b"")
    statuses = files._list("x")
    subclass = spark._jvm.org.apache.hadoop.fs.LocatedFileStatus
    located = spark.sparkContext._gateway.new_array(subclass, len(statuses))
    for at, status in enumerate(statuses):
        located[at] = subclass(status, None)
    monkeypatch.setattr(files, "_list", lambda _: located)
    assert files.names("x") == ["one", "two"]


def test_lake_files_on_hadoops_local_file_system(spark: Any, tmp_path: Path) -> None:
    """Check the operations that the unit tests of `lake` replace by a file system in memory."""
    files = HadoopFiles(spark, str(tmp_path / "a lake"))
    assert files.names("x") == [] and not files.exists("x")
    assert files.create("x/one", b"one\n")
    assert not files.create("x/one", b"1\n")
    assert files.names("x") == ["one"] and files.read("x/one") == b"one\n"
    assert files.move("x/one", "y/z/two")
    assert files.create("x/one", b"again")
    assert not files.move("x/one", "y/z/two")
    assert files.read("y/z/two") == b"one\n"
    with pytest.raises(FileNotFoundError):
        files.read("x/none")
    with pytest.raises(FileNotFoundError):
        files.move("x/none", "y/none")
    files.delete("x")
    files.delete("x")
    assert files.names("y/z") == ["two"]
    assert Lake(files).last is None
