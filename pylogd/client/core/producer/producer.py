"""Decide for a producer, without I/O: what to send, and what the results are.

Strategy: the application's records go into the accumulator. `turn` seals batches that have lingered long enough and
returns the requests to send: batches to the leaders of their partitions, metadata, a producer id. Each request reports
its outcome to this object, which then has results or further requests: the face calls `turn` again. `next_time` returns
when to call `turn`, unless an event comes first.

    for call in core.turn(now): network.send(call, now)
    for batch, result in core.take_results(): core.hooks.completed(batch, result)

Rules: no I/O and no clock. With threads, a caller of `turn`, `next_time`, `take_results` and of methods that add
records holds `guard`; calls take `guard` themselves to report their outcome. A call's `build` encodes batches without
`guard`, since compression takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError, error_for
from pylogd.client.core.call import Call
from pylogd.client.core.errors import Closed, RequestTimedOut, TransactionError, is_retriable
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.metadata_updater import MetadataUpdater
from pylogd.client.core.metrics import NetworkMeters, StatisticsReporter
from pylogd.client.core.model import Topic, TopicPartition
from pylogd.client.core.producer.accumulator import Accumulator, Batch
from pylogd.client.core.producer.hooks import ProducerHooks
from pylogd.client.core.producer.metrics import ProducerMeters, ProducerMetrics
from pylogd.client.core.producer.options import BatchResult, ProducerOptions
from pylogd.client.core.producer.send_queue import BatchRequest, SendQueue
from pylogd.client.core.producer.transactions import Transactions
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from pylogd.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from pylogd.wire.records import TRANSACTIONAL, Header, NewRecord
from pylogd.wire.values import ZERO_UUID

PURPOSE = "produce"
#: InitProducerId requires a timeout, which has no meaning without transactions
TRANSACTION_TIMEOUT_MS = 60_000
_TOPIC_IDS_FROM = 13
BatchesByPartition = dict[tuple[str | bytes, int], Batch]  # by topic (name or id) and partition


class ProducerCore:
    """See the module. `partitions` has the number of partitions of each known topic.

    hooks: the application's interceptors, serializers and callbacks.
    statistics: reports `metrics` to the application periodically. The face calls its `report` when it is due, without
    holding `guard`.
    """

    def __init__(
        self,
        options: ProducerOptions,
        metadata: Metadata,
        *,
        monotonic: Callable[[], float],
        is_ready: Callable[[int], bool],
        meters: NetworkMeters | None = None,
        guard: AbstractContextManager[Any] | None = None,
        features: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """is_ready: returns whether the connection to a broker is open; until then, one request at a time is enough.
        meters: the meters of the network that sends the calls.
        features: returns the features that the cluster uses.
        """
        self.options = options
        self.hooks = ProducerHooks(options)
        network = NetworkMeters(options.client_id, options.metrics_sample_window) if meters is None else meters
        self.meters = ProducerMeters(network, options.buffer_memory)
        self.statistics = StatisticsReporter(options.statistics_interval, options.on_statistics, self.metrics)
        self.accumulator = Accumulator(options, monotonic, self._with_leader)
        self._guard = guard if guard is not None else nullcontext()
        self._transactions = self._make_transactions(features)
        self.queue = SendQueue(
            self.accumulator, idempotent=options.is_idempotent, retry=options.retry, backoff=options.backoff,
            max_request_bytes=max(options.max_request_bytes, options.batch_bytes),
            on_result=self._note_result, on_retry=self.meters.retried, transactions=self._transactions,
        )  # fmt: skip
        self.partitions: dict[str, int] = {}
        self.in_flight = 0  # the number of Produce requests in flight
        #: the reason why no more records are accepted, if any
        self.failure: PylogdError | None = None
        self._metadata = metadata
        self._updater = MetadataUpdater(
            metadata, max_age=options.metadata_max_age, timeout=options.request_timeout, backoff=options.backoff,
            on_topic=self._topic_learned,
        )  # fmt: skip
        self._is_ready = is_ready
        self._learned: dict[str, int] = {}
        self._unknown: dict[str, PylogdError] = {}
        self._results: list[tuple[Batch, BatchResult]] = []
        self._in_flight: dict[int, int] = {}
        self._leaderless: list[tuple[TopicPartition, PylogdError]] = []
        self._id_pause, self._id_not_before, self._asking_id = options.backoff(), 0.0, False
        self._stopped = False

    def _make_transactions(self, features: Callable[[], Mapping[str, int]]) -> Transactions | None:
        options = self.options
        if options.transactional_id is None:
            return None
        self.accumulator.limit = -1  # no records are accepted until a transaction is open
        return Transactions(self, options, features=features, guard=self._guard)

    # Records

    def learned(self, topic: str) -> int:
        """Return the number of times that a topic's metadata was received."""
        return self._learned.get(topic, 0)

    def want(self, topic: str) -> None:
        """Request a topic's metadata. Afterwards `learned` has grown, or `problem_with` has the error."""
        self._unknown.pop(topic, None)
        self._updater.want(topic, create=True)

    def problem_with(self, topic: str) -> PylogdError | None:
        """Return the error of the last attempt to get a topic's metadata, if it failed."""
        return self._unknown.get(topic)

    def partitions_of(self, topic: str) -> int | None:
        """Return the number of partitions of a topic; None if this producer or its cluster does not know it."""
        known = self.partitions.get(topic)
        if known is None and (found := self._metadata.topics.get(topic)) is not None:
            known = len(found.partitions)
        return known

    def has_room(self) -> bool:
        """Whether the buffer has space for another record."""
        return self.accumulator.buffered < self.options.buffer_memory

    @property
    def refusal(self) -> PylogdError | None:
        """The reason why no records are accepted, now or ever; None if they are accepted."""
        if self.failure is not None or self._transactions is None:
            return self.failure
        return self._transactions.refusal

    def add(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Sequence[Header] = (),
    ) -> Batch:
        """Add a record of a known topic. Return its batch, in which it is the last record."""
        return self.accumulator.add(topic, self.partitions[topic], partition, key, value, timestamp, headers)

    def add_set(self, topic: str, partition: int | None, records: Sequence[NewRecord]) -> Batch:
        """Add records of a known topic as one batch."""
        return self.accumulator.add_set(topic, self.partitions[topic], partition, records)

    def refuse(self, reason: PylogdError) -> None:
        """Accept no more records."""
        if self.failure is None:
            self.failure = reason
            self.accumulator.limit = -1

    def stop(self, reason: PylogdError) -> None:
        """Fail every batch that has no result with `reason`, and do nothing more."""
        self.refuse(reason)
        if not self._stopped:
            self._stopped = True
            self.queue.give_up_all(self.failure or reason)
            if self._transactions is not None:
                self._transactions.close(self.failure or reason)

    @property
    def unfinished(self) -> int:
        """The number of batches that have no result."""
        return len(self.accumulator.unfinished)

    def first_unfinished(self) -> float:
        """Return the number of the first batch without a result, or the number that the next batch gets."""
        return next(iter(self.accumulator.unfinished), self.accumulator.next_number)

    def take_results(self) -> list[tuple[Batch, BatchResult]]:
        """Return the results since the last call."""
        results, self._results = self._results, []
        return results

    def _note_result(self, batch: Batch, result: BatchResult) -> None:
        self.meters.completed(batch, result, batch.held)
        self._results.append((batch, result))

    def metrics(self, now: float) -> ProducerMetrics:
        """Return statistics of this producer. Needs no guard."""
        return self.meters.snapshot(now, self.accumulator.buffered)

    # Transactions

    @property
    def transactions(self) -> Transactions:
        """The transactions. Raises TransactionError for a producer without a transactional id."""
        if self._transactions is None:
            raise TransactionError("transactions need the option transactional_id")
        return self._transactions

    def begin_transaction(self) -> None:
        """Accept records of a new transaction. Raises the errors of `Transactions.begin`, and Closed."""
        if self.failure is not None:
            raise self.failure
        self.transactions.begin()
        self.queue.resume()

    @property
    def broken_by(self) -> PylogdError | None:
        """The reason why the transaction can't be committed, or no other can begin; None if both are possible."""
        transactions = self._transactions
        return transactions.error if transactions is not None and transactions.is_broken else None

    def transaction_changed(self) -> None:
        """Accept records only while a transaction is open."""
        self.accumulator.limit = -1 if self.refusal is not None else self.options.buffer_memory

    def producer_id_given(self, producer_id: int, epoch: int) -> None:
        """Number batches with a producer id and epoch from the coordinator."""
        self.queue.producer_id_given(producer_id, epoch)

    def drop_batches(self, error: PylogdError) -> bool:
        """Fail the batches that are not in flight. Return whether one of them has a sequence number."""
        return self.queue.drop_waiting(error)

    def _transaction_calls(self, transactions: Transactions, now: float) -> list[Call]:
        wanted = self.queue.partitions() | self.accumulator.open.keys()
        return transactions.turn(now, wanted, lambda: self.unfinished)

    # Time

    def turn(self, now: float, *, seal_all: bool = False) -> list[Call]:
        """Do the due work, and return the requests to send.

        seal_all: whether a caller waits for all batches, or for space in the buffer.
        """
        if self._stopped:
            return []
        transactions = self._transactions
        if seal_all or (transactions is not None and transactions.is_committing):
            self.accumulator.seal_all()
        else:
            self.accumulator.seal_due(now)
        self.queue.collect()
        self.queue.expire(now)
        calls = self._updater.due(self._missing_topics(), now)
        if self.queue.wants_id and not self._asking_id and now >= self._id_not_before:
            calls.append(self._ask_id())
        if transactions is not None:
            calls += self._transaction_calls(transactions, now)
        while requests := self.queue.take(now, self._leader_of, self._may_send_to):
            calls += [self._produce(request) for request in requests]
        leaderless, self._leaderless = self._leaderless, []
        for partition, error in leaderless:
            self.queue.partition_failed(partition, error, now)
            self._metadata.forget(partition.topic)
        return calls

    def next_time(self, now: float) -> float | None:
        """Return when `turn` or `statistics` is due, unless an event comes first."""
        if self._stopped:
            return None
        times = [
            self.accumulator.next_due(), self.queue.next_time(now), self._updater.next_time(self._is_missing()),
            self.statistics.next_time(now),
        ]  # fmt: skip
        if self.queue.wants_id and not self._asking_id:
            times.append(self._id_not_before)
        if self._transactions is not None:
            times.append(self._transactions.next_time(now))
        return min((time for time in times if time is not None), default=None)

    # Metadata and the producer id

    def _with_leader(self, topic: str) -> list[int] | None:
        """Return the partitions of a topic that have a leader; None while its metadata is not known."""
        found = self._metadata.topics.get(topic)
        return None if found is None else [each.index for each in found.partitions if each.leader >= 0]

    def _is_missing(self) -> bool:
        return any(topic not in self._metadata.topics for topic in self.queue.topics())

    def _missing_topics(self) -> list[str]:
        return [topic for topic in self.queue.topics() if topic not in self._metadata.topics]

    def _topic_learned(self, name: str, topic: Topic | None, error: PylogdError | None, now: float) -> None:
        with self._guard:
            if topic is not None:
                self.partitions[name] = len(topic.partitions)
                self._learned[name] = self._learned.get(name, 0) + 1
                self._unknown.pop(name, None)
                return
            assert error is not None
            self._unknown[name] = error
            if isinstance(error, KafkaError):
                self.partitions.pop(name, None)
            if not self._stopped:
                self.queue.topic_failed(name, error, now)

    def _ask_id(self) -> Call:
        self._asking_id = True
        return Call(
            InitProducerIdRequest,
            lambda _: InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
            ),
            self._id_answered,
            self._id_failed,
            self.options.request_timeout,
        )  # fmt: skip

    def _id_answered(self, response: InitProducerIdResponse, now: float) -> None:
        if response.error_code:
            self._id_failed(KafkaError(error_for(response.error_code)), now)
            return
        with self._guard:
            self._asking_id = False
            self._id_pause.reset()
            self.queue.producer_id_given(response.producer_id, response.producer_epoch)

    def _id_failed(self, error: PylogdError, now: float) -> None:
        with self._guard:
            self._asking_id = False
            self._id_not_before = now + self._id_pause.next()
            if not is_retriable(error) and not self._stopped:
                self.queue.producer_id_refused(error, now)

    # Batches

    def _leader_of(self, partition: TopicPartition) -> int | None:
        try:
            found = self._metadata.partition(partition)
        except KafkaError as error:
            self._leaderless.append((partition, error))
            return None
        return None if found is None else found.leader

    def _may_send_to(self, node: int) -> bool:
        most = self.options.max_in_flight if self._is_ready(node) else 1
        return self._in_flight.get(node, 0) < most

    def _produce(self, request: BatchRequest) -> Call:
        options, batches = self.options, request.batches
        compression, level = options.compression_type, options.compression_level
        transactions = self._transactions
        attributes = 0 if transactions is None else TRANSACTIONAL
        until = None if transactions is None else transactions.produce_until
        ids = {batch.partition.topic: self._metadata.topics[batch.partition.topic].topic_id for batch in batches}
        by_partition = {}

        def build(version: int) -> ProduceRequest:
            for batch in batches:
                batch.encode(compression, level, attributes)
            with self._guard:
                if self._stopped:
                    raise self.failure or Closed("the producer is closed")
                for batch in batches:
                    self.accumulator.was_encoded(batch)
                message, found = produce_request(batches, ids, version, options)
            by_partition.update(found)
            return message

        def answered(response: Any, now: float) -> None:
            with self._guard:
                self._measure(request)
                self._ended(request)
                if not self._stopped:
                    for error in complete(self.queue, by_partition, response, None, now):
                        self._metadata.note(error)

        def failed(error: PylogdError, now: float) -> None:
            with self._guard:
                was_sent = request.call is not None and request.call.sent
                self._ended(request)
                if not self._stopped:
                    self._metadata.note(error)
                    for batch in batches:
                        (self.queue.failed if was_sent else self.queue.unsent)(batch, error, now)

        call = request.call = Call(
            ProduceRequest, build, answered, failed, options.request_timeout, request.node, PURPOSE,
            highest=highest_version(ids, until), expect_reply=options.required_acks != 0,
        )  # fmt: skip
        self._in_flight[request.node] = self._in_flight.get(request.node, 0) + 1
        self.in_flight += 1
        return call

    def _measure(self, request: BatchRequest) -> None:
        """Record an answered request, and how long its batches had waited before it."""
        assert request.call is not None
        sent_at, batches = request.call.sent_at, request.batches
        timeout = self.options.delivery_timeout  # the time from a batch's first record to its deadline
        waited = [sent_at - (batch.deadline - timeout) for batch in batches if batch.error is None]
        self.meters.sent(sum(batch.count for batch in batches), waited)

    def _ended(self, request: BatchRequest) -> None:
        request.call = None  # break the cycle of call and request
        self._in_flight[request.node] -= 1
        self.in_flight -= 1


