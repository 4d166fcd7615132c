"""The lag of consumer groups, in records and in seconds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed

from pylogd.base.errors import BrokerUnavailable
from pylogd.broker.groups.records import Committed
from pylogd.broker.groups.values import NO_GENERATION
from pylogd.broker.metrics.group_lag import GroupLagSampler
from pylogd.broker.metrics.survey import REST
from pylogd.store import consumers
from pylogd.store.consumers import RegisteredGroups
from pylogd.store.errors import NodeExists, StoreError
from pylogd.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts


class OtherBroker:
    """Leads every partition that it is asked about, with this log end."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.closed = False

    def request(self, request: ListOffsetsRequest) -> Any:
        assert {one.timestamp for topic in request.topics for one in topic.partitions} == {-1}
        topics = [
            ListOffsetsTopicResponse(
                topic.name,
                [ListOffsetsPartitionResponse(one.partition_index, 0, -1, self.end, 5) for one in topic.partitions],
            )
            for topic in request.topics
        ]
        return succeed(ListOffsetsResponse(0, topics))

    def close(self) -> None:
        self.closed = True


class Case:
    """A coordinator of groups, and the sampler."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.others: dict[int, OtherBroker] = {}
        self.most = 10
        self.is_controller = True
        registered = RegisteredGroups(parts.metadata.store, parts.topics.names, lambda: self.is_controller)
        self.sampler = GroupLagSampler(
            parts.groups, parts.partitions, parts.topics, self.connect, parts.clock, 10.0, lambda: self.most, registered
        )
        result_of(parts.topic_admin.create_topic("__consumer_offsets", partitions=1))
        result_of(parts.hosting.settled("__consumer_offsets"))

    def connect(self, node: int) -> Deferred[Any]:
        if node not in self.others:
            return fail(BrokerUnavailable(f"broker {node} is not registered"))
        return succeed(self.others[node])

    def commit(self, group: str, topic: str, offset: int) -> None:
        committed = [((topic, 0), Committed(offset, -1, "", self.parts.now_ms(), -1))]
        answer = self.parts.groups.commit(group, "", None, NO_GENERATION, committed)
        code = result_of(answer) if isinstance(answer, Deferred) else answer
        assert code == 0

    def register(self, group: str, topic: str, offset: str, member: str = "") -> None:
        """Write a group of consumers to the store, with an offset and a member, as such consumers do."""
        store = self.parts.metadata.store
        nodes = {f"offsets/{topic}/0": offset.encode(), **({f"ids/{member}": b"{}"} if member else {})}
        for path, data in nodes.items():
            parts = ["/consumers", group, *path.split("/")]
            for depth in range(1, len(parts)):
                with contextlib.suppress(NodeExists):
                    result_of(store.create("/".join(parts[:depth])))
            result_of(store.create("/".join(parts), data))

    def sample(self) -> None:
        result_of(Deferred.fromCoroutine(self.sampler.sample()))


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    parts = Parts(tmp_path)
    made = Case(parts)
    yield made
    made.sampler.stop()
    parts.close()


def test_records_and_seconds(case: Case) -> None:
    parts = case.parts
    parts.create("t")
    parts.append("t", b"a", b"b")
    case.commit("g", "t", 2)
    case.sample()
    assert case.sampler.last.lags == {"g": (0, 0.0)}
    assert case.sampler.last.states == {("classic", "Empty"): 1}
    parts.time.advance(10)
    parts.append("t", b"c", b"d", b"e")
    case.sample()
    assert case.sampler.last.lags["g"].records == 3
    assert case.sampler.last.lags["g"].seconds == pytest.approx(10)
    parts.time.advance(20)
    case.sample()
    assert case.sampler.last.lags["g"].records == 3
    assert case.sampler.last.lags["g"].seconds == pytest.approx(30)
    case.commit("g", "t", 5)
    case.sample()
    assert case.sampler.last.lags["g"] == (0, 0)


def test_other_leaders_are_asked(case: Case) -> None:
    case.parts.create("t")
    case.commit("g", "t", 4)
    case.parts.set_state("t", replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=7)
    case.parts.move_away("t", replicas=(2,), isr=(2,), leader=2)
    case.sample()
    assert case.sampler.last.unknown == 1
    case.others[2] = OtherBroker(10)
    case.sample()
    assert case.sampler.last.lags["g"].records == 6 and case.sampler.last.unknown == 0
    assert case.others[2].closed


def test_the_groups_that_lag_most_are_named(case: Case) -> None:
    case.parts.create("t")
    case.parts.append("t", *[b"v"] * 10)
    for name, offset in (("a", 9), ("b", 2), ("c", 5), ("d", 10)):
        case.commit(name, "t", offset)
    case.most = 2
    case.sample()
    lags = case.sampler.last.lags
    assert {name: lag.records for name, lag in lags.items()} == {"b": 8, "c": 5, REST: 1}


def test_the_timer_goes_on_and_ends(case: Case) -> None:
    case.parts.create("t")
    case.parts.append("t", b"v")
    case.commit("g", "t", 0)
    case.sampler.start()
    assert case.sampler.last.lags["g"].records == 1
    case.parts.append("t", b"v")
    case.parts.time.advance(10)
    assert case.sampler.last.lags["g"].records == 2
    case.sampler.stop()
    before = case.sampler.last
    case.parts.time.advance(100)
    assert case.sampler.last is before


def test_groups_in_zookeeper_are_shown_by_the_controller(case: Case) -> None:
    case.parts.create("t")
    case.parts.append("t", b"a", b"b", b"c")
    case.register("z", "t", "1", "m")
    case.register("empty", "t", "3")
    case.register("odd", "t", "many")
    case.register("gone", "no-topic", "1")
    case.commit("g", "t", 1)
    case.sample()
    assert {name: lag.records for name, lag in case.sampler.last.lags.items()} == {"g": 2, "z": 2, "empty": 0}
    states = {("classic", "Empty"): 1, ("zookeeper", "Stable"): 1, ("zookeeper", "Empty"): 3}
    assert (case.sampler.last.states, case.sampler.last.members) == (states, 1)
    case.is_controller = False
    case.sample()
    assert {name: lag.records for name, lag in case.sampler.last.lags.items()} == {"g": 2}
    assert (case.sampler.last.states, case.sampler.last.members) == ({("classic", "Empty"): 1}, 0)


def test_offsets_of_a_deleted_topic_are_not_those_of_its_successor(case: Case) -> None:
    case.parts.create("t")
    case.register("z", "t", "100")
    result_of(case.parts.topic_admin.delete_topic("t"))
    case.parts.create("t")
    case.parts.append("t", b"a")
    case.sample()
    assert case.sampler.last.lags == {}


def test_a_group_may_be_in_zookeeper_and_of_this_broker(case: Case) -> None:
    case.parts.create("t")
    case.parts.append("t", b"a", b"b", b"c")
    case.register("g", "t", "0")
    case.commit("g", "t", 1)
    case.sample()
    assert case.sampler.last.lags["g"].records == 5


def test_each_sample_reads_some_of_the_groups_in_zookeeper(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "_GROUPS_PER_READING", 2)
    monkeypatch.setattr(consumers, "_MOST_GROUPS", 5)
    case.parts.create("t")
    for name in "abcdefg":
        case.register(name, "t", "0")
    shown = []
    for _ in range(4):
        case.sample()
        shown.append("".join(sorted(case.sampler.last.lags)))
        assert case.sampler.last.states["zookeeper", "Unknown"] == 2
    assert shown == ["ab", "abcd", "abcde", "abcde"]


def test_the_last_reading_is_kept_while_the_store_does_not_answer(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.parts.create("t")
    case.parts.append("t", b"a")
    case.register("z", "t", "0")
    case.sample()
    monkeypatch.setattr(case.parts.metadata.store, "children", lambda _: fail(StoreError("gone")))
    case.sample()
    assert case.sampler.last.lags["z"].records == 1
