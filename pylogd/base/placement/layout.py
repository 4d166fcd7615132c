"""The input of a plan for existing partitions: the brokers, and the present replicas. Check a plan against it.

`refusals` checks by the same rule as the brokers, before anything is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from pylogd.base.placement.brokers import Brokers, Replicas

#: A partition: a topic's name and an index.
P = TypeVar("P", bound=tuple[str, int])


class Assigned(NamedTuple):
    """The replicas of a partition, the preferred leader first. During a move they are the future replicas.

    leaving: the brokers that a reassignment in progress removes, and that still have a copy.
    """

    replicas: Replicas
    leaving: Replicas = ()


@dataclass(frozen=True, slots=True)
class Layout(Generic[P]):
    """The brokers, and the partitions to plan.

    labels: the labels of topics that have one, by name.
    """

    brokers: Brokers
    partitions: Mapping[P, Assigned]
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def current(self) -> dict[P, Replicas]:
        """The replicas of each partition, or the future ones during a move."""
        return {at: one.replicas for at, one in self.partitions.items()}

    def label(self, partition: P) -> str:
        """Return the label of a partition's topic; "" for none."""
        return self.labels.get(partition[0], "")

    def count_on(self, nodes: Iterable[int]) -> dict[int, int]:
        """Return the number of the partitions that each of these brokers has."""
        counts = dict.fromkeys(nodes, 0)
        for one in self.partitions.values():
            for node in one.replicas:
                if node in counts:
                    counts[node] += 1
        return counts

    @property
    def dead(self) -> list[int]:
        """The brokers that have replicas and are not live, in order of their ids."""
        return sorted({node for one in self.partitions.values() for node in one.replicas} - self.brokers.live.keys())


def refusals(
    layout: Layout[P], targets: Mapping[P, Sequence[int]], labels: Mapping[str, str] | None = None
) -> dict[P, str]:
    """Return the partitions whose moves brokers would refuse, each with the reason.

    layout: the layout with all partitions of the plan's topics.
    targets: the replicas of each partition.
    labels: the new labels of topics, by name. All replicas of such a topic must be within its label, not only added
    ones.
    """
    wrong = {}
    for at, nodes in targets.items():
        found = _refusal(layout, at, nodes, (labels or {}).get(at[0]))
        if found is not None:
            wrong[at] = found
    return wrong


def _refusal(layout: Layout[P], at: P, nodes: Sequence[int], new_label: str | None) -> str | None:
    if at not in layout.partitions:
        return "there is no such partition"
    if not nodes or len(set(nodes)) < len(nodes):
        return f"replicas have to be different brokers, at least one: {list(nodes)}"
    present, leaving = layout.partitions[at]
    label = layout.label(at) if new_label is None else new_label
    for node in nodes:
        broker = layout.brokers.live.get(node)
        if (node not in present and node not in leaving) or (
            broker is not None and not broker.carries(label) and (node in leaving or new_label is not None)
        ):
            obstacle = layout.brokers.obstacle(node, label)
        else:
            continue
        if obstacle is not None:
            return obstacle.text
    return None
