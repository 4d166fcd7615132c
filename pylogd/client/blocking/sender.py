"""The producer's thread: everything between records and their results that takes time.

Strategy: one thread for each producer drives an `Outbox`: it seals what has lingered, asks for metadata and a producer
id, encodes and sends, takes in replies, and sleeps until something is due, a reply comes, or a caller wakes it.
Callers add records under `lock` and wait on `changed`; they never touch a connection, so that an interrupt in the
caller's thread, at whatever instruction, leaves no half-written request behind.

Rules: `lock` is held for bookkeeping only, never for I/O, encoding, or while a callback runs. The cluster is this
thread's own. Callbacks run in this thread, after the lock is let go of; what they raise is logged. The thread is a
daemon: a process that ends does not wait for it. It starts with the first record, so that a process may fork before.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from pylogd.client.blocking.cluster import Cluster
from pylogd.client.blocking.connection import Connection, Reply
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.errors import ClientError, Closed, UnknownTopic, is_retriable
from pylogd.client.core.model import TopicPartition
from pylogd.client.core.producer.accumulator import Accumulator, Batch, BatchResult
from pylogd.client.core.producer.options import TRANSACTION_TIMEOUT_MS, SenderOptions
from pylogd.client.core.producer.requests import ByPlace, highest_version, land, produce_request
from pylogd.client.core.producer.send_queue import Outbox, Shipment
from pylogd.errors import ErrorCode, KafkaError, PylogdError, error_for
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from pylogd.wire.messages.produce import ProduceRequest

_LONG = 60.0
_SPREADING = 1.0  # seconds within which all brokers have heard of a topic that was just made
_DRAIN = 4096

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Request:
    """A produce request under way."""

    node: int
    connection: Connection
    reply: Reply
    batches: ByPlace


class Sender:
    """The thread, and what callers share with it under `lock`."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        outbox: Outbox,
        options: SenderOptions,
        limit: int,
        backoff: Callable[[], Backoff],
        tell: Callable[[Batch, BatchResult], None],
    ) -> None:
        """`tell` is called with every result, in the thread. Nothing is started yet."""
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.accumulator = accumulator
        self.partitions: dict[str, int] = {}  # of each topic, as far as known
        self.wanted: dict[str, PylogdError | None] = {}  # topics that callers wait for, and why they are not known yet
        self.flushing = 0  # callers that wait for everything
        self.needing_room = 0  # callers that wait for some of it
        self.limit = limit  # of bytes that may be buffered
        self.failure: PylogdError | None = None  # why no more records are taken; `limit` is 0 then
        self._cluster = cluster
        self._clock = cluster.clock
        self._outbox = outbox
        outbox.on_result = self._note_result
        self._options = options
        self._tell_one = tell
        self._thread: threading.Thread | None = None
        self._asleep_until: float | None = None
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._ending = False
        self._results: list[tuple[Batch, BatchResult]] = []
        self._telling = False
        self._abandoned = False
        self._under_way: list[_Request] = []
        self._in_flight: dict[int, int] = {}
        self._refreshed: dict[str, float] = {}
        self._unknown_since: dict[str, float] = {}
        self._leaderless: list[TopicPartition] = []
        self._metadata_pause, self._metadata_not_before = backoff(), 0.0
        self._id_pause, self._id_not_before = backoff(), 0.0
        _senders.add(self)

    # What callers use

    def start(self) -> None:
        """With the lock: have the thread look at everything soon."""
        if self._thread is None:
            self._wake = socket.socketpair()
            for end in self._wake:
                end.setblocking(False)
            self._thread = threading.Thread(target=self._run, name="pylogd-producer", daemon=True)
            self._thread.start()
        elif self._asleep_until is not None:
            self._asleep_until = None
            self._rouse()

    def nudge(self, batch: Batch) -> None:
        """With the lock: a batch was opened or sealed, for which the thread may sleep too long."""
        if self._thread is None or (
            self._asleep_until is not None and (self.accumulator.sealed or batch.due < self._asleep_until)
        ):
            self.start()

    def refuse(self, reason: PylogdError) -> None:
        """With the lock: take no more records."""
        if self.failure is None:
            self.failure, self.limit = reason, 0

    def wait(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """With the lock: wait until `done`, or until nothing can come any more; False if time was up before."""
        if threading.current_thread() is self._thread:
            raise ClientError("a callback of the producer may not wait for the producer")
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        while not done():
            left = _LONG if deadline is None else deadline - self._clock.monotonic()
            if left <= 0:
                return False
            if self._abandoned:
                assert self.failure is not None
                raise self.failure
            self.start()
            self.changed.wait(left)
        return True

    def all_told(self, before: int) -> bool:
        """With the lock: whether every batch numbered lower has its result, and the callbacks have run."""
        first = next(iter(self.accumulator.unfinished), before)
        return first >= before and not self._results and not self._telling

    def take_failed(self) -> ClientError | None:
        """With the lock: what was not delivered since this was last asked."""
        failed, self._outbox.failed_since = self._outbox.failed_since, None
        return failed

    def let_end(self) -> None:
        """Without the lock, as whoever collects garbage may hold it: end when everything has a result."""
        self._ending = True
        if self._wake is not None:
            self._rouse()

    def abandon(self, reason: PylogdError, timeout: float) -> None:
        """Give up everything that has no result yet."""
        with self.lock:
            self.refuse(reason)
            self._abandoned = self._ending = True
            self._outbox.give_up_all(self.failure or reason)
            self.changed.notify_all()
            if self._thread is not None:
                self.start()
        self._tell()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _note_result(self, batch: Batch, result: BatchResult) -> None:
        self._results.append((batch, result))

    def _rouse(self) -> None:
        assert self._wake is not None
        try:
            self._wake[0].send(b"\0")
        except OSError:
            return  # there are enough in it already, or the thread has ended

    # The thread

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:
            _log.exception("the producer's thread failed")
            failure = Closed(f"the producer has failed: {error!r}")
            failure.__cause__ = error
            self.abandon(failure, 0)
        finally:
            self._cluster.close()
            assert self._wake is not None
            for end in self._wake:
                end.close()

    def _turn(self) -> bool:
        """Do all that can be done now, then sleep; False when all is over."""
        self._receive()
        with self.lock:
            if self._abandoned or (self._ending and not self.accumulator.unfinished):
                return False
            now = self._clock.monotonic()
            if self._must_seal():
                self.accumulator.seal_all()
            else:
                self.accumulator.seal_due(now)
            self._outbox.collect()
            self._outbox.expire(now)
            topics = self._topics_to_ask(now)
            ask_id = self._outbox.wants_id and now >= self._id_not_before
        self._refresh(topics)
        if ask_id:
            self._ask_id()
        self._ship()
        if not self._tell():
            self._sleep()
        return True

    def _must_seal(self) -> bool:
        """Whether somebody waits for batches that have not lingered enough."""
        return bool(self.flushing or self._ending or self._starved())

    def _starved(self) -> bool:
        """Whether callers wait for room that only open batches can make."""
        return bool(self.needing_room and not self._outbox.waiting and not self._under_way)

    def _tell(self) -> bool:
        """Call back for the results that there are."""
        with self.lock:
            results, self._results = self._results, []
            if not results:
                return False
            self._telling = True
            self.changed.notify_all()
        for batch, result in results:
            try:
                self._tell_one(batch, result)
            except Exception:
                _log.exception("a callback of the producer failed")
        with self.lock:
            self._telling = False
            self.changed.notify_all()
        return True

    def _sleep(self) -> None:
        with self.lock:
            if self.accumulator.sealed or self._results or self._abandoned:
                return
            if any(request.reply.done for request in self._under_way):
                return  # as with acks=0
            if self.accumulator.open and self._must_seal():
                return  # a caller began to wait behind this turn's look
            now = self._clock.monotonic()
            until = self._next_time(now)
            if until <= now:
                return
            self._asleep_until = until
        assert self._wake is not None
        poll = select.poll()
        poll.register(self._wake[1], select.POLLIN)
        for connection in {request.connection for request in self._under_way}:
            if connection.closed:
                break
            poll.register(connection, select.POLLIN)
        else:
            woken = any(fd == self._wake[1].fileno() for fd, _ in poll.poll(int((until - now) * 1000) + 1))
            if woken:
                self._wake[1].recv(_DRAIN)
        self._asleep_until = None

    def _next_time(self, now: float) -> float:
        """Until when nothing happens if nobody comes."""
        times = [now + _LONG]
        times += [time for time in (self.accumulator.next_due(), self._outbox.next_time()) if time is not None]
        times += [request.reply.deadline for request in self._under_way]
        if self.wanted or self._missing_topics():
            times.append(self._metadata_not_before)
        if self._outbox.wants_id:
            times.append(self._id_not_before)
        times += [refreshed + self._options.metadata_max_age for refreshed in self._refreshed.values()]
        return min(times)

    # Metadata and the producer id

    def _missing_topics(self) -> list[str]:
        return [topic for topic in self._outbox.topics() if self._cluster.known(topic) is None]

    def _topics_to_ask(self, now: float) -> list[str]:
        if now < self._metadata_not_before:
            return []
        aged = now - self._options.metadata_max_age
        old = [topic for topic, refreshed in self._refreshed.items() if refreshed <= aged]
        return list(dict.fromkeys([*self._missing_topics(), *self.wanted, *old]))

    def _refresh(self, topics: list[str]) -> None:
        """Ask for topics, all together, or one by one if there is something wrong with one of them."""
        if len(topics) > 1:
            try:
                self._cluster.refresh(topics)
            except PylogdError:
                pass
            else:
                self._learned(topics)
                return
        for topic in topics:
            try:
                self._cluster.ask_topic(topic)
            except PylogdError as error:
                self._not_learned(topic, error)
                if not isinstance(error, KafkaError):
                    return  # no broker answers, whatever the topic
            else:
                self._learned([topic])

    def _learned(self, topics: list[str]) -> None:
        with self.lock:
            now = self._clock.monotonic()
            for topic in topics:
                found = self._cluster.known(topic)
                assert found is not None
                self.partitions[topic] = len(found.partitions)
                self._refreshed[topic] = now
                self.wanted.pop(topic, None)
                self._unknown_since.pop(topic, None)
            self._metadata_pause.reset()
            self.changed.notify_all()

    def _not_learned(self, topic: str, error: PylogdError) -> None:
        with self.lock:
            now = self._clock.monotonic()
            self._metadata_not_before = now + self._metadata_pause.next()
            self._refreshed.pop(topic, None)
            if isinstance(error, UnknownTopic) and now - self._unknown_since.setdefault(topic, now) < _SPREADING:
                error = KafkaError(error.code, error.message)  # which may be tried again
            if isinstance(error, KafkaError):
                self._outbox.topic_failed(topic, error, now)
                self.partitions.pop(topic, None)
                concerned = [topic] if topic in self.wanted else []
            else:
                for other in self._outbox.topics():
                    self._outbox.topic_failed(other, error, now)
                concerned = list(self.wanted)
            for other in concerned:
                self.wanted[other] = error
            self.changed.notify_all()

    def _ask_id(self) -> None:
        """InitProducerId: any broker will do."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
        try:
            response: InitProducerIdResponse = self._cluster.any_connection().request(request)
            if response.error_code:
                raise KafkaError(error_for(response.error_code))
        except PylogdError as error:
            with self.lock:
                now = self._clock.monotonic()
                self._id_not_before = now + self._id_pause.next()
                if not is_retriable(error):
                    self._outbox.producer_id_refused(error, now)
            return
        with self.lock:
            self._id_pause.reset()
            self._outbox.producer_id_given(response.producer_id, response.producer_epoch)

    # Sending and receiving

    def _ship(self) -> None:
        """Send as many requests as may be under way."""
        while True:
            with self.lock:
                if self._abandoned:
                    return
                now = self._clock.monotonic()
                self._leaderless = []
                shipments = self._outbox.take(now, self._leader_of, self._has_room)
                for place in self._leaderless:
                    error = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{place}: it has no leader at the moment")
                    self._outbox.place_failed(place, error, now)
                    self._cluster.forget(place.topic)
            if not shipments:
                return
            for shipment in shipments:
                self._send(shipment)

    def _leader_of(self, place: TopicPartition) -> int | None:
        topic = self._cluster.known(place.topic)
        if topic is None:
            return None
        for partition in topic.partitions[place.partition : place.partition + 1] or topic.partitions:
            if partition.index == place.partition and partition.leader >= 0:
                return partition.leader
        self._leaderless.append(place)
        return None

    def _has_room(self, node: int) -> bool:
        return self._in_flight.get(node, 0) < self._options.max_in_flight

    def _send(self, shipment: Shipment) -> None:
        options = self._options
        for batch in shipment.batches:
            batch.encode(options.compression, options.compression_level)
        with self.lock:
            if self._abandoned:
                return
            for batch in shipment.batches:
                self.accumulator.was_encoded(batch)
        sent = False
        try:
            connection = self._cluster.connection(shipment.node, "produce")
            ids = {b.partition.topic: self._cluster.try_topic(b.partition.topic).topic_id for b in shipment.batches}
            version = connection.version_for(ProduceRequest(), highest_version(ids))
            with self.lock:
                if self._abandoned:  # what they held is gone
                    return
                request, by_place = produce_request(
                    shipment.batches, ids, version, acks=options.acks, timeout_ms=int(options.request_timeout * 1000)
                )
            sent = True
            reply = connection.send(
                request, version=version, timeout=options.request_timeout, expect_reply=options.acks != 0
            )
        except PylogdError as error:
            self._cluster.note(error)
            with self.lock:
                if not self._abandoned:
                    now = self._clock.monotonic()
                    for batch in shipment.batches:
                        (self._outbox.failed if sent else self._outbox.unsent)(batch, error, now)
            return
        self._under_way.append(_Request(shipment.node, connection, reply, by_place))
        self._in_flight[shipment.node] = self._in_flight.get(shipment.node, 0) + 1

    def _receive(self) -> None:
        """Take in the replies that have come."""
        for connection in {request.connection for request in self._under_way}:
            connection.poll()
        done = [request for request in self._under_way if request.reply.done]
        if not done:
            return
        self._under_way = [request for request in self._under_way if not request.reply.done]
        errors: list[PylogdError] = []
        with self.lock:
            if self._abandoned:
                return
            now = self._clock.monotonic()
            for request in done:
                self._in_flight[request.node] -= 1
                errors += land(self._outbox, request.batches, request.reply.response, request.reply.error, now)
        for error in errors:
            self._cluster.note(error)

    def forked(self) -> None:
        """In a child process: there is no thread here, and the connections are the parent's."""
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        if self._thread is not None:
            self.refuse(Closed("the producer was in use when the process forked: the child needs one of its own"))
            self._abandoned = True
            self._thread = self._wake = None


_senders: weakref.WeakSet[Sender] = weakref.WeakSet()


def _after_fork() -> None:
    for sender in list(_senders):
        sender.forked()


os.register_at_fork(after_in_child=_after_fork)
