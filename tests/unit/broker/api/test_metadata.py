"""Metadata, DescribeCluster and DescribeTopicPartitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api import metadata_pieces
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.metadata_pieces import MetadataPieces
from pylogd.broker.metadata.image import Broker, Endpoint, Outages, TopicUpdate
from pylogd.broker.metadata.layout import encode_broker
from pylogd.store.paths import BROKERS
from pylogd.wire.messages.describe_cluster import DescribeClusterRequest
from pylogd.wire.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest, TopicRequest
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, decoded


def ask(*names: str | None, **fields: Any) -> MetadataRequest:
    return MetadataRequest([MetadataRequestTopic(name=name) for name in names], **fields)


def names(response: MetadataResponse) -> list[str | None]:
    return [topic.name for topic in response.topics]


def _decoded(answer: Deferred[bytes], version: int = 9) -> MetadataResponse:
    response: MetadataResponse = decoded(result_of(answer), MetadataRequest.API_KEY, version)
    return response


def _pieces(parts: Parts, version: int = 12) -> MetadataPieces:
    return metadata_pieces.pieces_for(RequestContext(parts, parts.connection, version, "test"))


class TestMetadata:
    def test_the_cluster(self, parts: Parts) -> None:
        answer = parts.call(ask())
        (broker,) = answer.brokers
        assert (broker.node_id, broker.host, broker.port, broker.rack) == (1, "localhost", 9092, "r1")
        assert (answer.controller_id, answer.cluster_id) == (1, parts.cluster.cluster_id)
        assert answer.cluster_authorized_operations == -(1 << 31)

    def test_answers_for_deleted_topics_are_not_kept_for_ever(self, parts: Parts) -> None:
        for number in range(250):
            parts.create(f"t{number}")
            parts.call(ask(f"t{number}"))
            result_of(parts.topic_admin.delete_topic(f"t{number}"))
        assert len(_pieces(parts)._pieces) <= 1

    def test_none_and_all(self, parts: Parts) -> None:
        parts.create("a")
        parts.create("b")
        assert names(parts.call(MetadataRequest([]), 0)) == ["a", "b"]
        assert names(parts.call(MetadataRequest([]), 1)) == []
        assert names(parts.call(MetadataRequest(None), 1)) == ["a", "b"]

    def test_a_topic(self, parts: Parts) -> None:
        made = parts.create("t", partitions=2)
        (topic,) = parts.call(ask("t")).topics
        assert (topic.error_code, topic.name, topic.topic_id, topic.is_internal) == (0, "t", made.topic_id, False)
        assert [(one.partition_index, one.leader_id, one.isr_nodes) for one in topic.partitions] == [
            (0, 1, [1]),
            (1, 1, [1]),
        ]

    @pytest.mark.parametrize("version", range(14))
    def test_partitions_that_are_alike_differ_in_their_index(self, parts: Parts, version: int) -> None:
        for node in (2, 3):
            other = Broker(node, (Endpoint("PLAINTEXT", "other", 9092),))
            result_of(parts.metadata.store.create(f"{BROKERS}/{node}", encode_broker(other)))
        assigned = [[1, 2], [1, 2], [2, 1], [1, 3], [1, 2]]
        result_of(parts.topic_admin.create_topic("t", assignment=dict(enumerate(assigned))))
        result_of(parts.metadata.store.delete(f"{BROKERS}/3"))
        (topic,) = parts.call(MetadataRequest([MetadataRequestTopic(name="t")]), version).topics
        found = [(one.partition_index, one.leader_id, one.replica_nodes) for one in topic.partitions]
        assert found == [(index, nodes[0], nodes) for index, nodes in enumerate(assigned)]
        if version >= 5:
            assert [one.offline_replicas for one in topic.partitions] == [[], [], [], [3], []]

    def test_a_replica_in_an_offline_log_directory_is_that_of_its_partition_alone(self, parts: Parts) -> None:
        other, path = Broker(2, (Endpoint("PLAINTEXT", "other", 9092),)), f"{BROKERS}/2"
        result_of(parts.metadata.store.create(path, encode_broker(other)))
        made = result_of(parts.topic_admin.create_topic("t", assignment={index: [1, 2] for index in range(3)}))
        parts.call(ask("t"))
        failed = Outages(offline=frozenset({(made.topic_id, 1)}))
        result_of(parts.metadata.store.delete(path))
        result_of(parts.metadata.store.create(path, encode_broker(replace(other, outages=failed))))
        (topic,) = parts.call(ask("t")).topics
        assert [one.offline_replicas for one in topic.partitions] == [[], [2], []]

    def test_by_id(self, parts: Parts) -> None:
        made = parts.create("t")
        asked = [MetadataRequestTopic(made.topic_id, None), MetadataRequestTopic(b"x" * 16, None)]
        known, unknown = parts.call(MetadataRequest(asked), 12).topics
        assert (known.name, known.error_code) == ("t", 0)
        assert (unknown.name, unknown.topic_id, unknown.error_code) == (None, b"x" * 16, ErrorCode.UNKNOWN_TOPIC_ID)
        assert [one.error_code for one in parts.call(MetadataRequest(asked), 10).topics] == [
            ErrorCode.INVALID_REQUEST
        ] * 2

    def test_neither_name_nor_id(self, parts: Parts) -> None:
        assert parts.call(ask(None), 12).topics[0].error_code == ErrorCode.INVALID_REQUEST
        assert parts.call(ask(None), 11).topics[0].error_code == ErrorCode.INVALID_REQUEST

    @pytest.mark.parametrize("version", [0, 3, 4, 13])
    def test_an_unknown_topic_is_created_and_usable(self, parts: Parts, version: int) -> None:
        (topic,) = parts.call(ask("new"), version).topics
        assert (topic.error_code, len(topic.partitions)) == (0, 1)
        assert ("new", 0) in parts.partitions.by_name

    def test_a_created_topic_is_answered_when_its_log_exists(self, parts: Parts) -> None:
        parts.threads.hold = True
        answer = parts.ask(ask("new"), 9)
        assert isinstance(answer, Deferred)
        assert not answer.called
        parts.threads.release()
        assert _decoded(answer).topics[0].error_code == 0

    def test_two_clients_can_create_the_same_topic(self, parts: Parts) -> None:
        parts.threads.hold = True
        first, second = parts.ask(ask("new"), 9), parts.ask(ask("new", "other"), 9)
        parts.threads.release()
        assert _decoded(first).topics[0].topic_id == _decoded(second).topics[0].topic_id

    def test_no_topic_is_created_if_the_request_forbids_it(self, parts: Parts) -> None:
        answer = parts.call(ask("new", allow_auto_topic_creation=False), 4)
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not parts.topics.all()

    def test_no_topic_is_created_if_the_broker_forbids_it(self, tmp_path: Any) -> None:
        parts = Parts(tmp_path, auto_create_topics_enable=False)
        assert parts.call(ask("new"), 0).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        parts.close()

    @pytest.mark.parametrize("name", ["", ".", "..", "a b", "é", "x" * 250])
    def test_invalid_names(self, parts: Parts, name: str) -> None:
        assert parts.call(ask(name), 9).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    def test_names_that_collide(self, parts: Parts) -> None:
        parts.create("a.b")
        assert parts.call(ask("a_b"), 9).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    def test_a_dead_leader_is_not_named(self, parts: Parts) -> None:
        """Between the end of a broker's session and the election of another leader, the metadata still names it as
        leader.
        """
        second = encode_broker(Broker(2, (Endpoint("PLAINTEXT", "second", 9092),)))
        result_of(parts.metadata.store.create(f"{BROKERS}/2", second))
        topic = result_of(parts.topic_admin.create_topic("t", assignment={0: [2, 1], 1: [1, 2]}))
        before = parts.call(ask("t"), 12)
        assert [one.leader_id for one in before.topics[0].partitions] == [2, 1]
        assert parts.call(MetadataRequest(None), 12).topics == before.topics
        result_of(parts.metadata.store.delete(f"{BROKERS}/2"))
        for request in (ask("t"), MetadataRequest(None)):
            answer = parts.call(request, 12)
            assert [broker.node_id for broker in answer.brokers] == [1]
            dead, alive = answer.topics[0].partitions
            assert (dead.error_code, dead.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
            assert (dead.leader_epoch, dead.replica_nodes) == (topic.partitions[0].leader_epoch, [2, 1])
            assert (alive.error_code, alive.leader_id) == (0, 1)

    @pytest.mark.parametrize(
        ("version", "code"), [(5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)]
    )
    def test_a_leader_without_the_clients_listener_is_not_named(
        self, parts: Parts, version: int, code: ErrorCode
    ) -> None:
        second = encode_broker(Broker(2, (Endpoint("INTERNAL", "second", 9093),)))
        result_of(parts.metadata.store.create(f"{BROKERS}/2", second))
        result_of(parts.topic_admin.create_topic("t", assignment={0: [2]}))
        for request in (ask("t"), MetadataRequest(None)):
            (partition,) = parts.call(request, version).topics[0].partitions
            assert (partition.error_code, partition.leader_id) == (code, -1)

    def test_authorized_operations_on_request_only(self, parts: Parts) -> None:
        parts.create("t")
        asked = ask("t", include_cluster_authorized_operations=True, include_topic_authorized_operations=True)
        answer = parts.call(asked, 8)
        assert answer.cluster_authorized_operations > 0
        assert answer.topics[0].topic_authorized_operations > 0
        assert parts.call(ask("t"), 8).topics[0].topic_authorized_operations == -(1 << 31)

    def test_the_answer_for_a_topic_is_kept_until_it_changes(self, parts: Parts) -> None:
        made = parts.create("t")
        first = _pieces(parts).of(made)
        parts.create("u")
        assert _pieces(parts).of(made) is first
        assert parts.call(MetadataRequest(None)).topics[:1] == parts.call(ask("t")).topics
        result_of(parts.topic_admin.add_partitions("t", 2))
        assert len(parts.call(ask("t")).topics[0].partitions) == 2
        result_of(parts.topic_admin.delete_topic("t"))
        assert names(parts.call(MetadataRequest(None))) == ["u"]
        assert len(parts.call(ask("t")).topics[0].partitions) == 1

    def test_the_answer_for_all_topics_is_kept_encoded_until_anything_changes(self, parts: Parts) -> None:
        parts.create("t")
        first = parts.ask(MetadataRequest(None), 12)
        assert parts.ask(MetadataRequest(None), 12) is first
        assert parts.call(MetadataRequest(None), 9).topics[0].name == "t"
        with_operations = MetadataRequest(None, include_topic_authorized_operations=True)
        assert parts.call(with_operations, 12).topics[0].topic_authorized_operations > 0
        parts.cluster.controller_changed(7)
        assert parts.call(MetadataRequest(None), 12).controller_id == 7
        parts.cluster.controller_changed(1)
        assert parts.ask(MetadataRequest(None), 12) is first
        parts.create("u")
        assert names(parts.call(MetadataRequest(None), 12)) == ["t", "u"]
        for controller in range(20):
            parts.cluster.controller_changed(controller)
            parts.call(MetadataRequest(None), 12)
        assert len(_pieces(parts).answers) <= 8
        for version in range(14):
            _pieces(parts, version)
        assert len(metadata_pieces._kept[parts.topics]) <= 8


class TestDescribeCluster:
    def test_brokers(self, parts: Parts) -> None:
        answer = parts.call(DescribeClusterRequest(include_cluster_authorized_operations=True))
        assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, parts.cluster.cluster_id, 1)
        assert [(one.broker_id, one.host, one.port, one.rack) for one in answer.brokers] == [
            (1, "localhost", 9092, "r1")
        ]
        assert answer.cluster_authorized_operations > 0

    def test_controllers(self, parts: Parts) -> None:
        codes = [parts.call(DescribeClusterRequest(endpoint_type=kind)).error_code for kind in (2, 9)]
        assert codes == [ErrorCode.MISMATCHED_ENDPOINT_TYPE, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE]


class TestDescribeTopicPartitions:
    def pages(self, parts: Parts, limit: int, *topics: str) -> list[list[tuple[str, list[int]]]]:
        pages: list[list[tuple[str, list[int]]]] = []
        cursor = None
        while True:
            asked = DescribeTopicPartitionsRequest([TopicRequest(name) for name in topics], limit, cursor)
            answer = parts.call(asked)
            pages.append([(one.name, [part.partition_index for part in one.partitions]) for one in answer.topics])
            if answer.next_cursor is None:
                return pages
            cursor = Cursor(answer.next_cursor.topic_name, answer.next_cursor.partition_index)

    def test_pages(self, parts: Parts) -> None:
        parts.create("a", partitions=3)
        parts.create("b", partitions=2)
        assert self.pages(parts, 2000) == [[("a", [0, 1, 2]), ("b", [0, 1])]]
        assert self.pages(parts, 2) == [[("a", [0, 1])], [("a", [2]), ("b", [0])], [("b", [1])]]
        assert self.pages(parts, 3) == [[("a", [0, 1, 2])], [("b", [0, 1])]]
        assert self.pages(parts, 0, "b") == [[("b", [0])], [("b", [1])]]

    def test_lists_that_java_clients_need_are_not_null(self, parts: Parts) -> None:
        parts.create("t")
        (partition,) = parts.call(DescribeTopicPartitionsRequest()).topics[0].partitions
        assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])

    def test_eligible_replicas(self, parts: Parts) -> None:
        topic = parts.create("t")
        state = replace(topic.partitions[0], replicas=(1, 2, 3), elr=(2,), last_known_elr=(3,), partition_epoch=1)
        result_of(parts.topics.write_states([TopicUpdate(topic, (state,))]))
        (partition,) = parts.call(DescribeTopicPartitionsRequest()).topics[0].partitions
        assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([2], [3])

    def test_a_leader_that_is_dead_or_out_of_reach_is_not_named(self, parts: Parts) -> None:
        """As with Kafka, without an error code."""
        brokers = {2: Endpoint("PLAINTEXT", "second", 9092), 3: Endpoint("INTERNAL", "third", 9093)}
        for node, endpoint in brokers.items():
            path = f"{BROKERS}/{node}"
            result_of(parts.metadata.store.create(path, encode_broker(Broker(node, (endpoint,)))))
        result_of(parts.topic_admin.create_topic("t", assignment={0: [2, 1], 1: [1, 2], 2: [3, 1]}))

        def leaders() -> list[tuple[int, int, list[int]]]:
            answer = parts.call(DescribeTopicPartitionsRequest()).topics[0].partitions
            return [(one.leader_id, one.error_code, one.offline_replicas) for one in answer]

        assert leaders() == [(2, 0, []), (1, 0, []), (-1, 0, [])]
        result_of(parts.metadata.store.delete(f"{BROKERS}/2"))
        assert leaders() == [(-1, 0, [2]), (1, 0, [2]), (-1, 0, [])]

    def test_a_cursor_whose_topic_is_gone(self, parts: Parts) -> None:
        parts.create("c")
        answer = parts.call(DescribeTopicPartitionsRequest(cursor=Cursor("b", 5)))
        assert [one.name for one in answer.topics] == ["c"]

    def test_unknown_and_impossible_names(self, parts: Parts) -> None:
        asked = [TopicRequest("nope"), TopicRequest("a b")]
        answer = parts.call(DescribeTopicPartitionsRequest(asked))
        assert {one.name: one.error_code for one in answer.topics} == {
            "a b": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        refused = parts.call(DescribeTopicPartitionsRequest(asked, cursor=Cursor("a", -1)))
        assert {one.error_code for one in refused.topics} == {ErrorCode.INVALID_REQUEST}
