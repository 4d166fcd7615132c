"""The APIs of transactions: what clients and brokers are answered, version by version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.metadata.features import FEATURES, decode_features
from pylogd.broker.metadata.image import Broker, Endpoint, FeatureRange
from pylogd.broker.metadata.layout import encode_broker
from pylogd.broker.security.authorizer import AclOperation as Op
from pylogd.broker.security.authorizer import ResourceType as Kind
from pylogd.store.interfaces import SetData
from pylogd.store.paths import BROKERS
from pylogd.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from pylogd.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from pylogd.wire.messages.api_versions import ApiVersionsRequest
from pylogd.wire.messages.describe_transactions import DescribeTransactionsRequest
from pylogd.wire.messages.end_txn import EndTxnRequest
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest
from pylogd.wire.messages.list_transactions import ListTransactionsRequest
from pylogd.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.fakes.metadata import result_of
from tests.fakes.transactions import TransactionFixture
from tests.unit.broker.api.test_authorization import Only

NONE = ErrorCode.NONE


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[TransactionFixture]:
    made = TransactionFixture(tmp_path)
    yield made
    made.authorizer = None
    made.close()


def add(fixture: TransactionFixture, *wanted: tuple[str, int], version: int = 3, epoch: int = 0, **fields: Any) -> Any:
    """Return the error code of each partition."""
    topics = [AddPartitionsToTxnTopic(name, [index]) for name, index in wanted]
    if version < 4:
        request = AddPartitionsToTxnRequest([], "x", fields.get("producer_id", 0), epoch, topics)
        results = fixture.call(request, version).results_by_topic_v3_and_below
    else:
        transaction = AddPartitionsToTxnTransaction("x", 0, epoch, fields.get("verify_only", False), topics)
        response = fixture.call(AddPartitionsToTxnRequest([transaction]), version)
        if response.error_code:
            return response.error_code
        results = response.results_by_transaction[0].topic_results
    return [one.partition_error_code for topic in results for one in topic.results_by_partition]


class TestAddPartitionsToTxn:
    def test_a_producer_adds_partitions(self, fixture: TransactionFixture) -> None:
        fixture.ready()
        assert add(fixture, ("t", 0), ("t", 2)) == [NONE, NONE]
        assert fixture.found().value.partitions == {("t", 0), ("t", 2)}

    def test_if_one_is_refused_none_is_added(self, fixture: TransactionFixture) -> None:
        fixture.ready()
        assert add(fixture, ("t", 0), ("t", 9), ("n", 0), ("__consumer_offsets", 0)) == [
            ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ]  # fmt: skip
        assert fixture.state() == "EMPTY"

    def test_older_clients_know_no_fenced_producers(self, fixture: TransactionFixture) -> None:
        fixture.ready()
        assert add(fixture, ("t", 0), version=1, epoch=5) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert add(fixture, ("t", 0), version=2, epoch=5) == [ErrorCode.PRODUCER_FENCED]
        assert add(fixture, ("t", 0), version=2, producer_id=4) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]

    def test_a_leader_verifies_or_adds(self, fixture: TransactionFixture) -> None:
        fixture.ready()
        assert add(fixture, ("t", 0), version=4, verify_only=True) == [ErrorCode.TRANSACTION_ABORTABLE]
        assert add(fixture, ("t", 0), version=5) == [NONE]
        assert fixture.found().value.version == 2
        assert add(fixture, ("t", 0), ("t", 1), version=5, verify_only=True) == [NONE, ErrorCode.TRANSACTION_ABORTABLE]
        assert add(fixture, ("__consumer_offsets", 0), version=4) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    def test_what_each_needs(self, fixture: TransactionFixture) -> None:
        fixture.ready()
        writes = {(Op.WRITE, Kind.TRANSACTIONAL_ID), (Op.WRITE, Kind.TOPIC)}
        fixture.authorizer = Only([(Op.WRITE, Kind.TOPIC)])
        assert add(fixture, ("t", 0)) == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
        fixture.authorizer = Only([(Op.WRITE, Kind.TRANSACTIONAL_ID)])
        assert add(fixture, ("t", 0), ("n", 0)) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2
        fixture.authorizer = Only(writes)
        assert add(fixture, ("t", 0)) == [NONE]
        assert add(fixture, ("t", 0), version=5) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        fixture.authorizer = Only([(Op.CLUSTER_ACTION, Kind.CLUSTER)])
        assert add(fixture, ("t", 0), version=5) == [NONE]


class TestAddOffsetsToTxn:
    def test_the_partition_of_the_group_is_added(self, fixture: TransactionFixture) -> None:
        fixture.ready()
        fixture.call(FindCoordinatorRequest("g"), 3)
        assert fixture.call(AddOffsetsToTxnRequest("x", 0, 0, "g")).error_code == NONE
        ((topic, index),) = fixture.found().value.partitions
        assert (topic, index) == fixture.groups.offsets_partition("g")
        assert fixture.call(AddOffsetsToTxnRequest("x", 0, 0, "g" * 1025)).error_code == ErrorCode.INVALID_GROUP_ID
        assert fixture.call(AddOffsetsToTxnRequest("x", 0, 0, "")).error_code == NONE  # as in Kafka
        assert fixture.call(AddOffsetsToTxnRequest("x", 0, 7, "g"), 1).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert fixture.call(AddOffsetsToTxnRequest("x", 0, 7, "g"), 2).error_code == ErrorCode.PRODUCER_FENCED

    def test_the_topic_is_created_if_no_group_was_looked_for_before(self, fixture: TransactionFixture) -> None:
        fixture.ready()
        assert fixture.groups.offsets_partition("g") is None
        assert fixture.call(AddOffsetsToTxnRequest("x", 0, 0, "g")).error_code == NONE
        assert fixture.found().value.partitions == {fixture.groups.offsets_partition("g")}


class TestInitProducerId:
    def test_a_fenced_producer_is_told_in_the_words_of_its_version(self, fixture: TransactionFixture) -> None:
        fixture.ready()
        outdated = InitProducerIdRequest("x", 1000, 0, 7)
        assert fixture.call(outdated, 3).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert fixture.call(outdated, 4).error_code == ErrorCode.PRODUCER_FENCED
        answer = fixture.call(InitProducerIdRequest("x", 1000, 0, 0), 5)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 0, 1)


class TestEndTxn:
    def test_the_epoch_is_told_from_version_5_on(self, fixture: TransactionFixture) -> None:
        fixture.ready()
        add(fixture, ("t", 0), version=5)
        answer = fixture.call(EndTxnRequest("x", 0, 0, True), 5)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 0, 1)
        add(fixture, ("t", 0), epoch=1)
        answer = fixture.call(EndTxnRequest("x", 0, 1, True), 4)
        assert (answer.error_code, fixture.found().value.epoch) == (0, 1)
        refused = fixture.call(EndTxnRequest("x", 0, 0, True), 4)
        assert refused.error_code == ErrorCode.PRODUCER_FENCED
        assert fixture.call(EndTxnRequest("x", 0, 0, True), 1).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


class TestDescribeAndList:
    def test_a_transaction_is_described(self, fixture: TransactionFixture) -> None:
        fixture.ready()
        add(fixture, ("t", 0), ("t", 1))
        one, missing = fixture.call(DescribeTransactionsRequest(["x", "y", "x"])).transaction_states
        assert (one.transactional_id, one.transaction_state, one.producer_id, one.producer_epoch) == (
            "x", "Ongoing", 0, 0
        )  # fmt: skip
        assert one.transaction_start_time_ms == fixture.now_ms()
        assert one.transaction_timeout_ms == 60_000
        assert [(topic.topic, topic.partitions) for topic in one.topics] == [("t", [0, 1])]
        assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        fixture.authorizer = Only([(Op.DESCRIBE, Kind.TRANSACTIONAL_ID)])
        (one,) = fixture.call(DescribeTransactionsRequest(["x"])).transaction_states
        assert one.topics == []

    def names(self, fixture: TransactionFixture, **filters: Any) -> list[str]:
        response = fixture.call(ListTransactionsRequest(**filters))
        assert response.error_code == NONE
        return sorted(one.transactional_id for one in response.transaction_states)

    def test_ids_are_listed_by_filters(self, fixture: TransactionFixture) -> None:
        fixture.ready()
        other = fixture.ready("app-7")
        add(fixture, ("t", 0))
        assert self.names(fixture) == ["app-7", "x"]
        assert self.names(fixture, state_filters=["Ongoing"]) == ["x"]
        assert self.names(fixture, producer_id_filters=[other.producer_id]) == ["app-7"]
        assert self.names(fixture, transactional_id_pattern="app-[0-9]+") == ["app-7"]
        assert self.names(fixture, transactional_id_pattern="pp-7") == []
        assert self.names(fixture, transactional_id_pattern="") == ["app-7", "x"]
        fixture.time.advance(5)
        assert self.names(fixture, duration_filter=4999, state_filters=["Ongoing"]) == ["x"]
        assert self.names(fixture, duration_filter=5000, state_filters=["Ongoing"]) == []
        response = fixture.call(ListTransactionsRequest(state_filters=["Nope", "Empty"]))
        assert response.unknown_state_filters == ["Nope"]
        assert [one.transactional_id for one in response.transaction_states] == ["app-7"]

    @pytest.mark.parametrize("pattern", ["(", "x" * 1025, "(a{1000}){1000}"])
    def test_a_pattern_that_cannot_be_read(self, fixture: TransactionFixture, pattern: str) -> None:
        response = fixture.call(ListTransactionsRequest(transactional_id_pattern=pattern))
        assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


class TestFeatures:
    def told(self, fixture: TransactionFixture, version: int = 4) -> tuple[int, dict[str, tuple[int, int]]]:
        answer = fixture.call(ApiVersionsRequest("test", "1"), version)
        lowest = 0 if version >= 4 else 1
        assert [(one.name, one.min_version, one.max_version) for one in answer.supported_features] == [
            ("group.version", lowest, 1), ("transaction.version", lowest, 2)
        ]  # fmt: skip
        levels = {one.name: (one.min_version_level, one.max_version_level) for one in answer.finalized_features}
        assert levels.pop("group.version") == (1, 1)
        return answer.finalized_features_epoch, levels

    def update(self, fixture: TransactionFixture, level: int, version: int = 2, **fields: Any) -> Any:
        change = FeatureUpdateKey("transaction.version", level, **fields)
        return fixture.call(UpdateFeaturesRequest(1000, [change]), version)

    def test_a_cluster_uses_the_highest_level_until_it_is_told_otherwise(self, fixture: TransactionFixture) -> None:
        assert self.told(fixture) == self.told(fixture, 3) == (0, {"transaction.version": (2, 2)})
        assert self.update(fixture, 1, upgrade_type=2).error_code == NONE
        assert self.told(fixture) == (1, {"transaction.version": (1, 1)})
        assert self.update(fixture, 0, upgrade_type=3).error_code == NONE
        assert self.told(fixture) == (2, {})
        assert self.update(fixture, 2).error_code == NONE
        assert self.told(fixture) == (3, {"transaction.version": (2, 2)})

    def test_updates_that_are_refused(self, fixture: TransactionFixture) -> None:
        refused = ErrorCode.INVALID_UPDATE_VERSION
        assert self.update(fixture, 1).error_code == refused
        assert self.update(fixture, 3).error_code == refused
        assert self.update(fixture, -1, upgrade_type=3).error_code == refused
        assert self.update(fixture, 1, upgrade_type=9).error_code == refused
        answer = self.update(fixture, 1, 0)
        assert (answer.error_code, answer.results) == (refused, [])
        assert self.update(fixture, 1, 0, allow_downgrade=True).error_code == NONE
        unknown = FeatureUpdateKey("share.version", 1)
        assert fixture.call(UpdateFeaturesRequest(1000, [unknown])).error_code == refused
        assert fixture.metadata.features.level("transaction.version") == 1

    def test_of_a_feature_that_is_named_twice_the_last_level_counts(self, fixture: TransactionFixture) -> None:
        twice = [FeatureUpdateKey("transaction.version", level, upgrade_type=2) for level in (2, 1)]
        assert fixture.call(UpdateFeaturesRequest(1000, twice)).error_code == NONE
        assert fixture.metadata.features.level("transaction.version") == 1

    def test_no_level_is_chosen_that_another_broker_cannot_use(self, fixture: TransactionFixture) -> None:
        assert self.update(fixture, 1, upgrade_type=2).error_code == NONE
        older = Broker(7, (Endpoint("PLAINTEXT", "h", 1),), features=(FeatureRange("transaction.version", 0, 1),))
        result_of(fixture.metadata.store.create(f"{BROKERS}/7", encode_broker(older)))
        result_of(Deferred.fromCoroutine(fixture.metadata.cluster.look_again()))
        answer = self.update(fixture, 2)
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert "brokers 7 can't use level 2" in answer.error_message
        result_of(fixture.metadata.store.delete(f"{BROKERS}/7"))
        result_of(Deferred.fromCoroutine(fixture.metadata.cluster.look_again()))
        assert self.update(fixture, 2).error_code == NONE

    def test_a_request_may_only_be_checked(self, fixture: TransactionFixture) -> None:
        change = [FeatureUpdateKey("transaction.version", 1, upgrade_type=2)]
        assert fixture.call(UpdateFeaturesRequest(1000, change, validate_only=True)).error_code == NONE
        assert fixture.metadata.features.epoch == 0

    def test_the_node_is_kafkas(self, fixture: TransactionFixture) -> None:
        self.update(fixture, 1, upgrade_type=2)
        store = fixture.metadata.store
        assert (
            result_of(store.get(FEATURES)).data
            == b'{"version":2,"status":1,"features":{"group.version":1,"transaction.version":1}}'
        )
        result_of(store.set(FEATURES, b"nonsense"))
        assert self.update(fixture, 2).error_code == ErrorCode.FEATURE_UPDATE_FAILED  # written by another broker
        feed = fixture.metadata.feed
        newer = b'{"version":2,"status":1,"features":{"kraft.version":1,"transaction.version":2}}'
        result_of(Deferred.fromCoroutine(feed.write([SetData(FEATURES, newer)], [FEATURES])))
        assert fixture.metadata.features.levels == {"kraft.version": 1, "transaction.version": 2, "group.version": 1}
        assert decode_features(newer) == fixture.metadata.features.levels
