"""Read topics of a cluster with the Twisted client: the messages of a stage, and the reports of producers.

Strategy: a `TopicReader` assigns all partitions from known offsets and passes on the polled messages. If there are
none, it passes on the offsets that it has reached, since the last offsets may belong to markers of transactions. Any
error of a broker ends the assignment; a second later it is made again, from the same offsets.

If a log does not have the offset to continue from, it either lost its beginning (retention) or was truncated. Then
reading continues at its beginning, and the ledger is told that messages may have been missed. The same happens if the
topic's id shows that it was deleted and created again, even if the new topic has the offset.

Only committed records are read, because a copy in an aborted transaction does not count, such as that of a killed
worker of a mirror. The end of a partition is that of all records, also of open transactions: reading reaches the end
only when these transactions have ended.

Rules: everything runs on the reactor. Counting takes about 0.1 microseconds a message; after `_BYTES` of messages other
work gets its turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.errors import PylogdError
from pylogd.client.core.admin.offsets import LATEST
from pylogd.client.core.audit import InvalidReport, Report
from pylogd.client.core.consumer.options import ConsumerOptions
from pylogd.client.core.errors import CorruptRecords
from pylogd.client.core.model import Topic, TopicPartition
from pylogd.client.core.security import SecurityOptions
from pylogd.client.deferred import Admin, Cluster
from pylogd.client.evented.consumer import BatchConsumer
from pylogd.services.audit.batches import Batches, Progress, count_batches
from pylogd.services.audit.counting import Counted
from pylogd.services.audit.ledger import Ledger
from pylogd.services.audit.markers import Marker
from pylogd.services.audit.stages import CommittedOffsets
from pylogd.services.audit.windows import StageSpec
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.records import decode_batch

log = Logger()
_log = logging.getLogger(__name__)  # for the client

_BYTES: Final = 4 << 20  # the uncompressed bytes of messages that are counted at once
_FETCH_BYTES: Final = 1 << 20  # brokers wait for so many bytes, since a few large answers cost less
_CLOSE_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = 1.0
#: The key of the audit topic in the ledger's `topic_ids`. No stage has this name.
REPORTS_IDS: Final = ""

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Since:
    """The start of partitions without a known offset.

    at_ms: a time; None for the end, 0 for the beginning.
    """

    at_ms: int | None = None


class Sink(Protocol):
    """The interface of objects that get a reader's messages."""

    def batches(self, partition: TopicPartition, position: int, batches: Batches) -> Progress:
        """Take batches in the order of their partition, from an offset on, no more than may be decoded at once."""

    def reached(self, positions: Mapping[TopicPartition, int]) -> None:
        """Record the offsets up to which all batches were passed on."""

    def deleted(self, topic: str, *, rewound: bool) -> None:
        """Record that messages were deleted before they were read.

        rewound: whether the log ends before the position.
        """

    def failed(self) -> None:
        """Count a failure to read."""


