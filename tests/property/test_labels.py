"""Labels: no placement leaves the topic's label, and replicas are spread over the racks within it."""

from __future__ import annotations

from collections import Counter

from hypothesis import assume, given
from hypothesis import strategies as st

from pylogd.broker.controller import internal
from pylogd.broker.controller.decisions import Snapshot
from pylogd.broker.metadata.assignment import assign_replicas
from pylogd.broker.metadata.image import Broker, Endpoint, Outages, PartitionState, Topic
from pylogd.broker.metadata.labels import candidates, carries, check_within, misplaced, with_label
from pylogd.config import Settings
from pylogd.store.paths import OFFSETS_TOPIC

LABELS = ("online", "logs", "ssd")


@st.composite
def clusters(draw: st.DrawFn) -> dict[int, Broker]:
    """Generate live brokers with any labels, racks, or none, some of them cordoned."""
    nodes = draw(st.sets(st.integers(1, 12), min_size=1))
    racks = draw(st.sampled_from([None, ["a"], ["a", "b"], ["a", "b", "c"]]))
    return {
        node: Broker(
            node,
            (Endpoint("P", "h", 1),),
            None if racks is None else draw(st.sampled_from(racks)),
            outages=Outages(cordoned=draw(st.sampled_from([False, False, False, True]))),
            labels=tuple(draw(st.sets(st.sampled_from(LABELS)))),
        )
        for node in nodes
    }


labels = st.sampled_from(("", *LABELS))


@given(clusters(), labels, st.integers(1, 30), st.data())
def test_new_topics(brokers: dict[int, Broker], label: str, partitions: int, data: st.DataObject) -> None:
    found = candidates(brokers)
    racks = {node: brokers[node].rack for node in found.open(label)}
    assume(racks)
    factor = data.draw(st.integers(1, len(racks)))
    made = assign_replicas(found, partitions, factor, start=data.draw(st.integers(0, 1000)), label=label)
    nodes = {node for replicas in made for node in replicas}
    assert all(carries(brokers[node], label) and not brokers[node].outages.cordoned for node in nodes)
    check_within(nodes, label, brokers, {})
    distinct = set(racks.values()) - {None}
    if distinct:
        for replicas in made:
            assert len({racks[node] for node in replicas}) == min(factor, len(distinct)), "spread within the label"
    topic = Topic("t", bytes(16), tuple(PartitionState.initial(*one) for one in enumerate(made)), with_label({}, label))
    assert not any(misplaced(topic, state, brokers) for state in topic.partitions)


@given(clusters(), labels, st.integers(1, 5), st.data())
def test_internal_topics_grow_within_their_label(
    brokers: dict[int, Broker], label: str, factor: int, data: st.DataObject
) -> None:
    present = data.draw(st.lists(st.sampled_from(sorted(brokers)), min_size=1, max_size=3, unique=True))
    state = PartitionState.initial(0, tuple(present))
    topic = Topic(OFFSETS_TOPIC, bytes(16), (state,), with_label({}, label))
    settings = Settings({"offsets.topic.replication.factor": factor})
    updates = internal.grow(Snapshot(brokers), [topic], settings)
    racks = set(candidates(brokers).open(label))
    after = updates[0].after[0] if updates else state
    assert set(after.target) >= set(present), "only added"
    added = Counter(after.target) - Counter(present)
    assert added.keys() <= racks
    if set(present) <= racks:
        assert len(after.target) == max(len(present), min(factor, len(racks)))
