"""Plan the changes that take a broker out of service for a while; the caller makes them.

Strategy: the broker's data directories are cordoned, so that no new replicas come to it. It becomes the last replica of
the partitions that prefer it as their leader; then the preferred leaders are elected. Its replicas stay where they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pylogd.client.core.admin.replica_plan import Placement, lead_evenly
from pylogd.client.core.model import TopicPartition

#: The setting of a broker that names data directories which get no new replicas, and its value for all of them.
CORDONED: Final = "cordoned.log.dirs"
EVERY_DIRECTORY: Final = "*"


def cordon_value(directories: Mapping[str, bool], chosen: Collection[str], cordoned: bool) -> str:
    """Return the value of `CORDONED` after a change.

    directories: whether each of the broker's is cordoned now. chosen: those that change; empty for all. cordoned: what
    they become.
    """
    if not chosen:
        return EVERY_DIRECTORY if cordoned else ""
    after = {**directories, **dict.fromkeys(chosen, cordoned)}
    return ",".join(sorted(path for path, holds in after.items() if holds))


def led_by_others(current: Mapping[TopicPartition, Sequence[int]], broker: int) -> Placement:
    """Return the same replicas for the partitions that prefer a broker as their leader, in an order with it as last.

    Partitions without a replica elsewhere are left out.
    """
    others = {at: [node for node in nodes if node != broker] for at, nodes in current.items() if set(nodes) != {broker}}
    even = lead_evenly(others)
    return {at: (*even[at], broker) for at in others if current[at][0] == broker}


def leads_again(current: Mapping[TopicPartition, Sequence[int]], broker: int) -> Placement:
    """Return the same replicas for as many partitions as a broker should lead, in an order with it as the first."""
    even = lead_evenly(current)
    return {at: nodes for at, nodes in even.items() if nodes[0] == broker and nodes != tuple(current[at])}
