"""Assign replicas to brokers for new partitions, and check assignments of clients. `placement` decides.

Must not know: topics, stores, chance. The caller chooses `start`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pylogd.base.placement.brokers import Brokers, Replicas, Why
from pylogd.base.placement.errors import NoRoom, TooFewBrokers
from pylogd.base.placement.new import place_new
from pylogd.broker.metadata.errors import InvalidPartitions, InvalidReplicaAssignment, InvalidReplicationFactor


def assign_replicas(
    brokers: Brokers, partitions: int, factor: int, *, start: int = 0, first: int = 0, label: str = ""
) -> list[Replicas]:
    """Return the replicas of partitions `first` to `first + partitions - 1`, each with the preferred leader first.

    factor: the number of replicas.
    start: the index of the broker of partition 0.
    label: the topic's label.

    Raises `InvalidPartitions` or `InvalidReplicationFactor`.
    """
    if partitions < 1:
        raise InvalidPartitions(f"a topic has at least 1 partition, not {partitions}")
    if factor < 1:
        raise InvalidReplicationFactor(f"the replication factor is at least 1, not {factor}")
    try:
        return place_new(brokers, partitions, factor, label=label, start=start, first=first)
    except TooFewBrokers as error:
        raise InvalidReplicationFactor(str(error)) from None
    except NoRoom as error:
        raise InvalidPartitions(str(error)) from None


def check_assignment(
    assignment: Mapping[int, Sequence[int]],
    brokers: Brokers,
    *,
    label_at: Callable[[int], str] = lambda _: "",
    first: int = 0,
) -> list[Replicas]:
    """Return a client's assignment as a list.

    label_at: returns the label of a partition.

    Raises `InvalidReplicaAssignment` if partition numbers are missing, if replica lists are empty or differ in length,
    or if a broker is named twice, or may not get new replicas. The caller checks whether brokers have space.
    """
    if sorted(assignment) != list(range(first, first + len(assignment))):
        raise InvalidReplicaAssignment(f"the assignment has to name all partitions from {first} on, without gaps")
    replicas = [tuple(assignment[index]) for index in sorted(assignment)]
    for index, nodes in enumerate(replicas, first):
        if not nodes:
            raise InvalidReplicaAssignment(f"partition {index} has no replicas")
        if len(set(nodes)) < len(nodes):
            raise InvalidReplicaAssignment(f"partition {index} has a broker twice: {list(nodes)}")
        if len(nodes) != len(replicas[0]):
            raise InvalidReplicaAssignment(f"partitions {first} and {index} differ in their number of replicas")
        for node in nodes:
            obstacle = brokers.obstacle(node, label_at(index))
            if obstacle is not None and obstacle.why is not Why.NO_ROOM:
                raise InvalidReplicaAssignment(f"partition {index}: {obstacle.text}")
    return replicas
