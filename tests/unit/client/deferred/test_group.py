"""The Twisted consumer in a group, in simulated time, with a coordinator that fails on demand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from pylogd.base.errors import ErrorCode
from pylogd.client import Closed, KafkaError, Record, RequestTimedOut, TopicPartition
from pylogd.client.core.errors import CommitFailed
from pylogd.client.deferred import Cluster, Consumer
from pylogd.wire.messages import ApiKey
from tests.fakes import broker as fake
from tests.fakes.group_broker import fill, refuse, refuse_commit
from tests.fakes.memory_broker import MemoryGroupBroker, MemoryReactor

Make = Callable[..., Consumer]
BOTH = [TopicPartition("t", 0), TopicPartition("t", 1)]


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
        consumers.append(
            Consumer(server.address, reactor=reactor, **{"group_id": "g", "request_timeout": 2.0, **options})
        )
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


def committed(reactor: MemoryReactor, consumer: Consumer) -> list[int | None]:
    found = reactor.result(consumer.committed(BOTH), 60)
    return [None if found[place] is None else found[place].offset for place in BOTH]


def test_two_members_share(reactor: MemoryReactor, server: MemoryGroupBroker, make: Make) -> None:
    first = make()
    first.subscribe("t")
    read(reactor, [first], 20)
    assert first.assignment == BOTH
    second = make()
    second.subscribe("t")
    for _ in range(100):
        for consumer in (first, second):
            reactor.result(consumer.poll(0.1))
    assert sorted(first.assignment + second.assignment) == BOTH
    assert committed(reactor, second) == [10, 10]
    fill(server, 0, 5)
    fill(server, 1, 5)
    read(reactor, [first, second], 10)
    reactor.result(second.close(), 60)
    fill(server, 0, 5)
    fill(server, 1, 5)
    read(reactor, [first], 10)


def test_members_on_one_cluster_do_not_end_each_others_joins(reactor: MemoryReactor, server: MemoryGroupBroker) -> None:
    """JoinGroup is answered when all members have sent theirs, so each member needs a connection of its own."""
    cluster = Cluster(server.address, reactor=reactor)
    consumers = [Consumer(cluster, group_id="g") for _ in range(3)]
    for consumer in consumers:
        consumer.subscribe("t")
    for _ in range(100):
        for consumer in consumers:
            reactor.result(consumer.poll(0.1))
    assert sorted(place for consumer in consumers for place in consumer.assignment) == BOTH
    joins = [request for key, request in server.seen if key == ApiKey.JOIN_GROUP]
    assert len({request.member_id for request in joins} - {""}) == 3, "nobody had to become a member again"
    assert len(joins) < 12
    for consumer in consumers:
        reactor.result(consumer.close(), 60)
    cluster.close()


def test_consumers_of_one_cluster_do_not_wait_for_each_other(reactor: MemoryReactor, server: MemoryGroupBroker) -> None:
    """JoinGroup may take minutes, and a fetch half a second, during which its connection brings no other response."""
    cluster = Cluster(server.address, reactor=reactor)
    patient, quick = (Consumer(cluster, group_id=group, fetch_max_wait_ms=500) for group in ("patient", "quick"))
    server.on(ApiKey.JOIN_GROUP, fake.silence)
    patient.subscribe("t")
    reactor.result(patient.poll(0.1), 30)
    quick.subscribe("t")
    assert len(read(reactor, [quick], 20)) == 20
    reactor.run(30.0)
    assert [request.group_id for request in server.asked(ApiKey.JOIN_GROUP)].count("patient") == 1, "it was not cut"
    fetching = [link for link in cluster.network.links if link.purpose.startswith("fetch")]
    reader = Consumer(cluster)
    reactor.result(reader.assign([("t", 0)]))
    assert read(reactor, [reader], 10)
    more = [link for link in cluster.network.links if link.purpose.startswith("fetch")]
    assert len(more) == len(fetching) + 1
    for consumer in (patient, quick, reader):
        reactor.result(consumer.close(), 60)
    cluster.close()


@pytest.mark.parametrize("act", [fake.close, fake.garbage, fake.cut, fake.silence])
@pytest.mark.parametrize(
    "api", [ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.OFFSET_FETCH]
)
def test_it_becomes_a_member_despite_failing_requests(
    reactor: MemoryReactor, server: MemoryGroupBroker, make: Make, api: ApiKey, act: fake.Misbehaviour
) -> None:
    server.on(api, act)
    consumer = make(max_poll_interval=5.0)
    consumer.subscribe("t")
    read(reactor, [consumer], 20)
    reactor.run(3)
    fill(server, 0, 3)
    read(reactor, [consumer], 3)
    reactor.result(consumer.commit())
    assert committed(reactor, consumer) == [13, 10]


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (ApiKey.FIND_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ApiKey.JOIN_GROUP, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ApiKey.JOIN_GROUP, ErrorCode.UNKNOWN_MEMBER_ID),
        (ApiKey.SYNC_GROUP, ErrorCode.REBALANCE_IN_PROGRESS),
        (ApiKey.SYNC_GROUP, ErrorCode.NOT_COORDINATOR),
        (ApiKey.HEARTBEAT, ErrorCode.ILLEGAL_GENERATION),
        (ApiKey.HEARTBEAT, ErrorCode.NOT_COORDINATOR),
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
    reactor.run(3)
    fill(server, 1, 2)
    found = read(reactor, [consumer], 2)
    assert {record.offset for record in found} == {10, 11}


def test_a_coordinator_that_moves_while_offsets_are_looked_up(
    reactor: MemoryReactor, server: MemoryGroupBroker, make: Make
) -> None:
    server.on(ApiKey.OFFSET_FETCH, *[refuse(ApiKey.OFFSET_FETCH, ErrorCode.NOT_COORDINATOR)] * 3)
    assert committed(reactor, make()) == [None, None]


def test_commits_that_are_refused(reactor: MemoryReactor, server: MemoryGroupBroker, make: Make) -> None:
    consumer = make(auto_commit="off")
    reactor.result(consumer.assign({BOTH[0]: 4}))
    server.on(ApiKey.OFFSET_COMMIT, refuse_commit(ErrorCode.OFFSET_METADATA_TOO_LARGE))
    with pytest.raises(KafkaError, match="OFFSET_METADATA_TOO_LARGE"):
        reactor.result(consumer.commit({BOTH[0]: 4}))
    server.on(ApiKey.OFFSET_COMMIT, refuse_commit(ErrorCode.UNKNOWN_MEMBER_ID))
    with pytest.raises(CommitFailed):
        reactor.result(consumer.commit({BOTH[0]: 4}))
    server.on(
        ApiKey.OFFSET_COMMIT,
        refuse_commit(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        fake.close,
        refuse_commit(ErrorCode.NOT_COORDINATOR),
    )
    reactor.result(consumer.commit({BOTH[0]: 5}))
    assert committed(reactor, consumer) == [5, None]
    server.on(ApiKey.OFFSET_COMMIT, *[fake.silence] * 5)
    with pytest.raises(RequestTimedOut, match="was not answered in 1 s"):
        reactor.result(consumer.commit({BOTH[0]: 6}, timeout=1.0))


def test_an_application_that_does_not_poll_loses_its_share(
    reactor: MemoryReactor, server: MemoryGroupBroker, make: Make
) -> None:
    lost: list[Any] = []
    consumer = make(max_poll_interval=5.0)
    consumer.subscribe("t", on_lost=lost.append)
    read(reactor, [consumer], 20)
    reactor.result(consumer.commit())
    reactor.run(10)
    assert len(server.asked(ApiKey.LEAVE_GROUP)) == 1
    fill(server, 0, 1)
    read(reactor, [consumer], 1)
    assert lost == [BOTH]


def test_at_most_once(reactor: MemoryReactor, server: MemoryGroupBroker, make: Make) -> None:
    consumer = make(auto_commit="before", max_poll_records=4)
    consumer.subscribe("t")
    for _ in range(100):
        records = reactor.result(consumer.poll(0.1))
        if records:
            break
    [place] = {TopicPartition(record.topic, record.partition) for record in records}
    assert committed(reactor, consumer)[place.partition] == 4


def test_an_iteration_over_slow_records_stays_in_the_group_and_commits(
    reactor: MemoryReactor, server: MemoryGroupBroker, make: Make
) -> None:
    """Twenty records of 100 s each, where a member that does not poll for 300 s is removed."""
    consumer = make(max_poll_interval=300.0, auto_commit_interval=5.0)
    consumer.subscribe("t")
    seen: list[tuple[int, int]] = []

    async def work() -> None:
        async for record in consumer:
            seen.append((record.partition, record.offset))
            await deferLater(reactor, 100.0, lambda: None)
            if len(seen) == 15:
                break

    working = Deferred.fromCoroutine(work())
    for _ in range(40):
        reactor.run(50.0, step=0.5)
    assert working.called
    assert len(set(seen)) == 15, "nothing came twice"
    committed = reactor.result(consumer.committed(BOTH), 60)
    assert sum(found.offset for found in committed.values() if found is not None) >= 14
    assert len(server.asked(ApiKey.JOIN_GROUP)) <= 2, "it was never removed"


def test_a_rebalance_ends_an_iteration_early_and_nothing_is_lost(
    reactor: MemoryReactor, server: MemoryGroupBroker, make: Make
) -> None:
    first, second = make(auto_commit_interval=1.0), make()
    first.subscribe("t")
    seen: list[tuple[int, int]] = []

    async def work(consumer: Consumer) -> None:
        async for record in consumer:
            seen.append((record.partition, record.offset))
            await deferLater(reactor, 2.0, lambda: None)

    for consumer in (first, second):
        Deferred.fromCoroutine(work(consumer)).addErrback(lambda failure: failure.trap(Closed))
        reactor.run(5.0, step=0.05)
        second.subscribe("t")
    reactor.run(80.0, step=0.1)
    assert set(seen) == {(partition, offset) for partition in range(2) for offset in range(10)}
    assert len(seen) <= 22, "at most what was in hand when the group changed came twice"
    assert len(first.assignment) == len(second.assignment) == 1
