"""Smooth expansion: the end of a wait holds only for the replicas that the leader saw."""

from __future__ import annotations

from typing import Any

import pytest

from pylogd.broker.controller.admin import PartitionAdmin
from pylogd.broker.metadata.errors import IneligibleReplica, StalePartition
from pylogd.broker.metadata.image import PartitionState, SmoothWait
from pylogd.broker.metadata.layout import broker_epoch_path
from pylogd.store.sqlite import SqliteStore
from tests.fakes.metadata import result_of
from tests.unit.broker.metadata.conftest import Peer

HOUR_MS = 3_600_000


class Case:
    """Partitions 0 and 1 of t are moved from broker 2 to brokers 3 and 4, smoothly; broker 1 leads both."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.peers = {node: Peer(store, node) for node in range(1, 5)}
        self.one = self.peers[1]
        self.now_ms = 0
        self.admin = PartitionAdmin(
            self.one.cluster, self.one.topics, self.one.topic_admin.room_on, lambda: self.now_ms
        )
        result_of(self.one.topic_admin.create_topic("t", assignment={0: [1, 2], 1: [1, 2]}))
        self.move(0, [1, 3])
        self.move(1, [1, 4])

    def move(self, index: int, nodes: list[int] | None) -> None:
        assert result_of(self.admin.move({("t", index): nodes}, latest_wait_ms=HOUR_MS)) == {("t", index): None}

    def state(self, index: int) -> PartitionState:
        topic = self.one.topics.get("t")
        assert topic is not None
        return topic.partitions[index]

    def wait(self, index: int) -> SmoothWait:
        """Return the wait of a partition as its leader sees it now."""
        state = self.state(index)
        assert state.latest_until_ms is not None
        return SmoothWait(state.latest_until_ms, {node: self.peers[node].cluster.epoch for node in state.adding})

    def register_again(self, node: int) -> None:
        """Have a broker register again, of which broker 1 has not heard."""
        path = broker_epoch_path(node)
        result_of(self.store.set(path, result_of(self.store.get(path)).data))

    def release(self, waits: dict[int, SmoothWait]) -> list[Any]:
        outcomes = result_of(self.admin.release({("t", index): wait for index, wait in waits.items()}))
        return [outcomes["t", index] for index in waits]


@pytest.fixture
def case(store: SqliteStore) -> Case:
    return Case(store)


def test_a_wait_is_ended(case: Case) -> None:
    assert case.release({0: case.wait(0), 1: case.wait(1)}) == [None, None]
    assert [case.state(index).latest_until_ms for index in (0, 1)] == [0, 0]


def test_a_wait_is_not_ended_for_a_replica_whose_broker_has_registered_again(case: Case) -> None:
    waits = {0: case.wait(0), 1: case.wait(1)}
    case.register_again(3)
    first, second = case.release(waits)
    assert isinstance(first, IneligibleReplica)
    assert "broker 3 has registered again" in str(first)
    assert second is None
    assert [case.state(index).latest_until_ms for index in (0, 1)] == [HOUR_MS, 0]


def test_a_wait_of_another_reassignment_is_not_ended(case: Case) -> None:
    wait = case.wait(0)
    case.move(0, None)
    case.now_ms = 1
    case.move(0, [1, 3])
    assert [type(one) for one in case.release({0: wait})] == [StalePartition]
    assert case.state(0).latest_until_ms == HOUR_MS + 1


def test_a_wait_is_not_ended_for_a_replica_that_was_not_seen(case: Case) -> None:
    wait = case.wait(0)
    case.move(0, [1, 3, 4])
    assert [type(one) for one in case.release({0: wait})] == [StalePartition]
    assert case.state(0).latest_until_ms == HOUR_MS
