"""What has changed of partition states, told by how each follows from the one before: about a byte for each.

Strategy: when brokers fail, thousands of partitions change in a few ways, such as "the first replica has left the
in-sync set, and the second leads". Such a change is a `Step`, in which replicas are named by their position in the
partition's list. Many partitions take the same step, so that a note of all of them is short, and quickly decoded.

Rules: whoever applies steps must have the very states from which they were worked out; versions of the nodes tell. A
change that also concerns eligible replicas, or a partition without a leader, is no step: it is told as a whole state.

Must not know: notes, nodes, stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from pylogd.metadata.image import NO_LEADER, PartitionState

#: The leader's position, by how much the leader epoch and the partition epoch grow, the positions of those in sync.
Step = tuple[int, ...]


class Steps(NamedTuple):
    """The steps of a topic's partitions, in order of their index; None for one that does not change.

    Partitions after the last step do not change either.
    """

    controller_epoch: int
    steps: Sequence[Step | None]

    def apply(self, before: Sequence[PartitionState]) -> tuple[PartitionState, ...]:
        """Return the states that follow from those before. Raises IndexError if they do not fit the steps."""
        after = list(before)
        for index, step in enumerate(self.steps):
            if step is not None:
                after[index] = _next(before[index], step)
        return tuple(after)


def steps_between(
    controller_epoch: int, before: Sequence[PartitionState], after: Sequence[PartitionState]
) -> Steps | None:
    """Return the steps by which states follow from those before; None if one of the changes is no step.

    The partitions, their replicas and their reassignments have to be the same.
    """
    steps: list[Step | None] = []
    for old, new in zip(before, after, strict=True):
        if new is old:
            continue
        step = _step(old.replicas, old, new)
        if step is None:
            return None
        steps.extend(repeat(None, new.index - len(steps)))
        steps.append(step)
    return Steps(controller_epoch, steps)


def _step(replicas: tuple[int, ...], old: PartitionState, new: PartitionState) -> Step | None:
    if new.elr or new.last_known_elr or new.last_known_leader != NO_LEADER or new.lost:
        return None
    if new.leader not in replicas or not set(replicas).issuperset(new.isr):
        return None
    epochs = new.leader_epoch - old.leader_epoch, new.partition_epoch - old.partition_epoch
    return None if min(epochs) < 0 else (replicas.index(new.leader), *epochs, *map(replicas.index, new.isr))


def _next(old: PartitionState, step: Step) -> PartitionState:
    leader, leader_epochs, partition_epochs, *isr = step
    replicas = old.replicas
    return PartitionState(
        old.index, replicas, tuple([replicas[at] for at in isr]), replicas[leader],
        old.leader_epoch + leader_epochs, old.partition_epoch + partition_epochs,
        old.adding, old.removing, old.latest_until_ms,
    )  # fmt: skip
