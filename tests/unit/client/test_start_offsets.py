"""Start positions: a response counts only for the assignment for which it was requested."""

from __future__ import annotations

from collections.abc import Callable

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.client.core.consumer.options import ConsumerOptions
from pylogd.client.core.consumer.start_offsets import Committed, StartOffsets
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.model import Broker, OffsetAndMetadata, Partition, Topic, TopicPartition
from pylogd.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from pylogd.wire.values import ZERO_UUID

T0 = TopicPartition("t", 0)
Done = Callable[[Committed | None, PylogdError | None], None]


class Starts:
    """A `StartOffsets` whose group responds when the test says so."""

    def __init__(self, *, group: bool = True) -> None:
        self.asked: list[tuple[list[TopicPartition], Done]] = []
        self.found: list[tuple[dict[TopicPartition, OffsetAndMetadata], dict[TopicPartition, int]]] = []
        metadata = Metadata([("h", 1)])
        metadata.brokers = {1: Broker(1, "h", 1)}
        metadata.topics = {"t": Topic("t", ZERO_UUID, False, (Partition(0, 1, 0, (1,), (1,), ()),))}
        self.starts = StartOffsets(
            ConsumerOptions(auto_offset_reset="earliest"), metadata, self.look_up if group else None,
            lambda committed, reset: self.found.append((committed, reset)),
        )  # fmt: skip

    def look_up(self, partitions: list[TopicPartition], done: Done) -> None:
        self.asked.append((partitions, done))


def answer(offset: int, code: ErrorCode = ErrorCode.NONE) -> ListOffsetsResponse:
    partition = ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=offset)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse("t", [partition])])


def test_an_offset_that_was_looked_up_before_a_rebalance_is_not_used_after_it() -> None:
    world = Starts()
    world.starts.add([T0])
    assert not world.starts.turn(0.0)
    [(_, before)] = world.asked
    world.starts.discard(T0)  # it moves to another member, which commits 100, and returns
    world.starts.add([T0])
    before({T0: OffsetAndMetadata(5)}, None)
    assert not world.found
    world.starts.turn(0.0)
    world.asked[1][1]({T0: OffsetAndMetadata(100)}, None)
    assert world.found == [({T0: OffsetAndMetadata(100)}, {})]


def test_without_a_committed_offset_the_leader_is_asked() -> None:
    world = Starts()
    world.starts.add([T0])
    world.starts.turn(0.0)
    world.asked[0][1]({T0: None}, None)
    [call] = world.starts.turn(0.0)
    assert call.target == 1
    call.answered(answer(7), 0.0)
    assert world.found == [({}, {T0: 7})]


def test_retriable_errors_are_retried_after_a_pause_and_others_are_raised() -> None:
    world = Starts(group=False)
    world.starts.add([T0])
    [call] = world.starts.turn(0.0)
    call.answered(answer(-1, ErrorCode.LEADER_NOT_AVAILABLE), 0.0)
    assert world.starts.error is None and not world.starts.turn(0.0)
    due = world.starts.next_time(0.0)
    assert due is not None and 0 < due < 1
    world.starts._metadata.topics = {"t": Topic("t", ZERO_UUID, False, (Partition(0, 1, 0, (1,), (1,), ()),))}
    [call] = world.starts.turn(due)
    call.answered(answer(-1, ErrorCode.TOPIC_AUTHORIZATION_FAILED), due)
    assert isinstance(world.starts.error, KafkaError)
