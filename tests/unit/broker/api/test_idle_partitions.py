"""Idle partitions: a fetch in a session costs the same beside few and many of them, and misses no change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.broker.replica.waiting import PendingAppend
from pylogd.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, batch
from tests.hotpath import cost

LEADER, FOLLOWER = 1, 2
VERSION = 16
MIB = 1 << 20


class Session:
    """A fetch session of broker 2, or of a consumer (`node` -1), that has fetched all of topic `t`."""

    def __init__(self, parts: Parts, partitions: int, node: int = FOLLOWER) -> None:
        self.parts = parts
        self.node = node
        self.topic_id = parts.create("t", partitions=partitions).topic_id
        if node >= 0:
            for index in range(partitions):
                parts.set_state("t", index, replicas=(LEADER, node), isr=(LEADER, node))
        self.session_id = self.epoch = 0
        self.fetch(*[(index, 0) for index in range(partitions)])
        self.fetch()

    def ask(self, *wanted: tuple[int, int], wait_ms: int = 0) -> Any:
        """Fetch these (index, offset) from now on; return the response, or a Deferred of it."""
        epoch = 0 if self.node >= 0 else -1
        entries = [FetchPartition(index, epoch, offset, partition_max_bytes=MIB) for index, offset in wanted]
        request = FetchRequest(
            replica_state=ReplicaState(self.node),
            max_wait_ms=wait_ms,
            min_bytes=1,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[FetchTopic(topic_id=self.topic_id, partitions=entries)] if entries else [],
        )
        answer = self.parts.ask(request, VERSION)
        self.epoch += 1
        return answer

    def fetch(self, *wanted: tuple[int, int]) -> dict[int, Any]:
        """Fetch without waiting; return the changed partitions by index."""
        return self.heard(self.ask(*wanted))

    def heard(self, answer: FetchResponse) -> dict[int, Any]:
        assert answer.error_code == 0
        self.session_id = answer.session_id
        assert self.session_id
        return {data.partition_index: data for topic in answer.responses for data in topic.partitions}

    @property
    def dirty(self) -> set[int]:
        session = self.parts.fetch_sessions._sessions[self.session_id]
        return {entry.wanted.partition for entry in session.dirty}


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path)
    yield made
    made.close()


def _acks_all(session: Session) -> None:
    """Write with acks=all while the follower waits in a fetch, whose next fetch then commits the write."""
    parts = session.parts
    partition = parts.partitions.by_name["t", 0]
    end = partition.log.log_end_offset
    waiting = session.ask((0, end), wait_ms=500)
    assert isinstance(waiting, Deferred)
    parts.replicas.append(partition, batch(b"v", now_ms=parts.now_ms()), True)
    committed = parts.replicas.wait_for_replicas([PendingAppend(partition, end + 1, None)], 1000)
    assert list(session.heard(result_of(waiting))) == [0]
    assert not committed.called
    waiting = session.ask((0, end + 1), wait_ms=500)
    assert result_of(committed) == []
    parts.time.advance(0.5)
    session.heard(result_of(waiting))


def _costs(folder: Path, partitions: int, node: int) -> int:
    parts = Parts(folder)
    session = Session(parts, partitions, node)
    for _ in range(3):
        _acks_all(session)
    session.fetch()
    found = cost(lambda: _acks_all(session), rounds=5).instructions
    parts.close()
    return found


def test_a_fetch_beside_many_idle_partitions_costs_what_one_beside_few_does(tmp_path: Path) -> None:
    """Count the instructions from the wait of a follower's fetch to the commit of a write."""
    for name in ("few", "many"):
        (tmp_path / name).mkdir()
    few, many = _costs(tmp_path / "few", 2, FOLLOWER), _costs(tmp_path / "many", 200, FOLLOWER)
    assert many < few * 1.05


def test_a_look_for_followers_that_lag_passes_over_idle_partitions(parts: Parts) -> None:
    session = Session(parts, 100)
    parts.isr_updater.look()
    idle = cost(parts.isr_updater.look, rounds=3).instructions
    assert idle < 100
    parts.append("t", partition=7)
    assert cost(parts.isr_updater.look, rounds=3).instructions > idle
    assert session.dirty == {7}