def check_partition(topic: str, partition: int, count: int) -> None:
    """Raise KafkaError (UNKNOWN_TOPIC_OR_PARTITION) unless a topic of `count` partitions has this one."""
    if not 0 <= partition < count:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {topic!r} has {count} partitions, 0 to {count - 1}: there is no partition {partition}",
        )


def not_in_time(topic: str) -> RequestTimedOut:
    """Return the error for a topic whose metadata did not arrive within `max_block`."""
    return RequestTimedOut(f"no metadata of topic {topic!r} came within max_block")


def highest_version(topic_ids: Mapping[str, bytes], until: int | None = None) -> int | None:
    """Return the highest version for topics with these ids, at most `until`; None for any.

    Versions with ids need the ids of all topics.
    """
    return _TOPIC_IDS_FROM - 1 if until is None and ZERO_UUID in topic_ids.values() else until


def produce_request(
    batches: Sequence[Batch], topic_ids: Mapping[str, bytes], version: int, options: ProducerOptions
) -> tuple[ProduceRequest, BatchesByPartition]:
    """Return the request with encoded batches, and the batches by topic and partition as an answer names them."""
    topics: dict[str, TopicProduceData] = {}
    by_partition: BatchesByPartition = {}
    for batch in batches:
        name, index = batch.partition
        key: Any = topic_ids[name] if version >= _TOPIC_IDS_FROM else name
        if name not in topics:
            topics[name] = TopicProduceData(**{"topic_id" if version >= _TOPIC_IDS_FROM else "name": key})
        topics[name].partition_data.append(PartitionProduceData(index=index, records=batch.encoded))
        by_partition[key, index] = batch
    timeout_ms = int(options.request_timeout * 1000)
    request = ProduceRequest(options.transactional_id, options.required_acks, timeout_ms, list(topics.values()))
    return request, by_partition


