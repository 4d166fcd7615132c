"""The reactor's work for a connection: measured while a meter is set, without the handlers' part."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.protocols.policies import ProtocolWrapper

from pylogd.base.clock import timed
from pylogd.broker.net.work_meter import WorkMeter


class Transport:
    """A transport whose steps take half a second to read and a quarter to write."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def doRead(self) -> str:
        self.case.now += 0.5
        self.case.read()
        return "why"

    def doWrite(self) -> None:
        self.case.now += 0.25


class Case:
    def __init__(self) -> None:
        self.now = self.handled = 0.0
        self.recorded: list[tuple[Any, float]] = []
        self.read: Any = lambda: None
        self.meter = WorkMeter(lambda: self.now, lambda: self.handled, lambda *found: self.recorded.append(found))
        self.transport: Any = Transport(self)


class Connection:
    def __init__(self, transport: Any) -> None:
        self.transport = transport


def test_reading_and_writing_are_measured_until_the_connection_is_removed() -> None:
    case = Case()
    connection = Connection(case.transport)
    case.meter.add(connection)
    case.meter.add(connection)
    assert case.transport.doRead() == "why"
    assert case.transport.doWrite() is None
    assert case.recorded == [(connection, 0.5), (connection, 0.25)]
    case.meter.remove(connection)
    case.meter.remove(connection)
    case.transport.doRead()
    assert len(case.recorded) == 2
    assert "doRead" not in vars(case.transport), "nothing is left of it"


def test_the_time_of_handlers_is_left_out() -> None:
    case = Case()

    def handle() -> None:
        case.now += 2
        case.handled += 2

    case.read = handle
    case.meter.add(Connection(case.transport))
    case.transport.doRead()
    assert [seconds for _, seconds in case.recorded] == [0.5]


def test_work_that_fails_counts_too() -> None:
    case = Case()

    def fail() -> None:
        raise RuntimeError("the protocol's own fault")

    case.read = fail
    case.meter.add(Connection(case.transport))
    with pytest.raises(RuntimeError):
        case.transport.doRead()
    assert [seconds for _, seconds in case.recorded] == [0.5]


def test_what_a_thread_reads_ahead_counts_with_the_next_step() -> None:
    case = Case()
    begun: list[Any] = []

    def read_ahead() -> None:
        case.now += 3

    case.read = lambda: begun.append(timed(read_ahead))
    case.meter.add(Connection(case.transport))
    case.transport.doRead()
    begun[0]()
    case.transport.doWrite()
    assert [seconds for _, seconds in case.recorded] == [0.5, 3.25]


def test_behind_tls_it_is_the_socket_that_counts() -> None:
    case = Case()
    wrapper: Any = ProtocolWrapper.__new__(ProtocolWrapper)
    wrapper.transport = case.transport
    connection = Connection(wrapper)
    case.meter.add(connection)
    case.transport.doRead()
    assert case.recorded == [(connection, 0.5)]


def test_a_connection_that_is_gone_is_not_measured() -> None:
    case = Case()
    case.meter.add(Connection(None))
    case.meter.remove(Connection(None))


def test_without_work_that_is_measured_a_function_stays_as_it_is() -> None:
    assert timed(len) is len
