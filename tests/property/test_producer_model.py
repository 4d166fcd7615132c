"""Check the idempotent producer against a model of a broker that loses requests, responses, and its memory.

Whatever happens: an acknowledged batch is in the log once, a batch that was given up at most once, none twice, and all
in the order in which they were sent. When the faults end, the producer continues.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.broker.log.errors import InvalidProducerEpoch, OutOfOrderSequence
from pylogd.broker.log.producers import Producers
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.errors import BrokerUnavailable
from pylogd.client.core.model import TopicPartition
from pylogd.client.core.producer.accumulator import Accumulator, Batch
from pylogd.client.core.producer.options import BatchResult, ProducerOptions
from pylogd.client.core.producer.send_queue import BatchRequest, SendQueue
from pylogd.wire.records import decode_batch, parse_header

PLACE = TopicPartition("t", 0)
DELIVERY_TIMEOUT = 60.0


class Log:
    """A partition as a broker keeps it."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.producers = Producers()

    def append(self, data: bytes) -> int:
        """Append as `pylogd.broker.log` does; return the base offset, also of a duplicate."""
        header = parse_header(data)
        found = self.producers.check(
            header.producer_id, header.producer_epoch, header.base_sequence, header.last_offset_delta
        )
        if found is not None:
            return found.base_offset
        base = len(self.values)
        self.values += [record.value or b"" for record in decode_batch(data)]
        self.producers.note(header._replace(base_offset=base))
        return base

    def restart(self) -> None:
        """Restart after a clean stop, which keeps the last batch of a producer and forgets the four before it."""
        again = Producers()
        again.restore(self.producers.to_snapshot())
        self.producers = again


@dataclass
class UnderWay:
    """A request, the broker's response once there is one, and the fault that will hit it."""

    shipment: BatchRequest
    data: bytes
    answer: int | PylogdError | None = None
    done: bool = False


class World:
    """The producer's driver, with one connection at a time to one broker."""

    def __init__(self, rng: random.Random, max_in_flight: int) -> None:
        self.now = 0.0
        self.rng = rng
        self.log = Log()
        self.results: dict[float, BatchResult] = {}
        self.batches: list[Batch] = []
        self.max_in_flight = max_in_flight
        options = ProducerOptions(
            batch_bytes=10**6, batch_records=10**6, linger_ms=0, delivery_timeout=DELIVERY_TIMEOUT
        )
        self.accumulator = Accumulator(options, lambda: self.now)
        self.queue = SendQueue(
            self.accumulator, idempotent=True, retry=True, max_request_bytes=10**6,
            backoff=lambda: Backoff(rng=random.Random(1)), on_result=self._result,
        )  # fmt: skip
        self.connection: deque[UnderWay] = deque()
        self.strays: deque[UnderWay] = deque()  # on connections that the client has given up and the broker still reads
        self.ids = 0
        self.sent = 0

    def _result(self, batch: Batch, result: BatchResult) -> None:
        assert batch.number not in self.results, "a second result"
        self.results[batch.number] = result

    def send(self, count: int) -> None:
        for _ in range(count):
            batch = self.accumulator.add("t", 1, 0, None, b"%d" % self.sent, 0)
            self.sent += 1
        self.accumulator.seal(batch)
        self.batches.append(batch)

    def turn(self) -> None:
        self.queue.collect()
        self.queue.expire(self.now)
        if self.queue.wants_id:
            self.ids += 1
            self.queue.producer_id_given(1000 + self.ids, 0)
        while shipments := self.queue.take(self.now, lambda _: 1, lambda _: len(self.connection) < self.max_in_flight):
            for shipment in shipments:
                (batch,) = shipment.batches
                data = bytes(batch.encode(0, None))
                self.accumulator.was_encoded(batch)
                self.connection.append(UnderWay(shipment, data))

    # Events

    def broker_reads(self, refusal: ErrorCode | None = None, *, appended: bool = False) -> None:
        """Process the next request; with `refusal`, respond with that error, with or without an append."""
        for request in self.connection:
            if request.answer is None:
                try:
                    if refusal is None or appended:
                        request.answer = self.log.append(request.data)
                    if refusal is not None:
                        request.answer = KafkaError(refusal)
                except OutOfOrderSequence:
                    request.answer = KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
                except InvalidProducerEpoch:
                    request.answer = KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
                return

    def broker_reads_stray(self) -> None:
        """Process a request from a connection that the client has given up."""
        if self.strays:
            try:
                self.log.append(self.strays.popleft().data)
            except (OutOfOrderSequence, InvalidProducerEpoch):
                self.strays.clear()

    def reply(self) -> None:
        """Deliver the next response."""
        if self.connection and (answer := self.connection[0].answer) is not None:
            (batch,) = self.connection.popleft().shipment.batches
            if isinstance(answer, PylogdError):
                self.queue.failed(batch, answer, self.now)
            else:
                self.queue.written(batch, answer)

    def break_connection(self, *, arrives: bool) -> None:
        """Fail everything in flight; the broker may still receive later what it had not read."""
        lost, self.connection = self.connection, deque()
        if arrives:
            self.strays.extend(request for request in lost if request.answer is None)
        for request in lost:
            self.queue.failed(request.shipment.batches[0], BrokerUnavailable("lost"), self.now)

    def settle(self) -> None:
        """Stop all faults, and let everything end in time."""
        for _ in range(2000):
            if not self.accumulator.unfinished:
                break
            self.turn()
            self.broker_reads()
            self.reply()
            if not self.connection:
                self.now += 0.3
        assert not self.accumulator.unfinished
        assert self.accumulator.buffered == 0

    def check(self) -> None:
        values = [int(value) for value in self.log.values]
        assert len(set(values)) == len(values), "something is there twice"
        assert values == sorted(values), "out of order"
        there = set(values)
        first = 0
        for batch in self.batches:
            numbers = range(first, first + batch.count)
            first += batch.count
            result = batch.result  # of a batch that was split, the offset of its parts
            assert result is not None
            if result.error is None:
                assert there.issuperset(numbers), "acknowledged and not there"
                if result.base_offset >= 0:
                    assert values[result.base_offset] == numbers[0]