def complete(
    queue: SendQueue,
    by_partition: BatchesByPartition,
    response: ProduceResponse | None,
    error: PylogdError | None,
    now: float,
) -> list[PylogdError]:
    """Report the result of each batch to the queue: from the response; from `error` if the whole request failed; or,
    with neither, as written (acks=0). Return the errors, which may mean that metadata is outdated.
    """
    if response is None:
        for batch in by_partition.values():
            if error is None:
                queue.written(batch, -1)
            else:
                queue.failed(batch, error, now)
        return [] if error is None else [error]
    errors: list[PylogdError] = []
    left = dict(by_partition)
    for topic in response.responses:
        for answer in topic.partition_responses:
            key = (topic.name or topic.topic_id, answer.index)
            if key not in left:
                continue
            batch = left.pop(key)
            if answer.error_code:
                errors.append(_error(batch, answer))
                queue.failed(batch, errors[-1], now)
            else:
                queue.written(batch, answer.base_offset, answer.log_append_time_ms)
    for batch in left.values():
        errors.append(RequestTimedOut(f"{batch.partition}: the broker's reply leaves the partition out"))
        queue.failed(batch, errors[-1], now)
    return errors


def _error(batch: Batch, answer: PartitionProduceResponse) -> KafkaError:
    code = error_for(answer.error_code)
    return KafkaError(code, f"{batch.partition}: {answer.error_message or code.text}")
