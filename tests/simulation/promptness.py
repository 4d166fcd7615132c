"""A seeded history without faults, in which nothing that is committed may stay unseen: waits end when they are over.

Followers and readers would wait for half a minute, and the network is quick. So whatever takes longer than some trips
through the network was due, and nobody looked: a lost wake-up. Few clients write, one transaction at a time, with
pauses, since the next append would hide a lost wake-up. Checked:

- what a leader appends is committed within the bound, in the topics of coordinators too;
- what a leader has committed, up to the last stable offset for read_committed, every reader that waits has within the
  bound: with a session and without one, by messages and by the bytes of requests that repeat (`fast`);
- when a producer is told that its transaction has ended, the last stable offset follows within the bound;
- requests that wait for replicas are answered within the bound; in `PromptGroupHistory` also those of the members of a
  group, but for joins and syncs, which wait for other members.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, cast
from unittest import mock

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.fast.fetch import answer_repeated
from pylogd.broker.api.fetch import answer_after_wait
from pylogd.wire.compression import CompressionType
from pylogd.wire.crc import crc32c
from pylogd.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from pylogd.wire.messages.end_txn import EndTxnRequest
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from pylogd.wire.messages.heartbeat import HeartbeatRequest
from pylogd.wire.messages.leave_group import LeaveGroupRequest
from pylogd.wire.messages.offset_commit import OffsetCommitRequest
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from pylogd.wire.records import encode_batch, iter_batches
from pylogd.wire.schema import response_codec
from pylogd.wire.session import ClientSession
from tests.fakes.parts import FakeConnection
from tests.simulation.groups import GroupHistory
from tests.simulation.history import Violation
from tests.simulation.nemesis import TOPIC
from tests.simulation.transactional_clients import Client, Process, TransactionalProducer
from tests.simulation.transactions import TransactionHistory
from tests.simulation.world import FETCH_VERSION, SimBroker, _freeze

#: Seconds: the longest trip through the network, and how long fetches wait at most.
_TRIP, _FETCH_WAIT = 0.002, 30.0
#: Seconds within which what is due has to be seen: some trips, and some threads.
BOUND: Final = 0.1
#: The same where appends are written by threads, which take up to 10 ms each.
BOUND_WITH_QUEUES: Final = 0.3
_PATIENCE = 1000.0
_SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        "replica_fetch_wait_max_ms": int(_FETCH_WAIT * 1000), "replica_lag_time_max_ms": 60_000,
        "replica_socket_timeout_ms": 30_000, "auto_leader_rebalance_enable": "false",
        "transaction_state_log_num_partitions": 6, "log_validate_compressed": "true",
        "log_write_queues": "off",
    }
)  # fmt: skip
#: What a coordinator answers as soon as it is stored: not what waits for other members.
_ANSWERED_SOON: Final = frozenset(
    one.API_KEY
    for one in (
        ConsumerGroupHeartbeatRequest, EndTxnRequest, HeartbeatRequest, LeaveGroupRequest, OffsetCommitRequest,
        OffsetFetchRequest, TxnOffsetCommitRequest,
    )
)  # fmt: skip
_CRC_AT, _LAST_DELTA_AT, _COUNT_AT = 17, 23, 57  # in a batch
_FRAME_VERSION = 16  # of Fetch, as librdkafka requests it


class PromptHistory(TransactionHistory):
    """A history without faults; see the module. bound: in seconds."""

    partitions = 6
    thread_seconds = 0.015  # longer than a batch takes to its followers and back
    late_copies = 0.0

    def __init__(self, seed: int, brokers: int = 3, *, bound: float = BOUND, **settings: Any) -> None:
        super().__init__(seed, brokers, producers=4, **{**_SETTINGS, **settings})
        self.producers = []
        self.bound = bound
        self.network.delay = lambda: self.rng.uniform(_TRIP / 4, _TRIP)
        self.readers: list[WaitingReader] = []
        self._much = self.rng.randbytes(9000)
        self.expected = 0  # how often something had to be seen
        self._known: dict[tuple[int, tuple[str, int]], tuple[int, int, int]] = {}

    def run(self, seconds: float = 6.0, nemesis: bool = False) -> None:
        """Run without faults."""
        super().run(seconds, nemesis)

    def start_clients(self) -> None:
        """Start readers, and one writer of each kind."""
        self.read_states()
        for node in self.brokers:
            led = [state.index for state in self.states if state.leader == node]
            for committed in (False, True) if led else ():
                self.readers += [
                    WaitingReader(self, node, led, committed=committed, session=True),
                    WaitingReader(self, node, led, committed=committed, session=False),
                    FastReader(self, node, led[:1], committed=committed, session=False),
                    FastReader(self, node, led, committed=committed, session=True),
                ]
        for reader in self.readers:
            Deferred.fromCoroutine(reader.work()).addErrback(self.fault)
        self.begin(self._transact())
        self.begin(self._produce())

    # -- what has to be seen

    def check(self) -> None:
        """Note what is new at the leader on which something happened, and check later that it is seen."""
        super().check()
        broker = self.running.get(self.time.ran)
        if broker is None or not broker.ready:
            return
        for key, partition in broker.partitions.by_name.items():
            if not partition.leading:
                continue
            now = partition.log.log_end_offset, partition.high_watermark, partition.last_stable_offset
            before = self._known.get((broker.node_id, key), (0, 0, 0))
            if now == before:
                continue
            self._known[broker.node_id, key] = now
            if now[0] > before[0]:
                self._expect(self._is_committed, partition, now[0])
            for committed in (False, True) if key[0] == TOPIC else ():
                if now[1 + committed] > before[1 + committed]:
                    self._expect(self._is_seen, broker.node_id, key[1], now[1 + committed], committed)

    def _expect(self, look: Any, *what: Any) -> None:
        self.expected += 1
        self.clock.callLater(self.bound, look, *what)

    def _is_committed(self, partition: Any, end: int) -> None:
        if partition.high_watermark < end:
            self.broken(f"{partition!r} was appended to {end}, and is committed to {partition.high_watermark} only")

    def _is_stable(self, partition: Any, end: int, name: str) -> None:
        if partition.last_stable_offset < end:
            self.broken(f"{name} has ended, and {partition!r} is stable to {partition.last_stable_offset} of {end}")

    def _is_seen(self, node: int, index: int, end: int, committed: bool) -> None:
        for reader in self.readers:
            if (reader.node, reader.committed) == (node, committed) and reader.positions.get(index, end) < end:
                self.broken(
                    f"partition {index} may be read to {end}, and {reader!r} waits at {reader.positions[index]}"
                )

    def in_time(self, what: str, began: float) -> None:
        """Check how long a request took."""
        if self.time.now - began > self.bound:
            self.broken(f"{what} took {self.time.now - began:.3f} s")

    # -- writers

    async def _transact(self) -> None:
        """Do one transaction after the other, of any of the producers."""
        processes: dict[TransactionalProducer, Process] = {}
        number, client = 0, Client(self)
        while not self.stopping:
            producer = self.rng.choice(self.transactional)
            process = processes.get(producer)
            if process is None:
                process = processes[producer] = Process(producer)
                while not await process.initialize():
                    await client.pause()
            number += 1
            await self._transaction(process, f"{producer.name}-{number}")
            await client.pause(self.rng.uniform(0.0, 3 * self.bound))

    async def _transaction(self, process: Process, name: str) -> None:
        indexes = self.rng.sample(range(self.partitions), self.rng.randint(1, 3))
        began = self.time.now
        if not process.producer.epochs and (code := await process.add(set(indexes))):
            raise Violation(f"{name} can't add partitions: {code.name}")
        self.in_time("adding partitions", began)
        for at, index in enumerate(indexes):
            began = self.time.now
            if code := await process.send(index, f"{name}/{at}/{len(indexes)}"):
                raise Violation(f"{name} can't produce: {code.name}")
            self.in_time("a transactional batch", began)
        commit, began = self.rng.random() < 0.8, self.time.now
        if code := await process.end(commit=commit):
            raise Violation(f"{name} can't be ended: {code.name}")
        self.in_time("the end of a transaction", began)
        self.outcomes[name] = "committed" if commit else "aborted"
        for index in indexes:
            partition = self.brokers[self.states[index].leader].partition(TOPIC, index)
            self._expect(self._is_stable, partition, partition.log.log_end_offset, name)
        await Client(self).pause(1.5 * self.bound)  # so that no later transaction is open then

    async def _produce(self) -> None:
        """Produce to several partitions with one request, as producers without transactions do."""
        client, number = Client(self), 0
        while not self.stopping:
            node = self.rng.choice(sorted(self.brokers))
            led = [state.index for state in self.states if state.leader == node]
            some = self.rng.sample(led, self.rng.randint(0, len(led)))
            number += 1
            if some:
                broken = self.rng.choice([*some, *led]) if len(some) > 1 else -1
                data = [PartitionProduceData(index, self._batch(index, number, broken == index)) for index in some]
                request = ProduceRequest(None, -1, 20_000, [TopicProduceData(TOPIC, partition_data=data)])
                began = self.time.now
                response = await client.ask(self.brokers[node], request, 11, patience=_PATIENCE)
                refused = [one.index for one in response.responses[0].partition_responses if one.error_code]
                if refused != [broken] * (broken in some):
                    raise Violation(f"partitions {refused} were refused, and the batch for {broken} is broken")
                self.in_time("a Produce request", began)
            await client.pause(self.rng.uniform(0.0, 6 * self.bound))

    def _batch(self, index: int, number: int, broken: bool) -> memoryview:
        """Return a batch. Those that are compressed are so large that a thread looks into them; some are broken."""
        codec = CompressionType.GZIP if broken else self.rng.choice([CompressionType.NONE, CompressionType.GZIP])
        value, much = f"plain {number} {index}".encode(), b"" if codec is CompressionType.NONE else self._much
        record = much, value, int(self.time.now * 1000), ()
        batch = bytearray(encode_batch([record], compression=codec))
        if broken:
            batch[_COUNT_AT : _COUNT_AT + 4] = (2).to_bytes(4, "big")  # it has one record
            batch[_LAST_DELTA_AT : _LAST_DELTA_AT + 4] = (1).to_bytes(4, "big")
            batch[_CRC_AT : _CRC_AT + 4] = crc32c(batch[_CRC_AT + 4 :]).to_bytes(4, "big")
        return memoryview(bytes(batch))

    # -- the end

    def _recover(self) -> None:
        self.stopping = True
        self.deadline = self.time.now + _FETCH_WAIT
        if not self.advance(_FETCH_WAIT, self._is_settled):
            raise Violation(f"transactions stay open: {self._what_is_open()}\n{self.describe()}")
        self.advance(4 * self.bound)


class PromptGroupHistory(GroupHistory):
    """A history of a group without faults: members come and go, and what they ask is answered within `bound`.

    answered: how many requests were.
    """

    thread_seconds = 0.015
    late_copies = 0.0

    def __init__(self, seed: int, brokers: int = 3, *, bound: float = BOUND, **settings: Any) -> None:
        super().__init__(seed, brokers, **{**_SETTINGS, **settings})
        self.producers = []
        self.bound = bound
        self.network.delay = lambda: self.rng.uniform(_TRIP / 4, _TRIP)
        self.answered = 0

    def run(self, seconds: float = 8.0, nemesis: bool = False) -> None:
        """Run without faults."""
        ask = Client.ask

        def timed(
            client: Client, broker: SimBroker, message: Any, version: int, delay: float = 0.0, **named: Any
        ) -> Deferred[Any]:
            asked = ask(client, broker, message, version, delay, **named)
            return asked if delay else asked.addCallback(self._in_time, message, self.time.now)

        with mock.patch.object(Client, "ask", timed):
            super().run(seconds, nemesis)

    def _in_time(self, response: Any, message: Any, asked: float) -> Any:
        if message.API_KEY in _ANSWERED_SOON:
            self.answered += 1
            if response is None or self.time.now - asked > self.bound:
                self.broken(f"{type(message).__name__} took {self.time.now - asked:.3f} s")
        return response

    def _recover(self) -> None:
        self.stopping = True
        self.deadline = self.time.now + _FETCH_WAIT
        if not self.advance(_FETCH_WAIT, lambda: self._is_settled() and not self._unsettled()):
            raise Violation(f"not settled: {self._what_is_open()} {self._unsettled()}\n{self.describe()}")


class WaitingReader(Client):
    """Has a fetch of some partitions wait at their leader all the time. positions: where it reads, by partition."""

    def __init__(
        self, history: PromptHistory, node: int, indexes: list[int], *, committed: bool, session: bool
    ) -> None:
        super().__init__(history)
        self.node = node
        self.committed = committed
        self.positions = dict.fromkeys(indexes, 0)
        self._session = session
        self._session_id, self._epoch = 0, 0 if session else -1
        self._named = list(indexes)

    def __repr__(self) -> str:
        kind = "with" if self._session else "without"
        isolation = "read_committed" if self.committed else "read_uncommitted"
        return f"{type(self).__name__}({isolation}, {kind} a session, at broker {self.node})"

    async def work(self) -> None:
        """Fetch until the history is over."""
        broker = self.world.brokers[self.node]
        topic_id = broker.topics.get(TOPIC).topic_id
        while True:
            partitions = [
                FetchPartition(index, fetch_offset=self.positions[index], partition_max_bytes=10_000)
                for index in self._named
            ]
            request = FetchRequest(
                max_wait_ms=int(_FETCH_WAIT * 1000), min_bytes=1, isolation_level=int(self.committed),
                session_id=self._session_id, session_epoch=self._epoch,
                topics=[FetchTopic(topic_id=topic_id, partitions=partitions)] if partitions else [],
            )  # fmt: skip
            self._take(await self._fetch(broker, request))

    async def _fetch(self, broker: SimBroker, request: FetchRequest) -> FetchResponse:
        response: FetchResponse = await self.ask(broker, request, FETCH_VERSION, patience=_PATIENCE)
        return response

    def _take(self, response: FetchResponse) -> None:
        if response.error_code:
            raise Violation(f"{self!r} got {ErrorCode(response.error_code).name}")
        _freeze(response)
        if self._session:
            self._session_id, self._epoch, self._named = response.session_id, self._epoch + 1, []
        for data in (data for topic in response.responses for data in topic.partitions):
            if data.error_code:
                raise Violation(f"{self!r} got {ErrorCode(data.error_code).name} for {data.partition_index}")
            records: Any = data.records or b""
            for header, _ in iter_batches(memoryview(records), allow_partial=True):
                self.positions[data.partition_index] = header.next_offset
            if self._session and data.records:
                self._named.append(data.partition_index)


class FastReader(WaitingReader):
    """As `WaitingReader`, by the bytes of requests, which the broker answers and has wait without decoding them."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._connection: Any = FakeConnection()

    async def _fetch(self, broker: SimBroker, request: FetchRequest) -> FetchResponse:
        data = b"".join(map(bytes, cast(Any, ClientSession(1 << 20, "reader").encode_request(request, _FRAME_VERSION))))
        done: Deferred[FetchResponse] = Deferred()
        world = self.world

        def answered(reply: Any, _: Any) -> None:
            if isinstance(reply, Deferred):
                reply.addCallbacks(answered, world.fault, (None,))
                return
            response = _response_of(reply)
            _freeze(response)
            world.clock.callLater(world.network.delay(), done.callback, response)

        def handle() -> None:
            reply: Any = answer_repeated(cast(Any, broker), self._connection, data, after_wait=answer_after_wait)
            if reply is None:  # for the general handler, which is asked without the way there
                asked = self.ask(broker, request, _FRAME_VERSION, patience=_PATIENCE)
                asked.addCallbacks(done.callback, world.fault)
            elif isinstance(reply, tuple):
                answered(reply, None)
            else:
                reply.then(answered, None)

        world.clock.callLater(world.network.delay(), lambda: broker.run(broker.boots, handle))
        return await done


def _response_of(reply: Any) -> FetchResponse:
    """Return the response that a reply to a repeated request has."""
    if not isinstance(reply, tuple):
        return cast(FetchResponse, reply)
    head, records, tail, _ = reply
    frame = b"".join((bytes(head), records.read(), bytes(tail)))
    codec = response_codec(FetchRequest.API_KEY, _FRAME_VERSION)
    return cast(FetchResponse, codec.decode(memoryview(frame)[4 + 4 + 1 :]))  # length, correlation id, tagged fields
