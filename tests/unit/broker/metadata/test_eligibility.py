"""Eligible leader replicas, which every change of an in-sync set updates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pylogd.broker.metadata.eligibility import commits, led_by, min_insync_of, restore, with_isr, withdraw
from pylogd.broker.metadata.errors import IneligibleReplica
from pylogd.broker.metadata.image import NO_LEADER, IsrChange, PartitionState, Topic
from pylogd.broker.metadata.layout import Assignment, decode_states, encode_states
from pylogd.config import Settings
from pylogd.store.paths import BROKERS
from pylogd.store.sqlite import SqliteStore
from tests.fakes.metadata import result_of
from tests.unit.broker.metadata.conftest import Peer

WHOLE = PartitionState(0, (1, 2, 3), (1, 2, 3), 1)


def test_replicas_that_leave_a_large_enough_set_are_not_eligible() -> None:
    state = with_isr(WHOLE, (1, 2), 2)
    assert (state.isr, state.elr) == ((1, 2), ())
    assert commits(state, 2)


def test_replicas_that_leave_a_too_small_set_are_eligible_until_it_is_large_enough() -> None:
    state = with_isr(with_isr(WHOLE, (1, 2), 2), (1,), 2)
    assert (state.isr, state.elr) == ((1,), (2,))
    assert not commits(state, 2)
    assert not commits(state, 1)  # written by a broker with another value of the setting
    assert with_isr(state, (1, 3), 2).elr == ()
    assert with_isr(state, (1,), 1).elr == ()


@pytest.mark.parametrize(("replicas", "adding", "wanted"), [((1,), (), 1), ((1, 2, 3), (2, 3), 1), ((1, 2, 3), (), 2)])
def test_no_more_replicas_are_asked_for_than_there_are(
    replicas: tuple[int, ...], adding: tuple[int, ...], wanted: int
) -> None:
    state = PartitionState(0, replicas, (1,), 1, adding=adding)
    assert state.effective_min_insync(2) == wanted
    assert commits(state, 2) == (wanted == 1)


def test_a_lost_copy_is_not_eligible() -> None:
    state = replace(WHOLE, replicas=(2, 3), isr=(3,), elr=(2,), leader=NO_LEADER, last_known_leader=3)
    after = withdraw(state, 3, kept=False, directories=["x"])
    assert (after.isr, after.elr, after.last_known_elr, after.lost) == ((), (2,), (), ())
    assert after.partition_epoch == state.partition_epoch + 1
    assert withdraw(after, 3, kept=False) is after


def test_the_last_lost_copy_is_remembered_by_its_directories_and_may_return() -> None:
    state = withdraw(PartitionState(0, (3,), (3,), 3), 3, kept=False, directories=["y", "x"])
    assert (state.leader, state.isr, state.last_known_leader, state.lost) == (NO_LEADER, (), 3, ("x", "y"))
    assert state.leader_epoch == 1
    assert restore(state, 3, "z") is state
    assert restore(state, 2, "x") is state
    back = restore(state, 3, "x")
    assert (back.last_known_elr, back.lost) == ((3,), ())
    assert led_by(replace(back, isr=(3,)), 3).last_known_leader == NO_LEADER


def test_a_suspect_copy_leads_only_if_there_is_no_other() -> None:
    state = withdraw(replace(WHOLE, isr=(1, 2)), 1, kept=True)
    assert (state.leader, state.isr, state.last_known_elr, state.last_known_leader) == (NO_LEADER, (2,), (1,), 1)
    state = withdraw(state, 2, kept=True)
    assert (state.isr, state.last_known_elr, state.last_known_leader) == ((), (1, 2), 1)
    assert withdraw(state, 2, kept=True) is state
    assert withdraw(state, 1, kept=False).last_known_elr == (2,)


@pytest.mark.parametrize(
    "state",
    [
        WHOLE,
        replace(WHOLE, isr=(1,), elr=(2, 3)),
        replace(WHOLE, isr=(), leader=NO_LEADER, last_known_leader=2, last_known_elr=(2, 1), lost=("x",)),
    ],
)
def test_the_tree_keeps_it(state: PartitionState) -> None:
    assignment = Assignment.of(bytes(16), [state])
    assert decode_states("/t", encode_states(7, [state]), assignment) == (7, (state,))


def test_a_topics_own_setting_goes_before_the_brokers() -> None:
    settings = Settings({"min.insync.replicas": 3})
    assert min_insync_of(settings, Topic("t", bytes(16), (), {})) == 3
    assert min_insync_of(settings, Topic("t", bytes(16), (), {"min.insync.replicas": "2"})) == 2


def make(peer: Peer) -> Topic:
    configs = {"min.insync.replicas": "2"}
    return result_of(peer.topic_admin.create_topic("t", assignment={0: (1, 2, 3)}, configs=configs))


def change(topic: Topic, isr: tuple[int, ...], epochs: dict[int, int] | None = None) -> IsrChange:
    state = topic.partitions[0]
    return IsrChange("t", topic.topic_id, 0, state.leader_epoch, state.partition_epoch, isr, epochs or {})


def test_a_leader_that_shrinks_its_set_keeps_who_left_eligible(store: SqliteStore) -> None:
    peers = [Peer(store, node) for node in (1, 2, 3)]
    (state,) = result_of(peers[0].isr_writer.alter([change(make(peers[0]), (1,))]))
    assert isinstance(state, PartitionState)
    assert (state.isr, state.elr) == ((1,), (2, 3))
    seen = peers[2].topics.get("t")
    assert seen is not None
    assert seen.partitions == (state,)


def test_a_broker_that_re_registered_since_it_was_complete_may_not_join(store: SqliteStore) -> None:
    """KIP-903: also if the leader does not know the new broker epoch yet."""
    peers = [Peer(store, node) for node in (1, 2, 3)]
    make(peers[0])
    result_of(peers[0].isr_writer.alter([change(peers[0].topics.all()[0], (1,))]))
    topic = peers[0].topics.all()[0]
    seen = peers[1].cluster.epoch
    (unheard,) = result_of(peers[0].isr_writer.alter([change(topic, (1, 2), {2: seen - 1})]))
    assert isinstance(unheard, IneligibleReplica)
    stale = dict(peers[0].cluster._brokers)
    result_of(store.delete(f"{BROKERS}/2"))
    result_of(peers[1].cluster.register(stale[2]))
    peers[0].cluster._brokers = stale  # it does not know the new broker epoch yet
    (late,) = result_of(peers[0].isr_writer.alter([change(topic, (1, 2), {2: seen})]))
    assert isinstance(late, IneligibleReplica)
    assert peers[0].topics.all()[0] is topic
    (joined,) = result_of(peers[0].isr_writer.alter([change(topic, (1, 2), {2: peers[1].cluster.epoch})]))
    assert isinstance(joined, PartitionState)
    assert (joined.isr, joined.elr) == ((1, 2), ())
