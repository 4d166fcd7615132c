"""Where replicas go: pure functions from brokers and racks to an assignment.

Strategy (as Kafka has it since 0.8, racks by KIP-36): the first replicas go round the brokers from a start; the others
of a partition follow at a distance that grows by one with each round, so that the partitions led by a broker that dies
have their followers on many others. With racks, brokers are first put in an order that alternates between racks, and
a replica skips a broker whose rack, or which itself, already has one, as long as another choice is left.

Must not know: topics, the tree, chance. Whoever calls chooses `start`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pylogd.metadata.errors import InvalidPartitions, InvalidReplicaAssignment, InvalidReplicationFactor

Replicas = tuple[int, ...]


def assign_replicas(
    racks: Mapping[int, str | None], partitions: int, factor: int, *, start: int = 0, first: int = 0
) -> list[Replicas]:
    """The replicas of partitions `first` to `first + partitions - 1`, preferred leader first.

    `racks` has the live brokers by id with their rack; unless all have one, racks are ignored. Raises
    `InvalidPartitions` or `InvalidReplicationFactor`.
    """
    if partitions < 1:
        raise InvalidPartitions(f"a topic has at least 1 partition, not {partitions}")
    if factor < 1:
        raise InvalidReplicationFactor(f"the replication factor is at least 1, not {factor}")
    if factor > len(racks):
        raise InvalidReplicationFactor(f"replication factor {factor} is more than the {len(racks)} brokers alive")
    aware = all(rack is not None for rack in racks.values())
    order = _alternate_racks(racks) if aware else sorted(racks)
    rack_of = {broker: (racks[broker] if aware else None) or "" for broker in order}
    count = len(order)
    assignment = []
    for partition in range(first, first + partitions):
        leader = (start + partition) % count
        distance = start + partition // count
        candidates = [order[leader]]
        candidates += [order[(leader + 1 + (distance + step) % (count - 1)) % count] for step in range(count - 1)]
        assignment.append(_choose(candidates, rack_of, factor))
    return assignment


def check_assignment(
    assignment: Mapping[int, Sequence[int]], live: Mapping[int, object], *, first: int = 0
) -> list[Replicas]:
    """A client's own assignment as a list; raises `InvalidReplicaAssignment` if it has gaps, an empty or uneven list,
    a broker twice, or one that is not alive.
    """
    if sorted(assignment) != list(range(first, first + len(assignment))):
        raise InvalidReplicaAssignment(f"partitions are numbered from {first} without gaps")
    replicas = [tuple(assignment[index]) for index in sorted(assignment)]
    for index, brokers in enumerate(replicas, first):
        if not brokers:
            raise InvalidReplicaAssignment(f"partition {index} has no replicas")
        if len(set(brokers)) < len(brokers):
            raise InvalidReplicaAssignment(f"partition {index} has a broker twice: {list(brokers)}")
        if len(brokers) != len(replicas[0]):
            raise InvalidReplicaAssignment(f"partitions {first} and {index} differ in their number of replicas")
        for broker in brokers:
            if broker not in live:
                raise InvalidReplicaAssignment(f"partition {index}: broker {broker} is not alive")
    return replicas


def _alternate_racks(racks: Mapping[int, str | None]) -> list[int]:
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker] or "", []).append(broker)
    queues = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max(len(queue) for queue in queues)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


def _choose(candidates: Sequence[int], rack_of: Mapping[int, str], factor: int) -> Replicas:
    """The first `factor` candidates, those in a rack that has no replica yet before the others."""
    chosen: list[int] = []
    used: set[str] = set()
    for broker in candidates:
        if rack_of[broker] not in used:
            chosen.append(broker)
            used.add(rack_of[broker])
    chosen += [broker for broker in candidates if broker not in chosen]
    return tuple(chosen[:factor])
