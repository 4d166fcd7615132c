"""The brokers as placement sees them, and the one rule which of them may get a new replica.

Rules:
- A broker may get a new replica if it is live, carries the topic's label, is not cordoned, and has room for one more
  partition (`Brokers.obstacle`).
- It may keep a replica if it is live and carries the label. A cordoned one keeps what it has.
- Replicas are on different machines (`host.id`), then in different racks, as far as there are enough. Racks count only
  if all live brokers that carry the label have one.
- A broker with a full volume gets new replicas only if the others do not suffice for that.

Must not know: topics, stores, requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

Replicas = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live broker.

    host: the machine that it shares with the other brokers of this `host.id`, None for one of its own. labels: those
    that it carries. cordoned: all of its usable data directories are, so it gets no new replicas. full: one of its
    volumes has no room. room: how many more partitions it may hold, None for no limit.
    """

    node: int
    rack: str | None = None
    host: str | None = None
    labels: tuple[str, ...] = ()
    cordoned: bool = False
    full: bool = False
    room: int | None = None

    def carries(self, label: str) -> bool:
        """Return whether the broker may have replicas of topics with this label, "" for none."""
        return not label or label in self.labels


class Why(Enum):
    """The kinds of obstacles."""

    DEAD = "dead"
    UNLABELLED = "unlabelled"
    CORDONED = "cordoned"
    NO_ROOM = "no room"


class Obstacle(NamedTuple):
    """The reason why a broker may not get a new replica. text: for people, begins with the broker."""

    why: Why
    text: str


class Brokers:
    """The live brokers of a cluster. live: by id, in order of the ids."""

    __slots__ = ("live",)

    def __init__(self, live: Iterable[Candidate]) -> None:
        self.live = {one.node: one for one in sorted(live, key=lambda one: one.node)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Brokers) and self.live == other.live

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Brokers({list(self.live.values())})"

    def obstacle(self, node: int, label: str = "") -> Obstacle | None:
        """Return why a broker may not get a new replica of a topic with this label; None if it may."""
        found = self.live.get(node)
        if found is None:
            return Obstacle(Why.DEAD, f"broker {node} is not alive")
        if not found.carries(label):
            text = f"broker {node} does not carry the topic's label: {self.carriers(label)}"
            return Obstacle(Why.UNLABELLED, text)
        if found.cordoned:
            text = "it takes no new replicas while all of its data directories are in cordoned.log.dirs"
            return Obstacle(Why.CORDONED, f"broker {node} is cordoned: {text}")
        if found.room == 0:
            text = f"broker {node} already has as many partitions as its limit of open files allows"
            return Obstacle(Why.NO_ROOM, text)
        return None

    def open(self, label: str = "") -> list[int]:
        """Return the brokers that may get new replicas of a topic with this label, in order of their ids."""
        return [node for node in self.live if self.obstacle(node, label) is None]

    def without_room(self, label: str = "") -> list[int]:
        """Return the brokers that may get no new replicas of such a topic because they have no room for any."""
        found = {node: self.obstacle(node, label) for node in self.live}
        return [node for node, one in found.items() if one is not None and one.why is Why.NO_ROOM]

    def keepers(self, label: str = "") -> list[int]:
        """Return the brokers that may keep replicas of a topic with this label, in order of their ids."""
        return [node for node, one in self.live.items() if one.carries(label)]

    @property
    def cordoned(self) -> list[int]:
        """The cordoned brokers, in order of their ids."""
        return [node for node, one in self.live.items() if one.cordoned]

    def carriers(self, label: str) -> str:
        """Return which brokers carry a label, as a clause for an error message."""
        nodes = [str(node) for node in self.keepers(label)]
        if not nodes:
            return f'no live broker carries the label "{label}" (broker.labels)'
        which = f"broker {nodes[0]} carries" if len(nodes) == 1 else f"brokers {', '.join(nodes)} carry"
        return f'{which} the label "{label}" (broker.labels)'

    def machine(self, node: int) -> str | int:
        """Return the machine of a broker: its `host.id`, or its own id if it names none or is not live."""
        found = self.live.get(node)
        return node if found is None or found.host is None else found.host

    def machines(self, nodes: Iterable[int]) -> int:
        """Return the number of machines that brokers run on; a broker without a `host.id` counts as one machine."""
        return len({self.machine(node) for node in nodes})

    def racks(self, label: str = "") -> dict[int, str]:
        """Return the rack of each broker that carries a label, by id; none at all unless all of them have one."""
        found = {node: self.live[node].rack for node in self.keepers(label)}
        racks = {node: rack for node, rack in found.items() if rack is not None}
        return racks if len(racks) == len(found) else {}

    def without(self, nodes: Iterable[int]) -> Brokers:
        """Return the other brokers."""
        gone = set(nodes)
        return Brokers(one for node, one in self.live.items() if node not in gone)
