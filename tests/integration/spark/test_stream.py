"""Streaming queries and the sink with a real Spark and a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.sql.functions import window

from pylogd.base.ports import free_ports
from pylogd.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from pylogd.lake.spark.lag import BehindLatest, LagListener, behind_latest, of_progress
from pylogd.lake.spark.stream_offsets import topics_of
from tests.integration.conftest import Address, StartBroker
from tests.sparks import is_slow_start, retried, traffic

pytestmark = pytest.mark.timeout(600)
SECONDS = 240.0
_ESTABLISHED = "01"  # of /proc/net/tcp


@pytest.fixture(autouse=True)
def no_query_left(spark: Any) -> Iterator[None]:
    yield
    for query in spark.streams.active:
        query.stop()


def stream(spark: Any, address: str, topic: str, **options: str) -> Any:
    reader = spark.readStream.format("pylogd").option("kafka.bootstrap.servers", address)
    return reader.options(**({"subscribe": topic, "startingOffsets": "earliest"} | options)).load()


def produce(address: str, topic: str, numbers: range, partition: int = 0) -> None:
    with Producer(address) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, partition=partition)


def run(frame: Any, folder: Path, rows: list[int]) -> list[dict[str, Any]]:
    """Run a query over everything available, and append each batch's values to `rows`. Return the batches' progress."""

    def keep(batch: Any, _: int) -> None:
        rows.extend(int(row.value) for row in batch.select("value").collect())

    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(folder)).trigger(availableNow=True)

    found: list[dict[str, Any]] = []

    def once() -> None:
        query = writer.start()
        try:
            assert query.awaitTermination(SECONDS)
        finally:
            query.stop()
            found.extend(json.loads(progress.json) for progress in query.recentProgress if progress.numInputRows)

    retried(once)
    return found


def send_seconds(address: str, topic: str, seconds: range) -> None:
    """Send a record for each second since 1970."""
    with Producer(address) as producer:
        for second in seconds:
            producer.send(topic, b"%d" % second, partition=0, timestamp=1000 * second)


def connections_to(address: str) -> set[int]:
    """Return the local ports of connections of this machine to a broker."""
    port = int(address.rpartition(":")[2])
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ends = [(at[1].rpartition(":")[2], at[2].rpartition(":")[2]) for at in lines if at[3] == _ESTABLISHED]
    return {int(local, 16) for local, remote in ends if int(remote, 16) == port}


class Running:
    """A continuous query, which is restarted if Spark gave up waiting for its Python process."""

    def __init__(self, writer: Any, folder: Path) -> None:
        self._writer = writer.option("checkpointLocation", str(folder))
        self._query = self._writer.start()

    def stop(self) -> None:
        self._query.stop()

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, self._query.lastProgress
            if is_slow_start(self._query.exception()):
                self._query = self._writer.start()
            assert self._query.exception() is None, self._query.exception()
            time.sleep(0.05)


def test_a_restarted_query_continues_at_its_checkpoint(spark: Any, broker: Address, topic: str, tmp_path: Path) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(topic, 2)
    produce(broker.address, topic, range(60))
    produce(broker.address, topic, range(60, 80), 1)
    rows: list[int] = []
    frame = stream(spark, broker.address, topic, maxOffsetsPerTrigger="40", minPartitions="4")
    progress = run(frame, tmp_path, rows)
    assert [each["numInputRows"] for each in progress] == [40, 40]
    assert [topics_of(each["sources"][0]["endOffset"]) for each in progress] == [
        {topic: {"0": 30, "1": 10}}, {topic: {"0": 60, "1": 20}},
    ]  # fmt: skip
    assert progress[0]["sources"][0]["latestOffset"] == {topic: {"0": 60, "1": 20}}
    produce(broker.address, topic, range(80, 83))
    with Admin(broker.address) as admin:
        admin.create_partitions(topic, 3)
    produce(broker.address, topic, range(83, 85), 2)
    run(frame, tmp_path, rows)
    assert sorted(rows) == list(range(85))
    run(frame, tmp_path, rows)
    assert len(rows) == 85


def test_a_running_query_reads_new_partitions_within_its_limits(
    spark: Any, broker: Address, topic: str, tmp_path: Path
) -> None:
    produce(broker.address, topic, range(3))
    seen: list[int] = []
    sizes: list[int] = []

    def keep(batch: Any, _: int) -> None:
        found = [int(row.value) for row in batch.select("value").collect()]
        seen.extend(found)
        sizes.append(len(found))

    frame = stream(spark, broker.address, topic, minOffsetsPerTrigger="10", maxTriggerDelay="1d")
    query = Running(frame.writeStream.foreachBatch(keep), tmp_path)
    query.until(lambda: len(seen) == 3)
    produce(broker.address, topic, range(3, 7))  # too few
    with Admin(broker.address) as admin:
        admin.create_partitions(topic, 2)
    produce(broker.address, topic, range(7, 13), 1)
    query.until(lambda: len(seen) == 13)
    assert sizes == [3, 10]
    assert sorted(seen) == list(range(13))


def test_deleted_records_are_an_error_unless_allowed(spark: Any, broker: Address, topic: str, tmp_path: Path) -> None:
    produce(broker.address, topic, range(5))
    rows: list[int] = []
    run(stream(spark, broker.address, topic), tmp_path, rows)
    produce(broker.address, topic, range(5, 10))
    with Admin(broker.address) as admin:
        admin.delete_records({TopicPartition(topic, 0): 8})
    with pytest.raises(Exception, match=r"offset 5 .* does not exist.*failOnDataLoss"):
        run(stream(spark, broker.address, topic), tmp_path, rows)
    assert rows == [0, 1, 2, 3, 4]
    run(stream(spark, broker.address, topic, failOnDataLoss="false"), tmp_path, rows)
    assert rows == [0, 1, 2, 3, 4, 8, 9]


def test_a_deleted_topic_is_an_error_unless_allowed(
    spark: Any, broker: Address, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    gone, kept = new_topic(), new_topic()
    produce(broker.address, gone, range(3))
    produce(broker.address, kept, range(10, 13))
    rows: list[int] = []
    both = f"{gone},{kept}"
    run(stream(spark, broker.address, both), tmp_path, rows)
    with Admin(broker.address) as admin:
        admin.delete_topic(gone)
    produce(broker.address, kept, range(13, 15))
    with pytest.raises(Exception, match=f"partition {gone}-0 no longer exists.*failOnDataLoss"):
        run(stream(spark, broker.address, both), tmp_path, rows)
    run(stream(spark, broker.address, both, failOnDataLoss="false"), tmp_path, rows)
    assert sorted(rows) == [0, 1, 2, 10, 11, 12, 13, 14]


def test_available_now_closes_the_windows_that_the_last_batch_has_passed(
    spark: Any, broker: Address, topic: str, tmp_path: Path
) -> None:
    """As with Spark's own source, a last batch without data has the watermark of the last records."""
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(topic, 1, 1, {"retention.ms": "-1"})])
    closed: list[tuple[int, int]] = []

    def keep(batch: Any, _: int) -> None:
        closed.extend(sorted((int(row.second), row["count"]) for row in batch.collect()))

    counts = (
        stream(spark, broker.address, topic, maxOffsetsPerTrigger="40").withWatermark("timestamp", "10 seconds")
        .groupBy(window("timestamp", "20 seconds")).count().selectExpr("unix_seconds(window.start) as second", "count")
    )  # fmt: skip
    writer = counts.writeStream.outputMode("append").foreachBatch(keep).option("checkpointLocation", str(tmp_path))

    def until_all_is_read() -> list[tuple[int, int]]:
        def once() -> None:
            query = writer.trigger(availableNow=True).start()
            try:
                assert query.awaitTermination(SECONDS)
            finally:
                query.stop()

        retried(once)
        return closed

    send_seconds(broker.address, topic, range(100))  # the watermark is second 89 then
    assert until_all_is_read() == [(second, 20) for second in range(0, 80, 20)]
    send_seconds(broker.address, topic, range(100, 112))
    assert until_all_is_read() == [(second, 20) for second in range(0, 100, 20)]


