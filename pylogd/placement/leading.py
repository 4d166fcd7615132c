"""Choose the preferred leaders of partitions: the order of their replicas. No replica moves.

Strategy: brokers are preferred as leaders evenly; leadership moves to them later, with both replicas in sync. To take a
broker out of service it becomes the last replica of the partitions that prefer it, and back, the first of its share.

Rules: brokers that are cordoned or not live are not made the preferred leader of a partition that has another replica,
so that the maintenance of one broker does not undo that of another.

Must not know: connections.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pylogd.placement.brokers import Replicas
from pylogd.placement.layout import Layout, P


def order_evenly(
    replicas: Mapping[P, Sequence[int]],
    avoid: Collection[int],
    places: Collection[P],
    formerly: Mapping[P, int],
) -> dict[P, Replicas]:
    """Return the replicas of some partitions in an order in which brokers are preferred as leaders evenly.

    The order is kept unless a change improves the balance. replicas: those of all partitions, which count. avoid:
    brokers that do not become preferred. places: the partitions whose order may change. formerly: the preferred leader
    of each partition before; one of `avoid` that is still a replica stays preferred.
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
    while changed:  # each change brings two brokers nearer to each other
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
    """Return the same replicas for the partitions that prefer a broker as their leader, in an order with it as last.

    Partitions without a replica elsewhere are left out.
    """
    others = {
        at: [node for node in nodes if node != broker] for at, nodes in layout.current.items() if set(nodes) != {broker}
    }
    even = order_evenly(others, _unfit(layout), others, {})
    return {at: (*even[at], broker) for at in others if layout.partitions[at].replicas[0] == broker}


def leads_again(layout: Layout[P], broker: int) -> dict[P, Replicas]:
    """Return the same replicas for as many partitions as a broker should lead, in an order with it as the first."""
    current = layout.current
    avoid = [node for node in _unfit(layout) if node != broker]
    formerly = {at: nodes[0] for at, nodes in current.items() if nodes}
    even = order_evenly(current, avoid, current, formerly)
    return {at: nodes for at, nodes in even.items() if nodes[0] == broker and nodes != current[at]}


def _unfit(layout: Layout[P]) -> list[int]:
    """Return the brokers that do not become preferred leaders."""
    return [*layout.brokers.cordoned, *layout.dead]
