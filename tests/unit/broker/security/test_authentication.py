"""Connections of a SASL listener: what is served before authentication, how that ends, and re-authentication."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import ILogObserver, formatEvent, globalLogPublisher
from zope.interface import implementer

from pylogd.base.errors import CloseConnection, ErrorCode
from pylogd.base.limits.shares import FairWork
from pylogd.broker.api.authentication_gate import AuthenticationGate
from pylogd.broker.api.dispatch import Dispatcher
from pylogd.broker.security.authentication import (
    Authentication,
    AuthenticationLimits,
    AuthenticationState,
    Authenticator,
)
from pylogd.credentials.conversation import (
    AuthenticationFailed,
    Challenge,
    MechanismUnavailable,
    ServerConversation,
    Step,
    Success,
)
from pylogd.credentials.principal import USER, Principal
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.api_versions import ApiVersionsRequest
from pylogd.wire.messages.metadata import MetadataRequest, MetadataResponse
from pylogd.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from pylogd.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from pylogd.wire.session import NOT_ANSWERED, RequestReceived, ServerSession, UnsupportedRequest
from tests.fakes.metadata import result_of
from tests.fakes.parts import FakeConnection, Parts, decoded

ALICE = Principal(USER, "alice")
DELAY_MS = 100
NO_OUTPUT: Any = None


class Script:
    """A mechanism whose client decides what happens: the end of its message names the next step."""

    def __init__(self, name: str, parts: Parts) -> None:
        self.name = name
        self.parts = parts

    def start(self) -> ServerConversation:
        return ScriptedConversation(self.parts)


class ScriptedConversation:
    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def is_slow(self, message: bytes) -> bool:
        return message.startswith(b"slow ")

    def is_remembered(self, message: bytes) -> bool:
        return b"remembered" in message

    def step(self, message: bytes) -> Step:
        verb, _, name = message.decode().removeprefix("slow ").partition(" ")
        if verb == "more":
            return Challenge(b"and?")
        if verb == "refuse":
            raise AuthenticationFailed(f"{name} has the wrong password")
        if verb == "broken":
            raise MechanismUnavailable("the file is gone")
        if verb == "token":
            return Success(Principal(USER, name), b"bye", self.parts.now_ms() + 5000, by_token=True)
        if verb == "expired":
            return Success(Principal(USER, name), b"bye", self.parts.now_ms())
        return Success(Principal(USER, name), b"bye")


def outcome(answer: Any) -> Any:
    """Return the answer, which may have been given at once or be that of a Deferred."""
    return result_of(answer) if isinstance(answer, Deferred) else answer


class Client(FakeConnection):
    """A client's connection to a SASL listener, and the requests that it sends."""

    def __init__(self, gate: AuthenticationGate) -> None:
        super().__init__()
        self.authentication: Authentication | None = None
        self.context: Any = None
        self.gate = gate
        self.served = False
        self.finished = False

    def spoke(self) -> None:
        pass

    def authentication_succeeded(self, principal: Principal) -> None:
        assert not self.served, "told once"
        self.served, self.principal = True, principal

    def finish(self) -> None:
        self.finished = True

    def send(self, request: Any, version: int) -> Any:
        return self.gate.handle(self, RequestReceived(request.API_KEY, version, 1, "c", request))

    def handshake(self, mechanism: str = "A") -> SaslHandshakeResponse:
        response: SaslHandshakeResponse = outcome(self.send(SaslHandshakeRequest(mechanism), 1))
        return response

    def authenticate(self, message: str, version: int = 2) -> SaslAuthenticateResponse:
        response: SaslAuthenticateResponse = outcome(self.send(SaslAuthenticateRequest(message.encode()), version))
        return response

    def log_in(self, message: str = "be alice") -> SaslAuthenticateResponse:
        assert self.handshake() == SaslHandshakeResponse(0, ["A", "B"])
        response = self.authenticate(message)
        assert response.error_code == 0
        return response

    def ask(self) -> MetadataResponse:
        answer: MetadataResponse = decoded(self.send(MetadataRequest(topics=[]), 12), ApiKey.METADATA, 12)
        return answer


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path)
    yield made
    made.close()


