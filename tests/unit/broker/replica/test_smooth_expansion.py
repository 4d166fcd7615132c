"""Smooth expansion: when new replicas without the old records may join the in-sync set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.logger import ILogObserver, formatEvent, globalLogPublisher

from pylogd.base.errors import BrokerUnavailable, PylogdError
from pylogd.broker.metadata.errors import IneligibleReplica
from pylogd.broker.metadata.image import SmoothWait
from pylogd.broker.replica.smooth_expansion import LOOK_SECONDS, PRODUCER_SECONDS, Key, SmoothJoins
from pylogd.store.consumers import committed_offsets
from pylogd.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, batch

BEGIN = 10


class Connection:
    """A connection to this broker, without a network."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.closed = False

    def request(self, message: Any, *, version: int | None = None) -> Deferred[Any]:
        return maybeDeferred(self._parts.call, message, version)

    def close(self) -> None:
        self.closed = True


class Case:
    """Broker 3 joins the replicas of t-0, which broker 1 leads, and starts at the offset BEGIN."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        parts.create("t")
        for _ in range(BEGIN):
            parts.append("t", b"v")
        until = parts.now_ms() + 3_600_000
        self.partition = parts.set_state("t", replicas=(1, 3), adding=(3,), latest_until_ms=until)
        self.connections: list[Connection] = []
        self.reachable = True
        self.released: list[Key] = []
        self.waits: dict[Key, SmoothWait] = {}
        self.refusal: PylogdError | None = None
        self.joins = SmoothJoins(
            parts.partitions, parts.cluster, parts.topics, self._connect,
            partial(committed_offsets, parts.metadata.store), self._release, parts.clock,
            parts.now_ms,
        )  # fmt: skip
        self.joins.start()

    def _connect(self, _: int) -> Deferred[Any]:
        if not self.reachable:
            return fail(BrokerUnavailable("not now"))
        self.connections.append(Connection(self.parts))
        return succeed(self.connections[-1])

    def _release(self, waits: Mapping[Key, SmoothWait]) -> Deferred[Any]:
        self.released += waits
        self.waits = dict(waits)
        return succeed(dict.fromkeys(waits, self.refusal))

    def fetched(self, begin: int = BEGIN, epoch: int = 5) -> None:
        """Let the new replica fetch, which tells the leader where its log starts."""
        self.partition.follower_fetched(3, begin, begin, self.parts.time.seconds(), epoch)

    def produce(self, producer: int, sequence: int) -> None:
        """Append a batch of an idempotent producer."""
        data = batch(b"v", producer_id=producer, producer_epoch=0, base_sequence=sequence)
        self.parts.replicas.append(self.partition, data, False)

    def commit(self, offset: int) -> None:
        """Commit an offset of a group on the broker."""
        assert self.parts.call(FindCoordinatorRequest("g"), 3).error_code == 0
        topic = OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, offset)])
        answer = self.parts.call(OffsetCommitRequest("g", topics=[topic]), 8)
        assert answer.topics[0].partitions[0].error_code == 0

    def commit_in_zookeeper(self, offset: bytes) -> None:
        """Commit an offset of a group in ZooKeeper."""
        path = "/consumers/h/offsets/t/0"
        result_of(self.parts.metadata.store.ensure(path))
        result_of(self.parts.metadata.store.set(path, offset))

    def look(self) -> list[Key]:
        """Return the partitions that the next check releases; it has to close its connections."""
        self.released.clear()
        self.parts.time.advance(LOOK_SECONDS)
        assert all(connection.closed for connection in self.connections)
        return list(self.released)


@pytest.fixture
def case(parts: Parts) -> Iterator[Case]:
    made = Case(parts)
    yield made
    made.joins.stop()


def test_nobody_is_asked_before_the_new_replica_has_begun(case: Case) -> None:
    assert case.look() == []
    assert not case.connections
    case.fetched()
    assert case.look() == [("t", 0)]


def test_a_group_of_the_brokers_is_waited_for(case: Case) -> None:
    case.fetched()
    case.commit(BEGIN - 1)
    assert case.look() == []
    case.commit(BEGIN)
    assert case.look() == [("t", 0)]


def test_a_group_in_zookeeper_is_waited_for(case: Case) -> None:
    case.fetched()
    case.commit_in_zookeeper(b"9")
    assert case.look() == []
    case.commit_in_zookeeper(b"10")
    assert case.look() == [("t", 0)]


def test_an_offset_in_zookeeper_that_an_earlier_topic_of_the_name_left(parts: Parts) -> None:
    """It is no reason to wait, and no sign that the group has read."""
    path = "/consumers/h/offsets/t/0"
    result_of(parts.metadata.store.ensure(path))
    result_of(parts.metadata.store.set(path, b"9"))
    case = Case(parts)
    case.fetched()
    assert case.look() == [("t", 0)]
    case.joins.stop()


def test_a_wait_is_ended_for_the_registration_that_was_seen(case: Case) -> None:
    case.fetched(epoch=7)
    assert case.look() == [("t", 0)]
    assert case.waits["t", 0].epochs == {3: 7}


def test_a_wiped_replica_is_looked_at_again(case: Case) -> None:
    case.fetched(epoch=5)
    case.commit(BEGIN)
    case.parts.append("t", b"v")
    case.refusal = IneligibleReplica("broker 3 has registered again")
    assert case.look() == [("t", 0)]
    case.fetched(BEGIN + 1, epoch=6)
    assert case.look() == []  # the group has yet to read what the new log lacks
    case.refusal = None
    case.commit(BEGIN + 1)
    assert case.look() == [("t", 0)]
    assert case.waits["t", 0].epochs == {3: 6}


def test_a_producer_without_a_batch_on_the_new_replica_is_waited_for(case: Case) -> None:
    case.produce(producer=1, sequence=0)
    case.produce(producer=2, sequence=0)
    case.fetched(BEGIN + 2)
    assert case.look() == []
    case.produce(producer=1, sequence=1)
    assert case.look() == []
    case.produce(producer=2, sequence=1)
    assert case.look() == [("t", 0)]


def test_a_producer_that_writes_no_more_is_waited_for_as_long_as_it_may_send_again(case: Case) -> None:
    case.produce(producer=1, sequence=0)
    case.fetched(BEGIN + 1)
    looks = [case.look() for _ in range(int(PRODUCER_SECONDS / LOOK_SECONDS) + 1)]
    assert looks == [[]] * (len(looks) - 1) + [[("t", 0)]]


def test_the_leader_tells_which_producer_is_waited_for_and_until_when(case: Case) -> None:
    case.parts.smooth_joins = case.joins

    def awaited() -> dict[int, int]:
        answer = case.parts.call(DescribeProducersRequest([TopicRequest("t", [0])]), 0)
        return {one.producer_id: one.awaited_until_ms for one in answer.topics[0].partitions[0].active_producers}

    case.produce(producer=1, sequence=0)
    case.fetched(BEGIN + 1)
    case.produce(producer=2, sequence=0)
    assert awaited() == {1: -1, 2: -1}, "the new replica has not been seen yet"
    assert case.look() == []
    until = case.parts.now_ms() + int(PRODUCER_SECONDS * 1000)
    assert awaited() == {1: until, 2: -1}
    case.look()
    assert awaited() == {1: until, 2: -1}, "the time stays"
    case.produce(producer=1, sequence=1)
    assert awaited() == {1: -1, 2: -1}


def test_an_unreachable_coordinator_may_have_a_group_that_is_behind(case: Case) -> None:
    case.fetched()
    case.reachable = False
    assert case.look() == []
    case.reachable = True
    case.commit_in_zookeeper(b"what?")
    assert case.look() == []
    case.commit_in_zookeeper(b"10")
    assert case.look() == [("t", 0)]


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What is logged, as text."""
    lines: list[str] = []
    observer = cast(ILogObserver, lambda event: lines.append(formatEvent(event)))
    globalLogPublisher.addObserver(observer)
    yield lines
    globalLogPublisher.removeObserver(observer)


