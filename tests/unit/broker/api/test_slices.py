"""Large requests are answered in slices: as small ones are, with turns of the reactor for others in between."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.slices import SLICE_BYTES, Pace
from pylogd.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from pylogd.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from pylogd.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
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
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, batch, decoded
from tests.unit.broker.api.test_bounded_work import later


def test_what_a_long_loop_makes_is_searched_for_garbage_before_it_is_too_much() -> None:
    """Though it frees as much as it makes, so that the collector sees no reason."""
    clock = Clock()
    pace = Pace(cast(Any, SimpleNamespace(broker=SimpleNamespace(clock=clock))))
    made: list[list[int]] = []
    most = 0

    async def loop() -> None:
        nonlocal most
        for _ in range(10_000):
            await pace.step()
            made.extend([] for _ in range(10))
            most = max(most, len(gc.get_objects(generation=0)) if pace.steps % 1000 == 0 else 0)

    gc.collect()
    gc.disable()
    try:
        done = Deferred.fromCoroutine(loop())
        while not done.called:
            clock.advance(0)
    finally:
        gc.enable()
    assert len(made) == 100_000
    assert most < 40_000


def test_metadata_of_many_topics(parts: Parts) -> None:
    parts.create("t", 3)
    names = [f"other-{number}" for number in range(5_000)]
    wanted = [MetadataRequestTopic(name=name) for name in [*names, "t"]]
    answer, turns = later(parts, MetadataRequest(wanted, allow_auto_topic_creation=False), 12)
    assert turns > 1
    assert [topic.name for topic in answer.topics] == [*names, "t"]
    assert {topic.error_code for topic in answer.topics[:-1]} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(answer.topics[-1].partitions) == 3


def test_no_more_topics_are_created_than_a_request_may_create(tmp_path: Path) -> None:
    parts = Parts(tmp_path, max_partitions_per_request=4, num_partitions=2)
    answer = parts.call(MetadataRequest([MetadataRequestTopic(name=name) for name in "abc"]), 9)
    codes = {topic.name: topic.error_code for topic in answer.topics}
    assert codes == {"a": 0, "b": 0, "c": ErrorCode.POLICY_VIOLATION}
    parts.close()


@pytest.fixture
def large_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """To describe one takes a slice."""
    monkeypatch.setattr("pylogd.broker.api.metadata_pieces.PARTITION_WORK", SLICE_BYTES)


@pytest.mark.usefixtures("large_partitions")
def test_metadata_of_a_large_cluster_is_built_once_for_all_who_ask(parts: Parts) -> None:
    parts.create("t", 3)
    asked = [parts.ask(MetadataRequest(None), 12) for _ in range(2)]
    first, second = (result_of(one, lambda: parts.time.advance(0)) for one in asked)
    assert first is second
    assert len(decoded(first, MetadataRequest.API_KEY, 12).topics[0].partitions) == 3
    assert parts.ask(MetadataRequest(None), 12) is first


@pytest.mark.usefixtures("large_partitions")
def test_who_leaves_meanwhile_does_not_take_the_answer_from_others(parts: Parts) -> None:
    parts.create("t", 3)
    gone, stays = (parts.ask(MetadataRequest(None), 12) for _ in range(2))
    gone.addErrback(lambda _: None)
    gone.cancel()
    assert isinstance(result_of(stays, lambda: parts.time.advance(0)), bytes)


def test_coordinators_of_many_groups(parts: Parts) -> None:
    parts.call(FindCoordinatorRequest("g"), 3)  # creates the offsets topic
    keys = [f"group-{number}" for number in range(5_000)]
    answer, turns = later(parts, FindCoordinatorRequest(coordinator_keys=keys), 6)
    assert turns > 1
    assert [(one.key, one.error_code, one.node_id) for one in answer.coordinators] == [(key, 0, 1) for key in keys]


def test_offsets_of_many_partitions(parts: Parts) -> None:
    parts.create("t", 4)
    parts.call(FindCoordinatorRequest("g"), 3)
    partitions = [OffsetCommitRequestPartition(index, index) for index in range(5_000)]
    request = OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("t", partitions=partitions)])
    answer, turns = later(parts, request, 9)
    assert turns > 1
    codes = [one.error_code for one in answer.topics[0].partitions]
    assert codes == [0] * 4 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 4_996
    topics = [OffsetFetchRequestTopics("t", partition_indexes=list(range(4)))]
    found = parts.call(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=topics)]), 9).groups[0]
    assert [one.committed_offset for one in found.topics[0].partitions] == [0, 1, 2, 3]


def test_pages_of_many_topics(parts: Parts) -> None:
    parts.create("t", 2)
    names = sorted(f"other-{number}" for number in range(5_000))
    request = DescribeTopicPartitionsRequest([TopicRequest(name) for name in [*names, "t"]], 1)
    answer, turns = later(parts, request, 0)
    assert turns > 1
    assert [topic.name for topic in answer.topics] == [*names, "t"]
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("t", 1)


def test_batches_for_many_partitions(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pylogd.broker.api.produce._MANY", 20)
    monkeypatch.setattr("pylogd.broker.api.produce._AT_ONCE", 10)
    parts.create("t", 25)
    data = [PartitionProduceData(index, batch(b"v")) for index in range(25)]
    request = ProduceRequest(None, -1, 1000, [TopicProduceData("t", partition_data=data)])
    answer, turns = later(parts, request, 9)
    assert turns > 1
    answers = answer.responses[0].partition_responses
    assert [(one.index, one.error_code, one.base_offset) for one in answers] == [(n, 0, 0) for n in range(25)]
    assert {parts.partitions.by_name["t", index].log.log_end_offset for index in range(25)} == {1}


def test_leaders_of_many_partitions(parts: Parts) -> None:
    parts.create("t", 3)
    wanted = [TopicPartitions("t", [0, 1, 2]), TopicPartitions("absent", list(range(2_000)))]
    answer, turns = later(parts, ElectLeadersRequest(0, wanted, 60_000), 2)
    assert turns > 10
    codes = {
        topic.topic: {one.error_code for one in topic.partition_result} for topic in answer.replica_election_results
    }
    assert codes == {"t": {ErrorCode.ELECTION_NOT_NEEDED}, "absent": {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}}


def test_replicas_of_many_partitions(parts: Parts) -> None:
    parts.create("t", 3)
    targets = [ReassignablePartition(number, [1]) for number in range(2_000)]
    request = AlterPartitionReassignmentsRequest(60_000, topics=[ReassignableTopic("t", targets)])
    answer, turns = later(parts, request, 1)
    assert turns > 10
    codes = [one.error_code for one in answer.responses[0].partitions]
    assert codes == [0] * 3 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1_997


def test_a_topic_that_changes_between_two_turns_is_looked_at_again(parts: Parts) -> None:
    """A move that was worked out from a topic as it no longer is is not written."""
    parts.create("t", 3)
    targets = [ReassignablePartition(number, [1]) for number in range(500)]
    asked = parts.ask(AlterPartitionReassignmentsRequest(60_000, topics=[ReassignableTopic("t", targets)]), 1)
    parts.time.advance(0)
    result_of(parts.topic_admin.add_partitions("t", 5))
    while not asked.called:
        parts.time.advance(0)
    codes = [one.error_code for one in result_of(asked).responses[0].partitions]
    topic = parts.topics.get("t")
    assert codes[:3] == [0] * 3 and topic is not None and len(topic.partitions) == 5


def test_offsets_of_many_partitions_are_deleted(parts: Parts) -> None:
    parts.create("t", 3)
    parts.call(FindCoordinatorRequest("g"), 3)
    offsets = [OffsetCommitRequestPartition(number, 7) for number in range(3)]
    parts.call(OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("t", partitions=offsets)]), 7)
    wanted = [OffsetDeleteRequestPartition(number) for number in range(2_000)]
    answer, turns = later(parts, OffsetDeleteRequest("g", [OffsetDeleteRequestTopic("t", wanted)]), 0)
    assert turns > 10
    codes = [one.error_code for one in answer.topics[0].partitions]
    assert codes == [0] * 3 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1_997
    asked = [OffsetFetchRequestTopics("t", partition_indexes=[0, 1, 2])]
    left = parts.call(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=asked)]), 8)
    assert [one.committed_offset for one in left.groups[0].topics[0].partitions] == [-1] * 3


def test_many_members_leave(parts: Parts) -> None:
    parts.call(FindCoordinatorRequest("g"), 3)
    offsets = [OffsetCommitRequestPartition(0, 7)]
    parts.create("t")
    parts.call(OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("t", partitions=offsets)]), 7)
    members = [MemberIdentity(f"m-{number}", None) for number in range(2_500)]
    answer, turns = later(parts, LeaveGroupRequest("g", members=members), 4)
    assert turns >= 3
    assert [member.member_id for member in answer.members] == [member.member_id for member in members]
    assert {member.error_code for member in answer.members} == {ErrorCode.UNKNOWN_MEMBER_ID}
