"""Read and write the topic in which the registry stores its schemas.

Strategy: a reader follows the topic from its beginning as long as the service runs. A write takes effect when the
reader has read it back. Changes are made one after the other; each is computed from all earlier records. Several
services may share a topic, and their leader makes the changes (`election`). If two services believe that they lead, a
change is appended only if no other service has written meanwhile (see below); otherwise it is computed again.

Rules: the service answers requests only after it has read the topic to its end. A record that can't be applied is
skipped. Must not know: HTTP, the content of records.

How a writer appends only if it has read all records (`ConditionalWriter`):
All writers share one producer id. The partition's leader accepts an idempotent producer's batch only if its
sequence number follows the previous one. A writer sends the number after that of the last record it has read, so its
append succeeds only if no other writer has appended since (compare and append). Each record has its sequence number in
a header, where every reader finds it. A writer whose append is refused reads the new records and computes its change
again.

Rules:
- If two writers send the same number, the leader takes the second batch for a retry, and answers with the first batch's
  offset. So each append has a random token in its headers; it has succeeded only if the token is read back at this
  offset.
- If no record shows the next number (the last ones were deleted, or other programs wrote to the topic), a writer
  appends   a takeover record with the next producer epoch. Once it has read this record back, it has read all earlier
  records too, and the leader refuses numbers of earlier epochs.
- These rules do not stop writers without this producer id, such as other registries.

Source: KIP-98 (producer epochs and sequence numbers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple
from uuid import uuid4

from twisted.internet import defer
from twisted.internet.task import deferLater
from twisted.logger import Logger

from pylogd.base.clock import wall_ms
from pylogd.base.errors import ErrorCode, KafkaError, PylogdError, error_for
from pylogd.client import SecurityOptions
from pylogd.client.core.admin.calls import Question
from pylogd.client.core.admin.offsets import leader_of
from pylogd.client.core.model import TopicPartition
from pylogd.client.deferred import Admin, Cluster, Consumer
from pylogd.services.registry.errors import SchemaTooLarge, StoreTimedOut
from pylogd.services.registry.model import TopicRecord
from pylogd.services.registry.registry import TAKEOVER, Registry
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import encode_batch

log = Logger()

#: The shared producer id. Brokers give out ids from 0 on, and never reach this one.
PRODUCER_ID = int.from_bytes(b"_schemas", "big")
_HEADER = "pylogd.writer"
_LAST_WITH_NAMES = 12  # the last version of Produce with names of topics; later ones have topic ids
_LATEST = -1
_CONSUMER = -1  # the replica id of all clients that are not brokers
_REFUSED = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.PRODUCER_FENCED,
    }
)


class ConcurrentAppend(PylogdError):
    """The append was refused: another writer appended first, or the sequence number was wrong."""


class BatchSequence(NamedTuple):
    """The producer epoch and the sequence number of a record."""

    epoch: int
    number: int


class AppendStamp(NamedTuple):
    """The header of a record: its sequence number, and the token of the append that wrote it."""

    sequence: BatchSequence
    token: str


FIRST = BatchSequence(0, 0)


def stamp_of(headers: Iterable[tuple[str, bytes | None]]) -> AppendStamp | None:
    """Return the stamp in the headers of a record, or None if another program wrote the record."""
    for name, value in headers:
        if name == _HEADER and value is not None:
            epoch, _, rest = value.decode("ascii", "replace").partition(":")
            sequence, _, token = rest.partition(":")
            if epoch.isdigit() and sequence.isdigit():
                return AppendStamp(BatchSequence(int(epoch), int(sequence)), token)
    return None


class TopicAppender:
    """Appends to partition 0 of a topic. `timeout`, in seconds, bounds a call with all its retries."""

    def __init__(self, cluster: Cluster, topic: str, timeout: float) -> None:
        self._cluster = cluster
        self._partition = TopicPartition(topic, 0)
        self._timeout = timeout

    async def append(self, sequence: BatchSequence, token: str, records: Sequence[tuple[bytes, bytes | None]]) -> int:
        """Append (key, value) pairs as one batch that begins with `sequence`. Returns the offset of the first record.

        The append succeeded only if the caller then reads `token` at that offset. Raises ConcurrentAppend if nothing
        was written; after any other PylogdError the records may have been written.
        """
        now_ms = wall_ms()
        batch = encode_batch(
            [
                (key, value, now_ms, ((_HEADER, f"{sequence.epoch}:{sequence.number + at}:{token}".encode()),))
                for at, (key, value) in enumerate(records)
            ],
            producer_id=PRODUCER_ID,
            producer_epoch=sequence.epoch,
            base_sequence=sequence.number,
        )
        data = TopicProduceData(self._partition.topic, partition_data=[PartitionProduceData(0, batch)])
        request = ProduceRequest(acks=-1, timeout_ms=round(self._timeout * 1000), topic_data=[data])

        async def attempt() -> int:
            response = await self._ask_leader(request, _LAST_WITH_NAMES)
            answer = response.responses[0].partition_responses[0]
            code = error_for(answer.error_code)
            if code in _REFUSED:
                raise ConcurrentAppend(f"{self._partition}: {answer.error_message or code.text}")
            if code:
                raise KafkaError(code, answer.error_message or code.text)
            return int(answer.base_offset)

        return await self._cluster.call(attempt, self._timeout)

    async def end_offset(self) -> int:
        """Return the offset after the last committed record."""
        partition = ListOffsetsPartition(0, timestamp=_LATEST)
        request = ListOffsetsRequest(_CONSUMER, topics=[ListOffsetsTopic(self._partition.topic, [partition])])

        async def attempt() -> int:
            answer = (await self._ask_leader(request)).topics[0].partitions[0]
            if answer.error_code:
                raise KafkaError(error_for(answer.error_code))
            return int(answer.offset)

        return await self._cluster.call(attempt, self._timeout)

    async def _ask_leader(self, request: Any, highest: int | None = None) -> Any:
        leader = await leader_of(self._cluster, self._partition)
        return await self._cluster.send(Question(type(request), lambda _: request, leader, highest))


_POLL_SECONDS = 0.5
_RETRY_SECONDS = 1.0
_REPLICAS = 3
#: The time to wait for the record of another service that appended first, before taking over the topic.
_FOREIGN_SECONDS = 1.0
#: Errors that mean that a record is larger than the topic, or the broker, accepts.
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


class SchemaStore:
    """The registry's topic.

    timeout: the seconds that a change may take.
    """

    def __init__(
        self,
        reactor: Any,
        bootstrap: str,
        topic: str,
        registry: Registry,
        timeout: float = 10.0,
        security: SecurityOptions | None = None,
    ) -> None:
        self.registry = registry
        self._reactor = reactor
        self._bootstrap = bootstrap
        self._security = security
        self._topic = topic
        self._timeout = timeout
        self._lock = defer.DeferredLock()
        self._stopping = False
        self._cluster = Cluster(bootstrap, request_timeout=timeout, reactor=reactor, security=security)
        self._appender = TopicAppender(self._cluster, topic, timeout)
        self._consumer: Consumer | None = None
        self._following: defer.Deferred[None] = defer.succeed(None)
        self._next = 0  # the offset of the first record that was not applied yet
        self._waits: list[tuple[int, defer.Deferred[None]]] = []
        self._next_sequence = FIRST  # the sequence number of the next record
        self._token = ""  # the token of the append in progress
        self._token_read = False

    def start(self) -> defer.Deferred[None]:
        """Create the topic if it is missing. The Deferred fires once it was read to its end, or fails."""
        return defer.Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        end = await self._open()
        self._following = defer.Deferred.fromCoroutine(self._follow())
        await self._until(end)

    def stop(self) -> defer.Deferred[None]:
        """Stop. The Deferred fires once all connections are closed."""
        self._stopping = True
        return defer.Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        if self._consumer is not None:
            await self._consumer.close()
        await self._following
        self._cluster.close()

    async def catch_up(self) -> None:
        """Wait until all records that are in the topic now are applied. Raises StoreTimedOut."""
        try:
            await self._wait_for(await self._appender.end_offset())
        except PylogdError as error:
            raise StoreTimedOut(f"the schemas topic can't be read: {error}") from error

    async def cluster_id(self) -> str | None:
        """Return the id of the brokers' cluster; None if it has none. Raises StoreTimedOut."""
        try:
            found = await Admin(self._cluster).describe_cluster()
            return found.cluster_id
        except PylogdError as error:
            raise StoreTimedOut(f"the cluster can't be described: {error}") from error

    def change(self, work: Callable[[], tuple[Any, list[TopicRecord]]]) -> defer.Deferred[Any]:
        """Write the records that `work` returns. The Deferred fires with its result once they are applied.

        `work` is called once all earlier changes are applied, and again if another service has written meanwhile. Fails
        with the errors of `work`, or with StoreTimedOut.
        """
        return self._lock.run(lambda: defer.Deferred.fromCoroutine(self._change(work)))

    async def _change(self, work: Callable[[], tuple[Any, list[TopicRecord]]]) -> Any:
        deadline = self._reactor.seconds() + self._timeout
        while True:
            result, changes = work()
            records = self.registry.state.completed(changes)
            if not records or await self._append(records):
                return result
            if self._reactor.seconds() >= deadline:
                raise StoreTimedOut("the change was not made: other registries kept writing to the topic; try again")

    async def _append(self, records: list[TopicRecord]) -> bool:
        """Append records. Returns true once they are applied, false if another service appended first."""
        sequence, self._token, self._token_read = self._next_sequence, uuid4().hex, False
        pairs = [(record.key, record.value) for record in records]
        try:
            offset = await self._appender.append(sequence, self._token, pairs)
        except ConcurrentAppend:
            await self._catch_up(sequence)
            return False
        except PylogdError as error:
            if isinstance(error, KafkaError) and error.code in _TOO_LARGE:
                raise SchemaTooLarge("Write failed because schema is too large") from error
            raise StoreTimedOut(f"the change could not be written: {error}") from error
        await self._wait_for(offset + len(records))
        if (
            not self._token_read and self._next_sequence == sequence
        ):  # the leader knows a batch with this sequence, but the topic has no stamp
            await self._catch_up(sequence)
            return False
        return self._token_read

    async def _catch_up(self, refused: BatchSequence) -> None:
        """Read the records of other services, which give the next sequence number. If no record has it, take over."""
        try:
            await self._wait_for(await self._appender.end_offset())
            if self._next_sequence == refused:  # the other service's record is not committed yet, or was deleted
                news = self._until(self._next + 1).addTimeout(_FOREIGN_SECONDS, self._reactor)
                with suppress(defer.TimeoutError):
                    await news
            if self._next_sequence == refused:
                log.warn(
                    "No record in {topic} has the last sequence number: continuing with the next producer epoch",
                    topic=self._topic,
                )
                sequence, self._token = BatchSequence(refused.epoch + 1, 0), uuid4().hex
                pairs = [(TAKEOVER.key, TAKEOVER.value)]
                await self._wait_for(1 + await self._appender.append(sequence, self._token, pairs))
        except ConcurrentAppend:
            # Another service has begun this epoch, or a later one.
            self._next_sequence = max(self._next_sequence, BatchSequence(refused.epoch + 1, 0))
        except PylogdError as error:
            raise StoreTimedOut(f"the change could not be written: {error}") from error

    async def _wait_for(self, offset: int) -> None:
        """Wait until all records before `offset` are applied. Raises StoreTimedOut."""
        try:
            await self._until(offset).addTimeout(self._timeout, self._reactor)
        except defer.TimeoutError as error:
            raise StoreTimedOut("the change was written, but could not be read back in time") from error

    def _until(self, offset: int) -> defer.Deferred[None]:
        """Return a Deferred that fires once all records before `offset` are applied."""
        done: defer.Deferred[None] = defer.Deferred()
        if self._next >= offset:
            done.callback(None)
        else:
            self._waits.append((offset, done))
        return done

    # Reading -------------------------------------------------------------------------------------------------------

    async def _open(self) -> int:
        """Create the topic if it is missing. Returns its end offset."""
        # bootstrap_timeout=0: the operator is told at once if no broker can be reached.
        with closing(
            Cluster(self._bootstrap, bootstrap_timeout=0.0, reactor=self._reactor, security=self._security)
        ) as cluster:
            admin = Admin(cluster)
            replicas = min(_REPLICAS, max(len((await admin.describe_cluster()).placement.open()), 1))
            try:
                await admin.create_topic(self._topic, 1, replicas, {"cleanup.policy": "compact"})
            except KafkaError as error:
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
        return await self._appender.end_offset()

    async def _follow(self) -> None:
        position = 0
        while not self._stopping:
            self._consumer = consumer = Consumer(
                self._bootstrap, auto_offset_reset="earliest", reactor=self._reactor, security=self._security
            )
            try:
                await consumer.assign({(self._topic, 0): position})
                while not self._stopping:
                    records = await consumer.poll(_POLL_SECONDS)
                    position = await consumer.position((self._topic, 0))
                    self._apply(records, position)
            except (PylogdError, OSError) as error:
                if self._stopping:
                    return
                log.error(
                    "Can't read topic {topic}, trying again in {seconds:g} s: {error}",
                    topic=self._topic, seconds=_RETRY_SECONDS, error=str(error),
                )  # fmt: skip
                await consumer.close()
                await deferLater(self._reactor, _RETRY_SECONDS, lambda: None)

    def _apply(self, records: list[Any], position: int) -> None:
        for record in records:
            stamp = stamp_of(record.headers)
            if stamp is not None:
                self._next_sequence = max(
                    self._next_sequence, BatchSequence(stamp.sequence.epoch, stamp.sequence.number + 1)
                )
                self._token_read = self._token_read or stamp.token == self._token
            try:
                self.registry.state.apply(record.key, record.value, record.offset)
            except Exception:
                log.failure(
                    "Unexpected error: skipping the record at offset {offset} of {topic}",
                    offset=record.offset, topic=self._topic,
                )  # fmt: skip
        self._next = max(self._next, position)
        due = [done for offset, done in self._waits if offset <= self._next]
        self._waits = [wait for wait in self._waits if wait[0] > self._next]
        for done in due:
            if not done.called:
                done.callback(None)
