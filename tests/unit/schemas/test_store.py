"""Several registries on one topic, with the log's rules for producers in place of a broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.testing import MemoryReactorClock

from pylogd.log.errors import InvalidProducerEpoch, OutOfOrderSequence
from pylogd.log.producers import Producers
from pylogd.schemas.appending import PRODUCER_ID, BatchSequence, ConcurrentAppend, TopicAppender, stamp_of
from pylogd.schemas.errors import StoreTimedOut
from pylogd.schemas.parsing import read_schema
from pylogd.schemas.registry import Registry, TopicRecord
from pylogd.schemas.store import SchemaStore
from pylogd.wire.messages import ApiKey
from pylogd.wire.records import Record
from tests.fakes.broker import FakeBroker
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

    def close(self) -> None:
        """Do nothing: there are no connections."""


class Service:
    """A registry's store on the topic. It knows records only after `read` was called."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.clock = MemoryReactorClock()
        self.store = SchemaStore(self.clock, "localhost:9", "_schemas", Registry())
        self.store._appender.close()
        self.store._appender = topic  # type: ignore[assignment]
        self.held: list[tuple[Deferred[Any], Any]] = []
        self.slow = False
        self.store._in_thread = self._in_thread  # type: ignore[method-assign]

    def _in_thread(self, function: Any, *arguments: Any) -> Deferred[Any]:
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
        """Pass the committed records to the store, as its reader thread does."""
        end = self.topic.end_offset()
        self.store._apply(self.topic.records[self.store._next : end], end)

    def register(self, subject: str, text: str) -> Deferred[int]:
        registry, schema = self.store.registry, read_schema(text, None, ())
        return self.store.change(
            lambda: registry.register(subject, schema, passed=registry.comparison(subject, schema))
        )


def enum(number: int) -> str:
    return json.dumps({"type": "enum", "name": f"E{number}", "symbols": ["A"]})


def ids(service: Service) -> dict[int, str]:
    return {number: schema.text for number, schema in service.store.registry._by_id.items()}


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
    apply = service.store.registry.apply

    def fail(key: bytes | None, value: bytes | None, offset: int = -1) -> None:
        if key == b"bad":
            raise MemoryError
        apply(key, value, offset)

    monkeypatch.setattr(service.store.registry, "apply", fail)
    good = TopicRecord(b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"id": 1, "schema": "\\"string\\""}')
    rows = [(b"bad", b""), (b"[" * 100_000, b"{}"), (good.key, good.value)]
    service.topic.records += [Record("_schemas", 0, at, 0, key, value) for at, (key, value) in enumerate(rows)]
    settle(service)
    done = service.register("t", '"int"')
    settle(service)
    assert result_of(done) == 2


def test_end_offsets_are_asked_for_as_a_consumer() -> None:
    with FakeBroker("_schemas") as server:
        appender = TopicAppender(server.address, "_schemas", 10.0)
        assert appender.end_offset() == 0
        appender.close()
        (request,) = server.asked(ApiKey.LIST_OFFSETS)
        assert request.replica_id == -1, "other ids are those of brokers, which are told the end of the log"
