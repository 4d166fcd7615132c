"""Unmodified aiokafka against a broker, reading by `assign`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.errors import MessageSizeTooLargeError, OffsetOutOfRangeError

from tests.integration.conftest import Address

SECONDS = 120.0


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine to its end, with a time limit."""

    async def bounded() -> None:
        await asyncio.wait_for(test(), 3 * SECONDS)

    asyncio.run(bounded())


async def create(address: str, topic: str, partitions: int = 1) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, partitions, 1)])
    finally:
        await admin.close()


async def take(consumer: AIOKafkaConsumer, count: int) -> list[Any]:
    """Exactly `count` records."""

    async def all_of_them() -> list[Any]:
        return [await consumer.getone() for _ in range(count)]

    return await asyncio.wait_for(all_of_them(), SECONDS)


async def read(address: str, topic: str, count: int, partition: int = 0) -> list[Any]:
    """Read `count` records of a partition from its beginning."""
    async with AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        return await take(consumer, count)


async def send(address: str, topic: str, values: list[bytes], **settings: Any) -> list[int]:
    """Produce to partition 0 with all records in flight at once. Return their offsets."""
    async with AIOKafkaProducer(bootstrap_servers=address, **settings) as producer:
        futures = [await producer.send(topic, value, partition=0) for value in values]
        return [found.offset for found in await asyncio.wait_for(asyncio.gather(*futures), SECONDS)]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_produced_records_are_consumed_unchanged(broker: Address, topic: str, codec: str | None) -> None:
    headers = [("trace", b"\x00\x01"), ("empty", b"")]
    first_time = 1_700_000_000_000

    async def test() -> None:
        await create(broker.address, topic)
        async with AIOKafkaProducer(bootstrap_servers=broker.address, compression_type=codec, linger_ms=20) as producer:
            futures = [
                await producer.send(
                    topic,
                    f"value {number} ".encode() * 20 if number % 11 else None,
                    key=f"key-{number % 7}".encode() if number % 5 else b"always",
                    headers=headers if number % 3 else None,
                    timestamp_ms=first_time + number,
                )
                for number in range(300)
            ]
            delivered = await asyncio.gather(*futures)
        assert [found.offset for found in delivered] == list(range(300))
        for number, record in enumerate(await read(broker.address, topic, 300)):
            assert record.offset == number
            assert record.key == (f"key-{number % 7}".encode() if number % 5 else b"always")
            assert record.value == (f"value {number} ".encode() * 20 if number % 11 else None)
            assert list(record.headers) == (headers if number % 3 else [])
            assert record.timestamp == first_time + number

    run(test)


def test_offsets_by_time_and_seek(broker: Address, topic: str) -> None:
    async def test() -> None:
        await create(broker.address, topic)
        async with AIOKafkaProducer(bootstrap_servers=broker.address) as producer:
            for number in range(40):
                await producer.send(topic, str(number).encode(), timestamp_ms=1_600_000_000_000 + 10 * number)
        topic_partition = TopicPartition(topic, 0)
        async with AIOKafkaConsumer(bootstrap_servers=broker.address, auto_offset_reset="none") as consumer:
            consumer.assign([topic_partition])
            assert await consumer.beginning_offsets([topic_partition]) == {topic_partition: 0}
            assert await consumer.end_offsets([topic_partition]) == {topic_partition: 40}
            found = (await consumer.offsets_for_times({topic_partition: 1_600_000_000_111}))[topic_partition]
            assert (found.offset, found.timestamp) == (12, 1_600_000_000_120)
            for offset in (25, 0, 39):
                consumer.seek(topic_partition, offset)
                assert (await take(consumer, 1))[0].offset == offset
            consumer.seek(topic_partition, 1000)
            with pytest.raises(OffsetOutOfRangeError):
                await take(consumer, 1)

    run(test)


def test_an_append_answers_a_waiting_fetch(broker: Address, topic: str) -> None:
    """The fetch may wait for five minutes, so that the test fails unless the append answers it."""

    async def test() -> None:
        await create(broker.address, topic)
        async with AIOKafkaConsumer(
            bootstrap_servers=broker.address,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=300_000,
            request_timeout_ms=310_000,
        ) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            waiting = asyncio.create_task(consumer.getone())
            await asyncio.sleep(0.5)  # lets the fetch reach the broker first; the result does not depend on it
            await send(broker.address, topic, [b"wake"])
            assert (await asyncio.wait_for(waiting, SECONDS)).value == b"wake"

    run(test)


def test_large_messages_are_accepted_up_to_the_limit(broker: Address, topic: str) -> None:
    async def test() -> None:
        await create(broker.address, topic)
        values = [bytes([65 + number]) * 900_000 for number in range(5)]
        assert await send(broker.address, topic, values) == list(range(5))
        assert [record.value for record in await read(broker.address, topic, 5)] == values
        with pytest.raises(MessageSizeTooLargeError):
            await send(broker.address, topic, [b"x" * 3_000_000], max_request_size=8_000_000)

    run(test)


def test_requests_to_many_partitions_keep_their_order(broker: Address, topic: str) -> None:
    async def test() -> None:
        await create(broker.address, topic, 20)
        async with AIOKafkaProducer(bootstrap_servers=broker.address, max_batch_size=200) as producer:
            for number in range(2000):
                await producer.send(topic, str(number).encode(), partition=number % 20)
        async with AIOKafkaConsumer(bootstrap_servers=broker.address, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, partition) for partition in range(20)])
            found: dict[int, list[int]] = {}
            for record in await take(consumer, 2000):
                found.setdefault(record.partition, []).append(int(record.value))
        assert found == {partition: list(range(partition, 2000, 20)) for partition in range(20)}

    run(test)


def test_an_idempotent_producer_writes_each_record_once(broker: Address, topic: str) -> None:
    async def test() -> None:
        await create(broker.address, topic)
        values = [str(number).encode() for number in range(500)]
        offsets = await send(broker.address, topic, values, enable_idempotence=True, max_batch_size=200)
        assert offsets == list(range(500))
        assert [record.value for record in await read(broker.address, topic, 500)] == values

    run(test)


def test_admin_client_creates_describes_and_deletes_topics(broker: Address, topic: str) -> None:
    async def test() -> None:
        await create(broker.address, topic, 2)
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.address)
        await admin.start()
        try:
            assert topic in await admin.list_topics()
            await admin.create_partitions({topic: NewPartitions(5)})
            [described] = await admin.describe_topics([topic])
            assert len(described["partitions"]) == 5
            assert len((await admin.describe_cluster())["brokers"]) == 1
            await admin.delete_topics([topic])
            assert topic not in await admin.list_topics()
        finally:
            await admin.close()

    run(test)