def make_gate(parts: Parts, session_ms: int = 0, work: FairWork | None = None) -> AuthenticationGate:
    mechanisms = {name: Script(name, parts) for name in ("A", "B")}
    limits = AuthenticationLimits({"A": session_ms}, DELAY_MS)
    work = work or FairWork(parts.threads, 2, 100)
    authenticator = Authenticator(mechanisms, limits, parts.clock, work, parts.now_ms)

    async def make(_values: object) -> Authenticator:
        return authenticator

    return AuthenticationGate(Dispatcher(parts), authenticator, make)


@pytest.fixture
def captured() -> Iterator[list[str]]:
    """Return the lines that were logged."""
    lines: list[str] = []

    @implementer(ILogObserver)
    def observe(event: Any) -> None:
        lines.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)
    yield lines
    globalLogPublisher.removeObserver(observe)


@pytest.fixture
def client(parts: Parts) -> Client:
    return Client(make_gate(parts))


@pytest.fixture
def short(parts: Parts) -> Client:
    """Return a client whose session lasts ten seconds."""
    return Client(make_gate(parts, session_ms=10_000))


def counts(client: Client) -> tuple[int, int, int, int]:
    found = client.gate._authenticator.counts
    return found.succeeded, found.failed, found.renewed, found.expired


def refused(parts: Parts, client: Client, answer: Deferred[Any]) -> Any:
    """Return the response to a client that is refused, which comes after the delay and ends the connection."""
    parts.time.advance((DELAY_MS - 1) / 1000)
    assert not answer.called and not client.finished
    parts.time.advance(0.001)
    assert client.finished
    assert client.authentication is not None and client.authentication.refused
    with pytest.raises(CloseConnection):
        client.send(ApiVersionsRequest("x", "1"), 4)
    return result_of(answer)


def test_a_client_that_authenticates_is_served(client: Client) -> None:
    client.send(ApiVersionsRequest("test", "1"), 4)
    assert client.handshake() == SaslHandshakeResponse(0, ["A", "B"])
    assert client.authenticate("more") == SaslAuthenticateResponse(0, None, b"and?")
    assert not client.served
    assert client.authenticate("be alice") == SaslAuthenticateResponse(0, None, b"bye")
    assert client.principal == ALICE and client.served
    assert client.ask().brokers
    assert counts(client) == (1, 0, 0, 0)


EVERY_API = [key for key in ApiKey if key not in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)]


@pytest.mark.parametrize("conversing", [False, True])
@pytest.mark.parametrize("api_key", EVERY_API)
def test_nothing_else_is_served_before(client: Client, api_key: int, conversing: bool) -> None:
    if conversing:
        client.handshake()
    for event in (RequestReceived(api_key, 1, 1, "c", None), UnsupportedRequest(api_key, 99, 1, "c")):
        with pytest.raises(CloseConnection, match="not authenticated"):
            client.gate.handle(client, event)


def left(client: Client, frame: memoryview, session: ServerSession) -> bool:
    """Return whether the gate leaves requests that may be answered together, or repeat others, without asking."""
    gate, served = client.gate, Mock(spec_set=["handle_batch", "handle_repeated", "handle_repeated_batch"])
    with patch.object(gate, "_handler", served):
        found = (
            gate.handle_batch(client, frame, session, 1),
            gate.handle_repeated(client, bytes(frame), NO_OUTPUT),
            gate.handle_repeated_batch(client, bytes(frame), session),
        )
    return found == (NOT_ANSWERED, None, None) and not served.mock_calls


def test_nothing_is_answered_together_before(parts: Parts, client: Client) -> None:
    session = ServerSession(1 << 20, client.gate.versions)
    frame = memoryview(b"\0\0\0\x0c" + bytes(60))
    for step in (lambda: None, client.handshake):
        step()
        assert left(client, frame, session)
    client.authenticate("be alice")
    assert client.gate.handle_batch(client, frame, session, 1) is NOT_ANSWERED
    assert client.gate.handle_repeated(client, bytes(60), NO_OUTPUT) is None


