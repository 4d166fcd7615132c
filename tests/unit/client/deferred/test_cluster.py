"""The Twisted cluster and admin client: only what differs from the other faces, which share the decisions."""

from __future__ import annotations

from typing import Any

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.client import BrokerUnavailable, Closed, KafkaError, RequestTimedOut, TopicPartition, UnknownTopic
from pylogd.client.core.admin.offsets import LATEST
from pylogd.client.deferred import Admin, Cluster
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.describe_configs import DescribeConfigsResponse
from pylogd.wire.messages.incremental_alter_configs import IncrementalAlterConfigsResponse
from pylogd.wire.messages.metadata import MetadataResponse
from tests.fakes import broker as fake
from tests.fakes.memory_broker import MemoryBroker, MemoryReactor


@pytest.fixture
def reactor() -> MemoryReactor:
    return MemoryReactor()


@pytest.fixture
def server(reactor: MemoryReactor) -> MemoryBroker:
    return MemoryBroker(reactor)


def test_topics_and_offsets(reactor: MemoryReactor, server: MemoryBroker) -> None:
    admin = Admin(server.address, reactor=reactor)
    assert [topic.name for topic in reactor.result(admin.list_topics())] == ["t"]
    assert reactor.result(admin.describe_topic("t")).partitions[0].leader == 1
    server.ends[0] = 7
    place = TopicPartition("t", 0)
    assert reactor.result(admin.offsets({place: LATEST}))[place].offset == 7
    with pytest.raises(UnknownTopic):
        reactor.result(admin.describe_topic("missing"))
    admin.close()
    with pytest.raises(Closed):
        reactor.result(admin.list_topics())


def test_several_who_need_a_connection_share_one(reactor: MemoryReactor, server: MemoryBroker) -> None:
    admin = Admin(server.address, reactor=reactor)
    asked = [admin.list_topics() for _ in range(5)]
    asked[0].cancel()
    asked[0].addErrback(lambda _: None)
    for deferred in asked[1:]:
        assert reactor.result(deferred)
    assert server.connections == 1


@pytest.mark.parametrize("act", [fake.close, fake.garbage, fake.cut])
def test_retriable_errors_are_retried(reactor: MemoryReactor, server: MemoryBroker, act: fake.Misbehaviour) -> None:
    server.on(ApiKey.METADATA, act, act)
    assert reactor.result(Admin(server.address, reactor=reactor).list_topics())
    assert server.connections == 3


def test_retries_end_with_an_error(reactor: MemoryReactor, server: MemoryBroker) -> None:
    server.on(ApiKey.METADATA, *[fake.silence] * 10)
    with pytest.raises(RequestTimedOut):
        reactor.result(Admin(server.address, request_timeout=2.0, retry_timeout=5.0, reactor=reactor).list_topics(), 20)
    server.up = False
    with pytest.raises(BrokerUnavailable, match="can't connect"):
        reactor.result(Admin("192.0.2.1,192.0.2.9", retry_timeout=3.0, reactor=reactor).list_topics(), 20)


def test_errors_that_are_not_retriable(reactor: MemoryReactor, server: MemoryBroker) -> None:
    server.on(ApiKey.METADATA, lambda _: MetadataResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
        reactor.result(Admin(server.address, reactor=reactor).list_topics())
    assert len(server.asked(ApiKey.METADATA)) == 1


def test_appending_to_a_list_is_not_sent_twice(reactor: MemoryReactor, server: MemoryBroker) -> None:
    admin = Admin(server.address, reactor=reactor)
    server.on(ApiKey.INCREMENTAL_ALTER_CONFIGS, fake.close)
    with pytest.raises(BrokerUnavailable):
        reactor.result(admin.alter_configs("topic", "t", {}, append={"cleanup.policy": "compact"}))
    assert len(server.asked(ApiKey.INCREMENTAL_ALTER_CONFIGS)) == 1, "the answer was lost: it may be there already"
    server.on(ApiKey.INCREMENTAL_ALTER_CONFIGS, fake.close, lambda _: IncrementalAlterConfigsResponse())
    server.on(ApiKey.DESCRIBE_CONFIGS, lambda _: DescribeConfigsResponse())
    reactor.result(admin.alter_configs("topic", "t", {"retention.ms": "1"}))
    assert len(server.asked(ApiKey.INCREMENTAL_ALTER_CONFIGS)) == 3, "a value that is set twice is the same"


def test_close_ends_requests_in_flight(reactor: MemoryReactor, server: MemoryBroker) -> None:
    cluster = Cluster(server.address, reactor=reactor)
    server.on(ApiKey.METADATA, fake.silence)
    first = Admin(cluster).list_topics()
    reactor.run(0.1)
    cluster.close()
    with pytest.raises((Closed, BrokerUnavailable)):
        reactor.result(first)
    opening = Cluster(server.address, reactor=reactor)
    second = Admin(opening).list_topics()
    opening.close()
    with pytest.raises(Closed):
        reactor.result(second)
    reactor.run(10)
    assert not reactor.getDelayedCalls()


def test_the_process_s_reactor_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = [object()]
    monkeypatch.setattr("pylogd.client.deferred.cluster.default_reactor", lambda: made[0])
    assert Cluster("h:1").reactor is made[0]
