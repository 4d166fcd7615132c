"""Incremental fetch sessions of a consumer (KIP-227): what requests contain, and what ends a session."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.client import TopicPartition
from pylogd.client.core.call import Call
from pylogd.client.core.consumer.fetch_session import LEAST_PARTITIONS, FetchSession, PartitionKey, PartitionRequest
from pylogd.client.core.consumer.fetcher import Fetcher, FetchSettings
from pylogd.client.core.errors import BrokerUnavailable
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.model import Broker, Partition, Topic
from pylogd.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from pylogd.wire.records import encode_batch

TOPIC_ID = bytes(range(16))
COUNT = LEAST_PARTITIONS + 1
PARTITIONS = [TopicPartition("t", index) for index in range(COUNT)]
VERSION = 17


class Reading:
    """A fetcher that reads partitions of one broker."""

    def __init__(self, partitions: Iterable[TopicPartition] = PARTITIONS) -> None:
        self.fetcher = Fetcher(FetchSettings(), 30.0)
        self.metadata = Metadata([("h", 1)])
        self.metadata.brokers = {1: Broker(1, "h", 1)}
        led = tuple(Partition(index, 1, 0, (1,), (1,), ()) for index in range(COUNT))
        self.metadata.topics = {"t": Topic("t", TOPIC_ID, False, led)}
        for partition in partitions:
            self.fetcher.move(partition, 0)

    def ask(self, version: int = VERSION, now: float = 0.0) -> tuple[Call, FetchRequest]:
        [call] = self.fetcher.calls(now, self.metadata)
        return call, call.build(version)

    def answer(self, call: Call, session_id: int, *parts: PartitionData, code: ErrorCode = ErrorCode.NONE) -> None:
        topics = [FetchableTopicResponse("", TOPIC_ID, list(parts))] if parts else []
        call.answered(FetchResponse(error_code=code, session_id=session_id, responses=topics), 0.0)
        while (fetched := self.fetcher.take()) is not None:
            self.fetcher.used(fetched)

    def open(self, session_id: int = 77) -> None:
        call, request = self.ask()
        assert (request.session_id, request.session_epoch) == (0, 0)
        assert named(request) == set(range(COUNT))
        self.answer(call, session_id)


def named(request: FetchRequest) -> set[int]:
    return {partition.partition for topic in request.topics for partition in topic.partitions}


def forgotten(request: FetchRequest) -> set[int]:
    return {index for topic in request.forgotten_topics_data for index in topic.partitions}


def data(index: int) -> PartitionData:
    return PartitionData(index, records=encode_batch([(None, b"x", 0, ())] * 3))


def test_after_the_first_request_only_changes_are_named() -> None:
    reading = Reading()
    reading.open()
    call, request = reading.ask()
    assert (request.session_id, request.session_epoch, named(request)) == (77, 1, set())
    reading.answer(call, 77, data(2))
    call, request = reading.ask()
    assert (request.session_epoch, named(request), forgotten(request)) == (2, {2}, set())
    assert request.topics[0].partitions[0].fetch_offset == 3 and request.topics[0].topic_id == TOPIC_ID
    reading.answer(call, 77)
    reading.fetcher.pause(PARTITIONS[1], True)
    reading.fetcher.move(PARTITIONS[3], 9)
    call, request = reading.ask()
    assert (request.session_epoch, named(request), forgotten(request)) == (3, {3}, {1})
    reading.answer(call, 77)
    reading.fetcher.pause(PARTITIONS[1], False)
    assert named(reading.ask()[1]) == {1}


def test_a_partition_that_failed_is_forgotten_until_it_is_asked_for_again() -> None:
    reading = Reading()
    reading.open()
    call, _ = reading.ask()
    reading.answer(call, 77, PartitionData(2, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    failed = reading.fetcher.failed_partition()
    assert failed is not None and failed.partition == PARTITIONS[2]
    reading.metadata.topics = Reading().metadata.topics
    failed.error = None
    call, request = reading.ask()
    assert (named(request), forgotten(request)) == (set(), {2})
    reading.answer(call, 77)
    assert named(reading.ask(now=5.0)[1]) == {2}


def test_a_broker_without_room_for_a_session_is_told_everything() -> None:
    reading = Reading()
    reading.open(session_id=0)
    call, request = reading.ask()
    assert (request.session_id, request.session_epoch, len(named(request))) == (0, 0, COUNT)
    reading.answer(call, 5)
    assert reading.ask()[1].session_epoch == 1


@pytest.mark.parametrize(
    ("code", "closes"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 77),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 77),
    ],
)
def test_a_session_that_the_broker_does_not_know_is_opened_again_at_once(code: ErrorCode, closes: int) -> None:
    reading = Reading()
    reading.open()
    call, _ = reading.ask()
    reading.answer(call, 0, code=code)
    assert reading.fetcher.failed_partition() is None
    call, request = reading.ask()
    assert (request.session_id, request.session_epoch, len(named(request))) == (closes, 0, COUNT)
    # in a response to a first request this error makes no sense, so it counts as any other failure
    reading.answer(call, 0, code=code)
    assert reading.fetcher.failed_partition() is not None
    assert not reading.fetcher.due(0.0)


def test_after_a_lost_answer_everything_is_named_and_the_old_session_closed() -> None:
    reading = Reading()
    reading.open()
    call, _ = reading.ask()
    call.failed(BrokerUnavailable("gone"), 0.0)
    for fetch in reading.fetcher.partitions.values():
        fetch.error = None
    reading.metadata.topics = Reading().metadata.topics
    call, request = reading.ask(now=5.0)
    assert (request.session_id, request.session_epoch, len(named(request))) == (77, 0, COUNT)


def test_few_partitions_are_fetched_without_a_session() -> None:
    reading = Reading(PARTITIONS[:1])
    call, request = reading.ask()
    assert (request.session_id, request.session_epoch, named(request)) == (0, -1, {0})
    reading.answer(call, 0)
    assert reading.ask()[1].session_epoch == -1


def test_when_few_are_left_the_session_is_closed() -> None:
    reading = Reading()
    reading.open()
    for partition in PARTITIONS[1:]:
        reading.fetcher.drop(partition)
    call, request = reading.ask()
    assert (request.session_id, request.session_epoch, named(request)) == (77, -1, {0})
    reading.answer(call, 0)
    assert reading.ask()[1].session_id == 0


def test_a_version_without_sessions_and_one_with_names() -> None:
    reading = Reading()
    call, request = reading.ask(version=6)
    assert (request.session_epoch, len(named(request))) == (-1, COUNT)
    reading.answer(call, 0)
    call, request = reading.ask(version=12)
    assert (request.session_epoch, request.topics[0].topic) == (0, "t")
    reading.answer(call, 8)
    assert reading.ask(version=13)[1].session_epoch == 0, "names and ids are not mixed in one session"


def test_epochs_begin_again_at_one() -> None:
    session = FetchSession()
    wanted: dict[PartitionKey, PartitionRequest] = {(TOPIC_ID, n): PartitionRequest(0, 0, 1) for n in range(COUNT)}
    session.request(wanted, VERSION, True)
    session.succeeded(4)
    session._epoch = 0x7FFFFFFF
    assert session.request(wanted, VERSION, True).epoch == 0x7FFFFFFF
    session.succeeded(4)
    assert session.request(wanted, VERSION, True).epoch == 1


def test_closing_ends_the_session_of_each_connected_broker() -> None:
    reading = Reading()
    reading.open()
    [call] = reading.fetcher.close(lambda node, purpose: node == 1 and purpose.startswith("fetch"))
    request = call.build(VERSION)
    assert (request.session_id, request.session_epoch, request.topics) == (77, -1, [])
    assert call.target == 1 and reading.fetcher.closing == 1
    assert reading.fetcher.calls(0.0, reading.metadata) == [], "nothing more is fetched"
    call.failed(BrokerUnavailable("gone"), 0.0)
    assert reading.fetcher.closing == 0


@pytest.mark.parametrize("connected", [True, False])
def test_closing_sends_nothing_without_a_session_or_a_connection(connected: bool) -> None:
    reading = Reading()
    if not connected:
        reading.open()
    assert reading.fetcher.close(lambda node, purpose: connected) == []
    assert reading.fetcher.closing == 0
