"""The group APIs as clients use them: the requests and responses of each version."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.group import ClassicGroup
from pylogd.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from pylogd.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pylogd.wire.messages.delete_groups import DeleteGroupsRequest
from pylogd.wire.messages.describe_groups import DescribeGroupsRequest
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.heartbeat import HeartbeatRequest
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pylogd.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from pylogd.wire.messages.list_groups import ListGroupsRequest
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pylogd.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pylogd.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from pylogd.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, batch

SUBSCRIPTION = bytes.fromhex("000100000001000174ffffffff")  # to "t"
MOST_DELAY = 10


@pytest.fixture(autouse=True)
def coordinator(parts: Parts) -> None:
    parts.create("t", 2)
    assert parts.call(FindCoordinatorRequest("g"), 3).error_code == 0


def join(parts: Parts, version: int = 9, **fields: Any) -> Any:
    """Join a group, with a second request where the version asks for a member id first; return the response."""
    wanted: dict[str, Any] = {
        "group_id": "g",
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol("range", SUBSCRIPTION)],
    }
    request = JoinGroupRequest(**{**wanted, **fields})
    answer = parts.ask(request, version)
    if not isinstance(answer, Deferred) and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        request.member_id = answer.member_id
        answer = parts.ask(request, version)
    if isinstance(answer, Deferred):
        parts.time.advance(MOST_DELAY)
        answer = result_of(answer)
    return answer


def stable(parts: Parts, version: int = 9) -> Any:
    """Create a Stable group "g" of one member; return the response to its join."""
    joined = join(parts, version)
    shares = [SyncGroupRequestAssignment(joined.member_id, b"share")]
    request = SyncGroupRequest("g", joined.generation_id, joined.member_id, assignments=shares)
    assert parts.call(request, 3).assignment == b"share"
    return joined


def commit(*places: tuple[str, int], offset: int = 7, metadata: str | None = "note") -> OffsetCommitRequest:
    return OffsetCommitRequest(
        "g",
        topics=[
            OffsetCommitRequestTopic(name, partitions=[OffsetCommitRequestPartition(index, offset, 3, metadata)])
            for name, index in places
        ],
    )


class TestMembership:
    @pytest.mark.parametrize("version", range(10))
    def test_join(self, parts: Parts, version: int) -> None:
        answer = join(parts, version)
        assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 1, "range")
        assert answer.leader == answer.member_id == answer.members[0].member_id
        assert answer.member_id.startswith("test-")
        assert answer.members[0].metadata == SUBSCRIPTION

    @pytest.mark.parametrize("version", [6, 7])
    def test_a_refused_join_can_be_sent(self, parts: Parts, version: int) -> None:
        answer = parts.call(JoinGroupRequest("", 30_000, 30_000, protocol_type="consumer"), version)
        assert (answer.error_code, answer.generation_id) == (ErrorCode.INVALID_GROUP_ID, -1)
        assert answer.protocol_name == ("" if version == 6 else None)

    def test_the_first_version_has_one_time_out(self, parts: Parts) -> None:
        join(parts, 0, rebalance_timeout_ms=-1)
        (group,) = parts.groups.groups()[1]
        assert isinstance(group, ClassicGroup)
        (member,) = group.members.values()
        assert (member.session, member.rebalance) == (30.0, 30.0)

    def test_a_static_member_gets_its_id_at_once(self, parts: Parts) -> None:
        answer = join(parts, group_instance_id="i")
        assert answer.member_id.startswith("i-")
        assert answer.members[0].group_instance_id == "i"

    def test_sync_heartbeat_and_leave(self, parts: Parts) -> None:
        joined = stable(parts)
        again = parts.call(SyncGroupRequest("g", 1, joined.member_id, None, "consumer", "range"), 5)
        assert (again.protocol_type, again.protocol_name, again.assignment) == ("consumer", "range", b"share")
        assert parts.call(HeartbeatRequest("g", 1, joined.member_id)).error_code == 0
        assert parts.call(HeartbeatRequest("g", 2, joined.member_id)).error_code == ErrorCode.ILLEGAL_GENERATION
        gone = parts.call(LeaveGroupRequest("g", members=[MemberIdentity(joined.member_id), MemberIdentity("x")]), 5)
        assert [member.error_code for member in gone.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
        assert parts.call(HeartbeatRequest("g", 1, joined.member_id)).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    def test_leaving_with_an_old_version(self, parts: Parts) -> None:
        joined = stable(parts)
        assert parts.call(LeaveGroupRequest("g", "x"), 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert parts.call(LeaveGroupRequest("g", joined.member_id), 0).error_code == 0

    def test_leaving_nothing(self, parts: Parts) -> None:
        assert parts.call(LeaveGroupRequest("", members=[]), 3).error_code == ErrorCode.INVALID_GROUP_ID

    def test_a_client_that_goes_while_it_waits_leaves_nothing(self, parts: Parts) -> None:
        protocols = [JoinGroupRequestProtocol("range", b"")]
        waiting = parts.ask(JoinGroupRequest("x", 30_000, 30_000, "", None, "consumer", protocols), 3)
        waiting.addErrback(lambda _: None)
        assert len(parts.groups.groups()[1]) == 1
        waiting.cancel()
        assert parts.groups.groups()[1] == []


def _heartbeat(topics: list[str]) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        "g", "m", 0, rebalance_timeout_ms=1000, subscribed_topic_names=topics,
        topic_partitions=[],
    )  # fmt: skip


class TestOffsets:
    def test_a_refused_member_leaves_no_group(self, parts: Parts) -> None:
        request = _heartbeat([])
        request.subscribed_topic_names, request.subscribed_topic_regex = None, "(a"
        assert parts.call(request, 1).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert parts.groups.groups()[1] == []

    @pytest.mark.parametrize(
        ("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
    )
    def test_a_generation_of_an_unknown_group(self, parts: Parts, version: int, code: ErrorCode) -> None:
        request = commit(("t", 0))
        request.group_id, request.member_id, request.generation_id_or_member_epoch = "unknown", "member", 3
        assert parts.call(request, version).topics[0].partitions[0].error_code == code
        assert "unknown" not in [group.group_id for group in parts.groups.groups()[1]]

    def test_members_of_the_newer_protocol_need_version_9(self, parts: Parts) -> None:
        epoch = parts.call(_heartbeat(["t"]), 1).member_epoch
        request = commit(("t", 0))
        request.member_id, request.generation_id_or_member_epoch = "m", epoch
        codes = [parts.call(request, version).topics[0].partitions[0].error_code for version in (8, 9)]
        assert codes == [ErrorCode.UNSUPPORTED_VERSION, 0]

    @pytest.mark.parametrize("version", range(2, 10))
    def test_commit_and_fetch(self, parts: Parts, version: int) -> None:
        answer = parts.call(commit(("t", 0), ("t", 5), ("nope", 0)), version)
        assert [topic.partitions[0].error_code for topic in answer.topics] == [
            0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]  # fmt: skip
        found = parts.call(OffsetFetchRequest("g", [OffsetFetchRequestTopic("t", [0, 1])]), min(version, 7))
        assert [(one.committed_offset, one.metadata, one.error_code) for one in found.topics[0].partitions] == [
            (7, "note", 0), (-1, "", 0),
        ]  # fmt: skip
        epoch = found.topics[0].partitions[0].committed_leader_epoch
        assert epoch == 3

    def test_by_topic_id(self, parts: Parts) -> None:
        topic_id = parts.topics.get("t").topic_id  # type: ignore[union-attr]
        request = commit(("", 0), ("", 0))
        request.topics[0].topic_id, request.topics[1].topic_id = topic_id, b"x" * 16
        answer = parts.call(request, 10)
        assert [one.partitions[0].error_code for one in answer.topics] == [0, ErrorCode.UNKNOWN_TOPIC_ID]
        asked = [OffsetFetchRequestTopics(topic_id=one, partition_indexes=[0]) for one in (topic_id, b"x" * 16)]
        named, everything = (
            parts.call(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=topics)]), 10).groups[0]
            for topics in (asked, None)
        )
        assert [one.partitions[0].committed_offset for one in named.topics] == [7, -1]
        assert [one.partitions[0].error_code for one in named.topics] == [0, ErrorCode.UNKNOWN_TOPIC_ID]
        assert [(one.topic_id, one.partitions[0].committed_offset) for one in everything.topics] == [(topic_id, 7)]

    def test_all_of_a_group(self, parts: Parts) -> None:
        parts.call(commit(("t", 1), ("t", 0)), 9)
        found = parts.call(OffsetFetchRequest("g", None), 5)
        assert [[one.partition_index for one in topic.partitions] for topic in found.topics] == [[0, 1]]

    def test_too_much_metadata(self, parts: Parts) -> None:
        answer = parts.call(commit(("t", 0), metadata="ü" * 2049), 9)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert parts.call(commit(("t", 0), metadata="ü" * 2048), 9).topics[0].partitions[0].error_code == 0
        assert parts.call(commit(("t", 0), metadata=None), 9).topics[0].partitions[0].error_code == 0

    def test_an_old_client_sets_the_retention_time(self, parts: Parts) -> None:
        request = commit(("t", 0))
        request.retention_time_ms = 1000
        parts.call(request, 2)
        assert parts.groups.fetch("g")["t", 0].expires_ms == parts.now_ms() + 1000  # type: ignore[index]
        request.retention_time_ms = (1 << 63) - 1
        assert parts.call(request, 2).topics[0].partitions[0].error_code == 0

    def test_a_refused_commit_is_answered_for_each_partition(self, parts: Parts) -> None:
        stable(parts)
        answer = parts.call(commit(("t", 0), ("t", 1)), 9)
        assert {topic.partitions[0].error_code for topic in answer.topics} == {ErrorCode.UNKNOWN_MEMBER_ID}

    @pytest.mark.parametrize("version", [1, 2, 8])
    def test_fetching_elsewhere(self, parts: Parts, version: int) -> None:
        parts.groups.stop()
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        request = OffsetFetchRequest("g", [OffsetFetchRequestTopic("t", [0])])
        if version == 8:
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)])
        answer = parts.call(request, version)
        if version == 1:
            assert answer.topics[0].partitions[0].error_code == code
        elif version == 2:
            assert answer.error_code == code
        else:
            assert answer.groups[0].error_code == code

    def test_deleting(self, parts: Parts) -> None:
        parts.call(commit(("t", 0)), 9)
        places = [OffsetDeleteRequestPartition(index) for index in (0, 1, 9)]
        request = OffsetDeleteRequest("g", [OffsetDeleteRequestTopic("t", places)])
        answer = parts.call(request)
        codes = [one.error_code for one in answer.topics[0].partitions]
        assert codes == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert parts.groups.fetch("g") == {}
        request.group_id = "none"
        assert parts.call(request).error_code == ErrorCode.GROUP_ID_NOT_FOUND


class TestAdministration:
    def test_describe(self, parts: Parts) -> None:
        joined = stable(parts)
        found, missing = parts.call(DescribeGroupsRequest(["g", "none"], True)).groups
        assert (found.group_state, found.protocol_type, found.protocol_data) == ("Stable", "consumer", "range")
        (member,) = found.members
        assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, "test", "/127.0.0.1")
        assert (member.member_metadata, member.member_assignment) == (SUBSCRIPTION, b"share")
        assert found.authorized_operations == 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
        assert (missing.group_state, missing.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
        (missing,) = parts.call(DescribeGroupsRequest(["none"]), 5).groups
        assert (missing.group_state, missing.error_code) == ("Dead", 0)

    def test_describe_in_between(self, parts: Parts) -> None:
        join(parts)
        (found,) = parts.call(DescribeGroupsRequest(["g"])).groups
        assert (found.group_state, found.protocol_data) == ("CompletingRebalance", "")
        assert found.members[0].member_metadata == b""

    def test_describe_elsewhere(self, parts: Parts) -> None:
        parts.groups.stop()
        (found,) = parts.call(DescribeGroupsRequest(["g"])).groups
        assert (found.error_code, found.group_state) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "")

    @pytest.mark.parametrize(
        ("states", "types", "listed"),
        [([], [], "gs"), (["stable"], [], "g"), (["Empty", "STABLE"], ["Classic"], "gs"), ([], ["consumer"], "")],
    )
    def test_list(self, parts: Parts, states: list[str], types: list[str], listed: str) -> None:
        stable(parts)
        request = commit(("t", 0))
        request.group_id = "s"
        parts.call(request, 9)
        answer = parts.call(ListGroupsRequest(states, types))
        assert sorted(group.group_id for group in answer.groups) == list(listed)
        assert {group.group_type for group in answer.groups} <= {"classic"}

    def test_delete(self, parts: Parts) -> None:
        stable(parts)
        request = commit(("t", 0))
        request.group_id = "s"
        parts.call(request, 9)
        results = parts.call(DeleteGroupsRequest(["s", "g", "none", "s"])).results
        assert [(one.group_id, one.error_code) for one in results] == [
            ("s", 0), ("g", ErrorCode.NON_EMPTY_GROUP), ("none", ErrorCode.GROUP_ID_NOT_FOUND),
        ]  # fmt: skip


class TestTheInternalTopic:
    def test_clients_do_not_create_it(self, parts: Parts) -> None:
        wanted = {
            "__consumer_offsets": ErrorCode.TOPIC_ALREADY_EXISTS,
            "__transaction_state": ErrorCode.INVALID_REQUEST,
            "__cluster_metadata": ErrorCode.INVALID_REQUEST,
        }
        for name, code in wanted.items():
            (result,) = parts.call(CreateTopicsRequest([CreatableTopic(name, 1, 1)])).topics
            assert result.error_code == code
        asked = MetadataRequest([MetadataRequestTopic(name="__transaction_state")])
        assert parts.call(asked).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_clients_do_not_write_to_it(self, parts: Parts) -> None:
        data = [TopicProduceData("__consumer_offsets", partition_data=[PartitionProduceData(0, batch())])]
        answer = parts.call(ProduceRequest(acks=1, topic_data=data), 9)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    def test_it_is_marked_in_the_metadata(self, parts: Parts) -> None:
        (found,) = parts.call(MetadataRequest([MetadataRequestTopic(name="__consumer_offsets")])).topics
        assert (found.is_internal, len(found.partitions)) == (True, 50)


class TestFindCoordinator:
    def test_a_leader_that_is_not_reachable(self, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parts.groups, "coordinator_of", lambda _: 7)
        answer = parts.call(FindCoordinatorRequest("g"), 3)
        assert (answer.error_code, answer.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
        assert answer.error_message
