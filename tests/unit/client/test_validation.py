"""Positions after a change of leader (KIP-320): validated, reset, or reported as truncated; without sockets."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.client import LogTruncation, TopicPartition
from pylogd.client.core.call import Call
from pylogd.client.core.consumer.options import ConsumerOptions
from pylogd.client.core.consumer.partitions import PartitionsCore
from pylogd.client.core.errors import BrokerUnavailable, UnsupportedByBroker
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.model import Broker, OffsetAndMetadata, Partition, Topic
from pylogd.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from pylogd.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from pylogd.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from pylogd.wire.records import encode_batch
from pylogd.wire.values import ZERO_UUID
from tests.fakes.reading import gather

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class World:
    """The core of a consumer, whose calls the test answers."""

    def __init__(self, *, committed: dict[TopicPartition, OffsetAndMetadata] | None = None, **options: Any) -> None:
        self.now = 0.0
        self.warnings: list[str] = []
        self.metadata = Metadata([("h", 1)])
        self.lead(1, 5)
        self.core = PartitionsCore(
            ConsumerOptions(**options), self.metadata, self._look_up if committed else None,
            on_found=lambda *_: None, soon=lambda: None, warn=self.warnings.append,
        )  # fmt: skip
        self.committed = committed or {}

    def _look_up(self, partitions: list[TopicPartition], done: Callable[..., None]) -> None:
        done({partition: self.committed.get(partition) for partition in partitions}, None)

    def lead(self, node: int, epoch: int, topic_id: bytes = ZERO_UUID) -> None:
        """Make a broker the leader of all partitions, in a new epoch."""
        self.metadata.brokers[node] = Broker(node, "h", node)
        led = tuple(Partition(index, node, epoch, (1, 2), (node,), ()) for index in range(2))
        self.metadata.topics["t"] = Topic("t", topic_id, False, led)

    def turn(self, seconds: float = 0.0) -> list[Call]:
        self.now += seconds
        return self.core.turn(self.now)

    def ask(self, api: type[Any], seconds: float = 0.0) -> tuple[Call, Any]:
        """Return the request of an API that is sent now; there must be no other."""
        [call] = self.turn(seconds)
        assert call.api is api
        return call, call.build(call.highest or (13 if api is FetchRequest else 4))

    def fetched(self, call: Call, *parts: PartitionData) -> None:
        topic_id = self.metadata.topics["t"].topic_id
        topic = FetchableTopicResponse("t" if topic_id == ZERO_UUID else "", topic_id, list(parts))
        call.answered(FetchResponse(responses=[topic]), self.now)

    def read(self, epoch: int, count: int, base: int = 0) -> None:
        """Read records of an epoch in partition 0, up to the last."""
        call, _ = self.ask(FetchRequest)
        self.fetched(call, data(0, base, count, epoch))
        assert sum(len(records) for _, records in gather(self.core.reader, 1000)) == count

    def epoch_ends(
        self, call: Call, epoch: int, end: int, code: ErrorCode = ErrorCode.NONE, partition: int = 0
    ) -> None:
        answer = EpochEndOffset(code, partition, epoch, end)
        call.answered(OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult("t", [answer])]), self.now)


def batch(base: int, count: int, epoch: int) -> bytes:
    return encode_batch([(None, b"x", 0, ())] * count, base_offset=base, leader_epoch=epoch)


def data(partition: int, base: int, count: int, epoch: int) -> PartitionData:
    return PartitionData(partition, records=batch(base, count, epoch))


@pytest.fixture(params=["earliest", "none"])
def reset(request: pytest.FixtureRequest) -> str:
    policy: str = request.param
    return policy


def test_a_fetch_names_the_leader_epoch() -> None:
    world = World()
    world.core.move(T0, 0)
    _, request = world.ask(FetchRequest)
    assert request.topics[0].partitions[0].current_leader_epoch == 5


def test_after_a_change_of_leader_the_position_is_validated_before_anything_is_fetched(reset: str) -> None:
    world = World(auto_offset_reset=reset)
    world.core.move(T0, 0)
    world.read(5, 10)
    world.lead(2, 6)
    call, request = world.ask(OffsetForLeaderEpochRequest)
    assert (call.target, request.replica_id) == (2, -1)
    asked = request.topics[0].partitions[0]
    assert (asked.partition, asked.current_leader_epoch, asked.leader_epoch) == (0, 6, 5)
    assert not world.turn(), "nothing is fetched meanwhile, and nothing asked twice"
    world.epoch_ends(call, 5, 10)
    call, request = world.ask(FetchRequest)
    wanted = request.topics[0].partitions[0]
    assert (call.target, wanted.fetch_offset, wanted.current_leader_epoch) == (2, 10, 6)
    assert not world.core.has_error and not world.warnings


def test_a_position_in_front_of_which_nothing_was_read_needs_no_validation() -> None:
    world = World()
    world.core.move(T0, 7)
    world.ask(FetchRequest)[0].failed(BrokerUnavailable("gone"), 0.0)
    world.lead(2, 6)
    call, request = world.ask(FetchRequest, 2.0)
    assert (call.target, request.topics[0].partitions[0].fetch_offset) == (2, 7)


def test_fetched_records_that_were_not_returned_are_fetched_from_the_new_leader() -> None:
    world = World()
    world.core.move(T0, 0)
    call, _ = world.ask(FetchRequest)
    world.fetched(call, PartitionData(0, records=batch(0, 4, 4) + batch(4, 4, 5)))
    assert [len(records) for _, records in gather(world.core.reader, 2)] == [2]
    world.lead(2, 6)
    call, request = world.ask(OffsetForLeaderEpochRequest)
    assert request.topics[0].partitions[0].leader_epoch == 4, "that of the record that was handed out last"
    world.epoch_ends(call, 4, 3)
    _, request = world.ask(FetchRequest)
    assert request.topics[0].partitions[0].fetch_offset == 2
    assert not gather(world.core.reader, 100) and not world.warnings


def test_with_a_reset_policy_reading_goes_on_where_the_log_diverges() -> None:
    world = World(auto_offset_reset="latest")
    world.core.move(T0, 0)
    world.read(5, 10)
    world.lead(2, 7)
    call, _ = world.ask(OffsetForLeaderEpochRequest)
    world.epoch_ends(call, 4, 6)
    _, request = world.ask(FetchRequest)
    wanted = request.topics[0].partitions[0]
    assert (wanted.fetch_offset, wanted.current_leader_epoch) == (6, 7)
    assert world.core.reader.epoch(T0) == 4
    assert ["truncated to offset 6" in line for line in world.warnings] == [True]


def test_with_a_reset_policy_and_an_unknown_divergence_it_starts_again() -> None:
    world = World(auto_offset_reset="earliest")
    world.core.move(T0, 0)
    world.read(5, 10)
    world.lead(2, 7)
    call, _ = world.ask(OffsetForLeaderEpochRequest)
    world.epoch_ends(call, -1, -1)
    call, _ = world.ask(ListOffsetsRequest)
    answer = ListOffsetsPartitionResponse(partition_index=0, offset=3)
    call.answered(ListOffsetsResponse(topics=[ListOffsetsTopicResponse("t", [answer])]), world.now)
    _, request = world.ask(FetchRequest)
    assert request.topics[0].partitions[0].fetch_offset == 3


@pytest.mark.parametrize(("epoch", "end"), [(4, 6), (-1, -1)])
def test_without_a_reset_policy_the_application_is_told_until_it_seeks(epoch: int, end: int) -> None:
    world = World(auto_offset_reset="none")
    world.core.move(T0, 0)
    world.read(5, 10)
    world.lead(2, 7)
    for _ in range(2):
        call, _ = world.ask(OffsetForLeaderEpochRequest, 2.0)
        world.epoch_ends(call, epoch, end)
        with pytest.raises(LogTruncation, match=r"t-0 was read up to offset 10") as told:
            world.core.raise_error()
        divergent = None if end < 0 else OffsetAndMetadata(end, leader_epoch=epoch)
        assert told.value.divergent_offsets == {T0: divergent}
        assert told.value.code is ErrorCode.OFFSET_OUT_OF_RANGE and not told.value.retriable
        copy = pickle.loads(pickle.dumps(told.value))
        assert copy.divergent_offsets == told.value.divergent_offsets
    world.core.move(T0, 6)
    _, request = world.ask(FetchRequest, 2.0)
    assert request.topics[0].partitions[0].fetch_offset == 6


def test_a_committed_offset_is_validated_before_it_is_read_from() -> None:
    world = World(committed={T0: OffsetAndMetadata(10, leader_epoch=3), T1: OffsetAndMetadata(4)})
    world.core.starts.add([T0, T1])
    calls = world.turn()
    by_api = {call.api: call for call in calls}
    assert by_api.keys() == {FetchRequest, OffsetForLeaderEpochRequest}
    request = by_api[FetchRequest].build(12)
    assert [(p.partition, p.fetch_offset) for p in request.topics[0].partitions] == [(1, 4)], "it has no epoch"
    assert by_api[OffsetForLeaderEpochRequest].build(4).topics[0].partitions[0].leader_epoch == 3
    world.epoch_ends(by_api[OffsetForLeaderEpochRequest], 3, 8)
    assert world.core.reader.positions == {T0: 8, T1: 4}


def test_metadata_older_than_the_committed_epoch_is_asked_for_first() -> None:
    world = World(committed={T0: OffsetAndMetadata(10, leader_epoch=9)}, request_timeout=20.0)
    world.core.starts.add([T0])
    assert not world.turn()
    assert "t" not in world.metadata.topics
    world.lead(2, 9)
    call, request = world.ask(OffsetForLeaderEpochRequest, 2.0)
    assert (call.target, request.topics[0].partitions[0].leader_epoch) == (2, 9)


def test_metadata_that_stays_older_belongs_to_a_recreated_topic() -> None:
    world = World(committed={T0: OffsetAndMetadata(10, leader_epoch=9)}, request_timeout=20.0)
    world.core.starts.add([T0])
    for _ in range(10):
        world.lead(1, 0)
        assert not world.turn(2.0)
    world.lead(1, 0)
    call, _ = world.ask(OffsetForLeaderEpochRequest, 2.0)
    world.epoch_ends(call, -1, -1)
    assert world.ask(ListOffsetsRequest)[0].target == 1, "it starts where auto_offset_reset says"


def test_a_recreated_topic_has_other_epochs() -> None:
    world = World()
    world.lead(1, 5, topic_id=b"a" * 16)
    world.core.move(T0, 0)
    world.read(5, 10)
    world.lead(1, 0, topic_id=b"b" * 16)
    _, request = world.ask(FetchRequest)
    assert request.topics[0].partitions[0].current_leader_epoch == 0, "nothing is validated"


def test_retriable_errors_are_retried_with_new_metadata() -> None:
    world = World()
    world.core.move(T0, 0)
    world.read(5, 10)
    world.lead(2, 6)
    call, _ = world.ask(OffsetForLeaderEpochRequest)
    world.epoch_ends(call, -1, -1, ErrorCode.FENCED_LEADER_EPOCH)
    assert not world.core.has_error and "t" not in world.metadata.topics
    world.lead(1, 7)
    call, request = world.ask(OffsetForLeaderEpochRequest, 2.0)
    assert (call.target, request.topics[0].partitions[0].current_leader_epoch) == (1, 7)
    call.failed(BrokerUnavailable("gone"), world.now)
    world.lead(1, 7)
    call, _ = world.ask(OffsetForLeaderEpochRequest, 2.0)
    world.epoch_ends(call, -1, -1, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
        world.core.raise_error()


def test_a_broker_that_is_too_old_to_tell_is_trusted() -> None:
    world = World()
    world.core.move(T0, 0)
    world.read(5, 10)
    world.lead(2, 6)
    call, _ = world.ask(OffsetForLeaderEpochRequest)
    with pytest.raises(UnsupportedByBroker):
        call.build(2)
    call.failed(UnsupportedByBroker("too old"), world.now)
    assert world.ask(FetchRequest)[1].topics[0].partitions[0].fetch_offset == 10


def test_an_answer_counts_only_for_the_position_that_was_asked_about() -> None:
    world = World(auto_offset_reset="none")
    world.core.move(T0, 0)
    world.read(5, 10)
    world.lead(2, 6)
    call, _ = world.ask(OffsetForLeaderEpochRequest)
    world.core.move(T0, 3)  # the application seeks
    world.epoch_ends(call, 4, 1)
    assert not world.core.has_error
    assert world.ask(FetchRequest)[1].topics[0].partitions[0].fetch_offset == 3
    world.core.forget(T0)
    assert world.core.next_time(world.now) is None


def test_a_leader_that_changes_while_batches_are_taken_costs_no_record_and_doubles_none() -> None:
    """The change is noticed while a response is processed, when the next request is made."""
    world = World()
    sent: list[Call] = []
    world.core._soon = lambda: sent.extend(world.turn())
    world.core.move(T0, 0)
    call, _ = world.ask(FetchRequest)
    world.fetched(call, data(0, 0, 4, 5))
    assert len(gather(world.core.reader, 2)) == 1
    [ahead] = sent  # requested while the first batch was processed
    ahead.build(12)
    world.fetched(ahead, data(0, 4, 4, 5))
    assert [r.offset for _, records in gather(world.core.reader, 2) for r in records] == [2, 3]
    sent.clear()
    world.lead(2, 6)
    assert not gather(world.core.reader, 100), "what came from the former leader is dropped"
    assert world.core.reader.positions == {T0: 4}
    [call] = sent
    world.epoch_ends(call, 5, 8)
    call, request = world.ask(FetchRequest)
    assert request.topics[0].partitions[0].fetch_offset == 4
    world.fetched(call, data(0, 4, 4, 5))
    assert [r.offset for _, records in gather(world.core.reader, 100) for r in records] == [4, 5, 6, 7]
