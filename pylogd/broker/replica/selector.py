"""Choose the replica from which a consumer should read: one in its own rack, if `replica.selector.class` asks for it.

Rules: only live in-sync followers that have the requested offset are chosen. If there are several, the one with the
most records is chosen. A consumer in the leader's rack stays with the leader.

Source: KIP-392.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pylogd.broker.replica.partition import Partition

if TYPE_CHECKING:
    from pylogd.broker.metadata.image import Broker

#: Returned in place of a replica: the consumer stays with the leader.
NO_PREFERENCE = -1


class RackAwareSelector:
    """Chooses replicas by rack.

    brokers: returns the live brokers by id.
    """

    def __init__(self, brokers: Callable[[], Mapping[int, Broker]]) -> None:
        self._brokers = brokers

    @property
    def brokers(self) -> Mapping[int, Broker]:
        """The live brokers, by id."""
        return self._brokers()

    def preferred(self, partition: Partition, rack: str, offset: int) -> int:
        """Return the follower from which a consumer in `rack` should read at `offset`, or NO_PREFERENCE."""
        brokers = self._brokers()
        ours = brokers.get(partition.node_id)
        if ours is not None and ours.rack == rack:
            return NO_PREFERENCE
        best, best_end = NO_PREFERENCE, -1
        for node_id in partition.isr:
            follower, broker = partition.followers.get(node_id), brokers.get(node_id)
            if (
                follower is not None
                and broker is not None
                and broker.rack == rack
                and 0 <= follower.log_start <= offset <= follower.log_end
                and follower.log_end > best_end
            ):
                best, best_end = node_id, follower.log_end
        return best
