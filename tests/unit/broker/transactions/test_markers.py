"""Markers on a clock of the test's: batches, retries, leaders that move, topics that are deleted."""

from __future__ import annotations

import struct
from typing import cast

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock

from pylogd.base.errors import ErrorCode
from pylogd.broker.metadata.image import NO_LEADER
from pylogd.broker.transactions.markers import Marker, MarkerSender
from pylogd.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.fakes.transactions import Leaders


class Sending:
    """A sender. leader: of each partition; None for deleted ones. done: the names of transactions that have ended.

    slow: what the leaders are asked by the connections for slow partitions.
    """

    def __init__(self) -> None:
        self.time = Clock()
        self.leaders = Leaders()
        self.leader: dict[tuple[str, int], int | None] = {}
        self.done: list[str] = []
        self.slow = Leaders()
        self.sender = MarkerSender(
            self.leaders.ask, lambda topic, index: self.leader.get((topic, index), 1), cast(IReactorTime, self.time),
            self.slow.ask,
        )  # fmt: skip

    def send(self, *indexes: int, name: str = "x", producer_id: int = 7, owner: object = None) -> Marker:
        partitions = {("t", index) for index in indexes}
        marker = Marker(
            owner, name, producer_id, 3, partitions, lambda: self.done.append(name), commit=True, coordinator_epoch=5,
            version=2,
        )  # fmt: skip
        self.sender.send(marker)
        return marker


@pytest.fixture
def sending() -> Sending:
    return Sending()


def test_a_marker_goes_to_the_leader_of_each_partition(sending: Sending) -> None:
    sending.leader["t", 1] = 2
    sending.send(0, 1, 2)
    assert [(node, [topic.partition_indexes for topic in request.markers[0].topics])
            for node, request in sending.leaders.requests] == [(1, [[0, 2]]), (2, [[1]])]  # fmt: skip
    marker = sending.leaders.requests[0][1].markers[0]
    assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (7, 3, True)
    assert (marker.coordinator_epoch, marker.transaction_version) == (5, 2)
    assert sending.done == ["x"]
    assert not sending.sender.waiting


def test_without_partitions_a_marker_is_done_at_once(sending: Sending) -> None:
    sending.send()
    assert sending.done == ["x"]
    assert sending.leaders.requests == []


def test_markers_that_come_meanwhile_go_together(sending: Sending) -> None:
    sending.leaders.hold = True
    for number in range(4):
        sending.send(number, name=str(number), producer_id=number)
    assert len(sending.leaders.requests) == 1
    sending.leaders.release()
    assert [len(request.markers) for _, request in sending.leaders.requests] == [1, 3]
    assert sending.done == ["0", "1", "2", "3"]


def test_a_large_marker_goes_in_pieces(sending: Sending) -> None:
    sending.send(*range(4500))
    sizes = [sum(len(topic.partition_indexes) for topic in request.markers[0].topics)
             for _, request in sending.leaders.requests]  # fmt: skip
    assert sizes == [2000, 2000, 500]
    assert sending.done == ["x"]


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)  # fmt: skip
def test_what_failed_is_sent_again_to_the_leader_of_then(sending: Sending, error: ErrorCode) -> None:
    sending.leaders.errors["t", 1] = error
    sending.send(0, 1)
    assert sending.done == []
    assert [marker[0] for marker in sending.leaders.markers] == [("t", 0)]
    sending.time.pump([0.1, 0.2, 0.4])
    sending.leaders.errors.clear()
    sending.leader["t", 1] = 2
    sending.time.pump([1.0])
    assert sending.leaders.requests[-1][0] == 2
    assert [marker[0] for marker in sending.leaders.markers] == [("t", 0), ("t", 1)]
    assert sending.done == ["x"]


def test_pauses_grow_up_to_a_second(sending: Sending) -> None:
    sending.leaders.errors["t", 0] = ErrorCode.NOT_ENOUGH_REPLICAS
    sending.send(0)
    sending.time.pump([0.1] * 600)
    assert 55 <= len(sending.leaders.requests) <= 66


def test_a_broker_that_can_not_be_reached_does_not_hold_up_others(sending: Sending) -> None:
    sending.leader["t", 1] = 2
    sending.leaders.down.add(2)
    sending.send(0, 1)
    sending.send(0, name="y", producer_id=8)
    assert sending.done == ["y"]
    sending.leaders.down.clear()
    sending.time.pump([1.0])
    assert sending.done == ["y", "x"]


