"""CreateTopics, DeleteTopics, CreatePartitions and DescribeLogDirs."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from pylogd.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from pylogd.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pylogd.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from pylogd.wire.schema import schema_versions
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts


class TestCreateTopics:
    def create(self, parts: Parts, *topics: CreatableTopic, validate_only: bool = False) -> list[Any]:
        answers: list[Any] = parts.call(CreateTopicsRequest(list(topics), validate_only=validate_only)).topics
        return answers

    def test_made_with_settings(self, parts: Parts) -> None:
        config = CreatableTopicConfig("retention.ms", "5000")
        (answer,) = self.create(parts, CreatableTopic("t", 3, 1, configs=[config]))
        assert (answer.error_code, answer.error_message) == (0, None)
        assert (answer.num_partitions, answer.replication_factor) == (3, 1)
        topic = parts.topics.get("t")
        assert topic is not None
        assert answer.topic_id == topic.topic_id
        shown = {one.name: (one.value, one.config_source) for one in answer.configs}
        assert shown["retention.ms"] == ("5000", 1)
        assert shown["segment.bytes"] == (str(1 << 30), 5)
        assert len(parts.partitions.by_name) == 3

    def test_defaults_of_the_broker(self, tmp_path: Any) -> None:
        parts = Parts(tmp_path, num_partitions=4)
        assert self.create(parts, CreatableTopic("t", -1, -1))[0].num_partitions == 4
        parts.close()

    def test_answered_once_it_can_be_used(self, parts: Parts) -> None:
        parts.threads.hold = True
        answer = parts.ask(CreateTopicsRequest([CreatableTopic("t", 1, 1)]), 7)
        assert isinstance(answer, Deferred)
        assert not answer.called
        parts.threads.release()
        assert result_of(answer).topics[0].error_code == 0

    def test_the_clients_own_assignment(self, parts: Parts) -> None:
        own = [CreatableReplicaAssignment(0, [1]), CreatableReplicaAssignment(1, [1])]
        (answer,) = self.create(parts, CreatableTopic("t", -1, -1, own))
        assert (answer.error_code, answer.num_partitions) == (0, 2)

    @pytest.mark.parametrize(
        ("topic", "code"),
        [
            (CreatableTopic("exists", 1, 1), ErrorCode.TOPIC_ALREADY_EXISTS),
            (CreatableTopic("a b", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (CreatableTopic("", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (CreatableTopic("t", 0, 1), ErrorCode.INVALID_PARTITIONS),
            (CreatableTopic("t", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR),
            (CreatableTopic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
            (CreatableTopic("t", -1, -1, [CreatableReplicaAssignment(0, [9])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (
                CreatableTopic("t", -1, -1, [CreatableReplicaAssignment(0, [1])] * 2),
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ),
            (CreatableTopic("t", 1, 1, [CreatableReplicaAssignment(0, [1])]), ErrorCode.INVALID_REQUEST),
            (CreatableTopic("t", 1, 1, configs=[CreatableTopicConfig("nope", "1")]), ErrorCode.INVALID_CONFIG),
            (CreatableTopic("t", 1, 1, configs=[CreatableTopicConfig("retention.ms", "x")]), ErrorCode.INVALID_CONFIG),
            (CreatableTopic("t", 1, 1, configs=[CreatableTopicConfig("retention.ms", None)]), ErrorCode.INVALID_CONFIG),
        ],
    )
    def test_refused(self, parts: Parts, topic: CreatableTopic, code: ErrorCode) -> None:
        parts.create("exists")
        for validate_only in (True, False):
            bad, good = self.create(parts, topic, CreatableTopic("good", 1, 1), validate_only=validate_only)
            assert (bad.error_code, good.error_code) == (code, 0)
            assert bad.error_message
        assert {one.name for one in parts.topics.all()} == {"exists", "good"}

    def test_a_name_that_is_given_twice(self, parts: Parts) -> None:
        answers = self.create(parts, CreatableTopic("t", 1, 1), CreatableTopic("t", 2, 1))
        assert [one.error_code for one in answers] == [ErrorCode.INVALID_REQUEST]
        assert not parts.topics.all()

    def test_validate_only(self, parts: Parts) -> None:
        (answer,) = self.create(parts, CreatableTopic("t", 3, 1), validate_only=True)
        assert (answer.error_code, answer.num_partitions, answer.topic_id) == (0, 3, bytes(16))
        assert not parts.topics.all()


class TestDeleteTopics:
    def test_by_name(self, parts: Parts) -> None:
        parts.create("t")
        answers = parts.call(DeleteTopicsRequest(topic_names=["t", "nope"]), 5).responses
        assert {one.name: one.error_code for one in answers} == {"t": 0, "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert not parts.logs.logs

    def test_by_name_and_by_id(self, parts: Parts) -> None:
        """As in Kafka the topic stays, and is answered once."""
        topic = parts.create("t")
        asked = [DeleteTopicState("t"), DeleteTopicState(None, topic.topic_id)]
        (answer,) = parts.call(DeleteTopicsRequest(asked, timeout_ms=1000), 6).responses
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert parts.topics.get("t") is topic

    def test_by_id(self, parts: Parts) -> None:
        topic = parts.create("t")
        asked = [DeleteTopicState(None, topic.topic_id), DeleteTopicState(None, b"x" * 16)]
        known, unknown = parts.call(DeleteTopicsRequest(asked)).responses
        assert (known.name, known.error_code) == ("t", 0)
        assert (unknown.name, unknown.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)

    def test_requests_that_contradict_themselves(self, parts: Parts) -> None:
        topic = parts.create("t")
        asked = [DeleteTopicState("t", topic.topic_id), DeleteTopicState(None), *[DeleteTopicState("t")] * 2]
        answers = parts.call(DeleteTopicsRequest(asked)).responses
        assert [one.error_code for one in answers] == [ErrorCode.INVALID_REQUEST] * 3
        assert parts.topics.get("t") is topic

    def test_forbidden(self, tmp_path: Any) -> None:
        parts = Parts(tmp_path, delete_topic_enable=False)
        parts.create("t")
        (answer,) = parts.call(DeleteTopicsRequest(topic_names=["t"]), 5).responses
        assert answer.error_code == ErrorCode.TOPIC_DELETION_DISABLED
        parts.close()


class TestCreatePartitions:
    def extend(self, parts: Parts, *topics: CreatePartitionsTopic, validate_only: bool = False) -> dict[str, int]:
        answers = parts.call(CreatePartitionsRequest(list(topics), validate_only=validate_only)).results
        return {one.name: one.error_code for one in answers}

    def test_every_topic_is_answered(self, parts: Parts) -> None:
        parts.create("a")
        parts.create("b", partitions=2)
        asked = [CreatePartitionsTopic(name, 2, None) for name in ("a", "b", "nope")]
        assert self.extend(parts, *asked) == {
            "a": 0,
            "b": ErrorCode.INVALID_PARTITIONS,
            "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert ("a", 1) in parts.partitions.by_name

    def test_validate_only(self, parts: Parts) -> None:
        parts.create("t")
        assert self.extend(parts, CreatePartitionsTopic("t", 2, None), validate_only=True) == {"t": 0}
        assert ("t", 1) not in parts.partitions.by_name

    def test_the_clients_own_assignment(self, parts: Parts) -> None:
        parts.create("t")
        assert self.extend(parts, CreatePartitionsTopic("t", 2, [CreatePartitionsAssignment([9])])) == {
            "t": ErrorCode.INVALID_REPLICA_ASSIGNMENT
        }
        assert self.extend(parts, CreatePartitionsTopic("t", 2, [CreatePartitionsAssignment([1])])) == {"t": 0}

    def test_a_name_that_is_given_twice(self, parts: Parts) -> None:
        parts.create("t")
        twice = [CreatePartitionsTopic("t", 2, None), CreatePartitionsTopic("t", 3, None)]
        assert self.extend(parts, *twice) == {"t": ErrorCode.INVALID_REQUEST}


class TestDescribeLogDirs:
    def test_all_some_and_none(self, parts: Parts) -> None:
        parts.create("t", partitions=2)
        parts.append("t", b"v")
        (directory,) = parts.call(DescribeLogDirsRequest(None)).results
        assert (directory.error_code, directory.log_dir) == (0, "/data")
        (topic,) = directory.topics
        assert [one.partition_index for one in topic.partitions] == [0, 1]
        assert topic.partitions[0].partition_size > topic.partitions[1].partition_size == 0
        (some,) = parts.call(DescribeLogDirsRequest([DescribableLogDirTopic("t", [1, 7])])).results
        assert [one.partition_index for one in some.topics[0].partitions] == [1]
        (none,) = parts.call(DescribeLogDirsRequest([])).results
        assert none.topics == []


class TestTimeouts:
    """`timeout_ms` bounds the wait; the change goes on."""

    @pytest.mark.parametrize("timeout_ms", [0, 1000])
    @pytest.mark.parametrize(
        ("request_", "partitions"),
        [
            (CreateTopicsRequest([CreatableTopic("u", 1, 1), CreatableTopic("v", 1, 1)]), {"t": 1, "u": 1, "v": 1}),
            (DeleteTopicsRequest([DeleteTopicState("t")]), {}),
            (CreatePartitionsRequest([CreatePartitionsTopic("t", 2, None)]), {"t": 2}),
        ],
    )
    def test_a_creation_beyond_its_timeout_is_done_and_answered_with_an_error(
        self, parts: Parts, request_: Any, partitions: dict[str, int], timeout_ms: int
    ) -> None:
        parts.create("t")
        request_.timeout_ms = timeout_ms
        parts.threads.hold = True
        waiting = parts.ask(request_, schema_versions(request_.API_KEY)[1])
        if timeout_ms:
            assert not waiting.called
        parts.time.advance(timeout_ms / 1000)
        response = result_of(waiting)
        answers = getattr(response, "topics", None) or getattr(response, "responses", None) or response.results
        assert {one.error_code for one in answers} == {ErrorCode.REQUEST_TIMED_OUT}
        parts.threads.release()
        assert {topic.name: len(topic.partitions) for topic in parts.topics.all()} == partitions
        assert {key[0] for key in parts.partitions.by_name} == set(partitions)

    def test_errors_found_before_the_timeout_are_reported(self, parts: Parts) -> None:
        parts.threads.hold = True
        topics = [CreatableTopic("a b", 1, 1), CreatableTopic("new", 1, 1)]
        waiting = parts.ask(CreateTopicsRequest(topics, timeout_ms=1000), 7)
        parts.time.advance(1)
        codes = [topic.error_code for topic in result_of(waiting).topics]
        assert codes == [ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT]
        parts.threads.release()

    def test_a_client_that_leaves_does_not_stop_the_change(self, parts: Parts) -> None:
        parts.threads.hold = True
        waiting = parts.ask(CreateTopicsRequest([CreatableTopic("a", 1, 1), CreatableTopic("b", 1, 1)]), 7)
        waiting.addErrback(lambda _: None)
        waiting.cancel()
        parts.threads.release()
        assert [topic.name for topic in parts.topics.all()] == ["a", "b"]
