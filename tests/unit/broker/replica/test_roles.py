"""Leading and following: how a partition applies its state in the metadata, and which requests that completes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.metadata.image import TopicChange
from pylogd.broker.replica.errors import FencedLeaderEpoch, NotLeader, OffsetNotAvailable, UnknownLeaderEpoch
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.roles import ROLES, Role
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, batch


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path)
    yield made
    made.close()


def three(parts: Parts, **fields: Any) -> Partition:
    """Return a partition led here, with replicas on brokers 2 and 3, all in sync."""
    parts.create("t")
    return parts.set_state("t", **{"replicas": (1, 2, 3), "isr": (1, 2, 3), "leader_epoch": 5, **fields})


def fetch(parts: Parts, node: int, offset: int, *, epoch: int = 5, last_epoch: int = -1, **fields: Any) -> Any:
    """Return the response to a follower's fetch of partition 0."""
    topic = parts.topics.get("t")
    assert topic is not None
    wanted = FetchPartition(0, epoch, offset, last_epoch, 0, 1 << 20)
    request = FetchRequest(
        replica_state=ReplicaState(node), topics=[FetchTopic(topic_id=topic.topic_id, partitions=[wanted])], **fields
    )
    return parts.ask(request, 17)


def only(response: Any) -> Any:
    return response.responses[0].partitions[0]


def produce(parts: Parts, acks: int = -1, timeout_ms: int = 1000) -> Any:
    data = PartitionProduceData(0, memoryview(batch(now_ms=parts.now_ms())))
    return parts.ask(ProduceRequest(None, acks, timeout_ms, [TopicProduceData("t", partition_data=[data])]), 10)


def produced(response: Any) -> Any:
    return response.responses[0].partition_responses[0]


def latest(parts: Parts, replica: int = -1, version: int = 7) -> Any:
    wanted = ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=-1)])
    return parts.call(ListOffsetsRequest(replica, topics=[wanted]), version).topics[0].partitions[0]


class TestStates:
    def test_deleted_is_the_end(self) -> None:
        assert not ROLES.transitions[Role.DELETED]
        assert list(ROLES.transitions[Role.OFFLINE].values()) == [Role.DELETED]

    def test_a_leader_becomes_a_follower_and_back(self, parts: Parts) -> None:
        partition = three(parts)
        assert (partition.role, sorted(partition.followers)) == (Role.LEADING, [2, 3])
        parts.set_state("t", leader=2, leader_epoch=6)
        assert (partition.role, partition.followers, partition.leader_id) == (Role.FOLLOWING, {}, 2)
        with pytest.raises(NotLeader):
            partition.append(batch(), acks_all=False)
        parts.set_state("t", leader=1, leader_epoch=7)
        assert partition.role is Role.LEADING
        assert all(follower.log_end == -1 for follower in partition.followers.values())

    def test_an_older_state_changes_nothing(self, parts: Parts) -> None:
        partition = three(parts)
        state = partition.state
        assert state is not None
        for old in (
            replace(state, leader=2, leader_epoch=4, partition_epoch=99),
            replace(state, isr=(1,), partition_epoch=state.partition_epoch),
            replace(state, isr=(1,), partition_epoch=state.partition_epoch - 1),
        ):
            assert not partition.apply(old, 0.0)
            assert (partition.state, partition.isr, partition.role) == (state, (1, 2, 3), Role.LEADING)

    def test_followers_are_remembered_within_an_epoch_only(self, parts: Parts) -> None:
        partition = three(parts)
        fetch(parts, 2, 0)
        parts.set_state("t", isr=(1, 2))
        assert partition.followers[2].log_end == 0
        parts.set_state("t", leader_epoch=6)
        assert partition.followers[2].log_end == -1

    def test_listeners_are_notified_of_every_change_of_role(self, parts: Parts) -> None:
        heard: list[tuple[Role, int]] = []
        led: list[tuple[int, bool]] = []
        parts.partitions.subscribe(lambda partition: heard.append((partition.role, partition.leader_epoch)))
        parts.partitions.on_leadership(lambda partition, leads: led.append((partition.leader_epoch, leads)))
        three(parts)
        parts.set_state("t", isr=(1, 2))
        parts.set_state("t", leader=3, leader_epoch=6)
        parts.set_state("t", leader=2, leader_epoch=7)
        result_of(parts.topic_admin.delete_topic("t"))
        assert heard == [
            (Role.LEADING, 0), (Role.LEADING, 5), (Role.FOLLOWING, 6), (Role.FOLLOWING, 7), (Role.DELETED, 7),
        ]  # fmt: skip
        assert led == [(0, True), (5, False), (5, True), (6, False)]

    def test_a_replica_that_is_taken_away_goes_with_its_log(self, parts: Parts) -> None:
        three(parts)
        topic = parts.topics.get("t")
        assert topic is not None
        found = topic.partitions[0]
        after = replace(topic, partitions=(replace(found, replicas=(2, 3)),))
        parts.topics._replace(topic, after)
        result_of(parts.hosting.topic_changed(TopicChange(topic, after)))
        assert not parts.partitions.by_name
        assert not parts.logs.logs


