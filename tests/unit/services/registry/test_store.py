"""Several registries on one topic, with the log's rules for producers in place of a broker."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.testing import MemoryReactorClock

from pylogd.broker.log.errors import InvalidProducerEpoch, OutOfOrderSequence
from pylogd.broker.log.producers import Producers
from pylogd.client.core.admin.calls import Question
from pylogd.services.registry.errors import StoreTimedOut
from pylogd.services.registry.model import Schema, TopicRecord
from pylogd.services.registry.registry import Registry
from pylogd.services.registry.store import (
    PRODUCER_ID,
    BatchSequence,
    ConcurrentAppend,
    SchemaStore,
    TopicAppender,
    stamp_of,
)
from pylogd.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from pylogd.wire.records import Record
from tests.fakes.metadata import result_of


class Topic:
    """A partition that takes batches as a leader does. The last `hidden` records are not committed yet."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.producers = Producers()
        self.hidden = 0

    def append(self, sequence: BatchSequence, token: str, records: list[tuple[bytes, bytes | None]]) -> int:
        delta = len(records) - 1
        try:
            known = self.producers.check(PRODUCER_ID, sequence.epoch, sequence.number, delta)
        except (OutOfOrderSequence, InvalidProducerEpoch) as error:
            raise ConcurrentAppend(str(error)) from error
        if known is not None:
            return known.last_offset - delta
        base = len(self.records)
        self.producers.wrote(PRODUCER_ID, sequence.epoch, sequence.number, delta, base + delta, 0)
        for at, (key, value) in enumerate(records):
            stamp = f"{sequence.epoch}:{sequence.number + at}:{token}".encode()
            self.records.append(Record("_schemas", 0, base + at, 0, key, value, (("pylogd.writer", stamp),)))
        return base

    def end_offset(self) -> int:
        return len(self.records) - self.hidden


class Service:
    """A registry's store on the topic. It knows records only after `read` was called. `slow`: requests are held."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.clock = MemoryReactorClock()
        self.store = SchemaStore(self.clock, "localhost:9", "_schemas", Registry())
        self.store._appender = self  # type: ignore[assignment]
        self.held: list[tuple[Deferred[Any], Any]] = []
        self.slow = False

    def append(self, sequence: BatchSequence, token: str, records: list[tuple[bytes, bytes | None]]) -> Deferred[Any]:
        return self._asked(self.topic.append, sequence, token, records)

    def end_offset(self) -> Deferred[Any]:
        return self._asked(self.topic.end_offset)

    def _asked(self, function: Any, *arguments: Any) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        if self.slow:
            self.held.append((done, lambda: function(*arguments)))
        else:
            maybeDeferred(function, *arguments).chainDeferred(done)
        return done

    def release(self) -> None:
        self.slow = False
        while self.held:
            done, work = self.held.pop(0)
            maybeDeferred(work).chainDeferred(done)

    def read(self) -> None:
        """Pass the committed records to the store, as its reader does."""
        end = self.topic.end_offset()
        self.store._apply(self.topic.records[self.store._next : end], end)

    def register(self, subject: str, text: str) -> Deferred[int]:
        registry, schema = self.store.registry, Schema(text)

        def work() -> tuple[int, list[TopicRecord]]:
            version, records = registry.register(subject, schema, passed=registry.lookups.comparison(subject, schema))
            return version.id, records

        return self.store.change(work)


def enum(number: int) -> str:
    return json.dumps({"type": "enum", "name": f"E{number}", "symbols": ["A"]})


def ids(service: Service) -> dict[int, str]:
    registry = service.store.registry
    return {number: registry.lookups.by_id(number).text for _, number in registry.state.uses}


def told(deferred: Deferred[Any]) -> bool:
    """Return whether a Deferred has its result."""
    return deferred.called and not deferred.paused


def settle(*services: Service) -> None:
    for _ in range(5):
        for service in services:
            service.read()


def test_a_change_is_computed_again_after_a_concurrent_append() -> None:
    topic = Topic()
    one, two = Service(topic), Service(topic)
    first, second = one.register("a", enum(1)), two.register("b", enum(2))
    assert not told(first) and not told(second), "nothing is told before it was read back"
    settle(one, two)
    assert (result_of(first), result_of(second)) == (1, 2)
    assert ids(one) == ids(two)
    assert len(topic.records) == 2


def test_two_registries_register_the_same_schema() -> None:
    topic = Topic()
    one, two = Service(topic), Service(topic)
    answers = [service.register("a", enum(1)) for service in (one, two)]
    settle(one, two)
    assert [result_of(answer) for answer in answers] == [1, 1]
    assert len(topic.records) == 1


def test_a_paused_registry_writes_no_outdated_change() -> None:
    topic = Topic()
    one, two = Service(topic), Service(topic)
    one.slow = True
    late = one.register("a", enum(0))
    for number in range(1, 9):
        done = two.register("b", enum(number)) if number == 1 else two.register(f"b{number}", enum(number))
        settle(two)
        assert result_of(done) == number
    one.release()
    settle(one, two)
    assert result_of(late) == 9
    assert ids(one) == ids(two)
    assert len(topic.records) == 9


@pytest.mark.parametrize("sequence", [1, 7])
def test_a_topic_without_the_last_sequence_number_is_taken_over(sequence: int) -> None:
    topic = Topic()
    one, two = Service(topic), Service(topic)
    done = one.register("a", enum(1))
    settle(one, two)
    assert result_of(done) == 1
    topic.producers.wrote(PRODUCER_ID, 0, sequence, 0, 0, 0)  # a record that is gone, and its header with it
    later = one.register("b", enum(2))
    one.clock.advance(1.1)
    settle(one, two)
    one.read()
    assert result_of(later) == 2
    assert [stamp.sequence for record in topic.records if (stamp := stamp_of(record.headers))] == [
        BatchSequence(0, 0), BatchSequence(1, 0), BatchSequence(1, 1),
    ]  # fmt: skip
    also = two.register("c", enum(3))
    settle(one, two)
    assert result_of(also) == 3
    assert ids(one) == ids(two)


def test_an_uncommitted_record_is_waited_for() -> None:
    """A registry that takes over after another one has read that one's records before it computes a change."""
    topic = Topic()
    one, two = Service(topic), Service(topic)
    first = two.register("a", enum(1))
    topic.hidden = 1
    second = one.register("b", enum(2))
    settle(one, two)
    one.clock.advance(1.1)  # takes over: its own record comes after the one that is not committed yet
    settle(one, two)
    assert not told(second)
    topic.hidden = 0
    settle(one, two)
    assert (result_of(first), result_of(second)) == (1, 2)
    assert ids(one) == ids(two)


