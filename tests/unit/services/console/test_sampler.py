"""Samples of a cluster that is answered in memory."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed

from pylogd.client.core.admin.health import Verdict
from pylogd.services.console.groups import ZooKeeperGroups
from pylogd.store.errors import NoNode, StoreError
from pylogd.store.interfaces import Node, NodeStat
from pylogd.wire.messages.describe_groups import DescribeGroupsRequest
from pylogd.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from pylogd.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from pylogd.wire.messages.list_offsets import ListOffsetsRequest
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest
from tests.unit.services.console.memory import MemoryConsole


def test_a_sample_has_topics_groups_brokers_and_a_verdict() -> None:
    console = MemoryConsole()
    console.sample()
    sample = console.sampler.last
    assert (len(sample.topics), sample.partitions, len(sample.groups), len(sample.brokers)) == (40, 300, 12, 3)
    assert sample.verdict is Verdict.HEALTHY and not sample.gaps
    assert sum(one.leaders for one in sample.brokers.values()) == 300
    assert all(one.replicas == 300 for one in sample.brokers.values())
    group = sample.groups["reader-00003"]
    assert (group.state, group.members, group.protocol) == ("Stable", 3, "range")


def expected_lag(console: MemoryConsole, group_id: str) -> int:
    """The lag by the log ends of the last sample, and what the group had committed at the same time."""
    record, now = console.calls.record, console.clock.seconds()
    behind = int(group_id.rpartition("-")[2]) / 10
    return sum(
        record.end(name, index, now) - record.end(name, index, now - behind)
        for name in record.groups[group_id]
        for index in range(record.topics[name])
    )


def test_lag_is_counted_in_records_and_in_seconds() -> None:
    console = MemoryConsole(topics=20, partitions=60, groups=200)
    for _ in range(4):
        console.sample()
    busy = next(iter(console.calls.record.topics))  # the one of twenty that is written to
    groups = [name for name, topics in console.calls.record.groups.items() if busy in topics]
    last = console.sampler.last
    assert len(groups) > 5
    for group_id in groups:
        group = last.groups[group_id]
        assert group.lag is not None and group.seconds is not None
        assert abs(group.lag - expected_lag(console, group_id)) <= 2 * 60, "clocks are a turn apart"
        behind = int(group_id.rpartition("-")[2]) / 10
        assert group.seconds == pytest.approx(min(behind, 30), abs=3.0)
    assert sorted(last.by_topic[busy]) == sorted(groups)


def test_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pylogd.services.console.cluster_requests.PARTITIONS", 50)
    monkeypatch.setattr("pylogd.services.console.cluster_requests.GROUPS", 5)
    console = MemoryConsole(topics=40, partitions=600, groups=30)
    console.sample()
    assert console.sampler.last.partitions == 600 and len(console.sampler.last.groups) == 30

    def count(request: Any) -> int:
        if isinstance(request, ListOffsetsRequest):
            return sum(len(topic.partitions) for topic in request.topics)
        if isinstance(request, DescribeLogDirsRequest):
            return sum(len(topic.partitions) for topic in (request.topics or [])[:-1])
        if isinstance(request, DescribeGroupsRequest | OffsetFetchRequest):
            return 10 * len(request.groups)
        return 0

    assert max(map(count, console.calls.seen)) <= 50


def test_a_broker_that_does_not_answer_is_a_gap_and_a_reason() -> None:
    console = MemoryConsole()
    console.sample()
    console.calls.dead = {2}
    for _ in range(3):
        console.sample()
    sample = console.sampler.last
    assert [reason.code for reason in sample.reasons] == ["silent-brokers"]
    assert any("broker 2" in gap for gap in sample.gaps)
    unknown = [group for group in sample.groups.values() if group.unknown]
    assert not unknown, "what was known of the ends stays"


@pytest.mark.parametrize("silent", [{1}, {1, 2}])
def test_beside_a_silent_broker_another_one_is_asked_about_the_cluster(silent: set[int]) -> None:
    console = MemoryConsole()
    console.calls.silent = set(silent)
    console.sample()
    sample = console.sampler.last
    assert (sample.number, sample.error, len(sample.brokers)) == (1, None, 3)


def test_without_any_broker_the_last_sample_stays_with_the_reason() -> None:
    console = MemoryConsole()
    console.sample()
    console.calls.dead = {1, 2, 3}
    console.sample()
    sample = console.sampler.last
    assert sample.number == 1 and len(sample.topics) == 40
    assert sample.error is not None and "can't be reached" in sample.error


def test_an_older_broker_is_asked_by_what_it_knows() -> None:
    console = MemoryConsole()
    console.calls.unknown = {DescribeTopicPartitionsRequest, DescribeLogDirsRequest, DescribeGroupsRequest}
    console.calls.versions = {OffsetFetchRequest: 7}
    console.sample()
    sample = console.sampler.last
    assert (len(sample.topics), sample.partitions) == (40, 300)
    assert all(topic.size is None for topic in sample.topics.values())
    group = sample.groups["reader-00003"]
    assert group.members is None and group.lag is not None


def test_topics_of_an_older_broker_are_handed_on_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pylogd.services.console.cluster_requests.PARTITIONS", 50)
    console = MemoryConsole(topics=40, partitions=600)
    console.calls.unknown = {DescribeTopicPartitionsRequest}
    sizes = []
    add = console.sampler._add

    def noted(page: Any, *arguments: Any) -> Any:
        sizes.append(sum(len(topic.partitions) for topic in page))
        return add(page, *arguments)

    monkeypatch.setattr(console.sampler, "_add", noted)
    console.sample()
    assert console.sampler.last.partitions == 600 and len(console.sampler.last.topics) == 40
    largest = max(console.calls.record.topics.values())
    assert len(sizes) > 3 and max(sizes) < 50 + largest
    assert not console.calls.metadata.topics, "the client keeps no copy"


def test_the_next_sample_waits_longer_where_one_takes_long() -> None:
    console = MemoryConsole(topics=2, partitions=2, groups=0)
    sampler = console.sampler
    sampler.start()
    console.clock.advance(0)
    [timer] = [call for call in console.clock.getDelayedCalls() if call.getTime() > 5]
    assert timer.getTime() == 10
    sampler.stop()
    sampler._schedule(30.0)
    assert max(call.getTime() for call in console.clock.getDelayedCalls()) == 60
    sampler.sample_soon()
    console.clock.advance(0)
    assert sampler.last.number == 2
    sampler.stop()


class Store:
    """A ZooKeeper with a group, which may be away."""

    def __init__(self) -> None:
        self.away = True

    def make(self) -> Any:
        return self

    def start(self) -> Deferred[None]:
        return fail(StoreError("no server answers")) if self.away else succeed(None)

    def children(self, path: str) -> Deferred[list[str]]:
        if self.away:
            return fail(StoreError("the connection is lost"))
        found = {
            "/consumers": ["billing", "reader-00003"], "/consumers/billing/offsets": [self.topic],
            "/consumers/billing/ids": ["one", "two"],
        }  # fmt: skip
        return succeed(found[path]) if path in found else fail(NoNode(path))

    def close(self) -> Deferred[None]:
        return succeed(None)

    def exists(self, _: str) -> Deferred[NodeStat]:
        return succeed(NodeStat(0, 1, 1, 0))

    def children_data(self, _: str) -> Deferred[dict[str, Node]]:
        return succeed({"0": Node(b"0", NodeStat(0, 1, 2, 0))})

    topic = ""


def test_groups_in_zookeeper_are_shown_like_all_others() -> None:
    console, store = MemoryConsole(), Store()
    store.topic = next(iter(console.calls.record.topics))
    console.sampler._groups._registered = ZooKeeperGroups(store.make)
    console.sample()
    gap = "ZooKeeper does not tell its groups: "
    assert [text for text in console.sampler.last.gaps if gap in text] == [f"{gap}no server answers"]
    store.away = False
    console.sample()
    sample = console.sampler.last
    group = sample.groups["billing"]
    assert (group.kind, group.state, group.members, group.coordinator) == ("zookeeper", "Stable", 2, -1)
    assert group.lag == sample.topics[store.topic].series.ends[0] and group.lag
    assert sample.groups["reader-00003"].kind == "classic", "a broker has a group of this name too"
    assert sample.groups["reader-00003 (zookeeper)"].state == "Empty"
    assert "billing" in sample.by_topic[store.topic] and not sample.gaps
    store.away = True
    console.sample()
    assert console.sampler.last.groups["billing"].members == 2, "as it was read before"
    assert console.sampler.last.gaps == [f"{gap}the connection is lost"]


def test_groups_in_zookeeper_are_not_changed() -> None:
    console, store = MemoryConsole(allow_writes=True), Store()
    store.topic, store.away = next(iter(console.calls.record.topics)), False
    console.sampler._groups._registered = ZooKeeperGroups(store.make)
    console.sample()
    for page in ("groups/billing", "groups/billing/members", "groups"):
        shown = console.ask(f"/c/cluster/{page}")
        assert shown.status == 200 and "billing" in shown.body
    assert "Reset offsets" not in console.ask("/c/cluster/groups/billing").body
    for action in ("reset", "delete"):
        refused = console.ask(f"/c/cluster/groups/billing/{action}")
        assert (refused.status, "changes none" in refused.body) == (400, True)