class TestCommitting:
    def test_what_every_in_sync_replica_has(self, parts: Parts) -> None:
        partition = three(parts)
        answer = produce(parts)
        assert isinstance(answer, Deferred)
        fetch(parts, 2, 1)
        assert (partition.high_watermark, answer.called) == (0, False)
        fetch(parts, 3, 1)
        assert partition.high_watermark == 1
        assert produced(result_of(answer)).error_code == 0

    def test_a_fetch_in_another_epoch_says_nothing(self, parts: Parts) -> None:
        partition = three(parts)
        parts.append("t")
        for epoch, code in (
            (4, ErrorCode.FENCED_LEADER_EPOCH),
            (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
            (-1, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ):
            for node in (2, 3):
                assert only(fetch(parts, node, 1, epoch=epoch)).error_code == code
        assert partition.high_watermark == 0

    def test_a_fetch_on_another_history_says_nothing(self, parts: Parts) -> None:
        partition = three(parts)
        parts.append("t")
        for node in (2, 3):
            data = only(fetch(parts, node, 9, last_epoch=3))
            assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (3, 0)
        assert partition.high_watermark == 0
        with pytest.raises(FencedLeaderEpoch):
            partition.check_epoch(4)
        with pytest.raises(UnknownLeaderEpoch):
            partition.check_epoch(6)

    def test_a_broker_that_is_no_replica_is_no_follower(self, parts: Parts) -> None:
        three(parts)
        assert only(fetch(parts, 9, 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_a_proposed_replica_counts_before_it_has_joined(self, parts: Parts) -> None:
        partition = three(parts, isr=(1,))
        assert partition.alone
        parts.append("t")
        assert partition.high_watermark == 1
        fetch(parts, 2, 1)
        assert partition.pending_isr is not None
        assert (partition.isr, partition.alone) == ((1,), False)
        parts.append("t")
        assert partition.high_watermark == 1
        fetch(parts, 2, 2)
        assert partition.high_watermark == 2

    def test_too_few_in_sync_after_the_append(self, parts: Parts) -> None:
        three(parts)
        result_of(parts.topic_admin.set_topic_configs("t", {"min.insync.replicas": "2"}))
        answer = produce(parts)
        parts.set_state("t", isr=(1,))
        assert produced(result_of(answer)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert produced(produce(parts)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_follower_of_another_cluster_is_refused(parts: Parts) -> None:
    three(parts)
    assert fetch(parts, 2, 0, cluster_id="another").error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert fetch(parts, 2, 0, cluster_id=parts.cluster.cluster_id).error_code == 0


class TestLosingLeadership:
    def test_appends_that_wait_are_answered(self, parts: Parts) -> None:
        partition = three(parts)
        answer = produce(parts)
        parts.set_state("t", leader=2, leader_epoch=6)
        assert produced(result_of(answer)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        partition.high_watermark = 1

    def test_even_if_it_comes_back(self, parts: Parts) -> None:
        three(parts)
        answer = produce(parts)
        parts.set_state("t", leader_epoch=6)
        assert produced(result_of(answer)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_fetches_that_wait_are_answered(self, parts: Parts) -> None:
        three(parts)
        answer = fetch(parts, 2, 0, max_wait_ms=10_000, min_bytes=1)
        assert isinstance(answer, Deferred)
        parts.set_state("t", leader=2, leader_epoch=6)
        data = only(result_of(answer))
        assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (2, 6)

    def test_nothing_is_produced_to_or_looked_up_at_a_follower(self, parts: Parts) -> None:
        three(parts, leader=2)
        answer = produced(produce(parts, acks=1))
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert answer.current_leader.leader_id == 2
        assert latest(parts).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


class TestReading:
    def test_followers_read_up_to_the_end_consumers_what_is_committed(self, parts: Parts) -> None:
        partition = three(parts)
        parts.append("t")
        assert len(only(fetch(parts, 2, 0)).records)
        assert partition.read(0, 1000, min_one=True, allow_cold=True) is None

    def test_a_follower_that_waits_is_woken_by_an_append(self, parts: Parts) -> None:
        three(parts)
        answer = fetch(parts, 2, 0, max_wait_ms=10_000, min_bytes=1)
        parts.append("t")
        assert len(only(result_of(answer)).records)

    def test_the_next_fetch_of_a_session_ends_the_wait_of_the_last(self, parts: Parts) -> None:
        three(parts)
        first = fetch(parts, 2, 0, session_epoch=0)
        waits = parts.ask(
            FetchRequest(
                replica_state=ReplicaState(2), session_id=first.session_id, session_epoch=1, max_wait_ms=10_000,
                min_bytes=1,
            ),
            17,
        )  # fmt: skip
        assert isinstance(waits, Deferred)
        nudge = parts.ask(FetchRequest(replica_state=ReplicaState(2), session_id=first.session_id, session_epoch=2), 17)
        assert waits.called
        assert nudge.error_code == 0
        assert result_of(waits).error_code == 0

    def test_consumers_may_read_from_followers_what_these_know_to_be_committed(self, parts: Parts) -> None:
        partition = three(parts)
        parts.append("t")
        for node in (2, 3):
            fetch(parts, node, 1)
        parts.append("t")
        parts.set_state("t", leader=2, leader_epoch=6)
        assert (partition.high_watermark, partition.log.log_end_offset) == (1, 2)
        topic = FetchTopic("t", partitions=[FetchPartition(0, fetch_offset=0, partition_max_bytes=1000)])
        assert len(only(parts.ask(FetchRequest(topics=[topic]), 12)).records)
        assert only(parts.ask(FetchRequest(topics=[topic]), 10)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_a_new_leader_does_not_know_the_end_yet(self, parts: Parts) -> None:
        partition = three(parts)
        parts.append("t")
        parts.set_state("t", leader_epoch=6)
        with pytest.raises(OffsetNotAvailable):
            assert partition.latest_offset
        assert latest(parts).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert latest(parts, version=4).error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert latest(parts, replica=2).offset == 1
        for node in (2, 3):
            fetch(parts, node, 1, epoch=6)
        assert latest(parts).offset == 1


class TestEpochs:
    def test_an_epoch_without_records(self, parts: Parts) -> None:
        partition = three(parts)
        assert partition.end_offset_for_epoch(3) == (3, 0)
        parts.append("t")
        parts.set_state("t", leader_epoch=9)
        assert partition.end_offset_for_epoch(5) == (5, 1)
        assert partition.end_offset_for_epoch(7) == (5, 1)
        assert partition.end_offset_for_epoch(9) == (9, 1)
        parts.append("t")
        assert partition.end_offset_for_epoch(7) == (5, 1)
        assert partition.divergence(7, 2) == (5, 1)
        assert partition.divergence(9, 2) is None


class TestTooFewInSync:
    """Nothing is committed while fewer replicas are in sync than `min.insync.replicas` requires (KIP-966)."""

    def test_the_high_watermark_stays_until_enough_are_in_sync(self, parts: Parts) -> None:
        partition = three(parts, isr=(1, 2))
        result_of(parts.topic_admin.set_topic_configs("t", {"min.insync.replicas": "2"}))
        parts.append("t")
        fetch(parts, 2, 1)
        assert partition.high_watermark == 1
        parts.set_state("t", isr=(1,), elr=(2,))
        parts.append("t")
        assert (partition.high_watermark, partition.alone) == (1, False)
        fetch(parts, 3, 2)
        assert partition.high_watermark == 1
        parts.set_state("t", isr=(1, 3), elr=())
        assert partition.high_watermark == 2

    def test_another_setting_counts_once_nobody_is_eligible_any_more(self, parts: Parts) -> None:
        partition = three(parts, isr=(1,), elr=(2,))
        parts.append("t")
        assert partition.high_watermark == 0  # although one in-sync replica is enough here
        parts.set_state("t", elr=())
        assert partition.high_watermark == 1
        result_of(parts.topic_admin.set_topic_configs("t", {"min.insync.replicas": "2"}))
        parts.append("t")
        assert partition.high_watermark == 1
        result_of(parts.topic_admin.set_topic_configs("t", {"min.insync.replicas": "1"}))
        assert partition.high_watermark == 2

    def test_the_only_replica_commits_alone(self, parts: Parts) -> None:
        parts.create("t", min_insync_replicas="2")
        parts.append("t")
        assert parts.partitions.by_name["t", 0].high_watermark == 1
