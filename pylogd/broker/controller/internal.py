"""Add replicas to internal topics that were created when the cluster had fewer brokers: pure functions.

Strategy: `__consumer_offsets` is created when a client first asks for a group, `__transaction_state` when a client
first asks for a transactional id. They get as many replicas as there are brokers then, so that a single broker works.
Whenever brokers or the topic change, the controller adds replicas until there are as many as the topic's setting asks
for, or as there are brokers. It does this by an ordinary reassignment.

Rules:
- New replicas are on brokers that carry the partition's label and are not cordoned; the number of these brokers counts.
- Replicas are only added. If there are more than the setting asks for, an operator wanted them.
- A partition with a reassignment in progress, or without a leader, is checked again after its next change.
- The replicas, of which the first is the preferred leader, get the order that they would have in a new topic, so that
  coordinators are spread over the brokers.

Must not know: stores, who carries the decisions out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pylogd.base.placement.new import place_new
from pylogd.broker.controller import decisions
from pylogd.broker.controller.decisions import Snapshot
from pylogd.broker.metadata.image import NO_LEADER, PartitionState, Topic, TopicUpdate
from pylogd.broker.metadata.labels import candidates, label_at
from pylogd.config import Settings
from pylogd.store.paths import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

#: For each internal topic the setting with the number of its replicas.
FACTORS: Final = {
    OFFSETS_TOPIC: "offsets.topic.replication.factor",
    TRANSACTIONS_TOPIC: "transaction.state.log.replication.factor",
}


def grow(snapshot: Snapshot, topics: Iterable[Topic], settings: Settings) -> list[TopicUpdate]:
    """Return the updates of internal topics whose partitions need more replicas."""
    updates: list[TopicUpdate] = []
    for topic in topics:
        if topic.name in FACTORS:
            updates += _grow(snapshot, topic, settings.integer(FACTORS[topic.name]))
    return updates


def _grow(snapshot: Snapshot, topic: Topic, factor: int) -> list[TopicUpdate]:
    brokers = candidates({node: snapshot.brokers[node] for node in snapshot.open})
    labels = [label_at(topic.configs, state.index) for state in topic.partitions]
    factors, wanted = dict[str, int](), dict[str, list[tuple[int, ...]]]()
    for label in set(labels):
        most = factors[label] = min(factor, brokers.machines(brokers.open(label)))
        if any(_is_small(state, most) for state in topic.partitions if labels[state.index] == label):
            wanted[label] = place_new(brokers, len(labels), most, label=label)
    if not wanted:
        return []

    def change(_: Topic, state: PartitionState) -> PartitionState:
        label = labels[state.index]
        if not _is_small(state, factors[label]):
            return state
        target = _target(state.replicas, wanted[label][state.index], factors[label])
        return decisions.move(state, target, snapshot) or state

    return decisions.updates_of([topic], change)


def _is_small(state: PartitionState, factor: int) -> bool:
    return len(state.replicas) < factor and not state.moving and state.leader != NO_LEADER


def _target(present: tuple[int, ...], wanted: tuple[int, ...], factor: int) -> tuple[int, ...]:
    """Return the present replicas and the first missing ones of the wanted, in the order of the wanted ones."""
    added = [node for node in wanted if node not in present][: factor - len(present)]
    ordered = [node for node in wanted if node in present or node in added]
    return (*ordered, *(node for node in present if node not in wanted))
