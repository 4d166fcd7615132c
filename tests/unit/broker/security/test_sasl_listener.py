"""A SASL listener in memory: the real connection, pipeline, gate, handlers and mechanisms, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.base.limits.shares import FairWork
from pylogd.broker.api.authentication_gate import guarded
from pylogd.broker.api.dispatch import Dispatcher
from pylogd.broker.net.server import BrokerFactory, BrokerProtocol, ListenerSecurity, ServerLimits
from pylogd.broker.security.principal_builder import Authentication
from pylogd.config import Settings
from pylogd.credentials.plain import PlainClient
from pylogd.credentials.principal import ANONYMOUS, USER, Principal
from pylogd.credentials.scram import SCRAM_SHA_256, ScramClient, make_credential
from pylogd.wire.messages.api_versions import ApiVersionsRequest
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from pylogd.wire.messages.sasl_handshake import SaslHandshakeRequest
from pylogd.wire.session import ClientSession
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts
from tests.fakes.transport import ManualReactor, PairTransport

LIMITS = ServerLimits(1 << 20, 10, 1 << 20, 1 << 16, -1, max_unauthenticated_bytes=1000, handshake_ms=15_000)


class Refusing:
    """A principal builder that refuses everybody."""

    def build(self, authentication: Authentication) -> Principal:
        raise PermissionError(authentication.name)


REFUSING = Refusing()


class Client:
    """A client, and the broker's side of its connection."""

    def __init__(self, factory: BrokerFactory, reactor: ManualReactor) -> None:
        self.protocol: BrokerProtocol = factory.buildProtocol(None)
        self.transport = PairTransport(self.protocol, reactor)
        self.protocol.makeConnection(self.transport)
        self.session = ClientSession(1 << 20, "test")

    def send(self, request: Any, version: int, chunk: int = 1 << 20) -> None:
        data = b"".join(map(bytes, self.session.encode_request(request, version)))  # type: ignore[arg-type]
        for at in range(0, len(data), chunk):
            self.transport.deliver(data[at : at + chunk])

    def read(self) -> Any:
        """Return the next response, None if there is none yet."""
        self.session.receive_data(self.transport.pump())
        event = self.session.next_event()
        return None if event is None else event.response

    def ask(self, request: Any, version: int, chunk: int = 1 << 20) -> Any:
        self.send(request, version, chunk)
        return self.read()

    def log_in(self, conversation: Any, chunk: int = 1 << 20) -> Any:
        assert self.ask(SaslHandshakeRequest(conversation.mechanism), 1, chunk).error_code == 0
        message = conversation.first()
        while message is not None:
            response = self.ask(SaslAuthenticateRequest(message), 2, chunk)
            if response is None or response.error_code:
                return response
            message = conversation.step(response.auth_bytes)
        return response

    @property
    def closed(self) -> bool:
        return bool(self.transport.disconnecting or self.transport.disconnected)


class Rig:
    """A broker with a SASL listener."""

    def __init__(self, directory: Path) -> None:
        self.parts = Parts(directory)
        self.reactor = ManualReactor()
        jaas = 'PlainLoginModule required user_alice="secret";'
        settings = Settings({"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256", "sasl.jaas.config": jaas})
        credential = make_credential(SCRAM_SHA_256, "secret")
        result_of(self.parts.security.scram_users.alter("alice", {"SCRAM-SHA-256": credential}))
        clock: Any = self.reactor
        gate = result_of(
            Deferred.fromCoroutine(
                guarded(
                    Dispatcher(self.parts),
                    settings.for_listener("CLIENTS"),
                    self.parts.security.scram_users,
                    clock,
                    FairWork(self.parts.threads, 2, 100),
                    self.parts.now_ms,
                )
            )
        )
        unused: Any = None
        self.factories = {
            builder: BrokerFactory(
                clock, gate, unused, LIMITS, "PLAINTEXT", ListenerSecurity("SASL_PLAINTEXT", sasl=True, builder=builder)
            )
            for builder in (None, REFUSING)
        }
        self.factory = self.factories[None]

    def connect(self) -> Client:
        return Client(self.factory, self.reactor)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.parts.close()


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
@pytest.mark.parametrize("make", [PlainClient, lambda user, password: ScramClient(SCRAM_SHA_256, user, password)])
def test_a_client_is_served_after_authentication(rig: Rig, make: Any, chunk: int) -> None:
    client = rig.connect()
    assert len(rig.factory.handshakes) == 1
    assert client.ask(ApiVersionsRequest("test", "1"), 4, chunk).error_code == 0
    assert client.protocol.principal == ANONYMOUS and not client.protocol.authenticated
    assert client.log_in(make("alice", "secret"), chunk).error_code == 0
    assert client.protocol.principal == Principal(USER, "alice") and client.protocol.authenticated
    assert not len(rig.factory.handshakes)
    assert client.ask(MetadataRequest(topics=[]), 12, chunk).brokers


