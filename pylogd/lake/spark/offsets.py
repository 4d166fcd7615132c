"""Look up partitions and offsets at the brokers, on the driver.

Must not know: Spark.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection
from typing import Any

from pylogd.client import Admin, Consumer
from pylogd.client.blocking.cluster import end_offsets_for_epochs, list_offsets
from pylogd.client.core.admin.offsets import LATEST as END
from pylogd.client.core.model import OffsetAndTime, Topic, TopicPartition
from pylogd.lake.spark.errors import DataLoss, OptionError, PlanError
from pylogd.lake.spark.options import (
    EARLIEST,
    LATEST,
    OffsetBound,
    SourceOptions,
    admin_arguments,
    offsets_json,
)
from pylogd.lake.tables.position import ByPartition

_log = logging.getLogger(__name__)

#: A topic and the index of one of its partitions.
PartitionId = tuple[str, int]


class OffsetLookup:
    """Look-ups for one query. Holds connections to the brokers until it is closed."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._consumer = Consumer(options.bootstrap, prefetch=False, **options.client)
        self._admin = Admin(options.bootstrap, **admin_arguments(options.client))
        self._topics: dict[str, Topic] = {}

    def __enter__(self) -> OffsetLookup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()
        self._admin.close()

    def partitions(self) -> list[PartitionId]:
        """Return the partitions of the subscription, sorted.

        Raises UnknownTopic if a topic that the subscription names does not exist; PlanError if a partition does not
        exist.
        """
        known = self._known()
        subscription = self._options.subscription
        for name in {*subscription.topics, *(topic for topic, _ in subscription.partitions)} - known.keys():
            known[name] = self._admin.describe_topic(name)  # only some brokers may know a new topic
        found = self._chosen(known)
        for partition in subscription.partitions:
            if partition not in found:
                raise PlanError(f"topic {partition[0]!r} has no partition {partition[1]}")
        return found

    def existing(self) -> list[PartitionId]:
        """Return the partitions of the subscription that exist, sorted."""
        return self._chosen(self._known())

    def _known(self) -> dict[str, Topic]:
        """Ask for all topics. The answer is not cached, because partitions may be added while a query runs."""
        self._topics = {topic.name: topic for topic in self._admin.list_topics(internal=True)}
        return self._topics

    def topic_ids(self, partitions: Collection[PartitionId]) -> dict[str, str]:
        """Return the topic ids of these partitions, as hexadecimal digits, from the last look-up of partitions.

        Topics of brokers without topic ids are left out.
        """
        found = {topic: self._topics[topic].topic_id for topic, _ in partitions if topic in self._topics}
        return {topic: topic_id.hex() for topic, topic_id in found.items() if any(topic_id)}

    def _chosen(self, known: dict[str, Topic]) -> list[PartitionId]:
        subscription = self._options.subscription
        if subscription.pattern is not None:
            pattern = re.compile(subscription.pattern)
            topics = [topic for topic in known.values() if not topic.internal and pattern.search(topic.name)]
        elif subscription.partitions:
            topics = [known[name] for name in {name for name, _ in subscription.partitions} & known.keys()]
        else:
            topics = [known[name] for name in subscription.topics if name in known]
        partitions = {(topic.name, partition.index) for topic in topics for partition in topic.partitions}
        return sorted(partitions & set(subscription.partitions) if subscription.partitions else partitions)

    def earliest(self, partitions: Collection[PartitionId]) -> ByPartition:
        """Return the first offset of each partition."""
        return _plain(self._consumer.beginning_offsets(partitions)) if partitions else {}

    def latest(self, partitions: Collection[PartitionId], known: ByPartition | None = None) -> ByPartition:
        """Return the end offset of each partition; the last stable offset if only committed records are read.

        known: offsets that were read before. If an end lies before one of these offsets, the look-up is repeated a few
        times, because a new leader may report a lower high watermark for a moment.
        """
        return self.ends(partitions, known)[0]

    def undecided(self, partitions: Collection[PartitionId]) -> tuple[ByPartition, ByPartition]:
        """Return the ranges in which records of open transactions may be, for partitions that may have any."""
        start = {each: end.offset for each, end in self._list_ends(partitions, committed=True).items()}
        end = {each: end.offset for each, end in self._list_ends(partitions, committed=False).items()}
        mine = [each for each in partitions if start[each] < end[each]]
        return {each: start[each] for each in mine}, {each: end[each] for each in mine}

    def ends(
        self, partitions: Collection[PartitionId], known: ByPartition | None = None
    ) -> tuple[ByPartition, ByPartition]:
        """Return the end offsets as `latest` does, and the leader epoch of each partition whose leader reports it."""
        if not partitions:
            return {}, {}
        for _ in range(self._options.offset_retries):
            found = self._ends(partitions, known)
            if all(
                found[partition].offset >= offset for partition, offset in (known or {}).items() if partition in found
            ):
                break
            time.sleep(self._options.offset_retry_ms / 1000)
        else:
            found = self._ends(partitions, known)
        return (
            {partition: end.offset for partition, end in found.items()},
            {partition: end.leader_epoch for partition, end in found.items() if end.leader_epoch >= 0},
        )

    def _ends(
        self, partitions: Collection[PartitionId], known: ByPartition | None = None
    ) -> dict[PartitionId, OffsetAndTime]:
        committed = self._options.read_committed
        found = self._list_ends(partitions, committed=committed)
        if committed and known:
            # A query that read uncommitted records before may be ahead of the last stable offset; then no records are
            # lost.
            ahead = {each: read for each, read in known.items() if each in found and found[each].offset < read}
            for partition, end in self._list_ends(ahead, committed=False).items():
                if end.offset >= ahead[partition]:
                    found[partition] = end._replace(offset=ahead[partition])
        return found

    def _list_ends(self, partitions: Collection[PartitionId], *, committed: bool) -> dict[PartitionId, OffsetAndTime]:
        if not partitions:
            return {}
        wanted = dict.fromkeys((TopicPartition(*partition) for partition in partitions), END)
        found = list_offsets(self._consumer.cluster, wanted, committed=committed)
        return {(partition.topic, partition.partition): end for partition, end in found.items()}

    def truncations(self, read: ByPartition, leader_epochs: ByPartition) -> ByPartition:
        """Return the partitions whose log has lost records that were read, such as by an unclean election.

        The arguments are the offset up to which each partition was read, and the leader epoch at that time. The result
        has the end offset of that epoch in the present log. Only partitions whose leader epoch differs in the last
        look-up of partitions are asked for (KIP-320).
        """
        now = {
            (topic.name, partition.index): partition.leader_epoch
            for topic in self._topics.values()
            for partition in topic.partitions
        }
        moved = {
            TopicPartition(*partition): epoch
            for partition, epoch in leader_epochs.items()
            if partition in read and now.get(partition, epoch) != epoch
        }
        ends = end_offsets_for_epochs(self._consumer.cluster, moved) if moved else {}
        return {
            (partition.topic, partition.partition): end
            for partition, end in ends.items()
            if end is not None and end < read[partition.topic, partition.partition]
        }

    def first_since(self, timestamps: ByPartition) -> dict[PartitionId, int | None]:
        """Return the offset of each partition's first record with at least the given time stamp, or None."""
        found = self._consumer.offsets_for_times(timestamps)
        return {(partition[0], partition[1]): None if at is None else at.offset for partition, at in found.items()}

    def start(self, partitions: Collection[PartitionId]) -> ByPartition:
        """Return the offsets at which a query of these partitions starts. Raises PlanError or DataLoss."""
        return self._resolve(self._options.start, partitions, "starting")

    def end(self, partitions: Collection[PartitionId]) -> ByPartition:
        """Return the offsets at which a batch query ends. Raises PlanError or DataLoss."""
        return self._resolve(self._options.end, partitions, "ending")

    def _resolve(self, bound: OffsetBound, partitions: Collection[PartitionId], which: str) -> ByPartition:
        if bound.everywhere is not None:
            return self.earliest(partitions) if bound.everywhere == EARLIEST else self.latest(partitions)
        if bound.offsets is not None:
            return self._specific(bound.offsets, partitions, which)
        if bound.timestamps is not None:
            _check_all(bound.timestamps, partitions, f"{which}OffsetsByTimestamp")
            timestamps = bound.timestamps
        else:
            assert bound.timestamp is not None
            timestamps = dict.fromkeys(partitions, bound.timestamp)
        return self._by_time(timestamps, which)

    def _specific(self, offsets: ByPartition, partitions: Collection[PartitionId], which: str) -> ByPartition:
        _check_all(offsets, partitions, f"{which}Offsets")
        earliest, latest = self.earliest(partitions), self.latest(partitions)
        end = "ends with the last stable offset" if self._options.read_committed else "ends with"
        found = {}
        for partition, offset in offsets.items():
            if offset in (EARLIEST, LATEST):
                found[partition] = earliest[partition] if offset == EARLIEST else latest[partition]
                continue
            if not earliest[partition] <= offset <= latest[partition]:
                self.lost(
                    f"{which} offset {offset} of {partition[0]}-{partition[1]} is out of range: "
                    f"the partition begins with {earliest[partition]} and {end} {latest[partition]}"
                )
            found[partition] = min(max(offset, earliest[partition]), latest[partition])
        return found

    def _by_time(self, timestamps: ByPartition, which: str) -> ByPartition:
        found = self.first_since(timestamps)
        missing = [partition for partition, offset in found.items() if offset is None]
        if missing and which == "starting" and not self._options.start_strategy_latest:
            partition = missing[0]
            raise PlanError(
                f"No offset matched from request of topic-partition {partition[0]}-{partition[1]} and timestamp "
                f"{timestamps[partition]}. Set startingOffsetsByTimestampStrategy to latest to start at its end."
            )
        latest = self.latest(missing)
        return {partition: latest[partition] if offset is None else offset for partition, offset in found.items()}

    def lost(self, what: str) -> None:
        """Report lost records: raise DataLoss or log a warning, as the options say."""
        report_loss(what, fail=self._options.fail_on_data_loss)


def report_loss(what: str, *, fail: bool) -> None:
    """Report lost records: raise DataLoss if `fail`, else log a warning."""
    if fail:
        raise DataLoss(what)
    _log.warning("%s; failOnDataLoss is false: the query continues without these records", what)


def _check_all(given: ByPartition, partitions: Collection[PartitionId], option: str) -> None:
    if set(given) != set(partitions):
        assigned = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions))
        raise OptionError(
            f"If {option} contains specific offsets, you must specify all TopicPartitions. "
            "Use -1 for latest, -2 for earliest. "
            f"Specified: {offsets_json(given)} Assigned: {assigned}"
        )


def _plain(found: Any) -> ByPartition:
    return {(partition[0], partition[1]): offset for partition, offset in found.items()}
