"""Clients of transactions in simulated histories: producers with a transactional id, and readers of committed records.

A producer is a row of processes: one ends, without a word, in the middle of a transaction or when it is told to, and
the next one begins with the same transactional id. What an ended process still had to say is said later: it goes on as
a process that was paused (a zombie). Requests are repeated when no answer comes, and some are delivered a second time,
much later. Half of the producers use one epoch for all transactions, the others one for each (KIP-890).
"""

from __future__ import annotations

from typing import Any, Final, cast

from twisted.internet.defer import Deferred, maybeDeferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api import HANDLERS
from pylogd.broker.api.context import RequestContext
from pylogd.broker.log.markers import read_marker
from pylogd.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from pylogd.wire.messages.end_txn import EndTxnRequest
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import TRANSACTIONAL, decode_batch, encode_batch, iter_batches
from tests.fakes.parts import decoded
from tests.simulation.nemesis import TOPIC
from tests.simulation.world import FETCH_VERSION, SimBroker, _freeze

TIMEOUT_MS: Final = 1500
#: Seconds that a client waits for an answer, and before it repeats a request.
_PATIENCE, _PAUSE = 0.5, 0.02
#: How often a batch is sent before its transaction is given up.
_TRIES = 60
_E = ErrorCode
#: What a client repeats a request for.
PASSING = frozenset(
    {
        _E.REQUEST_TIMED_OUT, _E.NOT_LEADER_OR_FOLLOWER, _E.LEADER_NOT_AVAILABLE, _E.UNKNOWN_TOPIC_OR_PARTITION,
        _E.NOT_ENOUGH_REPLICAS, _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, _E.KAFKA_STORAGE_ERROR, _E.NETWORK_EXCEPTION,
        _E.COORDINATOR_LOAD_IN_PROGRESS, _E.COORDINATOR_NOT_AVAILABLE, _E.NOT_COORDINATOR,
        _E.CONCURRENT_TRANSACTIONS,
    }
)  # fmt: skip


class Client:
    """What asks brokers, without connections: requests overtake each other, and answers get lost."""

    def __init__(self, world: Any) -> None:
        self.world = world

    def ask(
        self, broker: SimBroker, message: Any, version: int, delay: float = 0.0, patience: float = _PATIENCE
    ) -> Deferred[Any]:
        """Return a Deferred of the response of a broker, which is None if none comes."""
        world = self.world
        done: Deferred[Any] = Deferred()

        def arrive() -> None:
            if broker.alive and broker.ready:
                broker.run(broker.boots, handle)

        def handle() -> None:
            context = RequestContext(cast(Any, broker), cast(Any, broker), version, "client")
            answered = maybeDeferred(HANDLERS[message.API_KEY], context, message)
            answered.addCallback(decoded, message.API_KEY, version).addCallbacks(answer, world.fault)

        def answer(response: Any) -> None:
            if broker.alive and not broker.time.paused:
                world.clock.callLater(world.network.delay(), fire, response)

        def fire(response: Any) -> None:
            if not done.called:
                done.callback(response)

        world.clock.callLater(delay + world.network.delay(), arrive)
        world.clock.callLater(delay + patience, fire, None)
        return done

    async def pause(self, seconds: float = _PAUSE) -> None:
        done: Deferred[None] = Deferred()
        self.world.clock.callLater(seconds, done.callback, None)
        await done

    def any_broker(self) -> SimBroker | None:
        """Return some broker; None if it is down."""
        broker: SimBroker = self.world.rng.choice(list(self.world.brokers.values()))
        return broker if broker.alive and broker.ready else None