class TopicReader:
    """Reads all partitions of topics of a cluster for as long as it runs."""

    def __init__(
        self, reactor: Any, bootstrap: str, topics: Collection[str], sink: Sink, since: Since,
        topic_ids: dict[str, str], security: SecurityOptions | None = None,
    ) -> None:  # fmt: skip
        """security: the security of connections; None for plain ones.

        topic_ids: the known ids of the topics of the positions. The reader updates it.
        """
        self._reactor = reactor
        self._bootstrap = bootstrap
        self._topics = sorted(topics)
        self._sink = sink
        self._since = since
        self._topic_ids = topic_ids
        options = ConsumerOptions(
            security=security, auto_offset_reset="none", auto_commit="off", isolation="committed",
            fetch_min_bytes=_FETCH_BYTES, fetch_max_wait_ms=round(_POLL_SECONDS * 1000), client_id="pylogd-audit",
        )  # fmt: skip
        self._cluster = Cluster(bootstrap, options, reactor=reactor)
        self._consumer = BatchConsumer(self._cluster.driver, self._cluster, options, None, _log.warning)
        self._positions: dict[TopicPartition, int] = {}
        self._stale = True  # whether the partitions have to be assigned
        self._stopping = False
        self._running: Deferred[None] | None = None

    async def start(self, positions: Mapping[Partition, int] | None) -> None:
        """Find the start of each partition, then read. Raises PylogdError if a topic does not exist."""
        self._positions = {TopicPartition(*each): offset for each, offset in (positions or {}).items()}
        await self._assign(is_first=positions is None)
        self._running = Deferred.fromCoroutine(self._run())
        self._running.addErrback(self._ended)

    async def stop(self) -> None:
        """Stop reading and close the connections."""
        self._stopping = True
        self._consumer.wakeup()
        if self._running is not None:
            self._running.cancel()
            await self._running
        try:
            await self._consumer.close(_CLOSE_SECONDS)
        finally:
            self._cluster.close()

    async def ends(self, topic: str) -> dict[int, int]:
        """Return the end offset of each partition of a topic."""
        admin = Admin(self._cluster)
        described = await admin.describe_topic(topic)
        partitions = [TopicPartition(topic, each.index) for each in described.partitions]
        if any(partition not in self._positions for partition in partitions) or self._is_another(described):
            self._stale = True  # the topic has new partitions, or was created again
        return {each.partition: end for each, end in (await _ends(admin, partitions)).items()}

    async def _assign(self, *, is_first: bool) -> None:
        admin = Admin(self._cluster)
        described = [await admin.describe_topic(topic) for topic in self._topics]
        partitions = [TopicPartition(topic.name, each.index) for topic in described for each in topic.partitions]
        begins = await self._consumer.ends(partitions, first=True)
        ends = await _ends(admin, partitions)
        for topic in described:
            self._note_id(topic)
        fresh = [partition for partition in partitions if partition not in self._positions]
        # partitions that are added later have no messages from before the start
        starts = await self._starts(fresh, begins, ends) if is_first else {each: begins[each] for each in fresh}
        for partition in partitions:
            position = self._positions.get(partition, starts.get(partition, 0))
            if not begins[partition] <= position <= ends[partition]:
                self._missed(partition, position, begins[partition], ends[partition])
                position = begins[partition]
            self._positions[partition] = position
        await self._consumer.assign({each: self._positions[each] for each in partitions})
        self._stale = False
        self._sink.reached(self._positions)

    def _is_another(self, topic: Topic) -> bool:
        """Return whether the positions are those of an earlier topic with this name."""
        return any(topic.topic_id) and self._topic_ids.get(topic.name) not in (None, topic.topic_id.hex())

    def _note_id(self, topic: Topic) -> None:
        """Record which topic is read. If the positions are those of an earlier topic, it is read from its beginning."""
        if self._is_another(topic):
            log.warn(
                "Topic {topic} on {address} was deleted and created again: it is read from its beginning. If messages "
                "of the former one were deleted before they were counted, the verdict of their windows is unknown",
                topic=topic.name, address=self._bootstrap,
            )  # fmt: skip
            self._sink.deleted(topic.name, rewound=True)
            self._positions = {each: offset for each, offset in self._positions.items() if each.topic != topic.name}
        if any(topic.topic_id):  # Kafka's brokers before 2.8 have no topic ids
            self._topic_ids[topic.name] = topic.topic_id.hex()

    async def _starts(
        self, partitions: Sequence[TopicPartition], begins: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> Mapping[TopicPartition, int]:  # fmt: skip
        at_ms = self._since.at_ms
        if not at_ms:
            return ends if at_ms is None else begins
        found = await self._consumer.offsets_for_times(dict.fromkeys(partitions, at_ms))
        return {each: ends[each] if (first := found[each]) is None else first.offset for each in partitions}

    def _missed(self, partition: TopicPartition, position: int, begin: int, end: int) -> None:
        log.warn(
            "{partition} on {address} has the offsets {begin} to {end}, and was read up to {position}: continuing at "
            "its beginning. If messages were deleted before they were counted, the verdict of their windows is "
            "unknown",
            partition=str(partition), address=self._bootstrap, begin=begin, end=end, position=position,
        )  # fmt: skip
        self._sink.deleted(partition.topic, rewound=position > end)

    async def _run(self) -> None:
        while not self._stopping:
            try:
                if self._stale:
                    await self._assign(is_first=False)
                await self._poll()
            except (PylogdError, OSError) as error:
                if self._stopping:
                    return
                self._sink.failed()
                log.error(
                    "Can't read {topics} on {address}, trying again: {error}",
                    topics=", ".join(self._topics), address=self._bootstrap, error=str(error),
                )  # fmt: skip
                self._stale = True
                await deferLater(self._reactor, _RETRY_SECONDS, lambda: None)

    async def _poll(self) -> None:
        chunks = await self._consumer.poll_batches(_POLL_SECONDS, max_bytes=_BYTES)
        damage: CorruptRecords | None = None
        for partition, position, batches in chunks:
            try:
                await self._pass_on(partition, position, batches)
            except CorruptRecords as error:  # the other partitions get their turn first
                damage = error
        reached = dict.fromkeys(partition for partition, _, _ in chunks)
        for partition in reached or self._positions:
            self._positions[partition] = await self._consumer.position(partition)
        self._sink.reached({partition: self._positions[partition] for partition in reached or self._positions})
        if damage is not None:
            raise damage

    async def _pass_on(self, partition: TopicPartition, position: int, batches: Batches) -> None:
        """Pass on batches of a partition, `_BYTES` at a time.

        Raises CorruptRecords; the batches before the damage were passed on, and reading continues at the damage.
        """
        while batches:
            done = self._sink.batches(partition, position, batches)
            self._positions[partition] = position = done.reached
            if done.damage is not None:
                self._consumer.seek(partition, position)
                header, _ = batches[done.batches]
                raise CorruptRecords(*partition, header.base_offset, header.next_offset, str(done.damage))
            batches = batches[done.batches :]
            if batches:
                await deferLater(self._reactor, 0, lambda: None)

    def _ended(self, failure: Failure) -> None:
        if not (self._stopping and failure.check(CancelledError, PylogdError)):
            log.failure("Unexpected error while reading {topics}", failure, topics=", ".join(self._topics))


async def _ends(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the offset after the last record of each partition, committed or not."""
    found = await admin.offsets(dict.fromkeys(partitions, LATEST))
    return {partition: end.offset for partition, end in found.items()}


class TopicStage:
    """Implements `stages.Stage` on the topics of a cluster."""

    def __init__(
        self, reactor: Any, spec: StageSpec, bootstrap: str, ledger: Ledger, since: Since, now_ms: Callable[[], int],
        *, security: SecurityOptions | None = None, committed: CommittedOffsets | None = None,
    ) -> None:  # fmt: skip
        """`committed` is the `CommittedOffsets` of a copy. `now_ms` is the wall clock."""
        self.spec = spec
        self._ledger = ledger
        self._now_ms = now_ms
        self._committed = committed
        topic_ids = ledger.topic_ids.setdefault(spec.name, {})
        self._reader = TopicReader(reactor, bootstrap, ledger.topics, self, since, topic_ids, security)

    def start(self, positions: Mapping[Partition, int] | None) -> Deferred[None]:
        """Begin to read. The Deferred fires once the start of each partition is known."""
        return Deferred.fromCoroutine(self._reader.start(positions))

    def ends(self, topic: str) -> Deferred[dict[int, int]]:
        """Return a Deferred of the end offset of each partition."""
        return Deferred.fromCoroutine(self._reader.ends(topic))

    def refresh(self) -> Deferred[None]:
        """Look up the committed offsets."""
        return Deferred.fromCoroutine(self._refresh())

    def publish(self, marker: Marker) -> Deferred[None]:  # a topic needs only the record of its marker
        """Do nothing."""
        return succeed(None)

    async def _refresh(self) -> None:
        if self._committed is not None:
            self._ledger.committed[self.spec.name] = await self._committed.committed(self._ledger.topics)

    def stop(self) -> Deferred[None]:
        """Stop reading."""
        return Deferred.fromCoroutine(self._reader.stop())

    # Calls of the reader

    def batches(self, partition: TopicPartition, position: int, batches: Batches) -> Progress:
        """Count records."""
        counted = Counted()
        skip = self._ledger.skip(self.spec.name, partition.topic)
        width = self._ledger.options.width_ms
        done = count_batches(
            counted, partition.partition, batches, position, width, self._now_ms(), skip, _BYTES
        )  # fmt: skip
        self._ledger.add(self.spec.name, partition.topic, counted, {partition.partition: done.reached})
        return done

    def reached(self, positions: Mapping[TopicPartition, int]) -> None:
        """Record the offsets that were reached."""
        for (topic, partition), offset in positions.items():
            self._ledger.add(self.spec.name, topic, Counted(), {partition: offset})

    def deleted(self, topic: str, *, rewound: bool) -> None:
        """Record that messages were not counted."""
        if rewound:
            self._ledger.rewind(self.spec.name, topic)
        self._ledger.trim(self.spec.name, topic, self._now_ms())

    def failed(self) -> None:
        """Count a failure to read."""
        self._ledger.failures += 1


class ReportsReader:
    """Reads the audit topic for the ledger."""

    def __init__(
        self, reactor: Any, bootstrap: str, topic: str, ledger: Ledger, since: Since,
        security: SecurityOptions | None = None,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._topic = topic
        topic_ids = ledger.topic_ids.setdefault(REPORTS_IDS, {})
        self._reader = TopicReader(reactor, bootstrap, [topic], self, since, topic_ids, security)

    async def start(self, positions: Mapping[int, int] | None) -> None:
        """Begin to read at these offsets; None means the start in the service's options."""
        found = None if positions is None else {(self._topic, each): offset for each, offset in positions.items()}
        await self._reader.start(found)

    async def ends(self) -> dict[int, int]:
        """Return the end offset of each partition."""
        return await self._reader.ends(self._topic)

    async def stop(self) -> None:
        """Stop reading."""
        await self._reader.stop()

    def batches(self, partition: TopicPartition, position: int, batches: Batches) -> Progress:
        """Add the reports of one batch."""
        header, batch = batches[0]
        try:
            records = decode_batch(batch, header, check_crc=False)  # the CRC was checked already
        except InvalidRecordBatch as error:
            return Progress(position, 0, error)
        for record in records:
            if record.offset >= position:
                self._add(partition, record.offset, record.value)
        reached = max(position, header.next_offset)
        self.reached({partition: reached})
        return Progress(reached, 1)

    def _add(self, partition: TopicPartition, offset: int, value: bytes | None) -> None:
        try:
            self._ledger.report(Report.decode(value), partition.partition, offset)
        except InvalidReport as error:
            self._ledger.invalid += 1
            log.warn(
                "Ignoring the record at offset {offset} of {partition}: {error}",
                offset=offset, partition=str(partition), error=str(error),
            )  # fmt: skip

    def reached(self, positions: Mapping[TopicPartition, int]) -> None:
        """Record the offsets that were reached."""
        for partition, offset in positions.items():
            self._ledger.reports_positions[partition.partition] = offset

    def deleted(self, topic: str, *, rewound: bool) -> None:
        """Forget the positions of a recreated topic. Messages without a report make their window unknown."""
        if rewound:
            self._ledger.reports_positions.clear()

    def failed(self) -> None:
        """Count a failure to read."""
        self._ledger.failures += 1


@dataclass(eq=False, slots=True)
class GroupOffsets:
    """Implements `stages.CommittedOffsets` by a group's committed offsets on the source's cluster.

    This is for mirrors that read their source as a group, and commit the offsets that their target has acknowledged.
    """

    _admin: Admin
    _group: str

    def committed(self, topics: Collection[str]) -> Deferred[Mapping[Partition, int]]:
        """Return a Deferred of the group's offsets."""
        return Deferred.fromCoroutine(self._look_up(topics))

    async def _look_up(self, topics: Collection[str]) -> Mapping[Partition, int]:
        found = await self._admin.group_offsets(self._group)
        return {
            (each.topic, each.partition): committed.offset
            for each, committed in found.items()
            if each.topic in topics
        }  # fmt: skip
