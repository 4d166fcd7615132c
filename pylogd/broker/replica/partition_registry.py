"""The partitions that this broker hosts: found by topic name or topic id, with listeners for what changes about them.

Strategy: requests find partitions in two flat dicts, so a look-up costs the same however many there are.
`replica.hosting` adds and removes partitions and announces their changes.

Rules:
- Everything here runs on the reactor's thread.
- A partition is added once its log is open, and removed before its log is deleted. Code that still has the partition
  then finds its role to be Deleted.
- A listener is given the partition as it is now, and not its former state.

Must not know: logs, the metadata, requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from twisted.logger import Logger

from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.roles import Role

log = Logger()

PartitionListener = Callable[[Partition], object]
#: Called with a partition, and whether this broker leads it from now on.
LeadershipListener = Callable[[Partition, bool], object]

_NONE: Mapping[int, Partition] = MappingProxyType({})


class PartitionRegistry:
    """Every partition hosted by this broker.

    by_name: all partitions, by (topic name, index).
    by_id: all partitions, by (topic id, index).
    replicated: the partitions of `by_name` that other brokers host too.
    awaiting_directory: keys of partitions whose only complete copy is in a log directory that is missing.
    """

    def __init__(self) -> None:
        self.by_name: dict[tuple[str, int], Partition] = {}
        self.by_id: dict[tuple[bytes, int], Partition] = {}
        self.replicated: dict[tuple[str, int], Partition] = {}
        self.awaiting_directory: set[tuple[str, int]] = set()
        self._by_topic: dict[str, dict[int, Partition]] = {}
        self._listeners: list[PartitionListener] = []
        self._leadership_listeners: list[LeadershipListener] = []

    def topics(self) -> Iterator[str]:
        """Iterate over the names of topics of which partitions are hosted."""
        return iter(self._by_topic)

    def of_topic(self, name: str) -> Mapping[int, Partition]:
        """Return the hosted partitions of a topic, by index."""
        return self._by_topic.get(name, _NONE)

    def add(self, partition: Partition) -> None:
        """Make a partition known to look-ups."""
        self.by_name[partition.key] = partition
        self.by_id[partition.topic_id, partition.index] = partition
        self._by_topic.setdefault(partition.topic, {})[partition.index] = partition

    def remove(self, partition: Partition) -> None:
        """Remove a partition from all look-ups."""
        del self.by_name[partition.key]
        del self.by_id[partition.topic_id, partition.index]
        self.replicated.pop(partition.key, None)
        hosted = self._by_topic[partition.topic]
        del hosted[partition.index]
        if not hosted:
            del self._by_topic[partition.topic]

    # -- listeners

    def subscribe(self, listener: PartitionListener) -> None:
        """Call `listener` with a partition whenever its role, leader or leader epoch changes."""
        self._listeners.append(listener)

    def on_leadership(self, listener: LeadershipListener) -> Callable[[], None]:
        """Call `listener` whenever this broker starts or stops leading a partition; return a function that ends this.

        A partition that is led in a new leader epoch is announced as stopped, then as started.
        """
        self._leadership_listeners.append(listener)
        return lambda: self._leadership_listeners.remove(listener)

    def announce(self, partition: Partition) -> None:
        """Tell the listeners that the role, leader or leader epoch of `partition` has changed."""
        for listener in self._listeners:
            try:
                listener(partition)
            except Exception:
                log.failure("Unexpected error while announcing a change of {partition!r}", partition=partition)
        epoch = partition.leader_epoch if partition.role is Role.LEADING else None
        before, partition.announced_epoch = partition.announced_epoch, epoch
        if before != epoch and before is not None:
            self._announce_leadership(partition, False)
        if before != epoch and epoch is not None:
            self._announce_leadership(partition, True)

    def _announce_leadership(self, partition: Partition, leads: bool) -> None:
        for listener in list(self._leadership_listeners):
            try:
                listener(partition, leads)
            except Exception:
                log.failure("Unexpected error while announcing the leadership of {partition!r}", partition=partition)
