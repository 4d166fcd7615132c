"""Batches are read from a source as they are, and whatever happens to a partition is reported once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.client.core.errors import UnknownTopic
from pylogd.client.core.model import TopicPartition
from pylogd.client.core.options import ClientOptions
from pylogd.services.mirror.errors import TopicRecreated
from pylogd.services.mirror.source import SourceReader
from pylogd.services.mirror.starting import LogRange, look_up
from pylogd.wire.records import encode_batch
from tests.fakes.broker import TOPIC_ID, refuse_fetch
from tests.fakes.memory_broker import MemoryBroker, MemoryReactor
from tests.fakes.metadata import result_of

T0 = TopicPartition("t", 0)
FETCH = 1


class World:
    """A reader of a broker in memory."""

    def __init__(self) -> None:
        self.reactor = MemoryReactor()
        self.broker = MemoryBroker(self.reactor, partitions=2)
        self.errors: list[tuple[TopicPartition, PylogdError]] = []
        self.ready = 0
        self.reader = SourceReader(
            f"{self.broker.host}:9092", ClientOptions(), on_ready=self._ready, reactor=self.reactor,
            on_error=lambda partition, error: self.errors.append((partition, error)),
        )  # fmt: skip

    def _ready(self) -> None:
        self.ready += 1

    def advance(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.01)):
            self.reactor.advance(0.01)

    def fill(self, count: int, partition: int = 0) -> bytes:
        batch = encode_batch([(None, b"%d" % n, 0, ()) for n in range(count)], compression=1)
        self.broker.append(partition, batch)
        return self.broker.logs[partition][-1]


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.reader.close()
    found.advance(6)


def test_batches_come_as_the_broker_has_them(world: World) -> None:
    first, second = world.fill(5), world.fill(3)
    world.reader.read(T0, 0, -1, TOPIC_ID)
    world.advance(0.5)
    assert world.ready and world.reader.is_ready
    taken = world.reader.take()
    assert taken is not None
    assert taken[:2] == (T0, 0) and [bytes(batch) for _, batch in taken[2]] == [first, second]
    assert world.reader.position(T0) == 8 and world.reader.end(T0) == 8
    assert world.reader.take() is None
    third = world.fill(1)
    world.advance(1)
    taken = world.reader.take()
    assert taken is not None and [bytes(batch) for _, batch in taken[2]] == [third]


def test_a_topic_that_was_created_again_is_not_read_before_that_is_decided(world: World) -> None:
    world.fill(5)
    world.reader.read(T0, 0, -1, TOPIC_ID)
    world.reader.read(TopicPartition("t", 1), 0, -1, TOPIC_ID)
    world.advance(0.5)
    assert world.reader.take() is not None
    world.broker.topic_id = bytes(15) + b"x"
    world.broker.logs[0], world.broker.ends[0] = [], 0
    world.broker.on(FETCH, refuse_fetch(ErrorCode.UNKNOWN_TOPIC_ID))
    world.advance(3)
    assert {partition for partition, _ in world.errors} == {T0, TopicPartition("t", 1)}
    assert all(isinstance(error, TopicRecreated) for _, error in world.errors)
    asked = len(world.broker.asked(FETCH))
    world.advance(2)
    assert len(world.broker.asked(FETCH)) == asked and not world.reader.assignment
    world.fill(2)
    world.reader.read(T0, 0, -1, world.broker.topic_id)
    world.advance(1)
    taken = world.reader.take()
    assert taken is not None and taken[2][0][0].record_count == 2


def test_an_offset_that_the_log_does_not_have_is_reported_once(world: World) -> None:
    world.reader.read(T0, 50, -1, TOPIC_ID)
    world.advance(2)
    [(partition, error)] = world.errors
    assert partition == T0 and isinstance(error, KafkaError) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_topic_that_is_gone_is_reported(world: World) -> None:
    world.reader.read(TopicPartition("gone", 0), 0, -1, TOPIC_ID)
    world.advance(3)
    [(_, error)] = world.errors
    assert isinstance(error, UnknownTopic)


def test_damage_is_reported_with_its_partition(world: World) -> None:
    world.fill(5)
    damaged = bytearray(world.broker.logs[0][0])
    damaged[-1] ^= 1
    world.broker.logs[0][0] = bytes(damaged)
    world.reader.read(T0, 0, -1, TOPIC_ID)
    world.advance(0.5)
    assert world.reader.take() is None
    [(partition, error)] = world.errors
    assert partition == T0 and "CRC" in str(error)


def test_what_has_to_be_known_to_start_is_looked_up(world: World) -> None:
    world.fill(5)
    world.broker.starts[0] = 2
    found = Deferred.fromCoroutine(look_up(world.reader.cluster, [T0, TopicPartition("gone", 0)]))
    state = result_of(found, lambda: world.advance(0.1))
    assert state.cluster_id == "fake" and state.topic_ids == {"t": TOPIC_ID}
    assert state.ranges == {T0: LogRange(2, 5)}
    assert set(state.errors) == {"gone"}