def late(logged: list[str]) -> list[str]:
    """Return what was said about waits that ended by time."""
    return [line for line in logged if "the wait has timed out" in line]


def test_groups_that_are_not_waited_for_are_named_when_the_time_is_over(case: Case, logged: list[str]) -> None:
    case.fetched()
    case.commit(BEGIN - 1)
    case.commit_in_zookeeper(b"4")
    assert case.look() == []
    case.parts.time.advance(3600)
    [line] = late(logged)
    assert line.startswith("Smooth expansion of t-0: the wait has timed out")
    assert "begin at offset 10" in line
    assert "g (at offset 9), h (at offset 4)." in line
    case.look()
    assert len(late(logged)) == 1  # once only


def test_a_time_out_that_no_group_notices_is_told_too(case: Case, logged: list[str]) -> None:
    case.fetched()
    case.commit(BEGIN - 1)
    case.look()
    case.commit(BEGIN)
    case.parts.time.advance(3600)
    assert late(logged) == ["Smooth expansion of t-0: the wait has timed out; no consumer group is behind"]


def test_groups_that_can_not_be_asked_at_the_time_out_are_named_later(case: Case, logged: list[str]) -> None:
    case.fetched()
    case.commit(BEGIN - 1)
    case.look()
    case.reachable = False
    case.parts.time.advance(3600)
    assert late(logged) == []
    case.reachable = True
    case.look()
    assert len(late(logged)) == 1


def test_a_wait_that_ended_is_not_reported_as_late(case: Case, logged: list[str]) -> None:
    case.fetched()
    case.commit(BEGIN)
    assert case.look() == [("t", 0)]
    case.parts.set_state("t", replicas=(1, 3), adding=(3,), latest_until_ms=0)
    case.parts.time.advance(3600)
    assert late(logged) == []


def test_a_reassignment_that_is_due_is_not_delayed(case: Case) -> None:
    case.fetched()
    case.parts.time.advance(3600)
    case.released.clear()
    case.connections.clear()
    assert case.look() == []
    assert not case.connections
