"""ElectLeaders and the reassignment APIs, on metadata alone; tests/integration moves real replicas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.metadata.image import NO_LEADER, Broker, Endpoint, PartitionState, TopicUpdate
from pylogd.broker.metadata.layout import encode_broker
from pylogd.store.interfaces import SetData
from pylogd.store.paths import BROKERS
from pylogd.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from pylogd.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from pylogd.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from pylogd.wire.schema import schema_versions
from tests.fakes.metadata import result_of
from tests.fakes.parts import NOW_MS, Parts


@pytest.fixture
def two(parts: Parts) -> Parts:
    """Return a broker with topic t, whose other replica and leader is a second live broker."""
    broker = Broker(2, (Endpoint("PLAINTEXT", "other", 9092),))
    result_of(parts.metadata.store.create(f"{BROKERS}/2", encode_broker(broker)))
    topic = parts.create("t")
    change(parts, replace(topic.partitions[0], replicas=(1, 2), isr=(2, 1), leader=2, leader_epoch=1))
    return parts


def change(parts: Parts, state: PartitionState) -> None:
    """Write a state of t-0."""
    topic = parts.topics.get("t")
    assert topic is not None
    epoch = topic.partitions[0].partition_epoch + 1
    result_of(parts.topics.write_states([TopicUpdate(topic, (replace(state, partition_epoch=epoch),))]))


def state(parts: Parts) -> PartitionState:
    topic = parts.topics.get("t")
    assert topic is not None
    return topic.partitions[0]


def elect(
    parts: Parts, kind: int, *partitions: tuple[str, int], all_of_them: bool = False
) -> dict[tuple[str, int], int]:
    """Return the error codes by partition."""
    asked = None if all_of_them else [TopicPartitions(name, [index]) for name, index in partitions]
    response = parts.call(ElectLeadersRequest(kind, asked))
    assert response.error_code == 0
    return {
        (result.topic, one.partition_id): one.error_code
        for result in response.replica_election_results
        for one in result.partition_result
    }


def move(parts: Parts, replicas: list[int] | None, index: int = 0, **fields: Any) -> int:
    """Return the error code."""
    topics = [ReassignableTopic("t", [ReassignablePartition(index, replicas)])]
    response = parts.call(AlterPartitionReassignmentsRequest(topics=topics, **fields))
    (topic,) = response.responses
    (partition,) = topic.partitions
    assert (partition.error_message is None) == (partition.error_code == 0)
    code: int = partition.error_code
    return code


class TestElections:
    def test_the_preferred_leader_takes_over(self, two: Parts) -> None:
        assert elect(two, 0, ("t", 0), ("t", 1), ("none", 0)) == {
            ("t", 0): 0,
            ("t", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("none", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert (state(two).leader, state(two).leader_epoch) == (1, 2)
        assert elect(two, 0, ("t", 0)) == {("t", 0): ErrorCode.ELECTION_NOT_NEEDED}

    def test_all_partitions_that_need_an_election(self, two: Parts) -> None:
        two.create("right")
        assert elect(two, 0, all_of_them=True) == {("t", 0): 0}
        assert elect(two, 0, all_of_them=True) == {}

    def test_a_preferred_leader_that_is_not_in_sync(self, two: Parts) -> None:
        change(two, replace(state(two), isr=(2,)))
        assert elect(two, 0, ("t", 0)) == {("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}

    def test_an_unclean_election(self, two: Parts) -> None:
        assert elect(two, 1, ("t", 0)) == {("t", 0): ErrorCode.ELECTION_NOT_NEEDED}
        result_of(two.metadata.store.delete(f"{BROKERS}/2"))
        change(two, replace(state(two), isr=(2,), leader=NO_LEADER))
        assert elect(two, 1, all_of_them=True) == {("t", 0): 0}
        assert (state(two).leader, state(two).isr) == (1, (1,))
        assert two.partition_admin.unclean_elections == 1

    def test_no_replica_is_alive(self, two: Parts) -> None:
        result_of(two.metadata.store.delete(f"{BROKERS}/2"))
        change(two, replace(state(two), replicas=(2,), isr=(2,), leader=NO_LEADER))
        assert elect(two, 1, ("t", 0)) == {("t", 0): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}

    def test_another_type(self, two: Parts) -> None:
        assert two.call(ElectLeadersRequest(7, None)).error_code == ErrorCode.INVALID_REQUEST


class TestMoves:
    def test_a_move_begins(self, two: Parts) -> None:
        change(two, replace(state(two), replicas=(2,), isr=(2,)))
        assert move(two, [1]) == 0
        assert (state(two).replicas, state(two).adding, state(two).removing) == ((1, 2), (1,), (2,))
        assert state(two).latest_until_ms is None
        listed = two.call(ListPartitionReassignmentsRequest())
        (topic,) = listed.topics
        (found,) = topic.partitions
        assert (topic.name, found.partition_index) == ("t", 0)
        assert (found.replicas, found.adding_replicas, found.removing_replicas) == ([1, 2], [1], [2])

    def test_a_move_from_the_latest_offset(self, two: Parts) -> None:
        change(two, replace(state(two), replicas=(2,), isr=(2,)))
        assert move(two, [2, 1], latest_wait_ms=5_000) == 0
        assert state(two).latest_until_ms == NOW_MS + 5_000

    def test_topics_that_keep_a_state_are_not_moved_from_the_latest_offset(self, two: Parts) -> None:
        two.create("compacted", cleanup_policy="compact,delete")
        two.create("__consumer_offsets", cleanup_policy="delete")
        for name in ("compacted", "__consumer_offsets"):
            before = two.topics.get(name)
            topics = [ReassignableTopic(name, [ReassignablePartition(0, [2, 1])])]
            response = two.call(AlterPartitionReassignmentsRequest(topics=topics, latest_wait_ms=5_000))
            (answer,) = response.responses[0].partitions
            assert answer.error_code == ErrorCode.INVALID_REQUEST
            assert "would lose its state" in answer.error_message
            assert two.topics.get(name) is before
            copied = two.call(AlterPartitionReassignmentsRequest(topics=topics))
            assert copied.responses[0].partitions[0].error_code == 0

    def test_a_move_is_stopped(self, two: Parts) -> None:
        change(two, replace(state(two), replicas=(2,), isr=(2,)))
        assert move(two, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert move(two, [1]) == 0
        assert move(two, None) == 0
        assert (state(two).replicas, state(two).moving) == ((2,), False)
        assert two.call(ListPartitionReassignmentsRequest()).topics == []

    @pytest.mark.parametrize("target", [[], [1, 1], [9], [-1]])
    def test_invalid_targets(self, two: Parts, target: list[int]) -> None:
        before = state(two)
        assert move(two, target) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert state(two) == before

    def test_the_number_of_replicas_may_be_fixed(self, two: Parts) -> None:
        assert move(two, [1], allow_replication_factor_change=False) == ErrorCode.INVALID_REPLICATION_FACTOR
        assert move(two, [2, 1], allow_replication_factor_change=False) == 0

    def test_no_in_sync_replica_would_stay(self, two: Parts) -> None:
        change(two, replace(state(two), replicas=(1, 2), isr=(1,), leader=1, adding=(1,)))
        assert move(two, None) == ErrorCode.INVALID_REPLICA_ASSIGNMENT

    def test_a_partition_that_is_not_there(self, two: Parts) -> None:
        assert move(two, [1], index=5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_moves_of_some_partitions(self, two: Parts) -> None:
        move(two, [1])
        asked = [ListPartitionReassignmentsTopics("t", [3]), ListPartitionReassignmentsTopics("none", [0])]
        assert two.call(ListPartitionReassignmentsRequest(topics=asked)).topics == []


@pytest.mark.parametrize("timeout_ms", [0, 1000])
@pytest.mark.parametrize(
    "request_",
    [
        ElectLeadersRequest(0, [TopicPartitions("t", [0])]),
        AlterPartitionReassignmentsRequest(topics=[ReassignableTopic("t", [ReassignablePartition(0, [1])])]),
    ],
)
def test_a_change_beyond_its_timeout_is_done_and_answered_with_an_error(
    two: Parts, monkeypatch: pytest.MonkeyPatch, request_: Any, timeout_ms: int
) -> None:
    write, held = two.topics.write_states, Deferred[None]()

    def write_later(updates: Any, **_: Any) -> Deferred[None]:
        return held.addCallback(lambda _: write(updates))

    monkeypatch.setattr(two.topics, "write_states", write_later)
    request_.timeout_ms = timeout_ms
    before = state(two)
    waiting = two.ask(request_, schema_versions(request_.API_KEY)[1])
    if timeout_ms:
        assert not waiting.called
    two.time.advance(timeout_ms / 1000)
    assert result_of(waiting).error_code == ErrorCode.REQUEST_TIMED_OUT
    assert state(two) == before
    held.callback(None)
    assert state(two).partition_epoch == before.partition_epoch + 1


class TestLabels:
    @pytest.fixture
    def labelled(self, two: Parts) -> Parts:
        """Let broker 2 carry the label `logs`, and broker 1 `online`."""
        result_of(two.cluster.own.set_labels(("online",)))
        other = Broker(2, (Endpoint("PLAINTEXT", "other", 9092),), labels=("logs",))
        path = f"{BROKERS}/2"
        write = two.metadata.feed.write([SetData(path, encode_broker(other))], [path])
        result_of(Deferred.fromCoroutine(write))
        return two

    def ask(self, parts: Parts, replicas: list[int] | None, label: str | None = None) -> tuple[int, str | None]:
        topic = ReassignableTopic("t", [ReassignablePartition(0, replicas)], placement_label=label)
        response = parts.call(AlterPartitionReassignmentsRequest(topics=[topic]))
        (answer,) = response.responses[0].partitions
        return answer.error_code, answer.error_message

    def test_the_label_comes_with_the_moves(self, labelled: Parts) -> None:
        change(labelled, replace(state(labelled), replicas=(2,), isr=(2,)))
        assert self.ask(labelled, [1], "logs")[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert self.ask(labelled, [1], "on line")[0] == ErrorCode.INVALID_CONFIG
        assert self.ask(labelled, [1], "online") == (0, None)
        topic = labelled.topics.get("t")
        assert topic is not None and topic.configs["placement.label"] == "online"
        code, message = self.ask(labelled, None)
        assert code == ErrorCode.POLICY_VIOLATION
        assert message is not None and "pylogd topics relabel t" in message
        assert self.ask(labelled, [2])[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert self.ask(labelled, None, "logs") == (0, None)
        assert not state(labelled).moving

    def test_it_needs_alter_configs_on_the_topic(self, labelled: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(RequestContext, "may_change_topic", lambda *_: False)
        before = state(labelled)
        assert self.ask(labelled, [2], "logs")[0] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert state(labelled) is before
