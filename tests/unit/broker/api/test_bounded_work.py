"""Small requests that once caused unbounded work, each in a small form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.base.limits.names import MAX_GROUP_ID
from pylogd.broker.api import HANDLERS
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.slices import SLICE_BYTES
from pylogd.broker.groups.group import ClassicGroup
from pylogd.broker.groups.records import Committed, StoredGroup
from pylogd.broker.replica.internal_topic import partition_of
from pylogd.broker.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from pylogd.config import ConfigError
from pylogd.config.checks import check_way_in
from pylogd.credentials.principal import Principal
from pylogd.store.paths import OFFSETS_TOPIC
from pylogd.wire import schema
from pylogd.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from pylogd.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pylogd.wire.messages.delete_groups import DeleteGroupsRequest
from pylogd.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from pylogd.wire.messages.describe_groups import DescribeGroupsRequest
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.heartbeat import HeartbeatRequest
from pylogd.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pylogd.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pylogd.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pylogd.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.fakes.metadata import result_of
from tests.fakes.parts import NOW_MS, Parts, batch, decoded

BROKER, TOPIC = 4, 2
LEAST_RESPONSE = 65536  # the lowest value of `response.max.bytes`
ZSTD = 4
MAX_TIMESTAMP = -3


def size_of(answer: Any, version: int) -> int:
    """Return the size of a response in bytes."""
    return sum(map(len, schema.response_codec(answer.API_KEY, version).encode(answer)))


def commit(parts: Parts, group: str, count: int, text: str, topic: str = "t") -> None:
    """Commit offsets of a group for the first partitions of a topic."""
    partitions = [OffsetCommitRequestPartition(index, 7, -1, text) for index in range(count)]
    request = OffsetCommitRequest(group, topics=[OffsetCommitRequestTopic(topic, partitions=partitions)])
    answers = parts.call(request, 9).topics[0].partitions
    assert {one.error_code for one in answers} == {0}


def member(parts: Parts, group: str, metadata: bytes) -> str:
    """Make a client the one member of a Stable group; return its member id."""
    request = JoinGroupRequest(
        group, 300_000, 30_000, protocol_type="consumer", protocols=[JoinGroupRequestProtocol("range", metadata)]
    )
    answer = parts.ask(request, 3)
    parts.time.advance(10)
    member_id: str = result_of(answer).member_id
    parts.call(SyncGroupRequest(group, 1, member_id, assignments=[SyncGroupRequestAssignment(member_id, b"a")]), 3)
    return member_id


def later(parts: Parts, request: Any, version: int) -> tuple[Any, int]:
    """Return a response that is made in several slices, and the number of turns of the reactor that it took."""
    turns = 0
    call_later = parts.time.callLater

    def count(delay: float, *args: Any) -> Any:
        nonlocal turns
        turns += not delay
        return call_later(delay, *args)

    parts.time.callLater = count  # type: ignore[method-assign, assignment]
    try:
        answer = result_of(parts.ask(request, version), lambda: parts.time.advance(0))
    finally:
        del parts.time.callLater
    return decoded(answer, request.API_KEY, version), turns


class TestAnsweredOnce:
    """A request that names the same thing many times gets one answer for it."""

    def test_configs_of_a_broker(self, parts: Parts) -> None:
        once = parts.call(DescribeConfigsRequest([DescribeConfigsResource(BROKER, "1", None)], True, True))
        answer = parts.call(DescribeConfigsRequest([DescribeConfigsResource(BROKER, "1", None)] * 4000, True, True))
        assert size_of(answer, 4) == size_of(once, 4)

    def test_groups(self, parts: Parts) -> None:
        parts.create("t")
        parts.call(FindCoordinatorRequest("g"), 3)
        member(parts, "g", bytes(100_000))
        answer = parts.call(DescribeGroupsRequest(["g"] * 400))
        assert [len(group.members) for group in answer.groups] == [1]

    def test_offsets_of_a_group(self, parts: Parts) -> None:
        parts.create("t", 10)
        parts.call(FindCoordinatorRequest("g"), 3)
        commit(parts, "g", 10, "x" * 4000)
        everything = [OffsetFetchRequestGroup("g", topics=None)] * 1000
        (group,) = parts.call(OffsetFetchRequest(groups=everything), 9).groups
        assert len(group.topics[0].partitions) == 10
        topics = [OffsetFetchRequestTopics("t", partition_indexes=[0, 1] * 500)] * 10
        asked = [OffsetFetchRequestGroup("g", topics=topics)] * 10
        (group,) = parts.call(OffsetFetchRequest(groups=asked), 9).groups
        assert [[one.partition_index for one in topic.partitions] for topic in group.topics] == [[0, 1]]

    def test_different_topics_of_a_group_that_is_named_twice(self, parts: Parts) -> None:
        parts.create("t", 2)
        parts.call(FindCoordinatorRequest("g"), 3)
        commit(parts, "g", 2, "")
        asked = [
            OffsetFetchRequestGroup("g", topics=[OffsetFetchRequestTopics("t", partition_indexes=[index])])
            for index in (0, 1)
        ]
        (group,) = parts.call(OffsetFetchRequest(groups=asked), 9).groups
        assert [one.committed_offset for topic in group.topics for one in topic.partitions] == [7, 7]

    def test_topics_in_metadata(self, parts: Parts) -> None:
        parts.create("t", 20)
        answer = parts.call(MetadataRequest([MetadataRequestTopic(name="t")] * 1000))
        assert [topic.name for topic in answer.topics] == ["t"]

    def test_coordinators(self, parts: Parts) -> None:
        answer = parts.call(FindCoordinatorRequest(coordinator_keys=["g"] * 1000 + ["h"]), 6)
        assert [found.key for found in answer.coordinators] == ["g", "h"]

    def test_partitions_of_a_fetch(self, parts: Parts) -> None:
        parts.create("t")
        parts.append("t", b"value")
        wanted = [FetchPartition(0, fetch_offset=0, partition_max_bytes=1000)] * 1000
        answer = parts.call(FetchRequest(topics=[FetchTopic("t", partitions=wanted)]), 12)
        assert len(answer.responses[0].partitions) == 1

    def test_reassignments(self, parts: Parts) -> None:
        parts.create("t")
        parts.set_state("t", replicas=(1, 2), adding=(2,))
        asked = [ListPartitionReassignmentsTopics("t", [0] * 1000)] * 10
        answer = parts.call(ListPartitionReassignmentsRequest(topics=asked))
        assert len(answer.topics) <= 1

    def test_log_directories_are_reopened_once(self, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
        parts.create("t")
        reopened: list[str] = []
        reopen = parts.hosting.reopen

        def note(path: str) -> Any:
            reopened.append(path)
            return reopen(path)

        monkeypatch.setattr(parts.hosting, "reopen", note)
        directories = [AlterReplicaLogDir("/data", [AlterReplicaLogDirTopic("t", [0])])] * 100
        later(parts, AlterReplicaLogDirsRequest(directories), 2)
        assert reopened == ["/data"]

    def test_partitions_whose_offsets_are_asked_for_are_refused_as_in_kafka(self, parts: Parts) -> None:
        parts.create("t", 2)
        wanted = [ListOffsetsPartition(0, timestamp=MAX_TIMESTAMP)] * 300 + [ListOffsetsPartition(1, timestamp=-1)]
        answers = parts.call(ListOffsetsRequest(topics=[ListOffsetsTopic("t", wanted)]), 9).topics[0].partitions
        assert [(one.partition_index, one.error_code) for one in answers] == [(0, ErrorCode.INVALID_REQUEST), (1, 0)]


class TestAnswersAreBounded:
    @pytest.fixture
    def parts(self, tmp_path: Path) -> Any:
        made = Parts(tmp_path, response_max_bytes=LEAST_RESPONSE, offsets_topic_num_partitions=1)
        yield made
        made.close()

    def test_configs(self, parts: Parts) -> None:
        for number in range(30):
            parts.create(f"t{number}")
        resources = [DescribeConfigsResource(TOPIC, f"t{number}", None) for number in range(30)]
        answer = parts.call(DescribeConfigsRequest(resources, True, True))
        codes = [result.error_code for result in answer.results]
        fit = codes.count(0)
        assert 0 < fit < 30
        assert codes == [0] * fit + [ErrorCode.INVALID_REQUEST] * (30 - fit)
        assert "response.max.bytes" in answer.results[-1].error_message
        assert size_of(answer, 4) < 1.5 * LEAST_RESPONSE

    def test_topics_with_equal_settings_share_the_objects(self, parts: Parts) -> None:
        for name in ("a", "b"):
            parts.create(name)
        parts.create("c", retention_ms=5)
        results = parts.ask(DescribeConfigsRequest([DescribeConfigsResource(TOPIC, n, None) for n in "abc"]), 4).results
        assert results[0].configs is results[1].configs
        assert [c.value for c in results[2].configs if c.name == "retention.ms"] == ["5"]

    def test_groups(self, parts: Parts) -> None:
        parts.call(FindCoordinatorRequest("g"), 3)
        for number in range(4):
            member(parts, f"g{number}", bytes(30_000))
        answer = parts.call(DescribeGroupsRequest([f"g{number}" for number in range(4)]))
        assert [group.error_code for group in answer.groups] == [0, 0, *[ErrorCode.INVALID_REQUEST] * 2]
        assert "response.max.bytes" in answer.groups[-1].error_message

    def test_offsets(self, parts: Parts) -> None:
        parts.create("t", 10)
        parts.call(FindCoordinatorRequest("g"), 3)
        for group in "abc":
            commit(parts, group, 10, "x" * 4000)
        asked = [OffsetFetchRequestGroup(group, topics=None) for group in "abc"]
        answer = parts.call(OffsetFetchRequest(groups=asked), 9)
        assert [group.error_code for group in answer.groups] == [0, *[ErrorCode.INVALID_REQUEST] * 2]
        assert [len(group.topics) for group in answer.groups] == [1, 0, 0]

    def test_settings_of_created_topics_are_left_out_with_an_error(self, parts: Parts) -> None:
        request = CreateTopicsRequest([CreatableTopic(f"t{n}", 1, 1) for n in range(100)], validate_only=True)
        answer, turns = later(parts, request, 7)
        assert turns == 2  # after each 50
        left_out = [topic for topic in answer.topics if topic.configs is None]
        assert 0 < len(left_out) < 100
        assert {topic.topic_config_error_code for topic in left_out} == {ErrorCode.INVALID_REQUEST}
        assert {topic.error_code for topic in answer.topics} == {0}


class TestSlices:
    """Responses that take long are made in several turns, between which other clients are served."""

    def test_offsets_of_many_partitions(self, parts: Parts) -> None:
        parts.call(FindCoordinatorRequest("g"), 3)
        group = parts.groups._led.new("g")
        group.offsets.committed = {("t", index): Committed(index, -1, "x" * 100, NOW_MS) for index in range(10_000)}
        answer, turns = later(parts, OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)]), 9)
        assert [one.committed_offset for one in answer.groups[0].topics[0].partitions] == list(range(10_000))
        assert turns >= 10_000 * 124 // SLICE_BYTES

    def test_a_client_that_leaves_ends_the_work(self, parts: Parts) -> None:
        parts.call(FindCoordinatorRequest("g"), 3)
        offsets = parts.groups._led.new("g").offsets
        offsets.committed = {("t", index): Committed(1, -1, "", NOW_MS) for index in range(10_000)}
        answer = parts.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)]), 9)
        answer.addErrback(lambda _: None)
        answer.cancel()
        assert not [call for call in parts.time.getDelayedCalls() if call.getTime() <= parts.time.seconds()]

    def test_offsets_of_many_logs(self, parts: Parts) -> None:
        wanted = [ListOffsetsPartition(index, timestamp=-1) for index in range(5000)]
        answer, turns = later(parts, ListOffsetsRequest(topics=[ListOffsetsTopic("t", wanted)]), 9)
        assert len(answer.topics[0].partitions) == 5000
        assert turns > 5

    def test_changes_of_many_resources(self, parts: Parts) -> None:
        changes = [AlterConfigsResource(TOPIC, f"t{n}", [AlterableConfig("retention.ms", 0, "5")]) for n in range(1000)]
        answer, turns = later(parts, IncrementalAlterConfigsRequest(changes), 1)
        assert {one.error_code for one in answer.responses} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert turns == 1000 / 50


class TestListOffsets:
    def test_compressed_records_are_looked_into_in_a_thread(self, parts: Parts) -> None:
        parts.create("t")
        records = batch(*[b"v"] * 1000, now_ms=parts.now_ms(), compression=ZSTD)
        parts.replicas.append(parts.partitions.by_name["t", 0], records, False)
        parts.threads.hold = True
        wanted = [ListOffsetsPartition(0, timestamp=parts.now_ms())]
        answer = parts.ask(ListOffsetsRequest(topics=[ListOffsetsTopic("t", wanted)]), 9)
        assert len(parts.threads.held) == 1
        parts.threads.release()
        assert result_of(answer).topics[0].partitions[0].offset == 0

    def test_two_requests_at_a_time_search(self, parts: Parts) -> None:
        parts.create("t")
        records = batch(b"v", now_ms=parts.now_ms(), compression=ZSTD)
        parts.replicas.append(parts.partitions.by_name["t", 0], records, False)
        parts.threads.hold = True
        request = ListOffsetsRequest(topics=[ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=5)])])
        answers = [parts.ask(request, 9) for _ in range(5)]
        assert len(parts.threads.held) == 2
        parts.threads.release()
        assert [result_of(answer).topics[0].partitions[0].offset for answer in answers] == [0] * 5

    def test_a_batch_of_many_records_too(self, parts: Parts) -> None:
        parts.create("t")
        parts.append("t", *[b"v"] * 2000)
        parts.threads.hold = True
        wanted = [ListOffsetsPartition(0, timestamp=parts.now_ms())]
        answer = parts.ask(ListOffsetsRequest(topics=[ListOffsetsTopic("t", wanted)]), 9)
        assert len(parts.threads.held) == 1
        parts.threads.release()
        assert result_of(answer).topics[0].partitions[0].offset == 0

    def test_the_largest_time_stamp_behind_deleted_records(self, parts: Parts) -> None:
        parts.create("t")
        for number in range(5):
            stamp = NOW_MS + number
            parts.replicas.append(parts.partitions.by_name["t", 0], batch(b"a", b"b", now_ms=stamp), False)
        parts.partitions.by_name["t", 0].log.delete_records_before(3)
        parts.threads.hold = True
        wanted = [ListOffsetsPartition(0, timestamp=MAX_TIMESTAMP)]
        answer = parts.ask(ListOffsetsRequest(topics=[ListOffsetsTopic("t", wanted)]), 9)
        assert len(parts.threads.held) == 1  # the headers of all batches behind the log start have to be read
        parts.threads.release()
        found = result_of(answer).topics[0].partitions[0]
        assert (found.timestamp, found.offset) == (NOW_MS + 4, 8)


class TestGroupIds:
    LONG = "g" * (MAX_GROUP_ID + 1)

    def test_every_group_api_refuses_long_ones(self, parts: Parts) -> None:
        parts.create("t")
        parts.call(FindCoordinatorRequest("g"), 3)
        refused = ErrorCode.INVALID_GROUP_ID
        group = self.LONG
        assert parts.call(FindCoordinatorRequest(group), 3).error_code == refused
        assert parts.call(FindCoordinatorRequest(coordinator_keys=[group]), 6).coordinators[0].error_code == refused
        assert parts.call(JoinGroupRequest(group, 30_000, 30_000)).error_code == refused
        assert parts.call(SyncGroupRequest(group, 1, "m"), 4).error_code == refused
        assert parts.call(HeartbeatRequest(group, 1, "m")).error_code == refused
        assert parts.call(LeaveGroupRequest(group, members=[MemberIdentity("m")])).error_code == refused
        assert parts.call(DescribeGroupsRequest([group])).groups[0].error_code == refused
        assert parts.call(DeleteGroupsRequest([group])).results[0].error_code == refused
        answer = parts.call(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=None)]), 9)
        assert answer.groups[0].error_code == refused
        topics = [OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 7)])]
        answer = parts.call(OffsetCommitRequest(group, topics=topics), 9)
        assert answer.topics[0].partitions[0].error_code == refused

    def test_the_longest_allowed_one_works(self, parts: Parts) -> None:
        group = "ü" * MAX_GROUP_ID
        assert parts.call(FindCoordinatorRequest(group), 3).error_code == 0
        parts.create("t")
        commit(parts, group, 1, "")

    @pytest.mark.parametrize("group", ["", "g", "console-consumer-12345", "ü🎉" * 700, "x" * 5000])
    def test_the_partition_is_that_of_java(self, group: str) -> None:
        units = group.encode("utf-16-be")
        code = 0
        for at in range(0, len(units), 2):
            code = (code * 31 + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
        signed = code - (1 << 32) if code >= 1 << 31 else code
        assert partition_of(group, 50) == (0 if signed == -(1 << 31) else abs(signed) % 50)

    def test_metadata_that_could_not_be_stored(self, parts: Parts) -> None:
        parts.call(FindCoordinatorRequest("g"), 3)
        protocols = [JoinGroupRequestProtocol(f"p{n}", bytes(600_000)) for n in range(2)]
        request = JoinGroupRequest("g", 30_000, 30_000, protocol_type="consumer", protocols=protocols)
        assert parts.call(request).error_code == ErrorCode.INVALID_REQUEST

    def test_metadata_of_all_members_together(self, tmp_path: Path) -> None:
        parts = Parts(tmp_path, group_metadata_max_bytes=1 << 20)
        parts.call(FindCoordinatorRequest("g"), 3)
        for number in range(5):
            member(parts, f"g{number}", bytes(200_000))
        protocols = [JoinGroupRequestProtocol("range", bytes(200_000))]
        request = JoinGroupRequest("h", 30_000, 30_000, protocol_type="consumer", protocols=protocols)
        assert parts.call(request, 3).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        member(parts, "small", bytes(1000))
        parts.time.advance(301)  # the other tokens expire
        member(parts, "h", bytes(200_000))
        parts.groups.stop()
        parts.close()

    def test_the_last_generation_is_followed_by_the_first(self, parts: Parts) -> None:
        parts.call(FindCoordinatorRequest("g"), 3)
        index = partition_of("g", 50)
        stored = StoredGroup("consumer", (1 << 31) - 1, None, None, NOW_MS, ())
        parts.groups._groups["g"] = ClassicGroup.from_stored("g", index, stored, NOW_MS)
        member(parts, "g", b"")
        assert parts.groups._groups["g"].generation == 1
        parts.time.advance(301)  # the member expires, and that is stored too
        assert parts.groups._groups["g"].generation == 2


class TestInternalTopics:
    def write(self, parts: Parts, client_id: str) -> int:
        parts.call(FindCoordinatorRequest("g"), 3)
        topic = TopicProduceData(OFFSETS_TOPIC, partition_data=[PartitionProduceData(0, batch())])
        context = RequestContext(parts, parts.connection, 9, client_id)
        answer = HANDLERS[ProduceRequest.API_KEY](context, ProduceRequest(acks=1, topic_data=[topic]))
        return int(answer.responses[0].partition_responses[0].error_code)

    @pytest.mark.parametrize("client_id", ["__admin_client", "me"])
    def test_without_an_authorizer_nobody_may_write(self, parts: Parts, client_id: str) -> None:
        assert self.write(parts, client_id) == ErrorCode.INVALID_TOPIC_EXCEPTION

    @pytest.mark.parametrize("allowed", [True, False])
    def test_with_an_authorizer_cluster_action_may_write(self, parts: Parts, allowed: bool) -> None:
        asked: list[tuple[AclOperation, ResourceType, str]] = []

        class Fixed:
            version = 0

            def authorize_any(self, *_: object) -> bool:
                return allowed

            def authorize(self, _: Principal, __: str, op: AclOperation, kind: ResourceType, name: str) -> bool:
                asked.append((op, kind, name))
                return allowed or kind is not ResourceType.CLUSTER

        parts.call(FindCoordinatorRequest("g"), 3)
        parts.authorizer = Fixed()
        code = self.write(parts, "__admin_client")
        cluster_action = (AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        assert cluster_action in asked
        # An allowed client gets as far as the log, which refuses records without a key in a compacted topic.
        assert code == (ErrorCode.INVALID_RECORD if allowed else ErrorCode.INVALID_TOPIC_EXCEPTION)


class TestConnectionLimits:
    def alter(self, parts: Parts, name: str, value: str, broker: str = "") -> Any:
        change = AlterConfigsResource(BROKER, broker, [AlterableConfig(name, 0, value)])
        return parts.call(IncrementalAlterConfigsRequest([change])).responses[0]

    @pytest.mark.parametrize("name", ["max.connections", "max.connections.per.ip"])
    @pytest.mark.parametrize("broker", ["", "1"])
    def test_nobody_can_lock_everybody_out(self, parts: Parts, name: str, broker: str) -> None:
        before = parts.settings[name]
        for few in ("0", "1", "9"):
            answer = self.alter(parts, name, few, broker)
            assert answer.error_code == ErrorCode.INVALID_REQUEST
            assert name in answer.error_message
        assert parts.settings[name] == before
        assert self.alter(parts, name, "10", broker).error_code == 0
        assert parts.settings[name] == 10

    def test_a_second_listener_is_a_way_in(self) -> None:
        check_way_in({"max.connections": "1"}, listeners=2)
        with pytest.raises(ConfigError, match=r"at least 10"):
            check_way_in({"max.connections": "1"}, listeners=1)
        with pytest.raises(ConfigError, match=r"at least 10"):
            check_way_in({"max.connections.per.ip": "9"}, listeners=2)

    def test_a_stored_value_out_of_bounds_is_ignored(self, parts: Parts) -> None:
        """An earlier release may have stored it."""
        assert self.alter(parts, "max.connections", "20").error_code == 0
        store = parts.metadata.store
        path = "/config/brokers/<default>"
        data = result_of(store.get(path)).data
        result_of(store.set(path, data.replace(b'"20"', b'"0"')))
        result_of(Deferred.fromCoroutine(parts.metadata.broker_configs.reload(store)))
        assert parts.settings["max.connections"] == (1 << 31) - 1
