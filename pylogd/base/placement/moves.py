"""Plan the replicas of existing partitions, with as few moves as possible.

Strategy: every partition keeps the replicas that may stay. A missing replica goes to a broker from which the partition
is being removed, since it still has a copy, or else to the broker with the fewest replicas: if possible on a new
machine for the partition, then in a new rack. Replicas that share a machine or a rack move to another one, if there is
one. Then single replicas move from the fullest broker to the emptiest until no two brokers differ by more than one, as
far as machines and racks allow. If two replicas could move, the one that does not lead moves: otherwise the partition
would get another leader in the middle of the move, and producers would have to wait. Last, the order of each
partition's replicas is chosen (`leading`).

Rules:
- A new replica is only on a broker that may get one (`Brokers.obstacle`), and on no more than the broker has room for.
- A cordoned broker keeps its replicas, unless the plan is to empty it, and does not become the preferred leader of
  further partitions. So a plan does not undo a maintenance.
- The same layout and request give the same plan, whatever the order of the partitions.

Must not know: connections, the contents of partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Generic

from pylogd.base.placement.brokers import Replicas
from pylogd.base.placement.errors import PlacementImpossible, TooFewBrokers
from pylogd.base.placement.layout import Layout, P
from pylogd.base.placement.leading import order_evenly

_Grouping = Callable[[int], Any]


def spread(layout: Layout[P], *, factor: int | None = None, chosen: Collection[int] | None = None) -> dict[P, Replicas]:
    """Return replicas for each partition, spread evenly over the brokers; the preferred leader first.

    factor: the number of replicas of each partition; None keeps the present number.
    chosen: the brokers that may have replicas; None for all live ones. All others are emptied, even if they are
    cordoned.

    Raises `PlacementImpossible`.
    """
    counts = {at: factor or len(one.replicas) for at, one in layout.partitions.items()}
    board = _Board(layout, chosen)
    for at in board.places:
        board.keep(at, counts[at])
    for at in board.places:
        board.fill(at, counts[at])
    while board.separate_all() or board.level():  # both only improve the spread
        pass
    return board.ordered(board.places)


def relabel(layout: Layout[P], topic: str, label: str) -> dict[P, Replicas]:
    """Return replicas for each partition of a topic, on brokers that carry another label. Raises `PlacementImpossible`.

    layout: the layout of this topic.
    label: the new label; "" for none.
    """
    if label and not layout.brokers.keepers(label):
        used = sorted({one for broker in layout.brokers.live.values() for one in broker.labels})
        raise PlacementImpossible(f"{layout.brokers.carriers(label)}; labels in use: {', '.join(used) or 'none'}")
    return spread(replace(layout, labels={**layout.labels, topic: label}))


def empty(layout: Layout[P], broker: int) -> dict[P, Replicas]:
    """Return replicas for each partition of a broker, so that the broker has none afterwards. All other replicas stay.

    Raises `PlacementImpossible` if the other brokers can't take them.
    """
    board = _Board(layout, None, leaving=broker)
    affected = [at for at in board.places if broker in layout.partitions[at].replicas]
    for at in board.places:
        board.place(at, [node for node in layout.partitions[at].replicas if node != broker])
    for at in affected:
        board.fill(at, len(layout.partitions[at].replicas))
    return board.ordered(affected)


class _Board(Generic[P]):
    """The unfinished plan.

    places: the partitions, in order.
    replicas: the replicas of each partition.
    """

    def __init__(self, layout: Layout[P], chosen: Collection[int] | None, leaving: int | None = None) -> None:
        self._layout = layout
        self._brokers = layout.brokers
        self.places = sorted(layout.partitions)
        self.replicas: dict[P, list[int]] = {}
        self._may = {node for node in self._brokers.live if chosen is None or node in chosen} - {leaving}
        self._cordoned = set(self._brokers.cordoned)
        self._room = {node: one.room for node, one in self._brokers.live.items()}
        self._load: dict[int, int] = dict.fromkeys(self._brokers.live, 0)
        #: The partitions of each live broker.
        self._on: dict[int, dict[P, None]] = {node: {} for node in self._brokers.live}
        labels = {layout.label(at) for at in self.places}
        self._open = {label: frozenset(self._may.intersection(self._brokers.open(label))) for label in labels}
        self._keep = {label: frozenset(self._may.intersection(self._brokers.keepers(label))) for label in labels}
        self._racks = {label: self._brokers.racks(label) for label in labels}

    # -- changes of the plan

    def place(self, at: P, nodes: list[int]) -> None:
        """Set the replicas that a partition has so far."""
        self.replicas[at] = nodes
        for node in nodes:
            if node in self._load:
                self._load[node] += 1
                self._on[node][at] = None

    def keep(self, at: P, count: int) -> None:
        """Let the partition keep at most `most` of the replicas that may stay: one of each machine before others."""
        may = self._keep[self._layout.label(at)]
        nodes = [node for node in self._layout.partitions[at].replicas if node in may]
        stay = self._apart(nodes, self._machine)[:count]
        self.place(at, [node for node in nodes if node in stay])

    def fill(self, at: P, count: int) -> None:
        """Add replicas until the partition has the wanted number. Raises `TooFewBrokers`."""
        here = self.replicas[at]
        open_brokers = self._open[self._layout.label(at)]
        for node in self._layout.partitions[at].leaving:
            if len(here) < count and node in open_brokers and node not in here:
                self._add(at, node, copied=False)
        while len(here) < count:
            best = self._best(at)
            if best is None:
                raise TooFewBrokers(self._too_few(at, count))
            self._add(at, best)

    def separate_all(self) -> bool:
        """Move replicas that share a machine or a rack to machines or racks without a replica, as long as there are
        any.

        Return whether one moved.
        """
        moved = False
        for at in self.places:
            racks = self._racks[self._layout.label(at)]
            while self._separate(at, self._machine, None) or (racks and self._separate(at, racks.get, self._machine)):
                moved = True
        return moved

    def level(self) -> bool:
        """Move replicas one by one from the fullest to the emptiest broker, so that their numbers become more equal.

        Return whether one moved.
        """
        nodes = sorted(self._may - self._cordoned)
        moved = False
        while self._level_once(nodes):
            moved = True
        return moved

    def ordered(self, places: Sequence[P]) -> dict[P, Replicas]:
        """Return the replicas of some partitions, the preferred leader first."""
        avoid = self._cordoned.union(self._layout.dead)
        formerly = {at: one.replicas[0] for at, one in self._layout.partitions.items() if one.replicas}
        return order_evenly(self.replicas, avoid, places, formerly)

    # -- parts of the changes

    def _machine(self, node: int) -> str | int:
        return self._brokers.machine(node)

    def _apart(self, nodes: Sequence[int], group: _Grouping) -> list[int]:
        """Return the brokers in another order: first one of each group (a cordoned one first), then the rest."""
        first: dict[object, int] = {}
        for node in sorted(nodes, key=lambda one: one not in self._cordoned):
            first.setdefault(group(node), node)
        return sorted(nodes, key=lambda node: first[group(node)] != node)

    def _add(self, at: P, node: int, *, copied: bool = True) -> None:
        self.replicas[at].append(node)
        self._load[node] += 1
        self._on[node][at] = None
        room = self._room[node]
        if copied and room is not None and node not in self._layout.partitions[at].replicas:
            self._room[node] = room - 1

    def _remove(self, at: P, node: int) -> None:
        self.replicas[at].remove(node)
        if node in self._load:
            self._load[node] -= 1
            del self._on[node][at]

    def _may_get(self, at: P, node: int) -> bool:
        return (
            node in self._open[self._layout.label(at)]
            and node not in self.replicas[at]
            and (self._room[node] != 0 or node in self._layout.partitions[at].replicas)
        )

    def _best(self, at: P) -> int | None:
        """Return the best broker for one more replica of a partition; None if there is none."""
        here = self.replicas[at]
        machines = {self._machine(node) for node in here}
        racks = self._racks[self._layout.label(at)]
        used = {racks[node] for node in here if node in racks}
        free = [node for node in self._open[self._layout.label(at)] if self._may_get(at, node)]
        return min(
            free,
            key=lambda one: (
                self._machine(one) in machines, racks.get(one) in used, self._brokers.live[one].full,
                self._load[one], one,
            ),
            default=None,
        )  # fmt: skip

    def _separate(self, at: P, group: _Grouping, keep: _Grouping | None) -> bool:
        """Move one replica that shares its group to a group without a replica. Return whether one moved.

        keep: another grouping, in which the partition must not lose a group.
        """
        here = self.replicas[at]
        sharing = Counter(map(group, here))
        first, apart = len(sharing), self._apart(here, group)
        for node in (*apart[first:], *apart[:first]):  # if those that came later can't move, the first may
            if node in self._cordoned or sharing[group(node)] == 1:
                continue
            rest = [one for one in here if one != node]
            used = {group(one) for one in rest}
            kept = set() if keep is None else {keep(one) for one in rest}
            before = 0 if keep is None else len({keep(one) for one in here})
            free = [
                one for one in self._open[self._layout.label(at)]
                if self._may_get(at, one) and group(one) not in used
                and (keep is None or len(kept | {keep(one)}) >= before)
            ]  # fmt: skip
            if free:
                racks = self._racks[self._layout.label(at)]
                taken = {racks[one] for one in rest if one in racks}
                live = self._brokers.live
                target = min(free, key=lambda one: (racks.get(one) in taken, live[one].full, self._load[one], one))
                self._replace(at, node, target)
                return True
        return False

    def _replace(self, at: P, node: int, target: int) -> None:
        """Put a replica on another broker, at the same position of the list."""
        index = self.replicas[at].index(node)
        self._remove(at, node)
        self._add(at, target)
        self.replicas[at].insert(index, self.replicas[at].pop())

    def _level_once(self, nodes: Sequence[int]) -> bool:
        load = self._load
        for most in sorted(nodes, key=lambda one: -load[one]):
            for least in sorted(nodes, key=load.__getitem__):
                if load[most] - load[least] <= 1:
                    break
                if not self._brokers.live[least].full and self._move(most, least):
                    return True
        return False

    def _move(self, source: int, target: int) -> bool:
        """Move a replica away from `source`, preferably of a partition that does not prefer `source` as its leader."""
        chosen: P | None = None
        for at in self._on[source]:
            if self._may_get(at, target) and self._fits(at, source, target):
                if self.replicas[at][0] != source:
                    chosen = at
                    break
                chosen = at if chosen is None else chosen
        if chosen is None:
            return False
        self._replace(chosen, source, target)
        return True

    def _fits(self, at: P, source: int, target: int) -> bool:
        """Return whether the move leaves the partition on as many machines, and in as many racks, as before."""
        nodes = self.replicas[at]
        then = [target if node == source else node for node in nodes]
        racks = self._racks[self._layout.label(at)]
        return all(
            len(set(map(group, then))) >= len(set(map(group, nodes))) for group in (self._machine, racks.get)
        )  # fmt: skip

    def _too_few(self, at: P, count: int) -> str:
        """Return the error for a partition that can't have this number of replicas."""
        label = self._layout.label(at)
        keepers = self._keep[label].difference(self.replicas[at])
        found = [self._brokers.obstacle(node, label) for node in sorted(keepers)]
        reasons = [one.text for one in found if one is not None]
        have = len(self.replicas[at])
        text = f"{at[0]}-{at[1]}: {count} replicas need as many brokers, there are {have}"
        text += f' that carry the topic\'s label "{label}"' if label else ""
        return text + "".join(f"; {reason}" for reason in reasons)
