"""With all brokers down, a client waits for its next attempt, and starts it in time.

Simulated time passes only while a client waits. A client that asks again and again without waiting would never end
these tests, so they bound the number of waits.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.client import BrokerUnavailable, Cluster, Consumer, DeliveryTimedOut, Producer, deferred
from pylogd.wire.messages import ApiKey
from pylogd.wire.records import encode_batch
from tests.fakes.broker import FakeBroker, refuse_produce
from tests.fakes.clock import FakeClock
from tests.fakes.memory_broker import MemoryBroker, MemoryReactor

#: The default `reconnect_backoff_max` of a second allows at most 2 attempts a second, each with a few waits.
MOST_WAITS_PER_SECOND = 10
SECONDS = 120
LONGEST_PAUSE = 2  # seconds between attempts: a batch whose next attempt would come too late fails


class CountingClock(FakeClock):
    """A clock that counts how often a client waits during an outage, and fails the test if that is too often."""

    def __init__(self) -> None:
        super().__init__()
        self.outage_since: float | None = None
        self.waits = 0

    def begin_outage(self) -> None:
        """Start to count."""
        self.outage_since = self.now

    @property
    def outage(self) -> float:
        """Return the length of the outage so far, in seconds."""
        assert self.outage_since is not None
        return self.now - self.outage_since

    def poll(self, poll: select.poll, seconds: float) -> list[tuple[int, int]]:
        if self.outage_since is None:
            return super().poll(poll, seconds)
        self.waits += 1
        assert self.waits < MOST_WAITS_PER_SECOND * SECONDS, "a busy loop"
        events = poll.poll(0 if seconds <= 0 else 1)
        if not events and seconds > 0:
            self.sleep(seconds)
        return events


def test_a_blocking_consumer() -> None:
    clock = CountingClock()
    with FakeBroker() as server:
        server.append(0, encode_batch([(None, b"v", 0, ())]))
        consumer = Consumer(Cluster(server.address, clock=clock), prefetch=False)
        consumer.assign([("t", 0)])
        assert len(consumer.poll(SECONDS)) == 1
    clock.begin_outage()
    assert consumer.poll(SECONDS) == []
    assert clock.outage >= SECONDS


def test_a_blocking_producer() -> None:
    clock = CountingClock()
    with FakeBroker() as server:
        producer = Producer(Cluster(server.address, clock=clock), linger_ms=0, delivery_timeout=float(SECONDS))
        producer.send("t", b"v", partition=0).result(SECONDS)
    clock.begin_outage()
    with pytest.raises((BrokerUnavailable, DeliveryTimedOut)):
        producer.send("t", b"v", partition=0).result()
    assert clock.outage >= SECONDS - LONGEST_PAUSE
    producer.abandon()


class TickingClock(FakeClock):
    """A clock that advances at each reading, so that no two readings are the same."""

    def monotonic(self) -> float:
        self.now += 0.0003
        return self.now


class TickingReactor(MemoryReactor):
    """The same, as a reactor's clock."""

    def seconds(self) -> float:
        self.rightNow += 0.0004
        return float(self.rightNow)


PAUSES: dict[str, Any] = {"retry_backoff": 0.001, "retry_backoff_max": 0.001}
REFUSED = 30


def test_a_pause_that_ends_during_a_turn_is_not_missed() -> None:
    """Nothing else would wake the producer before `delivery_timeout`."""
    clock = TickingClock()
    with FakeBroker() as server, Producer(Cluster(server.address, clock=clock), **PAUSES) as producer:
        producer.send("t", b"v", partition=0).result()
        server.on(ApiKey.PRODUCE, *[refuse_produce(ErrorCode.NOT_ENOUGH_REPLICAS)] * REFUSED)
        begun = clock.now
        assert producer.send("t", b"v", partition=0).result() == 1
        assert clock.now - begun < SECONDS / 2


def test_a_pause_that_ends_during_a_turn_of_a_loop_is_not_missed() -> None:
    reactor = TickingReactor()
    server = MemoryBroker(reactor)
    producer = deferred.Producer(deferred.Cluster(server.address, reactor=reactor), **PAUSES)
    reactor.result(reactor.result(producer.send("t", b"v", partition=0)).result())
    server.on(ApiKey.PRODUCE, *[refuse_produce(ErrorCode.NOT_ENOUGH_REPLICAS)] * REFUSED)
    assert reactor.result(reactor.result(producer.send("t", b"v", partition=0)).result(), SECONDS / 2) == 1
    producer.abandon()


class CountingReactor(MemoryReactor):
    """A reactor that counts connections and delayed calls."""

    delayed = connections = 0

    def callLater(self, when: float, what: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        self.delayed += 1
        assert self.delayed < MOST_WAITS_PER_SECOND * SECONDS, "a busy loop"
        return super().callLater(when, what, *args, **kwargs)

    def connectTCP(self, *arguments: Any, **options: Any) -> Any:
        self.connections += 1
        return super().connectTCP(*arguments, **options)


@pytest.mark.parametrize("kind", ["consumer", "producer"])
def test_on_an_event_loop(kind: str) -> None:
    reactor = CountingReactor()
    server = MemoryBroker(reactor)
    cluster = deferred.Cluster(server.address, reactor=reactor)
    if kind == "consumer":
        consumer = deferred.Consumer(cluster)
        reactor.result(consumer.assign([("t", 0)]))
        reactor.result(consumer.poll(1.0))
    else:
        producer = deferred.Producer(cluster, linger_ms=0, delivery_timeout=2.0 * SECONDS)
        reactor.result(reactor.result(producer.send("t", b"v", partition=0)).result())
    server.up = False
    server.drop()
    reactor.delayed = reactor.connections = 0
    if kind == "consumer":
        assert reactor.result(consumer.poll(SECONDS), SECONDS + 1) == []
    else:
        reactor.result(producer.send("t", b"v", partition=0))
        reactor.run(SECONDS)
    assert SECONDS / 4 < reactor.connections < 3 * SECONDS, "it tries every second, more or less"
    cluster.close()
