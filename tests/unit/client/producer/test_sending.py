"""Batching, results, and brokers that refuse requests or do not respond."""

from __future__ import annotations

import socket
import threading
import time
from functools import partial
from typing import Any, cast

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.client import (
    BatchResult,
    BrokerUnavailable,
    BufferFull,
    Closed,
    Delivery,
    DeliveryFailed,
    DeliveryTimedOut,
    KafkaError,
    NewRecord,
    Producer,
    RequestTimedOut,
    TopicPartition,
)
from pylogd.client.core.producer import accumulator
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.produce import ProduceResponse
from pylogd.wire.records import encode_batch, parse_header
from tests.fakes import broker as fake
from tests.fakes.broker import TOPIC_ID, FakeBroker
from tests.fakes.broker import refuse_produce as refuse
from tests.unit.client.producer.helpers import Make


def test_records_arrive(server: FakeBroker, make: Make) -> None:
    producer = make(linger_ms=10**6)
    deliveries = [
        producer.send("t", b"v%d" % n, b"k", partition=1, timestamp=n, headers=[("h", b"x")]) for n in range(5)
    ]
    assert not deliveries[4].done and deliveries[4].offset == -1
    assert deliveries[3].result() == 3
    assert [(d.topic, d.partition, d.offset, d.error) for d in deliveries] == [("t", 1, n, None) for n in range(5)]
    assert [(r.key, r.value, r.timestamp, r.headers) for r in server.stored(1)] == [
        (b"k", b"v%d" % n, n, (("h", b"x"),)) for n in range(5)
    ]
    producer.close()


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
def test_at_every_kind_of_version(server: FakeBroker, make: Make, version: int) -> None:
    server.versions[ApiKey.PRODUCE] = (0, version)
    producer = make()
    producer.send("t", b"v", partition=2)
    producer.flush()
    (request,) = server.asked(ApiKey.PRODUCE)
    topic = request.topic_data[0]
    assert (topic.name, topic.topic_id == TOPIC_ID) == (("", True) if version >= 13 else ("t", False))
    assert len(server.stored(2)) == 1


def test_a_broker_without_topic_ids(server: FakeBroker, make: Make) -> None:
    server.topic_id = bytes(16)
    producer = make()
    producer.send("t", b"v", partition=0)
    producer.flush()
    assert server.asked(ApiKey.PRODUCE)[0].topic_data[0].name == "t"


def test_batches_are_bounded_by_records_and_bytes(server: FakeBroker, make: Make) -> None:
    producer = make(batch_records=10)
    for n in range(35):
        producer.send("t", b"%d" % n, partition=0)
    producer.flush()
    assert [parse_header(batch).record_count for batch in server.logs[0]] == [10, 10, 10, 5]
    producer = make(batch_bytes=1000)
    for _ in range(10):
        producer.send("t", bytes(300), partition=1)
    producer.send("t", bytes(5000), partition=1)
    producer.flush()
    assert [parse_header(batch).record_count for batch in server.logs[1]] == [3, 3, 3, 1, 1]


def test_lingering_batches_are_sent_without_another_call(server: FakeBroker, make: Make) -> None:
    producer = make(linger_ms=1)
    producer.send("t", b"1", partition=0)
    server.wait_until_asked(ApiKey.PRODUCE)


def test_keyless_records_stick_to_a_partition_for_a_batch(server: FakeBroker, make: Make) -> None:
    producer = make(batch_records=10, linger_ms=10**6)
    chosen = [producer.send("t", b"v").partition for _ in range(300)]
    producer.close()
    assert all(len(set(chosen[start : start + 10])) == 1 for start in range(0, 300, 10))
    assert set(chosen) == {0, 1, 2}


def test_keys_and_own_partitioners(server: FakeBroker, make: Make) -> None:
    producer = make()
    assert len({producer.send("t", b"v", b"key").partition for _ in range(10)}) == 1
    own = make(partitioner=lambda topic, key, count: count - 1)
    assert own.send("t", b"v", b"key").partition == 2


