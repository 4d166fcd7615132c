"""Sum up bytes, records and states of all partitions that a broker hosts: by topic, data directory and partition.

Strategy: logs and partitions keep totals. Each walk adds the growth of these totals since the previous walk to the sums
of the topic, so sums never decrease when a partition moves away or its log is truncated. The first `most_topics`
topics that are written or read get sums of their own; all others share `REST`. Of these topics, the first
`most_partitions` partitions get figures of their own; the others of a topic share `REST` as their partition. A walk is
an iterator that yields after each partition, so that the caller can pause.

Gaps: the traffic of a partition between the last walk and its removal is not counted. The sums of a topic are dropped
when the broker no longer hosts any of its partitions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import sub
from typing import Final

from pylogd.broker.log.log import Log
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.partition_registry import PartitionRegistry
from pylogd.broker.replica.roles import Role

#: The value in place of a topic's name or a partition's number, for all without their own metrics. No topic can have
#: this name.
REST: Final = "(other)"
_ALL_REST: Final = (REST, REST)
_PRODUCED: Final = 6  # its index in the result of `_traffic`


class _Seen:
    """The totals of a partition at the last walk. Changed in place, so that walks leave no garbage.

    traffic: the totals that `_traffic` returns.
    walk: the number of the last walk.
    directory: the log's data directory.
    """

    __slots__ = ("directory", "end_offset", "log", "traffic", "walk", "written")

    def __init__(self) -> None:
        self.log: Log | None = None
        self.directory = ""
        self.end_offset = self.written = self.walk = 0
        self.traffic: tuple[int, ...] = _NO_TRAFFIC

    def begin(self, log: Log) -> None:
        """Start counting a log that was opened since the last walk."""
        self.log = log
        self.directory = os.path.dirname(log.directory)
        self.end_offset, self.written = log.first_offset, 0


def _traffic(partition: Partition) -> tuple[int, ...]:
    """Return the totals of a partition's traffic for the sums, in the order of `TopicSums.add`."""
    return (
        partition.fetched_bytes, partition.copied_bytes, partition.fetches, partition.copies, partition.fetch_errors,
        partition.failed_fetches, partition.produced, partition.appends, partition.failed_appends,
    )  # fmt: skip


_NO_TRAFFIC: Final = (0,) * 9


@dataclass(slots=True)
class TopicSums:
    """Sums of a topic's partitions on this broker since its start.

    messages_in, bytes_in: the messages and bytes appended as the leader.
    replicated_in: the bytes appended as a follower.
    bytes_out, replicated_out: the bytes sent to clients, and to followers.
    fetches: the fetches of clients that found records.
    all_fetches: the fetches including those of followers, and those answered with an error.
    failed_fetches, failed_produces: see `Partition`.
    produces: the Produce requests, one for each partition.
    """

    messages_in: int = 0
    bytes_in: int = 0
    replicated_in: int = 0
    bytes_out: int = 0
    replicated_out: int = 0
    fetches: int = 0
    all_fetches: int = 0
    failed_fetches: int = 0
    produces: int = 0
    failed_produces: int = 0

    def add(
        self, fetched_bytes: int, copied_bytes: int, fetches: int, copies: int, fetch_errors: int, failed_fetches: int,
        produced: int, appends: int, failed_appends: int,
    ) -> None:  # fmt: skip
        """Add the growth of a partition's traffic."""
        self.bytes_out += fetched_bytes
        self.replicated_out += copied_bytes
        self.fetches += fetches
        self.all_fetches += fetches + copies + fetch_errors
        self.failed_fetches += failed_fetches
        self.produces += produced + appends
        self.failed_produces += failed_appends


@dataclass(slots=True)
class PartitionFigures:
    """The present state of a replica on this broker, or the sums of several that have no metrics of their own.

    The first five are only for partitions that this broker leads.
    replicas, in_sync: the numbers of replicas.
    under_replicated, under_min_isr, at_min_isr: 1 if the partition is in this state.
    size, segments: the bytes and segments of the log.
    start, end: the offsets of the log; None for several replicas.
    """

    replicas: int = 0
    in_sync: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    size: int = 0
    segments: int = 0
    start: int | None = None
    end: int | None = None


@dataclass(slots=True)
class PartitionCounts:
    """The numbers of partitions by state, counted in the same way as by Kafka's `ReplicaManager`.

    moving: the partitions that this broker leads and whose replicas are being moved.
    """

    partitions: int = 0
    leaders: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    moving: int = 0
    offline: int = 0


@dataclass(slots=True)
class DirectorySums:
    """The replicas of a data directory on this broker.

    size: the bytes of all its logs.
    """

    partitions: int = 0
    segments: int = 0
    size: int = 0


