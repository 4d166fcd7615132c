"""Read a topic with another project's client, so that `pylogd demo` can compare it with what pylogd's client wrote."""

from __future__ import annotations

# ruff: noqa: PLC0415 - a client is imported only when it was found to be installed
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
    """A record that the other client has read."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes


class Reader(NamedTuple):
    """A client, and a function that reads a topic with it from the beginning to the current end."""

    name: str
    read: Any  # (bootstrap servers, topic, partitions) -> Iterator[list[Message]]


def find_reader() -> Reader:
    """Return the first of the known clients that is installed. Raises click.ClickException if none is."""
    for module, package, read in (
        ("confluent_kafka", "confluent-kafka", read_with_confluent),
        ("kafka", "kafka-python", read_with_kafka_python),
    ):
        if importlib.util.find_spec(module) is not None:
            return Reader(f"{package} {version(package)}", read)
    raise click.ClickException(
        "reading the events back needs another client, confluent-kafka: pip install 'pylogd-broker[demo]'"
    )


def read_with_confluent(bootstrap: str, topic: str, partitions: int) -> Iterator[list[Message]]:
    """Yield the messages of a topic, read with confluent-kafka (librdkafka), until each partition reports its end."""
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
    """Yield the messages of a topic, read with kafka-python, up to the end offsets at the start."""
    kafka: Any = importlib.import_module("kafka")  # it has no annotations
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    try:
        assigned = [kafka.TopicPartition(topic, index) for index in range(partitions)]
        consumer.assign(assigned)
        consumer.seek_to_beginning(*assigned)
        ends = consumer.end_offsets(assigned)
        last = time.monotonic()
        while any(consumer.position(partition) < end for partition, end in ends.items()):
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
        raise click.ClickException(f"the client returned no more messages for {_PATIENCE_SECONDS:.0f} seconds")
    return now if came else last
