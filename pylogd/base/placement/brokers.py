"""The live brokers for placement, and the rule which of them may get a new replica.

Rules:
- A broker may get a new replica if it is live, carries the topic's label, is not cordoned, and has room for one more
  partition (`Brokers.obstacle`).
- It may keep a replica if it is live and carries the label. A cordoned broker keeps its replicas.
- Replicas are on different machines (`host.id`), then in different racks, if there are enough. Racks count only if all
  live brokers that carry the label have one.
- A broker with a full volume gets new replicas only if the other brokers do not suffice.

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

    host: the `host.id`, which brokers on the same machine share; None for its own machine.
    labels: the labels that it carries.
    cordoned: whether all of its usable data directories are cordoned, so that it gets no new replicas.
    full: whether one of its volumes is full.
    room: the number of partitions that it may still get; None for no limit.
    """

    node: int
    rack: str | None = None
    host: str | None = None
    labels: tuple[str, ...] = ()
    cordoned: bool = False
    full: bool = False
    room: int | None = None

    def carries(self, label: str) -> bool:
        """Return whether the broker may have replicas of topics with this label; "" means no label."""
        return not label or label in self.labels


class Why(Enum):
    """The kinds of obstacles."""

    DEAD = "dead"
    UNLABELLED = "unlabelled"
    CORDONED = "cordoned"
    NO_ROOM = "no room"


class Obstacle(NamedTuple):
    """The reason why a broker may not get a new replica.

    text: the reason in words, which begins with the broker.
    """

    why: Why
    text: str


class Brokers:
    """The live brokers of a cluster.

    live: the brokers by id, in order of the ids.
    """

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
        """Return the brokers that may get no new replicas of such a topic only because they have no room."""
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
        """Return a clause for an error message about the brokers that carry a label."""
        nodes = [str(node) for node in self.keepers(label)]
        if not nodes:
            return f'no live broker carries the label "{label}" (broker.labels)'
        which = f"broker {nodes[0]} carries" if len(nodes) == 1 else f"brokers {', '.join(nodes)} carry"
        return f'{which} the label "{label}" (broker.labels)'

    def machine(self, node: int) -> str | int:
        """Return the machine of a broker: its `host.id`, or its own id if it has none or is not live."""
        found = self.live.get(node)
        return node if found is None or found.host is None else found.host

    def machines(self, nodes: Iterable[int]) -> int:
        """Return the number of machines of brokers. A broker without a `host.id` counts as one machine."""
        return len({self.machine(node) for node in nodes})

    def racks(self, label: str = "") -> dict[int, str]:
        """Return the racks, by id, of the brokers with a label; return {} if one of these brokers has no rack."""
        found = {node: self.live[node].rack for node in self.keepers(label)}
        racks = {node: rack for node, rack in found.items() if rack is not None}
        return racks if len(racks) == len(found) else {}

    def without(self, nodes: Iterable[int]) -> Brokers:
        """Return the brokers without these."""
        gone = set(nodes)
        return Brokers(one for node, one in self.live.items() if node not in gone)