class Process(Client):
    """One process of a producer. `fenced`: when its successor got an epoch, None while it has none."""

    def __init__(self, producer: TransactionalProducer) -> None:
        super().__init__(producer.history)
        self.producer = producer
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[int, int] = {}
        self.fenced: float | None = None

    # -- asking brokers

    def _coordinator(self) -> SimBroker | None:
        """Return what some broker takes for the coordinator; that creates its topic if it is missing."""
        asked = self.any_broker()
        if asked is None:
            return None
        node = asked.transactions.coordinator_of(self.producer.name)
        return self.world.brokers.get(node) if type(node) is int else None

    def _leader(self, index: int) -> SimBroker | None:
        asked = self.any_broker()
        topic = None if asked is None else asked.topics.get(TOPIC)
        return None if topic is None else self.world.brokers.get(topic.partitions[index].leader)

    async def _ask_coordinator(self, message: Any, version: int) -> Any:
        """Repeat a request until the coordinator's answer is not one that passes. None if that takes too long."""
        while self.world.time.now < self.world.deadline:
            coordinator = self._coordinator()
            response = None if coordinator is None else await self.ask(coordinator, message, version)
            if response is not None and error_in(response) not in PASSING:
                return response
            await self.pause()
        return None

    # -- what a producer does

    async def initialize(self) -> bool:
        """Get an epoch. Return whether there is one."""
        message = InitProducerIdRequest(self.producer.name, TIMEOUT_MS)
        response = await self._ask_coordinator(message, 5)
        if response is None or response.error_code:
            return False
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        self.producer.told(self.producer_id, self.epoch)
        return True

    async def add(self, indexes: set[int]) -> ErrorCode:
        """Add partitions to the transaction, as producers do that have one epoch."""
        topics = [AddPartitionsToTxnTopic(TOPIC, sorted(indexes))]
        message = AddPartitionsToTxnRequest([], self.producer.name, self.producer_id, self.epoch, topics)
        response = await self._ask_coordinator(message, 3)
        return _E.REQUEST_TIMED_OUT if response is None else error_in(response)

    async def send(self, index: int, value: str) -> ErrorCode:
        """Send a record until it is acknowledged or refused."""
        sequence = self.sequences.get(index, 0)
        self.sequences[index] = sequence + 1
        batch = encode_batch(
            [(None, value.encode(), int(self.world.time.now * 1000), ())], producer_id=self.producer_id,
            producer_epoch=self.epoch, base_sequence=sequence, attributes=TRANSACTIONAL,
        )  # fmt: skip
        data = PartitionProduceData(index, memoryview(batch))
        message = ProduceRequest(self.producer.name, -1, 5000, [TopicProduceData(TOPIC, partition_data=[data])])
        version = 12 if self.producer.epochs else 11
        for _ in range(_TRIES):
            leader = self._leader(index)
            if leader is not None:
                if self.world.rng.random() < self.world.late_copies:  # once more, much later
                    self.ask(leader, message, version, self.world.rng.uniform(0.05, 2.5))
                response = await self.ask(leader, message, version)
                code = _E.NETWORK_EXCEPTION if response is None else error_in(response)
                if code in (_E.NONE, _E.DUPLICATE_SEQUENCE_NUMBER):
                    return _E.NONE
                if code not in PASSING:
                    return code
            await self.pause()
        return _E.REQUEST_TIMED_OUT

    async def end(self, *, commit: bool) -> ErrorCode:
        """Commit or abort, and take the next epoch if there is one."""
        asked = self.world.time.now
        message = EndTxnRequest(self.producer.name, self.producer_id, self.epoch, commit)
        response = await self._ask_coordinator(message, 5 if self.producer.epochs else 4)
        if response is None:
            return _E.REQUEST_TIMED_OUT
        code = ErrorCode(response.error_code)
        if code is _E.NONE and self.fenced is not None and self.fenced < asked:
            self.world.broken(f"{self.producer.name}: a process that was fenced has ended a transaction")
        if code is _E.NONE and self.producer.epochs:
            self.sequences.clear()
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            if self.fenced is None:
                self.producer.told(self.producer_id, self.epoch)
        return code

    async def transaction(self, name: str) -> bool:
        """Do one transaction, and record its outcome. Return whether this process goes on."""
        outcomes, rng = self.world.outcomes, self.world.rng
        outcomes[name] = "aborted"
        size = rng.randint(1, 3)
        indexes = [rng.randrange(self.world.partitions) for _ in range(size)]
        code = _E.NONE if self.producer.epochs else await self.add(set(indexes))
        for number, index in enumerate(indexes):
            code = code or await self.send(index, f"{name}/{number}/{size}")
        if rng.random() < 0.15:
            self._come_back_later(name, complete=not code)
            return False
        if code:
            await self.end(commit=False)
            return False
        if rng.random() < 0.25:
            return await self.end(commit=False) is _E.NONE
        outcomes[name] = "unknown"
        code = await self.end(commit=True)
        if code is _E.NONE:
            outcomes[name] = "committed"
        return code is _E.NONE

    def _come_back_later(self, name: str, *, complete: bool) -> None:
        """End in the middle of a transaction. Go on with it later, or never.

        complete: whether all of its records are written, so that it may be committed.
        """
        rng = self.world.rng
        if rng.random() < 0.7:
            commits = complete and rng.random() < 0.5
            if commits:
                self.world.outcomes[name] = "unknown"
            self.world.clock.callLater(rng.uniform(0.0, 2.0), lambda: self.world.begin(self._go_on(name, commits)))

    async def _go_on(self, name: str, commits: bool) -> None:
        if commits:
            await self.end(commit=True)
        else:
            await self.send(self.world.rng.randrange(self.world.partitions), f"{name}/0/1")  # twice, if ever committed
            await self.end(commit=False)


