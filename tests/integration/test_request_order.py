"""Requests that are pipelined on one connection take effect in order.

With `log.flush.visible` an append is committed after a flush, so that offset commits and acks=all have to wait.
"""

from __future__ import annotations

import struct
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from pylogd.base.errors import ErrorCode
from pylogd.local.broker import BrokerProcess
from pylogd.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pylogd.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
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
from pylogd.wire.records import encode_batch
from tests.integration.conftest import StartBroker
from tests.rawclient import RawClient, create_topic, encode, frame, wait_until

SECONDS = 120.0
TIMES = 50
_COMMIT_VERSION, _OFFSET_FETCH_VERSION, _PRODUCE_VERSION = 8, 8, 9
_BATCH = encode_batch([(None, b"v", 1_700_000_000_000, ())])


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    return start_broker(settings={"log.flush.visible": "true", "offsets.topic.num.partitions": "1"})


def coordinated(client: RawClient, group: str) -> None:
    """Wait until the broker has become the group's coordinator."""
    request = FindCoordinatorRequest(group)
    wait_until(lambda: not client.request(request, 2).error_code, "a coordinator")
    topic = OffsetFetchRequestGroup(group, topics=None)
    wait_until(
        lambda: not client.request(OffsetFetchRequest(groups=[topic]), _OFFSET_FETCH_VERSION).groups[0].error_code,
        "the coordinator",
    )


def commit(topic: str, group: str, offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(0, committed_offset=offset, committed_metadata="")
    return OffsetCommitRequest(group, -1, "", topics=[OffsetCommitRequestTopic(topic, partitions=[partition])])


def produce(topic: str) -> ProduceRequest:
    return ProduceRequest(None, -1, 60_000, [TopicProduceData(topic, partition_data=[PartitionProduceData(0, _BATCH)])])


def answers(client: RawClient, *requests: tuple[Any, int]) -> list[Any]:
    """Send all requests at once, and return their responses."""
    sent = [(message.API_KEY, version, client.send_request(message, version)) for message, version in requests]
    return [client.response(*one) for one in sent]


def test_an_offset_fetch_finds_the_commit_before_it(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, "t")
        coordinated(client, "g")
        wanted = OffsetFetchRequestGroup("g", topics=[OffsetFetchRequestTopics("t", partition_indexes=[0])])
        found = []
        for offset in range(TIMES):
            committed, fetched = answers(
                client,
                (commit("t", "g", offset), _COMMIT_VERSION),
                (OffsetFetchRequest(groups=[wanted]), _OFFSET_FETCH_VERSION),
            )
            assert committed.topics[0].partitions[0].error_code == 0
            found.append(fetched.groups[0].topics[0].partitions[0].committed_offset)
        assert found == list(range(TIMES))


def test_confluent_kafka_reads_the_offset_it_has_just_committed(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, "t")
        coordinated(client, "g")
    with closing(Consumer({"bootstrap.servers": broker.address, "group.id": "g"})) as consumer:
        consumer.commit(offsets=[TopicPartition("t", 0, 99)], asynchronous=False)  # so that it knows the coordinator
        found = []
        for offset in range(TIMES):
            consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=True)
            found.append(consumer.committed([TopicPartition("t", 0)], timeout=SECONDS)[0].offset)
    assert found == list(range(TIMES))


def test_an_end_offset_counts_the_appends_before_it(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, "t")
        end = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=-1)])])
        for number in range(TIMES):
            appended, ended = answers(client, (produce("t"), _PRODUCE_VERSION), (end, 6))
            assert appended.responses[0].partition_responses[0].base_offset == number
            assert ended.topics[0].partitions[0].offset == number + 1


def test_a_topic_can_be_created_deleted_and_created_again(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        make = CreateTopicsRequest([CreatableTopic("t", 1, 1)], 60_000)
        delete = DeleteTopicsRequest([DeleteTopicState("t")], timeout_ms=60_000)
        made, deleted, asked, again = answers(
            client, (make, 7), (delete, 6), (MetadataRequest([MetadataRequestTopic(name="t")], False), 9), (make, 7)
        )
        assert made.topics[0].error_code == 0
        assert deleted.responses[0].error_code == 0
        assert asked.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert again.topics[0].error_code == 0


def test_a_request_after_a_waiting_fetch_is_answered_after_it(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client, RawClient(broker.address) as other:
        create_topic(client, "t")
        fetch = FetchRequest(
            max_wait_ms=120_000, min_bytes=1, topics=[FetchTopic("t", partitions=[FetchPartition(0, fetch_offset=0)])]
        )
        wait = fetch.API_KEY, 12, client.send_request(fetch, 12)
        end = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=-1)])])
        asked = end.API_KEY, 6, client.send_request(end, 6)
        other.request(produce("t"), _PRODUCE_VERSION)
        assert client.response(*wait).responses[0].partitions[0].high_watermark == 1
        assert client.response(*asked).topics[0].partitions[0].offset == 1


def test_appends_are_answered_before_an_unknown_api_closes_the_connection(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, "t")
        frames = [frame(encode(produce("t"), _PRODUCE_VERSION, number)) for number in range(10)]
        client.send(b"".join(frames) + frame(struct.pack(">hhih", 4711, 0, 99, -1)))
        for number in range(10):
            answer = client.response(ProduceRequest.API_KEY, _PRODUCE_VERSION, number)
            assert answer.responses[0].partition_responses[0].error_code == 0
        assert client.is_closed_by_broker()
    assert "API 4711" in broker.log()