def test_pipelined_requests_are_answered_in_order(rig: Rig) -> None:
    """A client may send everything at once; nothing is served before the request that authenticates it."""
    client = rig.connect()
    client.send(SaslHandshakeRequest("PLAIN"), 1)
    client.send(SaslAuthenticateRequest(b"\0alice\0secret"), 2)
    client.send(MetadataRequest(topics=[]), 12)
    assert client.read().mechanisms == ["PLAIN", "SCRAM-SHA-256"]
    assert client.read().error_code == 0
    assert client.read().brokers


def test_a_refused_client_is_answered_late_and_disconnected(rig: Rig) -> None:
    client = rig.connect()
    assert client.log_in(PlainClient("alice", "wrong")) is None
    client.send(MetadataRequest(topics=[]), 12)
    rig.reactor.advance(0.099)
    assert client.read() is None and not client.closed
    rig.reactor.advance(0.001)
    answer = client.read()
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.closed and client.read() is None
    assert client.protocol.principal == ANONYMOUS


def test_nothing_is_served_behind_a_principal_that_its_builder_refuses(rig: Rig) -> None:
    client = Client(rig.factories[REFUSING], rig.reactor)
    client.send(SaslHandshakeRequest("PLAIN"), 1)
    client.transport.pump()
    authenticate = client.session.encode_request(SaslAuthenticateRequest(b"\0alice\0secret"), 2)
    behind = client.session.encode_request(MetadataRequest(topics=[]), 12)
    client.transport.deliver(b"".join(map(bytes, [*authenticate, *behind])))  # type: ignore[arg-type]
    assert client.closed
    assert client.transport.pump() == b""
    assert client.protocol.principal == ANONYMOUS and not client.protocol.authenticated


def test_a_client_that_leaves_while_it_waits_leaves_nothing(rig: Rig) -> None:
    timers = len(rig.reactor.getDelayedCalls())
    client = rig.connect()
    client.log_in(PlainClient("alice", "wrong"))
    client.protocol.connectionLost()
    assert len(rig.reactor.getDelayedCalls()) == timers
    assert client.protocol.authentication is None
    assert not rig.factory.connections and not len(rig.factory.handshakes)


def test_requests_are_small_before_authentication_only(rig: Rig) -> None:
    client = rig.connect()
    client.send(SaslAuthenticateRequest(bytes(1001)), 2)
    assert client.closed
    client = rig.connect()
    client.log_in(PlainClient("alice", "secret"))
    assert client.ask(SaslAuthenticateRequest(bytes(100_000)), 2).error_code == ErrorCode.ILLEGAL_SASL_STATE


def bare(client: Client, message: bytes, chunk: int = 1 << 20) -> bytes | None:
    """Send a message in a bare frame; the broker's answer, None if there is none."""
    data = len(message).to_bytes(4, "big") + message
    for at in range(0, len(data), chunk):
        client.transport.deliver(data[at : at + chunk])
    answer = client.transport.pump()
    assert not answer or int.from_bytes(answer[:4], "big") == len(answer) - 4
    return answer[4:] if answer else None


