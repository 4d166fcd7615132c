"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.consumer.heartbeats import Heartbeat
from pylogd.broker.metadata.named_configs import GroupConfigs
from pylogd.config import SETTINGS, TOPIC_SETTINGS, Settings
from pylogd.wire.messages.alter_configs import AlterableConfig as Config
from pylogd.wire.messages.alter_configs import AlterConfigsRequest
from pylogd.wire.messages.alter_configs import AlterConfigsResource as Resource
from pylogd.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from pylogd.wire.messages.incremental_alter_configs import AlterableConfig as Change
from pylogd.wire.messages.incremental_alter_configs import AlterConfigsResource as ChangedResource
from pylogd.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from pylogd.wire.messages.list_config_resources import ListConfigResourcesRequest
from tests.fakes.metadata import result_of
from tests.fakes.parts import NODE, Parts

TOPIC, BROKER, LOGGER, SUBSCRIPTION, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
DEFAULT, OWN, ALL_BROKERS, THIS_BROKER, SUBSCRIPTION_CONFIG, GROUP_CONFIG = 5, 1, 3, 2, 7, 8


def describe(parts: Parts, kind: int, name: str, *keys: str, version: int = 4, **fields: bool) -> Any:
    resource = DescribeConfigsResource(kind, name, list(keys) or None)
    return parts.call(DescribeConfigsRequest([resource], **fields), version).results[0]


def shown(parts: Parts, kind: int, name: str, *keys: str) -> dict[str, tuple[str | None, int]]:
    return {one.name: (one.value, one.config_source) for one in describe(parts, kind, name, *keys).configs}


