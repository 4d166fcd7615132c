"""Choose the partition of a record: by its key, or for records without a key sticky, uniform and adaptive.

A partitioner is a function of topic, key and number of partitions. It returns a partition, or None for any. Then
`StickyPartitions` chooses one for several records, which makes larger batches: records go to one partition until
STICKY_BYTES, or a full batch, were produced to it. The batch that reaches this limit is sealed. Then another partition
is chosen at random. Partitions with fewer batches waiting for their result are chosen more often, in proportion, so
that a slow broker gets less (KIP-480, KIP-794).

Rules: partitions without a leader, and partitions whose oldest batch has waited too long, are avoided, unless no other
partition is left. No I/O and no clock.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache

from pylogd.client.core.model import TopicPartition
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


#: the default `batch.size` of Kafka's client
STICKY_BYTES = 16_384


class StickyPartitions:
    """The present partition of each topic, for records without a key."""

    def __init__(
        self,
        queued: Mapping[TopicPartition, int],
        *,
        adaptive: bool,
        with_leader: Callable[[str], Sequence[int] | None],
        late: Callable[[str], Collection[int]],
        rng: random.Random,
    ) -> None:
        """queued: the number of batches without a result, by partition.

        with_leader: returns the partitions of a topic that have a leader, or None if that is unknown.
        late: returns the partitions whose batches have waited too long.
        """
        self._queued = queued
        self._adaptive = adaptive
        self._with_leader = with_leader
        self._late = late
        self._random = rng
        self._present: dict[str, int] = {}
        self._produced: dict[str, int] = {}

    def partition(self, topic: str, count: int) -> int:
        """Return the partition for the next batch of a topic with `count` partitions."""
        present = self._present.get(topic)
        if present is None or present >= count:
            present = self._present[topic] = self._choose(topic, count)
            self._produced[topic] = 0
        return present

    def sealed(self, topic: str, size: int, *, full: bool) -> None:
        """Count a batch of `size` bytes. After a full batch, or enough bytes, choose another partition."""
        produced = self._produced[topic] = self._produced.get(topic, 0) + size
        if full or produced >= STICKY_BYTES:
            self._present.pop(topic, None)

    def _choose(self, topic: str, count: int) -> int:
        if count == 1:
            return 0
        known = self._with_leader(topic)
        candidates: Sequence[int] = [p for p in known if p < count] if known is not None else range(count)
        if late := self._late(topic):
            candidates = [partition for partition in candidates if partition not in late]
        candidates = candidates or range(count)
        if self._adaptive:
            queued = [self._queued.get(TopicPartition(topic, partition), 0) for partition in candidates]
            most = max(queued)
            if most != min(queued):
                return self._random.choices(candidates, [most + 1 - waiting for waiting in queued])[0]
        return candidates[self._random.randrange(len(candidates))]
