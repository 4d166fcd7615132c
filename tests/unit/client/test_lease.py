"""Consumers of a ZooKeeper group: a record is returned only while the claims hold, and none is skipped after a lapse.

A lease may lapse and hold again without an event, when the session was alive but the client could not know it for a
while. The records fetched before then still belong to this consumer, and have to be returned.

A process may also be frozen between the check of the lease and the moment in which records are handed out: while it
decodes them, while it commits before it hands them out, or while an interceptor looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from pylogd.client import Consumer, deferred
from pylogd.client.core.consumer import reader
from pylogd.client.core.consumer.interceptors import ConsumerInterceptor
from pylogd.client.core.group.assignment import Topics
from pylogd.client.core.group.member_model import Assign, Event, Revoke
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.wire.records import Record, encode_batch
from tests.faces import FACES, Face, Patient
from tests.fakes.broker import FakeBroker
from tests.fakes.scripted_group import ScriptedGroup

T0 = TopicPartition("t", 0)
COUNT = 20
LAPSE = 30  # how often a lapsed lease is checked
TAKEN = 12  # up to here another consumer has read


class LeasedGroup(ScriptedGroup):
    """A group whose lease the test lets lapse: for `in_vain` checks, or until its partitions are assigned again."""

    leased = True

    def __init__(self) -> None:
        super().__init__()
        self.holds = True
        self.in_vain = 0
        self.lapsed = self.lapses_in_commits = False

    @property
    def may_fetch(self) -> bool:
        if self.in_vain > 0:
            self.in_vain -= 1
            return False
        return self.holds

    def next_event(self) -> Event | None:
        event = super().next_event()
        self.holds = self.holds or isinstance(event, Assign)
        return event

    def subscribe(self, topics: Topics) -> None:
        self.events.append(Assign(frozenset({T0}), frozenset({T0})))

    def stream_of(self, partition: TopicPartition) -> int | None:
        return 0

    def lapse(self) -> None:
        """End the lease once, as if the process had been frozen: another consumer had the partition meanwhile."""
        if not self.lapsed:
            self.lapsed, self.holds = True, False
            self.committed[T0] = OffsetAndMetadata(TAKEN)
            self.events += [Revoke(frozenset({T0}), lost=True), Assign(frozenset({T0}), frozenset({T0}))]

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float) -> None:
        await super().commit(offsets, timeout)
        if self.lapses_in_commits:
            self.lapse()


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> LeasedGroup:
    group = LeasedGroup()
    for face in (Consumer, deferred.Consumer):
        monkeypatch.setattr(face, "_make_group", lambda _self, _on_event: group)
    for module in ("blocking.streams", "evented.streams", "evented.consumer"):
        monkeypatch.setattr(f"pylogd.client.{module}._LOOK_SECONDS", 0.01)
    return group


@pytest.fixture(params=["blocking", "deferred"])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    with FakeBroker() as server:
        server.append(0, encode_batch([(None, b"%d" % n, 0, ()) for n in range(COUNT)]))
        face = FACES[request.param](server.address)
        yield face
        face.close()


def iterator(face: Face, **options: Any) -> Any:
    """Return an iterator over a consumer's records."""
    consumer = face.consumer(group_id="g", **options)
    consumer.subscribe("t")
    return aiter(consumer.target) if isinstance(consumer, Patient) else iter(consumer)


def stream(face: Face, **options: Any) -> Any:
    """Return an iterator over the only stream of a consumer."""
    [only] = face.consumer(group_id="g", **options).create_message_streams("t")["t"]
    return only