class TestDescribeConfigs:
    def test_all_settings_of_a_topic_defaults_too(self, parts: Parts) -> None:
        parts.create("t", retention_ms="5000")
        found = shown(parts, TOPIC, "t")
        assert set(found) == set(TOPIC_SETTINGS) - {"internal.segment.bytes"}
        assert found["retention.ms"] == ("5000", OWN)
        assert found["segment.bytes"] == (str(1 << 30), DEFAULT)

    def test_all_settings_of_this_broker(self, parts: Parts) -> None:
        assert set(shown(parts, BROKER, "1")) == set(SETTINGS) - {"internal.segment.bytes"}

    def test_some(self, parts: Parts) -> None:
        parts.create("t")
        assert set(shown(parts, TOPIC, "t", "retention.ms", "nope")) == {"retention.ms"}
        asked = DescribeConfigsRequest([DescribeConfigsResource(TOPIC, "t", [])])
        assert len(parts.call(asked).results[0].configs) == len(TOPIC_SETTINGS) - 1  # without internal.segment.bytes

    def test_synonyms_types_and_documentation(self, parts: Parts) -> None:
        parts.create("t", retention_ms="5000")
        plain = describe(parts, TOPIC, "t", "retention.ms").configs[0]
        assert (plain.synonyms, plain.documentation, plain.config_type) == ([], None, 5)
        full = describe(parts, TOPIC, "t", "retention.ms", include_synonyms=True, include_documentation=True).configs[0]
        assert [(one.name, one.source) for one in full.synonyms][:1] == [("retention.ms", OWN)]
        assert "log.retention.hours" in {one.name for one in full.synonyms}
        assert full.documentation

    def test_version_0_tells_the_default(self, parts: Parts) -> None:
        parts.create("t", retention_ms="5000")
        found = {one.name: one.is_default for one in describe(parts, TOPIC, "t", version=0).configs}
        assert (found["retention.ms"], found["segment.bytes"]) == (False, True)

    @pytest.mark.parametrize(
        ("kind", "name", "code"),
        [
            (TOPIC, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
            (BROKER, "2", ErrorCode.INVALID_REQUEST),
            (BROKER, "x", ErrorCode.INVALID_REQUEST),
            (LOGGER, "1", ErrorCode.INVALID_REQUEST),
        ],
    )
    def test_errors(self, parts: Parts, kind: int, name: str, code: ErrorCode) -> None:
        answer = describe(parts, kind, name)
        assert (answer.error_code, answer.configs) == (code, [])
        assert answer.error_message
        altered = parts.call(AlterConfigsRequest([Resource(kind, name, [Config("retention.ms", "1")])])).responses[0]
        assert altered.error_code == code


class TestAlterConfigs:
    def alter(self, parts: Parts, kind: int, name: str, validate_only: bool = False, **values: str | None) -> Any:
        configs = [Config(key.replace("_", "."), value) for key, value in values.items()]
        return parts.call(AlterConfigsRequest([Resource(kind, name, configs)], validate_only)).responses[0]

    def test_what_is_not_named_falls_back(self, parts: Parts) -> None:
        parts.create("t", retention_ms="5000")
        answer = self.alter(parts, TOPIC, "t", max_message_bytes="100")
        assert (answer.error_code, answer.error_message) == (0, None)
        found = shown(parts, TOPIC, "t")
        assert (found["max.message.bytes"], found["retention.ms"][1]) == (("100", OWN), DEFAULT)
        assert parts.logs.logs["t", 0].config.max_message_bytes == 100

    def test_brokers(self, parts: Parts) -> None:
        assert self.alter(parts, BROKER, "", log_retention_ms="60000").error_code == 0
        assert shown(parts, BROKER, "") == {"log.retention.ms": ("60000", ALL_BROKERS)}
        assert shown(parts, BROKER, "1", "log.retention.ms") == {"log.retention.ms": ("60000", ALL_BROKERS)}
        assert self.alter(parts, BROKER, "1", log_retention_ms="70000").error_code == 0
        assert shown(parts, BROKER, "1", "log.retention.ms") == {"log.retention.ms": ("70000", THIS_BROKER)}
        assert self.alter(parts, BROKER, "1", log_dirs="/x").error_code == ErrorCode.INVALID_REQUEST  # as Kafka's

    @pytest.mark.parametrize(
        ("values", "code"),
        [
            ({"nope": "1"}, ErrorCode.INVALID_CONFIG),
            ({"retention_ms": "x"}, ErrorCode.INVALID_CONFIG),
            ({"retention_ms": None}, ErrorCode.INVALID_REQUEST),
        ],
    )
    def test_bad_values_change_nothing(self, parts: Parts, values: dict[str, str | None], code: ErrorCode) -> None:
        parts.create("t", retention_ms="5000")
        for validate_only in (True, False):
            answer = self.alter(parts, TOPIC, "t", validate_only, max_message_bytes="100", **values)
            assert answer.error_code == code
            assert answer.error_message
        assert shown(parts, TOPIC, "t")["retention.ms"] == ("5000", OWN)

    def test_validate_only(self, parts: Parts) -> None:
        parts.create("t")
        assert self.alter(parts, TOPIC, "t", True, retention_ms="5").error_code == 0
        assert shown(parts, TOPIC, "t")["retention.ms"][1] == DEFAULT

    def test_a_resource_that_is_named_twice(self, parts: Parts) -> None:
        parts.create("t")
        answers = parts.call(AlterConfigsRequest([Resource(TOPIC, "t", [])] * 2)).responses
        assert [one.error_code for one in answers] == [ErrorCode.INVALID_REQUEST] * 2


class TestIncrementalAlterConfigs:
    def change(
        self, parts: Parts, *changes: Change, kind: int = TOPIC, name: str = "t", validate_only: bool = False
    ) -> int:
        resource = ChangedResource(kind, name, list(changes))
        answer = parts.call(IncrementalAlterConfigsRequest([resource], validate_only)).responses[0]
        assert bool(answer.error_code) == bool(answer.error_message)
        code: int = answer.error_code
        return code

    def test_set_and_delete(self, parts: Parts) -> None:
        parts.create("t", retention_ms="5000")
        assert self.change(parts, Change("max.message.bytes", SET, "100")) == 0
        found = shown(parts, TOPIC, "t")
        assert (found["max.message.bytes"], found["retention.ms"]) == (("100", OWN), ("5000", OWN))
        assert self.change(parts, Change("retention.ms", DELETE, None)) == 0
        assert shown(parts, TOPIC, "t")["retention.ms"][1] == DEFAULT

    def test_append_and_subtract(self, parts: Parts) -> None:
        parts.create("t")
        assert self.change(parts, Change("cleanup.policy", APPEND, "compact")) == 0
        assert shown(parts, TOPIC, "t")["cleanup.policy"] == ("delete,compact", OWN)
        assert self.change(parts, Change("cleanup.policy", SUBTRACT, "delete")) == 0
        assert shown(parts, TOPIC, "t")["cleanup.policy"] == ("compact", OWN)

    def test_refused(self, parts: Parts) -> None:
        parts.create("t")
        assert self.change(parts, Change("retention.ms", APPEND, "1")) == ErrorCode.INVALID_CONFIG
        assert self.change(parts, Change("retention.ms", SET, None)) == ErrorCode.INVALID_REQUEST
        assert self.change(parts, Change("retention.ms", 9, "1")) == ErrorCode.INVALID_REQUEST
        twice = [Change("retention.ms", SET, "1"), Change("retention.ms", SET, "2")]
        assert self.change(parts, *twice) == ErrorCode.INVALID_REQUEST
        assert self.change(parts, name="nope") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert self.change(parts, kind=LOGGER) == ErrorCode.INVALID_REQUEST
        assert self.change(parts, kind=BROKER, name="9") == ErrorCode.INVALID_REQUEST
        same = [ChangedResource(TOPIC, "t", [])] * 2
        answers = parts.call(IncrementalAlterConfigsRequest(same)).responses
        assert [one.error_code for one in answers] == [ErrorCode.INVALID_REQUEST] * 2

    def test_brokers_and_validate_only(self, parts: Parts) -> None:
        change = Change("log.retention.ms", SET, "60000")
        assert self.change(parts, change, kind=BROKER, name="1", validate_only=True) == 0
        assert shown(parts, BROKER, "1", "log.retention.ms")["log.retention.ms"][1] == DEFAULT
        assert self.change(parts, change, kind=BROKER, name="1") == 0
        assert shown(parts, BROKER, "1", "log.retention.ms")["log.retention.ms"] == ("60000", THIS_BROKER)


class TestGroups:
    """Settings of groups: resource type 32."""

    SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    ASSIGNMENT = "consumer.assignment.interval.ms"

    @property
    def defaults(self) -> dict[str, Any]:
        values = {self.SESSION: "45000", self.INTERVAL: "5000", self.ASSIGNMENT: "0"}
        return {name: (value, DEFAULT) for name, value in values.items()}

    def change(self, parts: Parts, *changes: Change, group: str = "g", **fields: bool) -> Any:
        resource = ChangedResource(GROUP, group, list(changes))
        return parts.call(IncrementalAlterConfigsRequest([resource], **fields)).responses[0]

    def test_a_group_has_the_settings_of_the_broker(self, parts: Parts) -> None:
        assert shown(parts, GROUP, "g") == self.defaults
        parts.settings.set_dynamic({"group.consumer.session.timeout.ms": "50000"}, {})
        assert shown(parts, GROUP, "g")[self.SESSION] == ("50000", ALL_BROKERS)

    def test_it_can_have_its_own(self, parts: Parts) -> None:
        assert self.change(parts, Change(self.SESSION, SET, "060000")).error_code == 0
        assert shown(parts, GROUP, "g", self.SESSION) == {self.SESSION: ("60000", GROUP_CONFIG)}
        assert shown(parts, GROUP, "other", self.SESSION) == {self.SESSION: ("45000", DEFAULT)}
        full = describe(parts, GROUP, "g", self.SESSION, include_synonyms=True).configs[0]
        assert [(one.name, one.source) for one in full.synonyms] == [
            (self.SESSION, GROUP_CONFIG), ("group.consumer.session.timeout.ms", DEFAULT),
        ]  # fmt: skip
        assert self.change(parts, Change(self.SESSION, DELETE, None)).error_code == 0
        assert shown(parts, GROUP, "g", self.SESSION) == {self.SESSION: ("45000", DEFAULT)}

    def test_all_settings_of_a_group_are_replaced(self, parts: Parts) -> None:
        self.change(parts, Change(self.SESSION, SET, "60000"))
        request = AlterConfigsRequest([Resource(GROUP, "g", [Config(self.INTERVAL, "10000")])])
        assert parts.call(request).responses[0].error_code == 0
        assert shown(parts, GROUP, "g") == self.defaults | {self.INTERVAL: ("10000", GROUP_CONFIG)}

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            (SESSION, "44999"), (SESSION, "60001"), (SESSION, "x"), (INTERVAL, "4999"), (INTERVAL, "15001"),
            (ASSIGNMENT, "-1"), (ASSIGNMENT, "15001"), ("retention.ms", "1"),
        ],
    )  # fmt: skip
    def test_the_broker_sets_bounds(self, parts: Parts, name: str, value: str) -> None:
        answer = self.change(parts, Change(name, SET, value))
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert name in answer.error_message
        assert shown(parts, GROUP, "g") == shown(parts, GROUP, "other")

    def test_a_session_is_longer_than_an_interval(self, parts: Parts) -> None:
        parts.settings.set_dynamic({"group.consumer.session.timeout.ms": "12000"}, {})
        assert self.change(parts, Change(self.INTERVAL, SET, "12000")).error_code == ErrorCode.INVALID_CONFIG
        assert self.change(parts, Change(self.INTERVAL, SET, "11999")).error_code == 0

    def test_what_is_only_checked_is_not_changed(self, parts: Parts) -> None:
        assert self.change(parts, Change(self.SESSION, SET, "60000"), validate_only=True).error_code == 0
        assert shown(parts, GROUP, "g", self.SESSION) == {self.SESSION: ("45000", DEFAULT)}

    def test_there_are_no_settings_of_all_groups(self, parts: Parts) -> None:
        assert describe(parts, GROUP, "").error_code == ErrorCode.INVALID_REQUEST
        assert self.change(parts, Change(self.SESSION, SET, "60000"), group="").error_code == ErrorCode.INVALID_REQUEST

    def test_they_survive_a_restart_and_names_may_be_anything(self, parts: Parts) -> None:
        name = "a/b ü.<default>"
        assert self.change(parts, Change(self.SESSION, SET, "60000"), group=name).error_code == 0
        configs = GroupConfigs(parts.metadata.store, parts.settings, parts.metadata.feed)
        result_of(Deferred.fromCoroutine(configs.reload(parts.metadata.store)))
        assert configs.names() == [name]
        assert configs.integer(name, self.SESSION) == 60_000

    def test_bounds_that_have_changed_count_for_what_was_set_before(self, parts: Parts) -> None:
        self.change(parts, Change(self.SESSION, SET, "60000"))
        narrower = Settings({"group.consumer.max.session.timeout.ms": "50000"})
        assert narrower.group_value(parts.metadata.group_configs.get("g"), self.SESSION) == 50_000

    def test_live_groups_follow(self, parts: Parts) -> None:
        parts.create("t", 2)
        assert result_of(parts.groups.coordinator_of("g")) == NODE  # type: ignore[arg-type]
        joining = Heartbeat("m", 0, rebalance_ms=1000, topics=frozenset("t"), owned=frozenset())
        answer: Any = parts.groups.consumer_heartbeat("g", joining, lambda _: frozenset())
        assert answer.interval_ms == 5000
        self.change(parts, Change(self.SESSION, SET, "60000"), Change(self.INTERVAL, SET, "15000"))
        again: Any = parts.groups.consumer_heartbeat("g", Heartbeat("m", answer.epoch), lambda _: frozenset())
        assert again.interval_ms == 15_000
        parts.time.advance(59)
        group = parts.groups.describe_consumers("g")
        assert not isinstance(group, ErrorCode) and group.members
        parts.time.advance(2)
        group = parts.groups.describe_consumers("g")
        assert not isinstance(group, ErrorCode) and not group.members


