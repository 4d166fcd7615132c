"""Compaction on a real broker: a client that reads a compacted topic from its start ends with the right state."""

from __future__ import annotations

import random
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message, TopicPartition

from pylogd.local.broker import BrokerProcess
from tests.integration.conftest import StartBroker
from tests.integration.test_clients_confluent import SECONDS, create, make_consumer, make_producer
from tests.rawclient import wait_until

TOPIC = "compacted"
SETTINGS = {"log.cleaner.backoff.ms": "50", "log.cleaner.dedupe.buffer.size": "1000000"}
TOPIC_SETTINGS: dict[str, Any] = {
    "cleanup_policy": "compact",
    "internal_segment_bytes": "20000",
    "min_cleanable_dirty_ratio": "0.01",
}


def offset_of(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def apply(state: dict[bytes | None, bytes], key: bytes | None, value: bytes | None) -> None:
    """Apply a record to the state that a compacted topic stands for."""
    if value is None:
        state.pop(key, None)
    else:
        state[key] = value


def read_from_start(address: str, last: int) -> list[Message]:
    """Read all messages of partition 0 up to and including offset `last`."""
    consumer = make_consumer(address)
    messages: list[Message] = []
    deadline = time.monotonic() + SECONDS
    try:
        consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
        while not messages or (messages[-1].offset() or 0) < last:
            assert time.monotonic() < deadline, f"{len(messages)} messages came"
            message = consumer.poll(1.0)
            if message is not None:
                assert message.error() is None, message.error()
                messages.append(message)
    finally:
        consumer.close()
    return messages


def stored_bytes(data: Path) -> int:
    """Return the size of the partition's segments, including those that compaction has not swapped in yet."""
    total = 0
    for path in (data / f"{TOPIC}-0").glob("*.log*"):
        try:
            total += 0 if path.name.endswith(".deleted") else path.stat().st_size
        except FileNotFoundError:  # renamed meanwhile: the listing is outdated
            return sys.maxsize
    return total


def wait_until_smaller(broker: BrokerProcess, size: int) -> None:
    """Wait until the partition's segments are smaller than `size` bytes."""
    deadline = time.monotonic() + SECONDS
    while stored_bytes(broker.data) >= size:
        assert time.monotonic() < deadline, f"{stored_bytes(broker.data)} bytes; expected fewer than {size}"
        time.sleep(0.05)


def compacted(broker: BrokerProcess) -> bool:
    return "Compacted compacted-0 up to offset" in broker.log()


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_reading_a_compacted_topic_gives_the_last_value_of_each_key(start_broker: StartBroker, codec: str) -> None:
    broker = start_broker(settings=SETTINGS)
    create(broker.address, TOPIC, **TOPIC_SETTINGS)
    producer = make_producer(
        broker.address, compression_type=codec, batch_num_messages=50, enable_idempotence=codec == "lz4"
    )
    chance = random.Random(codec)
    model: dict[bytes | None, bytes] = {}
    sent: dict[int, tuple[bytes | None, bytes | None]] = {}
    for _ in range(6):
        for number in range(500):
            key = b"key-%d" % chance.randrange(40)
            value = chance.randbytes(100) if number % 9 else None

            def stored(error: KafkaError | None, message: Message) -> None:
                assert error is None, error
                sent[offset_of(message)] = message.key(), message.value()

            producer.produce(TOPIC, value, key, on_delivery=stored)
            producer.poll(0)
        assert producer.flush(SECONDS) == 0
    for _, (sent_key, sent_value) in sorted(sent.items()):
        apply(model, sent_key, sent_value)
    wait_until_smaller(broker, 120_000)
    for again in range(2):
        messages = read_from_start(broker.address, max(sent))
        offsets = [offset_of(message) for message in messages]
        assert offsets == sorted(set(offsets))
        assert len(offsets) < len(sent) / 2
        state: dict[bytes | None, bytes] = {}
        for message in messages:
            assert sent[offset_of(message)] == (message.key(), message.value())
            apply(state, message.key(), message.value())
        assert state == model
        if not again:
            wait_until(partial(compacted, broker), "the end of the compaction")
            assert broker.stop() == 0
            broker = start_broker(settings=SETTINGS)


def test_records_without_a_key_are_refused_by_index(start_broker: StartBroker) -> None:
    broker = start_broker()
    create(broker.address, TOPIC, **TOPIC_SETTINGS)
    producer = make_producer(broker.address, linger_ms=0)
    told = []
    producer.produce(TOPIC, b"value", on_delivery=lambda error, message: told.append(error))
    producer.produce(TOPIC, b"value", b"", partition=0, on_delivery=lambda error, message: told.append(error))
    assert producer.flush(SECONDS) == 0
    codes = {error.code() if error is not None else 0 for error in told}
    assert KafkaError.INVALID_RECORD in codes


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_compressed_batches_keep_their_order(start_broker: StartBroker, codec: str) -> None:
    """Some batches are checked in a thread, others at once, with many requests in flight on one connection."""
    broker = start_broker(settings={"log.cleaner.enable": "false"})
    create(broker.address, TOPIC, **{**TOPIC_SETTINGS, "internal_segment_bytes": "1000000"})
    count = 2000
    producer = make_producer(
        broker.address, compression_type=codec, batch_num_messages=5, linger_ms=0, enable_idempotence=codec == "zstd"
    )
    failed: list[KafkaError] = []
    for number in range(count):
        headers: dict[str, str | bytes | None] = {"large": bytes(100_000)} if number % 10 == 0 else {}
        producer.produce(
            TOPIC, b"%d" % number, b"k", headers=headers,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )  # fmt: skip
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    assert not failed
    messages = read_from_start(broker.address, count - 1)
    assert [int(message.value() or b"") for message in messages] == list(range(count))
