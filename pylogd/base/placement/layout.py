"""The input of a plan for existing partitions: the brokers, and the present replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
