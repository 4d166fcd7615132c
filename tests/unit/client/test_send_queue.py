"""The accumulator and the send queue, called directly: sticky partitions, batches, and what is held back."""

from __future__ import annotations

import random

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.errors import BrokerUnavailable, DeliveryTimedOut
from pylogd.client.core.model import TopicPartition
from pylogd.client.core.producer.accumulator import MAX_SEQUENCE, OBJECT_OVERHEAD, Accumulator, Batch
from pylogd.client.core.producer.idempotence import MAX_EPOCH, Numbering, ProducerId
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.client.core.producer.partitioner import Partitioner
from pylogd.client.core.producer.send_queue import BatchRequest, SendQueue


class Time:
    now = 0.0


def make(
    time: Time, partitioner: str | Partitioner = "murmur2", idempotent: bool = False
) -> tuple[Accumulator, SendQueue]:
    options = ProducerOptions(
        batch_bytes=1000, batch_records=4, linger_ms=500, delivery_timeout=10, partitioner=partitioner
    )
    accumulator = Accumulator(options, lambda: time.now, rng=random.Random(3))
    queue = SendQueue(
        accumulator, idempotent=idempotent, retry=True, max_request_bytes=300, backoff=lambda: Backoff(0.1, 0.1)
    )
    return accumulator, queue


def add(accumulator: Accumulator, partition: int | None = None, key: bytes | None = None, size: int = 10) -> Batch:
    return accumulator.add("t", 3, partition, key, bytes(size), 0)


def take(queue: SendQueue, now: float, leader: int = 1, slots: int = 5) -> list[BatchRequest]:
    queue.collect()
    return queue.take(now, lambda _: leader, lambda _: slots > 0)


def test_linger_and_sticky_partitions() -> None:
    time = Time()
    accumulator, _ = make(time)
    first = add(accumulator)
    assert add(accumulator) is first and accumulator.next_due() == 0.5
    time.now = 0.4
    accumulator.seal_due(time.now)
    assert not accumulator.sealed
    accumulator.seal_due(0.5)
    assert accumulator.take_sealed() == [first] and accumulator.next_due() is None
    assert add(accumulator) is not first
    with_key = add(accumulator, key=b"k")
    assert add(accumulator, partition=with_key.partition.partition) is with_key


def test_a_custom_partitioner_is_called_for_every_record() -> None:
    turn = iter([0, 1, None, 2, None])
    accumulator, _ = make(Time(), lambda topic, key, partitions: next(turn))
    assert [add(accumulator).partition.partition for _ in range(2)] == [0, 1]
    stuck = add(accumulator)
    assert add(accumulator).partition.partition == 2
    assert add(accumulator) is stuck


def test_random_takes_no_notice_of_keys() -> None:
    accumulator, _ = make(Time(), "random")
    assert {add(accumulator, key=b"same").partition.partition for _ in range(100)} == {0, 1, 2}


def test_what_is_buffered() -> None:
    accumulator, queue = make(Time())
    for _ in range(4):
        add(accumulator, 0)
    assert accumulator.buffered == 4 * (31 + 10 + OBJECT_OVERHEAD)
    ((batch,),) = (shipment.batches for shipment in take(queue, 0))
    batch.encode(0, None)
    accumulator.was_encoded(batch)
    assert accumulator.buffered == len(batch.encoded)
    queue.written(batch, 7)
    assert accumulator.buffered == 0 and not accumulator.unfinished
    assert batch.result is not None and batch.result.base_offset == 7


def test_requests_are_bounded_and_shared_by_partitions_in_turn() -> None:
    accumulator, queue = make(Time())
    for partition in (0, 1, 2):
        add(accumulator, partition, size=120)
    accumulator.seal_all()
    (shipment,) = take(queue, 0)
    assert [batch.partition.partition for batch in shipment.batches] == [0], "two are more than 300 bytes"
    (shipment,) = take(queue, 0)
    assert [batch.partition.partition for batch in shipment.batches] == [1]
    assert not take(queue, 0, slots=0)


def test_a_partition_queue_is_held_after_a_failure_and_while_its_leader_moves() -> None:
    accumulator, queue = make(Time())
    sent = []
    for _ in range(3):
        accumulator.seal(add(accumulator, 0))
    for _ in range(2):
        sent += [batch for shipment in take(queue, 0) for batch in shipment.batches]
    assert not take(queue, 0, leader=2), "not to another broker while something is under way"
    queue.failed(sent[0], BrokerUnavailable("gone"), 0)
    assert not take(queue, 5), "not while the second is under way"
    queue.written(sent[1], 0)
    assert [batch for shipment in take(queue, 5) for batch in shipment.batches] == [sent[0]]
    assert queue.next_time() == 10


def test_batches_without_a_leader_expire_with_their_last_error() -> None:
    accumulator, queue = make(Time())
    batch = add(accumulator, 0)
    accumulator.seal_all()
    queue.collect()
    queue.topic_failed("t", KafkaError(ErrorCode.LEADER_NOT_AVAILABLE), 0)
    queue.expire(9.9)
    assert batch.result is None
    queue.expire(10)
    assert batch.result is not None and isinstance(batch.result.error, DeliveryTimedOut)
    assert isinstance(batch.result.error.__cause__, KafkaError)
    assert queue.failures.records == 1
    assert not queue.waiting and queue.next_time() is None


def test_the_first_batch_of_an_epoch_is_in_flight_alone() -> None:
    accumulator, queue = make(Time(), idempotent=True)
    for _ in range(3):
        accumulator.seal(add(accumulator, 0))
    assert not take(queue, 0) and queue.wants_id
    queue.producer_id_given(9, 0)
    (first,) = take(queue, 0)
    assert not take(queue, 0)
    queue.written(first.batches[0], 0)
    assert [take(queue, 0)[0].batches[0].sequence for _ in range(2)] == [1, 2]


def test_sequences_start_over_and_the_last_epoch_is_followed_by_a_new_id() -> None:
    given = ProducerId()
    given.given(9, MAX_EPOCH)
    numbering = Numbering(given)
    batch, following = (Batch(TopicPartition("t", 0), number, 0, 10) for number in (0, 1))
    batch.count, following.count = MAX_SEQUENCE, 3
    assert numbering.next([batch], 0) is batch
    numbering.acked(batch, [])
    assert numbering.next([following], 0) is following and following.sequence == MAX_SEQUENCE
    last = Batch(TopicPartition("t", 0), 2, 0, 10)
    last.count = 1
    assert numbering.next([last], 1) is last and last.sequence == 2
    numbering.gave_up(last)
    numbering.settle([])
    assert given.wanted and numbering.next([Batch(TopicPartition("t", 0), 3, 0, 10)], 0) is None
