"""Leader elections: whatever happens to the brokers, no decision breaks a rule."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

from hypothesis import assume, given
from hypothesis import strategies as st

from pylogd.broker.controller import decisions
from pylogd.broker.controller.decisions import Snapshot
from pylogd.broker.metadata.eligibility import withdraw
from pylogd.broker.metadata.image import NO_LEADER, Broker, Endpoint, PartitionState, Topic

NODES = range(1, 6)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Generate brokers: alive, shutting down, restarted without the controller noticing, and unknown ones."""
    alive = draw(st.sets(st.sampled_from(NODES)))
    stopping = draw(st.sets(st.sampled_from(NODES), max_size=2))
    known = draw(st.dictionaries(st.sampled_from(NODES), st.integers(1, 2)))
    brokers = {node: Broker(node, (Endpoint("P", "h", 1),), incarnation=2, stopping=node in stopping) for node in alive}
    return Snapshot(brokers, known)


@st.composite
def states(draw: st.DrawFn, index: int = 0) -> PartitionState:
    """Generate any partition state that the metadata store may hold."""
    replicas = tuple(draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=5, unique=True)))
    isr = tuple(draw(st.lists(st.sampled_from(replicas), unique=True)))
    leader = draw(st.sampled_from((*isr, NO_LEADER)))
    others = [node for node in replicas if node not in isr]
    elr = tuple(node for node in others if draw(st.booleans()))
    last_known_elr = tuple(node for node in others if node not in elr and draw(st.booleans()))
    last_known_leader = draw(st.sampled_from((*replicas, NO_LEADER))) if leader == NO_LEADER else NO_LEADER
    lost = ("d",) if not isr and not elr and not last_known_elr and draw(st.booleans()) else ()
    marks = draw(st.lists(st.sampled_from(["", "", "+", "-"]), min_size=len(replicas), max_size=len(replicas)))
    adding = tuple(node for node, mark in zip(replicas, marks, strict=True) if mark == "+")
    removing = tuple(node for node, mark in zip(replicas, marks, strict=True) if mark == "-")
    if len(removing) == len(replicas):
        removing = removing[1:]
    if len(adding) == len(replicas):
        adding = adding[1:]
    epochs = draw(st.integers(0, 3)), draw(st.integers(0, 9))
    return PartitionState(
        index, replicas, isr, leader, *epochs, adding, removing, None, elr, last_known_elr, last_known_leader, lost
    )


def has_all(before: PartitionState) -> set[int]:
    """Return the brokers with all committed records: those in sync or eligible; if there are none, the last known
    leader.
    """
    if before.isr or before.elr:
        return {*before.isr, *before.elr}
    return {before.last_known_leader} & set(before.last_known_elr)


def check(before: PartitionState, after: PartitionState, snapshot: Snapshot, unclean: bool) -> None:
    """Check what must hold for every decided change."""
    if after is before:
        return
    assert after.partition_epoch == before.partition_epoch + 1
    assert after.leader_epoch >= before.leader_epoch
    assert after.isr or not before.isr
    assert set(after.isr) <= set(after.replicas)
    assert not set(after.isr) & set(after.elr)
    assert not set(after.elr) & set(after.last_known_elr)
    assert {*after.elr, *after.last_known_elr} <= set(after.replicas)
    assert set(after.elr) <= {*before.isr, *before.elr}
    assert (after.last_known_leader == NO_LEADER) or after.leader == NO_LEADER
    if after.leader != before.leader:
        assert after.leader_epoch == before.leader_epoch + 1
    if after.leader != NO_LEADER:
        assert after.leader in after.isr
        assert after.leader in snapshot.brokers or after.leader == before.leader
        if not unclean:
            assert after.leader in has_all(before)
            assert set(after.isr) <= has_all(before)
        if after.leader != before.leader:
            assert not snapshot.brokers[after.leader].stopping


@given(states(), snapshots(), st.booleans(), st.integers(1, 3))
def test_a_settled_partition(before: PartitionState, snapshot: Snapshot, unclean: bool, least: int) -> None:
    after = decisions.settle(before, snapshot, unclean, least)
    check(before, after, snapshot, unclean)
    possible = [node for node in has_all(after) if snapshot.may_lead(node)]
    if after.leader == NO_LEADER:
        assert (after.isr, after.elr) == (before.isr, before.elr)  # each of them may lead next
        assert not possible
        assert not unclean or not any(snapshot.may_lead(node) for node in after.replicas)
    else:
        leader = snapshot.brokers[after.leader]  # the leader is alive
        assert not leader.stopping or not any(node in snapshot.open for node in before.isr)
        # The leader is alone in sync, or with replicas that have not restarted since and stay in sync.
        assert len(before.replicas) == 1 or set(after.isr) <= snapshot.open | {after.leader}
        # Brokers with all committed records stay eligible where nothing more can be committed without them.
        led_by_the_first_choice = after.leader in has_all(before) and not before.moving
        if led_by_the_first_choice and len(after.isr) < after.effective_min_insync(least) and len(before.replicas) > 1:
            assert {*after.isr, *after.elr} >= {*before.isr, *before.elr}
        elif len(before.replicas) > 1:
            assert not after.elr or before.moving
    # A leader whose log may be shorter than before leads in a new epoch.
    if before.leader == after.leader and after.leader not in snapshot.steady and len(before.replicas) > 1:
        assert after.leader == NO_LEADER or after.leader_epoch == before.leader_epoch + 1
    # Once the change is written and announced, there is nothing left to decide.
    written = Snapshot(snapshot.brokers, snapshot.incarnations)
    assert decisions.settle(after, written, unclean, least) is after


