"""Partitions for records without a key: sticky, uniform, adaptive (KIP-794)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from pylogd.client.core.model import TopicPartition
from pylogd.client.core.producer.accumulator import Accumulator, Batch
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.client.core.producer.partitioner import STICKY_BYTES, StickyPartitions

ROUNDS = 4000


def make(
    queued: dict[TopicPartition, int] | None = None,
    *,
    adaptive: bool = True,
    with_leader: Sequence[int] | None = None,
    late: Sequence[int] = (),
) -> StickyPartitions:
    return StickyPartitions(
        queued or {}, adaptive=adaptive, with_leader=lambda _: with_leader, late=lambda _: late, rng=random.Random(5)
    )


def chosen(sticky: StickyPartitions, count: int) -> Counter[int]:
    """Return how often each of `count` partitions is chosen, if each choice fills a batch."""
    found: Counter[int] = Counter()
    for _ in range(ROUNDS):
        found[sticky.partition("t", count)] += 1
        sticky.sealed("t", 1, full=True)
    return found


def test_a_partition_is_kept_until_enough_bytes_were_produced() -> None:
    sticky = make()
    first = sticky.partition("t", 1000)
    sticky.sealed("t", STICKY_BYTES - 1, full=False)
    assert sticky.partition("t", 1000) == first
    sticky.sealed("t", 1, full=False)
    assert sticky.partition("t", 1000) != first


def test_topics_do_not_disturb_each_other() -> None:
    sticky = make()
    first = sticky.partition("t", 1000)
    sticky.partition("u", 1000)
    sticky.sealed("u", STICKY_BYTES, full=False)
    assert sticky.partition("t", 1000) == first


def test_a_partition_is_chosen_again_when_the_topic_lost_some() -> None:
    sticky = make()
    while sticky.partition("t", 1000) < 3:
        sticky.sealed("t", 1, full=True)
    assert sticky.partition("t", 3) < 3


def test_equal_queues_get_equal_shares() -> None:
    found = chosen(make({TopicPartition("t", p): 4 for p in range(4)}), 4)
    assert all(abs(found[p] - ROUNDS / 4) < ROUNDS / 20 for p in range(4))


def test_long_queues_get_less() -> None:
    queued = {TopicPartition("t", 0): 8, TopicPartition("t", 1): 4}
    found = chosen(make(queued), 3)  # weights 1, 5 and 9
    for partition, weight in enumerate((1, 5, 9)):
        assert abs(found[partition] - ROUNDS * weight / 15) < ROUNDS / 20
    uniform = chosen(make(queued, adaptive=False), 3)
    assert all(abs(uniform[p] - ROUNDS / 3) < ROUNDS / 20 for p in range(3))


def test_partitions_without_a_leader_or_that_keep_batches_waiting_are_avoided() -> None:
    assert set(chosen(make(with_leader=[0, 2, 3]), 4)) == {0, 2, 3}
    assert set(chosen(make(late=[0, 2]), 4)) == {1, 3}
    assert set(chosen(make(with_leader=[1], late=[1]), 4)) == {0, 1, 2, 3}
    assert set(chosen(make(with_leader=[]), 2)) == {0, 1}


class Time:
    now = 0.0


def accumulate(time: Time, **settings: object) -> Accumulator:
    given = {"batch_bytes": 1000, "batch_records": 1, "linger_ms": 500, "delivery_timeout": 10, **settings}
    return Accumulator(ProducerOptions.of(None, given), lambda: time.now, rng=random.Random(7))


def add(accumulator: Accumulator, partition: int | None = None) -> Batch:
    return accumulator.add("t", 3, partition, None, b"v", 0)


def test_the_accumulator_counts_batches_without_a_result() -> None:
    accumulator = accumulate(Time())
    stuck = [add(accumulator, 0) for _ in range(9)]
    found = Counter()  # type: Counter[int]
    for _ in range(300):
        batch = add(accumulator)
        found[batch.partition.partition] += 1
        accumulator.finish(batch, 0, -1, None)
    assert found[0] < 40 < 100 < min(found[1], found[2])
    for batch in stuck:
        accumulator.finish(batch, 0, -1, None)
    again = Counter()  # type: Counter[int]
    for _ in range(300):
        batch = add(accumulator)
        again[batch.partition.partition] += 1
        accumulator.finish(batch, 0, -1, None)
    assert min(again[p] for p in range(3)) > 70


def test_the_accumulator_avoids_a_partition_that_keeps_a_batch_waiting() -> None:
    time = Time()
    accumulator = accumulate(time, partitioner_adaptive=False, partitioner_availability_timeout=2.0)
    waiting = add(accumulator, 1)
    time.now = 2.4  # it has lingered for 0.5 and then waited for 1.9
    assert {add(accumulator).partition.partition for _ in range(100)} == {0, 1, 2}
    for batch in list(accumulator.unfinished.values()):
        if batch is not waiting:
            accumulator.finish(batch, 0, -1, None)
    time.now = 2.5
    assert {add(accumulator).partition.partition for _ in range(100)} == {0, 2}
