"""Which connections are closed because they are idle."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from twisted.internet.task import Clock

from pylogd.broker.net.connection_quotas import Verdict
from pylogd.broker.net.server import BrokerFactory, BrokerProtocol, ServerLimits


class FakeConnection:
    """The part of a connection that the sweep uses."""

    host = "192.0.2.1"
    served = True

    def __init__(self, last_active: float, idle: bool) -> None:
        self.last_active = last_active
        self.closed_for = ""
        self.transport = SimpleNamespace(fileno=lambda: 10)
        self.pipeline = SimpleNamespace(idle=idle, close=self._close)
        self.session = SimpleNamespace(pending=False)

    def _close(self, reason: str) -> None:
        self.closed_for = reason


def sweep(max_idle_ms: int, *connections: FakeConnection) -> list[bool]:
    """Return which connections a factory closes within 15 s after second 1000."""
    clock = Clock()
    clock.advance(1000.0)
    limits = ServerLimits(1024, 1, 1024, 4096, max_idle_ms)
    unused = cast(Any, None)
    factory = BrokerFactory(clock, unused, unused, limits)
    for connection in connections:
        assert factory.admit(cast(BrokerProtocol, connection)) is Verdict.TAKEN
    factory.doStart()
    clock.pump([5.0] * 3)
    factory.doStop()
    return [bool(connection.closed_for) for connection in connections]


def test_idle_for_too_long() -> None:
    assert sweep(600_000, FakeConnection(100.0, True), FakeConnection(900.0, True)) == [True, False]


def test_a_connection_that_waits_for_a_reply_is_not_idle() -> None:
    assert sweep(600_000, FakeConnection(100.0, False)) == [False]


def test_minus_one_closes_none() -> None:
    assert sweep(-1, FakeConnection(0.0, True), FakeConnection(1000.0, True)) == [False, False]