@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
@pytest.mark.parametrize("make", [PlainClient, lambda user, password: ScramClient(SCRAM_SHA_256, user, password)])
def test_old_clients_send_bare_frames(rig: Rig, make: Any, chunk: int) -> None:
    client, conversation = rig.connect(), make("alice", "secret")
    assert client.ask(SaslHandshakeRequest(conversation.mechanism), 0).error_code == 0
    message = conversation.first()
    while message is not None:
        answer = bare(client, message, chunk)
        assert answer is not None
        message = conversation.step(answer)
    assert client.protocol.principal == Principal(USER, "alice") and client.protocol.tokens is None
    assert client.ask(MetadataRequest(topics=[]), 12, chunk).brokers
    again = client.ask(SaslHandshakeRequest(conversation.mechanism), 0)
    assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_a_request_right_behind_the_last_bare_frame_is_served(rig: Rig) -> None:
    client = rig.connect()
    client.ask(SaslHandshakeRequest("PLAIN"), 0)
    message = b"\0alice\0secret"
    request = client.session.encode_request(MetadataRequest(topics=[]), 12)
    client.transport.deliver(len(message).to_bytes(4, "big") + message + b"".join(map(bytes, request)))  # type: ignore[arg-type]
    answer = client.transport.pump()
    assert answer[:4] == bytes(4)
    client.session.receive_data(answer[4:])
    event = client.session.next_event()
    assert event is not None and event.response.brokers


def test_an_old_client_that_is_refused_hears_nothing(rig: Rig) -> None:
    client = rig.connect()
    client.ask(SaslHandshakeRequest("PLAIN"), 0)
    assert bare(client, b"\0alice\0wrong") is None and not client.closed
    client.send(MetadataRequest(topics=[]), 12)
    rig.reactor.advance(0.1)
    assert client.closed and client.transport.pump() == b""
    assert client.protocol.principal == ANONYMOUS


@pytest.mark.parametrize("data", [b"\x00\x00\x03\xe9", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff" + bytes(10)])
def test_bare_frames_are_small(rig: Rig, data: bytes) -> None:
    client = rig.connect()
    client.ask(SaslHandshakeRequest("PLAIN"), 0)
    client.transport.deliver(data)
    rig.reactor.advance(0)
    assert client.closed


def test_an_old_client_does_not_send_on_while_it_is_answered(rig: Rig) -> None:
    client = rig.connect()
    rig.parts.threads.hold = True
    client.ask(SaslHandshakeRequest("SCRAM-SHA-256"), 0)
    assert bare(client, b"n,,n=token,r=abc,tokenauth=true") is None
    client.transport.deliver(bytes(1004))
    assert not client.closed
    client.transport.deliver(b"x")
    rig.reactor.advance(0)
    assert client.closed
    rig.parts.threads.hold = False
    rig.parts.threads.release()
    assert client.protocol.tokens is None and "dataReceived" not in vars(client.protocol)


def test_an_old_client_of_a_builder_that_refuses(rig: Rig) -> None:
    client = Client(rig.factories[REFUSING], rig.reactor)
    client.ask(SaslHandshakeRequest("PLAIN"), 0)
    assert bare(client, b"\0alice\0secret") is None
    rig.reactor.advance(0)
    assert client.closed and not client.protocol.authenticated


def test_a_client_that_does_not_authenticate_in_time_is_disconnected(rig: Rig) -> None:
    client, other = rig.connect(), rig.connect()
    other.log_in(PlainClient("alice", "secret"))
    rig.reactor.advance(15.0)
    assert client.closed and not other.closed


def test_slow_steps_wait_for_a_thread_and_not_the_other_way_round(rig: Rig) -> None:
    client, other = rig.connect(), rig.connect()
    rig.parts.threads.hold = True
    assert client.ask(SaslHandshakeRequest("SCRAM-SHA-256"), 1).error_code == 0
    client.send(SaslAuthenticateRequest(b"n,,n=token,r=abc,tokenauth=true"), 2)
    assert client.read() is None
    assert other.log_in(PlainClient("alice", "secret")).error_code == 0
    rig.parts.threads.release()
    assert client.read().auth_bytes.startswith(b"r=abc")