REFUSALS = [
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.REQUEST_TIMED_OUT,
]
LATE = [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER]

EVENTS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 3)),
    st.tuples(st.just("turn"), st.none()),
    st.tuples(st.just("read"), st.none()),
    st.tuples(st.just("served"), st.none()),
    st.tuples(st.just("refused"), st.sampled_from(REFUSALS)),
    st.tuples(st.just("refuse"), st.sampled_from(REFUSALS)),
    st.tuples(st.just("refuse late"), st.sampled_from(LATE)),
    st.tuples(st.just("reply"), st.none()),
    st.tuples(st.just("reply"), st.none()),
    st.tuples(st.just("break"), st.booleans()),
    st.tuples(st.just("stray"), st.none()),
    st.tuples(st.just("restart"), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from([0.05, 0.3, 1.0, 61.0])),
)


#: Four batches are written, and one of them is acknowledged; the broker stops and remembers only the last.
FORGOTTEN = [
    ("send", 1), ("read", None), ("reply", None), ("send", 1), ("send", 2), ("send", 3),
    ("read", None), ("read", None), ("read", None), ("restart", True), ("wait", 0.3),
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@example([("send", 1), ("served", None), ("send", 1), ("refused", ErrorCode.MESSAGE_TOO_LARGE)], 5)
@example(FORGOTTEN, 5)
@example([*FORGOTTEN, ("read", None), ("reply", None), ("break", False)], 5)
@example([*FORGOTTEN, ("read", None), ("reply", None), ("break", True), ("wait", 0.3), ("stray", None)], 5)
@given(st.lists(EVENTS, max_size=80), st.sampled_from([1, 2, 5]))
def test_no_record_is_repeated_lost_or_reordered(events: list[tuple[str, object]], max_in_flight: int) -> None:
    world = World(random.Random(0), max_in_flight)
    for what, how in events:
        if what == "send":
            world.send(how)  # type: ignore[arg-type]
            world.turn()
        elif what == "turn":
            world.turn()
        elif what == "read":
            world.broker_reads()
        elif what in ("served", "refused"):
            world.broker_reads(how)  # type: ignore[arg-type]
            world.reply()
            world.turn()
        elif what == "refuse":
            world.broker_reads(how)  # type: ignore[arg-type]
        elif what == "refuse late":
            world.broker_reads(how, appended=True)  # type: ignore[arg-type]
        elif what == "reply":
            world.reply()
            world.turn()
        elif what == "break":
            world.break_connection(arrives=bool(how))
        elif what == "stray":
            world.broker_reads_stray()
        elif what == "restart":
            world.break_connection(arrives=False)
            world.strays.clear()
            if how:
                world.log.restart()
        elif what == "wait":
            world.now += how  # type: ignore[operator]
            world.turn()
    world.settle()
    world.send(1)
    world.settle()
    assert world.results[world.batches[-1].number].error is None, "all is well again, but for the producer"
    world.check()
