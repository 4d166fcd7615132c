"""Metadata, leaders, and retries."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.client.blocking.cluster import Cluster
from pylogd.client.core.errors import BrokerUnavailable, Closed, UnknownTopic
from pylogd.client.core.model import TopicPartition
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.fakes import broker as fake
from tests.fakes.broker import TOPIC_ID, FakeBroker
from tests.fakes.clock import FakeClock


@pytest.fixture
def server() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=3) as server:
        yield server


@pytest.fixture
def cluster(server: FakeBroker) -> Iterator[Cluster]:
    with Cluster(server.address, clock=FakeClock()) as cluster:
        yield cluster


def test_metadata(cluster: Cluster, server: FakeBroker) -> None:
    topic = cluster.topic("t")
    assert (topic.name, topic.topic_id, len(topic.partitions)) == ("t", TOPIC_ID, 3)
    assert cluster.partitions("t") == [("t", 0), ("t", 1), ("t", 2)]
    assert cluster.leader(TopicPartition("t", 2)).leader == 1
    assert [broker.port for broker in cluster.brokers()] == [server.port]
    assert [topic.name for topic in cluster.topics()] == ["t"]
    assert cluster.cluster_id == "fake"
    assert not any(request.allow_auto_topic_creation for request in server.asked(ApiKey.METADATA))


def test_metadata_is_asked_once(cluster: Cluster, server: FakeBroker) -> None:
    for _ in range(3):
        cluster.topic("t")
    assert len(server.asked(ApiKey.METADATA)) == 1
    cluster.note(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    cluster.topic("t")
    assert len(server.asked(ApiKey.METADATA)) == 2


def test_a_topic_that_is_not_there_is_no_reason_to_wait(cluster: Cluster) -> None:
    with pytest.raises(UnknownTopic, match="no topic 'nosuch'"):
        cluster.topic("nosuch")
    assert isinstance(cluster.clock, FakeClock) and not cluster.clock.slept


def test_a_topic_that_shall_be_created_is_waited_for(server: FakeBroker) -> None:
    late = [server._metadata(MetadataRequest(topics=[MetadataRequestTopic(name="soon")])) for _ in range(2)]
    server.on(ApiKey.METADATA, *[lambda _, answer=answer: answer for answer in late])
    server.topic = "soon"
    clock = FakeClock()
    with Cluster(server.address, clock=clock, auto_create_topics=True) as cluster:
        assert cluster.topic("soon").name == "soon"
    assert len(clock.slept) == 2
    assert all(request.allow_auto_topic_creation for request in server.asked(ApiKey.METADATA))


def test_no_leader(cluster: Cluster, server: FakeBroker) -> None:
    server.leader_of[1] = -1
    with pytest.raises(KafkaError, match="LEADER_NOT_AVAILABLE"):
        cluster.leader(TopicPartition("t", 1))
    with pytest.raises(KafkaError, match="no partition t-9"):
        cluster.leader(TopicPartition("t", 9))


def test_retriable_errors_are_tried_again_with_growing_pauses(cluster: Cluster, server: FakeBroker) -> None:
    error = MetadataResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    server.on(ApiKey.METADATA, lambda _: error, fake.close, fake.garbage, lambda _: error)
    assert cluster.topic("t").name == "t"
    assert isinstance(cluster.clock, FakeClock)
    pauses = cluster.clock.slept
    assert len(pauses) == 4 and pauses[3] > pauses[0] * 4
    assert server.connections == 3


def test_other_errors_are_not(cluster: Cluster, server: FakeBroker) -> None:
    server.on(ApiKey.METADATA, lambda _: MetadataResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
        cluster.topic("t")
    assert isinstance(cluster.clock, FakeClock) and not cluster.clock.slept


def test_tries_end() -> None:
    clock = FakeClock()
    with socket.socket() as taken:  # by a caller that does not wait for the result
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        cluster = Cluster(address, clock=clock, retry_timeout=5)
        with pytest.raises(BrokerUnavailable, match="can't connect"):
            cluster.topic("t")
        assert 3 < sum(clock.slept) <= 5
        impatient = Cluster(address, clock=FakeClock(), bootstrap_timeout=0)
        with pytest.raises(BrokerUnavailable):
            impatient.topics()


def test_any_of_the_bootstrap_servers_will_do(server: FakeBroker) -> None:
    with Cluster(["127.0.0.1:1", server.address], clock=FakeClock()) as cluster:
        assert cluster.topic("t").name == "t"


def test_a_lost_connection_is_opened_again(cluster: Cluster, server: FakeBroker) -> None:
    cluster.brokers()
    cluster.request(MetadataRequest(), node_id=1)
    opened = server.connections
    server.drop()
    cluster.request(MetadataRequest(), node_id=1)
    assert server.connections == opened + 1
    with pytest.raises(BrokerUnavailable, match="broker 7"):
        cluster.request(MetadataRequest(), node_id=7, timeout=0)


def test_closed(cluster: Cluster) -> None:
    cluster.close()
    with pytest.raises(Closed):
        cluster.topic("t")


@pytest.mark.parametrize("servers", ["", " , ", "host:x"])
def test_bad_bootstrap_servers(servers: str) -> None:
    with pytest.raises(ValueError, match=r"bootstrap|HOST:PORT"):
        Cluster(servers)
