"""What every face of the client promises of its producer."""

from __future__ import annotations

from typing import Any

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.client import (
    BatchResult,
    Closed,
    DeliveryFailed,
    KafkaError,
    NewRecord,
    Record,
    TopicPartition,
)
from tests.contract.clients.helpers import T, eventually, name, numbers, places
from tests.faces import Face, poll_until


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_there_and_back(face: Face, topic: str, codec: str) -> None:
    producer = face.producer(compression=codec)
    sent = [
        producer.send(topic, b"v%d" % n, b"k%d" % (n % 7), timestamp=T + n, headers=[("n", b"%d" % n), ("null", None)])
        for n in range(500)
    ]
    producer.flush()
    consumer = face.consumer()
    consumer.assign(places(topic))
    found = {(r.partition, r.offset): r for r in poll_until([consumer], lambda records: len(records) >= 500)}
    assert len(found) == 500
    for n, delivery in enumerate(sent):
        assert found[delivery.partition, delivery.offset] == Record(
            topic, delivery.partition, delivery.offset, T + n, b"k%d" % (n % 7), b"v%d" % n,
            (("n", b"%d" % n), ("null", None)),
        )  # fmt: skip


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(face: Face, topic: str, acks: Any) -> None:
    assert face.producer().send(topic, b"first", partition=1).result() == 0  # the partition has a leader now
    producer = face.producer(acks=acks)
    delivery = producer.send(topic, b"x", partition=1)
    producer.flush()
    assert delivery.result() == (-1 if acks == 0 else 1)
    consumer = face.consumer()
    consumer.assign({(topic, 1): 1})
    assert [r.value for r in poll_until([consumer], bool)] == [b"x"]


def test_order_is_kept_and_nothing_doubled(face: Face, topic: str) -> None:
    producer = face.producer(idempotence=True, batch_records=10, linger_ms=0)
    for n in range(1000):
        producer.send(topic, b"%d" % n, partition=0)
    producer.flush()
    consumer = face.consumer()
    consumer.assign(places(topic, 1))
    assert numbers(poll_until([consumer], lambda records: len(records) >= 1000)) == list(range(1000))


def test_a_set_is_written_whole(face: Face, topic: str) -> None:
    producer = face.producer()
    delivery = producer.send_set(topic, [(b"k", b"a"), NewRecord(None, b"b", T), (None, None)], partition=1)
    assert delivery.result() == 0
    consumer = face.consumer()
    consumer.assign([(topic, 1)])
    assert [(r.key, r.value) for r in poll_until([consumer], bool)] == [(b"k", b"a"), (None, b"b"), (None, None)]


def test_results_are_told(face: Face, topic: str) -> None:
    batches: list[BatchResult] = []
    done: list[Any] = []
    producer = face.producer(on_batch=batches.append)
    for n in range(3):
        producer.send(topic, b"x", partition=0, on_delivery=done.append, timestamp=T + n)
    producer.flush()
    assert [delivery.offset for delivery in done] == [0, 1, 2]
    assert sum(batch.records for batch in batches) == 3
    assert {batch.partition for batch in batches} == {TopicPartition(topic, 0)}


def test_errors_of_the_broker_fail_the_delivery(face: Face, admin: Any) -> None:
    small = name("small")
    admin.create_topic(small, 1, configs={"max.message.bytes": "1000"})
    assert eventually(lambda: bool(admin.describe_topic(small).partitions))
    producer = face.producer()
    delivery = producer.send(small, b"x" * 5000, partition=0)
    with pytest.raises(KafkaError) as refused:
        delivery.result()
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert delivery.error is refused.value
    producer.send(small, b"y" * 5000, partition=0)
    with pytest.raises(DeliveryFailed, match="2 records"):
        producer.flush()
    assert producer.send(small, b"fits", partition=0).result() == 0
    producer.flush()


def test_a_producer_makes_topics_and_ends(face: Face) -> None:
    fresh = name("fresh")
    producer = face.producer()
    delivery = producer.send(fresh, b"x")
    producer.close()
    assert delivery.offset == 0
    with pytest.raises(Closed):
        producer.send(fresh, b"x")