class TestSubscriptions:
    """Settings of subscriptions to the metrics of clients."""

    defaults: ClassVar = {
        "metrics": ("", DEFAULT), "interval.ms": ("300000", DEFAULT), "match": ("", DEFAULT),
    }  # fmt: skip

    @staticmethod
    def change(parts: Parts, *changes: Change, name: str = "s") -> Any:
        request = IncrementalAlterConfigsRequest([ChangedResource(SUBSCRIPTION, name, [*changes])])
        return parts.call(request).responses[0]

    def test_what_is_set_is_shown_until_it_is_deleted(self, parts: Parts) -> None:
        assert shown(parts, SUBSCRIPTION, "s") == self.defaults
        changes = Change("metrics", SET, "org.apache.kafka.producer., x"), Change("match", SET, "client_id=app-.*")
        assert self.change(parts, *changes).error_code == 0
        assert shown(parts, SUBSCRIPTION, "s") == self.defaults | {
            "metrics": ("org.apache.kafka.producer.,x", SUBSCRIPTION_CONFIG),
            "match": ("client_id=app-.*", SUBSCRIPTION_CONFIG),
        }
        assert self.change(parts, Change("metrics", APPEND, "y")).error_code == 0
        assert parts.metadata.client_metrics.get("s")["metrics"] == "org.apache.kafka.producer.,x,y"
        assert self.change(parts, Change("metrics", DELETE, None), Change("match", DELETE, None)).error_code == 0
        assert shown(parts, SUBSCRIPTION, "s") == self.defaults
        assert parts.metadata.client_metrics.names() == []

    def test_all_settings_are_replaced(self, parts: Parts) -> None:
        self.change(parts, Change("metrics", SET, "*"))
        request = AlterConfigsRequest([Resource(SUBSCRIPTION, "s", [Config("interval.ms", "100")])])
        assert parts.call(request).responses[0].error_code == 0
        assert shown(parts, SUBSCRIPTION, "s") == self.defaults | {"interval.ms": ("100", SUBSCRIPTION_CONFIG)}

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("interval.ms", "99"), ("interval.ms", "3600001"), ("interval.ms", "x"), ("match", "client_id"),
            ("match", "client_id="), ("match", "name=x"), ("match", "client_id=(x"),
            ("match", "client_id=a,client_id=b"), ("retention.ms", "1"),
        ],
    )  # fmt: skip
    def test_a_bad_value_is_refused(self, parts: Parts, name: str, value: str) -> None:
        """As in Kafka, unknown settings and intervals out of range have another error code than the rest."""
        answer = self.change(parts, Change(name, SET, value))
        is_request = name == "retention.ms" or value in ("99", "3600001")
        assert answer.error_code == (ErrorCode.INVALID_REQUEST if is_request else ErrorCode.INVALID_CONFIG)
        assert name in answer.error_message
        assert parts.metadata.client_metrics.names() == []

    @pytest.mark.parametrize("name", ["", "x" * 250])
    def test_a_name_has_1_to_249_characters(self, parts: Parts, name: str) -> None:
        assert self.change(parts, Change("metrics", SET, "*"), name=name).error_code == ErrorCode.INVALID_REQUEST
        assert describe(parts, SUBSCRIPTION, name).error_code == ErrorCode.INVALID_REQUEST