class Survey:
    """Sums up all partitions.

    topics, counts, directories, partitions: the results of the last complete walk; the keys of `partitions` are labels
    of topic and partition, and either may be `REST`.
    produce_requests: the number of Produce requests that the fast path has answered, for all topics.
    """

    def __init__(
        self, registry: PartitionRegistry, most_topics: Callable[[], int], most_partitions: Callable[[], int]
    ) -> None:
        self._registry = registry
        self._most_topics = most_topics
        self._most_partitions = most_partitions
        self._seen: dict[Partition, _Seen] = {}
        self._named: dict[tuple[str, int], tuple[str, str]] = {}  # the labels of partitions with their own figures
        self._walks = 0
        self.topics: dict[str, TopicSums] = {REST: TopicSums()}
        self.counts = PartitionCounts()
        self.directories: dict[str, DirectorySums] = {}
        self.partitions: dict[tuple[str, str], PartitionFigures] = {}
        self.produce_requests = 0

    def walk(self) -> Iterator[None]:
        """Visit all partitions, and yield after each. Finish a walk before the next one is started."""
        self._walks += 1
        counts, directories = PartitionCounts(), dict[str, DirectorySums]()
        figures: dict[tuple[str, str], PartitionFigures] = {}
        if len(self._named) > self._most_partitions():  # the limit was lowered
            self._named.clear()
        online = 0
        for partition in list(self._registry.by_name.values()):
            if partition.online:
                online += 1
                self._look_at(partition, counts, figures, directories)
            else:
                _count(partition, counts, None)
            yield
        self.counts, self.directories, self.partitions = counts, directories, figures
        there = {topic for topic, _ in figures}
        for name in [name for name in self.topics if name != REST and name not in there]:
            del self.topics[name]
        yield from self._forget(online)

    def _forget(self, online: int) -> Iterator[None]:
        """Drop the totals of partitions that the broker no longer hosts."""
        if len(self._seen) > online:
            for partition, seen in list(self._seen.items()):
                if seen.walk != self._walks:
                    del self._seen[partition]
                    self._named.pop((partition.topic, partition.index), None)
                yield

    def _look_at(
        self, partition: Partition, counts: PartitionCounts, figures: dict[tuple[str, str], PartitionFigures],
        directories: dict[str, DirectorySums],
    ) -> None:  # fmt: skip
        log, seen = partition.log, self._seen.get(partition)
        if seen is None:
            seen = self._seen[partition] = _Seen()
        if seen.log is not log:
            seen.begin(log)
        seen.walk = self._walks
        labels = self._labels(partition, self._flows(partition, seen, log))
        of = figures.get(labels)
        if of is None:
            of = figures[labels] = PartitionFigures()
        size, segments = log.written_bytes - log.removed_bytes, len(log.segments)
        of.size += size
        of.segments += segments
        if labels[1] != REST:
            of.start, of.end = log.log_start_offset, log.log_end_offset
        _count(partition, counts, of)
        total = directories.get(seen.directory)
        if total is None:
            total = directories[seen.directory] = DirectorySums()
        total.partitions += 1
        total.segments += segments
        total.size += size

    def _labels(self, partition: Partition, topic: str) -> tuple[str, str]:
        """Return the labels under which the figures of a partition are shown.

        topic: the label of its topic.
        """
        if topic == REST:
            return _ALL_REST
        key = (partition.topic, partition.index)
        labels = self._named.get(key)
        if labels is None:
            if len(self._named) >= self._most_partitions():
                return topic, REST
            labels = self._named[key] = (topic, str(partition.index))
        return labels

    def _flows(self, partition: Partition, seen: _Seen, log: Log) -> str:
        """Add the growth of a partition's totals to the sums of its topic. Return the label of these sums."""
        end, written = log.log_end_offset, log.written_bytes
        traffic = _traffic(partition)
        same = written == seen.written and traffic == seen.traffic
        name = self._name_of(partition.topic, not same)
        if same:
            return name
        sums = self.topics[name]
        messages, grown = max(end - seen.end_offset, 0), max(written - seen.written, 0)
        if partition.role is Role.LEADING:
            sums.messages_in += messages
            sums.bytes_in += grown
        else:
            sums.replicated_in += grown
        sums.add(*map(sub, traffic, seen.traffic))
        self.produce_requests += traffic[_PRODUCED] - seen.traffic[_PRODUCED]
        seen.end_offset, seen.written = max(end, seen.end_offset), max(written, seen.written)
        seen.traffic = traffic
        return name

    def _name_of(self, topic: str, active: bool) -> str:
        """Return the key in `topics` for a topic: its name, or `REST`."""
        if topic in self.topics:
            return topic
        if active and len(self.topics) <= self._most_topics():
            self.topics[topic] = TopicSums()
            return topic
        return REST


def _count(partition: Partition, counts: PartitionCounts, figures: PartitionFigures | None) -> None:
    """Count a partition by its state, also in its own figures if it has any."""
    counts.partitions += 1
    if partition.role is Role.OFFLINE:
        counts.offline += 1
    elif partition.role is Role.LEADING:
        counts.leaders += 1
        state = partition.state
        if state is None:
            return
        in_sync = len(state.isr)
        under_replicated = in_sync < len(state.replicas) - len(state.adding)
        under_min_isr = not partition.enough_in_sync
        at_min_isr = in_sync == state.effective_min_insync(partition.min_insync_replicas)
        counts.moving += state.moving
        counts.under_replicated += under_replicated
        counts.under_min_isr += under_min_isr
        counts.at_min_isr += at_min_isr
        if figures is not None:
            figures.replicas += len(state.replicas)
            figures.in_sync += in_sync
            figures.under_replicated += under_replicated
            figures.under_min_isr += under_min_isr
            figures.at_min_isr += at_min_isr
