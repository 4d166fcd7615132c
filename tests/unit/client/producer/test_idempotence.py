"""Producer ids and sequences; callbacks, and the producer's thread."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.client import (
    ClientError,
    Closed,
    Delivery,
    DeliveryFailed,
    KafkaError,
    Producer,
    UnsupportedByBroker,
)
from pylogd.client.blocking.sender import Driver
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.init_producer_id import InitProducerIdResponse
from pylogd.wire.messages.metadata import MetadataResponse, MetadataResponseTopic
from pylogd.wire.records import parse_header
from tests.fakes import broker as fake
from tests.fakes.broker import FakeBroker
from tests.fakes.broker import refuse_produce as refuse
from tests.unit.client.producer.helpers import Make


def init_answer(code: ErrorCode) -> Callable[[Any], InitProducerIdResponse]:
    return lambda _: InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def test_a_producer_id_is_waited_for(server: FakeBroker, make: Make) -> None:
    server.on(ApiKey.INIT_PRODUCER_ID, init_answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), fake.close)
    assert make().send("t", b"v", partition=0).result() == 0
    assert len(server.asked(ApiKey.INIT_PRODUCER_ID)) == 3


def test_a_producer_id_that_is_refused(server: FakeBroker, make: Make) -> None:
    server.on(ApiKey.INIT_PRODUCER_ID, init_answer(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
        make().send("t", b"v", partition=0).result()


def test_a_broker_without_idempotence(server: FakeBroker, make: Make) -> None:
    del server.versions[ApiKey.INIT_PRODUCER_ID]
    with pytest.raises(UnsupportedByBroker, match="InitProducerId"):
        make().send("t", b"v", partition=0).result()
    assert make(idempotence=False).send("t", b"v", partition=0).result() == 0


@pytest.mark.parametrize("options", [{"acks": 1}, {"retry": False}, {"max_in_flight": 6}])
def test_options_that_idempotence_requires(make: Make, options: dict[str, Any]) -> None:
    make(**options)
    with pytest.raises(ValueError, match="idempotence needs"):
        make(idempotence=True, **options)


def test_order_is_kept_with_many_requests_in_flight(server: FakeBroker, make: Make) -> None:
    for act in (
        refuse(ErrorCode.NOT_ENOUGH_REPLICAS),
        fake.cut,
        fake.close,
        refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ):
        server.on(ApiKey.PRODUCE, *[server._produce] * 3, act)
    producer = make(batch_records=1)
    for n in range(60):
        producer.send("t", b"%d" % n, partition=0)
    producer.flush()
    assert [record.value for record in server.stored(0)] == [b"%d" % n for n in range(60)]


def test_a_batch_that_is_given_up_starts_a_new_epoch(server: FakeBroker, make: Make) -> None:
    server.on(ApiKey.PRODUCE, server._produce, refuse(ErrorCode.MESSAGE_TOO_LARGE))
    producer = make(batch_records=1)
    first = producer.send("t", b"0", partition=0)
    first.result()
    sent = [producer.send("t", b"%d" % n, partition=0) for n in range(1, 5)]
    with pytest.raises(DeliveryFailed, match="1 records"):
        producer.flush()
    assert [delivery.error is None for delivery in sent] == [False, True, True, True]
    assert [record.value for record in server.stored(0)] == [b"0", b"2", b"3", b"4"]
    headers = [parse_header(batch) for batch in server.logs[0]]
    assert [(h.producer_id, h.producer_epoch, h.base_sequence) for h in headers] == [
        (1, 0, 0), (1, 1, 0), (1, 1, 1), (1, 1, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "numbers"),
    [
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, (1, 1, 0)),
        (ErrorCode.UNKNOWN_PRODUCER_ID, (1, 1, 0)),
        (ErrorCode.INVALID_PRODUCER_EPOCH, (2, 0, 0)),
    ],
)
def test_sequences_that_the_broker_refuses(
    server: FakeBroker, make: Make, code: ErrorCode, numbers: tuple[int, int, int]
) -> None:
    server.on(ApiKey.PRODUCE, refuse(code))
    assert make().send("t", b"v", partition=0).result() == 0
    header = parse_header(server.logs[0][0])
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == numbers


def test_a_duplicate_without_an_offset(server: FakeBroker, make: Make) -> None:
    server.on(ApiKey.PRODUCE, refuse(ErrorCode.DUPLICATE_SEQUENCE_NUMBER))
    delivery = make().send("t", b"v", partition=0)
    assert delivery.result() == -1 and delivery.done and delivery.error is None


# Callbacks and the thread


def test_callbacks(server: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[int, int, Any]] = []
    producer = make(linger_ms=10**6)
    for _ in range(3):
        producer.send("t", b"v", partition=1, on_delivery=lambda d: told.append((d.partition, d.offset, d.error)))

    def fail(_: Delivery) -> None:
        raise ZeroDivisionError

    producer.send_set("t", [(None, b"v")], partition=1, on_delivery=fail)
    producer.flush()
    assert told == [(1, n, None) for n in range(3)]
    assert "on_delivery failed for a record of t-1" in caplog.text


def test_a_callback_may_send_but_not_wait(server: FakeBroker, make: Make) -> None:
    raised: list[BaseException] = []
    producer = make()

    def again(_: Any) -> None:
        try:
            producer.send("t", b"again", partition=0)
            producer.flush()
        except ClientError as error:
            raised.append(error)

    producer.send("t", b"first", partition=0, on_delivery=again)
    producer.flush()
    producer.flush()
    assert [record.value for record in server.stored(0)] == [b"first", b"again"]
    assert "may not wait" in str(raised[0])


def test_a_producer_that_is_dropped_delivers_what_it_has(server: FakeBroker) -> None:
    producer = Producer(server.address, linger_ms=10**6)
    delivery = producer.send("t", b"v", partition=0)
    thread = producer._sender._thread
    assert thread is not None
    with pytest.warns(ResourceWarning, match="neither closed nor flushed"):
        del producer
        gc.collect()
    thread.join(120)
    assert not thread.is_alive() and delivery.offset == 0


def test_threads_share_a_producer(server: FakeBroker, make: Make) -> None:
    producer = make(batch_records=7)

    def work(name: int) -> None:
        for n in range(200):
            producer.send("t", b"%d/%d" % (name, n), partition=0)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush()
    values = [record.value or b"" for record in server.stored(0)]
    assert len(values) == 800
    for name in range(4):
        own = [value for value in values if value.startswith(b"%d/" % name)]
        assert own == [b"%d/%d" % (name, n) for n in range(200)]


def test_a_bug_in_the_thread_is_no_endless_wait(
    server: FakeBroker, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    producer = make()
    monkeypatch.setattr(Driver, "turn", lambda *_: 1 // 0)
    with pytest.raises(Closed, match="the producer has failed"):
        producer.send("t", b"v", partition=0).result()
    with pytest.raises(Closed, match="the producer has failed"):
        producer.send("t", b"v", partition=0)


def test_a_topic_that_some_brokers_do_not_know_yet(server: FakeBroker, make: Make) -> None:
    def not_yet(request: Any) -> Any:
        return MetadataResponse(topics=[MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t")])

    server.on(ApiKey.METADATA, not_yet)
    assert make().send("t", b"v").result() == 0
    server.on(ApiKey.METADATA, not_yet)
    assert make().send("t", b"v", partition=0).result() >= 0