def test_api_versions_are_not_answered_during_authentication(client: Client) -> None:
    client.handshake()
    with pytest.raises(CloseConnection):
        client.send(ApiVersionsRequest("test", "1"), 4)


def test_a_handshake_of_an_unknown_version_is_not_served(client: Client) -> None:
    with pytest.raises(CloseConnection, match="not served"):
        client.gate.handle(client, UnsupportedRequest(ApiKey.SASL_HANDSHAKE, 2, 1, "c"))


def test_a_wrong_password(parts: Parts, client: Client, captured: list[str]) -> None:
    client.handshake()
    answer = client.send(SaslAuthenticateRequest(b"refuse alice"), 2)
    response = refused(parts, client, answer)
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert response.error_message == "Authentication with A failed: invalid credentials."
    assert not client.served and client.principal != ALICE
    assert counts(client) == (0, 1, 0, 0)
    assert "alice has the wrong password" in captured[0] and "127.0.0.1" in captured[0]


def test_a_mechanism_that_can_not_work_now(parts: Parts, client: Client) -> None:
    client.handshake()
    response = refused(parts, client, client.send(SaslAuthenticateRequest(b"broken"), 2))
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "gone" not in response.error_message


def test_failures_are_counted_and_logged_up_to_a_rate(parts: Parts, captured: list[str]) -> None:
    gate = make_gate(parts)
    for _ in range(100):
        client = Client(gate)
        client.handshake()
        client.send(SaslAuthenticateRequest(b"refuse alice"), 2)
    parts.time.advance(10)
    assert counts(client) == (0, 100, 0, 0)
    assert len(captured) == 10
    client = Client(gate)
    client.handshake()
    refused(parts, client, client.send(SaslAuthenticateRequest(b"refuse alice"), 2))
    assert "90 more lines" in captured[10]
    assert len(captured) == 12 and "101 failures" in captured[11]


def test_a_client_that_leaves_does_not_wait_for_its_refusal(parts: Parts, client: Client) -> None:
    client.handshake()
    timers = set(parts.time.getDelayedCalls())
    answer = client.send(SaslAuthenticateRequest(b"refuse alice"), 2)
    assert len(set(parts.time.getDelayedCalls()) - timers) == 1
    answer.addErrback(lambda _: None)
    answer.cancel()
    assert set(parts.time.getDelayedCalls()) == timers


def test_an_unknown_mechanism(parts: Parts, client: Client) -> None:
    response = refused(parts, client, client.send(SaslHandshakeRequest("C"), 1))
    assert response == SaslHandshakeResponse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["A", "B"])


def test_credentials_before_a_mechanism(parts: Parts, client: Client) -> None:
    response = refused(parts, client, client.send(SaslAuthenticateRequest(b"be alice"), 2))
    assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_a_second_mechanism_in_the_midst_of_the_first(parts: Parts, client: Client) -> None:
    client.handshake()
    response = refused(parts, client, client.send(SaslHandshakeRequest("B"), 1))
    assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_slow_steps_run_in_threads(parts: Parts, client: Client) -> None:
    client.handshake()
    parts.threads.hold = True
    answer = client.send(SaslAuthenticateRequest(b"slow be alice"), 2)
    assert not answer.called and not client.served
    parts.threads.release()
    assert result_of(answer).error_code == 0 and client.principal == ALICE
    parts.threads.hold = True
    other = Client(client.gate)
    other.handshake()
    answer = other.send(SaslAuthenticateRequest(b"slow refuse alice"), 2)
    parts.threads.release()
    assert refused(parts, other, answer).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


# -- sessions


def test_a_session_without_an_end_can_not_be_renewed(parts: Parts, client: Client) -> None:
    assert client.log_in().session_lifetime_ms == 0
    parts.time.advance(1e6)
    assert client.handshake().error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.authenticate("be alice").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.ask().brokers and not client.finished