def test_later_micro_batches_use_the_connections_of_the_first(
    spark: Any, broker: Address, topic: str, tmp_path: Path
) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(topic, 2)
    seen: list[int] = []

    def keep(batch: Any, _: int) -> None:
        seen.extend(int(row.value) for row in batch.select("value").collect())

    query = Running(stream(spark, broker.address, topic).writeStream.foreachBatch(keep), tmp_path)
    before: set[int] = set()
    for turn in range(6):
        for partition in range(2):
            produce(broker.address, topic, range(2 * turn + partition, 2 * turn + partition + 1), partition)
        query.until(lambda: len(seen) == 2 * turn + 2)  # noqa: B023 - called at once
        if turn == 1:  # both workers have read by now, or one has read everything
            before = connections_to(broker.address)
    kept = before & connections_to(broker.address)
    query.stop()
    assert sorted(seen) == list(range(12))
    assert before and kept == before


def test_a_broker_that_restarts_between_micro_batches_is_no_error(
    spark: Any, start_broker: StartBroker, tmp_path: Path
) -> None:
    """The connections that were kept are broken then."""
    [port] = free_ports(1)
    broker = start_broker(port=port)
    with Admin(broker.address) as admin:
        admin.create_topic("t", 1)
    seen: list[int] = []

    def keep(batch: Any, _: int) -> None:
        seen.extend(int(row.value) for row in batch.select("value").collect())

    query = Running(stream(spark, broker.address, "t").writeStream.foreachBatch(keep), tmp_path)
    for turn in range(3):
        produce(broker.address, "t", range(turn, turn + 1))
        query.until(lambda: len(seen) == turn + 1)  # noqa: B023 - called at once
        if turn < 2:
            broker.stop()
            broker = start_broker(port=port)
    query.stop()
    assert seen == [0, 1, 2]