def test_one_request_carries_many_partitions(server: FakeBroker, make: Make) -> None:
    producer = make(linger_ms=10**6)
    for partition in range(3):
        producer.send("t", b"v", partition=partition)
    producer.flush()
    assert len(server.asked(ApiKey.PRODUCE)) == 1


def test_sets(server: FakeBroker, make: Make) -> None:
    producer = make(linger_ms=10**6)
    producer.send("t", b"before", partition=0)
    delivery = producer.send_set("t", [(None, b"a"), (b"k", None), NewRecord(None, b"c", 7)], partition=0)
    assert delivery.result() == 1
    assert [parse_header(batch).record_count for batch in server.logs[0]] == [1, 3]
    assert server.stored(0)[3].timestamp == 7
    with pytest.raises(ValueError, match="needs at least one record"):
        producer.send_set("t", [])


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compression(server: FakeBroker, make: Make, codec: str) -> None:
    producer = make(compression=codec, linger_ms=10**6)
    for _ in range(100):
        producer.send("t", b"the same again", partition=0)
    producer.flush()
    assert parse_header(server.logs[0][0]).compression > 0
    assert len(server.logs[0][0]) < 1000
    assert len(server.stored(0)) == 100


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(server: FakeBroker, make: Make, acks: Any) -> None:
    producer = make(acks=acks)
    delivery = producer.send("t", b"v", partition=0)
    assert delivery.result() == (-1 if acks == 0 else 0)
    assert delivery.done and delivery.error is None
    assert server.wait_until_asked(ApiKey.PRODUCE)[0].acks == {"all": -1}.get(acks, acks)


