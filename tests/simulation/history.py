"""A seeded history: producers and consumers work while faults are injected, and invariants are checked.

All the time, a client that is no broker sends fetches in the name of followers, which claim all of the leader's log.

Checked whenever a replica's log, high watermark or membership in the in-sync set has changed:

- all replicas show the same committed records: nothing that was shown is lost;
- every in-sync or eligible replica, according to the store, has all records that were ever shown, whether it runs or
  not; except one that lost its power or its disk, until its broker is live again;
- records acknowledged with acks=all are committed;
- no two brokers accept clients' batches in the same leader epoch.

Checked at the end, with everything healed: all replicas have the same bytes; each producer's messages are there once
and in order; acknowledged messages are at their offsets.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, cast

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api import HANDLERS
from pylogd.broker.api.context import RequestContext
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import decode_batch, encode_batch, iter_batches
from tests.fakes.parts import FakeConnection, decoded
from tests.simulation.nemesis import TOPIC, TroubledWorld
from tests.simulation.world import FETCH_VERSION, SimBroker, _freeze

PRODUCE_VERSION = 9
_PATIENCE = 0.3  # seconds that a producer waits for a response
_TRIES_SECONDS = 0.02


class Violation(AssertionError):
    """An invariant is violated."""


@dataclass(slots=True)
class Ledger:
    """All records of a partition that were ever shown as committed: their bytes, and the end of each batch."""

    data: bytearray = field(default_factory=bytearray)
    end: int = 0
    places: dict[int, int] = field(default_factory=lambda: {0: 0})  # offset -> byte

    def extend(self, log: bytes | bytearray, high_watermark: int) -> None:
        """Add the records up to `high_watermark`, which a replica shows first."""
        at = len(self.data)
        for header, view in iter_batches(memoryview(log)[at:], allow_partial=True):
            if header.last_offset >= high_watermark:
                break
            self.data += view
            at += len(view)
            self.end = header.next_offset
            self.places[self.end] = at


class Producer:
    """An idempotent producer of one partition. It sends one batch at a time until that is acknowledged."""

    def __init__(self, history: History, number: int, partition: int) -> None:
        self.history = history
        self.number = number
        self.partition = partition
        self.sequence = 0
        self.acked: dict[int, int] = {}  # sequence -> offset
        self.attempt = 0
        self.stopped = False

    def send(self) -> None:
        """Send the current message to the broker that counts as the leader."""
        world = self.history.world
        self.attempt += 1
        attempt = self.attempt
        world.clock.callLater(_PATIENCE, self._again, attempt)
        asked = world.rng.choice(list(world.brokers.values()))
        topic = asked.topics.get(TOPIC) if asked.alive and asked.ready else None
        leader = topic.partitions[self.partition].leader if topic is not None else -1
        if leader not in world.brokers:
            return
        batch = encode_batch(
            [(None, f"{self.number}:{self.sequence}".encode(), int(world.time.now * 1000), ())],
            producer_id=self.number, producer_epoch=0, base_sequence=self.sequence,
        )  # fmt: skip
        data = PartitionProduceData(self.partition, memoryview(batch))
        request = ProduceRequest(None, -1, 5000, [TopicProduceData(TOPIC, partition_data=[data])])
        world.clock.callLater(world.network.delay(), self._arrive, attempt, world.brokers[leader], request)

    def _arrive(self, attempt: int, broker: SimBroker, request: ProduceRequest) -> None:
        if broker.alive and broker.ready:
            broker.run(broker.boots, self._handle, attempt, broker, request)

    def _handle(self, attempt: int, broker: SimBroker, request: ProduceRequest) -> None:
        context = RequestContext(cast(Any, broker), cast(Any, broker), PRODUCE_VERSION, "producer")
        response = decoded(HANDLERS[ProduceRequest.API_KEY](context, request), ProduceRequest.API_KEY, PRODUCE_VERSION)
        if isinstance(response, Deferred):
            response.addCallback(self._answer, attempt, broker)
        else:
            self._answer(response, attempt, broker)

    def _answer(self, response: Any, attempt: int, broker: SimBroker) -> None:
        if broker.alive and not broker.time.paused:
            answer = response.responses[0].partition_responses[0]
            delay = self.history.world.network.delay()
            self.history.world.clock.callLater(delay, self._answered, attempt, answer.error_code, answer.base_offset)
        # The leader has to have acknowledged messages, even if the response is lost.

    def _answered(self, attempt: int, code: int, offset: int) -> None:
        if attempt != self.attempt:
            return
        if code == ErrorCode.NONE:
            self.acked[self.sequence] = offset
            self.history.acknowledged(self.partition, offset, f"{self.number}:{self.sequence}")
            self.sequence += 1
            self._soon(attempt, self.history.world.rng.uniform(0, 0.02))
        else:
            self._soon(attempt, _TRIES_SECONDS)

    def _soon(self, attempt: int, seconds: float) -> None:
        self.history.world.clock.callLater(seconds, self._again, attempt)

    def _again(self, attempt: int) -> None:
        if attempt == self.attempt and not self.stopped:
            self.send()


class History(TroubledWorld):
    """A history; see the module. `run` raises Violation."""

    def __init__(self, seed: int, brokers: int = 3, **settings: Any) -> None:
        super().__init__(seed, brokers, **settings)
        self.world = self
        self.ledgers = [Ledger() for _ in range(self.partitions)]
        self.took: dict[tuple[str, int, int], int] = {}  # (topic, partition, leader epoch) -> broker
        self.producers = [Producer(self, number, number % self.partitions) for number in range(self.partitions * 2)]
        self.seen: dict[tuple[int, int], tuple[Any, ...]] = {}
        self.steps = 0
        self.consumed = [0] * self.partitions
        self._forger = random.Random(seed)  # of its own, so that histories are what they are without it

    # -- running

    def run(self, seconds: float = 4.0, nemesis: bool = True) -> None:
        """Start everything, run for `seconds` with faults, heal, and check the end state."""
        random.seed(self.seed)  # for random choices of the brokers
        for broker in self.brokers.values():
            broker.start()
        self.advance(2.0, lambda: all(broker.ready for broker in self.brokers.values()))
        self.advance(5.0, lambda: all(len(b.cluster.brokers) == len(self.brokers) for b in self.brokers.values()))
        self._create_topic()
        if not self.advance(20.0, self._topic_is_everywhere):
            raise Violation(f"the cluster did not start: {self.describe()}")
        self.start_clients()
        if nemesis:
            self.cause_trouble()
        self.advance(seconds)
        self.nemesis_over = True
        self._recover()
        self._conclude()

    def start_clients(self) -> None:
        """Start producers and consumers."""
        for producer in self.producers:
            producer.send()
        self._consume()
        self._forge()

    def _create_topic(self) -> None:
        """Request the topic until it exists."""
        broker = self.brokers[1]
        if broker.ready and broker.topics.get(TOPIC) is None:
            made = broker.topic_admin.create_topic(TOPIC, partitions=self.partitions, configs=self.topic_configs)
            made.addErrback(lambda _: None)
        if not self._topic_is_everywhere():
            self.clock.callLater(0.5, self._create_topic)

    def _topic_is_everywhere(self) -> bool:
        there = sum(len(broker.partitions.by_name) for broker in self.brokers.values() if broker.ready)
        return there == self.partitions * self.brokers[1].settings.integer("default.replication.factor")

    def advance(self, seconds: float, until: Any = None) -> bool:
        """Run events for `seconds`, or until `until` is true. Return whether it became true."""
        end = self.time.now + seconds
        while self.time.now < end:
            if until is not None and until():
                return True
            if not self.time.step():
                break
            self.steps += 1
            self.check()
        return until is None or bool(until())

    def _recover(self) -> None:
        self.say("everything heals")
        self.heal()
        for broker in self.brokers.values():
            if not broker.alive:
                broker.start()
        if not self.advance(20.0, self._is_whole):
            raise Violation(f"the cluster did not recover: {self.describe()}")
        for producer in self.producers:
            target = producer.sequence + 2
            if not self.advance(10.0, lambda producer=producer, target=target: producer.sequence >= target):
                raise Violation(f"producer {producer.number} can't go on: {self.describe()}")
        for producer in self.producers:
            producer.stopped = True
        if not self.advance(10.0, self._is_level):
            raise Violation(f"the replicas did not come to the same end: {self.describe()}")

    def _is_whole(self) -> bool:
        self.read_states()
        return bool(self.states) and all(
            state.leader >= 0 and len(state.isr) == len(state.replicas) and not state.adding for state in self.states
        )

    def _is_level(self) -> bool:
        for index, state in enumerate(self.states):
            found = [self.brokers[node].partition(TOPIC, index) for node in state.replicas]
            if any(one is None or one.high_watermark != one.log.log_end_offset for one in found):
                return False
            if len({one.log.log_end_offset for one in found}) != 1:
                return False
        return True

    def describe(self) -> str:
        """Where things stand."""
        lines = [f"{state}" for state in self.states]
        for node, broker in self.brokers.items():
            found = broker.partitions.by_name.values() if broker.alive and broker.ready else ()
            lines.append(
                f"broker {node}: {'alive' if broker.alive else 'dead'} {'ready' if broker.ready else ''} "
                + ", ".join(f"{one!r} hw {one.high_watermark}{_end_of(one)}" for one in found)
            )
        return "\n".join([*lines, *self.events])

    # -- consumers

    def _consume(self) -> None:
        """Read from a random broker as a consumer does, and compare."""
        if not self.nemesis_over:
            self.clock.callLater(0.05, self._consume)
        broker = self.rng.choice(list(self.brokers.values()))
        index = self.rng.randrange(self.partitions)
        topic = broker.topics.get(TOPIC) if broker.alive and broker.ready else None
        if topic is None:
            return
        wanted = FetchPartition(index, fetch_offset=self.consumed[index], partition_max_bytes=10_000)
        request = FetchRequest(topics=[FetchTopic(topic_id=topic.topic_id, partitions=[wanted])])
        context = RequestContext(cast(Any, broker), cast(Any, broker), FETCH_VERSION, "consumer")
        response = HANDLERS[FetchRequest.API_KEY](context, request)
        if isinstance(response, Deferred):
            return  # a real broker would read it in a thread
        _freeze(response)
        for data in response.responses[0].partitions:
            ledger = self.ledgers[index]
            for header, view in iter_batches(memoryview(data.records or b""), allow_partial=True):
                place = ledger.places.get(header.next_offset)
                if place is None or ledger.data[place - len(view) : place] != view:
                    raise Violation(f"a consumer of {broker.node_id} saw {header} that is not committed")
                self.consumed[index] = header.next_offset

    # -- a client that says it is a broker

    def _forge(self) -> None:
        """Tell a leader that a follower has all of its log."""
        if not self.nemesis_over:
            self.clock.callLater(0.02, self._forge)
        broker = self._forger.choice(list(self.brokers.values()))
        partition = broker.partition(TOPIC, self._forger.randrange(self.partitions))
        if partition is None or not partition.online:
            return
        wanted = FetchPartition(partition.index, partition.leader_epoch, partition.log.log_end_offset)
        follower = ReplicaState(self._forger.choice([node for node in self.brokers if node != broker.node_id]), -1)
        request = FetchRequest(
            replica_state=follower, topics=[FetchTopic(topic_id=partition.topic_id, partitions=[wanted])]
        )
        context = RequestContext(cast(Any, broker), FakeConnection(), FETCH_VERSION, "forger")
        HANDLERS[FetchRequest.API_KEY](context, request)

    # -- invariants

    def admitted(self, broker: SimBroker) -> None:
        """Note that a broker is live again."""
        self.damaged.discard(broker.node_id)

    def accepted(self, broker: SimBroker, partition: Any) -> None:
        """Check that one broker accepts batches per leader epoch."""
        holder = self.took.setdefault((partition.topic, partition.index, partition.leader_epoch), broker.node_id)
        if holder != broker.node_id:
            raise Violation(f"{holder} and {broker.node_id} both lead {partition!r} in one epoch")

    def acknowledged(self, index: int, offset: int, value: str) -> None:
        """Note that a message was acknowledged at `offset`."""
        ledger = self.ledgers[index]
        if offset >= ledger.end:
            raise Violation(f"{value} was acknowledged at {offset}, and only {ledger.end} are committed")

    def check(self) -> None:
        """Check everything that has changed."""
        if self.faults:
            raise Violation(f"a handler failed: {self.faults[0].getTraceback()}")
        changed = self.stored != self.tree.transaction and self.read_states()
        broker = self.running.get(self.time.ran)  # nothing else has changed
        if broker is not None and broker.ready:
            node = broker.node_id
            for index in range(self.partitions):
                partition = broker.partitions.by_name.get((TOPIC, index))
                if partition is None or not partition.online:
                    continue
                now = broker.boots, partition.high_watermark, partition.log.log_end_offset
                if self.seen.get((node, index)) != now:
                    before = self.seen.get((node, index))
                    self.seen[node, index] = now
                    self._check_replica(broker, index, now[1], before, now)
                    changed = True
        if changed:
            self._check_in_sync()

    def _check_replica(self, broker: SimBroker, index: int, high_watermark: int, before: Any, now: Any) -> None:
        ledger = self.ledgers[index]
        log = broker.bytes_of(TOPIC, index)
        if high_watermark > ledger.end:
            ledger.extend(bytes(log), high_watermark)
            if ledger.end != high_watermark:
                raise Violation(f"broker {broker.node_id} shows {high_watermark} of {index}: not the end of a batch")
        place = ledger.places.get(high_watermark)
        if place is None or log[:place] != ledger.data[:place]:
            raise Violation(
                f"broker {broker.node_id} shows {high_watermark} of partition {index}, and has something else there "
                f"than was shown before ({before} -> {now})"
            )

    def _check_in_sync(self) -> None:
        for state in self.states:
            ledger = self.ledgers[state.index]
            for node in (*state.isr, *state.elr):
                if node in self.damaged:
                    continue
                if not self.brokers[node].bytes_of(TOPIC, state.index).startswith(ledger.data):
                    raise Violation(f"{node} counts as up to date in {state}, and lacks some of {ledger.end}")

    def _conclude(self) -> None:
        for index, state in enumerate(self.states):
            logs = {node: bytes(self.brokers[node].bytes_of(TOPIC, index)) for node in state.replicas}
            if len(set(logs.values())) != 1:
                raise Violation(f"the replicas of {index} differ: {[(node, len(log)) for node, log in logs.items()]}")
            values: dict[str, int] = {}
            for header, view in iter_batches(next(iter(logs.values()))):
                for record in decode_batch(view, header):
                    value = (record.value or b"").decode()
                    if value in values:
                        raise Violation(f"{value} is in {index} twice, at {values[value]} and {record.offset}")
                    values[value] = record.offset
            self._check_order(index, values)

    def _check_order(self, index: int, values: dict[str, int]) -> None:
        for producer in self.producers:
            if producer.partition != index:
                continue
            for sequence, offset in producer.acked.items():
                if values.get(f"{producer.number}:{sequence}") != offset:
                    raise Violation(f"{producer.number}:{sequence} was acknowledged at {offset} and is not there")
            sequences = [int(v.partition(":")[2]) for v in values if v.startswith(f"{producer.number}:")]
            if sequences != sorted(sequences):
                raise Violation(f"the messages of producer {producer.number} are out of order")


def _end_of(partition: Any) -> str:
    return f" end {partition.log.log_end_offset}" if partition.online else ""
