"""Plan where replicas should be, with as few moves as balance needs. Pure functions.

Strategy: every partition keeps the replicas that may stay. What is missing goes to the brokers with the fewest, on a
machine that the partition does not have yet if there is one, then in a rack that it does not have yet. Replicas that
share a machine move to another one, if there is one. Then single replicas move from the fullest broker to the emptiest
until no two differ by more than one, as far as machines and racks allow. Of two that could move, it is the one that
does not lead: a partition whose leader loses its replica gets another one in the middle of the move, for which
producers have to wait. Last, the order of each partition's replicas is chosen so that brokers are preferred as leaders
evenly; leadership moves to them later, with both replicas in sync.

A topic may be confined to some of the brokers, because it names a label that only these carry.

Must not know: connections, labels, what lies in the partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from pylogd.client.core.model import Broker, TopicPartition

Placement = dict[TopicPartition, tuple[int, ...]]


def plan(
    current: Mapping[TopicPartition, Sequence[int]],
    brokers: Mapping[int, str | None],
    factor: int | None = None,
    within: Mapping[str, Collection[int]] = MappingProxyType({}),
    *,
    hosts: Mapping[int, str] = MappingProxyType({}),
    balance: bool = True,
) -> Placement:
    """Return replicas for each partition, the preferred leader first.

    brokers: the racks, by id, of the brokers that may have replicas. factor: how many replicas each partition gets,
    None for as many as it has. within: the brokers that may have replicas of a topic, by its name, if not all of
    `brokers` may. hosts: the machine (`host.id`) of each broker that shares one; see `shared_hosts`. balance: move
    replicas that could stay too, so that brokers have equally many. Raises ValueError if there are too few brokers.
    """
    counts = {place: factor or len(replicas) for place, replicas in current.items()}
    board = _Board(brokers, within, hosts)
    for place, count in counts.items():
        have = len(board.allowed(place))
        if count > have:
            raise ValueError(
                f"{place}: {count} replicas need as many brokers, there are {have}"
                + (" that carry the topic's label" if place.topic in within else "")
            )
    for place, replicas in current.items():
        stay = board.apart([node for node in replicas if node in board.allowed(place)])
        board.place(place, [node for node in replicas if node in stay[: counts[place]]])
    for place, count in counts.items():
        while len(board.replicas[place]) < count:
            board.add(place)
    if balance:
        for place in counts:
            board.separate(place)
        board.level()
    return board.ordered()


def shared_hosts(brokers: Iterable[Broker]) -> dict[int, str]:
    """Return the machine (`host.id`) of each broker that names one, by broker id."""
    return {broker.node_id: broker.host_id for broker in brokers if broker.host_id is not None}


def lead_evenly(current: Mapping[TopicPartition, Sequence[int]]) -> Placement:
    """Return the same replicas for each partition, in an order in which brokers are preferred as leaders evenly."""
    board = _Board(dict.fromkeys(node for replicas in current.values() for node in replicas), {}, {})
    for place, replicas in current.items():
        board.place(place, list(replicas))
    return board.ordered()


class _Board:
    def __init__(
        self, brokers: Mapping[int, str | None], within: Mapping[str, Collection[int]], hosts: Mapping[int, str]
    ) -> None:
        self._racks = brokers
        self._machines: dict[int, int | str] = {node: hosts.get(node, node) for node in brokers}
        self._within = {topic: frozenset(nodes).intersection(brokers) for topic, nodes in within.items()}
        self._all = frozenset(brokers)
        self._load = dict.fromkeys(sorted(brokers), 0)
        self._led = dict.fromkeys(sorted(brokers), 0)
        self.replicas: dict[TopicPartition, list[int]] = {}

    def allowed(self, place: TopicPartition) -> frozenset[int]:
        """The brokers that may have replicas of a partition."""
        return self._within.get(place.topic, self._all)

    def place(self, place: TopicPartition, nodes: list[int]) -> None:
        self.replicas[place] = nodes
        for node in nodes:
            self._load[node] += 1

    def apart(self, nodes: Sequence[int]) -> list[int]:
        """Return the same brokers: the first of each machine, then the others."""
        first = {self._machines[node]: node for node in reversed(nodes)}
        return sorted(nodes, key=lambda node: first[self._machines[node]] != node)

    def add(self, place: TopicPartition) -> None:
        here = self.replicas[place]
        machines = {self._machines[node] for node in here}
        racks = {self._racks[node] for node in here} - {None}
        free = [node for node in self._load if node not in here and node in self.allowed(place)]
        node = min(free, key=lambda one: (self._machines[one] in machines, self._racks[one] in racks, self._load[one]))
        here.append(node)
        self._load[node] += 1

    def separate(self, place: TopicPartition) -> None:
        """Move replicas that share a machine to machines without a replica, while there are such machines."""
        here = self.replicas[place]
        for node in self.apart(here)[len({self._machines[node] for node in here}) :]:
            used = {self._machines[one] for one in here}
            if all(self._machines[one] in used for one in self.allowed(place)):
                return
            at = here.index(node)
            self._load[here.pop(at)] -= 1
            self.add(place)
            here.insert(at, here.pop())

    def level(self) -> None:
        """Move replicas one by one from the fullest to the emptiest; each move brings the two nearer to each other."""
        moved = True
        while moved:
            moved = False
            for full in sorted(self._load, key=lambda one: -self._load[one]):
                for empty in sorted(self._load, key=lambda one: self._load[one]):
                    if self._load[full] - self._load[empty] > 1 and self._move(full, empty):
                        moved = True
                        break
                if moved:
                    break

    def _move(self, source: int, target: int) -> bool:
        """Move a replica of a partition that `source` does not lead as the first of its replicas, or else of any."""
        chosen = None
        for place, nodes in self.replicas.items():
            if source not in nodes or target in nodes or target not in self.allowed(place):
                continue
            if self._fits(nodes, source, target):
                chosen = nodes if chosen is None or nodes[0] != source else chosen
                if nodes[0] != source:
                    break
        if chosen is None:
            return False
        chosen[chosen.index(source)] = target
        self._load[source] -= 1
        self._load[target] += 1
        return True

    def _fits(self, nodes: Sequence[int], source: int, target: int) -> bool:
        """Whether the move leaves the partition on as many machines, and in as many racks, as before."""
        then = [target if node == source else node for node in nodes]
        return all(
            len({of[node] for node in then}) >= len({of[node] for node in nodes})
            for of in (self._machines, self._racks)
        )

    def ordered(self) -> Placement:
        """Return the replicas, the preferred leader first. The order is kept unless a change improves the balance."""
        preferred: dict[TopicPartition, int] = {}
        for place, nodes in self.replicas.items():
            preferred[place] = node = min(nodes, key=lambda one, nodes=nodes: (self._led[one], nodes.index(one)))  # type: ignore[misc]
            self._led[node] += 1
        changed = True
        while changed:  # each change brings two brokers nearer to each other
            changed = False
            for place, nodes in self.replicas.items():
                least = min(nodes, key=self._led.__getitem__)
                if self._led[preferred[place]] - self._led[least] > 1:
                    self._led[preferred[place]] -= 1
                    self._led[least] += 1
                    preferred[place] = least
                    changed = True
        return {
            place: (preferred[place], *(node for node in nodes if node != preferred[place]))
            for place, nodes in self.replicas.items()
        }
