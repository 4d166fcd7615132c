"""Assigns replicas to brokers: pure functions from brokers and racks to an assignment.

Strategy (Kafka's, racks by KIP-36): the first replicas are assigned round-robin from a start; the other replicas of a
partition follow at a distance that grows by one with each round, so that the partitions led by one broker have their
followers on many others. With racks, brokers are first ordered so that racks alternate, and brokers in a rack that has
a replica already are taken after others. Brokers of a machine that has a replica already are taken last.

Must not know: topics, stores, chance. The caller chooses `start`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from pylogd.metadata.errors import InvalidPartitions, InvalidReplicaAssignment, InvalidReplicationFactor

Replicas = tuple[int, ...]


def assign_replicas(
    racks: Mapping[int, str | None], partitions: int, factor: int, *, start: int = 0, first: int = 0, label: str = "",
    hosts: Mapping[int, str] = MappingProxyType({}),
) -> list[Replicas]:  # fmt: skip
    """Return the replicas of partitions `first` to `first + partitions - 1`, each with the preferred leader first.

    racks: the rack of each broker that may get replicas, by id; ignored unless all have one. factor: the number of
    replicas. start: the index of the broker of partition 0. label: the label that all of these brokers carry, for the
    error. hosts: the machine of each broker that shares it with others, by id. Raises `InvalidPartitions` or
    `InvalidReplicationFactor`.
    """
    if partitions < 1:
        raise InvalidPartitions(f"a topic has at least 1 partition, not {partitions}")
    if factor < 1:
        raise InvalidReplicationFactor(f"the replication factor is at least 1, not {factor}")
    if factor > len(racks):
        raise InvalidReplicationFactor(
            f"replication factor {factor} is more than the {len(racks)} brokers that are alive"
            f"{_labelled(racks, label)} and take new partitions (those with cordoned.log.dirs = * do not)"
        )
    aware = all(rack is not None for rack in racks.values())
    order = _alternate_racks(racks) if aware else sorted(racks)
    rack_of = {broker: (racks[broker] if aware else None) or "" for broker in order}
    count = len(order)
    assignment = []
    for partition in range(first, first + partitions):
        leader = (start + partition) % count
        distance = start + partition // count
        assignment.append(_choose(partial(_candidates, order, leader, distance), rack_of, hosts, factor))
    return assignment


def check_assignment(
    assignment: Mapping[int, Sequence[int]],
    live: Container[int],
    *,
    first: int = 0,
    cordoned: Container[int] = (),
) -> list[Replicas]:
    """Return a client's assignment as a list.

    Raises `InvalidReplicaAssignment` if partition numbers are missing, if replica lists are empty or differ in length,
    or if a broker is named twice, not alive or cordoned.
    """
    if sorted(assignment) != list(range(first, first + len(assignment))):
        raise InvalidReplicaAssignment(f"the assignment has to name all partitions from {first} on, without gaps")
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
            if broker in cordoned:
                raise InvalidReplicaAssignment(f"partition {index}: broker {broker} is cordoned (cordoned.log.dirs)")
    return replicas


def _labelled(racks: Mapping[int, str | None], label: str) -> str:
    if not label:
        return ""
    which = f": {', '.join(map(str, sorted(racks)))}" if racks else ""
    return f', carry the label "{label}" (broker.labels{which})'


def _alternate_racks(racks: Mapping[int, str | None]) -> list[int]:
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker] or "", []).append(broker)
    queues = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max(len(queue) for queue in queues)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


def _candidates(order: Sequence[int], leader: int, distance: int) -> Iterator[int]:
    """Yield the brokers that a partition may have, the one at index `leader` first."""
    count = len(order)
    yield order[leader]
    for step in range(count - 1):
        yield order[(leader + 1 + (distance + step) % (count - 1)) % count]


def _choose(
    candidates: Callable[[], Iterator[int]], rack_of: Mapping[int, str], hosts: Mapping[int, str], factor: int
) -> Replicas:
    """Return `factor` candidates: those on machines and in racks without a replica, on such machines, then the others.

    Within each of the three the order is that of the candidates. No more of them are looked at than needed: that is
    few, however many brokers there are.
    """
    chosen: list[int] = []
    racks: set[str] = set()
    machines: set[str | int] = set()
    for also_rack in (True, False):
        for broker in candidates():
            machine = hosts.get(broker, broker)
            if machine not in machines and not (also_rack and rack_of[broker] in racks):
                chosen.append(broker)
                if len(chosen) == factor:
                    return tuple(chosen)
                racks.add(rack_of[broker])
                machines.add(machine)
    chosen += [broker for broker in candidates() if broker not in chosen]
    return tuple(chosen[:factor])
