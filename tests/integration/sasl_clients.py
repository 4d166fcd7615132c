"""Write a record and read it, as a user of another project's client would."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kafka import KafkaConsumer, KafkaProducer

SECONDS = 60.0


def round_trip_with_kafka_python(settings: Mapping[str, Any]) -> None:
    """Use kafka-python, with these settings for both clients."""
    producer = KafkaProducer(**settings)
    producer.send("t", b"value").get(SECONDS)
    producer.close()
    consumer = KafkaConsumer("t", **settings, auto_offset_reset="earliest", consumer_timeout_ms=SECONDS * 1000)
    assert next(iter(consumer)).value == b"value"
    consumer.close()


def round_trip_with_aiokafka(settings: Mapping[str, Any]) -> None:
    """Use aiokafka, with these settings for both clients."""
    asyncio.run(_with_aiokafka(settings))


async def _with_aiokafka(settings: Mapping[str, Any]) -> None:
    producer = AIOKafkaProducer(**settings)
    await producer.start()
    await producer.send_and_wait("t", b"value")
    await producer.stop()
    consumer = AIOKafkaConsumer("t", **settings, auto_offset_reset="earliest")
    await consumer.start()
    assert (await asyncio.wait_for(consumer.getone(), SECONDS)).value == b"value"
    await consumer.stop()
