"""Topics, and one topic with its partitions, groups and settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pylogd.services.console.answers import Answer, PageRequest, Refused
from pylogd.services.console.clusters import WatchedCluster
from pylogd.services.console.groups import ends_of
from pylogd.services.console.listing import Column, Listing
from pylogd.services.console.sample import Nodes, Sample, TopicState
from pylogd.services.console.series import UNKNOWN
from pylogd.services.console.view import View
from pylogd.services.console.web import Route, route

COLUMNS: Final = {
    "name": Column("Topic", lambda one: one.name),
    "partitions": Column("Partitions", len, largest=True),
    "factor": Column("Replicas", lambda one: one.factor, largest=True),
    "records": Column("Records", lambda one: one.records, largest=True),
    "size": Column("Size", lambda one: one.size, largest=True),
    "rate": Column("Rate", lambda one: one.rate, largest=True),
    "lacking": Column("Not in sync", lambda one: one.lacking, largest=True),
}


class PartitionRow(NamedTuple):
    """A partition in the form for its topic's page."""

    number: int
    leader: int
    replicas: Nodes
    isr: Nodes
    begin: int | None
    end: int | None
    size: int | None
    rate: float | None


_PARTITION_COLUMNS: Final = {
    "partition": Column("Partition", lambda one: one.number),
    "leader": Column("Leader", lambda one: one.leader),
    "lacking": Column("In sync", lambda one: len(one.replicas) - len(one.isr), largest=True),
    "begin": Column("Begin", lambda one: one.begin, largest=True),
    "end": Column("End", lambda one: one.end, largest=True),
    "size": Column("Size", lambda one: one.size, largest=True),
    "rate": Column("Rate", lambda one: one.rate, largest=True),
}
#: A partition with this many times the mean rate is reported as busier than the others.
_HOT: Final = 3.0


class GroupOnTopic(NamedTuple):
    """A group that has committed offsets in a topic.

    lag, seconds: the lag in this topic, in records and in seconds; None if unknown.
    """

    group_id: str
    state: str
    members: int | None
    lag: int | None
    seconds: float | None
    points: list[int]


_GROUP_COLUMNS: Final = {
    "group": Column("Group", lambda one: one.group_id),
    "lag": Column("Lag", lambda one: one.lag, largest=True),
    "seconds": Column("Behind", lambda one: one.seconds, largest=True),
    "state": Column("State", lambda one: one.state),
    "members": Column("Members", lambda one: one.members, largest=True),
}


@dataclass(eq=False, slots=True)
class Topics:
    """The pages of topics."""

    _view: View

    def routes(self) -> list[Route]:
        """Return the routes of these pages: method, path, handler and the lowest role."""
        return [
            route("GET", "/c/{cluster}/topics", self.topics),
            route("GET", "/c/{cluster}/topics/{topic}", self.topic),
        ]

    def topics(self, asked: PageRequest) -> Answer:
        """Return a page with the topics, filtered and sorted on request; with `internal=1` also the brokers' own
        topics.
        """
        cluster = self._view.cluster(asked)
        internal = asked.options.get("internal") == "1"
        shown = [one for one in cluster.sampler.last.topics.values() if internal or not one.internal]
        listing = Listing(shown, COLUMNS, lambda one: one.name, asked.options)
        return self._view.page("topics.html", asked, cluster, "topics", listing=listing, internal=internal)

    def topic(self, asked: PageRequest) -> Answer:
        """Return a page with a topic's figures, its rate over time, the groups that read it, and its partitions."""
        cluster = self._view.cluster(asked)
        topic = find_topic(cluster, asked.parts["topic"])
        sample = cluster.sampler.last
        partitions = _partitions(topic)
        rows = Listing(partitions, _PARTITION_COLUMNS, lambda one: str(one.number), asked.options)
        now = cluster.seconds()
        groups = [_on_topic(sample, group_id, topic, now) for group_id in sample.by_topic.get(topic.name, ())]
        readers = Listing(groups, _GROUP_COLUMNS, lambda one: one.group_id, _options_after(asked, "g"), "lag")
        chart: dict[str, Any] = {"times": cluster.sampler.times(len(topic.series.rates)), "unit": "records/s",
                                 "values": [round(rate, 2) for rate in topic.series.rates]}  # fmt: skip
        return self._view.page(
            "topic.html", asked, cluster, "topics", topic=topic, listing=rows, readers=readers, chart=chart,
            hot=_hot(partitions),
        )  # fmt: skip


def find_topic(cluster: WatchedCluster, name: str) -> TopicState:
    """Return a topic of the last sample. Raises Refused if there is none with this name."""
    found = cluster.sampler.last.topics.get(name)
    if found is None:
        raise Refused(404, f"There is no topic {name!r} in the last sample.")
    return found


def _options_after(asked: PageRequest, prefix: str) -> dict[str, str]:
    """Return the options of a second list on a page, whose names begin with a prefix."""
    return {name.removeprefix(prefix): value for name, value in asked.options.items() if name.startswith(prefix)}


def _partitions(topic: TopicState) -> list[PartitionRow]:
    ends = topic.series.ends
    return [
        PartitionRow(
            index, leader, topic.replicas[index], topic.isr[index], _number(topic.begins, index), _number(ends, index),
            _number(topic.sizes, index), topic.series.rate_of(index),
        )
        for index, leader in enumerate(topic.leaders)
    ]  # fmt: skip


def _hot(partitions: Sequence[PartitionRow]) -> PartitionRow | None:
    """Return the busiest partition if it has far more than its share of the records; None if none has."""
    rates = [one.rate or 0.0 for one in partitions]
    busiest = max(partitions, key=lambda one: one.rate or 0.0, default=None)
    if busiest is None or busiest.rate is None or busiest.rate <= 0:
        return None
    return busiest if busiest.rate >= _HOT * sum(rates) / len(rates) else None


def _number(numbers: Any, index: int) -> int | None:
    return numbers[index] if index < len(numbers) and numbers[index] != UNKNOWN else None


def _on_topic(sample: Sample, group_id: str, topic: TopicState, now: float) -> GroupOnTopic:
    group = sample.groups[group_id]
    lag, seconds, known = 0, 0.0, False
    for index, end, offset in ends_of(sample, topic.name, group.committed[topic.name]):
        if end != UNKNOWN:
            known = True
            lag += max(end - offset, 0)
            seconds = max(seconds, topic.series.seconds_behind(index, offset, now))
    points = list(group.series.records)
    return GroupOnTopic(
        group_id, group.state, group.members, lag if known else None, seconds if known else None, points
    )
