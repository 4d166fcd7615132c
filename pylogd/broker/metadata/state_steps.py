"""Changes of partition states as steps from the states before, which take about a byte for each partition.

Strategy: when brokers fail, thousands of partitions change in a few ways, such as "the first replica has left the
in-sync set, and the second leads". Such a change is a `Step`, in which replicas are named by their position in the
partition's list. Many partitions take the same step, so a note about all of them is short, and quickly decoded.

Rules: steps must be applied to the very states from which they were computed; the versions of the nodes show this. A
change that also concerns eligible replicas, or a partition without a leader, is no step; its state is sent in full.

Must not know: notes, nodes, stores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pylogd.broker.metadata.image import NO_LEADER, PartitionState

#: The leader's position, the increments of the leader epoch and of the partition epoch, the positions of the replicas
#: in sync.
Step = tuple[int, ...]


class Steps(NamedTuple):
    """The steps of the partitions of a topic that change, by index, in ascending order."""

    controller_epoch: int
    steps: Mapping[int, Step]

    def apply(self, before: Sequence[PartitionState]) -> tuple[PartitionState, ...]:
        """Return the states that follow from the states before. Raises IndexError if they do not fit the steps."""
        after = list(before)
        for index, step in self.steps.items():
            after[index] = _next(before[index], step)
        return tuple(after)


def steps_between(
    controller_epoch: int, before: Sequence[PartitionState], changed: Sequence[PartitionState]
) -> Steps | None:
    """Return the steps from the states before to some new states; None if one of the changes is no step.

    before: the states of all partitions.
    changed: the new states, in order of their index. Replicas and reassignments must be unchanged.
    """
    steps: dict[int, Step] = {}
    for new in changed:
        step = _step(before[new.index], new)
        if step is None:
            return None
        steps[new.index] = step
    return Steps(controller_epoch, steps)


def _step(old: PartitionState, new: PartitionState) -> Step | None:
    if new.elr or new.last_known_elr or new.last_known_leader != NO_LEADER or new.lost:
        return None
    leader_epochs, partition_epochs = new.leader_epoch - old.leader_epoch, new.partition_epoch - old.partition_epoch
    if leader_epochs < 0 or partition_epochs < 0:
        return None
    position, isr = old.replicas.index, new.isr
    try:
        if len(isr) == 2:  # the case when one of three brokers has failed; this takes half of the time
            return position(new.leader), leader_epochs, partition_epochs, position(isr[0]), position(isr[1])
        return position(new.leader), leader_epochs, partition_epochs, *map(position, isr)
    except ValueError:  # one of them is no replica
        return None


def _next(old: PartitionState, step: Step) -> PartitionState:
    leader, leader_epochs, partition_epochs, *isr = step
    replicas = old.replicas
    return PartitionState(
        old.index, replicas, tuple([replicas[at] for at in isr]), replicas[leader],
        old.leader_epoch + leader_epochs, old.partition_epoch + partition_epochs,
        old.adding, old.removing, old.latest_until_ms,
    )  # fmt: skip
