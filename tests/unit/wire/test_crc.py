"""A CRC that is carried over equals one that is computed anew."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from pylogd.wire.crc import append_zeros
from pylogd.wire.records import (
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    NewRecord,
    batch_crc_ok,
    crc32c,
    encode_batch,
    parse_header,
    with_producer,
)


def carried(crc: int, replaced: int, replacement: int, size: int) -> int:
    return crc ^ append_zeros(replaced ^ replacement, size)


@given(st.binary(min_size=1, max_size=60), st.randoms(use_true_random=False), st.binary(max_size=3000))
def test_it_equals_the_crc_of_the_replaced_buffer(before: bytes, random: Random, rest: bytes) -> None:
    after = random.randbytes(len(before))
    assert carried(crc32c(before + rest), crc32c(before), crc32c(after), len(rest)) == crc32c(after + rest)


def test_it_holds_for_large_rests() -> None:
    rest = bytes(range(256)) * 70_001
    assert carried(crc32c(b"a" + rest), crc32c(b"a"), crc32c(b"b"), len(rest)) == crc32c(b"b" + rest)


def batch(attributes: int = 0, offset: int = 700) -> bytes:
    records = [NewRecord(b"key", b"value %d" % number, 1000 + number) for number in range(50)]
    return encode_batch(records, compression=1, base_offset=offset, leader_epoch=9, attributes=attributes)


def test_a_batch_of_another_producer_is_valid_and_has_the_same_records() -> None:
    before = batch(LOG_APPEND_TIME | DELETE_HORIZON)
    after = with_producer(memoryview(before), 77, 3, 1000, transactional=True)
    header = parse_header(after)
    assert batch_crc_ok(after)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 1000)
    assert header.is_transactional and header.compression == 1
    assert not header.attributes & (LOG_APPEND_TIME | DELETE_HORIZON)
    assert (header.base_offset, header.leader_epoch) == (0, -1)
    assert after[61:] == before[61:]


def test_without_a_word_about_transactions_a_batch_stays_what_it_was() -> None:
    transactional = with_producer(batch(), 1, 0, 0, transactional=True)
    assert parse_header(with_producer(transactional, 2, 0, 0)).is_transactional
    assert not parse_header(with_producer(transactional, 2, 0, 0, transactional=False)).is_transactional


def test_damage_is_carried_along_and_found() -> None:
    damaged = bytearray(batch())
    damaged[-1] ^= 1
    assert not batch_crc_ok(with_producer(bytes(damaged), 77, 3, 0))
