"""Unmodified confluent-kafka, aiokafka and kafka-python: transactions, and offsets in them.

Each client does the same: it copies a topic in transactions, of which every third is aborted, and a reader of committed
records has to find each record once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition as AioPartition
from kafka.structs import OffsetAndMetadata

from pylogd.client import Admin, Consumer, Producer
from tests.integration.conftest import Address

SECONDS = 120.0
COUNT = 60
_GROUP = "copiers-of-{}"


@pytest.fixture
def copying(broker: Address, new_topic: Callable[[], str]) -> Iterator[tuple[str, str, str]]:
    """The broker's address, a topic of `COUNT` records, and one to copy it to. Both are checked at the end."""
    source, target = new_topic(), new_topic()
    with Admin(broker.address) as admin:
        admin.create_topic(source, 1)
        admin.create_topic(target, 2)
    with Producer(broker.address, transactional_id=f"filler-{source}") as producer:
        for start in range(0, COUNT, 10):
            with producer.transaction():
                for number in range(start, start + 10):
                    producer.send(source, b"%d" % number)
    yield broker.address, source, target
    with Consumer(broker.address, group_id=_GROUP.format(source), isolation="committed") as consumer:
        ((_, committed),) = consumer.committed([(source, 0)]).items()
        assert committed is not None
        consumer.assign({(source, 0): committed.offset})
        assert consumer.poll(1.0) == []  # there is nothing behind what was committed
    with Consumer(broker.address, isolation="committed") as consumer:
        consumer.assign([(target, 0), (target, 1)])
        found: list[int] = []
        deadline = time.monotonic() + SECONDS
        while len(found) < COUNT and time.monotonic() < deadline:
            found += [int(record.value or b"") for record in consumer.poll(1.0)]
        found += [int(record.value or b"") for record in consumer.poll(0.5)]
    assert sorted(found) == list(range(COUNT))


def test_confluent_kafka(copying: tuple[str, str, str]) -> None:
    address, source, target = copying
    group = _GROUP.format(source)
    settings: dict[str, Any] = {"bootstrap.servers": address, "log_level": 0}
    producer = confluent_kafka.Producer(settings | {"transactional.id": f"confluent-{source}"})
    producer.init_transactions(SECONDS)
    consumer = confluent_kafka.Consumer(
        settings
        | {
            "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )  # fmt: skip
    consumer.subscribe([source])
    copied = turns = 0
    deadline = time.monotonic() + SECONDS
    while copied < COUNT and time.monotonic() < deadline:
        messages = consumer.consume(7, 1.0)
        if not messages:
            continue
        turns += 1
        producer.begin_transaction()
        for message in messages:
            assert message.error() is None
            producer.produce(target, message.value(), partition=turns % 2)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), SECONDS
        )
        if turns % 3 == 2:
            producer.abort_transaction(SECONDS)
            for partition in consumer.committed(consumer.assignment(), SECONDS):
                partition.offset = max(partition.offset, 0)
                consumer.seek(partition)
        else:
            producer.commit_transaction(SECONDS)
            copied += len(messages)
    consumer.close()
    fenced = confluent_kafka.Producer(settings | {"transactional.id": f"confluent-{source}"})
    fenced.init_transactions(SECONDS)
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        producer.begin_transaction()
        producer.produce(target, b"x")
        producer.commit_transaction(SECONDS)
    refused = confluent_kafka.KafkaError._FENCED, confluent_kafka.KafkaError.INVALID_PRODUCER_EPOCH
    assert caught.value.args[0].code() in refused


def test_aiokafka(copying: tuple[str, str, str]) -> None:
    address, source, target = copying

    async def copy() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=address, transactional_id=f"aiokafka-{source}")
        consumer = AIOKafkaConsumer(
            source, bootstrap_servers=address, group_id=_GROUP.format(source), enable_auto_commit=False,
            auto_offset_reset="earliest", isolation_level="read_committed",
        )  # fmt: skip
        await producer.start()
        await consumer.start()
        copied = turns = 0
        while copied < COUNT:
            found = await consumer.getmany(timeout_ms=1000, max_records=7)
            for partition, records in found.items():
                turns += 1
                try:
                    async with producer.transaction():
                        for record in records:
                            await producer.send(target, record.value, partition=turns % 2)
                        await producer.send_offsets_to_transaction(
                            {AioPartition(source, 0): records[-1].offset + 1}, _GROUP.format(source)
                        )
                        if turns % 3 == 2:
                            raise InterruptedError
                    copied += len(records)
                except InterruptedError:
                    consumer.seek(partition, records[0].offset)
        await consumer.stop()
        await producer.stop()

    asyncio.run(asyncio.wait_for(copy(), SECONDS))


def test_kafka_python(copying: tuple[str, str, str]) -> None:
    address, source, target = copying
    consumer = kafka.KafkaConsumer(
        source, bootstrap_servers=address, group_id=_GROUP.format(source), enable_auto_commit=False,
        auto_offset_reset="earliest", isolation_level="read_committed", max_poll_records=7,
    )  # fmt: skip
    producer = kafka.KafkaProducer(bootstrap_servers=address, transactional_id=f"kafka-python-{source}")
    with closing(consumer), closing(producer):
        producer.init_transactions()
        copied = turns = 0
        deadline = time.monotonic() + SECONDS
        while copied < COUNT and time.monotonic() < deadline:
            for partition, records in consumer.poll(1000).items():
                turns += 1
                producer.begin_transaction()
                for record in records:
                    producer.send(target, record.value, partition=turns % 2)
                offsets = {partition: OffsetAndMetadata(records[-1].offset + 1, "", -1)}
                producer.send_offsets_to_transaction(offsets, _GROUP.format(source))
                if turns % 3 == 2:
                    producer.abort_transaction()
                    consumer.seek(partition, records[0].offset)
                else:
                    producer.commit_transaction()
                    copied += len(records)
