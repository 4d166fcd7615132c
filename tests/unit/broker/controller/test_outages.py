"""Replicas on failed and full log directories: which brokers lead, and which stay in sync."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pylogd.broker.controller import decisions
from pylogd.broker.controller.decisions import Snapshot
from pylogd.broker.metadata.image import NO_LEADER, Broker, Endpoint, Outages, PartitionState, Topic

TOPIC_ID = bytes(15) + b"\x07"


def topic(state: PartitionState) -> Topic:
    return Topic("t", TOPIC_ID, (state,), {})


def snapshot(offline: tuple[int, ...] = (), full: tuple[int, ...] = (), dead: tuple[int, ...] = ()) -> Snapshot:
    """Return brokers 1 to 3, some of which have the partition on a failed or full directory."""
    key = frozenset({(TOPIC_ID, 0)})
    none: frozenset[tuple[bytes, int]] = frozenset()
    return Snapshot(
        {
            node: Broker(
                node, (Endpoint("P", "h", 1),), incarnation=1,
                outages=Outages(key if node in offline else none, key if node in full else none),
            )
            for node in (1, 2, 3)
            if node not in dead
        }
    )  # fmt: skip


def settled(state: PartitionState, brokers: Snapshot, *, unclean: bool = False) -> PartitionState:
    names = frozenset({"t"}) if unclean else frozenset()
    updates = decisions.settle_all(brokers, [topic(state)], names, lambda _: 2)
    return updates[0].after[0] if updates else state


STATE = PartitionState.initial(0, (1, 2, 3))


@pytest.mark.parametrize("kind", ["offline", "full"])
def test_the_leader_moves_and_leaves_the_in_sync_set(kind: str) -> None:
    after = settled(STATE, snapshot(**{kind: (1,)}))
    assert (after.leader, after.leader_epoch, after.isr) == (2, 1, (2, 3))


@pytest.mark.parametrize("kind", ["offline", "full"])
def test_a_follower_leaves_the_in_sync_set(kind: str) -> None:
    after = settled(STATE, snapshot(**{kind: (2,)}))
    assert (after.leader, after.leader_epoch, after.isr) == (1, 0, (1, 3))


def test_the_last_in_sync_replica_stays_and_leads_again_when_it_is_back() -> None:
    alone = replace(STATE, isr=(1,))
    after = settled(alone, snapshot(offline=(1,)))
    assert (after.leader, after.leader_epoch, after.partition_epoch) == (NO_LEADER, 1, 1)
    assert settled(after, snapshot(offline=(1,))) is after
    back = settled(after, snapshot())
    assert (back.leader, back.isr, back.leader_epoch) == (1, (1,), 2)


def test_a_copy_in_a_failed_directory_is_not_eligible() -> None:
    two = replace(STATE, isr=(1, 2))
    after = settled(two, snapshot(offline=(1,), dead=(3,)))
    assert (after.leader, after.isr, after.elr, after.last_known_elr) == (2, (2,), (), (1,))
    assert (after.leader_epoch, after.partition_epoch) == (1, 1), "it is one change"
    # Broker 2 fails, and the directory of 1 returns; 1 may lack records that 2 acknowledged meanwhile.
    gone = settled(after, snapshot(dead=(2, 3)))
    assert gone.leader == NO_LEADER
    assert settled(gone, snapshot()).leader == 2


def test_a_complete_replica_is_elected_before_one_on_a_failed_directory() -> None:
    """One of two replicas with all records is in sync; its directory fails while the other broker is down."""
    state = replace(STATE, isr=(1,), elr=(2,))
    after = settled(state, snapshot(offline=(1,), dead=(2,)))
    assert after.leader == NO_LEADER
    back = settled(after, snapshot(dead=(2,)))
    assert back.leader == NO_LEADER
    assert settled(back, snapshot()).leader == 2


def test_an_unclean_election_passes_over_a_failed_directory() -> None:
    alone = replace(STATE, isr=(1,))
    assert settled(alone, snapshot(offline=(1, 2)), unclean=True).leader == 3


def test_a_leader_with_a_full_volume_leads_on_where_nobody_else_can() -> None:
    alone = replace(STATE, isr=(1,))
    assert settled(alone, snapshot(full=(1,))) is alone
    both = replace(STATE, isr=(1, 2))
    assert settled(both, snapshot(full=(1, 2))) is both, "nobody has room: all can still be read"


def test_a_full_volume_is_read_where_nobody_else_is_left() -> None:
    both = replace(STATE, isr=(1, 2))
    after = settled(both, snapshot(full=(2,), dead=(1,)))
    assert (after.leader, after.isr) == (2, (2,))
    three = settled(STATE, snapshot(full=(2,), dead=(1,)))
    assert (three.leader, three.isr) == (3, (3,))


def test_the_only_replica_does_not_lead_while_its_directory_is_offline() -> None:
    single = PartitionState.initial(0, (1,))
    after = settled(single, snapshot(offline=(1,)))
    assert after.leader == NO_LEADER
    assert settled(after, snapshot()).leader == 1
    assert settled(single, snapshot(full=(1,))) is single


@pytest.mark.parametrize("kind", ["offline", "full"])
def test_the_preferred_leader_is_not_elected_while_its_directory_is_offline(kind: str) -> None:
    moved = replace(STATE, leader=2, leader_epoch=1)
    out = snapshot(**{kind: (1,)})
    assert decisions.prefer(moved, out.of(TOPIC_ID, 0)) is None
    assert decisions.imbalanced(out, [topic(moved)], 0) == []
    assert decisions.prefer(moved, snapshot()) is not None


def test_other_partitions_of_the_broker_are_not_touched() -> None:
    other = Topic("u", bytes(15) + b"\x08", (STATE,), {})
    assert decisions.settle_all(snapshot(offline=(1,), full=(2,)), [other], frozenset(), lambda _: 1) == []
