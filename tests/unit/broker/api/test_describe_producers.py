"""DescribeProducers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.slices import SLICE_STEPS
from pylogd.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from tests.fakes.metadata import result_of
from tests.fakes.parts import NOW_MS, Parts, batch

LEAST_RESPONSE = 65536  # the lowest value of `response.max.bytes`


@pytest.fixture
def t(parts: Parts) -> Parts:
    """Return a broker with a topic "t" of two partitions; producers 7 and 8 have written to the first."""
    parts.create("t", partitions=2)
    for producer_id, sequence, epoch in ((7, 0, 0), (8, 0, 3), (7, 1, 0)):
        write(parts, producer_id, sequence, epoch)
    return parts


def write(parts: Parts, producer_id: int, sequence: int, epoch: int) -> None:
    data = batch(now_ms=NOW_MS + sequence, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    parts.replicas.append(parts.partitions.by_name["t", 0], data, False)


def answers(parts: Parts, *indexes: int, topic: str = "t") -> list[Any]:
    [answer] = parts.call(DescribeProducersRequest([TopicRequest(topic, list(indexes))])).topics
    assert answer.name == topic
    return list(answer.partitions)


def test_what_producers_wrote_last(t: Parts) -> None:
    first, second = answers(t, 0, 1)
    found = [
        (one.producer_id, one.producer_epoch, one.last_sequence, one.last_timestamp, one.current_txn_start_offset)
        for one in first.active_producers
    ]
    assert found == [(7, 0, 1, NOW_MS + 1, -1), (8, 3, 0, NOW_MS, -1)]
    assert (first.error_code, first.error_message) == (0, None)
    assert (second.partition_index, second.active_producers) == (1, [])


def test_records_without_a_producer_id(t: Parts) -> None:
    t.append("t", b"v", partition=1)
    [answer] = answers(t, 1)
    assert answer.active_producers == []


def test_errors(t: Parts) -> None:
    known, unknown = answers(t, 0, 2)
    assert (known.error_code, unknown.error_code) == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    [unknown] = answers(t, 0, topic="nope")
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_that_is_named_twice_is_answered_once(t: Parts) -> None:
    assert [one.partition_index for one in answers(t, 0, 1, 0, 0)] == [0, 1]


def test_what_does_not_fit_into_the_answer_is_refused(tmp_path: Path) -> None:
    made = Parts(tmp_path, response_max_bytes=LEAST_RESPONSE)
    made.create("t", partitions=2)
    for producer_id in range(LEAST_RESPONSE // 39 + 1):
        write(made, producer_id, 0, 0)
    first, second = answers(made, 0, 1)
    assert first.error_code == ErrorCode.INVALID_REQUEST and "response.max.bytes" in first.error_message
    assert (second.error_code, second.active_producers) == (0, []), "there is room for this one"
    made.close()


def test_many_producers_are_described_in_slices(t: Parts) -> None:
    for producer_id in range(100, 100 + 2 * SLICE_STEPS):
        write(t, producer_id, 0, 0)
    waiting = t.ask(DescribeProducersRequest([TopicRequest("t", [0])]), 0)
    assert isinstance(waiting, Deferred)
    t.partitions.by_name["t", 0].log.producers.clear()  # they expire meanwhile
    t.time.advance(1)
    assert result_of(waiting)
