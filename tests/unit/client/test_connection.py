"""One connection against a broker that behaves, and one that doesn't."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from pylogd.client.blocking.connection import Connection
from pylogd.client.core.errors import (
    BrokerUnavailable,
    InvalidReply,
    RequestTimedOut,
    UnsupportedByBroker,
    is_retriable,
)
from pylogd.errors import ErrorCode, KafkaError
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.api_versions import ApiVersionsResponse
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.fakes import broker as fake
from tests.fakes.broker import FakeBroker


@pytest.fixture
def server() -> Iterator[FakeBroker]:
    with FakeBroker() as server:
        yield server


def connect(server: FakeBroker, **options: float) -> Connection:
    return Connection(server.host, server.port, **options)  # type: ignore[arg-type]


def test_request_and_reply(server: FakeBroker) -> None:
    connection = connect(server)
    assert connection.request(MetadataRequest()).cluster_id == "fake"
    assert connection.in_flight == 0
    connection.close()
    with pytest.raises(BrokerUnavailable, match="closed"):
        connection.request(MetadataRequest())


def test_replies_come_in_order_while_several_are_under_way(server: FakeBroker) -> None:
    connection = connect(server)
    replies = [connection.send(MetadataRequest()) for _ in range(20)]
    assert connection.in_flight <= 20
    assert connection.wait(replies[-1]).cluster_id == "fake"
    assert all(reply.done for reply in replies)


def test_versions_are_negotiated(server: FakeBroker) -> None:
    server.versions[ApiKey.METADATA] = (0, 7)
    connection = connect(server)
    assert connection.version_for(MetadataRequest()) == 7
    assert connection.version_for(MetadataRequest(), highest=4) == 4
    assert connection.request(MetadataRequest()).cluster_id == "fake"


def test_an_old_broker_answers_api_versions_in_version_0() -> None:
    with FakeBroker() as server:
        server.versions[ApiKey.API_VERSIONS] = (0, 2)
        connection = connect(server)
        assert connection.versions[ApiKey.API_VERSIONS] == (0, 2)


@pytest.mark.parametrize("offered", [None, (20, 30)])
def test_no_version_in_common(server: FakeBroker, offered: tuple[int, int] | None) -> None:
    if offered is None:
        del server.versions[ApiKey.METADATA]
    else:
        server.versions[ApiKey.METADATA] = offered
    connection = connect(server)
    with pytest.raises(UnsupportedByBroker, match="Metadata") as raised:
        connection.request(MetadataRequest())
    assert not is_retriable(raised.value)


def test_api_versions_that_fail(server: FakeBroker) -> None:
    server.on(ApiKey.API_VERSIONS, lambda _: ApiVersionsResponse(ErrorCode.INVALID_REQUEST))
    with pytest.raises(KafkaError, match="INVALID_REQUEST"):
        connect(server)


def test_nobody_listens() -> None:
    with socket.socket() as taken:  # by somebody who does not listen
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(BrokerUnavailable, match="Connection refused"):
            Connection("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize(
    ("act", "error"), [(fake.close, BrokerUnavailable), (fake.cut, BrokerUnavailable), (fake.garbage, InvalidReply)]
)
def test_a_reply_that_does_not_come(server: FakeBroker, act: fake.Misbehaviour, error: type[Exception]) -> None:
    connection = connect(server)
    server.on(ApiKey.METADATA, act)
    first = connection.send(MetadataRequest())
    second = connection.send(MetadataRequest())
    for reply in (first, second):
        with pytest.raises(error) as raised:
            connection.wait(reply)
        assert is_retriable(raised.value)
    assert connection.closed


def test_no_answer_in_time(server: FakeBroker) -> None:
    connection = connect(server)
    server.on(ApiKey.METADATA, fake.silence)
    with pytest.raises(RequestTimedOut):
        connection.request(MetadataRequest(), timeout=0.01)
    assert connection.closed, "what comes later would answer the wrong request"


def test_poll_never_raises_for_the_connection(server: FakeBroker) -> None:
    connection = connect(server)
    connection.poll()
    server.on(ApiKey.METADATA, fake.silence)
    reply = connection.send(MetadataRequest(), timeout=0.01)
    while not reply.done:
        connection.poll(0.01)
    assert isinstance(reply.error, RequestTimedOut)
    connection.poll()


def test_large_requests_do_not_need_large_buffers(server: FakeBroker) -> None:
    """More than the socket takes at once, in parts that are more than one gathered write takes."""
    connection = connect(server)
    batch = bytes(11) + b"\x31" + bytes(4) + b"\x02" + bytes(44) + bytes(200_000)
    data = [PartitionProduceData(0, batch) for _ in range(100)]
    reply = connection.send(ProduceRequest(acks=1, topic_data=[TopicProduceData("t", partition_data=data)]), version=9)
    answers = connection.wait(reply).responses[0].partition_responses
    assert len(answers) == 100


def test_without_a_reply_to_expect(server: FakeBroker) -> None:
    connection = connect(server)
    reply = connection.send(ProduceRequest(acks=0), version=9, expect_reply=False)
    assert reply.done and connection.wait(reply) is None
    assert connection.request(MetadataRequest()).cluster_id == "fake"
