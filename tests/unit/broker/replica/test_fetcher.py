"""The replica fetcher: sessions, pauses, early ends of long polls, truncations, and partitions with errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.logger import capturedLogs

from pylogd.base.errors import BrokerUnavailable, ErrorCode
from pylogd.broker.replica.fetcher import FetcherConfig, ReplicaFetcher
from pylogd.broker.replica.fetcher_machine import FetcherState
from pylogd.broker.replica.followed_partition import parts as parts_of
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.replication import Replication
from pylogd.broker.replica.replication_throttle import ReplicationQuota
from pylogd.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from pylogd.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts
from tests.fakes.workers import HeldWorkers
from tests.unit.broker.replica.test_followed_partition import placed

LEADER = 2
CONFIG = FetcherConfig(1, 1000, 10_000, 1, 500, 1.0, 5.0)


class Leader:
    """A connection to a leader, whose responses the test sends."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Deferred[Any]]] = []
        self.closed = False

    def request(self, message: Any, *, timeout: float | None = None) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self.asked.append((message, done))
        return done

    def close(self) -> None:
        self.closed = True
        asked, self.asked = self.asked, []
        for _, done in asked:
            if not done.called:
                done.errback(BrokerUnavailable("closed"))


class Case:
    def __init__(
        self, parts: Parts, partitions: int = 1, state: Mapping[str, Any] | None = None, rate: int = 1 << 40
    ) -> None:
        """rate: the quota of throttled replicas in bytes a second."""
        self.parts = parts
        self.rate = rate
        topic = parts.create("t", partitions=partitions)
        self.topic_id = topic.topic_id
        self.partitions: list[Partition] = [
            parts.set_state(
                "t", index, **{"replicas": (2, 1), "isr": (2, 1), "leader": LEADER, "leader_epoch": 3, **(state or {})}
            )
            for index in range(partitions)
        ]
        self.leader = Leader()
        self.connections = 0
        self.refuses = False
        self.fetcher = ReplicaFetcher(
            LEADER, parts.replicas, parts.replica_throttle, self.connect, parts.clock, CONFIG,
            ReplicationQuota(lambda: self.rate, parts.clock.seconds),
        )  # fmt: skip
        for partition in self.partitions:
            self.fetcher.follow(partition)
        self.turn()

    def connect(self, node_id: int) -> Deferred[Any]:
        assert node_id == LEADER
        self.connections += 1
        if self.refuses:
            return Deferred(lambda _: None)
        self.leader = Leader()
        return succeed(self.leader)

    def turn(self, seconds: float = 0) -> None:
        for _ in range(4):
            self.parts.time.advance(0)
        self.parts.time.advance(seconds)
        for _ in range(4):
            self.parts.time.advance(0)

    @property
    def request(self) -> Any:
        """Return the oldest request without a response."""
        assert self.leader.asked
        return self.leader.asked[0][0]

    def wants(self) -> dict[int, int]:
        """Return the fetch offsets of the oldest request, by partition index."""
        return {entry.partition: entry.fetch_offset for topic in self.request.topics for entry in topic.partitions}

    def answer(self, *data: PartitionData, session: int = 7, error: int = 0) -> None:
        _, done = self.leader.asked.pop(0)
        topics = [FetchableTopicResponse(topic_id=self.topic_id, partitions=list(data))] if data else []
        done.callback(FetchResponse(0, error, session, topics))
        self.turn()

    def records(self, index: int, *batches: bytes, high_watermark: int = 0) -> PartitionData:
        return PartitionData(index, high_watermark=high_watermark, log_start_offset=0, records=b"".join(batches))


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path)
    yield made
    made.close()


@pytest.fixture
def case(parts: Parts) -> Iterator[Case]:
    made = Case(parts)
    yield made
    made.fetcher.stop()


@pytest.fixture
def pair(parts: Parts) -> Iterator[Case]:
    made = Case(parts, partitions=2)
    yield made
    made.fetcher.stop()