def test_a_session_ends(parts: Parts, short: Client) -> None:
    assert short.log_in().session_lifetime_ms == 10_000
    session = ServerSession(1 << 20, short.gate.versions)
    parts.time.advance(9.9)
    assert short.ask().brokers
    parts.time.advance(0.1)
    with pytest.raises(CloseConnection, match="User:alice has ended"):
        short.ask()
    # the next request may begin a new session: only `handle` knows what it is
    assert left(short, memoryview(bytes(60)), session)
    assert counts(short) == (1, 0, 0, 1)


@pytest.mark.parametrize("after", [5.0, 10.0, 60.0])
def test_a_session_is_renewed(parts: Parts, short: Client, after: float) -> None:
    """Also after its end, if no other request came in between."""
    short.log_in()
    parts.time.advance(after)
    assert short.log_in().session_lifetime_ms == 10_000
    parts.time.advance(9.9)
    assert short.ask().brokers
    assert counts(short) == (1, 0, 1, 0)


def test_a_session_is_not_renewed_all_the_time(parts: Parts, short: Client) -> None:
    short.log_in()
    parts.time.advance(0.9)
    assert short.handshake().error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert short.ask().brokers


def test_the_principal_cannot_change_at_re_authentication(parts: Parts, short: Client) -> None:
    short.log_in()
    parts.time.advance(5)
    short.handshake()
    response = refused(parts, short, short.send(SaslAuthenticateRequest(b"be bob"), 2))
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert short.principal == ALICE


def test_nobody_authenticates_again_by_another_mechanism(parts: Parts, short: Client) -> None:
    short.log_in()
    parts.time.advance(5)
    response = refused(parts, short, short.send(SaslHandshakeRequest("B"), 1))
    assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM


def test_a_failed_renewal_ends_the_connection(parts: Parts, short: Client) -> None:
    short.log_in()
    parts.time.advance(5)
    short.handshake()
    with pytest.raises(CloseConnection):
        short.ask()
    refused(parts, short, short.send(SaslAuthenticateRequest(b"refuse alice"), 2))


def test_a_session_lasts_no_longer_than_its_token(parts: Parts, client: Client, short: Client) -> None:
    assert short.log_in("token alice").session_lifetime_ms == 5000
    assert client.log_in("token alice").session_lifetime_ms == 5000
    assert client.authentication is not None and client.authentication.by_token
    parts.time.advance(5)
    for one in (client, short):
        with pytest.raises(CloseConnection, match="has ended"):
            one.ask()


def test_a_token_that_has_expired_is_refused(parts: Parts, client: Client) -> None:
    """A lifetime of 0 in the response would mean that there is no limit."""
    client.handshake()
    response = refused(parts, client, client.send(SaslAuthenticateRequest(b"expired alice"), 2))
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert not client.served


def test_clients_of_version_0_are_not_told_of_the_end(parts: Parts, short: Client) -> None:
    short.handshake()
    assert short.authenticate("be alice", version=0).error_code == 0
    parts.time.advance(10)
    with pytest.raises(CloseConnection):
        short.ask()


def test_without_sasl_there_is_nothing_to_authenticate(parts: Parts) -> None:
    assert parts.call(SaslHandshakeRequest("A"), 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert parts.call(SaslAuthenticateRequest(b""), 2).error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_the_state_of_a_new_connection(client: Client) -> None:
    client.send(ApiVersionsRequest("test", "1"), 4)
    assert client.authentication is not None
    assert client.authentication.state is AuthenticationState.WAITING


def test_remembered_credentials_do_not_wait_for_those_of_strangers(parts: Parts) -> None:
    """500 strangers at the same address, with wrong passwords, kept a user out for 14 s."""
    held: list[bytes] = []

    def in_thread(_function: Any, message: bytes) -> Deferred[Any]:
        held.append(message)
        return Deferred()

    gate = make_gate(parts, work=FairWork(in_thread, 4, 1000))

    def ask(message: bytes) -> None:
        client = Client(gate)
        client.handshake()
        client.send(SaslAuthenticateRequest(message), 2)

    for _ in range(500):
        ask(b"slow refuse eve")
    ask(b"slow remembered alice")
    assert held == [b"slow refuse eve"] * 3 + [b"slow remembered alice"]
