"""The Twisted consumer in simulated time, against a broker that fails on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.client import BrokerUnavailable, ClientError, Closed, CorruptRecords, KafkaError, Record, TopicPartition
from pylogd.client.deferred import Consumer
from pylogd.wire.messages import ApiKey
from pylogd.wire.records import NewRecord, encode_batch
from tests.fakes import broker as fake
from tests.fakes.broker import TOPIC_ID
from tests.fakes.broker import refuse_fetch as refuse
from tests.fakes.memory_broker import MemoryBroker, MemoryReactor

Make = Callable[..., Consumer]


@pytest.fixture
def reactor() -> MemoryReactor:
    return MemoryReactor()


@pytest.fixture
def server(reactor: MemoryReactor) -> MemoryBroker:
    return MemoryBroker(reactor, partitions=2)


@pytest.fixture
def make(reactor: MemoryReactor, server: MemoryBroker) -> Iterator[Make]:
    consumers = []

    def make(**options: Any) -> Consumer:
        consumers.append(Consumer(server.address, reactor=reactor, **options))
        return consumers[-1]

    yield make
    for consumer in consumers:
        reactor.result(consumer.close())
    reactor.run(10)
    assert not reactor.getDelayedCalls()


def fill(server: MemoryBroker, partition: int, values: list[bytes], size: int = 1) -> None:
    for at in range(0, len(values), size):
        server.append(partition, encode_batch([NewRecord(None, v, 7) for v in values[at : at + size]]))


def read(reactor: MemoryReactor, consumer: Consumer, count: int) -> list[bytes | None]:
    records: list[Record] = []
    while len(records) < count:
        more = reactor.result(consumer.poll(30), 60)
        assert more, f"only {len(records)} came"
        records += more
    return [record.value for record in records]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def test_records_come_in_order(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    fill(server, 0, numbers(100), size=10)
    consumer = make(max_poll_records=7)
    reactor.result(consumer.assign([("t", 0)]))
    assert read(reactor, consumer, 100) == numbers(100)
    assert reactor.result(consumer.position(("t", 0))) == 100


def test_the_next_request_is_under_way_before_this_reply_is_read(
    reactor: MemoryReactor, server: MemoryBroker, make: Make
) -> None:
    fill(server, 0, numbers(20), size=10)
    consumer = make(partition_max_bytes=100)
    reactor.result(consumer.assign([("t", 0)]))
    assert len(reactor.result(consumer.poll(30))) >= 10
    reactor.run(0.1)
    assert [r.topics[0].partitions[0].fetch_offset for r in server.asked(ApiKey.FETCH)][:2] == [0, 10]


@pytest.mark.parametrize("act", [fake.close, fake.garbage, fake.cut, fake.silence])
def test_a_bad_reply_costs_no_record(
    reactor: MemoryReactor, server: MemoryBroker, make: Make, act: fake.Misbehaviour
) -> None:
    fill(server, 0, numbers(30), size=10)
    consumer = make(partition_max_bytes=100, request_timeout=2.0)
    server.on(ApiKey.FETCH, server._fetch, act, server._fetch, act)
    reactor.result(consumer.assign([("t", 0)]))
    assert read(reactor, consumer, 30) == numbers(30)


def test_a_broker_that_is_away_for_a_while(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    fill(server, 0, numbers(5))
    consumer = make()
    reactor.result(consumer.assign([("t", 0)]))
    assert read(reactor, consumer, 5) == numbers(5)
    server.up = False
    server.drop()
    assert reactor.result(consumer.poll(5)) == []
    server.up = True
    fill(server, 0, [b"more"])
    assert read(reactor, consumer, 1) == [b"more"]


def test_a_lasting_error_is_raised_and_polling_continues(
    reactor: MemoryReactor, server: MemoryBroker, make: Make
) -> None:
    fill(server, 0, numbers(3))
    consumer = make(retry_timeout=3.0)
    reactor.result(consumer.assign({("t", 0): 1}))
    server.up = False
    server.drop()
    with pytest.raises(BrokerUnavailable):
        reactor.result(consumer.poll(60), 60)
    server.up = True
    assert read(reactor, consumer, 2) == numbers(3)[1:]


def test_a_leader_that_lost_its_leadership(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    fill(server, 0, numbers(3))
    server.on(ApiKey.FETCH, refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER), refuse(ErrorCode.UNKNOWN_TOPIC_ID))
    consumer = make()
    reactor.result(consumer.assign([("t", 0)]))
    asked = len(server.asked(ApiKey.METADATA))
    assert read(reactor, consumer, 3) == numbers(3)
    assert len(server.asked(ApiKey.METADATA)) >= asked + 2


def test_an_error_that_is_not_retriable(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    server.on(ApiKey.FETCH, refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    fill(server, 0, numbers(1))
    consumer = make()
    reactor.result(consumer.assign([("t", 0)]))
    with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
        reactor.result(consumer.poll(30), 40)
    assert read(reactor, consumer, 1) == numbers(1)


def test_damage_is_reported_after_the_valid_records(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    fill(server, 0, numbers(4), size=2)
    bad = bytearray(server.logs[0][1])
    bad[-1] ^= 1
    good, server.logs[0][1] = server.logs[0][1], bytes(bad)
    consumer = make()
    reactor.result(consumer.assign([("t", 0)]))
    assert read(reactor, consumer, 2) == numbers(2)
    for _ in range(2):
        with pytest.raises(CorruptRecords) as damage:
            reactor.result(consumer.poll(30), 40)
        assert (damage.value.offset, damage.value.next_offset) == (2, 4)
    server.logs[0][1] = good
    assert read(reactor, consumer, 2) == numbers(4)[2:]


def test_offsets_out_of_range(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    fill(server, 0, numbers(3))
    consumer = make()
    reactor.result(consumer.assign({("t", 0): 99}))
    assert read(reactor, consumer, 3) == numbers(3)
    strict = make(auto_offset_reset="none")
    reactor.result(strict.assign({("t", 0): 99}))
    with pytest.raises(KafkaError, match="OFFSET_OUT_OF_RANGE"):
        reactor.result(strict.poll(30), 40)


def test_buffers_are_bounded(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    for partition in range(2):
        fill(server, partition, [b"x" * 10_000] * 50)
    consumer = make(buffer_bytes=200_000, fetch_max_bytes=100_000)
    reactor.result(consumer.assign([("t", 0), ("t", 1)]))
    assert reactor.result(consumer.poll(30, 1))
    reactor.run(5)
    held = sum(request.max_bytes for request in server.asked(ApiKey.FETCH))
    assert held <= 300_000, "it asks on while nobody reads"
    assert len(read(reactor, consumer, 99)) == 99


def test_pausing(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    fill(server, 0, numbers(10))
    consumer = make(max_poll_records=3)
    reactor.result(consumer.assign([("t", 0)]))
    assert len(reactor.result(consumer.poll(30))) == 3
    reactor.result(consumer.pause(("t", 0)))
    assert consumer.paused == [TopicPartition("t", 0)]
    assert reactor.result(consumer.poll(2)) == []
    reactor.result(consumer.resume())
    assert read(reactor, consumer, 7) == numbers(10)[3:]


def test_one_poll_at_a_time_which_close_and_wakeup_end(
    reactor: MemoryReactor, server: MemoryBroker, make: Make
) -> None:
    consumer = make()
    reactor.result(consumer.assign([("t", 0)]))
    first = consumer.poll(1000)
    with pytest.raises(ClientError, match="another poll"):
        reactor.result(consumer.poll(1))
    consumer.wakeup()
    assert reactor.result(first) == []
    second = consumer.poll(1000)
    closed = consumer.close()
    with pytest.raises(Closed):
        reactor.result(second)
    reactor.result(closed)
    with pytest.raises(Closed):
        reactor.result(consumer.poll(1))


def test_a_poll_may_be_cancelled(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    consumer = make()
    reactor.result(consumer.assign([("t", 0)]))
    first = consumer.poll(1000)
    first.addErrback(lambda _: None)
    reactor.run(1)
    first.cancel()
    fill(server, 0, numbers(2))
    assert read(reactor, consumer, 2) == numbers(2)


def test_iteration(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    fill(server, 0, numbers(10), size=3)
    consumer = make(max_poll_records=4)

    async def take() -> list[bytes | None]:
        await consumer.assign([("t", 0)])
        found: list[bytes | None] = []
        async for record in consumer:
            found.append(record.value)
            if len(found) == 10:
                break
        return found

    assert reactor.result(Deferred.fromCoroutine(take())) == numbers(10)


def test_groups_need_a_group(reactor: MemoryReactor, make: Make) -> None:
    consumer = make()
    for call in (lambda: consumer.subscribe("t"), lambda: reactor.result(consumer.commit())):
        with pytest.raises(ValueError, match="needs a consumer group"):
            call()
    for options in ({"auto_commit": "maybe"}, {"auto_offset_reset": "now"}, {"coordinator": "raft"}):
        with pytest.raises(ValueError, match="not '"):
            Consumer("h:1", reactor=reactor, **options)  # type: ignore[arg-type]


def test_the_topic_id_is_used(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    fill(server, 0, numbers(1))
    consumer = make()
    reactor.result(consumer.assign([("t", 0)]))
    read(reactor, consumer, 1)
    assert server.asked(ApiKey.FETCH)[0].topics[0].topic_id == TOPIC_ID


def test_an_outage_is_waited_for_and_not_raised(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    consumer = make()
    reactor.result(consumer.assign([("t", 0)]))
    server.up = False
    server.drop()
    for _ in range(4):
        assert reactor.result(consumer.poll(60), 120) == []
    server.up = True
    fill(server, 0, numbers(3))
    assert read(reactor, consumer, 3) == numbers(3)


def test_retry_timeout_bounds_an_outage(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    consumer = make(retry_timeout=20.0)
    reactor.result(consumer.assign([("t", 0)]))
    server.up = False
    server.drop()
    with pytest.raises(BrokerUnavailable):
        reactor.result(consumer.poll(60), 120)


def test_an_iteration_lets_the_reactor_do_other_work(reactor: MemoryReactor, server: MemoryBroker, make: Make) -> None:
    fill(server, 0, numbers(5000), size=100)
    consumer = make(max_poll_records=100)
    reactor.result(consumer.assign([("t", 0)]))
    turns: list[int] = []
    seen: list[int] = []

    async def work() -> None:
        async for _ in consumer:
            seen.append(1)
            reactor.rightNow += 0.001  # the time that the application's own work takes
            if len(seen) == 5000:
                break

    def other() -> None:
        turns.append(len(seen))
        if len(seen) < 5000:
            reactor.callLater(0.001, other)

    other()
    reactor.result(Deferred.fromCoroutine(work()), 60)
    assert max(later - earlier for earlier, later in pairwise(turns)) <= 500
