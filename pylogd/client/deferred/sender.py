"""What a producer on Twisted asks of brokers: metadata, a producer id, and to write batches.

Strategy: `turn` starts what may be started at this moment; each answer goes to the outbox and calls for another turn.
Metadata and the producer id are asked for by one request each at a time, with growing pauses after errors.

Rules: nothing here waits. After `stop`, answers that still come are passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.client.core.admin.calls import ask_topics
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.errors import ClientError, is_retriable
from pylogd.client.core.model import TopicPartition
from pylogd.client.core.producer.accumulator import Accumulator
from pylogd.client.core.producer.options import TRANSACTION_TIMEOUT_MS, SenderOptions
from pylogd.client.core.producer.requests import highest_version, land, produce_request
from pylogd.client.core.producer.send_queue import Outbox, Shipment
from pylogd.client.deferred.cluster import Cluster
from pylogd.client.deferred.tasks import Tasks
from pylogd.errors import ErrorCode, KafkaError, PylogdError, error_for
from pylogd.net.client import BrokerConnection
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest
from pylogd.wire.messages.produce import ProduceRequest

log = Logger()


class Shipper:
    """The part of a producer that talks to brokers. `changed` is called when another turn may bring something on."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        outbox: Outbox,
        options: SenderOptions,
        backoff: Callable[[], Backoff],
        changed: Callable[[], None],
    ) -> None:
        self.partitions: dict[str, int] = {}  # of each topic, as far as known
        self.wanted: dict[str, PylogdError | None] = {}  # topics that records wait for, and why they are not known yet
        self.under_way = 0
        self.stopped = False
        self._cluster = cluster
        self._accumulator = accumulator
        self._outbox = outbox
        self._options = options
        self._changed = changed
        self._in_flight: dict[int, int] = {}
        self._leaderless: list[tuple[TopicPartition, PylogdError]] = []
        self._refreshed: dict[str, float] = {}
        self._asking_topics = self._asking_id = False
        self._metadata_pause, self._metadata_not_before = backoff(), 0.0
        self._id_pause, self._id_not_before = backoff(), 0.0
        self._tasks = Tasks()

    def stop(self) -> None:
        """Begin nothing more."""
        self.stopped = True
        self._tasks.stop()

    def unknown(self, topic: str) -> PylogdError | None:
        """Why a topic that is wanted will not become known, if that is so. Told once."""
        error = self.wanted.get(topic)
        if error is None or is_retriable(error):
            return None
        return self.wanted.pop(topic)

    def turn(self, now: float) -> None:
        """Start what may be started."""
        self._outbox.collect()
        self._outbox.expire(now)
        if not self._asking_topics and now >= self._metadata_not_before and (topics := self._topics_to_ask(now)):
            self._asking_topics = True
            self._tasks.start(self._ask_topics(topics))
        if not self._asking_id and self._outbox.wants_id and now >= self._id_not_before:
            self._asking_id = True
            self._tasks.start(self._ask_id())
        self._ship(now)

    def next_time(self, now: float) -> float | None:
        """When another turn has something to do, if nothing comes before."""
        # What the outbox had to do until now waits for an answer, which calls for a turn of its own.
        times = [time for time in (self._accumulator.next_due(), self._outbox.next_time(now)) if time is not None]
        if not self._asking_topics:
            if self.wanted or self._missing_topics():
                times.append(self._metadata_not_before)
            age = self._options.metadata_max_age
            times += [max(refreshed + age, self._metadata_not_before) for refreshed in self._refreshed.values()]
        if self._outbox.wants_id and not self._asking_id:
            times.append(self._id_not_before)
        return min(times, default=None)

    # Metadata and the producer id

    def _missing_topics(self) -> list[str]:
        return [topic for topic in self._outbox.topics() if topic not in self._cluster.metadata.topics]

    def _topics_to_ask(self, now: float) -> list[str]:
        aged = now - self._options.metadata_max_age
        old = [topic for topic, refreshed in self._refreshed.items() if refreshed <= aged]
        return list(dict.fromkeys([*self._missing_topics(), *self.wanted, *old]))

    async def _ask_topics(self, topics: list[str]) -> None:
        try:
            outcome = await ask_topics(self._cluster, topics)
        finally:
            self._asking_topics = False
        now = self._cluster.seconds()
        if not any(outcome.values()):
            self._metadata_pause.reset()
        else:
            self._metadata_not_before = now + self._metadata_pause.next()
        for topic, error in outcome.items():
            if error is None:
                self._learned(topic, now)
            else:
                self._not_learned(topic, error, now)
        self._changed()

    def _learned(self, topic: str, now: float) -> None:
        self.partitions[topic] = len(self._cluster.metadata.topics[topic].partitions)
        self._refreshed[topic] = now
        self.wanted.pop(topic, None)

    def _not_learned(self, topic: str, error: PylogdError, now: float) -> None:
        self._refreshed.pop(topic, None)
        self._outbox.topic_failed(topic, error, now)
        if isinstance(error, KafkaError):
            self.partitions.pop(topic, None)
        if topic in self.wanted:
            self.wanted[topic] = error

    async def _ask_id(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
        try:
            connection = await self._cluster.connection(None)
            response = await self._cluster.request(connection, request, connection.version_for(request))
            if response.error_code:
                raise KafkaError(error_for(response.error_code))
        except PylogdError as error:
            now = self._cluster.seconds()
            self._id_not_before = now + self._id_pause.next()
            if not is_retriable(error):
                self._outbox.producer_id_refused(error, now)
        else:
            self._id_pause.reset()
            self._outbox.producer_id_given(response.producer_id, response.producer_epoch)
        finally:
            self._asking_id = False
        self._changed()

    # Sending

    def _ship(self, now: float) -> None:
        """Send as many requests as may be under way."""
        while True:
            shipments = self._outbox.take(now, self._leader_of, self._has_room)
            leaderless, self._leaderless = self._leaderless, []
            for place, error in leaderless:
                self._outbox.place_failed(place, error, now)
                self._cluster.metadata.forget(place.topic)
            if not shipments:
                return
            for shipment in shipments:
                self._in_flight[shipment.node] = self._in_flight.get(shipment.node, 0) + 1
                self.under_way += 1
                connection = self._cluster.open_connection(shipment.node, "produce")
                if connection is None:
                    self._tasks.start(self._connect_and_send(shipment))
                else:
                    self._send(shipment, connection)

    def _leader_of(self, place: TopicPartition) -> int | None:
        try:
            found = self._cluster.metadata.partition(place)
        except KafkaError as error:
            self._leaderless.append((place, error))
            return None
        return None if found is None else found.leader

    def _has_room(self, node: int) -> bool:
        if self._cluster.open_connection(node, "produce") is None:  # the first opens it
            return not self._in_flight.get(node, 0)
        return self._in_flight.get(node, 0) < self._options.max_in_flight

    async def _connect_and_send(self, shipment: Shipment) -> None:
        try:
            connection = await self._cluster.connection(shipment.node, "produce")
        except PylogdError as error:
            self._unsent(shipment, error)
        else:
            if not self.stopped:
                self._send(shipment, connection)
        self._changed()

    def _send(self, shipment: Shipment, connection: BrokerConnection) -> None:
        options, topics = self._options, self._cluster.metadata.topics
        for batch in shipment.batches:
            batch.encode(options.compression, options.compression_level)
            self._accumulator.was_encoded(batch)
        try:
            names = {batch.partition.topic for batch in shipment.batches}
            ids = {name: topics[name].topic_id for name in names if name in topics}
            if len(ids) < len(names):
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            version = connection.version_for(ProduceRequest(), highest_version(ids))
        except PylogdError as error:
            self._unsent(shipment, error)
            return
        request, by_place = produce_request(
            shipment.batches, ids, version, acks=options.acks, timeout_ms=int(options.request_timeout * 1000)
        )

        def landed(result: Any) -> None:
            error: PylogdError | None = None
            if isinstance(result, Failure):
                error, result = _error(result), None
            self._arrived(shipment)
            if not self.stopped:
                for noted in land(self._outbox, by_place, result, error, self._cluster.seconds()):
                    self._cluster.metadata.note(noted)
                self._changed()

        sent = connection.request(
            request, version=version, timeout=options.request_timeout, expect_reply=options.acks != 0
        )
        sent.addBoth(landed).addErrback(lambda failure: log.failure("a producer failed", failure))

    def _unsent(self, shipment: Shipment, error: PylogdError) -> None:
        self._arrived(shipment)
        if not self.stopped:
            self._cluster.metadata.note(error)
            now = self._cluster.seconds()
            for batch in shipment.batches:
                self._outbox.unsent(batch, error, now)

    def _arrived(self, shipment: Shipment) -> None:
        self._in_flight[shipment.node] -= 1
        self.under_way -= 1


def _error(failure: Failure) -> PylogdError:
    if isinstance(failure.value, PylogdError):
        return failure.value
    error = ClientError(f"the request failed: {failure.value!r}")
    error.__cause__ = failure.value
    return error