def test_a_wait_is_filed_under_no_partition(parts: Parts) -> None:
    session = Session(parts, 5, node=-1)
    waiting = session.ask(wait_ms=500)
    assert len(parts.replicas.fetch_waits) == 1
    parts.append("t", b"a", partition=3)
    assert list(session.heard(result_of(waiting))) == [3]
    assert not len(parts.replicas.fetch_waits)


@pytest.mark.parametrize("node", [-1, FOLLOWER])
def test_only_changed_partitions_are_looked_at(parts: Parts, node: int) -> None:
    session = Session(parts, 4, node)
    assert session.dirty == set()
    assert session.fetch() == {}
    parts.append("t", b"a", partition=1)
    parts.set_state("t", 2, leader_epoch=3)
    assert session.dirty == {1, 2}
    assert set(session.fetch()) == ({1, 2} if node >= 0 else {1})
    session.fetch((1, 1))
    session.fetch()
    # the follower follows epoch 0 there, and learns of the newer one
    assert session.dirty == ({2} if node >= 0 else set())


def test_a_log_start_moved_by_retention_is_reported(parts: Parts) -> None:
    session = Session(parts, 3, node=-1)
    parts.append("t", b"a", partition=1)
    parts.append("t", b"b", partition=1)
    session.fetch((1, 2))
    session.fetch()
    assert session.dirty == set()
    log = parts.partitions.by_name["t", 1].log
    log.roll(2, parts.now_ms())
    parts.time.advance(3600 * 24 * 30)
    assert log.log_start_offset == 2
    assert {index: data.log_start_offset for index, data in session.fetch().items()} == {1: 2}


def test_deleted_records_are_reported_without_followers(parts: Parts) -> None:
    session = Session(parts, 3, node=-1)
    parts.append("t", b"a", partition=1)
    session.fetch((1, 1))
    session.fetch()
    parts.call(DeleteRecordsRequest([DeleteRecordsTopic("t", [DeleteRecordsPartition(1, 1)])]))
    assert {index: data.log_start_offset for index, data in session.fetch().items()} == {1: 1}


def test_an_idle_follower_that_fetches_is_in_sync_when_a_write_arrives(parts: Parts) -> None:
    """A fetch confirms that the follower has all of every partition of the session, also of those not named in it."""
    session = Session(parts, 3)
    most = parts.settings.integer("replica.lag.time.max.ms") / 1000
    partition = parts.partitions.by_name["t", 1]
    for _ in range(5):
        parts.time.advance(most / 2)
        session.fetch()
    parts.append("t", b"a", partition=1)
    now = parts.time.seconds()
    assert partition.lagging(now + most, most) == []
    assert partition.lagging(now + most + 1, most) == [FOLLOWER]


def test_an_idle_follower_that_stopped_fetching_lags_from_its_last_fetch(parts: Parts) -> None:
    Session(parts, 3)
    most = parts.settings.integer("replica.lag.time.max.ms") / 1000
    parts.time.advance(most - 1)
    parts.append("t", b"a", partition=1)
    now = parts.time.seconds()
    partition = parts.partitions.by_name["t", 1]
    assert partition.lagging(now, most) == []
    assert partition.lagging(now + 2, most) == [FOLLOWER]


def test_a_dropped_session_answers_its_waiting_fetch(parts: Parts) -> None:
    session = Session(parts, 3, node=-1)
    waiting = session.ask(wait_ms=500)
    parts.fetch_sessions.close(session.session_id)
    assert result_of(waiting).error_code == 0
    assert not parts.replicas.fetch_waits.watched_keys()


def test_an_idle_session_is_notified_of_each_partition_once(parts: Parts) -> None:
    session = Session(parts, 3, node=-1)
    assert len(parts.replicas.fetch_waits.watched_keys()) == 3
    parts.append("t", b"a", partition=1)
    parts.append("t", b"a", partition=1)
    assert parts.replicas.fetch_waits.watched_keys() == {("t", 0), ("t", 2)}
    assert list(session.fetch()) == [1]
    assert len(parts.replicas.fetch_waits.watched_keys()) == 3
