"""Choose the preferred leaders of partitions, which is the order of their replicas. No replica moves.

Strategy: brokers are preferred as leaders evenly; leadership moves to them later, with both replicas in sync. To take a
broker out of service, it becomes the last replica of the partitions that prefer it. To put it back, it becomes the
first replica of its share.

Rules: brokers that are cordoned or not live are not made the preferred leader of a partition that has another replica,
so that the maintenance of one broker does not undo that of another.

Must not know: connections.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pylogd.base.placement.brokers import Replicas
from pylogd.base.placement.layout import Layout, P


def order_evenly(
    replicas: Mapping[P, Sequence[int]],
    avoid: Collection[int],
    places: Collection[P],
    formerly: Mapping[P, int],
) -> dict[P, Replicas]:
    """Return the replicas of some partitions in an order in which brokers are preferred as leaders evenly.

    The order is kept unless a change improves the balance.
    replicas: the replicas of all partitions, which determine the balance.
    avoid: brokers that do not become preferred.
    places: the partitions whose order may change.
    formerly: the former preferred leader of each partition. If it is in `avoid` and still a replica, it stays
    preferred.
    """
    led = dict.fromkeys({node for nodes in replicas.values() for node in nodes}, 0)
    preferred: dict[P, int] = {}
    choices: dict[P, list[int]] = {}
    may_change = frozenset(places)
    for at in sorted(replicas):
        nodes = replicas[at]
        if at not in may_change:
            if nodes:
                led[nodes[0]] += 1
            continue
        first = formerly.get(at)
        fit = [first] if first in avoid and first in nodes else [node for node in nodes if node not in avoid]
        choices[at] = [node for node in fit if node is not None] or list(nodes)
    for at, nodes in choices.items():
        preferred[at] = node = min(nodes, key=lambda one, nodes=nodes: (led[one], nodes.index(one)))  # type: ignore[misc]
        led[node] += 1
    changed = True
    while changed:  # each change makes the numbers of two brokers more equal
        changed = False
        for at, nodes in choices.items():
            least = min(nodes, key=led.__getitem__)
            if led[preferred[at]] - led[least] > 1:
                led[preferred[at]] -= 1
                led[least] += 1
                preferred[at] = least
                changed = True
    return {at: (first, *(node for node in replicas[at] if node != first)) for at, first in preferred.items()}


def led_by_others(layout: Layout[P], broker: int) -> dict[P, Replicas]:
    """Return the replicas of the partitions that prefer a broker, in an order in which the broker is the last one.

    Partitions without a replica elsewhere are left out.
    """
    others = {
        at: [node for node in nodes if node != broker] for at, nodes in layout.current.items() if set(nodes) != {broker}
    }
    even = order_evenly(others, _unfit(layout), others, {})
    return {at: (*even[at], broker) for at in others if layout.partitions[at].replicas[0] == broker}


def leads_again(layout: Layout[P], broker: int) -> dict[P, Replicas]:
    """Return the replicas of a broker's share of partitions, in an order in which the broker is the first one."""
    current = layout.current
    avoid = [node for node in _unfit(layout) if node != broker]
    formerly = {at: nodes[0] for at, nodes in current.items() if nodes}
    even = order_evenly(current, avoid, current, formerly)
    return {at: nodes for at, nodes in even.items() if nodes[0] == broker and nodes != current[at]}


def _unfit(layout: Layout[P]) -> list[int]:
    """Return the brokers that must not become preferred leaders."""
    return [*layout.brokers.cordoned, *layout.dead]