def test_the_default_start_is_decided_once(spark: Any, broker: Address, topic: str, tmp_path: Path) -> None:
    """The first batch begins at the end offset found when the query started, though records were written until Spark
    asked again. A query that fails in this batch reads the same range when it is restarted on its checkpoint.
    """
    with Admin(broker.address) as admin:
        admin.create_topic(topic, 1)
    seen: list[int] = []
    dies: list[bool] = [True]

    def keep(batch: Any, number: int) -> None:
        found = sorted(int(row.value) for row in batch.select("value").collect())
        if dies and found:
            dies[:] = []
            lost.append((number, found))
            raise RuntimeError("fails in its first batch")
        seen.extend(found)

    lost: list[Any] = []
    frame = stream(spark, broker.address, topic, startingOffsets="latest")
    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path))
    with traffic(broker.address, topic, 0.002):

        def until_it_fails() -> None:
            query = writer.start()
            with pytest.raises(Exception, match="fails in its first batch") as caught:
                query.awaitTermination(SECONDS)
            if is_slow_start(caught.value):
                raise caught.value

        retried(until_it_fails)
        query = Running(frame.writeStream.foreachBatch(keep), tmp_path)
        query.until(lambda: len(seen) > len(lost[0][1]) + 500)
        query.stop()
    assert seen[: len(lost[0][1])] == lost[0][1]
    assert seen == list(range(seen[0], seen[0] + len(seen)))


def test_a_recreated_topic_is_an_error_or_read_from_its_start(
    spark: Any, broker: Address, topic: str, tmp_path: Path
) -> None:
    produce(broker.address, topic, range(5))
    rows: list[int] = []
    run(stream(spark, broker.address, topic), tmp_path, rows)
    with Admin(broker.address) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, 1)
    produce(broker.address, topic, range(10, 20))
    with pytest.raises(Exception, match=r"deleted and created again.*'onRecreatedTopic' to 'restart'"):
        run(stream(spark, broker.address, topic), tmp_path, rows)
    assert rows == [0, 1, 2, 3, 4]
    run(stream(spark, broker.address, topic, onRecreatedTopic="restart"), tmp_path, rows)
    assert rows == [0, 1, 2, 3, 4, *range(10, 20)]


def test_a_time_stamp_beyond_spark_s_range_is_an_error_or_replaced(
    spark: Any, broker: Address, topic: str, tmp_path: Path
) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(topic, 1, configs={"message.timestamp.after.max.ms": str((1 << 63) - 1)})
    with Producer(broker.address) as producer:
        for number, stamp in enumerate((1_700_000_000_000, (1 << 63) - 1)):
            producer.send(topic, b"%d" % number, timestamp=stamp, partition=0)
    rows: list[int] = []
    with pytest.raises(Exception, match=r"offset 1 of .* time stamp 9223372036854775807 ms.*'invalidTimestamps'"):
        run(stream(spark, broker.address, topic), tmp_path, rows)
    run(stream(spark, broker.address, topic, invalidTimestamps="null"), tmp_path, rows)
    assert rows == [0, 1]
    reader = spark.read.format("pylogd").option("kafka.bootstrap.servers", broker.address).option("subscribe", topic)
    found = reader.options(invalidTimestamps="null", includeTimestampMs="true").load().collect()
    assert [(row.timestamp is None, row.timestampMs) for row in found] == [
        (False, 1_700_000_000_000), (True, (1 << 63) - 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "is higher than the maxOffsetsPerTrigger"),
        ({"startingOffsets": '{"x":{"0":1}}'}, "specify all TopicPartitions"),
    ],
)
def test_wrong_options_are_an_error(
    spark: Any, broker: Address, topic: str, tmp_path: Path, options: dict[str, str], text: str
) -> None:
    produce(broker.address, topic, range(1))
    rows: list[int] = []
    with pytest.raises(Exception, match=text):
        run(stream(spark, broker.address, topic, **options), tmp_path, rows)
    assert rows == []


# The sink


def records(address: str, topic: str, count: int) -> list[Any]:
    """Wait until a topic has `count` different values. Return its records by partition and offset."""
    found: list[Any] = []
    deadline = time.monotonic() + SECONDS
    with Consumer(address) as consumer:
        consumer.assign(consumer.partitions(topic))
        while len({record.value for record in found}) < count:
            assert time.monotonic() < deadline
            found += consumer.poll(1.0)
    return sorted(found, key=lambda record: (record.partition, record.offset))


