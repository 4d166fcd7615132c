"""Decisions about very many partitions: made in slices, and right whatever happens between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.broker.controller import controller
from pylogd.broker.controller.controller import Controller
from pylogd.broker.controller.election import RETRY_SECONDS
from pylogd.broker.metadata.image import Broker, Endpoint, TopicUpdate
from pylogd.broker.metadata.layout import decode_incarnations, encode_broker
from pylogd.store.errors import ConnectionLost
from pylogd.store.interfaces import Create, Delete, Operation, SessionState
from pylogd.store.paths import BROKERS, CHANGES, INCARNATIONS
from tests.fakes.metadata import result_of
from tests.unit.broker.controller.conftest import FakeCluster

_TOPICS = 9
_NAMES = [f"t{number}" for number in range(_TOPICS)]


class Many:
    """Three brokers with more topics than the controller decides on, or writes, at once; and the reactor's turns."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.waiting: list[Deferred[None]] = []
        for name in _NAMES:
            cluster.make(name)

    def next_turn(self) -> Deferred[None]:
        """Wait for the test."""
        self.waiting.append(Deferred())
        return self.waiting[-1]

    def go_on(self) -> None:
        """Let the next slice have its turn."""
        self.waiting.pop().callback(None)
        self.cluster.settle()

    def finish(self) -> None:
        """Let all slices have their turns."""
        while self.waiting:
            self.go_on()

    @property
    def acknowledged(self) -> dict[int, int]:
        """The incarnations for which decisions have been made."""
        return decode_incarnations(result_of(self.cluster.store.get(INCARNATIONS)).data)


@pytest.fixture
def many(three: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Many:
    made = Many(three)
    monkeypatch.setattr(controller, "_SLICE_PARTITIONS", 2)
    monkeypatch.setattr(controller, "_WRITE_TOPICS", 4)
    monkeypatch.setattr(Controller, "_next_turn", lambda _: made.next_turn())
    return made


def test_a_slice_a_turn_and_few_writes(many: Many) -> None:
    written = result_of(many.cluster.store.get(CHANGES)).stat.version
    many.cluster.die(1)
    assert all(many.cluster.state(name).leader == 1 for name in _NAMES)
    assert 1 in many.acknowledged
    turns = 0
    while 1 in many.acknowledged:  # it is written last
        assert any(many.cluster.state(name).leader == 1 for name in _NAMES)
        many.go_on()
        turns += 1
    assert turns == 4
    assert all(many.cluster.state(name).leader == 2 for name in _NAMES)
    many.finish()
    assert result_of(many.cluster.store.get(CHANGES)).stat.version == written + 3 + 1


def test_no_decision_waits_for_writes_under_way_but_that_all_have_been_made(
    many: Many, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = many.cluster.store
    held: list[tuple[Sequence[Operation], Deferred[Any]]] = []
    write = store.multi

    def multi(operations: Sequence[Operation]) -> Deferred[Any]:
        held.append((operations, Deferred()))
        return held[-1][1]

    many.cluster.die(1)
    monkeypatch.setattr(store, "multi", multi)
    turns = 0
    while many.waiting:
        many.go_on()
        turns += 1
    assert turns == 4 and len(held) == 3  # all slices had their turns
    assert sum(f"/{name}/" in one.path for operations, _ in held for one in operations for name in _NAMES) == _TOPICS
    monkeypatch.setattr(store, "multi", write)
    for operations, done in held:
        assert 1 in many.acknowledged
        write(operations).chainDeferred(done)
    many.finish()
    assert all(many.cluster.state(name).leader == 2 for name in _NAMES)
    assert 1 not in many.acknowledged


def test_after_a_failed_write_the_others_are_waited_for(many: Many, monkeypatch: pytest.MonkeyPatch) -> None:
    store = many.cluster.store
    held: list[Deferred[Any]] = []
    write = store.multi

    def multi(_: Sequence[Operation]) -> Deferred[Any]:
        held.append(Deferred())
        return held[-1]

    many.cluster.die(1)
    monkeypatch.setattr(store, "multi", multi)
    many.finish()
    monkeypatch.setattr(store, "multi", write)
    held[0].errback(ConnectionLost("of the test"))
    many.cluster.clock.advance(RETRY_SECONDS)
    assert 1 in many.acknowledged  # nothing was decided again yet
    for other in held[1:]:
        other.errback(ConnectionLost("of the test"))
    many.cluster.clock.advance(RETRY_SECONDS)
    many.finish()
    assert all(many.cluster.state(name).leader == 2 for name in _NAMES)
    assert 1 not in many.acknowledged


def test_a_topic_that_changes_before_it_is_written_is_decided_again(many: Many) -> None:
    """Broker 1 registers again unnoticed. Until the decisions for that are written, it may be in no in-sync set."""
    cluster = many.cluster
    cluster.bounce(1)
    topic = cluster.peers[2].topics.get(_NAMES[0])
    assert topic is not None
    assert topic.partitions[0].isr == (1, 2, 3)  # decided, but not written
    state = replace(topic.partitions[0], isr=(1, 2), partition_epoch=5)
    result_of(cluster.peers[2].topics.write_states([TopicUpdate(topic, (state,))]))
    result_of(cluster.peers[2].topic_admin.delete_topic(_NAMES[1]))
    while many.acknowledged[1] != cluster.peers[1].cluster.brokers[1].incarnation:
        many.go_on()
    assert cluster.state(_NAMES[0]).isr == (2,)
    assert all(cluster.state(name).isr == (2, 3) for name in _NAMES[2:])
    many.finish()


def test_who_is_deposed_between_slices_writes_nothing_more(many: Many) -> None:
    many.cluster.die(1)
    many.cluster.controllers[1]._election.depose("of the test")
    many.finish()
    assert 1 in many.acknowledged
    assert all(many.cluster.state(name).leader == 1 for name in _NAMES)


def test_after_a_lost_connection_the_controller_misses_no_registration(three: FakeCluster) -> None:
    """One of a release that announces nothing has replaced another one, and no watch was there to tell."""
    three.make()
    path = f"{BROKERS}/1"
    three.store._tree.forget_watches(lambda _: True)
    old: Any = Broker(1, (Endpoint("PLAINTEXT", "old release", 9092),), announced=False)
    result_of(three.store.multi([Delete(path), Create(path, encode_broker(old), ephemeral=True)]))
    three.settle()
    assert three.state().isr == (1, 2, 3)
    three.store._tell(SessionState.SUSPENDED)
    three.store._tell(SessionState.CONNECTED)
    three.settle()
    assert (three.state().leader, three.state().isr) == (2, (2, 3))
