"""Batch queries with a real Spark and a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pylogd
from pylogd.base.ports import free_ports
from pylogd.client import Admin, NewTopic, Producer, TopicPartition
from pylogd.local.broker import BrokerProcess
from tests.integration.conftest import Address, StartBroker

pytestmark = pytest.mark.timeout(600)
SECONDS = 240.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PLAIN = [("key", "binary"), ("value", "binary"), ("topic", "string"), ("partition", "int"), ("offset", "bigint"),
         ("timestamp", "timestamp"), ("timestampType", "int")]  # fmt: skip


PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(autouse=True)
def pushdown_as_it_was(spark: Any) -> Iterator[None]:
    yield
    spark.conf.unset(PUSHDOWN)


def source(spark: Any, address: str, **options: str) -> Any:
    reader = spark.read.format("pylogd").option("kafka.bootstrap.servers", address)
    return reader.options(**options).load()


def offsets_of(frame: Any) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


@pytest.fixture(scope="module")
def numbers(broker: Address) -> str:
    """A topic of two partitions with 40 and 20 records in all codecs. Time stamps start at 1,000 s, a second apart."""
    with Admin(broker.address) as admin:
        admin.create_topic("numbers", 2, configs={"retention.ms": "-1"})  # keeps the old records
    for codec_at, codec in enumerate(CODECS):
        with Producer(broker.address, compression=codec) as producer:
            for number in range(codec_at * 8, codec_at * 8 + 8):
                for partition in range(2 if number % 2 == 0 else 1):
                    key = None if number % 5 == 0 else b"k%d" % number
                    producer.send(
                        "numbers", None if number % 7 == 0 else b"v%d" % number, key=key, partition=partition,
                        timestamp=1_000_000 + 1000 * number,
                        headers=[("h", b"%d" % number), ("h", None)] if number % 4 == 0 else [],
                    )  # fmt: skip
    return "numbers"


def test_workers_and_driver_have_the_same_package(spark: Any) -> None:
    def where(_: int) -> str:
        return str(__import__("pylogd").__file__)  # imports by name, since the closure's globals are pickled

    assert spark.sparkContext.parallelize([1], 1).map(where).collect() == [pylogd.__file__]


def test_columns_have_the_names_types_and_values_of_spark_s_kafka_source(
    spark: Any, broker: Address, numbers: str
) -> None:
    frame = source(spark, broker.address, subscribe=numbers, includeHeaders="true")
    assert frame.dtypes == [*PLAIN, ("headers", "array<struct<key:string,value:binary>>")]
    rows = {(row.partition, row.offset): row for row in frame.collect()}
    assert len(rows) == 60
    for (partition, offset), row in rows.items():
        number = offset * (2 if partition else 1)
        assert row.topic == numbers
        assert row.key == (None if number % 5 == 0 else b"k%d" % number)
        assert row.value == (None if number % 7 == 0 else b"v%d" % number)
        assert row.timestampType == 0
        pairs = [("h", b"%d" % number), ("h", None)] if number % 4 == 0 else None
        assert (row.headers and [tuple(pair) for pair in row.headers]) == pairs
    seconds = frame.selectExpr("partition", "offset", "unix_seconds(timestamp) as at").collect()
    assert all(row.at == 1000 + row.offset * (1 + row.partition) for row in seconds)


ALL = [(0, at) for at in range(40)] + [(1, at) for at in range(20)]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"subscribePattern": "numb.r."}, ALL),
        ({"subscribePattern": ".*", "endingOffsets": '{"numbers":{"0":1,"1":0}}'}, [(0, 0)]),
        ({"assign": '{"numbers":[1]}', "startingOffsets": '{"numbers":{"1":17}}'}, [(1, 17), (1, 18), (1, 19)]),
        (
            {"startingOffsets": '{"numbers":{"0":38,"1":-2}}', "endingOffsets": '{"numbers":{"0":-1,"1":1}}'},
            [(0, 38), (0, 39), (1, 0)],
        ),
        ({"startingTimestamp": "1037000", "endingTimestamp": "1038500"}, [(0, 37), (0, 38), (1, 19)]),
        (
            {
                "startingOffsetsByTimestamp": '{"numbers":{"0":1038001,"1":1999999}}',
                "startingOffsetsByTimestampStrategy": "latest",
            },
            [(0, 39)],
        ),
        ({"startingTimestamp": "1036000", "endingOffsetsByTimestamp": '{"numbers":{"0":0,"1":1038000}}',
          "startingOffsetsByTimestampStrategy": "latest", "failOnDataLoss": "false"}, None),
    ],
)  # fmt: skip
def test_starting_and_ending_offsets(
    spark: Any, broker: Address, numbers: str, options: dict[str, str], found: list[tuple[int, int]] | None
) -> None:
    named = {} if {"assign", "subscribePattern"} & options.keys() else {"subscribe": numbers}
    frame = source(spark, broker.address, **named, **options)
    if found is None:
        with pytest.raises(Exception, match="The start offset 36 of numbers-0 is greater than its end offset 0"):
            frame.count()
    else:
        assert offsets_of(frame) == found


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({}, 2),
        ({"minPartitions": "6"}, 6),
        ({"maxRecordsPerPartition": "7"}, 9),
        ({"minPartitions": "1"}, 2),
        ({"minRecordsPerTask": "41"}, 1),
        ({"maxRecordsPerPartition": "7", "minRecordsPerTask": "20"}, 3),
    ],
)
def test_min_partitions_and_limits_decide_the_number_of_tasks(
    spark: Any, broker: Address, numbers: str, options: dict[str, str], tasks: int
) -> None:
    frame = source(spark, broker.address, subscribe=numbers, **options)
    assert frame.rdd.getNumPartitions() == tasks
    assert offsets_of(frame) == ALL


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_filters_give_the_same_with_pushdown_and_without(
    spark: Any, broker: Address, numbers: str, pushdown: str, new_topic: Callable[[], str]
) -> None:
    spark.conf.set(PUSHDOWN, pushdown)
    for condition, expected in {
        "partition = 1 and offset > 10 and offset <= 12": [(1, 11), (1, 12)],
        "partition in (0, 3) and offset = 7": [(0, 7)],
        "topic = 'numbers' and partition <> 0 and offset in (3, 5)": [(1, 3), (1, 5)],
        "topic like 'num%' and offset = 39": [(0, 39)],
        "topic = 'others' or topic is null": [],
        "partition = 5": [],
        "offset >= 38 or (partition = 1 and offset < 1)": [(0, 38), (0, 39), (1, 0)],
        "timestamp > timestamp '1970-01-01 00:17:18'": [(0, 39)],
        "timestamp >= timestamp '1970-01-01 00:17:18' and partition = 1": [(1, 19)],
        "timestamp = timestamp '1970-01-01 00:16:40'": [(0, 0), (1, 0)],
        "timestamp > timestamp '2030-01-01 00:00:00'": [],
        "value is null and offset < 10 and partition = 0": [(0, 0), (0, 7)],
    }.items():
        frame = source(spark, broker.address, subscribe=numbers)  # a new frame: Spark caches the plan of a frame
        assert offsets_of(frame.where(condition)) == expected, condition
    other = new_topic()
    with Producer(broker.address) as producer:
        producer.send(other, b"of another topic", partition=0)
    frame = source(spark, broker.address, subscribe=f"{numbers},{other}").where(f"topic = '{other}'")
    assert [bytes(row.value) for row in frame.collect()] == [b"of another topic"]
    assert frame.rdd.getNumPartitions() == (1 if pushdown == "true" else 3)


def test_pushdown_stays_off_because_spark_mixes_up_two_filters_of_one_frame(
    spark: Any, broker: Address, numbers: str
) -> None:
    """Spark keeps one plan of a source in Python for each frame, that of the last filter. If this fails with a newer
    Spark, say in docs/spark.md from which version on pushdown may be turned on.
    """
    for pushdown, expected in (("false", ALL), ("true", [each for each in ALL if each[0] == 1] * 2)):
        spark.conf.set(PUSHDOWN, pushdown)
        frame = source(spark, broker.address, subscribe=numbers)
        both = frame.where("partition = 0").union(frame.where("partition = 1"))
        assert offsets_of(both) == sorted(expected)
    spark.conf.unset(PUSHDOWN)
    assert spark.conf.get(PUSHDOWN) == "false"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "t", "assign": "{}"}, "Only one of the following options can be specified for Kafka source"),
        ({"subscribe": "numbers", "startingOffsets": "{"}, r"Expected e\.g\."),
        ({"subscribe": "numbers", "startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"subscribe": "numbers", "startingOffsets": '{"numbers":{"0":99,"1":0}}'}, "starting offset 99 of numbers-0"),
        ({"subscribe": "numbers", "startingOffsets": '{"numbers":{"0":1}}'}, "specify all TopicPartitions"),
        ({"subscribe": "not-there"}, "not-there"),
        ({"assign": '{"numbers":[5]}'}, "has no partition 5"),
        ({"subscribe": "numbers", "startingTimestamp": "9999999"}, "No offset matched from request"),
        (
            {"subscribe": "numbers", "kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "500"},
            r"127\.0\.0\.1:1",
        ),
    ],
)
def test_errors_are_raised_before_anything_is_written(
    spark: Any, broker: Address, numbers: str, new_topic: Callable[[], str], options: dict[str, str], text: str
) -> None:
    target = new_topic()
    given = {"kafka.bootstrap.servers": broker.address, "kafka.default.api.timeout.ms": "10000"} | options
    with pytest.raises(Exception, match=text):
        frame = spark.read.format("pylogd").options(**given).load().select("value")
        frame.write.format("pylogd").options(**{"kafka.bootstrap.servers": broker.address, "topic": target}).mode(
            "append"
        ).save()
    with Admin(broker.address) as admin:
        assert target not in {topic.name for topic in admin.list_topics()}


def test_a_compacted_topic_is_read_completely(spark: Any, start_broker: StartBroker) -> None:
    broker = start_broker(settings={"log.cleaner.backoff.ms": "50", "log.cleaner.dedupe.buffer.size": "1000000"})
    configs = {"cleanup.policy": "compact", "internal.segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.01"}
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic("c", 1, 1, configs)])
    with Producer(broker.address, batch_bytes=2000) as producer:
        for number in range(1000):
            producer.send("c", b"%d" % number + b"." * 90, key=b"k%d" % (number % 10), partition=0)
    deadline = time.monotonic() + SECONDS
    while stored(broker) > 50_000:  # of more than 100,000 written records
        assert time.monotonic() < deadline
        time.sleep(0.05)
    rows = source(spark, broker.address, subscribe="c", maxRecordsPerPartition="1000").collect()
    assert len(rows) < 1000
    newest = {row.key: int(row.value.rstrip(b".")) for row in sorted(rows, key=lambda row: row.offset)}
    assert newest == {b"k%d" % (number % 10): number for number in range(990, 1000)}
    assert len({row.offset for row in rows}) == len(rows)


def stored(broker: BrokerProcess) -> int:
    total = 0
    for path in (broker.data / "c-0").glob("*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # being renamed
            continue
    return total


def test_a_read_survives_a_restart_of_the_broker(spark: Any, tmp_path: Path) -> None:
    [port] = free_ports(1)

    def start() -> BrokerProcess:
        return BrokerProcess(tmp_path / "data", tmp_path / "log", {"num.partitions": "2"}, port=port)

    broker = start()
    with Producer(broker.address) as producer:
        for number in range(60_000):
            producer.send("t", b"x" * 100, partition=number % 2)
    frame = source(spark, broker.address, subscribe="t", maxRecordsPerPartition="2500")
    found: list[Any] = []
    group = "mid-read"

    def count() -> None:
        spark.sparkContext.setJobGroup(group, group)
        try:
            found.append(frame.count())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=count)
    thread.start()
    tracker = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + SECONDS
    while not found and not any(
        stage.numCompletedTasks
        for job in tracker.getJobIdsForGroup(group)
        for at in (tracker.getJobInfo(job) or SimpleStages).stageIds
        if (stage := tracker.getStageInfo(at)) is not None
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    broker.kill()
    broker = start()
    try:
        thread.join(SECONDS)
        assert found == [60_000]
    finally:
        broker.stop()


class SimpleStages:
    """Stages of a job that Spark's status tracker does not know yet."""

    stageIds: tuple[int, ...] = ()


def test_records_deleted_between_two_reads_are_an_error(
    spark: Any, broker: Address, new_topic: Callable[[], str]
) -> None:
    topic = new_topic()
    with Producer(broker.address) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=0)
    with Admin(broker.address) as admin:
        admin.delete_records({TopicPartition(topic, 0): 6})
    options = {"assign": f'{{"{topic}":[0]}}', "startingOffsets": f'{{"{topic}":{{"0":2}}}}'}
    with pytest.raises(Exception, match=r"starting offset 2 .* is out of range.*failOnDataLoss"):
        source(spark, broker.address, **options).count()
    kept = source(spark, broker.address, failOnDataLoss="false", **options)
    assert [offset for _, offset in offsets_of(kept)] == [6, 7, 8, 9]