def test_a_change_fails_after_too_many_concurrent_appends() -> None:
    topic = Topic()
    one = Service(topic)
    waiting = one.register("a", enum(1))
    one.clock.advance(11)
    with pytest.raises(StoreTimedOut):
        result_of(waiting)


def test_a_record_that_cannot_be_applied_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records after it are applied, and no id is given twice."""
    service = Service(Topic())
    apply = service.store.registry.state.apply

    def fail(key: bytes | None, value: bytes | None, offset: int = -1) -> None:
        if key == b"bad":
            raise MemoryError
        apply(key, value, offset)

    monkeypatch.setattr(service.store.registry.state, "apply", fail)
    good = TopicRecord(b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"id": 1, "schema": "\\"string\\""}')
    rows = [(b"bad", b""), (b"[" * 100_000, b"{}"), (good.key, good.value)]
    service.topic.records += [Record("_schemas", 0, at, 0, key, value) for at, (key, value) in enumerate(rows)]
    settle(service)
    done = service.register("t", '"int"')
    settle(service)
    assert result_of(done) == 2


class Calls:
    """A cluster that answers ListOffsets, and keeps the requests."""

    def __init__(self) -> None:
        self.metadata = SimpleNamespace(partition=lambda _: SimpleNamespace(leader=3))
        self.asked: list[Any] = []

    async def call(self, attempt: Callable[[], Awaitable[Any]], _: float) -> Any:
        return await attempt()

    async def send(self, question: Question) -> ListOffsetsResponse:
        assert question.target == 3
        self.asked.append(question.build(0))
        partition = ListOffsetsPartitionResponse(0, offset=41)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse("_schemas", [partition])])


def test_end_offsets_are_asked_for_as_a_consumer() -> None:
    calls = Calls()
    appender = TopicAppender(calls, "_schemas", 10.0)  # type: ignore[arg-type]
    assert result_of(Deferred.fromCoroutine(appender.end_offset())) == 41
    assert calls.asked[0].replica_id == -1, "other ids are those of brokers, which are told the end of the log"
