"""SASL between brokers, without sockets: a connection authenticates, and again before its session ends."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from pylogd.base.errors import AuthenticationFailed, BrokerUnavailable, ErrorCode
from pylogd.credentials.plain import PlainClient
from pylogd.link.client import BrokerConnection, ConnectionSecurity, connection_error
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.metadata import MetadataRequest, MetadataResponse
from pylogd.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from pylogd.wire.messages.sasl_handshake import SaslHandshakeResponse
from tests.fakes.peer import Peer


class Wired:
    """A connection that has negotiated versions and begun to authenticate."""

    def __init__(self, conversation: Any = None, in_thread: Any = maybeDeferred) -> None:
        self.clock = Clock()
        self.peer = Peer()
        self.connection = BrokerConnection(self.clock, "broker:9092")
        self.transport = self.peer.attach(self.clock, self.connection)
        self.lost: list[Exception] = []
        self.connection.on_lost(self.lost.append)
        self.start(self.connection.negotiate(10.0))
        self.peer.answer_versions()
        made = conversation or (lambda host: PlainClient("replicator", f"secret of {host}"))
        security = ConnectionSecurity(conversation=made, in_thread=in_thread)
        self.outcome = self.start(self.connection.authenticate(security, "broker", 10.0))

    def start(self, coroutine: Any) -> list[Any]:
        return self.results(Deferred.fromCoroutine(coroutine))

    def results(self, deferred: Deferred[Any]) -> list[Any]:
        found: list[Any] = []
        deferred.addBoth(lambda result: found.append(result.value if isinstance(result, Failure) else result))
        return found

    def ask(self) -> list[Any]:
        return self.results(self.connection.request(MetadataRequest()))

    def accept(self, lifetime_ms: int = 0) -> None:
        """Answer both requests of an authentication."""
        [handshake] = self.peer.requests
        assert handshake.request.mechanism == "PLAIN"
        self.peer.answer(SaslHandshakeResponse(0, ["PLAIN"]))
        [message] = self.peer.requests
        assert message.request.auth_bytes == b"\0replicator\0secret of broker"
        self.peer.answer(SaslAuthenticateResponse(0, None, b"", lifetime_ms))


def test_it_authenticates() -> None:
    wired = Wired()
    wired.accept()
    assert wired.outcome == [None]
    for _ in range(100):
        wired.clock.advance(1000)
        found = wired.ask()
        wired.peer.answer(MetadataResponse(cluster_id="c"))
        assert found[0].cluster_id == "c", "without a lifetime it authenticates once"


@pytest.mark.parametrize(
    ("responses", "text"),
    [
        ([SaslHandshakeResponse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["SCRAM-SHA-256"])], "it offers SCRAM-SHA-256"),
        ([SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE)], "does not expect SASL"),
        (
            [SaslHandshakeResponse(0), SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, "wrong user")],
            "wrong user .*check the credentials",
        ),
        ([SaslHandshakeResponse(0), SaslAuthenticateResponse(0, None, b"a challenge")], "challenge"),
    ],
)
def test_a_broker_that_refuses(responses: list[Any], text: str) -> None:
    wired = Wired()
    for response in responses:
        wired.peer.answer(response)
    [error] = wired.outcome
    assert isinstance(error, AuthenticationFailed)
    with pytest.raises(AuthenticationFailed, match=text):
        raise error


def test_requests_are_held_while_it_authenticates_again() -> None:
    wired = Wired()
    wired.accept(lifetime_ms=100_000)
    wired.clock.advance(84)
    first = wired.ask()
    wired.clock.advance(11.5)
    second, third = wired.ask(), wired.ask()
    assert [event.api_key for event in wired.peer.requests] == [ApiKey.METADATA, ApiKey.SASL_HANDSHAKE]
    wired.peer.answer(MetadataResponse(cluster_id="first"))
    wired.accept(lifetime_ms=100_000)
    for name in ("second", "third"):
        wired.peer.answer(MetadataResponse(cluster_id=name))
    assert [found[0].cluster_id for found in (first, second, third)] == ["first", "second", "third"]
    wired.clock.advance(84)
    wired.ask()
    assert [event.api_key for event in wired.peer.requests] == [ApiKey.METADATA], "the session is a new one"


def test_a_second_authentication_that_fails_ends_the_connection() -> None:
    wired = Wired()
    wired.accept(lifetime_ms=100_000)
    wired.clock.advance(96)
    found = wired.ask()
    wired.peer.answer(SaslHandshakeResponse(0))
    wired.peer.answer(SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED))
    assert [type(error) for error in (*found, *wired.lost)] == [AuthenticationFailed, AuthenticationFailed]
    assert wired.transport.aborted


def test_held_requests_end_with_the_connection() -> None:
    wired = Wired()
    wired.accept(lifetime_ms=100_000)
    wired.clock.advance(96)
    found = wired.ask()
    wired.connection.close()
    assert isinstance(found[0], BrokerUnavailable)
    assert isinstance(wired.ask()[0], BrokerUnavailable)


def test_what_a_mechanism_raises_is_a_failed_authentication() -> None:
    class Broken:
        mechanism = "PLAIN"

        def first(self) -> bytes:
            raise OSError("no ticket")

        def step(self, challenge: bytes) -> bytes | None:
            raise NotImplementedError

    wired = Wired(lambda host: Broken())
    wired.peer.answer(SaslHandshakeResponse(0))
    [error] = wired.outcome
    assert isinstance(error, AuthenticationFailed) and "no ticket" in str(error)


def test_a_token_that_does_not_come_is_not_waited_for() -> None:
    wired = Wired(in_thread=lambda _call: Deferred())
    wired.peer.answer(SaslHandshakeResponse(0))
    wired.clock.advance(9)
    assert not wired.outcome
    wired.clock.advance(2)
    [error] = wired.outcome
    assert isinstance(error, AuthenticationFailed) and "no credentials after 10 s" in str(error)


def test_errors_of_connections_are_told_apart() -> None:
    class Error(Exception):
        """As OpenSSL.SSL.Error."""

    Error.__module__ = "OpenSSL.SSL"
    found = connection_error("b:1: can't connect", Error([("SSL routines", "", "certificate verify failed")]))
    assert isinstance(found, AuthenticationFailed) and "certificate verify failed" in str(found)
    Error.__module__ = "service_identity.exceptions"
    assert "does not name this host" in str(connection_error("b:1", Error()))
    assert isinstance(connection_error("b:1", OSError(111, "refused")), BrokerUnavailable)
