"""Batches that another broker has are sent with the numbers of this producer, and otherwise as they are."""

from __future__ import annotations

import pytest

from pylogd.client.core.model import TopicPartition
from pylogd.client.core.producer.accumulator import Accumulator, Batch
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.wire.records import HEADER_SIZE, LOG_APPEND_TIME, TRANSACTIONAL, batch_crc_ok, encode_batch, parse_header

T0 = TopicPartition("t", 0)
FOUND = encode_batch(
    [(b"k", b"%d" % number, 5, ()) for number in range(9)], compression=1, base_offset=500, leader_epoch=4,
    producer_id=7, producer_epoch=1, base_sequence=90, attributes=LOG_APPEND_TIME,
)  # fmt: skip


def copied() -> tuple[Accumulator, Batch]:
    options = ProducerOptions(batch_bytes=100, batch_records=5, linger_ms=9000, delivery_timeout=60.0)
    accumulator = Accumulator(options, lambda: 0.0)
    return accumulator, accumulator.add_copy(T0, memoryview(FOUND), 9)


@pytest.mark.parametrize("attributes", [0, TRANSACTIONAL])
def test_a_copy_has_this_producers_numbers(attributes: int) -> None:
    accumulator, batch = copied()
    assert accumulator.take_sealed() == [batch] and batch.atomic
    assert (batch.count, accumulator.buffered) == (9, len(FOUND))
    batch.producer_id, batch.epoch, batch.sequence = 77, 2, 30
    encoded = batch.encode(0, None, attributes)
    header = parse_header(encoded)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 2, 30)
    assert header.is_transactional is bool(attributes)
    assert not header.is_log_append_time and header.base_offset == 0
    assert batch_crc_ok(encoded) and bytes(encoded[HEADER_SIZE:]) == FOUND[HEADER_SIZE:]
    assert batch.encode(0, None, attributes) is encoded


def test_other_numbers_make_another_copy() -> None:
    _, batch = copied()
    batch.producer_id, batch.epoch, batch.sequence = 77, 2, 30
    batch.encode(0, None, 0)
    batch.epoch, batch.sequence = 3, 0
    encoded = batch.encode(0, None, 0)
    assert parse_header(encoded).base_sequence == 0 and batch_crc_ok(encoded)