def test_results_by_batch(server: FakeBroker, make: Make) -> None:
    results: list[BatchResult] = []
    producer = make(batch_records=2, linger_ms=10**6, on_batch=results.append)
    for _ in range(5):
        producer.send("t", b"v", partition=0)
    producer.flush()
    assert [(r.partition, r.records, r.base_offset, r.error) for r in results] == [
        (TopicPartition("t", 0), 2, 0, None), (("t", 0), 2, 2, None), (("t", 0), 1, 4, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "act",
    [
        refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        refuse(ErrorCode.NOT_ENOUGH_REPLICAS),
        fake.garbage,
    ],
)
def test_retriable_errors_are_tried_again(server: FakeBroker, make: Make, act: Any) -> None:
    server.on(ApiKey.PRODUCE, act, act)
    producer = make()
    producer.send("t", b"v", partition=0)
    producer.flush()
    assert [record.value for record in server.stored(0)] == [b"v"]
    assert len(server.asked(ApiKey.PRODUCE)) == 3


def test_a_lost_reply_writes_nothing_twice(server: FakeBroker, make: Make) -> None:
    server.on(ApiKey.PRODUCE, fake.cut, fake.cut)
    producer = make()
    delivery = producer.send("t", b"v", partition=0)
    producer.flush()
    assert delivery.offset == 0 and len(server.stored(0)) == 1
    assert len(server.asked(ApiKey.PRODUCE)) == 3


def test_without_idempotence_a_lost_reply_may_write_twice_but_never_loses(server: FakeBroker, make: Make) -> None:
    server.on(ApiKey.PRODUCE, fake.cut, fake.cut)
    producer = make(idempotence=False)
    delivery = producer.send("t", b"v", partition=0)
    producer.flush()
    assert delivery.offset == 2 and len(server.stored(0)) == 3


def test_at_most_once(server: FakeBroker, make: Make) -> None:
    server.on(ApiKey.PRODUCE, fake.close)
    producer = make(retry=False)
    delivery = producer.send("t", b"v", partition=0)
    with pytest.raises(BrokerUnavailable):
        delivery.result()
    assert len(server.asked(ApiKey.PRODUCE)) == 1


def test_order_is_kept_with_one_request_in_flight(server: FakeBroker, make: Make) -> None:
    server.on(ApiKey.PRODUCE, refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    producer = make(batch_records=1, max_in_flight=1)
    for n in range(20):
        producer.send("t", b"%d" % n, partition=0)
    producer.flush()
    assert [record.value for record in server.stored(0)] == [b"%d" % n for n in range(20)]


def test_final_errors(server: FakeBroker, make: Make) -> None:
    server.on(ApiKey.PRODUCE, refuse(ErrorCode.POLICY_VIOLATION))
    producer = make(linger_ms=10**6)
    delivery = producer.send("t", b"v", partition=0)
    producer.send("t", b"w", partition=0)
    with pytest.raises(DeliveryFailed, match=r"2 records.*POLICY_VIOLATION") as raised:
        producer.flush()
    assert isinstance(raised.value.__cause__, KafkaError)
    assert delivery.done and delivery.offset == -1
    with pytest.raises(KafkaError, match="POLICY_VIOLATION"):
        delivery.result()
    producer.send("t", b"x", partition=0)
    producer.flush()  # each failure is reported once


def test_an_answer_that_leaves_the_partition_out(server: FakeBroker, make: Make) -> None:
    server.on(ApiKey.PRODUCE, lambda _: ProduceResponse())
    producer = make()
    assert producer.send("t", b"v", partition=0).result() == 0


def test_tries_end_with_the_delivery_timeout(server: FakeBroker, make: Make) -> None:
    producer = make(delivery_timeout=3)
    producer.send("t", b"first", partition=0).result()  # connected, and known to the broker
    server.on(ApiKey.PRODUCE, *[refuse(ErrorCode.NOT_ENOUGH_REPLICAS)] * 10_000)
    with pytest.raises((KafkaError, DeliveryTimedOut), match="NOT_ENOUGH_REPLICAS"):
        producer.send("t", b"v", partition=0).result()


def test_waiting_has_an_end_if_one_is_given(server: FakeBroker, make: Make) -> None:
    go_on = threading.Event()

    def late(request: Any) -> Any:
        assert go_on.wait(120)
        return server._produce(request)

    server.on(ApiKey.PRODUCE, late)
    producer = make()
    delivery = producer.send("t", b"v", partition=0)
    with pytest.raises(RequestTimedOut):
        producer.flush(timeout=0.05)
    with pytest.raises(RequestTimedOut):
        delivery.result(timeout=0.05)
    go_on.set()
    assert delivery.result() == 0


def test_the_buffer_is_bounded(server: FakeBroker, make: Make) -> None:
    producer = make(buffer_memory=10_000, batch_bytes=100_000, linger_ms=10**6)
    for _ in range(100):
        producer.send("t", bytes(500), partition=0)
        assert producer._accumulator.buffered <= 10_000 + 1000
    producer.close()
    assert len(server.stored(0)) == 100


@pytest.mark.parametrize("waiting", ["needing_room", "flushing"])
def test_a_caller_that_begins_to_wait_before_the_thread_sleeps(
    server: FakeBroker, make: Make, monkeypatch: pytest.MonkeyPatch, waiting: str
) -> None:
    """Nobody wakes a thread that is not asleep: it has to notice by itself that a caller waits for batches."""
    producer = make(linger_ms=10**6)
    sender = producer._sender
    monkeypatch.setattr(sender, "start", lambda: None)  # the test runs the loop in place of the thread
    sender.core.partitions["t"] = 3
    producer.send("t", b"v", partition=0)
    assert sender._sleep_until(busy=False) > time.monotonic()
    setattr(sender, waiting, 1)
    assert sender._sleep_until(busy=False) <= time.monotonic()


def test_a_full_buffer_is_an_error_in_time(server: FakeBroker, make: Make) -> None:
    server.on(ApiKey.PRODUCE, fake.silence)
    producer = make(buffer_memory=1000, max_block=0.3, linger_ms=0)
    producer.send("t", bytes(1000), partition=0)
    with pytest.raises(BufferFull, match="buffer_memory is 1,000"):
        producer.send("t", b"v", partition=0)
    with pytest.raises(BufferFull):
        producer.send_set("t", [(None, b"v")], partition=0)


def test_no_such_topic_and_closed(make: Make) -> None:
    producer = make()
    with pytest.raises(KafkaError, match="no topic"):
        producer.send("nosuch", b"v")
    producer.close()
    producer.close()
    with pytest.raises(Closed):
        producer.send("t", b"v")
    with pytest.raises(Closed):
        producer.send("t", b"v", partition=0)


def test_an_exception_in_its_block_abandons_it(server: FakeBroker) -> None:
    with pytest.raises(RuntimeError, match="mine"), Producer(server.address, linger_ms=10**6) as producer:
        producer.send("t", b"v", partition=0)
        raise RuntimeError("mine")
    assert not server.asked(ApiKey.PRODUCE)


def test_a_batch_that_expires_while_it_is_encoded_is_not_sent(
    server: FakeBroker, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    producer = make(linger_ms=10**6, idempotence=False)
    sender = producer._sender
    reached, given_up = threading.Event(), threading.Event()
    encode = encode_batch

    def slow(*args: Any, **options: Any) -> bytes:
        reached.set()
        assert given_up.wait(60)
        return encode(*args, **options)

    monkeypatch.setattr(accumulator, "encode_batch", slow)
    delivery = producer.send("t", b"v", partition=0)
    with sender.lock:
        sender.flushing += 1
        sender.start()
    assert reached.wait(60)
    sender.abandon(Closed("given up"), 0)
    given_up.set()
    assert sender._thread is not None
    sender._thread.join(60)
    assert not sender._thread.is_alive()
    assert isinstance(delivery.error, Closed)
    assert not server.asked(ApiKey.PRODUCE)
    assert "failed" not in caplog.text


# Faults of brokers and connections


def test_a_broker_that_never_answers_is_asked_again(server: FakeBroker, make: Make) -> None:
    server.on(ApiKey.PRODUCE, fake.silence)
    producer = make(request_timeout=1)
    assert producer.send("t", b"v", partition=0).result() == 0
    assert len(server.asked(ApiKey.PRODUCE)) >= 2


def test_wrong_metadata_is_asked_for_again(server: FakeBroker, make: Make) -> None:
    def elsewhere(request: Any) -> Any:
        answer = server._metadata(request)
        for topic in answer.topics:
            for partition in topic.partitions:
                partition.leader_id = 9
        return answer

    def nowhere(request: Any) -> Any:
        answer = server._metadata(request)
        for topic in answer.topics:
            for partition in topic.partitions:
                partition.leader_id = -1
        return answer

    server.on(ApiKey.METADATA, elsewhere, nowhere, fake.garbage, fake.close)
    producer = make()
    assert producer.send("t", b"v").result() == 0
    assert len(server.asked(ApiKey.METADATA)) >= 5


def test_metadata_is_asked_for_again_in_time(server: FakeBroker, make: Make) -> None:
    producer = make(metadata_max_age=0.01)
    producer.send("t", b"v").result()
    server.wait_until_asked(ApiKey.METADATA, 5)


def test_a_partition_that_does_not_exist(server: FakeBroker, make: Make) -> None:
    producer = make()
    for partition in (-1, 3, 77):
        with pytest.raises(KafkaError, match=f"3 partitions.*no partition {partition}"):
            producer.send("t", b"v", partition=partition)
    server.add_partition()
    assert producer.send("t", b"v", partition=3).partition == 3, "the topic has grown"


def test_invalid_records_are_refused_and_others_are_sent(server: FakeBroker, make: Make) -> None:
    producer = make(linger_ms=10**6)
    good = producer.send("t", cast(bytes, bytearray(b"good")), partition=0, headers=[("h", None)])
    for record, says in [
        ({"value": "text"}, "a value is bytes"),
        ({"value": b"", "key": 7}, "a key is bytes"),
        ({"value": b"", "timestamp": 1.5}, "whole number of milliseconds"),
        ({"value": b"", "headers": [(b"h", b"x")]}, "a header's key is str"),
        ({"value": b"", "headers": [("h", "x")]}, "a header's value is bytes"),
    ]:
        with pytest.raises(TypeError, match=says):
            producer.send("t", partition=0, **record)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="64 bits"):
        producer.send("t", b"", partition=0, timestamp=1 << 63)
    with pytest.raises(TypeError, match="a value is bytes"):
        producer.send_set("t", [(None, b"good"), (None, "text")], partition=0)
    assert good.result() == 0
    assert [record.value for record in server.stored(0)] == [b"good"]


def test_keyless_records_beside_keyed_ones_stay_within_the_batch_size(server: FakeBroker, make: Make) -> None:
    producer = make(batch_bytes=1000, linger_ms=10**6)
    for number in range(300):
        producer.send("t", bytes(200), b"key %d" % number if number % 3 else None)
    producer.flush()
    assert producer._accumulator.buffered == 0
    assert max(len(batch) for log in server.logs for batch in log) < 1200
    assert sum(parse_header(batch).record_count for log in server.logs for batch in log) == 300


def test_a_batch_that_is_too_large_for_the_broker_is_split(server: FakeBroker, make: Make) -> None:
    def at_most_3(request: Any) -> Any:
        count = parse_header(request.topic_data[0].partition_data[0].records).record_count
        return (server._produce if count <= 3 else refuse(ErrorCode.MESSAGE_TOO_LARGE))(request)

    server.on(ApiKey.PRODUCE, *[at_most_3] * 50)
    told: list[tuple[bytes, int]] = []
    producer = make(linger_ms=10**6)

    def note(value: bytes, delivery: Delivery) -> None:
        told.append((value, delivery.offset))

    values = [b"%d" % n for n in range(10)]
    deliveries = [producer.send("t", value, partition=0, on_delivery=partial(note, value)) for value in values]
    whole = deliveries[0].batch
    producer.flush()
    assert [record.value for record in server.stored(0)] == [b"%d" % n for n in range(10)]
    assert [delivery.offset for delivery in deliveries] == list(range(10))
    assert told == [(b"%d" % n, n) for n in range(10)]
    assert whole.result is not None and (whole.result.records, whole.result.base_offset) == (10, 0)
    headers = [parse_header(batch) for batch in server.logs[0]]
    assert [header.base_sequence for header in headers] == [0, 2, 5, 7]


def test_a_set_that_is_too_large_is_not_split(server: FakeBroker, make: Make) -> None:
    server.on(ApiKey.PRODUCE, refuse(ErrorCode.MESSAGE_TOO_LARGE))
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        make().send_set("t", [(None, b"a"), (None, b"b")], partition=0).result()
    assert not server.logs[0]


def test_each_thread_hears_of_failures_from_its_own_flush(server: FakeBroker, make: Make) -> None:
    producer = make(linger_ms=10**6)
    heard: list[BaseException] = []
    flushed = threading.Barrier(2)

    def work() -> None:
        producer.send("t", b"v", partition=0)
        flushed.wait(60)
        try:
            producer.flush()
        except DeliveryFailed as error:
            heard.append(error)

    server.on(ApiKey.PRODUCE, refuse(ErrorCode.POLICY_VIOLATION), refuse(ErrorCode.POLICY_VIOLATION))
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(heard) == 2
    producer.send("t", b"w", partition=0)


def test_an_unreachable_host_delays_nobody(server: FakeBroker) -> None:
    with socket.socket() as full:  # it listens but never accepts: its queue of connections is full
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        others = [socket.socket() for _ in range(4)]
        for other in others:
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        silent = f"127.0.0.1:{full.getsockname()[1]}"
        with Producer([silent, server.address], connect_timeout=60) as producer:
            assert producer.send("t", b"v", partition=0).result(timeout=30) == 0
        for other in others:
            other.close()