@pytest.mark.parametrize("records", [iterator, stream])
def test_after_a_lapse_the_records_that_were_fetched_before_come(
    face: Face, group: LeasedGroup, records: Callable[..., Any]
) -> None:
    source = records(face, auto_commit_interval=0.01)
    seen: list[int] = []
    for _ in range(COUNT // 4):
        seen += [record.offset for record in face.take(source, 3)]
        group.in_vain = LAPSE
        seen += [record.offset for record in face.take(source, 1)]
        assert group.in_vain <= 0, "a record came while the lease had lapsed"
        assert all(committed.offset < len(seen) for committed in group.committed.values())
    assert seen == list(range(COUNT))


@pytest.mark.parametrize("records", [iterator, stream])
def test_partitions_that_are_lost_with_the_lease_are_read_from_what_was_committed(
    face: Face, group: LeasedGroup, records: Callable[..., Any]
) -> None:
    source = records(face, auto_commit="off")
    seen = [record.offset for record in face.take(source, 5)]
    group.holds = False
    group.committed[T0] = OffsetAndMetadata(12)  # by the consumer that had the partition meanwhile
    group.events += [Revoke(frozenset({T0}), lost=True), Assign(frozenset({T0}), frozenset({T0}))]
    seen += [record.offset for record in face.take(source, COUNT - 12)]
    assert seen == [*range(5), *range(12, COUNT)]


def polled(face: Face, **options: Any) -> list[int]:
    """Return the offsets that `poll` returns, up to the last one."""
    consumer = subscribed(face, **options)
    return until_last(lambda: [record.offset for record in consumer.poll(0.1)])


def polled_in_parts(face: Face, **options: Any) -> list[int]:
    """As `polled`, a few records at a time: the rest of them waits decoded."""
    consumer = subscribed(face, **options)
    return until_last(lambda: [record.offset for record in consumer.poll(0.1, 3)])


def polled_columns(face: Face, **options: Any) -> list[int]:
    """As `polled`, as columns."""
    consumer = subscribed(face, **options)
    return until_last(
        lambda: [o for _, columns in consumer.poll_columns(0.1) for o in columns.column("offset").to_pylist()]
    )


def iterated(face: Face, **options: Any) -> list[int]:
    """Return the offsets that an iteration yields, up to the last one."""
    records = iterator(face, **options)
    return until_last(lambda: [face.step(records).offset])


def streamed(face: Face, **options: Any) -> list[int]:
    """As `iterated`, of a stream."""
    records = stream(face, **options)
    return until_last(lambda: [record.offset for record in face.take(records, 1)])


def subscribed(face: Face, **options: Any) -> Any:
    consumer = face.consumer(group_id="g", **options)
    consumer.subscribe("t")
    return consumer


def until_last(more: Callable[[], list[int]]) -> list[int]:
    seen: list[int] = []
    while COUNT - 1 not in seen:
        seen += more()
    return seen


EACH = [polled, polled_in_parts, polled_columns, iterated, streamed]


@pytest.mark.parametrize("read", EACH)
def test_records_that_were_decoded_while_the_lease_ended_are_not_handed_out(
    face: Face, group: LeasedGroup, monkeypatch: pytest.MonkeyPatch, read: Callable[..., list[int]]
) -> None:
    def decode_slowly(function: Callable[..., Any]) -> Callable[..., Any]:
        def decode(*arguments: Any, **options: Any) -> Any:
            found = function(*arguments, **options)
            group.lapse()
            return found

        return decode

    for name in ("decode_batch", "decode_batches"):
        monkeypatch.setattr(reader, name, decode_slowly(getattr(reader, name)))
    assert read(face, auto_commit="off") == [*range(TAKEN, COUNT)]
    assert group.lapsed


@pytest.mark.parametrize("read", EACH)
def test_records_that_were_committed_while_the_lease_ended_are_not_handed_out(
    face: Face, group: LeasedGroup, read: Callable[..., list[int]]
) -> None:
    group.lapses_in_commits = True
    assert read(face, auto_commit="before") == [*range(TAKEN, COUNT)]
    assert group.lapsed


class SlowInterceptor(ConsumerInterceptor):
    """Is frozen once."""

    def __init__(self, group: LeasedGroup) -> None:
        self._group = group

    def on_consume(self, records: list[Record]) -> list[Record]:
        self._group.lapse()
        return records


@pytest.mark.parametrize("read", [polled, polled_in_parts, iterated, streamed])
def test_records_that_an_interceptor_saw_while_the_lease_ended_are_not_handed_out(
    face: Face, group: LeasedGroup, read: Callable[..., list[int]]
) -> None:
    assert read(face, auto_commit="off", interceptors=[SlowInterceptor(group)]) == [*range(TAKEN, COUNT)]
    assert group.lapsed