def test_a_session_names_all_partitions_once_and_then_changed_ones(pair: Case) -> None:
    assert (pair.request.session_id, pair.request.session_epoch, pair.request.max_wait_ms) == (0, 0, 0)
    assert pair.request.replica_state.replica_id == 1
    assert pair.wants() == {0: 0, 1: 0}
    pair.answer(pair.records(0, placed(0, 3), placed(1, 3, 2), high_watermark=1), pair.records(1))
    assert pair.partitions[0].log.log_end_offset == 3
    assert pair.partitions[0].high_watermark == 1
    assert (pair.request.session_id, pair.request.session_epoch, pair.request.max_wait_ms) == (7, 1, 500)
    assert pair.wants() == {0: 3}
    pair.answer()
    assert pair.request.topics == []
    assert pair.connections == 1


def test_a_lost_session_begins_anew(pair: Case) -> None:
    pair.answer()
    pair.answer(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert (pair.request.session_id, pair.request.session_epoch) == (0, 0)
    assert pair.wants() == {0: 0, 1: 0}
    assert pair.connections == 1


def test_a_lost_connection_is_made_again_and_everything_said(pair: Case) -> None:
    pair.answer()
    pair.leader.close()
    pair.turn(0.06)
    assert pair.connections == 2
    assert pair.wants() == {0: 0, 1: 0}


def test_other_partitions_are_fetched_while_one_fails(pair: Case) -> None:
    pair.answer(PartitionData(0, ErrorCode.KAFKA_STORAGE_ERROR, records=b""), pair.records(1, placed(0, 3)))
    assert pair.wants() == {1: 1}
    assert [topic.partitions for topic in pair.request.forgotten_topics_data] == [[0]]
    pair.answer()
    pair.turn(1.0)
    assert pair.request.session_epoch == 2
    assert len(pair.leader.asked) == 2  # the second request ends the long poll of the first
    pair.answer()
    pair.answer()
    assert pair.wants() == {0: 0}


def test_newly_followed_partitions_do_not_wait_for_a_long_poll(pair: Case) -> None:
    pair.answer(pair.records(0), pair.records(1))
    pair.parts.set_state("t", 1, leader_epoch=4)
    pair.fetcher.follow(pair.partitions[1])
    pair.turn()
    (_, _), (nudge, _) = pair.leader.asked
    assert (nudge.session_epoch, nudge.max_wait_ms, nudge.topics) == (2, 0, [])
    pair.answer()
    pair.answer()
    assert pair.request.session_epoch == 3
    ((entry,),) = [topic.partitions for topic in pair.request.topics]
    assert (entry.partition, entry.current_leader_epoch) == (1, 4)


def test_partitions_that_are_no_longer_followed_leave_the_session(pair: Case) -> None:
    pair.answer(pair.records(0), pair.records(1))
    pair.fetcher.unfollow(pair.partitions[1])
    pair.answer()
    assert [topic.partitions for topic in pair.request.forgotten_topics_data] == [[1]]
    assert len(pair.fetcher) == 1


def test_a_log_is_truncated_where_histories_diverge(case: Case) -> None:
    case.answer(case.records(0, placed(0, 1), placed(1, 2), placed(2, 2)))
    case.answer(PartitionData(0, diverging_epoch=EpochEndOffset(1, 1), records=b""))
    assert case.partitions[0].log.log_end_offset == 1
    assert case.wants() == {0: 1}


def test_a_broker_elected_during_its_truncation_leads_the_truncated_log(case: Case) -> None:
    case.answer(case.records(0, placed(0, 1), placed(1, 2)))
    case.parts.threads.hold = True
    case.answer(PartitionData(0, diverging_epoch=EpochEndOffset(1, 1), records=b""))
    partition = case.parts.set_state("t", leader=1, leader_epoch=4)
    assert not partition.leading
    case.parts.threads.hold = False
    case.parts.threads.release()
    assert partition.leading
    assert partition.epoch_start == partition.log.log_end_offset == 1


@pytest.mark.parametrize(("start", "end", "becomes"), [(50, 90, 50), (0, 1, 1), (0, 90, 2)])
def test_an_out_of_range_follower_asks_for_the_leaders_offsets(case: Case, start: int, end: int, becomes: int) -> None:
    case.answer(case.records(0, placed(0, 1), placed(1, 1)))
    case.answer(PartitionData(0, ErrorCode.OFFSET_OUT_OF_RANGE, records=b""))
    for offset, timestamp in ((start, -4), (end, -1)):
        request, done = case.leader.asked.pop(0)
        assert isinstance(request, ListOffsetsRequest)
        assert (request.replica_id, request.topics[0].partitions[0].timestamp) == (1, timestamp)
        found = ListOffsetsPartitionResponse(0, offset=offset)
        done.callback(ListOffsetsResponse(topics=[ListOffsetsTopicResponse("t", [found])]))
        case.turn()
    assert isinstance(case.request, FetchRequest)
    assert case.partitions[0].log.log_end_offset == becomes


def test_a_leaders_log_may_start_inside_a_batch(case: Case) -> None:
    """After DeleteRecords: the leader sends the batch whole, although the follower asks from inside of it."""
    log = case.partitions[0].log
    case.answer(PartitionData(0, ErrorCode.OFFSET_OUT_OF_RANGE, records=b""))
    for offset in (52, 70):  # where the leader's log starts and ends
        _, done = case.leader.asked.pop(0)
        found = ListOffsetsPartitionResponse(0, offset=offset)
        done.callback(ListOffsetsResponse(topics=[ListOffsetsTopicResponse("t", [found])]))
        case.turn()
    assert case.wants() == {0: 52}
    batches = placed(50, 3, 10) + placed(60, 3, 10)
    case.answer(PartitionData(0, high_watermark=70, log_start_offset=52, records=batches))
    assert (log.log_start_offset, log.log_end_offset, case.partitions[0].high_watermark) == (52, 70, 70)
    assert log.segments[0].base_offset == 50
    case.answer()  # to the request that would have ended the wait
    assert case.wants() == {0: 70}


def test_a_new_replica_begins_with_the_last_stable_offset(parts: Parts) -> None:
    case = Case(parts, state={"isr": (2,), "adding": (1,), "latest_until_ms": 1})
    for offset, asked in ((0, (-4, 0)), (7, (-1, 1))):
        request, done = case.leader.asked.pop(0)
        assert (request.topics[0].partitions[0].timestamp, request.isolation_level) == asked
        found = ListOffsetsPartitionResponse(0, offset=offset)
        done.callback(ListOffsetsResponse(topics=[ListOffsetsTopicResponse("t", [found])]))
        case.turn()
    assert case.partitions[0].log.log_start_offset == case.partitions[0].log.log_end_offset == 7
    case.fetcher.stop()


def test_invalid_batches_of_a_leader_are_refused_and_fetched_again(case: Case) -> None:
    case.answer(case.records(0, placed(0, 3), placed(0, 3)))
    assert case.partitions[0].log.log_end_offset == 0
    assert not case.leader.asked
    case.turn(1.0)
    assert case.wants() == {0: 0}


def test_records_that_are_being_written_come_again_with_the_answer_to_a_nudge(tmp_path: Path) -> None:
    """The leader's session has the position before them until the next request that names the partition."""
    parts = Parts(tmp_path, log_write_queues="always")
    case = Case(parts, partitions=2)
    try:
        first, second = case.partitions
        assert parts.disks is not None
        writer = parts.disks.at(first.log.directory).queue_of("t").writer
        assert isinstance(writer, HeldWorkers)
        case.answer(case.records(0), case.records(1))
        parts.set_state("t", 1, leader_epoch=4)
        case.fetcher.follow(second)
        case.turn()
        writer.hold = True
        case.answer(case.records(0, placed(0, 3, 2)))
        case.turn(0.1)
        assert first.log.log_end_offset == 0
        case.answer(case.records(0, placed(0, 3, 2)))
        writer.hold = False
        with capturedLogs() as logged:
            writer.release()
            case.turn()
        assert not logged
        assert first.log.log_end_offset == 2
        assert case.wants() == {1: 0}
        case.answer()
        case.answer()  # to the nudge for the partition whose records are written now
        assert case.wants() == {0: 2}
    finally:
        case.fetcher.stop()
        parts.close()


def test_a_throttled_replica_waits_for_its_allowance(parts: Parts) -> None:
    case = Case(parts, rate=100)
    result_of(parts.topic_admin.set_topic_configs("t", {"follower.replication.throttled.replicas": "*"}))
    parts.set_state("t", isr=(2,))
    batch = placed(0, 3, 30)
    case.answer(case.records(0, batch))
    assert case.partitions[0].log.log_end_offset == 30
    assert not case.leader.asked
    case.turn(len(batch) / 100)
    assert case.wants() == {0: 30}
    case.fetcher.stop()


def test_a_throttled_replica_goes_on_soon_after_the_rate_was_raised(parts: Parts) -> None:
    case = Case(parts, rate=1)
    result_of(parts.topic_admin.set_topic_configs("t", {"follower.replication.throttled.replicas": "*"}))
    parts.set_state("t", isr=(2,))
    case.answer(case.records(0, placed(0, 3, 30)))
    for _ in range(20):  # of more than 100 that it would have to wait
        case.turn(1.0)
    assert not case.leader.asked
    case.rate = 1_000_000
    case.turn(1.0)
    assert case.wants() == {0: 30}
    case.fetcher.stop()


def test_a_stopped_fetcher_leaves_nothing_behind(case: Case) -> None:
    case.answer()
    result_of(case.fetcher.stop())
    assert case.leader.closed
    case.turn(10)
    assert case.connections == 1


def test_each_leader_has_a_fetcher_as_long_as_it_has_something(parts: Parts) -> None:
    connections: list[int] = []

    def connect(node_id: int) -> Deferred[Any]:
        connections.append(node_id)
        return Deferred(lambda _: None)

    replication = Replication(
        parts.replicas, parts.partitions, parts.replica_throttle, connect, parts.settings, parts.clock, 1
    )
    replication.start()
    parts.create("t", partitions=2)
    parts.set_state("t", 0, replicas=(2, 1), leader=2, leader_epoch=1)
    parts.set_state("t", 1, replicas=(3, 1), leader=3, leader_epoch=1)
    parts.time.advance(0)
    assert sorted(connections) == [2, 3]
    parts.set_state("t", 0, leader=3, leader_epoch=2)
    parts.set_state("t", 1, leader=1, leader_epoch=2)
    parts.set_state("t", 1, leader=-1, leader_epoch=3)
    parts.time.advance(0)
    assert set(connections) == {2, 3}
    done = replication.stop()
    assert done.called


def _log_ends_asked(case: Case) -> None:
    case.answer(PartitionData(0, ErrorCode.OFFSET_OUT_OF_RANGE, records=b""))


def _half_applied(case: Case) -> None:
    _, done = case.leader.asked.pop(0)
    data = case.records(0, placed(0, 3), placed(1, 3))
    done.callback(FetchResponse(0, 0, 7, [FetchableTopicResponse(topic_id=case.topic_id, partitions=[data])]))


def _nudged(case: Case) -> None:
    case.answer(case.records(0))
    case.parts.set_state("t", leader_epoch=4)
    case.fetcher.follow(case.partitions[0])
    case.turn()
    case.answer()


def _paused(case: Case) -> None:
    case.answer(PartitionData(0, ErrorCode.KAFKA_STORAGE_ERROR, records=b""))


def _disconnected(case: Case) -> None:
    case.leader.close()
    case.parts.time.advance(0)


def _not_connected_again(case: Case) -> None:
    case.refuses = True
    case.leader.close()
    case.turn(0.06)


#: How a fetcher that has a request in flight gets into each of the other states.
WAYS: dict[FetcherState, Callable[[Case], object]] = {
    FetcherState.FETCHING: lambda case: None,
    FetcherState.LOCATING: _log_ends_asked,
    FetcherState.APPLYING: _half_applied,
    FetcherState.NUDGING: _nudged,
    FetcherState.IDLE: _paused,
    FetcherState.BACKING_OFF: _disconnected,
    FetcherState.CONNECTING: _not_connected_again,
}


@pytest.mark.parametrize("state", WAYS)
def test_a_fetcher_stops_in_every_state(case: Case, state: FetcherState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pylogd.broker.replica.fetcher.PART_BYTES", 1)
    monkeypatch.setattr("pylogd.broker.replica.fetcher.parts", partial(parts_of, most_batches=1))
    WAYS[state](case)
    assert case.fetcher._machine.state is state
    end, connections = case.partitions[0].log.log_end_offset, case.connections
    stopped = case.fetcher.stop()
    case.turn(10)
    assert stopped.called
    assert case.fetcher._machine.state is FetcherState.STOPPED
    assert (case.partitions[0].log.log_end_offset, case.connections) == (end, connections)


def test_every_state_but_the_last_has_its_work(case: Case) -> None:
    assert set(case.fetcher._steps) == set(FetcherState) - {FetcherState.STOPPED}