def test_rows_are_written_with_all_columns(spark: Any, broker: Address, topic: str) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(topic, 3)
    frame = spark.sql(
        f"""select * from values
        ('{topic}', binary('k1'), 'v1', 2, array(named_struct('key', 'h', 'value', binary('1')))),
        ('{topic}', null, 'v2', 1, null),
        ('{topic}', binary('k3'), null, 0, array())
        as rows(topic, key, value, partition, headers)"""
    ).coalesce(1)
    frame.write.format("pylogd").option("kafka.bootstrap.servers", broker.address).mode("append").save()
    assert [(r.partition, r.key, r.value, list(r.headers)) for r in records(broker.address, topic, 3)] == [
        (0, b"k3", None, []),
        (1, None, b"v2", []),
        (2, b"k1", b"v1", [("h", b"1")]),
    ]


def test_a_stream_is_written_to_another_topic(
    spark: Any, broker: Address, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    source, target = new_topic(), new_topic()
    produce(broker.address, source, range(50))
    writer = (
        stream(spark, broker.address, source, maxOffsetsPerTrigger="20").selectExpr("value", "'ignored' as topic")
        .writeStream.format("pylogd").option("kafka.bootstrap.servers", broker.address).option("topic", target)
        .option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    )  # fmt: skip
    assert retried(lambda: writer.start().awaitTermination(SECONDS))
    numbers = {int(record.value) for record in records(broker.address, target, 50)}
    assert numbers == set(range(50))  # at-least-once: a retried batch is written twice


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ("key", {"topic": "x"}, "Required attribute 'value' not found"),
        ("value", {}, "topic option required when no 'topic' attribute is present"),
        ("value, 5 as topic", {}, "topic must be a STRING"),
        ("5 as value", {"topic": "x"}, "value must be a STRING or BINARY"),
        ("value, 5 as key", {"topic": "x"}, "key must be a STRING or BINARY"),
        ("value, '5' as partition", {"topic": "x"}, "partition must be an INT"),
        ("value, 'h' as headers", {"topic": "x"}, "headers must be an ARRAY"),
        ("value, cast(null as string) as topic", {}, "null topic present in the data"),
        ("value", {"topic": "x", "kafka.acks": "5"}, "kafka.acks"),
        ("value", {"topic": "x", "tpoic": "y"}, "unknown option 'tpoic'"),
    ],
)
def test_rows_that_can_not_be_written_are_an_error(
    spark: Any, broker: Address, columns: str, options: dict[str, str], text: str
) -> None:
    frame = spark.range(1).selectExpr("'k' as key", "'v' as value").selectExpr(*columns.split(", "))
    writer = frame.write.format("pylogd").option("kafka.bootstrap.servers", broker.address).options(**options)
    with pytest.raises(Exception, match=text):
        writer.mode("append").save()


def test_the_overwrite_mode_is_refused(spark: Any, broker: Address, topic: str) -> None:
    writer = spark.range(1).selectExpr("'v' as value").write.format("pylogd").option("topic", topic)
    with pytest.raises(Exception, match=r"(?i)overwrite|truncate"):
        writer.option("kafka.bootstrap.servers", broker.address).mode("overwrite").save()


def test_lag_is_reported_to_a_listener(spark: Any, broker: Address, topic: str, tmp_path: Path) -> None:
    class Kept(LagListener):
        reports: ClassVar[list[dict[Any, int]]] = []

        summaries: ClassVar[list[BehindLatest | None]] = []

        def note(self, progress: Any) -> None:
            self.reports.append(of_progress(progress))
            self.summaries.append(behind_latest(progress["sources"][0]))

    produce(broker.address, topic, range(30))
    listener = Kept()
    spark.streams.addListener(listener)
    try:
        frame = stream(spark, broker.address, topic, maxOffsetsPerTrigger="20")
        query = Running(frame.writeStream.format("noop"), tmp_path)
        query.until(lambda: {(topic, 0): 10} in Kept.reports and {(topic, 0): 0} in Kept.reports)
    finally:
        spark.streams.removeListener(listener)
    assert BehindLatest(10, 10.0, 10) in Kept.summaries


def test_spark_asks_no_source_in_python_for_metrics(spark: Any) -> None:
    """Which is why a listener has them, not the progress report. If this fails with a newer Spark, let the source
    report them itself.
    """
    find = spark._jvm.java.lang.Class.forName
    asked = find("org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics")
    package = "org.apache.spark.sql.execution.datasources.v2.python"
    assert not asked.isAssignableFrom(find(f"{package}.PythonMicroBatchStreamWithTriggerAvailableNow"))