def test_a_partition_that_is_late_does_not_hold_up_others(sending: Sending) -> None:
    sending.leaders.errors["t", 0] = ErrorCode.REQUEST_TIMED_OUT
    sending.slow.hold = True
    sending.send(0, 1)
    sending.time.pump([1.0])
    assert [marker[0] for marker in sending.leaders.markers] == [("t", 1)]
    assert [request.markers[0].topics[0].partition_indexes for _, request in sending.slow.requests] == [[0]]
    sending.send(0, 1, name="y", producer_id=8)  # the former is known to be late, and still asked
    sending.send(1, name="z", producer_id=9)
    sending.time.pump([1.0] * 5)
    assert sending.done == ["z"]
    assert len(sending.slow.requests) == 1
    sending.leaders.errors.clear()
    sending.slow.release()
    assert sending.done == ["z", "x", "y"]
    asked = len(sending.slow.requests)
    sending.send(0, name="later", producer_id=7)
    assert sending.done[-1] == "later"
    assert len(sending.slow.requests) == asked


def test_a_partition_without_a_leader_is_waited_for(sending: Sending) -> None:
    sending.leader["t", 0] = NO_LEADER
    sending.send(0)
    sending.time.pump([1.0] * 5)
    assert sending.leaders.requests == []
    sending.leader["t", 0] = 3
    sending.time.pump([1.0])
    assert [node for node, _ in sending.leaders.requests] == [3]
    assert sending.done == ["x"]


def test_a_deleted_topic_needs_no_marker(sending: Sending) -> None:
    sending.leaders.errors["t", 0] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    sending.send(0)
    sending.leader["t", 0] = None
    sending.time.pump([1.0])
    assert sending.done == ["x"]
    assert sending.leaders.markers == []


@pytest.mark.parametrize("error", [ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_partition_that_can_not_have_the_marker_is_left_out(sending: Sending, error: ErrorCode) -> None:
    sending.leaders.errors["t", 0] = error
    sending.send(0, 1)
    assert sending.done == ["x"]


def test_a_coordinator_that_is_refused_as_an_earlier_one_tries_until_it_hears_of_the_newer_one(
    sending: Sending,
) -> None:
    owner = object()
    sending.leaders.errors["t", 0] = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    sending.send(0, 1, owner=owner)
    sending.time.pump([1.0] * 3)
    assert sending.done == []
    assert {index for (_, index), *_ in sending.leaders.markers} == {1}
    sending.sender.cancel(owner)
    count = len(sending.leaders.requests)
    sending.time.pump([1.0] * 3)
    assert len(sending.leaders.requests) == count
    assert not sending.sender.waiting


@pytest.mark.parametrize("late", [False, True])
def test_an_unexpected_error_of_a_request_is_not_the_end_of_its_markers(sending: Sending, late: bool) -> None:
    """It leaves neither the markers nor what waits for the same broker behind."""
    ask, errors = sending.leaders.ask, [struct.error("too large"), ValueError("999 is not an error code")]

    def failing(node_id: int, request: WriteTxnMarkersRequest) -> Deferred[WriteTxnMarkersResponse]:
        if not errors:
            return ask(node_id, request)
        error = errors.pop()
        if not late:
            raise error
        answer = WriteTxnMarkersResponse([WritableTxnMarkerResult(7, [WritableTxnMarkerTopicResult("t", [
            WritableTxnMarkerPartitionResult(0, ErrorCode.NONE), WritableTxnMarkerPartitionResult(1, 999),
        ])])])  # fmt: skip
        return succeed(answer)

    sending.sender._ask = failing
    sending.send(0, 1)
    sending.send(1, name="y", producer_id=8)
    sending.time.pump([1.0] * 3)
    assert sorted(sending.done) == ["x", "y"]
    assert not sending.sender.waiting


def test_markers_of_an_owner_can_be_given_up(sending: Sending) -> None:
    ours, others = object(), object()
    sending.leaders.hold = True
    sending.send(0, owner=ours)
    sending.send(1, name="y", producer_id=8, owner=others)
    sending.sender.cancel(ours)
    sending.leaders.release()
    assert sending.done == ["y"]


def test_a_sender_that_stops_leaves_nothing_behind(sending: Sending) -> None:
    sending.leaders.errors["t", 0] = ErrorCode.NOT_ENOUGH_REPLICAS
    sending.send(0)
    sending.sender.stop()
    assert not sending.time.getDelayedCalls()
    assert not sending.sender.waiting


def test_a_leader_that_leaves_out_a_partition_is_asked_again(sending: Sending) -> None:
    answered = sending.leaders.ask

    def forgetful(node: int, request: object) -> object:
        done = answered(node, request)  # type: ignore[arg-type]
        return done.addCallback(lambda response: type(response)())

    sending.sender._ask = forgetful  # type: ignore[assignment]
    sending.send(0)
    assert sending.done == []
    sending.sender._ask = answered
    sending.time.pump([1.0])
    assert sending.done == ["x"]
