"""The Twisted producer in simulated time, against a broker that fails on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from twisted.internet import task
from twisted.internet.defer import CancelledError

from pylogd.base.errors import ErrorCode
from pylogd.client import (
    BatchResult,
    BrokerUnavailable,
    BufferFull,
    Closed,
    DeliveryFailed,
    DeliveryTimedOut,
    InvalidReply,
    KafkaError,
    NewRecord,
    RequestTimedOut,
    UnknownTopic,
)
from pylogd.client.deferred import Cluster, Producer
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.metadata import MetadataResponse, MetadataResponseTopic
from pylogd.wire.records import parse_header
from tests.fakes import broker as fake
from tests.fakes.broker import refuse_produce as refuse
from tests.fakes.memory_broker import MemoryBroker, MemoryReactor

Make = Callable[..., Producer]


@pytest.fixture
def reactor() -> MemoryReactor:
    return MemoryReactor()


@pytest.fixture
def server(reactor: MemoryReactor) -> MemoryBroker:
    return MemoryBroker(reactor, partitions=3)


@pytest.fixture
def make(reactor: MemoryReactor, server: MemoryBroker) -> Iterator[Make]:
    clusters = []

    def make(*, cluster: dict[str, Any] | None = None, **options: Any) -> Producer:
        clusters.append(Cluster(server.address, reactor=reactor, **cluster or {}))
        return Producer(clusters[-1], **options)

    yield make
    for cluster in clusters:
        cluster.close()


def test_records_arrive(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    producer = make(linger_ms=10**6)
    deliveries = [
        reactor.result(producer.send("t", b"v%d" % n, b"k", partition=1, timestamp=n, headers=[("h", b"x")]))
        for n in range(5)
    ]
    assert not deliveries[4].done
    assert deliveries[4].offset == -1
    assert reactor.result(deliveries[3].result()) == 3
    assert reactor.result(deliveries[3].result()) == 3
    assert [record.value for record in server.stored(1)] == [b"v%d" % n for n in range(5)]
    assert server.stored(1)[2].timestamp == 2
    assert (deliveries[0].topic, deliveries[0].partition, deliveries[0].error) == ("t", 1, None)


def test_a_batch_leaves_when_it_has_lingered(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    producer = make(linger_ms=200)
    done: list[Any] = []
    reactor.result(producer.send("t", b"a", partition=0, on_delivery=done.append))
    reactor.run(0.1)
    assert not server.asked(ApiKey.PRODUCE)
    reactor.run(0.2)
    assert [delivery.offset for delivery in done] == [0]


def test_full_batches_leave_at_once(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    producer = make(linger_ms=10**6, batch_records=10)
    for _ in range(25):
        reactor.result(producer.send("t", b"x", partition=0))
    reactor.run(0.2)
    assert server.ends[0] == 20
    reactor.result(producer.flush())
    assert server.ends[0] == 25


def test_a_set_is_one_batch(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    producer = make()
    second = NewRecord(None, b"2", 7, [("h", b"")])
    records: list[NewRecord | tuple[bytes | None, bytes | None]] = [(b"k", b"1"), second]
    delivery = reactor.result(producer.send_set("t", records, partition=2))
    assert reactor.result(delivery.result()) == 0
    assert len(server.logs[2]) == 1
    assert [record.value for record in server.stored(2)] == [b"1", b"2"]
    with pytest.raises(ValueError, match="needs at least one record"):
        producer.send_set("t", [])


def test_without_partition_the_key_decides(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    producer = make()
    partitions = {reactor.result(producer.send("t", b"v", b"same")).partition for _ in range(5)}
    assert len(partitions) == 1


def test_requests_are_pipelined_in_order(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    server.delay = 0.5
    producer = make(batch_records=1)
    deliveries = [reactor.result(producer.send("t", b"%d" % n, partition=0)) for n in range(12)]
    reactor.result(producer.flush(), 60)
    assert [delivery.offset for delivery in deliveries] == list(range(12))
    assert [record.value for record in server.stored(0)] == [b"%d" % n for n in range(12)]


@pytest.mark.parametrize("act", [fake.close, fake.garbage, fake.cut, fake.silence])
def test_a_lost_reply_writes_nothing_twice(
    reactor: MemoryReactor, server: MemoryBroker, make: Make, act: fake.Misbehaviour
) -> None:
    def written(request: Any) -> None:
        server._produce(request)

    producer = make(batch_records=2, request_timeout=2.0)
    server.on(ApiKey.PRODUCE, server._produce, written, act)
    for n in range(10):
        reactor.result(producer.send("t", b"%d" % n, partition=0))
    reactor.result(producer.flush(), 60)
    assert [record.value for record in server.stored(0)] == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize(
    ("act", "error"),
    [(fake.close, BrokerUnavailable), (fake.garbage, InvalidReply), (fake.silence, RequestTimedOut)],
)
def test_at_most_once(
    reactor: MemoryReactor, server: MemoryBroker, make: Make, act: fake.Misbehaviour, error: type[Exception]
) -> None:
    producer = make(retry=False, request_timeout=1.0)
    server.on(ApiKey.PRODUCE, act)
    delivery = reactor.result(producer.send("t", b"x", partition=0))
    with pytest.raises(error):
        reactor.result(delivery.result())
    with pytest.raises(DeliveryFailed, match="1 records"):
        reactor.result(producer.flush())
    reactor.result(producer.flush())


def test_a_new_leader_is_found(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    server.on(
        ApiKey.PRODUCE,
        refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER),
    )
    producer = make()
    delivery = reactor.result(producer.send("t", b"x", partition=0))
    asked = len(server.asked(ApiKey.METADATA))
    assert reactor.result(delivery.result()) == 0
    assert len(server.asked(ApiKey.METADATA)) >= asked + 2


def test_no_leader_for_a_while(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    server.leader_of[0] = -1
    producer = make()
    delivery = reactor.result(producer.send("t", b"x", partition=0))
    reactor.run(3)
    assert not delivery.done
    server.leader_of[0] = 1
    assert reactor.result(delivery.result()) == 0


def test_final_errors(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    results: list[BatchResult] = []
    producer = make(on_batch=results.append)
    server.on(ApiKey.PRODUCE, refuse(ErrorCode.MESSAGE_TOO_LARGE))
    delivery = reactor.result(producer.send("t", b"x", partition=0))
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        reactor.result(delivery.result())
    assert isinstance(delivery.error, KafkaError)
    assert [result.error for result in results] == [delivery.error]


def test_tries_end_with_the_delivery_timeout(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    producer = make(delivery_timeout=5.0)
    delivery = reactor.result(producer.send("t", b"x", partition=0))
    server.up = False
    server.drop()
    server.on(ApiKey.PRODUCE, *[fake.close] * 100)
    with pytest.raises((DeliveryTimedOut, BrokerUnavailable)):
        reactor.result(delivery.result(), 30)


def test_a_broker_that_comes_back(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    server.up = False
    producer = make()
    sent = producer.send("t", b"x")
    reactor.run(5)
    assert not sent.called
    server.up = True
    assert reactor.result(reactor.result(sent).result()) == 0


def test_the_buffer_is_bounded(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    server.delay = 1.0
    producer = make(buffer_memory=20_000, batch_bytes=5_000, linger_ms=10**6, max_block=30.0)
    reactor.result(reactor.result(producer.send("t", b"0", partition=0)).result())
    sent = [producer.send("t", b"%d" % n + b"x" * 1000, partition=0) for n in range(1, 30)]
    reactor.run(0.5)
    assert 5 < sum(deferred.called for deferred in sent) < 25
    for deferred in sent:
        reactor.result(deferred, 60)
    reactor.result(producer.flush(), 60)
    assert [int(record.value.rstrip(b"x")) for record in server.stored(0) if record.value] == list(range(30))


def test_a_full_buffer_fails_after_max_block(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    producer = make(buffer_memory=2_000, max_block=3.0, linger_ms=10**6)
    reactor.result(producer.send("t", b"x" * 1000, partition=0))
    server.on(ApiKey.PRODUCE, *[fake.silence] * 10)
    reactor.result(producer.send("t", b"x" * 1000, partition=0))
    late = producer.send("t", b"x" * 1000, partition=0)
    cancelled = producer.send("t", b"y", partition=0)
    many = [producer.send("t", b"x" * 1900, partition=0) for _ in range(100)]  # much more than `buffer_memory`
    cancelled.cancel()
    with pytest.raises(CancelledError):
        reactor.result(cancelled)
    reactor.run(2.9)
    assert not late.called
    assert not any(sent.called for sent in many)
    for sent in (late, *many):
        with pytest.raises(BufferFull, match="buffer_memory is 2,000"):
            reactor.result(sent, 0.2)
    producer.abandon()


def test_any_number_of_sends_waits_for_an_unknown_topic(
    reactor: MemoryReactor, server: MemoryBroker, make: Make
) -> None:
    server.delay = 1.0
    producer = make(buffer_memory=20_000, max_block=30.0, linger_ms=0)
    sent = [producer.send("t", b"%d" % n + b"x" * 1000, partition=0) for n in range(100)]
    assert not any(deferred.called for deferred in sent)
    deliveries = [reactor.result(deferred, 60) for deferred in sent]
    reactor.result(producer.flush(), 60)
    assert [delivery.offset for delivery in deliveries] == list(range(100))
    assert [int(record.value.rstrip(b"x")) for record in server.stored(0) if record.value] == list(range(100))
    assert not producer._producer._waiting
    assert not producer._producer._unknown


def test_a_topic_without_metadata_delays_no_other_topic(
    reactor: MemoryReactor, server: MemoryBroker, make: Make
) -> None:
    producer = make(max_block=3.0)
    reactor.result(producer.send("t", b"0"))
    answer = MetadataResponseTopic(error_code=ErrorCode.LEADER_NOT_AVAILABLE, name="slow")
    server.on(ApiKey.METADATA, *[lambda _: MetadataResponse(topics=[answer])] * 1000)
    slow = producer.send("slow", b"1")
    reactor.run(0.1)
    assert reactor.result(producer.send("t", b"2"), 0.01).topic == "t"
    assert not slow.called
    with pytest.raises(KafkaError, match="leader"):
        reactor.result(slow, 3.0)


def test_closing_ends_in_time_also_if_the_transaction_took_most_of_it(
    reactor: MemoryReactor, server: MemoryBroker, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = make(linger_ms=0)
    reactor.result(producer.send("t", b"0"))
    server.on(ApiKey.PRODUCE, *[fake.silence] * 10)
    reactor.result(producer.send("t", b"1"))

    async def abort(timeout: float | None) -> None:
        await task.deferLater(reactor, 1.5)

    monkeypatch.setattr(producer._producer, "abort_open", abort)
    begun = reactor.seconds()
    with pytest.raises(RequestTimedOut):
        reactor.result(producer.close(timeout=2.0))
    assert reactor.seconds() - begun == pytest.approx(2.0, abs=0.05)


def test_no_such_topic(reactor: MemoryReactor, make: Make) -> None:
    with pytest.raises(UnknownTopic):
        reactor.result(make().send("missing", b"x"))


def test_metadata_that_does_not_come(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    server.up = False
    with pytest.raises(BrokerUnavailable):
        reactor.result(make(max_block=2.0).send("t", b"x"), 10)


def test_acks_0(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    producer = make(acks=0)
    delivery = reactor.result(producer.send("t", b"x", partition=0))
    reactor.result(producer.flush())
    assert delivery.done
    assert delivery.offset == -1
    reactor.run(0.1)
    assert server.ends[0] == 1
    assert parse_header(server.logs[0][0]).producer_id == -1


def test_waiting_has_an_end_if_one_is_given(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    server.on(ApiKey.PRODUCE, fake.silence)
    producer = make()
    delivery = reactor.result(producer.send("t", b"x", partition=0))
    for deferred in (delivery.result(0.5), producer.flush(0.5)):
        with pytest.raises(RequestTimedOut, match="not delivered yet"):
            reactor.result(deferred)
    assert reactor.result(delivery.result(), 60) == 0


def test_close_flushes_and_refuses(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    producer = make(linger_ms=10**6)
    reactor.result(producer.send("t", b"x", partition=0))
    closed = producer.close()
    with pytest.raises(Closed):
        reactor.result(producer.send("t", b"y", partition=0))
    reactor.result(closed)
    reactor.result(producer.close())
    assert server.ends[0] == 1


def test_abandon_gives_everything_up(reactor: MemoryReactor, server: MemoryBroker) -> None:
    producer = Producer(server.address, linger_ms=10**6, reactor=reactor)
    delivery = reactor.result(producer.send("t", b"x", partition=0))
    result = delivery.result()
    server.on(ApiKey.PRODUCE, fake.silence)
    producer.abandon()
    with pytest.raises(Closed):
        reactor.result(result)
    reactor.run(10)
    assert server.ends[0] == 0
    assert not reactor.getDelayedCalls()


def test_options_that_contradict_each_other(reactor: MemoryReactor) -> None:
    contradicting: list[dict[str, Any]] = [{"acks": 1}, {"retry": False}, {"max_in_flight": 6}]
    for options in contradicting:
        with pytest.raises(ValueError, match="idempotence needs"):
            Producer("h:1", idempotence=True, reactor=reactor, **options)


def test_a_callback_that_fails_harms_nobody(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("from a callback")

    producer = make(on_batch=fail)
    delivery = reactor.result(producer.send("t", b"x", partition=0))
    assert reactor.result(delivery.result()) == 0
