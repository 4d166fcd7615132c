"""What every face of the client promises of iterations that are left, interrupted, or in which positions change."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pylogd.client import Record
from tests.contract.clients.helpers import eventually, fill, name, places
from tests.faces import Face, poll_until

COUNT = 400  # records of partition 0, all in one poll
GIVEN_UP = 0.05  # seconds after which a wait is cancelled


def offsets(records: list[Record]) -> list[int]:
    return [record.offset for record in records]


def break_out(face: Face, consumer: Any, count: int) -> list[Record]:
    """Iterate over so many records, and leave the loop."""
    return face.take(consumer, count)


def drop(face: Face, consumer: Any, count: int) -> list[Record]:
    """Ask an iterator for records, and let the garbage collector have it."""
    records = face.iterate(consumer)
    found = [face.step(records) for _ in range(count)]
    del records
    gc.collect()
    return found


def one_by_one(face: Face, consumer: Any, count: int) -> list[Record]:
    """As `next(iter(consumer))`."""
    return [face.take(consumer, 1)[0] for _ in range(count)]


def by_turns(face: Face, consumer: Any, count: int) -> list[Record]:
    """Ask two iterators in turn."""
    both = face.iterate(consumer), face.iterate(consumer)
    return [face.step(both[n % 2]) for n in range(count)]


def give_up(face: Face, consumer: Any, count: int) -> list[Record]:
    """Cancel an iteration that waits for a record, between two others."""
    found = face.take(consumer, count - 1)
    partitions = consumer.assignment
    consumer.pause(*partitions)
    records = face.iterate(consumer)
    assert face.give_up_step(consumer, records, GIVEN_UP) is None
    consumer.resume(*partitions)
    return found + face.take(consumer, 1)


WAYS: list[Callable[[Face, Any, int], list[Record]]] = [break_out, drop, one_by_one, by_turns, give_up]


@pytest.fixture
def one(face: Face, admin: Any) -> str:
    """A topic of one partition with records."""
    made = name("iterated")
    admin.create_topic(made, 1)
    assert eventually(lambda: len(admin.describe_topic(made).partitions) == 1)
    fill(face, made, COUNT, partitions=1)
    return made


@pytest.mark.parametrize("way", WAYS)
def test_what_an_iteration_leaves_comes_next(face: Face, one: str, way: Callable[..., list[Record]]) -> None:
    consumer = face.consumer()
    consumer.assign({(one, 0): 0})
    for first in (0, 10):
        assert offsets(way(face, consumer, 10)) == list(range(first, first + 10))
        assert consumer.position((one, 0)) == first + 10
    assert consumer.metrics().records_consumed_total == 20
    assert offsets(consumer.poll(60, 5)) == list(range(20, 25))
    assert offsets(face.take(consumer, 2)) == [25, 26]
    assert consumer.metrics().partitions[one, 0].records_lag == COUNT - 27


def test_columns_continue_behind_an_iteration(face: Face, one: str) -> None:
    pytest.importorskip("pyarrow")
    consumer = face.consumer()
    consumer.assign({(one, 0): 0})
    assert offsets(face.take(consumer, 3)) == [0, 1, 2]
    [(_, columns), *_] = consumer.poll_columns(60)
    assert columns.column("offset").to_pylist()[0] == 3


@pytest.mark.parametrize("mode", ["after", "before", "off"])
def test_the_position_of_an_iteration_is_committed(face: Face, one: str, mode: str, member: Mapping[str, Any]) -> None:
    """The record in hand is read again after `close`, unless the application asked for it or commits before."""
    group = name("group")
    consumer = face.consumer(group_id=group, auto_commit=mode, **member)
    consumer.subscribe([one])
    assert offsets(face.take(consumer, 10) + face.take(consumer, 10)) == list(range(20))
    if mode == "off":
        consumer.commit()
    consumer.close()
    again = face.consumer(group_id=group, **member)
    again.subscribe([one])
    begin = 19 if mode == "after" else 20
    assert offsets(poll_until([again], lambda records: len(records) >= COUNT - begin)) == list(range(begin, COUNT))


def test_seek_in_an_iteration(face: Face, one: str) -> None:
    consumer = face.consumer()
    consumer.assign({(one, 0): 0})
    records = face.iterate(consumer)
    assert offsets([face.step(records) for _ in range(3)]) == [0, 1, 2]
    consumer.seek((one, 0), COUNT - 10)
    assert consumer.position((one, 0)) == COUNT - 10
    assert offsets([face.step(records) for _ in range(10)]) == list(range(COUNT - 10, COUNT))
    consumer.seek_to_beginning()
    assert face.step(records).offset == 0


def test_pause_in_an_iteration(face: Face, topic: str) -> None:
    fill(face, topic, 100)
    first, second = places(topic)
    consumer = face.consumer()
    consumer.assign({first: 0, second: 0})
    records = face.iterate(consumer)
    begun = face.step(records).partition
    consumer.pause((topic, begun))
    others = [face.step(records) for _ in range(50)]
    assert {record.partition for record in others} == {1 - begun}
    assert face.give_up_step(consumer, records, GIVEN_UP) is None, "all that is left is paused"
    consumer.resume((topic, begun))
    assert offsets(face.take(consumer, 49)) == list(range(1, 50))


def test_assign_in_an_iteration(face: Face, topic: str) -> None:
    fill(face, topic, 100)
    first, second = places(topic)
    consumer = face.consumer()
    consumer.assign({first: 0})
    records = face.iterate(consumer)
    assert face.step(records).partition == 0
    consumer.assign([first, second])
    assert consumer.position(first) == 1
    consumer.assign({second: 40})
    assert [(record.partition, record.offset) for record in (face.step(records) for _ in range(10))] == [
        (1, offset) for offset in range(40, 50)
    ]


def test_subscribe_in_an_iteration(face: Face, one: str, admin: Any, member: Mapping[str, Any]) -> None:
    """No record of the topics before comes after it."""
    other, group = name("other"), name("group")
    admin.create_topic(other, 1)
    assert eventually(lambda: len(admin.describe_topic(other).partitions) == 1)
    fill(face, other, 10, partitions=1)
    consumer = face.consumer(group_id=group, **member)
    consumer.subscribe([one])
    records = face.iterate(consumer)
    assert offsets([face.step(records) for _ in range(3)]) == [0, 1, 2]
    consumer.subscribe([other])
    assert {record.topic for record in (face.step(records) for _ in range(10))} == {other}
    assert consumer.committed([(one, 0)])[one, 0].offset == 3
    consumer.subscribe([one, other])
    assert [(record.topic, record.offset) for record in (face.step(records) for _ in range(2))] == [(one, 3), (one, 4)]


def test_unsubscribe_in_an_iteration(face: Face, one: str, member: Mapping[str, Any]) -> None:
    consumer = face.consumer(group_id=name("group"), **member)
    consumer.subscribe([one])
    records = face.iterate(consumer)
    assert offsets([face.step(records) for _ in range(3)]) == [0, 1, 2]
    consumer.unsubscribe()
    consumer.subscribe([one])
    assert face.step(records).offset == 2, "the record in hand was not processed"


def test_a_rebalance_in_an_iteration(face: Face, topic: str, member: Mapping[str, Any]) -> None:
    """The partition that moves is read on by its new owner where the iteration was."""
    fill(face, topic, 600)
    group = name("group")
    first = face.consumer(group_id=group, **member)
    first.subscribe([topic])
    records = face.iterate(first)
    seen = [face.step(records) for _ in range(5)]
    second = face.consumer(group_id=group, **member)
    second.subscribe([topic])
    other: list[Record] = []
    deadline = 10_000
    while not other and deadline:
        seen.append(face.step(records))
        other += second.poll(0.05)
        deadline -= 1
    [moved] = {record.partition for record in other}
    before = [record.offset for record in seen if record.partition == moved]
    assert before == list(range(len(before)))
    assert other[0].offset == len(before)


def test_streams_continue_after_a_loop_was_left(face: Face, one: str) -> None:
    consumer = face.consumer(group_id=name("group"), auto_commit_interval=3600.0)
    [stream] = consumer.create_message_streams(one)[one]
    assert offsets(face.take(stream, 5) + face.take(stream, 5)) == list(range(10))
    consumer.seek((one, 0), COUNT - 10)
    assert offsets(face.take(stream, 10)) == list(range(COUNT - 10, COUNT))
