"""The HTTP server of metrics: pages now and later, bodies, too many connections, clients that leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogd.web import pages as http
from pylogd.web.channel import BACKLOG, listen
from pylogd.web.pages import HttpServer, Reply

Later = Deferred[Reply]


class Transport(StringTransport):
    """Counts as closed once the server closes or aborts it."""

    def abortConnection(self) -> None:
        self.disconnecting = True


class Case:
    """A server, with pages that the test answers."""

    def __init__(self) -> None:
        self.reactor = MemoryReactorClock()
        self.asked: list[tuple[str, Later]] = []
        self.cancelled = 0
        pages = {"now": lambda _: Reply(b"body"), "later": self._later, "broken": self._broken}
        self.server = HttpServer(self.reactor, "tcp:0", pages)  # type: ignore[arg-type]
        started = Deferred.fromCoroutine(self.server.start())
        assert started.called
        self.factory: Any = self.reactor.tcpServers[0][1]

    def _later(self, accept: str) -> Later:
        def cancelled(_: Later) -> None:
            self.cancelled += 1

        self.asked.append((accept, Deferred(cancelled)))
        return self.asked[-1][1]

    def _broken(self, accept: str) -> Reply:
        raise RuntimeError("planted")

    def connect(self, host: str = "10.0.0.1") -> tuple[Any, Transport]:
        address = IPv4Address("TCP", host, 5)
        protocol = self.factory.buildProtocol(address)
        transport = Transport(peerAddress=address)
        if protocol is not None:
            protocol.makeConnection(transport)
        return protocol, transport

    def ask(self, request: bytes) -> tuple[Any, Transport]:
        protocol, transport = self.connect()
        protocol.dataReceived(request)
        return protocol, transport


@pytest.fixture
def case() -> Case:
    return Case()


@pytest.fixture
def failures() -> Iterator[list[Any]]:
    found: list[Any] = []

    @implementer(ILogObserver)
    def observe(event: LogEvent) -> None:
        if "log_failure" in event:
            found.append(event)

    globalLogPublisher.addObserver(observe)
    yield found
    globalLogPublisher.removeObserver(observe)


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET /{path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


def test_a_page(case: Case) -> None:
    _, transport = case.ask(get("now"))
    answer = transport.value()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"\r\n\r\nbody")
    assert b"Cache-Control: no-store" in answer
    _, transport = case.ask(b"HEAD /now HTTP/1.1\r\nHost: x\r\n\r\n")
    assert transport.value().endswith(b"\r\n\r\n") and b"Content-Length: 4" in transport.value()
    _, transport = case.ask(get("elsewhere"))
    assert transport.value().startswith(b"HTTP/1.1 404")
    _, transport = case.ask(b"DELETE /now HTTP/1.1\r\nHost: x\r\n\r\n")
    assert transport.value().startswith(b"HTTP/1.1 405")


def test_a_page_that_takes_a_while(case: Case) -> None:
    _, transport = case.ask(get("later", "Accept: application/openmetrics-text"))
    [(accept, answer)] = case.asked
    assert accept == "application/openmetrics-text" and not transport.value()
    answer.callback(Reply(b"done", status=503))
    assert transport.value().startswith(b"HTTP/1.1 503") and transport.value().endswith(b"done")


def test_a_client_that_leaves_is_not_waited_for(case: Case, failures: list[Any]) -> None:
    protocol, _ = case.ask(get("later"))
    protocol.connectionLost(_lost())
    assert case.cancelled == 1
    assert not failures


def test_an_error_is_logged_and_not_shown(case: Case, failures: list[Any]) -> None:
    _, transport = case.ask(get("broken"))
    assert transport.value().startswith(b"HTTP/1.1 500") and b"planted" not in transport.value()
    assert len(failures) == 1


@pytest.mark.parametrize("header", ["Content-Length: 1000000000000", "Transfer-Encoding: chunked"])
def test_a_body_is_refused_before_it_comes(case: Case, header: str) -> None:
    protocol, transport = case.ask(b"POST /now HTTP/1.1\r\nHost: x\r\n" + header.encode() + b"\r\n\r\n")
    assert transport.value().startswith(b"HTTP/1.1 413")
    assert transport.disconnecting
    protocol.dataReceived(b"5\r\nabcde\r\n" * 1000)
    assert transport.value().count(b"HTTP/1.1") == 1


def test_silent_connections_keep_no_health_check_out(case: Case) -> None:
    """Of the bounded number of connections, those of the address that has most give way, without a request first."""
    neighbour = case.connect("10.0.0.7")[1]
    silent = [case.connect("10.0.0.9")[1] for _ in range(http._MOST_CONNECTIONS)]
    assert [transport.disconnecting for transport in silent] == [True] + [False] * (len(silent) - 1)
    assert not neighbour.disconnecting
    protocol, transport = case.connect("10.0.0.9")
    protocol.dataReceived(b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n")
    assert transport.value().startswith(b"HTTP/1.1 200")


def test_a_request_that_is_being_answered_does_not_give_way_to_silent_connections(case: Case) -> None:
    _, busy = case.ask(b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n")
    for _ in range(2 * http._MOST_CONNECTIONS):
        case.connect()
    assert not busy.disconnecting


def test_a_request_has_a_minute(case: Case) -> None:
    """However regularly its bytes come."""
    protocol, transport = case.connect()
    for byte in b"GET /now HTTP/1.1\r\nX-Long: " + b"x" * 6:
        protocol.dataReceived(bytes([byte]))
        case.reactor.advance(2)
    assert transport.disconnecting


def _lost() -> Any:
    return Failure(ConnectionDone())


@pytest.mark.parametrize(("endpoint", "backlog"), [("tcp:0", BACKLOG), ("tcp:0:backlog=7", 7)])
def test_connections_wait_in_a_queue_that_a_rush_does_not_fill(endpoint: str, backlog: int) -> None:
    reactor = MemoryReactorClock()
    Deferred.fromCoroutine(listen(reactor, endpoint, Factory()))
    assert reactor.tcpServers[0][2] == backlog