class TestListConfigResources:
    def list(self, parts: Parts, *kinds: int, version: int = 1) -> Any:
        answer = parts.call(ListConfigResourcesRequest(list(kinds)), version)
        return answer.error_code, [(one.resource_type, one.resource_name) for one in answer.config_resources]

    def test_resources_of_types(self, parts: Parts) -> None:
        parts.create("t")
        TestGroups().change(parts, Change(TestGroups.SESSION, SET, "60000"))
        assert self.list(parts, GROUP) == (0, [(GROUP, "g")])
        assert self.list(parts, TOPIC, BROKER) == (0, [(TOPIC, "t"), (BROKER, "1")])
        assert self.list(parts) == (0, [(TOPIC, "t"), (BROKER, "1"), (GROUP, "g")])
        assert self.list(parts, LOGGER) == (0, [])
        assert self.list(parts, GROUP, 99) == (ErrorCode.UNSUPPORTED_VERSION, [])

    def test_version_0_lists_subscriptions(self, parts: Parts) -> None:
        assert self.list(parts, version=0) == self.list(parts, SUBSCRIPTION) == (0, [])
        TestSubscriptions().change(parts, Change("interval.ms", SET, "1000"))
        assert self.list(parts, version=0) == self.list(parts, SUBSCRIPTION) == (0, [(SUBSCRIPTION, "s")])