class TransactionalProducer:
    """All processes with one transactional id. epochs: whether each transaction has an epoch of its own."""

    def __init__(self, history: Any, number: int) -> None:
        self.history = history
        self.name = f"p{number}"
        self.epochs = number % 2 == 0
        self.process: Process | None = None
        self._last = (-1, -1)
        self._count = 0

    def told(self, producer_id: int, epoch: int) -> None:
        """Note an id and epoch that the coordinator has given; they never go back."""
        if (producer_id, epoch) <= self._last:
            self.history.broken(f"{self.name} was given {(producer_id, epoch)} after {self._last}")
        self._last = producer_id, epoch

    async def work(self) -> None:
        """Do transactions until the history stops."""
        while not self.history.stopping:
            process = Process(self)
            if not await process.initialize():
                continue
            if self.process is not None:
                self.process.fenced = self.history.time.now
            self.process = process
            goes_on = True
            while goes_on and not self.history.stopping:
                self._count += 1
                goes_on = await process.transaction(f"{self.name}-{self._count}")


class CommittedReader:
    """Reads all partitions as a client with `isolation.level=read_committed`, from leaders and followers.

    seen: by partition, offset and value in order.
    """

    def __init__(self, history: Any) -> None:
        self.history = history
        self.seen: list[list[tuple[int, str]]] = [[] for _ in range(history.partitions)]
        self._next = [0] * history.partitions
        self._stable: dict[tuple[int, int], int] = {}  # by partition and leader epoch

    def read(self) -> None:
        """Read a part of one partition from some broker."""
        history = self.history
        broker = history.rng.choice(list(history.brokers.values()))
        index = history.rng.randrange(history.partitions)
        topic = broker.topics.get(TOPIC) if broker.alive and broker.ready else None
        if topic is None:
            return
        wanted = FetchPartition(index, fetch_offset=self._next[index], partition_max_bytes=1000)
        request = FetchRequest(isolation_level=1, topics=[FetchTopic(topic_id=topic.topic_id, partitions=[wanted])])
        context = RequestContext(cast(Any, broker), cast(Any, broker), FETCH_VERSION, "reader")
        response = HANDLERS[FetchRequest.API_KEY](context, request)
        if isinstance(response, Deferred):
            return  # a real broker would read it in a thread
        _freeze(response)
        for data in response.responses[0].partitions:
            if not data.error_code:
                self._check_stable_offset(broker, index, data.last_stable_offset)
                self._take(index, data)

    def _check_stable_offset(self, broker: SimBroker, index: int, stable: int) -> None:
        partition = broker.partition(TOPIC, index)
        if partition is None or not partition.leading:
            return
        key = index, partition.leader_epoch
        if stable < self._stable.get(key, 0):
            self.history.broken(
                f"the last stable offset of {index} went back from {self._stable[key]} to {stable} on {broker.node_id}"
            )
        self._stable[key] = stable

    def _take(self, index: int, data: Any) -> None:
        """Filter the records as clients do: by the list of aborted transactions, and their markers."""
        aborted = sorted((one.first_offset, one.producer_id) for one in data.aborted_transactions or ())
        inside: set[int] = set()
        for header, view in iter_batches(memoryview(data.records or b""), allow_partial=True):
            if header.next_offset > data.last_stable_offset:
                self.history.broken(f"a reader got {header} behind the last stable offset {data.last_stable_offset}")
            while aborted and aborted[0][0] <= header.base_offset:
                inside.add(aborted.pop(0)[1])
            if header.is_control:
                marker = read_marker(header, view)
                if marker is not None and not marker.committed:
                    inside.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in inside):
                self.seen[index] += [
                    (record.offset, (record.value or b"").decode())
                    for record in decode_batch(view, header)
                    if record.offset >= self._next[index]
                ]
            self._next[index] = max(self._next[index], header.next_offset)


def error_in(response: Any) -> ErrorCode:
    """Return the first error code of a response to a producer."""
    if hasattr(response, "responses"):
        return ErrorCode(response.responses[0].partition_responses[0].error_code)
    if hasattr(response, "results_by_topic_v3_and_below"):
        codes = [
            result.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        ]
        return ErrorCode(next((code for code in codes if code), 0))
    return ErrorCode(response.error_code)
