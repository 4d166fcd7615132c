"""Choose the partition of a record by its key.

A partitioner is a function of topic, key and number of partitions. It returns a partition, or None for any: the
producer then chooses one for several records (`sticky.py`), which makes larger batches.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from functools import lru_cache

from pylogd.wire.records import speedups

Partitioner = Callable[[str, bytes | None, int], int | None]

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C
_CACHED_KEYS = 16_384


def murmur2(data: bytes) -> int:
    """MurmurHash2 of 32 bits, unsigned, with the seed of Kafka's Java client."""
    if speedups is not None:
        return int(speedups.murmur2(data))
    length = len(data)
    h = _SEED ^ length
    for k in struct.unpack_from(f"<{length // 4}I", data):
        k = k * _M & _MASK  # noqa: PLW2901
        k = (k ^ k >> 24) * _M & _MASK  # noqa: PLW2901
        h = h * _M & _MASK ^ k
    if tail := data[length & ~3 :]:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


@lru_cache(_CACHED_KEYS)
def positive_murmur2(key: bytes) -> int:
    """Return the murmur2 hash of a key with the sign bit cleared, as the Java client uses it."""
    return murmur2(key) & 0x7FFFFFFF


def murmur2_partitioner(_topic: str, key: bytes | None, partitions: int) -> int | None:
    """Choose by murmur2 of the key, like the Java client's default; without a key, any partition."""
    return None if key is None else positive_murmur2(key) % partitions


def crc32_partitioner(_topic: str, key: bytes | None, partitions: int) -> int | None:
    """Choose by CRC-32 of the key, like librdkafka's `consistent_random`. A missing or empty key gets any partition."""
    return zlib.crc32(key) % partitions if key else None


def random_partitioner(_topic: str, _key: bytes | None, _partitions: int) -> int | None:
    """Choose any partition; the key has no influence."""
    return None


PARTITIONERS: dict[str, Partitioner] = {
    "murmur2": murmur2_partitioner,
    "crc32": crc32_partitioner,
    "random": random_partitioner,
}