@given(states(), snapshots(), st.booleans(), st.integers(1, 3))
def test_the_short_way_of_usual_partitions_leads_to_the_same(
    before: PartitionState, snapshot: Snapshot, unclean: bool, least: int
) -> None:
    usual = replace(before, adding=(), removing=(), elr=(), last_known_elr=())
    after = decisions.settle(usual, snapshot, unclean, least)
    with patch.object(decisions, "_usual", lambda *_: None):
        assert decisions.settle(usual, snapshot, unclean, least) == after


@given(states(), snapshots(), st.sampled_from(NODES), st.booleans(), st.integers(1, 3))
def test_a_replica_that_lost_its_copy_is_elected_only_as_the_last_known_leader(
    before: PartitionState, snapshot: Snapshot, node: int, kept: bool, least: int
) -> None:
    withdrawn = withdraw(before, node, kept=kept, directories=["d"])
    if withdrawn is not before:
        assert withdrawn.partition_epoch == before.partition_epoch + 1
        assert withdrawn.leader_epoch == before.leader_epoch + (before.leader == node)
    assert node not in (withdrawn.leader, *withdrawn.isr, *withdrawn.elr)
    assert {*withdrawn.isr, *withdrawn.elr} == {*before.isr, *before.elr} - {node}
    assert node not in withdrawn.last_known_elr or kept
    after = decisions.settle(withdrawn, snapshot, min_insync=least)
    if node in (after.leader, *after.isr, *after.elr):
        assert not withdrawn.isr
        assert not withdrawn.elr
        assert kept
        assert after.leader == node == withdrawn.last_known_leader


@given(states(), snapshots())
def test_a_failed_broker_is_not_needed_for_the_next_decision(before: PartitionState, snapshot: Snapshot) -> None:
    """If the controller fails before it writes a decision, the next controller decides it again."""
    first = decisions.settle(before, snapshot)
    again = decisions.settle(before, snapshot)
    assert first == again


@given(states(), snapshots())
def test_a_preferred_leader_is_in_sync(before: PartitionState, snapshot: Snapshot) -> None:
    after = decisions.prefer(before, snapshot)
    if after is None:
        assert before.replicas[0] not in before.isr or before.replicas[0] not in snapshot.open
    else:
        check(before, after, snapshot, unclean=False)
        assert after.leader == before.replicas[0]


@given(states(), snapshots())
def test_an_unclean_election_finds_whoever_is_there(before: PartitionState, snapshot: Snapshot) -> None:
    after = decisions.elect_unclean(before, snapshot)
    if after is None:
        assert not any(snapshot.may_lead(node) for node in before.replicas)
    else:
        check(before, after, snapshot, unclean=True)


@given(states(), snapshots(), st.lists(st.sampled_from(NODES), min_size=1, max_size=4, unique=True))
def test_a_move_loses_nobody_in_sync_who_stays(before: PartitionState, snapshot: Snapshot, target: list[int]) -> None:
    after = decisions.move(before, target, snapshot)
    if after is None:
        return
    check(before, after, snapshot, unclean=False)
    assert after.target == tuple(target)
    assert set(decisions.origin(after)) == set(decisions.origin(before))
    assert set(after.isr) == set(before.isr) & set(after.replicas)
    back = decisions.move(after, decisions.origin(after), snapshot)
    if back is not None:
        assert not back.moving
        assert set(back.replicas) == set(decisions.origin(before))


@given(states(), st.lists(st.sampled_from(NODES), min_size=1, max_size=4, unique=True))
def test_a_move_is_over_once_all_that_stay_are_in_sync(before: PartitionState, target: list[int]) -> None:
    brokers = {node: Broker(node, (Endpoint("P", "h", 1),), incarnation=1) for node in NODES}
    snapshot = Snapshot(brokers)
    moving = decisions.move(before, target, snapshot)
    if moving is None:
        return
    led = decisions.settle(moving, snapshot)
    assume(led.leader != NO_LEADER)
    joined = replace(led, isr=led.replicas)
    after = decisions.settle(joined, snapshot)
    assert after.replicas == tuple(target)
    assert set(after.isr) == set(target)
    assert after.leader in target
    assert not after.moving


@given(st.lists(states(), min_size=1, max_size=6), snapshots(), st.integers(0, 100))
def test_balance_touches_only_what_it_should(found: list[PartitionState], snapshot: Snapshot, percentage: int) -> None:
    partitions = tuple(replace(state, index=index) for index, state in enumerate(found))
    topic = Topic("t", bytes(16), partitions, {})
    for update in decisions.imbalanced(snapshot, [topic], percentage):
        assert update.before is topic
        for before, after in zip(partitions, update.after, strict=True):
            check(before, after, snapshot, unclean=False)
            assert after is before or (after.leader == before.replicas[0] and not before.moving)


@given(st.lists(states(), min_size=1, max_size=6), snapshots())
def test_all_partitions_are_decided_in_one_pass(found: list[PartitionState], snapshot: Snapshot) -> None:
    partitions = tuple(replace(state, index=index) for index, state in enumerate(found))
    topics = [Topic("t", bytes(16), partitions, {}), Topic("u", bytes(15) + b"u", partitions[:1], {})]
    settled = decisions.settle_all(snapshot, topics, frozenset({"u"}), lambda _: 1)
    updates = {update.before.name: update for update in settled}
    for topic in topics:
        wanted = tuple(decisions.settle(state, snapshot, topic.name == "u") for state in topic.partitions)
        found_after = updates[topic.name].after if topic.name in updates else topic.partitions
        assert found_after == wanted
        assert (topic.name in updates) == (wanted != topic.partitions)
