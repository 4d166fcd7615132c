"""Check a plan before anything is changed, by the same rule as the brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pylogd.base.placement.layout import Layout, P


def refusals(
    layout: Layout[P], targets: Mapping[P, Sequence[int]], labels: Mapping[str, str] | None = None
) -> dict[P, str]:
    """Return the partitions whose moves brokers would refuse, each with the reason.

    layout: the layout with all partitions of the plan's topics.
    targets: the replicas of each partition.
    labels: the new labels of topics, by name. All replicas of such a topic must be within its label, not only added
    ones.
    """
    wrong = {}
    for at, nodes in targets.items():
        found = _refusal(layout, at, nodes, (labels or {}).get(at[0]))
        if found is not None:
            wrong[at] = found
    return wrong


def _refusal(layout: Layout[P], at: P, nodes: Sequence[int], new_label: str | None) -> str | None:
    if at not in layout.partitions:
        return "there is no such partition"
    if not nodes or len(set(nodes)) < len(nodes):
        return f"replicas have to be different brokers, at least one: {list(nodes)}"
    present, leaving = layout.partitions[at]
    label = layout.label(at) if new_label is None else new_label
    for node in nodes:
        broker = layout.brokers.live.get(node)
        if (node not in present and node not in leaving) or (
            broker is not None and not broker.carries(label) and (node in leaving or new_label is not None)
        ):
            obstacle = layout.brokers.obstacle(node, label)
        else:
            continue
        if obstacle is not None:
            return obstacle.text
    return None
