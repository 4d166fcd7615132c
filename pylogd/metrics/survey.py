"""Sum up bytes, records and states of all partitions that a broker hosts, by topic and by data directory.

Strategy: logs and partitions keep totals. Each walk adds the growth of these totals since the previous walk to the sums
of the topic, so sums never decrease when a partition moves away or its log is truncated. The first `most_topics`
topics that are written or read get sums of their own; all others share `REST`. A walk is an iterator that yields after
each partition, so that the caller can pause.

Gaps: what happens to a partition between the last walk and its removal is not counted. The sums of a topic are dropped
when the broker no longer hosts any of its partitions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from pylogd.log.log import Log
from pylogd.replica.partition import Partition
from pylogd.replica.partition_registry import PartitionRegistry
from pylogd.replica.roles import Role

#: In place of the name of a topic: all that have no metrics of their own. No topic can have this name.
REST: Final = "(other)"


class _Seen:
    """The totals of a partition at the last walk. Changed in place, so that walks leave no garbage.

    walk: the number of that walk. directory: the log's data directory.
    """

    __slots__ = ("copied", "directory", "end_offset", "fetched", "fetches", "log", "produced", "walk", "written")

    def __init__(self) -> None:
        self.log: Log | None = None
        self.directory = ""
        self.end_offset = self.written = self.fetched = self.fetches = self.copied = self.produced = self.walk = 0

    def begin(self, log: Log) -> None:
        """Start counting a log that was opened since the last walk."""
        self.log = log
        self.directory = os.path.dirname(log.directory)
        self.end_offset, self.written = log.first_offset, 0


@dataclass(slots=True)
class TopicSums:
    """Sums of a topic's partitions on this broker since its start.

    messages_in, bytes_in: appended as the leader. replicated_in: bytes appended as a follower. bytes_out,
    replicated_out: bytes sent to clients, and to followers. fetches: of clients, that found records. produce_requests:
    answered by the fast path. size, segments: bytes and segments that the logs have now.
    """

    messages_in: int = 0
    bytes_in: int = 0
    replicated_in: int = 0
    bytes_out: int = 0
    replicated_out: int = 0
    fetches: int = 0
    produce_requests: int = 0
    size: int = 0
    segments: int = 0


@dataclass(slots=True)
class PartitionCounts:
    """Numbers of partitions by their state, as Kafka's `ReplicaManager` counts them."""

    partitions: int = 0
    leaders: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    offline: int = 0


@dataclass(slots=True)
class DirectorySums:
    """The replicas of a data directory, or of a topic, on this broker. size: the bytes of all its logs."""

    partitions: int = 0
    segments: int = 0
    size: int = 0


_NOTHING: Final = DirectorySums()


class Survey:
    """Sums up all partitions. topics, counts, directories: the results of the last complete walk.

    produce_requests: the number of Produce requests that the fast path has answered, of all topics.
    """

    def __init__(self, registry: PartitionRegistry, most_topics: Callable[[], int]) -> None:
        self._registry = registry
        self._most_topics = most_topics
        self._seen: dict[Partition, _Seen] = {}
        self._walks = 0
        self.topics: dict[str, TopicSums] = {REST: TopicSums()}
        self.counts = PartitionCounts()
        self.directories: dict[str, DirectorySums] = {}
        self.produce_requests = 0

    def walk(self) -> Iterator[None]:
        """Visit all partitions, and yield after each. Finish a walk before the next one is started."""
        self._walks += 1
        counts, directories = PartitionCounts(), dict[str, DirectorySums]()
        sizes: dict[str, DirectorySums] = {}
        online = 0
        for partition in list(self._registry.by_name.values()):
            _count(partition, counts)
            if partition.online:
                online += 1
                self._look_at(partition, sizes, directories)
            yield
        self.counts, self.directories = counts, directories
        for name in [name for name in self.topics if name != REST and name not in sizes]:
            del self.topics[name]
        for name, sums in self.topics.items():
            found = sizes.get(name, _NOTHING)
            sums.size, sums.segments = found.size, found.segments
        yield from self._forget(online)

    def _forget(self, online: int) -> Iterator[None]:
        """Drop the totals of partitions that the broker no longer hosts."""
        if len(self._seen) > online:
            for partition, seen in list(self._seen.items()):
                if seen.walk != self._walks:
                    del self._seen[partition]
                yield

    def _look_at(
        self, partition: Partition, sizes: dict[str, DirectorySums], directories: dict[str, DirectorySums]
    ) -> None:
        log, seen = partition.log, self._seen.get(partition)
        if seen is None:
            seen = self._seen[partition] = _Seen()
        if seen.log is not log:
            seen.begin(log)
        seen.walk = self._walks
        sums = self._flows(partition, seen, log)
        name = partition.topic if sums is not self.topics[REST] else REST
        size, segments = log.written_bytes - log.removed_bytes, len(log.segments)
        for key, of in ((name, sizes), (seen.directory, directories)):
            total = of.get(key)
            if total is None:
                total = of[key] = DirectorySums()
            total.partitions += 1
            total.segments += segments
            total.size += size

    def _flows(self, partition: Partition, seen: _Seen, log: Log) -> TopicSums:
        """Add the growth of a partition's totals to the sums of its topic, and return these."""
        end, written = log.log_end_offset, log.written_bytes
        fetched, produced = partition.fetched_bytes, partition.produced
        copied = partition.copied_bytes
        same = written == seen.written and fetched == seen.fetched and copied == seen.copied
        sums = self.topics[self._name_of(partition.topic, not same)]
        if same and produced == seen.produced:
            return sums
        messages, grown = max(end - seen.end_offset, 0), max(written - seen.written, 0)
        if partition.role is Role.LEADING:
            sums.messages_in += messages
            sums.bytes_in += grown
        else:
            sums.replicated_in += grown
        sums.bytes_out += fetched - seen.fetched
        sums.replicated_out += copied - seen.copied
        sums.fetches += partition.fetches - seen.fetches
        sums.produce_requests += produced - seen.produced
        self.produce_requests += produced - seen.produced
        seen.end_offset, seen.written = max(end, seen.end_offset), max(written, seen.written)
        seen.fetched, seen.copied, seen.fetches, seen.produced = fetched, copied, partition.fetches, produced
        return sums

    def _name_of(self, topic: str, active: bool) -> str:
        """Return the key in `topics` for a topic: its name, or `REST`."""
        if topic in self.topics:
            return topic
        if active and len(self.topics) <= self._most_topics():
            self.topics[topic] = TopicSums()
            return topic
        return REST


def _count(partition: Partition, counts: PartitionCounts) -> None:
    counts.partitions += 1
    if partition.role is Role.OFFLINE:
        counts.offline += 1
    elif partition.role is Role.LEADING:
        counts.leaders += 1
        state = partition.state
        if state is None:
            return
        in_sync = len(state.isr)
        counts.under_replicated += in_sync < len(state.replicas) - len(state.adding)
        counts.under_min_isr += not partition.enough_in_sync
        counts.at_min_isr += in_sync == state.effective_min_insync(partition.min_insync_replicas)
