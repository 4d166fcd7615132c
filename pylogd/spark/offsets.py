"""Asking the brokers where things are, on the driver: partitions of a subscription, their ends, offsets for times.

Must not know: Spark.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection
from typing import Any

from pylogd.client import Admin, Consumer
from pylogd.client.blocking.offsets import end_offsets_for_epochs, list_offsets
from pylogd.client.core.admin.offsets import LATEST as END
from pylogd.client.core.model import OffsetAndTime, Topic, TopicPartition
from pylogd.spark.errors import DataLoss, OptionError, PlanError
from pylogd.spark.options import EARLIEST, LATEST, ByPartition, SourceOptions, Start, offsets_json

_log = logging.getLogger(__name__)

Place = tuple[str, int]

_ADMIN_ARGUMENTS = ("client_id", "request_timeout", "retry_timeout")


class Offsets:
    """A connection to the brokers for one query. Close it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        client = {name: value for name, value in options.client.items() if name in _ADMIN_ARGUMENTS}
        self._consumer = Consumer(options.bootstrap, prefetch=False, **options.client)
        self._admin = Admin(options.bootstrap, **client)
        self._topics: dict[str, Topic] = {}

    def __enter__(self) -> Offsets:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the connections go."""
        self._consumer.close()
        self._admin.close()

    def partitions(self) -> list[Place]:
        """Those of the subscription that there are now. Raises `UnknownTopic` for a topic that was named and is not,
        and `PlanError` for a partition.
        """
        known = self._known()
        subscription = self._options.subscription
        for name in {*subscription.topics, *(topic for topic, _ in subscription.partitions)} - known.keys():
            known[name] = self._admin.describe_topic(name)  # it may be so new that only some brokers know it
        found = self._chosen(known)
        for place in subscription.partitions:
            if place not in found:
                raise PlanError(f"topic {place[0]!r} has no partition {place[1]}")
        return found

    def existing(self) -> list[Place]:
        """As `partitions`, without what is gone."""
        return self._chosen(self._known())

    def _known(self) -> dict[str, Topic]:
        """Asked for each time: topics get partitions while a query runs."""
        self._topics = {topic.name: topic for topic in self._admin.list_topics(internal=True)}
        return self._topics

    def topic_ids(self, places: Collection[Place]) -> dict[str, str]:
        """The ids of the partitions' topics, as hexadecimal digits, as they were when partitions were last asked for.

        Topics of brokers that are too old to know ids are left out.
        """
        found = {topic: self._topics[topic].topic_id for topic, _ in places if topic in self._topics}
        return {topic: topic_id.hex() for topic, topic_id in found.items() if any(topic_id)}

    def _chosen(self, known: dict[str, Topic]) -> list[Place]:
        subscription = self._options.subscription
        if subscription.pattern is not None:
            pattern = re.compile(subscription.pattern)
            topics = [topic for topic in known.values() if not topic.internal and pattern.search(topic.name)]
        elif subscription.partitions:
            topics = [known[name] for name in {name for name, _ in subscription.partitions} & known.keys()]
        else:
            topics = [known[name] for name in subscription.topics if name in known]
        places = {(topic.name, partition.index) for topic in topics for partition in topic.partitions}
        return sorted(places & set(subscription.partitions) if subscription.partitions else places)

    def earliest(self, places: Collection[Place]) -> ByPartition:
        """Where each begins."""
        return _plain(self._consumer.beginning_offsets(places)) if places else {}

    def latest(self, places: Collection[Place], known: ByPartition | None = None) -> ByPartition:
        """Where each ends. One that ends before what is `known` of it is asked for again a few times: a leader that
        has just taken over may say less for a moment than the one before it.
        """
        return self.ends(places, known)[0]

    def ends(self, places: Collection[Place], known: ByPartition | None = None) -> tuple[ByPartition, ByPartition]:
        """As `latest`, with the leader epochs at that time, of the partitions whose leader tells it."""
        if not places:
            return {}, {}
        for _ in range(self._options.offset_retries):
            found = self._ends(places)
            if all(found[place].offset >= offset for place, offset in (known or {}).items() if place in found):
                break
            time.sleep(self._options.offset_retry_ms / 1000)
        else:
            found = self._ends(places)
        return (
            {place: end.offset for place, end in found.items()},
            {place: end.leader_epoch for place, end in found.items() if end.leader_epoch >= 0},
        )

    def _ends(self, places: Collection[Place]) -> dict[Place, OffsetAndTime]:
        wanted = dict.fromkeys((TopicPartition(*place) for place in places), END)
        found = list_offsets(self._consumer.cluster, wanted)
        return {(place.topic, place.partition): end for place, end in found.items()}

    def truncations(self, read: ByPartition, leader_epochs: ByPartition) -> ByPartition:
        """Of the partitions that were read to an offset at a leader epoch, those whose log has lost records before that
        offset since, as after an unclean election: where what is left of that epoch ends.

        Only partitions that have another leader epoch by now are asked for; those were known when partitions were last
        asked for.
        """
        now = {
            (topic.name, partition.index): partition.leader_epoch
            for topic in self._topics.values()
            for partition in topic.partitions
        }
        moved = {
            TopicPartition(*place): epoch
            for place, epoch in leader_epochs.items()
            if place in read and now.get(place, epoch) != epoch
        }
        ends = end_offsets_for_epochs(self._consumer.cluster, moved) if moved else {}
        return {
            (place.topic, place.partition): end
            for place, end in ends.items()
            if end is not None and end < read[place.topic, place.partition]
        }

    def first_since(self, timestamps: ByPartition) -> dict[Place, int | None]:
        """The first offset whose record is not older than that, None where there is none."""
        found = self._consumer.offsets_for_times(timestamps)
        return {(place[0], place[1]): None if at is None else at.offset for place, at in found.items()}

    def start(self, places: Collection[Place]) -> ByPartition:
        """Where a query over these partitions starts; `PlanError`, `DataLoss`."""
        return self._resolve(self._options.start, places, "starting")

    def end(self, places: Collection[Place]) -> ByPartition:
        """Where a batch query ends."""
        return self._resolve(self._options.end, places, "ending")

    def _resolve(self, bound: Start, places: Collection[Place], which: str) -> ByPartition:
        if bound.everywhere is not None:
            return self.earliest(places) if bound.everywhere == EARLIEST else self.latest(places)
        if bound.offsets is not None:
            return self._specific(bound.offsets, places, which)
        if bound.timestamps is not None:
            _check_all(bound.timestamps, places, f"{which}OffsetsByTimestamp")
            timestamps = bound.timestamps
        else:
            assert bound.timestamp is not None
            timestamps = dict.fromkeys(places, bound.timestamp)
        return self._by_time(timestamps, which)

    def _specific(self, offsets: ByPartition, places: Collection[Place], which: str) -> ByPartition:
        _check_all(offsets, places, f"{which}Offsets")
        earliest, latest = self.earliest(places), self.latest(places)
        found = {}
        for place, offset in offsets.items():
            if offset in (EARLIEST, LATEST):
                found[place] = earliest[place] if offset == EARLIEST else latest[place]
                continue
            if not earliest[place] <= offset <= latest[place]:
                self.lost(
                    f"{which} offset {offset} of {place[0]}-{place[1]} is out of range: "
                    f"it begins with {earliest[place]} and ends with {latest[place]}"
                )
            found[place] = min(max(offset, earliest[place]), latest[place])
        return found

    def _by_time(self, timestamps: ByPartition, which: str) -> ByPartition:
        found = self.first_since(timestamps)
        missing = [place for place, offset in found.items() if offset is None]
        if missing and which == "starting" and not self._options.start_strategy_latest:
            place = missing[0]
            raise PlanError(
                f"No offset matched from request of topic-partition {place[0]}-{place[1]} and timestamp "
                f"{timestamps[place]}. Set startingOffsetsByTimestampStrategy to latest to start at its end."
            )
        latest = self.latest(missing)
        return {place: latest[place] if offset is None else offset for place, offset in found.items()}

    def lost(self, what: str) -> None:
        """Records are gone: raise, or say so, as the options have it."""
        report_loss(what, fail=self._options.fail_on_data_loss)


def report_loss(what: str, *, fail: bool) -> None:
    """Raise `DataLoss`, or log a warning and go on."""
    if fail:
        raise DataLoss(what)
    _log.warning("%s; failOnDataLoss is false: the query goes on without these records", what)


def _check_all(given: ByPartition, places: Collection[Place], option: str) -> None:
    if set(given) != set(places):
        assigned = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(places))
        raise OptionError(
            f"If {option} contains specific offsets, you must specify all TopicPartitions. "
            "Use -1 for latest, -2 for earliest. "
            f"Specified: {offsets_json(given)} Assigned: {assigned}"
        )


def _plain(found: Any) -> ByPartition:
    return {(place[0], place[1]): offset for place, offset in found.items()}
