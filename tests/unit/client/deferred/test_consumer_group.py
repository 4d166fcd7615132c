"""The Twisted consumer in a group of the newer protocol, in simulated time, with a coordinator that fails on demand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.client import GroupProtocolUnsupported, KafkaError, Record, TopicPartition, UnsupportedByBroker
from pylogd.client.core.errors import CommitFailed
from pylogd.client.core.group.consumer_protocol import NO_GENERATION
from pylogd.client.deferred import Consumer
from pylogd.wire.messages import APIS, ApiKey
from tests.fakes import broker as fake
from tests.fakes.group_broker import fill, refuse, refuse_commit
from tests.fakes.memory_broker import MemoryGroupBroker, MemoryReactor

Make = Callable[..., Consumer]
BOTH = [TopicPartition("t", 0), TopicPartition("t", 1)]
HEARTBEAT = ApiKey.CONSUMER_GROUP_HEARTBEAT


@pytest.fixture
def reactor() -> MemoryReactor:
    return MemoryReactor()


@pytest.fixture
def server(reactor: MemoryReactor) -> Iterator[MemoryGroupBroker]:
    server = MemoryGroupBroker(reactor, partitions=2)
    for partition in range(2):
        fill(server, partition, 10)
    yield server
    server.end()


@pytest.fixture
def make(reactor: MemoryReactor, server: MemoryGroupBroker) -> Iterator[Make]:
    consumers = []

    def make(**options: Any) -> Consumer:
        options = {"group_id": "g", "group_protocol": "consumer", "request_timeout": 2.0, **options}
        consumers.append(Consumer(server.address, reactor=reactor, **options))
        return consumers[-1]

    yield make
    for consumer in consumers:
        reactor.result(consumer.close(), 60)


def read(reactor: MemoryReactor, consumers: list[Consumer], count: int) -> list[Record]:
    records: list[Record] = []
    for _ in range(600):
        for consumer in consumers:
            records += reactor.result(consumer.poll(0.1), 30)
        if len(records) >= count:
            break
    assert len(records) == count
    return records


def until(reactor: MemoryReactor, consumers: list[Consumer], condition: Callable[[], object]) -> None:
    for _ in range(600):
        if condition():
            return
        for consumer in consumers:
            reactor.result(consumer.poll(0.1), 30)
    raise AssertionError("it did not come about")


def committed(reactor: MemoryReactor, consumer: Consumer) -> list[int | None]:
    found = reactor.result(consumer.committed(BOTH), 60)
    return [None if found[place] is None else found[place].offset for place in BOTH]


def test_two_members_share_and_only_what_moves_is_revoked(
    reactor: MemoryReactor, server: MemoryGroupBroker, make: Make
) -> None:
    told: list[tuple[str, list[TopicPartition]]] = []
    first = make()
    first.subscribe(
        "t", on_assign=lambda p: told.append(("assigned", p)), on_revoke=lambda p: told.append(("revoked", p))
    )
    read(reactor, [first], 20)
    assert told == [("assigned", BOTH)]
    second = make()
    second.subscribe("t")
    until(reactor, [first, second], lambda: len(first.assignment) == len(second.assignment) == 1)
    assert told[1:] == [("revoked", second.assignment)], "the other partition was read on from"
    assert sorted(first.assignment + second.assignment) == BOTH
    assert committed(reactor, second)[second.assignment[0].partition] == 10, "committed before it was given up"
    fill(server, 0, 5)
    fill(server, 1, 5)
    read(reactor, [first, second], 10)
    reactor.result(second.close(), 60)
    until(reactor, [first], lambda: len(first.assignment) == 2)
    assert not server.asked(ApiKey.JOIN_GROUP)


def test_it_confirms_a_revocation_after_the_listener_and_the_commit(
    reactor: MemoryReactor, server: MemoryGroupBroker, make: Make
) -> None:
    found: list[tuple[int, int]] = []

    def revoked(partitions: list[TopicPartition]) -> None:
        owners = server.consumers.group("g").owners
        found.append((len(set(owners.values())), len(server.asked(ApiKey.OFFSET_COMMIT))))

    first, second = make(auto_commit_interval=3600.0), make()
    first.subscribe("t", on_revoke=revoked)
    read(reactor, [first], 20)
    assert not server.asked(ApiKey.OFFSET_COMMIT)
    second.subscribe("t")
    until(reactor, [first, second], lambda: len(first.assignment) == len(second.assignment) == 1)
    assert found == [(1, 1)], "the coordinator has the commit, and all partitions are the first one's"


@pytest.mark.parametrize("act", [fake.close, fake.garbage, fake.cut, fake.silence])
@pytest.mark.parametrize("api", [ApiKey.FIND_COORDINATOR, HEARTBEAT, ApiKey.OFFSET_FETCH, ApiKey.METADATA])
def test_it_becomes_a_member_despite_failing_requests(
    reactor: MemoryReactor, server: MemoryGroupBroker, make: Make, api: ApiKey, act: fake.Misbehaviour
) -> None:
    server.on(api, act)
    consumer = make(max_poll_interval=20.0)
    consumer.subscribe("t")
    read(reactor, [consumer], 20)
    server.on(HEARTBEAT, act)
    reactor.run(3)
    fill(server, 0, 3)
    read(reactor, [consumer], 3)
    reactor.result(consumer.commit())
    assert committed(reactor, consumer) == [13, 10]


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (ApiKey.FIND_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (HEARTBEAT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (HEARTBEAT, ErrorCode.NOT_COORDINATOR),
        (HEARTBEAT, ErrorCode.UNKNOWN_MEMBER_ID),
        (HEARTBEAT, ErrorCode.FENCED_MEMBER_EPOCH),
        (ApiKey.OFFSET_FETCH, ErrorCode.STALE_MEMBER_EPOCH),
        (ApiKey.OFFSET_FETCH, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_errors_of_a_coordinator(
    reactor: MemoryReactor, server: MemoryGroupBroker, make: Make, api: ApiKey, code: ErrorCode
) -> None:
    server.on(api, refuse(api, code))
    consumer = make()
    consumer.subscribe(re.compile("t|u"))
    read(reactor, [consumer], 20)
    reactor.result(consumer.commit())
    fill(server, 1, 2)
    found = read(reactor, [consumer], 2)
    assert {record.offset for record in found} == {10, 11}


def test_a_fenced_member_gives_up_what_it_lost_and_reads_on(
    reactor: MemoryReactor, server: MemoryGroupBroker, make: Make
) -> None:
    told: list[tuple[str, list[TopicPartition]]] = []
    consumer = make()
    consumer.subscribe(
        "t", on_assign=lambda p: told.append(("assigned", p)), on_lost=lambda p: told.append(("lost", p))
    )
    read(reactor, [consumer], 20)
    reactor.result(consumer.commit())
    [member_id] = server.consumers.group("g").members
    server.consumers.end_session("g", member_id)
    until(reactor, [consumer], lambda: len(told) == 3)
    assert told == [("assigned", BOTH), ("lost", BOTH), ("assigned", BOTH)]
    assert list(server.consumers.group("g").members) == [member_id], "a consumer keeps its id"
    fill(server, 0, 2)
    assert [record.offset for record in read(reactor, [consumer], 2)] == [10, 11]


def test_commits_are_in_the_name_of_the_member_and_by_topic_id(
    reactor: MemoryReactor, server: MemoryGroupBroker, make: Make
) -> None:
    consumer = make(auto_commit="off")
    consumer.subscribe("t")
    read(reactor, [consumer], 20)
    server.on(ApiKey.OFFSET_COMMIT, refuse_commit(ErrorCode.STALE_MEMBER_EPOCH))
    reactor.result(consumer.commit())
    assert committed(reactor, consumer) == [10, 10]
    identity = consumer.group_metadata()
    for request in server.asked(ApiKey.OFFSET_COMMIT):
        assert request.member_id == identity.member_id
        assert request.generation_id_or_member_epoch == identity.generation
        assert [topic.topic_id for topic in request.topics] == [server.topic_id]
    beats = server.asked(HEARTBEAT)
    assert beats[-1].subscribed_topic_names == ["t"], "everything was said again, to be told the epoch"
    for request in server.asked(ApiKey.OFFSET_FETCH):
        [group] = request.groups
        assert (group.member_id, group.member_epoch) == (identity.member_id, identity.generation)
        assert [topic.topic_id for topic in group.topics or ()] == [server.topic_id]


def test_a_broker_without_topic_ids_is_asked_by_name(reactor: MemoryReactor) -> None:
    versions = {key: (api.min_version, api.max_version) for key, api in APIS.items()}
    for api, highest in ((ApiKey.OFFSET_COMMIT, 9), (ApiKey.OFFSET_FETCH, 9), (HEARTBEAT, 0)):
        versions[api] = versions[api][0], highest
    server = MemoryGroupBroker(reactor, partitions=2, versions=versions)
    fill(server, 0, 10)
    consumer = Consumer(server.address, reactor=reactor, group_id="g", group_protocol="consumer")
    consumer.subscribe("t")
    read(reactor, [consumer], 10)
    reactor.result(consumer.commit())
    assert committed(reactor, consumer) == [10, 0]
    for request in server.asked(ApiKey.OFFSET_COMMIT):
        assert [topic.name for topic in request.topics] == ["t"]
    consumer.subscribe(re.compile("t"))
    with pytest.raises(UnsupportedByBroker, match="knows no regular expressions: subscribe to topics by name"):
        until(reactor, [consumer], lambda: False)
    reactor.result(consumer.close(), 60)
    server.end()


def test_a_commit_of_a_former_member_fails(reactor: MemoryReactor, server: MemoryGroupBroker, make: Make) -> None:
    consumer = make(auto_commit="off")
    consumer.subscribe("t")
    read(reactor, [consumer], 20)
    server.on(ApiKey.OFFSET_COMMIT, refuse_commit(ErrorCode.UNKNOWN_MEMBER_ID))
    with pytest.raises(CommitFailed):
        reactor.result(consumer.commit())
    with pytest.raises(CommitFailed):
        consumer.group_metadata()
    read(reactor, [consumer], 20)
    assert consumer.group_metadata().generation != NO_GENERATION


def test_an_application_that_does_not_poll_loses_its_share(
    reactor: MemoryReactor, server: MemoryGroupBroker, make: Make
) -> None:
    lost: list[Any] = []
    consumer = make(max_poll_interval=5.0)
    consumer.subscribe("t", on_lost=lost.append)
    read(reactor, [consumer], 20)
    reactor.result(consumer.commit())
    reactor.run(10)
    assert server.asked(HEARTBEAT)[-1].member_epoch == -1
    fill(server, 0, 1)
    read(reactor, [consumer], 1)
    assert lost == [BOTH]


def test_a_static_member_comes_back_to_its_partitions(
    reactor: MemoryReactor, server: MemoryGroupBroker, make: Make
) -> None:
    first, other = make(group_instance_id="one"), make()
    first.subscribe("t")
    other.subscribe("t")
    until(reactor, [first, other], lambda: len(first.assignment) == len(other.assignment) == 1)
    had = first.assignment
    second = make(group_instance_id="one")
    second.subscribe("t")
    with pytest.raises(KafkaError, match=r"UNRELEASED_INSTANCE_ID.*stop it, or wait"):
        until(reactor, [second], lambda: False)
    reactor.result(first.close(), 60)
    assert server.asked(HEARTBEAT)[-1].member_epoch == -2
    until(reactor, [second, other], lambda: second.assignment == had)
    assert len(other.assignment) == 1


def test_unsubscribing_and_subscribing_again(reactor: MemoryReactor, server: MemoryGroupBroker, make: Make) -> None:
    consumer = make()
    consumer.subscribe("t")
    read(reactor, [consumer], 20)
    reactor.result(consumer.unsubscribe())
    assert consumer.assignment == []
    reactor.run(1)
    assert not server.consumers.group("g").members
    consumer.subscribe("t")
    fill(server, 0, 1)
    assert [record.offset for record in read(reactor, [consumer], 1)] == [10]


def test_a_cluster_without_the_protocol(reactor: MemoryReactor) -> None:
    versions = {key: (api.min_version, api.max_version) for key, api in APIS.items() if key != HEARTBEAT}
    server = MemoryGroupBroker(reactor, versions=versions)
    consumer = Consumer(server.address, reactor=reactor, group_id="g", group_protocol="consumer")
    consumer.subscribe("t")
    for _ in range(2):
        with pytest.raises(GroupProtocolUnsupported, match='use group_protocol="classic"'):
            until(reactor, [consumer], lambda: False)
    reactor.result(consumer.close(), 1)
    server.end()


def test_options_of_the_other_protocol_are_refused() -> None:
    for options in ({"session_timeout": 10.0}, {"heartbeat_interval": 3.0}, {"assignors": ["sticky"]}):
        with pytest.raises(ValueError, match="where the broker has it"):
            Consumer("localhost:1", group_id="g", group_protocol="consumer", **options)
    with pytest.raises(ValueError, match="needs group_protocol"):
        Consumer("localhost:1", group_id="g", group_remote_assignor="range")
    with pytest.raises(ValueError, match="classic or consumer"):
        Consumer("localhost:1", group_id="g", group_protocol="streams")
    with pytest.raises(ValueError, match="a broker as coordinator"):
        Consumer("localhost:1", group_id="g", group_protocol="consumer", coordinator="zookeeper", zookeeper="z")
