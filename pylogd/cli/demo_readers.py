"""Other projects' clients, with which `pylogd demo` reads back what pylogd's own client wrote."""

from __future__ import annotations

# ruff: noqa: PLC0415 - which of them is installed is found out when one is needed
import importlib
import importlib.util
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, NamedTuple

import click

_PATIENCE_SECONDS = 30.0
_BATCH = 10_000


class Message(NamedTuple):
    """A record as the other client saw it."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes


class Reader(NamedTuple):
    """A client and how to read a topic with it, from the beginning to what is the end then."""

    name: str
    read: Any  # (bootstrap servers, topic, partitions) -> Iterator[list[Message]]


def find_reader() -> Reader:
    """The first of the clients that is installed."""
    for module, package, read in (
        ("confluent_kafka", "confluent-kafka", read_with_confluent),
        ("kafka", "kafka-python", read_with_kafka_python),
    ):
        if importlib.util.find_spec(module) is not None:
            return Reader(f"{package} {version(package)}", read)
    raise click.ClickException("reading back takes another client: pip install 'pylogd-broker[demo]' (confluent-kafka)")


def read_with_confluent(bootstrap: str, topic: str, partitions: int) -> Iterator[list[Message]]:
    """confluent-kafka, which is librdkafka. Ends when every partition said that its end was reached."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "pylogd-demo",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        ended: set[int] = set()
        last = time.monotonic()
        while len(ended) < partitions:
            found = []
            for message in consumer.consume(_BATCH, 0.2):
                error = message.error()
                if error is None:
                    found.append(_message(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(int(message.partition() or 0))
                else:
                    raise click.ClickException(f"confluent-kafka: {error}")
            last = _check_progress(bool(found), last)
            yield found
    finally:
        consumer.close()


def _message(message: Any) -> Message:
    return Message(message.partition(), message.offset(), message.timestamp()[1], message.key(), message.value())


def read_with_kafka_python(bootstrap: str, topic: str, partitions: int) -> Iterator[list[Message]]:
    """kafka-python. Ends at the end offsets as they are when it begins."""
    kafka: Any = importlib.import_module("kafka")  # it has no annotations
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    try:
        places = [kafka.TopicPartition(topic, index) for index in range(partitions)]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(places)
        last = time.monotonic()
        while any(consumer.position(place) < end for place, end in ends.items()):
            found = [
                Message(record.partition, record.offset, record.timestamp, record.key, record.value)
                for records in consumer.poll(200, max_records=_BATCH).values()
                for record in records
            ]
            last = _check_progress(bool(found), last)
            yield found
    finally:
        consumer.close()


def _check_progress(came: bool, last: float) -> float:
    now = time.monotonic()
    if not came and now - last > _PATIENCE_SECONDS:
        raise click.ClickException(f"nothing more came for {_PATIENCE_SECONDS:.0f} seconds")
    return now if came else last
