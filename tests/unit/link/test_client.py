"""A Twisted connection to a broker: pipelining, timeouts, versions, and how it ends; without socket and reactor."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from twisted.internet import reactor, tcp
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionLost, ConnectionRefusedError, DNSLookupError
from twisted.internet.protocol import Factory
from twisted.internet.ssl import optionsForClientTLS
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure

from pylogd.base.errors import (
    BrokerUnavailable,
    ErrorCode,
    InvalidReply,
    KafkaError,
    RequestTimedOut,
    UnsupportedByBroker,
)
from pylogd.link.client import BrokerConnection, ConnectionSecurity, connect
from pylogd.wire.exceptions import LocalProtocolError, RemoteProtocolError
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from pylogd.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from pylogd.wire.messages.metadata import MetadataRequest, MetadataResponse
from pylogd.wire.messages.produce import ProduceRequest
from tests.fakes.peer import Peer


def outcome(deferred: Deferred[Any]) -> list[Any]:
    """Return the result of a Deferred, or its exception, in a list that is empty before it fires."""
    results: list[Any] = []
    deferred.addBoth(lambda result: results.append(result.value if isinstance(result, Failure) else result))
    return results


class Wired:
    """A connection that has negotiated versions."""

    def __init__(self, versions: dict[int, tuple[int, int]] | None = None, **options: Any) -> None:
        self.clock = Clock()
        self.peer = Peer(versions)
        self.connection = BrokerConnection(self.clock, "broker:9092", **options)
        self.transport = self.peer.attach(self.clock, self.connection)
        self.lost: list[Exception] = []
        self.connection.on_lost(self.lost.append)
        self.negotiated = outcome(Deferred.fromCoroutine(self.connection.negotiate(10.0)))

    def ready(self) -> Wired:
        self.peer.answer_versions()
        assert self.negotiated == [None]
        return self

    def ask(self, **options: Any) -> list[Any]:
        return outcome(self.connection.request(MetadataRequest(), **options))


@pytest.fixture
def wired() -> Wired:
    return Wired().ready()


def test_requests_are_pipelined_and_answered_in_order(wired: Wired) -> None:
    first, second = wired.ask(), wired.ask()
    assert len(wired.peer.requests) == wired.connection.in_flight == 2
    wired.peer.answer(MetadataResponse(cluster_id="a"))
    assert first[0].cluster_id == "a"
    assert not second
    wired.peer.answer(MetadataResponse(cluster_id="b"), split=3)
    assert second[0].cluster_id == "b"
    assert wired.connection.in_flight == 0


class WithoutOptions(tcp.Connection):
    """A transport over a local pair of sockets, which have no options of TCP."""

    def setTcpNoDelay(self, enabled: bool) -> None: ...

    def setTcpKeepAlive(self, enabled: bool) -> None: ...


def test_a_request_leaves_at_once_and_those_behind_it_together() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        connection = BrokerConnection(Clock(), "broker:9092")
        connection.transport = transport = WithoutOptions(ours, connection, reactor)
        transport.connected = True
        connection.connectionMade()
        for _ in range(3):
            connection.request(MetadataRequest(), version=1)
        first = theirs.recv(1 << 16)
        assert len(first) == 4 + int.from_bytes(first[:4], "big")
        transport.doWrite()
        assert len(theirs.recv(1 << 16)) == 2 * len(first)
        connection.connectionLost()
        transport.stopWriting()


def test_a_callback_may_ask_again(wired: Wired) -> None:
    asked: list[Any] = []
    wired.connection.request(MetadataRequest()).addCallback(lambda _: asked.append(wired.ask()))
    wired.peer.answer(MetadataResponse())
    wired.peer.answer(MetadataResponse(cluster_id="again"))
    assert asked[0][0].cluster_id == "again"


def test_records_of_a_reply_are_views_of_its_frame(wired: Wired) -> None:
    records = bytes(range(256)) * 8
    found = outcome(wired.connection.request(FetchRequest(), version=4))
    response = FetchResponse(responses=[FetchableTopicResponse("t", partitions=[PartitionData(0, records=records)])])
    wired.peer.answer(response)
    view = found[0].responses[0].partitions[0].records
    assert isinstance(view, memoryview)
    assert view == records
    assert memoryview(view.obj).nbytes > len(records)  # it is a view of the received bytes


def test_versions_are_negotiated() -> None:
    wired = Wired({ApiKey.API_VERSIONS: (0, 4), ApiKey.METADATA: (0, 7), ApiKey.PRODUCE: (99, 100)}).ready()
    connection = wired.connection
    assert connection.versions[ApiKey.METADATA] == (0, 7)
    assert connection.version_for(MetadataRequest()) == 7
    assert connection.version_for(MetadataRequest(), highest=4) == 4
    wired.ask()
    assert wired.peer.requests[0].version == 7
    assert wired.peer.requests[0].client_id == "pylogd"
    for request in (ProduceRequest(), FetchRequest()):
        [error] = outcome(connection.request(request))
        assert isinstance(error, UnsupportedByBroker)
    assert not connection.closed


def test_an_old_broker_answers_api_versions_in_version_0() -> None:
    wired = Wired({ApiKey.API_VERSIONS: (0, 2), ApiKey.METADATA: (0, 1)})
    refused = ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, [ApiVersion(ApiKey.API_VERSIONS, 0, 2)])
    wired.peer.answer(refused)
    assert wired.peer.requests[0].version == 2
    assert wired.ready().connection.version_for(MetadataRequest()) == 1


@pytest.mark.parametrize("code", [ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_REQUEST])
def test_api_versions_that_fail(code: ErrorCode) -> None:
    wired = Wired()
    wired.peer.answer(ApiVersionsResponse(code))
    if code is ErrorCode.UNSUPPORTED_VERSION:  # asked once more, but not for ever
        wired.peer.answer(ApiVersionsResponse(code))
    [error] = wired.negotiated
    assert isinstance(error, KafkaError)
    assert error.code is code


def test_no_reply_in_time_ends_the_connection(wired: Wired) -> None:
    patient, hasty = wired.ask(timeout=60), wired.ask(timeout=5)
    wired.clock.advance(4.9)
    assert not hasty
    wired.clock.advance(0.2)
    for found in (patient, hasty):
        assert isinstance(found[0], RequestTimedOut)
    assert wired.transport.aborted
    assert wired.lost == [hasty[0]]
    assert isinstance(wired.ask()[0], RequestTimedOut)
    wired.clock.advance(100)
    assert not wired.clock.getDelayedCalls()


def test_a_timer_that_wakes_too_soon_sets_itself_again() -> None:
    wired = Wired(timeout=8.0).ready()
    wired.clock.advance(6)
    late = wired.ask()
    wired.clock.advance(6)  # later than the versions of ApiVersions
    assert not late
    wired.clock.advance(3)
    assert isinstance(late[0], RequestTimedOut)


def test_without_requests_nothing_times_out(wired: Wired) -> None:
    wired.clock.advance(1000)
    assert not wired.connection.closed
    assert not wired.clock.getDelayedCalls()


def test_an_unexpected_reply_is_ignored(wired: Wired) -> None:
    deferred = wired.connection.request(MetadataRequest())
    gone = outcome(deferred)
    after = wired.ask()
    deferred.cancel()
    assert isinstance(gone[0], CancelledError)
    wired.peer.answer(MetadataResponse())
    wired.peer.answer(MetadataResponse(cluster_id="b"))
    assert after[0].cluster_id == "b"


def test_no_reply_is_due_with_acks_0(wired: Wired) -> None:
    request = ProduceRequest(acks=0)
    assert outcome(wired.connection.request(request, expect_reply=False)) == [None]
    found = wired.ask()
    assert [event.api_key for event in wired.peer.requests] == [ApiKey.PRODUCE, ApiKey.METADATA]
    wired.peer.requests.pop(0)
    wired.peer.answer(MetadataResponse())
    assert isinstance(found[0], MetadataResponse)


def test_without_a_reply_it_waits_for_the_bytes_to_leave(wired: Wired) -> None:
    request, producer = ProduceRequest(acks=0), wired.transport.producer
    producer.pauseProducing()
    waiting = [outcome(wired.connection.request(request, expect_reply=False)) for _ in range(2)]
    assert waiting == [[], []]
    producer.resumeProducing()
    assert waiting == [[None], [None]]
    producer.pauseProducing()
    late = outcome(wired.connection.request(request, expect_reply=False, timeout=5))
    wired.clock.advance(5)
    assert isinstance(late[0], RequestTimedOut)


@pytest.mark.parametrize("reason", [None, ConnectionLost("reset")])
def test_a_lost_connection_fails_what_waits_with_the_cause(wired: Wired, reason: Exception | None) -> None:
    waiting = [wired.ask(), wired.ask()]
    wired.peer.hang_up(reason)
    for found in waiting:
        assert isinstance(found[0], BrokerUnavailable)
        assert "broker:9092" in str(found[0])
        assert found[0].__cause__ is reason
    assert wired.lost == [waiting[0][0]]
    late: list[Exception] = []
    wired.connection.on_lost(late.append)
    assert late == wired.lost
    assert not wired.clock.getDelayedCalls()


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\4\0\0\0\x63", b"\0\0\0\1x"])
def test_invalid_bytes_end_the_connection(wired: Wired, data: bytes) -> None:
    found = wired.ask()
    wired.peer.deliver(data)
    assert isinstance(found[0], InvalidReply)
    assert isinstance(found[0].__cause__, RemoteProtocolError)
    assert wired.transport.aborted
    assert wired.lost == found


def test_a_reply_over_the_limit_ends_the_connection_before_it_comes() -> None:
    wired = Wired(max_reply_bytes=10_000).ready()
    found = wired.ask()
    wired.peer.deliver((10_001).to_bytes(4, "big"))
    assert isinstance(found[0], InvalidReply)


def test_a_request_that_cannot_be_encoded_does_not_harm_the_connection(wired: Wired) -> None:
    [error] = outcome(wired.connection.request(MetadataRequest(topics=5)))  # type: ignore[arg-type]
    assert isinstance(error, LocalProtocolError)
    found = wired.ask()
    wired.peer.answer(MetadataResponse(cluster_id="well"))
    assert found[0].cluster_id == "well"


def test_close_sends_what_was_written_first(wired: Wired) -> None:
    found = wired.ask()
    wired.connection.close()
    assert isinstance(found[0], BrokerUnavailable)
    assert wired.transport.disconnecting
    assert not wired.transport.aborted
    wired.clock.advance(0)
    wired.connection.close()
    assert not wired.clock.getDelayedCalls()


def test_close_waits_a_bounded_time_for_a_peer_that_does_not_read(wired: Wired) -> None:
    wired.transport.loseConnection = lambda: None  # type: ignore[method-assign]
    wired.connection.close()
    wired.clock.advance(60)
    assert wired.transport.aborted


def test_replies_after_the_close_are_ignored(wired: Wired) -> None:
    wired.connection.request(MetadataRequest()).addCallback(lambda _: wired.connection.close())
    second = wired.ask()
    answers = [wired.peer.encode(event, MetadataResponse()) for event in wired.peer.requests]
    wired.peer.deliver(b"".join(answers))
    assert isinstance(second[0], BrokerUnavailable)


# Connecting


def accept(reactor: MemoryReactorClock, peer: Peer) -> Any:
    """Accept the one connection attempt."""
    *_, factory, _timeout, _bind = reactor.tcpClients[-1]
    protocol = factory.buildProtocol(None)
    peer.attach(reactor, protocol)
    return protocol


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1"])
def test_connect(host: str) -> None:
    reactor, peer = MemoryReactorClock(), Peer()
    found = outcome(connect(reactor, host, 9092, client_id="me", timeout=3))
    assert reactor.tcpClients[0][:2] == (host, 9092)
    accept(reactor, peer)
    assert not found
    assert peer.requests[0].client_id == "me"
    peer.answer_versions()
    assert isinstance(found[0], BrokerConnection)
    assert found[0].address == ("192.0.2.1:9092" if host[0] == "1" else "[2001:db8::1]:9092")


def test_connect_refused() -> None:
    reactor = MemoryReactorClock()
    found = outcome(connect(reactor, "192.0.2.1", 9092))
    reactor.tcpClients[0][2].clientConnectionFailed(None, Failure(ConnectionRefusedError()))  # type: ignore[arg-type]
    assert isinstance(found[0], BrokerUnavailable)
    assert "can't connect" in str(found[0])
    assert isinstance(found[0].__cause__, ConnectionRefusedError)


def test_connect_to_a_broker_that_says_nothing() -> None:
    reactor, peer = MemoryReactorClock(), Peer()
    found = outcome(connect(reactor, "192.0.2.1", 9092, timeout=3))
    accept(reactor, peer)
    reactor.advance(3)
    assert isinstance(found[0], RequestTimedOut)
    assert peer.transport.aborted


def test_connect_to_a_broker_that_hangs_up() -> None:
    reactor, peer = MemoryReactorClock(), Peer()
    found = outcome(connect(reactor, "192.0.2.1", 9092))
    accept(reactor, peer)
    peer.hang_up()
    assert isinstance(found[0], BrokerUnavailable)


def test_a_connect_may_be_cancelled_before_anything_came() -> None:
    reactor = MemoryReactorClock()
    deferred = connect(reactor, "192.0.2.1", 9092)
    found = outcome(deferred)
    deferred.cancel()
    assert isinstance(found[0], CancelledError)


def test_a_connect_that_is_cancelled_leaves_nothing_behind() -> None:
    reactor, peer = MemoryReactorClock(), Peer()
    deferred = connect(reactor, "192.0.2.1", 9092)
    found = outcome(deferred)
    accept(reactor, peer)
    deferred.cancel()
    assert isinstance(found[0], CancelledError)
    reactor.advance(0)
    assert not peer.transport.connected
    assert not reactor.getDelayedCalls()


def test_an_unknown_name() -> None:
    class Endpoint:
        def connect(self, factory: Factory) -> Any:
            deferred: Deferred[Any] = Deferred()
            deferred.errback(DNSLookupError("no such host"))
            return deferred

    reactor = MemoryReactorClock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pylogd.link.client.HostnameEndpoint", lambda *_: Endpoint())
        found = outcome(connect(reactor, "nowhere.example", 9092))
    assert isinstance(found[0], BrokerUnavailable)
    assert "no such host" in str(found[0])


def test_tls_wraps_the_endpoint() -> None:
    hosts: list[str] = []

    def options(host: str) -> Any:
        hosts.append(host)
        return optionsForClientTLS(host)

    reactor = MemoryReactorClock()
    outcome(connect(reactor, "192.0.2.1", 9093, security=ConnectionSecurity(tls=options)))
    assert hosts == ["192.0.2.1"]
    [(host, port, *rest)] = reactor.tcpClients
    assert (host, port) == ("192.0.2.1", 9093)
    factory: Any = rest[0]
    assert isinstance(factory._wrappedFactory, TLSMemoryBIOFactory)
