"""A follower's fetch counts only on a connection that has proven to be that broker's."""

from __future__ import annotations

from typing import Any

import pytest

from pylogd import __version__
from pylogd.base.errors import ErrorCode
from pylogd.broker.api import HANDLERS
from pylogd.broker.api.context import RequestContext
from pylogd.broker.metadata.image import Broker, Endpoint
from pylogd.broker.metadata.layout import decode_broker, encode_broker
from pylogd.broker.security.peers import SOFTWARE_NAME, BrokerSecret, PeerClaim, Peers, read_claim
from pylogd.wire.messages.api_versions import ApiVersionsRequest
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.negotiation import Negotiation
from pylogd.wire.schema import response_codec
from tests.fakes.parts import FakeConnection, Parts

FOLLOWER = 2
ENDPOINTS = (Endpoint("PLAINTEXT", "localhost", 9093),)


@pytest.fixture
def secret(parts: Parts) -> BrokerSecret:
    """Return the secret of broker 2, a registered follower that lacks the only record."""
    secret = BrokerSecret()
    known = {FOLLOWER: Broker(FOLLOWER, ENDPOINTS, proof=secret.digest)}
    parts.security.peers = Peers(lambda: known)
    parts.create("t")
    parts.set_state("t", replicas=(1, FOLLOWER), isr=(1, FOLLOWER))
    parts.append("t", b"v")
    assert parts.partitions.by_name["t", 0].high_watermark == 0
    return secret


def greet(parts: Parts, name: str, version: str) -> FakeConnection:
    """Return a connection that began with ApiVersions."""
    connection = FakeConnection()
    request = ApiVersionsRequest(name, version)
    answer = HANDLERS[ApiVersionsRequest.API_KEY](RequestContext(parts, connection, 4, "x"), request)
    assert response_codec(ApiVersionsRequest.API_KEY, 4).decode(memoryview(answer)).error_code == 0
    return connection


def fetch(parts: Parts, connection: Any, version: int = 17) -> Any:
    """Fetch as broker 2, from the offset behind the record."""
    topic_id = parts.partitions.by_name["t", 0].topic_id
    wanted = [FetchPartition(0, parts.partitions.by_name["t", 0].leader_epoch, fetch_offset=1)]
    by_id = version >= 13
    request = FetchRequest(
        replica_id=-1 if version >= 15 else FOLLOWER,
        replica_state=ReplicaState(FOLLOWER, -1) if version >= 15 else ReplicaState(),
        topics=[FetchTopic("" if by_id else "t", topic_id if by_id else bytes(16), wanted)],
    )
    return HANDLERS[FetchRequest.API_KEY](RequestContext(parts, connection, version, "x"), request)


def high_watermark(parts: Parts) -> int:
    return parts.partitions.by_name["t", 0].high_watermark


def test_a_proven_broker_is_accepted(parts: Parts, secret: BrokerSecret) -> None:
    connection = greet(parts, SOFTWARE_NAME, secret.software_version(__version__, FOLLOWER))
    assert fetch(parts, connection).error_code == 0
    assert high_watermark(parts) == 1


def test_only_brokers_may_send_requests_with_any_number_of_elements(parts: Parts, secret: BrokerSecret) -> None:
    assert not greet(parts, SOFTWARE_NAME, secret.software_version(__version__, FOLLOWER)).bounded
    for name, version in (
        ("librdkafka", "2.16"),
        (SOFTWARE_NAME, BrokerSecret().software_version(__version__, FOLLOWER)),
        (SOFTWARE_NAME, secret.software_version(__version__, 3)),  # a broker that never registered
    ):
        assert greet(parts, name, version).bounded
    unproven = {FOLLOWER: Broker(FOLLOWER, ENDPOINTS)}  # a broker of an earlier release
    parts.security.peers = Peers(lambda: unproven)
    assert greet(parts, SOFTWARE_NAME, secret.software_version(__version__, FOLLOWER)).bounded


