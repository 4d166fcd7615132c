"""Authorization of single items: in requests, in responses, and in requests that wait while ACLs change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import CloseConnection, ErrorCode
from pylogd.broker.api.authorized import NOT_ASKED
from pylogd.broker.metadata.topic_admin import TopicAdmin
from pylogd.broker.security.acls import (
    EVERYONE,
    AclEntry,
    AclFilter,
    PatternType,
    Permission,
    ResourcePattern,
    make_binding,
)
from pylogd.broker.security.authorizer import CLUSTER_NAME
from pylogd.broker.security.authorizer import AclOperation as Op
from pylogd.broker.security.authorizer import ResourceType as Kind
from pylogd.broker.security.rules import AclAuthorizer, AclIndex
from pylogd.credentials.principal import Principal
from pylogd.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from pylogd.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pylogd.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from pylogd.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pylogd.wire.messages.describe_cluster import DescribeClusterRequest
from pylogd.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from pylogd.wire.messages.describe_groups import DescribeGroupsRequest
from pylogd.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pylogd.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, batch
from tests.hotpath import HotPath, cost

REFUSALS = {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
ALICE, ROOT = Principal("User", "alice"), Principal("User", "root")
Allow = Callable[..., None]


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    """Return a broker with two topics. Alice owns one of them, and sends the requests."""
    made = Parts(
        tmp_path, authorizer_class_name="kafka.security.authorizer.AclAuthorizer", super_users=str(ROOT),
        min_insync_replicas=1,
    )  # fmt: skip
    for name in ("mine", "others"):
        made.create(name)
        made.append(name, b"value")
    made.connection.principal = ALICE
    yield made
    made.close()


@pytest.fixture
def allow(parts: Parts) -> Allow:
    def allow(
        operation: Op,
        kind: Kind = Kind.TOPIC,
        name: str = "mine",
        permission: Permission = Permission.ALLOW,
        pattern: PatternType = PatternType.LITERAL,
    ) -> None:
        assert parts.security.acls is not None
        binding = make_binding(kind, name, pattern, str(ALICE), "127.0.0.0/8", operation, permission)
        assert result_of(parts.security.acls.create([binding])) == {binding: None}

    return allow


def revoke(parts: Parts) -> None:
    assert parts.security.acls is not None
    result_of(parts.security.acls.delete([AclFilter()]))


def bits(*operations: Op) -> int:
    return sum(1 << operation for operation in operations)


def produce(name: str, acks: int = 1, transactional_id: str | None = None) -> ProduceRequest:
    data = [TopicProduceData(topic, partition_data=[PartitionProduceData(0, batch())]) for topic in ("mine", name)]
    return ProduceRequest(transactional_id, acks, 1000, data)


def fetch(parts: Parts, *names: str, offset: int = 0, **fields: Any) -> FetchRequest:
    topics = [
        FetchTopic(name, parts.partitions.by_name[name, 0].topic_id, [FetchPartition(0, fetch_offset=offset)])
        for name in names
    ]
    for topic in topics:
        topic.partitions[0].partition_max_bytes = 1000
    return FetchRequest(topics=topics, max_bytes=10_000, **fields)


def codes(response: Any) -> list[int]:
    return [partition.error_code for topic in response.responses for partition in topic.partitions]


@pytest.mark.parametrize("version", [12, 13])
def test_one_topic_refused_does_not_refuse_a_produce_request(parts: Parts, allow: Allow, version: int) -> None:
    allow(Op.WRITE)
    request = produce("others")
    for topic in request.topic_data:
        topic.topic_id = parts.partitions.by_name[topic.name, 0].topic_id
    answer = parts.call(request, version)
    found = [one.error_code for topic in answer.responses for one in topic.partition_responses]
    assert found == [ErrorCode.NONE, REFUSED]
    assert parts.partitions.by_name["mine", 0].log.log_end_offset == 2
    assert parts.partitions.by_name["others", 0].log.log_end_offset == 1


def test_an_unknown_topic_id_is_no_refusal(parts: Parts, allow: Allow) -> None:
    request = ProduceRequest(None, 1, 1000, [TopicProduceData(topic_id=b"x" * 16)])
    request.topic_data[0].partition_data = [PartitionProduceData(0, batch())]
    (topic,) = parts.call(request, 13).responses
    assert topic.partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_refused_produce_without_acks_closes_the_connection(parts: Parts) -> None:
    with pytest.raises(CloseConnection):
        parts.ask(produce("others", acks=0), 9)


def test_a_transactional_producer_needs_its_id(parts: Parts, allow: Allow) -> None:
    allow(Op.WRITE)

    def ask() -> list[int]:
        answer = parts.call(produce("others", transactional_id="tx"), 9)
        return [one.error_code for topic in answer.responses for one in topic.partition_responses]

    assert set(ask()) == {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    initial = InitProducerIdRequest("tx")
    assert parts.call(initial).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    coordinator = FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"])
    (found,) = parts.call(coordinator, 4).coordinators
    assert found.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    allow(Op.WRITE, Kind.TRANSACTIONAL_ID, "tx")
    assert ask() == [ErrorCode.NONE, REFUSED]
    assert parts.call(initial).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_an_idempotent_producer_needs_any_topic(parts: Parts, allow: Allow) -> None:
    request = InitProducerIdRequest(None)
    assert parts.call(request).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    allow(Op.WRITE, name="whatever-", pattern=PatternType.PREFIXED)
    assert parts.call(request).error_code == ErrorCode.NONE
    allow(Op.WRITE, name="*", permission=Permission.DENY)
    assert parts.call(request).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    allow(Op.IDEMPOTENT_WRITE, Kind.CLUSTER, CLUSTER_NAME)
    assert parts.call(request).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [12, 16])
def test_one_topic_refused_does_not_refuse_a_fetch(parts: Parts, allow: Allow, version: int) -> None:
    allow(Op.READ)
    answer = parts.call(fetch(parts, "mine", "others", session_epoch=-1), version)
    found = {one.error_code: bool(one.records) for topic in answer.responses for one in topic.partitions}
    assert found == {ErrorCode.NONE: True, REFUSED: False}
    # what the fast path leaves to the general handler
    (alone,) = codes(parts.call(fetch(parts, "others", session_epoch=-1), version))
    assert alone == REFUSED


def test_a_follower_needs_the_cluster(parts: Parts, allow: Allow) -> None:
    allow(Op.READ)
    before = parts.partitions.by_name["mine", 0].state
    answer = parts.call(fetch(parts, "mine", "others", session_epoch=-1, replica_state=ReplicaState(2, -1)), 16)
    assert {answer.error_code, *codes(answer)} - {ErrorCode.NONE} <= REFUSALS
    assert answer.error_code in REFUSALS or codes(answer) == [REFUSED, REFUSED]
    assert not any(one.records for topic in answer.responses for one in topic.partitions)
    assert parts.partitions.by_name["mine", 0].state is before


def test_a_partition_that_outlives_its_topic_is_not_read(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    written = produce("others")
    fetched = fetch(parts, "others", session_epoch=-1)
    for topic in written.topic_data:
        topic.topic_id = parts.partitions.by_name[topic.name, 0].topic_id
    monkeypatch.setattr(parts.topics, "by_id", lambda _id: None)
    assert codes(parts.call(fetched, 16)) == [REFUSED]
    answer = parts.call(written, 13)
    assert {one.error_code for topic in answer.responses for one in topic.partition_responses} == {REFUSED}


def test_a_waiting_fetch_is_authorized_again(parts: Parts, allow: Allow) -> None:
    allow(Op.READ)
    request = fetch(parts, "mine", offset=1, session_epoch=-1, max_wait_ms=500, min_bytes=1)
    waiting = parts.ask(request, 16)
    assert isinstance(waiting, Deferred) and not waiting.called
    revoke(parts)
    parts.append("mine", b"secret")
    parts.replicas.became_visible(parts.partitions.by_name["mine", 0])
    assert codes(result_of(waiting)) == [REFUSED]


def test_a_session_reports_a_refusal_of_an_unchanged_partition(parts: Parts, allow: Allow) -> None:
    allow(Op.READ)
    first = parts.call(fetch(parts, "mine", offset=1, session_epoch=0), 16)
    request = FetchRequest(session_id=first.session_id, session_epoch=1, max_bytes=10_000)
    assert first.session_id and codes(parts.call(request, 16)) == []
    revoke(parts)
    request.session_epoch = 2
    assert codes(parts.call(request, 16)) == [REFUSED]


def test_list_offsets_and_commits_are_authorized_by_topic(parts: Parts, allow: Allow) -> None:
    allow(Op.READ)
    asked = [ListOffsetsTopic(name, [ListOffsetsPartition(0, timestamp=-1)]) for name in ("mine", "others", "none")]
    answer = parts.call(ListOffsetsRequest(-1, topics=asked))
    assert [topic.partitions[0].error_code for topic in answer.topics] == [0, REFUSED, REFUSED]
    result_of(parts.topic_admin.create_topic("__consumer_offsets"))
    allow(Op.READ, Kind.GROUP, "g")
    topics = [OffsetCommitRequestTopic(name, partitions=[OffsetCommitRequestPartition(0, 1)]) for name in
              ("mine", "others")]  # fmt: skip
    committed = parts.call(OffsetCommitRequest("g", -1, "", topics=topics), 9)
    assert [topic.partitions[0].error_code for topic in committed.topics] == [0, REFUSED]


def test_offsets_of_topics_that_may_not_be_seen_are_left_out(parts: Parts, allow: Allow) -> None:
    result_of(parts.topic_admin.create_topic("__consumer_offsets"))
    parts.connection.principal = ROOT
    topics = [OffsetCommitRequestTopic(name, partitions=[OffsetCommitRequestPartition(0, 1)]) for name in
              ("mine", "others")]  # fmt: skip
    parts.call(OffsetCommitRequest("g", -1, "", topics=topics), 9)
    parts.connection.principal = ALICE
    allow(Op.DESCRIBE)
    allow(Op.READ, Kind.GROUP, "g")
    (group,) = parts.call(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)]), 8).groups
    assert [topic.name for topic in group.topics] == ["mine"]


def test_metadata_omits_topics_without_describe(parts: Parts, allow: Allow) -> None:
    allow(Op.WRITE)
    everything = MetadataRequest(None, False)
    assert [topic.name for topic in parts.call(everything, 12).topics] == ["mine"]
    parts.connection.principal = ROOT
    assert [topic.name for topic in parts.call(everything, 12).topics] == ["mine", "others"]
    parts.connection.principal = ALICE
    assert [topic.name for topic in parts.call(everything, 12).topics] == ["mine"]
    assert [t.name for t in parts.call(DescribeTopicPartitionsRequest()).topics] == ["mine"]
    by_id = MetadataRequestTopic(parts.partitions.by_name["others", 0].topic_id, None)
    (hidden,) = parts.call(MetadataRequest([by_id], False), 12).topics
    assert (hidden.error_code, hidden.name) == (REFUSED, None)


def test_metadata_creates_topics_only_for_those_who_may(parts: Parts, allow: Allow) -> None:
    def ask(name: str) -> int:
        (topic,) = parts.call(MetadataRequest([MetadataRequestTopic(name=name)], True), 9).topics
        return int(topic.error_code)

    assert ask("new") == REFUSED and parts.topics.get("new") is None
    allow(Op.DESCRIBE, name="new")
    assert ask("new") == REFUSED and parts.topics.get("new") is None
    allow(Op.CREATE, name="new")
    assert ask("new") == ErrorCode.NONE and parts.topics.get("new") is not None
    allow(Op.DESCRIBE, name="*")
    allow(Op.CREATE, Kind.CLUSTER, CLUSTER_NAME)
    assert ask("newer") == ErrorCode.NONE


def test_authorized_operations_are_true(parts: Parts, allow: Allow) -> None:
    allow(Op.READ)
    allow(Op.ALL, name="*", permission=Permission.ALLOW)
    allow(Op.DELETE, permission=Permission.DENY)
    request = MetadataRequest(
        [MetadataRequestTopic(name="mine")], include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )  # fmt: skip
    answer = parts.call(request, 8)
    expected = bits(Op.READ, Op.WRITE, Op.CREATE, Op.ALTER, Op.DESCRIBE, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS)
    assert answer.topics[0].topic_authorized_operations == expected
    assert answer.cluster_authorized_operations == 0, "she may not describe the cluster"
    every = parts.call(MetadataRequest(None, include_topic_authorized_operations=True), 8)
    assert [topic.topic_authorized_operations for topic in every.topics] == [expected, expected | bits(Op.DELETE)]
    allow(Op.ALTER, Kind.CLUSTER, CLUSTER_NAME)
    cluster = DescribeClusterRequest(True)
    assert parts.call(cluster).cluster_authorized_operations == bits(Op.ALTER, Op.DESCRIBE)
    assert parts.call(DescribeClusterRequest()).cluster_authorized_operations == NOT_ASKED
    allow(Op.READ, Kind.GROUP, "g")
    (group,) = parts.call(DescribeGroupsRequest(["g"], True), 5).groups
    assert group.authorized_operations in (bits(Op.READ, Op.DESCRIBE), NOT_ASKED)


@pytest.mark.parametrize(("operation", "room"), [(None, -1), (Op.CREATE, -1), (Op.ALTER_CONFIGS, 7), (Op.DESCRIBE, 7)])
def test_what_plans_need_is_told_to_those_who_may_know(
    parts: Parts, allow: Allow, monkeypatch: pytest.MonkeyPatch, operation: Op | None, room: int
) -> None:
    """Whoever cordons a broker waits until all show it."""
    monkeypatch.setattr(TopicAdmin, "room_on", lambda *_: 7)
    if operation is not None:
        allow(operation, Kind.CLUSTER, CLUSTER_NAME)
    (broker,) = parts.call(DescribeClusterRequest()).brokers
    assert broker.partition_room == room


def test_settings_of_a_created_topic_need_describe_configs(parts: Parts, allow: Allow) -> None:
    allow(Op.CREATE, name="a")
    allow(Op.CREATE, name="b")
    allow(Op.DESCRIBE_CONFIGS, name="b")
    first, second = parts.call(CreateTopicsRequest([CreatableTopic("a", 1, 1), CreatableTopic("b", 1, 1)])).topics
    assert (first.error_code, first.topic_config_error_code, first.configs, first.num_partitions) == (
        0,
        REFUSED,
        [],
        -1,
    )
    assert (second.error_code, second.topic_config_error_code, second.num_partitions) == (0, 0, 1) and second.configs


def test_deleting_by_id_does_not_tell_the_name(parts: Parts, allow: Allow) -> None:
    wanted = DeleteTopicState(None, parts.partitions.by_name["others", 0].topic_id)
    (hidden,) = parts.call(DeleteTopicsRequest([wanted])).responses
    assert (hidden.error_code, hidden.name) == (REFUSED, None)
    allow(Op.DESCRIBE, name="others")
    (seen,) = parts.call(DeleteTopicsRequest([wanted])).responses
    assert (seen.error_code, seen.name) == (REFUSED, "others")
    assert parts.topics.get("others") is not None


def test_an_acl_for_all_topics_does_not_mean_internal_ones(parts: Parts, allow: Allow) -> None:
    """Whoever deletes `__consumer_offsets`, or has another number of partitions, takes the offsets of all groups."""
    parts.connection.principal = ROOT
    parts.call(FindCoordinatorRequest("g"), 3)
    parts.connection.principal = ALICE
    allow(Op.ALL, name="*")
    internal = parts.topics.get("__consumer_offsets")
    assert internal is not None

    def refusals() -> list[int]:
        deleted = parts.call(DeleteTopicsRequest([DeleteTopicState(internal.name)], timeout_ms=1000), 6)
        by_id = parts.call(DeleteTopicsRequest([DeleteTopicState(None, internal.topic_id)], timeout_ms=1000), 6)
        more = parts.call(CreatePartitionsRequest([CreatePartitionsTopic(internal.name, 99, None)], 1000), 3)
        setting = AlterableConfig("cleanup.policy", 0, "delete")
        altered = parts.call(IncrementalAlterConfigsRequest([AlterConfigsResource(2, internal.name, [setting])]), 1)
        records = DeleteRecordsTopic(internal.name, [DeleteRecordsPartition(0, -1)])
        emptied = parts.call(DeleteRecordsRequest([records], 1000), 2)
        return [
            deleted.responses[0].error_code, by_id.responses[0].error_code, more.results[0].error_code,
            altered.responses[0].error_code, emptied.topics[0].partitions[0].error_code,
        ]  # fmt: skip

    assert refusals() == [REFUSED] * 5
    described = DescribeConfigsRequest([DescribeConfigsResource(2, internal.name, None)])
    assert parts.call(described, 4).results[0].error_code == ErrorCode.NONE
    allow(Op.ALTER, Kind.CLUSTER, CLUSTER_NAME)
    assert REFUSED not in refusals() and parts.topics.get(internal.name) is None


def test_brokers_settings_need_the_cluster(parts: Parts, allow: Allow) -> None:
    request = DescribeConfigsRequest([DescribeConfigsResource(4, "1", None), DescribeConfigsResource(2, "mine", None)])
    allow(Op.DESCRIBE_CONFIGS)
    broker, topic = parts.call(request).results
    assert (broker.error_code, broker.configs) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
    assert topic.error_code == ErrorCode.NONE and topic.configs
    allow(Op.ALTER_CONFIGS, Kind.CLUSTER, CLUSTER_NAME)
    assert [result.error_code for result in parts.call(request).results] == [0, 0]


def test_fast_paths_are_authorized_at_little_cost(tmp_path: Path) -> None:
    """Requests on the fast path are authorized too: refused at once, and 60 instructions dearer where allowed."""
    path = HotPath(tmp_path)
    one = path.produce_frame(1, 200)
    path.ask(one)
    fetched = path.fetch_frame(0, 4096)
    log = path.parts.partitions.by_name["t", 0].log
    free = {frame: cost(lambda frame=frame: path.ask(frame)) for frame in (one, fetched)}  # type: ignore[misc]
    authorizer = AclAuthorizer(AclIndex())
    path.parts.authorizer = authorizer
    pattern = ResourcePattern(Kind.TOPIC, "t", PatternType.LITERAL)
    everything = AclEntry(EVERYONE, "*", Op.ALL, Permission.ALLOW)
    authorizer.index.put(pattern, [everything])
    authorizer.changed()
    for frame, before in free.items():
        dearer = cost(lambda frame=frame: path.ask(frame))  # type: ignore[misc]
        assert dearer.instructions - before.instructions <= 60
        assert dearer.calls - before.calls <= 2
    end, size = log.log_end_offset, path.ask(fetched)
    assert size > 4096 // 2
    authorizer.index.put(pattern, [everything._replace(permission=Permission.DENY)])
    authorizer.changed()
    path.ask(one)
    path.ask_at_once(one * 3, path.ask(one) * 3)
    assert log.log_end_offset == end
    assert path.ask(fetched) < 200
    path.close()
