"""Calls of the blocking face that wait for several things keep one limit of time for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pylogd.client import BrokerUnavailable, Cluster, Consumer, Producer, RequestTimedOut
from tests.fakes.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def producer(clock: FakeClock) -> Iterator[Producer]:
    with Cluster("127.0.0.1:1", clock=clock) as cluster:
        producer = Producer(cluster, max_block=5.0, buffer_memory=1000)
        yield producer
        producer.abandon()


@pytest.fixture
def waits(producer: Producer, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The limits of the producer's waits. The first wait succeeds after 3 seconds, the second one fails."""
    waits: list[float | None] = []

    def wait(done: Callable[[], bool], timeout: float | None) -> bool:
        waits.append(timeout)
        clock.now += 3
        return len(waits) == 1

    monkeypatch.setattr(producer._sender, "wait", wait)
    monkeypatch.setattr(producer._sender, "start", lambda: None)
    return waits


@pytest.mark.parametrize("send", ["send", "send_set"])
def test_space_and_metadata_together_take_max_block(producer: Producer, waits: list[float | None], send: str) -> None:
    producer._accumulator.buffered = 1000
    with pytest.raises((BrokerUnavailable, RequestTimedOut)):
        producer.send("t", b"x") if send == "send" else producer.send_set("t", [(None, b"x")])
    assert waits == [5.0, 2.0]
    producer._accumulator.buffered = 0


def test_a_topic_and_its_partition_are_one_wait(producer: Producer, waits: list[float | None]) -> None:
    producer._core.partitions["t"] = 1
    waits.append(None)
    with pytest.raises((BrokerUnavailable, RequestTimedOut)):
        producer.send("t", b"x", partition=7)
    assert waits == [None, 5.0]


def test_an_abort_and_a_flush_together_take_the_limit_of_close(
    producer: Producer, waits: list[float | None], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "_abort_open", lambda timeout: producer._sender.wait(bool, timeout))
    with pytest.raises(RequestTimedOut):
        producer.close(4.0)
    assert waits == [4.0, 1.0]


class SlowLock:
    """A lock that another thread releases after 3 seconds."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not blocking:
            return False
        self._clock.now += 3
        return True

    def release(self) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("fill", lambda consumer: consumer.poll(5.0)),
        ("poll_columns", lambda consumer: consumer.poll_columns(5.0)),
        ("close", lambda consumer: consumer.close(5.0)),
    ],
)
def test_the_lock_and_the_call_together_take_the_limit(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, method: str, call: Callable[[Consumer], object]
) -> None:
    consumer = Consumer(Cluster("127.0.0.1:1", clock=clock), prefetch=False)
    limits: list[float] = []

    async def limited(timeout: float, *_: Any, **__: Any) -> list[Any]:
        limits.append(timeout)
        return []

    with monkeypatch.context() as patched:
        patched.setattr(consumer._consumer, method, limited)
        patched.setattr(consumer._loop, "lock", SlowLock(clock))
        call(consumer)
    assert limits == [2.0]
    consumer.close()
