"""How internal topics get the replicas that they were too early for: pure functions over a snapshot of the tree.

Strategy: `__consumer_offsets` is made when a group is first asked for, with as many replicas as there are brokers then,
so that one broker works by itself. Whenever brokers or the topic change, the controller begins to add replicas until
there are as many as the topic's setting asks for, or as there are brokers. It is a reassignment like any other: who is
added reads all of the log, and counts once it is in sync.

Rules:
- Replicas are added, never taken away: with more than the setting asks for, somebody wanted them.
- A partition that is being moved, or that nobody leads, is looked at again when that is over.
- The order of the replicas, whose first is the preferred leader, becomes that of a topic made now, so that groups
  spread over the brokers.

Must not know: stores, who carries it out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pylogd.config import Settings
from pylogd.controller import decisions
from pylogd.controller.decisions import Snapshot
from pylogd.metadata.assignment import assign_replicas
from pylogd.metadata.image import NO_LEADER, OFFSETS_TOPIC, PartitionState, Topic, TopicUpdate

#: The setting that says how many replicas an internal topic should have.
FACTORS: Final = {OFFSETS_TOPIC: "offsets.topic.replication.factor"}


def grow(snapshot: Snapshot, topics: Iterable[Topic], settings: Settings) -> list[TopicUpdate]:
    """Return the internal topics of which partitions get more replicas, with what those partitions become."""
    updates: list[TopicUpdate] = []
    for topic in topics:
        if topic.name in FACTORS:
            updates += _grow(snapshot, topic, settings.integer(FACTORS[topic.name]))
    return updates


def _grow(snapshot: Snapshot, topic: Topic, factor: int) -> list[TopicUpdate]:
    racks = {node: snapshot.brokers[node].rack for node in snapshot.open}
    factor = min(factor, len(racks))
    if not any(_is_small(state, factor) for state in topic.partitions):
        return []
    wanted = assign_replicas(racks, len(topic.partitions), factor)

    def change(_: Topic, state: PartitionState) -> PartitionState:
        if not _is_small(state, factor):
            return state
        target = _target(state.replicas, wanted[state.index], factor)
        return decisions.move(state, target, snapshot) or state

    return decisions.updates_of([topic], change)


def _is_small(state: PartitionState, factor: int) -> bool:
    return len(state.replicas) < factor and not state.moving and state.leader != NO_LEADER


def _target(present: tuple[int, ...], wanted: tuple[int, ...], factor: int) -> tuple[int, ...]:
    """Return the present replicas and as many of the wanted ones as there is need for, in the order of the latter."""
    added = [node for node in wanted if node not in present][: factor - len(present)]
    ordered = [node for node in wanted if node in present or node in added]
    return (*ordered, *(node for node in present if node not in wanted))
