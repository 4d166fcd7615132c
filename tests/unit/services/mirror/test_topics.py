"""Which topics are copied, under which names, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.client.core.model import NewTopic, Partition, Topic
from pylogd.services.mirror import following, topics
from pylogd.services.mirror.cluster_topics import ClusterTopics
from pylogd.services.mirror.partition_copy import PartitionRoute
from pylogd.services.mirror.records import Origin
from pylogd.services.mirror.settings import RouteSettings, TopicPatterns
from pylogd.services.mirror.topics import RouteTopics, TableTopics, refresh_all
from tests.fakes.metadata import result_of


class FakeTable:
    def __init__(self) -> None:
        self.origins: dict[tuple[str, str, str], Origin] = {}


class FakeAdmin:
    """Creates topics in a dict."""

    def __init__(self, topics: dict[str, Topic]) -> None:
        self._topics = topics
        self.refuses: set[str] = set()
        self.knows = {"retention.ms", "max.message.bytes", "min.compaction.lag.ms", "max.compaction.lag.ms"}
        self.configs: dict[str, dict[str, str]] = {}

    def check(self, configs: Mapping[str, str | None]) -> KafkaError | None:
        unknown = sorted(configs.keys() - self.knows)
        if unknown:
            return KafkaError(ErrorCode.INVALID_CONFIG, f"unknown setting {unknown[0]}")
        if {"min.compaction.lag.ms", "max.compaction.lag.ms"} <= configs.keys():
            return KafkaError(ErrorCode.INVALID_CONFIG, "the lags contradict each other")
        return None

    async def alter_configs(self, kind: str, name: str, changes: Mapping[str, str | None]) -> None:
        error = self.check(changes)
        if error is not None:
            raise error
        self.configs[name].update({key: value for key, value in changes.items() if value is not None})

    async def create_topics(
        self, new: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, KafkaError | None]:
        results: dict[str, KafkaError | None] = {}
        for topic in new:
            if topic.name in self.refuses:
                results[topic.name] = KafkaError(ErrorCode.POLICY_VIOLATION, "no")
            elif validate_only or self.check(topic.configs) is not None:
                results[topic.name] = self.check(topic.configs)
            else:
                self.configs[topic.name] = dict(topic.configs)
                self._topics[topic.name] = make(topic.name, topic.partitions)
                results[topic.name] = None
        return results

    async def create_partitions(self, name: str, count: int) -> None:
        self._topics[name] = make(name, count)


class FakeClusterTopics(ClusterTopics):
    """A cluster whose topics are a dict."""

    topics: dict[str, Topic]

    def __init__(self, name: str, **topics: int) -> None:
        self.name = name
        self.topics = {name: make(name, count) for name, count in topics.items()}
        self.admin: Any = FakeAdmin(self.topics)
        self.table: Any = FakeTable()
        self.answers = True

    @property
    def cluster_id(self) -> str:
        return f"id of {self.name}"

    async def refresh(self) -> None:
        if not self.answers:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION)

    async def prepare(self, map_days: int) -> None:
        pass

    async def write_origins(self, origins: list[Origin]) -> None:
        for origin in origins:
            assert origin.target_topic not in self.topics or self.table.origins.get(origin.key) is not None, "too late"
            self.table.origins[origin.key] = origin


def make(name: str, count: int) -> Topic:
    return Topic(name, bytes(16), False, tuple(Partition(n, 1, 0, (1,), (1,), ()) for n in range(count)))


def route(
    source: FakeClusterTopics, target: FakeClusterTopics, rename: str = "{topic}", *, sync_configs: bool = False
) -> RouteTopics:
    settings = RouteSettings(
        f"{source.name}-{target.name}", source.name, target.name, TopicPatterns(["e.*"], ["except"]), rename,
        sync_configs=sync_configs, sync_acls=False,
    )  # fmt: skip
    return RouteTopics(settings, source, target, 7)


def refresh(routes: RouteTopics) -> set[PartitionRoute]:
    result_of(Deferred.fromCoroutine(routes.refresh(0.0)))
    assert routes.partitions is not None
    return set(routes.partitions)


def test_what_matches_is_created_with_its_partitions_under_its_new_name() -> None:
    a, b = FakeClusterTopics("a", events=3, other=1), FakeClusterTopics("b")
    a.topics["except"] = make("except", 1)
    found = refresh(route(a, b, "{source}.{topic}"))
    assert found == {PartitionRoute("a-b", "events", number, "a.events") for number in range(3)}
    assert len(b.topics["a.events"].partitions) == 3
    assert b.table.origins["a.events", "id of a", "events"].via == ("id of a",)


def test_more_partitions_are_added() -> None:
    a, b = FakeClusterTopics("a", events=3), FakeClusterTopics("b")
    routes = route(a, b)
    refresh(routes)
    a.topics["events"] = make("events", 5)
    assert len(refresh(routes)) == 5 and len(b.topics["events"].partitions) == 5


def test_a_topic_that_is_deleted_is_copied_no_more_and_stays_at_the_target() -> None:
    a, b = FakeClusterTopics("a", events=3), FakeClusterTopics("b")
    routes = route(a, b)
    refresh(routes)
    del a.topics["events"]
    assert refresh(routes) == set() and "events" in b.topics


def test_the_way_back_is_refused_whatever_the_name_is() -> None:
    a, b = FakeClusterTopics("a", events=1), FakeClusterTopics("b", extra=1)
    there, back = route(a, b, "e.{topic}"), route(b, a, "e.{topic}")
    refresh(there)
    assert {path.topic for path in refresh(back)} == {"extra"}
    assert "round for ever" in back.refused["e.events"]
    assert {path.topic for path in refresh(there)} == {"events"}
    assert "e.extra" in there.refused


def test_a_longer_way_round_is_refused_at_its_last_step() -> None:
    a, b, c = FakeClusterTopics("a", events=1), FakeClusterTopics("b"), FakeClusterTopics("c")
    ways = [route(a, b), route(b, c), route(c, a)]
    assert [bool(refresh(way)) for way in ways] == [True, True, False]
    assert c.table.origins["events", "id of b", "events"].via == ("id of a", "id of b")
    assert ways[2].refused


def test_two_names_of_one_cluster_are_no_way_to_copy_a_topic_into_itself() -> None:
    a = FakeClusterTopics("a", events=1)
    assert refresh(route(a, a)) == set()


def test_a_topic_that_the_target_refuses_is_left_out() -> None:
    a, b = FakeClusterTopics("a", events=1, extra=1), FakeClusterTopics("b")
    b.admin.refuses = {"events"}
    routes = route(a, b)
    assert {path.topic for path in refresh(routes)} == {"extra"}
    assert "POLICY_VIOLATION" in routes.refused["events"] or "no" in routes.refused["events"]


def test_clusters_that_do_not_answer_leave_their_routes_as_they_were() -> None:
    a, b, c = FakeClusterTopics("a", events=1), FakeClusterTopics("b"), FakeClusterTopics("c")
    routes = {"a-b": route(a, b), "a-c": route(a, c)}
    c.answers = False
    result_of(Deferred.fromCoroutine(refresh_all({"a": a, "b": b, "c": c}, routes, 0.0)))
    assert routes["a-b"].partitions and routes["a-c"].partitions is None


def test_of_two_routes_with_one_topic_the_first_copies_it() -> None:
    a, b = FakeClusterTopics("a", events=1, extra=1), FakeClusterTopics("b")
    first, second = route(a, b), route(a, b)
    second.route = RouteSettings(
        "second", "a", "b", TopicPatterns(["events|other"]), sync_configs=False, sync_acls=False
    )  # fmt: skip
    result_of(Deferred.fromCoroutine(refresh_all({"a": a, "b": b}, {"a-b": first, "second": second}, 0.0)))
    assert first.partitions is not None and len(first.partitions) == 2
    assert second.partitions == frozenset() and second.refused == {"events": "route a-b copies it already"}


def test_a_table_has_each_topic_of_one_source_only() -> None:
    one, two = FakeClusterTopics("one", events=2, orders=1), FakeClusterTopics("two", events=3)
    first, second = (
        TableTopics(RouteSettings(f"{each.name}-lake", each.name, "lake", TopicPatterns([".*"])), each)
        for each in (one, two)
    )
    routes = {"first": first, "second": second}
    result_of(Deferred.fromCoroutine(refresh_all({"one": one, "two": two}, routes, 0.0)))
    paths = [("events", 0), ("events", 1), ("orders", 0)]
    assert first.partitions == frozenset(PartitionRoute("one-lake", topic, index, topic) for topic, index in paths)
    assert second.partitions == frozenset()
    assert "route one-lake copies a topic to events of lake already" in second.refused["events"]
    one.answers = False  # what it copies stays its own
    result_of(Deferred.fromCoroutine(refresh_all({"one": one, "two": two}, routes, 1.0)))
    assert second.partitions == frozenset() and len(first.partitions) == 3


def test_a_typed_table_has_one_topic() -> None:
    source = FakeClusterTopics("one", events=2, orders=1)
    settings = RouteSettings("one-lake", "one", "lake", TopicPatterns([".*"]))
    routes = {"one-lake": TableTopics(settings, source, is_typed=True)}
    for _ in range(2):
        result_of(Deferred.fromCoroutine(refresh_all({"one": source}, routes, 0.0)))
        found = routes["one-lake"]
        assert found.partitions == frozenset(PartitionRoute("one-lake", "events", index, "events") for index in (0, 1))
        assert found.refused == {"orders": "lake is a typed table, which has one topic: events"}


class TestSettingsThatTheTargetRefuses:
    """A topic is copied without them."""

    @pytest.fixture
    def settings(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, bool]]:
        """The settings of every topic of the source."""
        found: dict[str, tuple[str, bool]] = {}

        async def topic_configs(admin: FakeAdmin, topics: Sequence[str]) -> dict[str, dict[str, tuple[str, bool]]]:
            known = {name: {key: (value, True) for key, value in set_.items()} for name, set_ in admin.configs.items()}
            return {name: known.get(name, found) for name in topics}

        for module in (following, topics):
            monkeypatch.setattr(module, "topic_configs", topic_configs)
        return found

    def test_a_topic_is_created_without_them_and_they_are_named(
        self, settings: dict[str, tuple[str, bool]], caplog: pytest.LogCaptureFixture
    ) -> None:
        settings.update(
            {"retention.ms": ("5", True), "confluent.tier": ("on", True), "message.format.version": ("2", True)}
        )
        a, b = FakeClusterTopics("a", events=3), FakeClusterTopics("b")
        assert len(refresh(route(a, b, sync_configs=True))) == 3
        assert b.admin.configs["events"] == {"retention.ms": "5"}
        told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert len(told) == 2
        assert "confluent.tier = on" in told[0] and "message.format.version = 2" in told[1]

    def test_settings_that_contradict_each_other_are_left_out(self, settings: dict[str, tuple[str, bool]]) -> None:
        settings.update({"min.compaction.lag.ms": ("5", True), "max.compaction.lag.ms": ("1", True)})
        a, b = FakeClusterTopics("a", events=3), FakeClusterTopics("b")
        assert len(refresh(route(a, b, sync_configs=True))) == 3
        assert b.admin.configs["events"] == {}

    def test_a_topic_that_is_refused_for_another_reason_is_not_copied(
        self, settings: dict[str, tuple[str, bool]], caplog: pytest.LogCaptureFixture
    ) -> None:
        settings.update({"retention.ms": ("5", True)})
        a, b = FakeClusterTopics("a", events=3), FakeClusterTopics("b")
        b.admin.refuses.add("events")
        routes = route(a, b, sync_configs=True)
        assert refresh(routes) == set() and "events" in routes.refused
        assert "without the setting" not in caplog.text

    def test_the_others_still_follow_and_a_refusal_is_told_once(
        self, settings: dict[str, tuple[str, bool]], caplog: pytest.LogCaptureFixture
    ) -> None:
        a, b = FakeClusterTopics("a", events=1), FakeClusterTopics("b")
        routes = route(a, b, sync_configs=True)
        refresh(routes)
        settings.update({"confluent.tier": ("on", True), "retention.ms": ("7", True)})
        for now in (100.0, 200.0, 300.0):
            result_of(Deferred.fromCoroutine(routes.refresh(now)))
        assert b.admin.configs["events"] == {"retention.ms": "7"}
        assert b.table.origins["events", "id of a", "events"].configs == ("retention.ms",)
        assert caplog.text.count("confluent.tier = on") == 1
        settings.update({"confluent.tier": ("off", True)})
        result_of(Deferred.fromCoroutine(routes.refresh(400.0)))
        assert caplog.text.count("confluent.tier = off") == 1
