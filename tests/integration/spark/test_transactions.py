"""Transactions with a real Spark: reading what is committed, and a sink that writes each epoch once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pylogd.base.clock import wall_ms
from pylogd.client import Admin, Consumer, NewTopic, Producer
from tests.exactly_once.events import check, expected_counts, write_sentinels, written_counts
from tests.exactly_once.harness import SETTINGS
from tests.exactly_once.query import NAME, TARGET, TOPICS, Checkpoint, QueryProcess, is_open, recorded
from tests.integration.conftest import Address, StartBroker
from tests.integration.spark.test_examples import example
from tests.integration.spark.test_stream import run, stream
from tests.sparks import retried

pytestmark = pytest.mark.timeout(900)
SECONDS = 240.0
LATE = "60 seconds"
COMMITTED = {"isolation.level": "read_committed"}
START_MS = wall_ms() + 1_800_000  # later than markers, which have the time of day, so that they are not found by time


@pytest.fixture(autouse=True)
def no_query_left(spark: Any) -> Iterator[None]:
    yield
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def log(broker: Address, topic: str) -> Iterator[Producer]:
    """A partition with 0 to 9 committed, 10 to 19 aborted, 20 to 29 committed, and 30 to 34 in an open transaction."""
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(topic, 1, 1, {"retention.ms": "-1"})])
    with Producer(broker.address, transactional_id=f"{topic}-log", transaction_timeout=800) as producer:
        for first, last in ((0, 10), (10, 20), (20, 30), (30, 35)):
            producer.begin_transaction()
            for number in range(first, last):
                producer.send(topic, b"%d" % number, partition=0, timestamp=START_MS + number * 1000)
            producer.flush()
            if first != 30:
                (producer.abort_transaction if first == 10 else producer.commit_transaction)()
        yield producer
        producer.abort_transaction()


def batch(spark: Any, address: str, topic: str, **options: str) -> list[int]:
    reader = spark.read.format("pylogd").option("kafka.bootstrap.servers", address)
    rows = reader.options(subscribe=topic, **options).load().select("value").collect()
    return sorted(int(row.value) for row in rows)


TWENTY = [*range(10), *range(20, 30)]


def test_a_batch_query_reads_what_is_committed(spark: Any, broker: Address, topic: str, log: Producer) -> None:
    split = batch(spark, broker.address, topic, minPartitions="9", **COMMITTED)  # some tasks have only aborted records
    assert split == TWENTY
    assert batch(spark, broker.address, topic) == list(range(35))
    # 30 is the first with such a time stamp, but not committed: the query starts at the end of what is
    late = {"startingTimestamp": str(START_MS + 30_000), "startingOffsetsByTimestampStrategy": "latest"}
    assert batch(spark, broker.address, topic, **late, **COMMITTED) == []
    assert batch(spark, broker.address, topic, **late) == list(range(30, 35))


def test_a_stream_reads_what_is_committed_and_does_not_wait(
    spark: Any, broker: Address, topic: str, log: Producer, tmp_path: Path
) -> None:
    rows: list[int] = []
    frame = stream(spark, broker.address, topic, maxOffsetsPerTrigger="3", **COMMITTED)
    assert len(run(frame, tmp_path, rows)) >= 7
    assert rows == TWENTY
    log.commit_transaction()
    run(frame, tmp_path, rows)
    assert rows == [*TWENTY, *range(30, 35)]
    log.begin_transaction()


def test_a_stream_of_uncommitted_records_goes_on_with_committed_ones(
    spark: Any, broker: Address, topic: str, log: Producer, tmp_path: Path
) -> None:
    rows: list[int] = []
    run(stream(spark, broker.address, topic), tmp_path, rows)
    assert rows == list(range(35))
    frame = stream(spark, broker.address, topic, **COMMITTED)  # is ahead of the last stable offset
    run(frame, tmp_path, rows)
    log.commit_transaction()
    log.begin_transaction()
    log.send(topic, b"35", partition=0)
    log.commit_transaction()
    run(frame, tmp_path, rows)
    assert rows == list(range(36))
    log.begin_transaction()


def committed(address: str, topic: str) -> list[int]:
    found: list[int] = []
    with Consumer(address, auto_offset_reset="earliest", isolation="committed") as consumer:
        ends = consumer.end_offsets(consumer.partitions(topic))
        consumer.assign(consumer.beginning_offsets(ends))
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            found += [int(record.value or b"") for record in consumer.poll(1.0)]
    return sorted(found)


def copy(frame: Any, address: str, target: str, checkpoint: Path) -> None:
    """Copy what is available to another topic, in transactions."""
    sink = {"kafka.bootstrap.servers": address, "topic": target, "transactional": target}
    rows = frame.select("key", "value").repartition(3)
    writer = rows.writeStream.format("pylogd").options(**sink, checkpointLocation=str(checkpoint))

    def once() -> None:
        started = writer.trigger(availableNow=True).start()
        try:
            assert started.awaitTermination(SECONDS)
        finally:
            started.stop()

    retried(once)


def test_an_epoch_that_spark_repeats_is_written_once(
    spark: Any, broker: Address, topic: str, log: Producer, tmp_path: Path
) -> None:
    target = f"{topic}-copy"
    frame = stream(spark, broker.address, topic, maxOffsetsPerTrigger="12", **COMMITTED)
    copy(frame, broker.address, target, tmp_path)
    assert committed(broker.address, target) == TWENTY
    commits = sorted(int(each.name) for each in (tmp_path / "commits").iterdir() if each.name.isdigit())
    for name in (f"{commits[-1]}", f".{commits[-1]}.crc"):  # died between its commit and Spark's
        (tmp_path / "commits" / name).unlink()
    log.commit_transaction()
    copy(frame, broker.address, target, tmp_path)
    assert committed(broker.address, target) == [*TWENTY, *range(30, 35)]
    log.begin_transaction()


def test_a_batch_query_writes_one_transaction(spark: Any, broker: Address, topic: str) -> None:
    sink = {"kafka.bootstrap.servers": broker.address, "topic": topic, "transactional": topic}
    rows = spark.range(0, 1000, numPartitions=4).selectExpr("cast(id as string) as value")
    rows.write.format("pylogd").options(**sink).mode("append").save()
    assert committed(broker.address, topic) == list(range(1000))
    failing = rows.selectExpr("if(value = '777', raise_error('no'), value) as value")
    with pytest.raises(Exception, match="no"):
        failing.write.format("pylogd").options(**sink).mode("append").save()
    assert committed(broker.address, topic) == list(range(1000))


def has_reached(checkpoint: Checkpoint, epoch: int) -> bool:
    return checkpoint.committed() >= epoch


def test_counts_are_written_once_by_a_query_that_is_killed(
    spark: Any, start_broker: StartBroker, tmp_path: Path
) -> None:
    """Kills twice; `make exactly-once` kills fifty times, and brokers too."""
    broker = start_broker("counts", SETTINGS)
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(name, 2, 1, {"retention.ms": "-1"}) for name in (*TOPICS, TARGET)])
    with Producer(broker.address, transactional_id="events") as producer:
        for start in range(0, 12_000, 1000):
            producer.begin_transaction()
            for number in range(start, start + 1000):
                stamp = 1_700_000_000_000 + number * 400  # an epoch of 25 is 10 s: each sixth one has rows to write
                producer.send(TOPICS[number % 2], b"", b"key %d" % (number % 7), timestamp=stamp)
            (producer.abort_transaction if start == 5000 else producer.commit_transaction)()
    write_sentinels(broker.address, TOPICS, 1)
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    moments: list[Callable[[Admin], bool]] = [
        is_open,
        lambda admin: recorded(admin, checkpoint) > checkpoint.committed(),
    ]
    with Admin(broker.address) as admin:
        for number, moment in enumerate(moments):
            process = QueryProcess(  # in many small batches, each of which has the moment to be hit
                broker.address, checkpoint.folder, tmp_path / "query.log", tmp_path, follow=True, late=LATE, most=25
            )
            try:
                process.wait_for(
                    partial(has_reached, checkpoint, checkpoint.committed() + number + 1), SECONDS, pause=0.05
                )
                process.wait_for(partial(moment, admin), SECONDS, pause=0.001)
            finally:
                process.kill_all()
    count = example("counts_exactly_once").count
    retried(
        lambda: count(
            spark, broker.address, ",".join(TOPICS), TARGET, str(checkpoint.folder), name=NAME,
            window="60 seconds", late=LATE, most=10_000, follow=False,
        )
    )  # fmt: skip
    found = written_counts(broker.address, TARGET)
    assert check(expected_counts(broker.address, TOPICS), found) > 100
