"""Addresses, partitioners, backoffs, and other small parts."""

from __future__ import annotations

import random
import zlib

import pytest

from pylogd.client.core.backoff import Backoff
from pylogd.client.core.model import parse_address
from pylogd.client.core.producer.partitioner import crc32_partitioner, murmur2, murmur2_partitioner


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:9093", ("localhost", 9093)),
        (" kafka.example ", ("kafka.example", 9092)),
        ("[::1]:9094", ("::1", 9094)),
        ("[::1]", ("::1", 9092)),
        ("::1", ("::1", 9092)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize("text", ["", ":9092", "host:0", "host:65536", "host:http", "host:"])
def test_invalid_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_address(text)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_the_java_client(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF
    assert murmur2_partitioner("t", key, 7) == (expected & 0x7FFFFFFF) % 7


def test_crc32_is_that_of_librdkafka() -> None:
    assert crc32_partitioner("t", b"key", 5) == zlib.crc32(b"key") % 5


def test_no_key_is_no_preference() -> None:
    assert murmur2_partitioner("t", None, 5) is None
    assert crc32_partitioner("t", None, 5) is None
    assert murmur2_partitioner("t", b"", 5) is not None


def test_pauses_double_up_to_a_limit() -> None:
    backoff = Backoff(0.1, 1.0, random.Random(1))
    pauses = [backoff.next() for _ in range(6)]
    for pause, plain in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0], strict=True):
        assert plain * 0.8 <= pause <= plain * 1.2
    backoff.reset()
    assert backoff.next() <= 0.12