@pytest.mark.parametrize("version", [4, 9, 14, 15, 17])
def test_a_forged_fetch_commits_nothing(parts: Parts, secret: BrokerSecret, version: int) -> None:
    for connection in (
        FakeConnection(),
        greet(parts, "librdkafka", "2.16"),
        greet(parts, SOFTWARE_NAME, secret.digest),  # the secret does not match the registration
        greet(parts, SOFTWARE_NAME, f"{__version__}-{FOLLOWER}-{secret.digest}"),
        greet(parts, SOFTWARE_NAME, BrokerSecret().software_version(__version__, FOLLOWER)),
        greet(parts, SOFTWARE_NAME, secret.software_version(__version__, 3)),
        greet(parts, "pylogd", secret.software_version(__version__, FOLLOWER)),
    ):
        assert fetch(parts, connection, version).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert high_watermark(parts) == 0
    assert parts.partitions.by_name["t", 0].followers[FOLLOWER].log_end == -1


def test_the_end_that_is_not_committed_is_shown_to_the_broker_only(parts: Parts, secret: BrokerSecret) -> None:
    request = ListOffsetsRequest(FOLLOWER, 0, [ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=-1)])])
    found = []
    for connection in (greet(parts, SOFTWARE_NAME, secret.software_version("1", FOLLOWER)), FakeConnection()):
        answer = HANDLERS[ListOffsetsRequest.API_KEY](RequestContext(parts, connection, 9, "x"), request)
        found.append((answer.topics[0].partitions[0].error_code, answer.topics[0].partitions[0].offset))
    assert found == [(0, 1), (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, -1)]


def test_with_an_authorizer_it_needs_cluster_action_too(parts: Parts, secret: BrokerSecret) -> None:
    class Nothing:
        version = 0

        def authorize(self, *_: object) -> bool:
            return False

        authorize_any = authorize

    connection = greet(parts, SOFTWARE_NAME, secret.software_version("1", FOLLOWER))
    parts.authorizer = Nothing()
    assert fetch(parts, connection).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_broker_of_an_earlier_release_needs_no_proof() -> None:
    secret = BrokerSecret()
    known = {FOLLOWER: Broker(FOLLOWER, ENDPOINTS)}
    peers = Peers(lambda: known)
    assert peers.proven(None, FOLLOWER)
    known[FOLLOWER] = Broker(FOLLOWER, ENDPOINTS, proof=secret.digest)
    assert not peers.proven(None, FOLLOWER)
    assert peers.proven(read_claim(SOFTWARE_NAME, secret.software_version("1", FOLLOWER)), FOLLOWER)
    assert not peers.proven(PeerClaim(3, secret.digest), 3)  # a broker that never registered


@pytest.mark.parametrize("version", ["", "1", "1-2", "a-b-c", "1--c", f"1-{'9' * 11}-c", "1-²-c"])
def test_requests_that_name_no_broker(version: str) -> None:
    assert read_claim(SOFTWARE_NAME, version) is None


def test_the_secret_is_in_no_registration_or_repr() -> None:
    secret = BrokerSecret()
    hidden = secret.software_version("1", FOLLOWER).rpartition("-")[2]
    registered = encode_broker(Broker(FOLLOWER, ENDPOINTS, proof=secret.digest))
    assert hidden.encode() not in registered
    assert hidden not in repr(secret)
    assert decode_broker("/brokers/ids/2", registered).proof == secret.digest
    earlier = registered.replace(b'"proof"', b'"other"')
    assert decode_broker("/brokers/ids/2", earlier).proof is None


def test_the_first_request_of_a_connection_between_brokers_has_it() -> None:
    secret = BrokerSecret()
    software = SOFTWARE_NAME, secret.software_version(__version__, FOLLOWER)
    question, _ = Negotiation("b:1", software).question()
    claim = read_claim(question.client_software_name, question.client_software_version)
    assert claim == PeerClaim(FOLLOWER, secret.digest)
