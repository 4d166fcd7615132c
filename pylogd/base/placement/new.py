"""Place the replicas of new partitions.

Strategy (Kafka's, racks by KIP-36): the first replicas are assigned round-robin from a start; the other replicas of a
partition follow at a distance that grows by one with each round, so that the partitions of one leader have their
followers on many brokers. With racks, brokers are first ordered so that racks alternate, and brokers in a rack with a
replica come after others. Brokers on a machine with a replica come last.

Must not know: topics, stores, chance. The caller chooses `start`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from pylogd.base.placement.brokers import Brokers, Replicas
from pylogd.base.placement.errors import NoRoom, TooFewBrokers


def place_new(
    brokers: Brokers, partitions: int, factor: int, *, label: str = "", start: int = 0, first: int = 0
) -> list[Replicas]:
    """Return the replicas of partitions `first` to `first + partitions - 1`, each with the preferred leader first.

    partitions, factor: the number of partitions, and of replicas of each; both are at least 1.
    label: the topic's label; "" for none.
    start: the index of the broker that leads partition 0.

    Raises `TooFewBrokers` if there are fewer brokers than replicas, and `NoRoom` if the brokers lack room for the
    partitions.
    """
    nodes = _preferred(brokers, brokers.open(label), factor, label)
    if factor > len(nodes):
        without_room = brokers.without_room(label)
        if without_room and factor <= len(brokers.open(label)) + len(without_room):
            raise _no_room(brokers, without_room[0], partitions)
        raise TooFewBrokers(
            f"replication factor {factor} is more than the {len(nodes)} brokers that are alive"
            f"{_labelled(brokers, label)} and take new partitions (those with cordoned.log.dirs = * do not)"
        )
    while True:
        assignment = _assign(brokers, nodes, partitions, factor, label, start, first)
        crowded = _crowded(brokers, assignment)
        if not crowded:
            return assignment
        left = [node for node in nodes if node not in crowded]
        if len(left) < factor:
            raise _no_room(brokers, *next(iter(crowded.items())))
        nodes = left


def _no_room(brokers: Brokers, node: int, count: int) -> NoRoom:
    return NoRoom(
        f"broker {node} has room for {brokers.live[node].room} more partitions, not for {count}: it may hold as many "
        "as its limit of open files allows (LimitNOFILE= of the service, ulimit -n)"
    )


def _preferred(brokers: Brokers, nodes: list[int], factor: int, label: str) -> list[int]:
    """Return the brokers without a full volume, if they allow replicas on as many machines and in as many racks as all
    do.
    """
    emptier = [node for node in nodes if not brokers.live[node].full]
    racks = brokers.racks(label)
    if (
        len(emptier) >= factor
        and brokers.machines(emptier) >= min(factor, brokers.machines(nodes))
        and len({racks.get(node) for node in emptier}) >= min(factor, len({racks.get(node) for node in nodes}))
    ):
        return emptier
    return nodes


def _crowded(brokers: Brokers, assignment: Sequence[Replicas]) -> dict[int, int]:
    """Return the number of new replicas of each broker that lacks room for them."""
    counts = Counter(node for nodes in assignment for node in nodes)
    rooms = {node: brokers.live[node].room for node in counts}
    return {node: counts[node] for node, room in sorted(rooms.items()) if room is not None and counts[node] > room}


def _labelled(brokers: Brokers, label: str) -> str:
    if not label:
        return ""
    nodes = brokers.open(label)
    which = f": {', '.join(map(str, nodes))}" if nodes else ""
    return f', carry the label "{label}" (broker.labels{which})'


def _assign(
    brokers: Brokers, nodes: Sequence[int], partitions: int, factor: int, label: str, start: int, first: int
) -> list[Replicas]:
    racks = brokers.racks(label)
    order = _alternate_racks({node: racks[node] for node in nodes}) if racks else sorted(nodes)
    rack_of = {node: racks.get(node, "") for node in order}
    machine_of = {node: brokers.machine(node) for node in order}
    count = len(order)
    assignment = []
    for partition in range(first, first + partitions):
        leader = (start + partition) % count
        distance = start + partition // count
        assignment.append(_choose(partial(_candidates, order, leader, distance), rack_of, machine_of, factor))
    return assignment


def _alternate_racks(racks: Mapping[int, str]) -> list[int]:
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
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
    candidates: Callable[[], Iterator[int]],
    rack_of: Mapping[int, str],
    machine_of: Mapping[int, str | int],
    factor: int,
) -> Replicas:
    """Return `factor` candidates: first those on new machines and in new racks, then those on new machines, then the
    others.

    Within each of the three groups they have the order of the candidates. Only as many candidates as needed are
    examined, which are few, however many brokers there are.
    """
    chosen: list[int] = []
    racks: set[str] = set()
    machines: set[str | int] = set()
    for also_rack in (True, False):
        for broker in candidates():
            machine = machine_of[broker]
            if machine not in machines and not (also_rack and rack_of[broker] in racks):
                chosen.append(broker)
                if len(chosen) == factor:
                    return tuple(chosen)
                racks.add(rack_of[broker])
                machines.add(machine)
    chosen += [broker for broker in candidates() if broker not in chosen]
    return tuple(chosen[:factor])
