"""What strangers try on a SASL listener, and sessions that end, while others are served."""

from __future__ import annotations

import re
import time
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from pylogd.base.errors import ErrorCode
from pylogd.credentials.oauthbearer import OAuthBearerClient
from pylogd.credentials.plain import PlainClient
from pylogd.credentials.scram import SCRAM_SHA_512, ScramClient
from pylogd.wire.messages.api_versions import ApiVersionsRequest
from pylogd.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from pylogd.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.integration.conftest import StartBroker
from tests.integration.test_sasl import SECONDS, SaslBroker, round_trip, token
from tests.rawclient import ConnectionClosed, RawClient

ATTEMPTS = 200


@pytest.fixture
def broker(start_broker: StartBroker) -> SaslBroker:
    made = SaslBroker(start_broker)
    made.add("alice", "secret")
    return made


def authenticate(client: RawClient, conversation: Any) -> Any:
    """Authenticate; the last response."""
    assert client.request(SaslHandshakeRequest(conversation.mechanism), 1).error_code == 0
    message = conversation.first()
    while True:
        response = client.request(SaslAuthenticateRequest(message), 2)
        if response.error_code:
            return response
        message = conversation.step(response.auth_bytes)
        if message is None:
            return response


def guesses() -> Iterator[Any]:
    """Credentials that are wrong, of all mechanisms."""
    for number in range(ATTEMPTS):
        user = ("alice", "nobody")[number % 2]
        yield (
            PlainClient(user, f"guess {number}"),
            ScramClient(SCRAM_SHA_512, user, f"guess {number}"),
            OAuthBearerClient("e30.e30."),
        )[number % 3]


def test_wrong_passwords_in_a_loop(broker: SaslBroker) -> None:
    """Each attempt is refused and its connection closed; others are served meanwhile, and the log stays short."""
    producer = Producer(broker.settings("SCRAM-SHA-512"))
    delivered: list[Any] = []
    for conversation in guesses():
        with RawClient(broker.address) as client:
            response = authenticate(client, conversation)
            assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert response.error_message.endswith("failed: invalid credentials.")
            with pytest.raises((ConnectionClosed, ConnectionError)):
                client.request(ApiVersionsRequest("x", "1"), 4)
        producer.produce("t", b"value", callback=lambda error, _message: delivered.append(error))
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    assert delivered == [None] * ATTEMPTS
    failures = re.findall(r"\((\d+) failures so far\)", broker.process.log())
    assert 10 <= len(failures) < ATTEMPTS
    assert "guess" not in broker.process.log()


@pytest.mark.parametrize(
    "request_",
    [MetadataRequest(topics=None), SaslAuthenticateRequest(b"\0alice\0secret"), SaslHandshakeRequest("NONE")],
    ids=["Metadata", "SaslAuthenticate", "SaslHandshake"],
)
def test_what_comes_before_authentication_closes_the_connection(broker: SaslBroker, request_: Any) -> None:
    with RawClient(broker.address) as client:
        client.request(ApiVersionsRequest("x", "1"), 4)
        with pytest.raises((ConnectionClosed, ConnectionError)):
            for _ in range(2):
                response = client.request(request_, 1)
                assert response.error_code != 0


def test_a_large_request_before_authentication(broker: SaslBroker) -> None:
    with RawClient(broker.address) as client:
        assert client.request(SaslHandshakeRequest("PLAIN"), 1).error_code == 0
        with pytest.raises((ConnectionClosed, ConnectionError)):
            client.request(SaslAuthenticateRequest(bytes(600_000)), 2)
    with RawClient(broker.address) as client:
        assert authenticate(client, PlainClient("alice", "secret")).error_code == 0
        topics = client.request(MetadataRequest(topics=[]), 12)
        assert topics.brokers
        large = client.request(SaslAuthenticateRequest(bytes(600_000)), 2)
        assert large.error_code == ErrorCode.ILLEGAL_SASL_STATE


def until_closed(client: RawClient, since: float, lifetime_ms: int) -> None:
    """Ask until the broker closes the connection, which must not be before the session's end."""
    with pytest.raises((ConnectionClosed, ConnectionError)):
        while time.monotonic() < since + SECONDS:
            client.request(MetadataRequest(topics=[]), 12)
    assert time.monotonic() - since >= lifetime_ms / 1000


def test_a_token_that_expires_while_connected(start_broker: StartBroker) -> None:
    broker = SaslBroker(start_broker, sasl_oauthbearer_clock_skew_seconds="0")
    with RawClient(broker.address) as client:
        since = time.monotonic()
        response = authenticate(client, OAuthBearerClient(token(lifetime=2)))
        assert 0 < response.session_lifetime_ms <= 2000
        assert client.request(MetadataRequest(topics=[]), 12).brokers
        until_closed(client, since, response.session_lifetime_ms)
    assert "the session of User:alice has ended" in broker.process.log()
    with RawClient(broker.address) as client:
        expired = authenticate(client, OAuthBearerClient(token(lifetime=-1)))
        assert expired.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_clients_that_authenticate_again_stay_connected(start_broker: StartBroker) -> None:
    """librdkafka does so by itself. A client that does not is cut off, one that becomes another is refused."""
    broker = SaslBroker(start_broker, connections_max_reauth_ms="2000")
    broker.add("alice", "secret")
    broker.add("bob", "secret")
    producer = Producer(broker.settings("SCRAM-SHA-512"))
    delivered: list[Any] = []
    with RawClient(broker.address) as idle, RawClient(broker.address) as other:
        since = time.monotonic()
        assert authenticate(idle, ScramClient(SCRAM_SHA_512, "alice", "secret")).session_lifetime_ms == 2000
        authenticate(other, ScramClient(SCRAM_SHA_512, "alice", "secret"))
        until_closed(idle, since, 2000)
        while time.monotonic() < since + 6:  # three sessions
            producer.produce("t", b"value", callback=lambda error, _message: delivered.append(error))
            producer.flush(SECONDS)
        refused = authenticate(other, ScramClient(SCRAM_SHA_512, "bob", "secret"))
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert producer.flush(SECONDS) == 0
    assert delivered and set(delivered) == {None}
    assert broker.process.log().count("has ended") == 1


def test_delegation_tokens(start_broker: StartBroker) -> None:
    broker = SaslBroker(start_broker, delegation_token_secret_key="key of all brokers")
    broker.add("alice", "secret")
    with RawClient(broker.address) as client:
        authenticate(client, ScramClient(SCRAM_SHA_512, "alice", "secret"))
        made = client.request(CreateDelegationTokenRequest(), 3)
        assert made.error_code == 0
    password = b64encode(made.hmac).decode()
    with RawClient(broker.address) as client:
        response = authenticate(client, ScramClient(SCRAM_SHA_512, made.token_id, password, token=True))
        assert response.error_code == 0 and 0 < response.session_lifetime_ms <= 86_400_000
        again = client.request(CreateDelegationTokenRequest(), 3)
        assert again.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    with RawClient(broker.address) as client:
        wrong = authenticate(client, ScramClient(SCRAM_SHA_512, made.token_id, password))
        assert wrong.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    log = broker.process.log()
    assert password not in log and "key of all" not in log
    round_trip(broker.settings("SCRAM-SHA-512"), "t")
