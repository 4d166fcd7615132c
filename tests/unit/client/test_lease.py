"""Consumers of a ZooKeeper group: a record is returned only while the claims hold, and none is skipped after a lapse.

A lease may lapse and hold again without an event, when the session was alive but the client could not know it for a
while. The records fetched before then still belong to this consumer, and have to be returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from pylogd.client import Consumer, deferred
from pylogd.client.core.consumer.start_offsets import Committed
from pylogd.client.core.group.assignment import Topics
from pylogd.client.core.group.member_model import Assign, Event, Revoke
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.errors import PylogdError
from pylogd.wire.records import encode_batch
from tests.faces import FACES, Face, Patient
from tests.fakes.broker import FakeBroker

T0 = TopicPartition("t", 0)
COUNT = 20
LAPSE = 30  # how often a lapsed lease is checked


class LeasedGroup:
    """A group whose lease the test lets lapse: for `in_vain` checks, or until its partitions are assigned again."""

    wakes = False

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.holds = True
        self.in_vain = 0
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}

    @property
    def may_fetch(self) -> bool:
        if self.in_vain > 0:
            self.in_vain -= 1
            return False
        return self.holds

    @property
    def has_event(self) -> bool:
        return bool(self.events)

    def next_event(self) -> Event | None:
        event = self.events.popleft() if self.events else None
        self.holds = self.holds or isinstance(event, Assign)
        return event

    def subscribe(self, topics: Topics) -> None:
        self.events.append(Assign(frozenset({T0}), frozenset({T0})))

    def look_up(
        self, partitions: list[TopicPartition], done: Callable[[Committed | None, PylogdError | None], None]
    ) -> None:
        done({partition: self.committed.get(partition) for partition in partitions}, None)

    def commit_soon(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.committed.update(offsets)

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float) -> None:
        self.committed.update(offsets)

    def on_commit(self, call: Callable[[Mapping[TopicPartition, OffsetAndMetadata]], object]) -> None: ...

    def stream_of(self, partition: TopicPartition) -> int | None:
        return 0

    def polled(self, polling: bool) -> None: ...

    def done(self, event: Event) -> None: ...

    def stop(self) -> None: ...

    async def leave(self) -> None: ...

    async def close(self, timeout: float) -> None: ...


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
