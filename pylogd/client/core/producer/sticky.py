"""Choose partitions for records without a key: sticky, uniform, and adaptive (KIP-480, KIP-794).

Strategy: records without a key go to one partition until STICKY_BYTES, or a full batch, were produced to it. The batch
that reaches this limit is sealed. Then another partition is chosen at random. Partitions with fewer batches waiting for
their result are chosen more often, in proportion, so that a slow broker gets less.

Rules: partitions without a leader, and partitions whose oldest batch has waited too long, are avoided, unless no other
partition is left. No I/O and no clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence

from pylogd.client.core.model import TopicPartition

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
