"""Read topics of a cluster with the Twisted client: the messages of a stage, and the reports of producers.

Strategy: a `TopicReader` assigns all partitions from known offsets and passes on what it polls, and, when there is
nothing to poll, the offsets that it has reached, since the last ones may belong to markers of transactions. Any error
of a broker ends the assignment; it is made again a second later, from the same offsets.

If a log does not have the offset to continue from, it either lost its beginning (retention), or was truncated or made
anew. Then reading continues at its beginning, and the ledger is told that messages may have been missed.

Rules: runs on the reactor; decoding and counting take some microseconds a message, `_BATCH` messages at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.audit.counting import Counted
from pylogd.audit.ledger import Ledger
from pylogd.audit.markers import Marker
from pylogd.audit.stages import CommittedOffsets
from pylogd.audit.windows import StageSpec
from pylogd.client.core.audit import InvalidReport, Report
from pylogd.client.core.model import TopicPartition
from pylogd.client.core.security import SecurityOptions
from pylogd.client.deferred import Admin, Consumer
from pylogd.errors import PylogdError
from pylogd.wire.records import Record

log = Logger()

_BATCH: Final = 2000
_POLL_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = 1.0

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Since:
    """Where partitions begin of which no offset is known. at_ms: a time; None for the end, 0 for the beginning."""

    at_ms: int | None = None


class Sink(Protocol):
    """Interface of the objects that get a reader's messages."""

    def records(self, partition: TopicPartition, records: Sequence[Record]) -> None:
        """Take records in the order of their partition."""

    def reached(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note the offsets up to which everything was passed on."""

    def deleted(self, topic: str, *, rewound: bool) -> None:
        """Record that messages were deleted before they were read. rewound: the log ends before the position."""


class TopicReader:
    """Reads all partitions of topics of a cluster for as long as it runs."""

    def __init__(
        self, reactor: Any, bootstrap: str, topics: Collection[str], sink: Sink, since: Since,
        security: SecurityOptions | None = None,
    ) -> None:  # fmt: skip
        """security: of the connections; None for plain ones."""
        self._reactor = reactor
        self._bootstrap = bootstrap
        self._topics = sorted(topics)
        self._sink = sink
        self._since = since
        self._consumer = Consumer(
            bootstrap, reactor=reactor, security=security, auto_offset_reset="none", auto_commit="off",
            max_poll_records=_BATCH, client_id="pylogd-audit",
        )  # fmt: skip
        self._positions: dict[TopicPartition, int] = {}
        self._stale = True  # whether the partitions have to be assigned
        self._stopping = False
        self._running: Deferred[None] | None = None

    async def start(self, positions: Mapping[Partition, int] | None) -> None:
        """Find out where each partition begins, then read. Raises PylogdError if a topic does not exist."""
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
        await self._consumer.close()

    async def ends(self, topic: str) -> dict[int, int]:
        """Return the end offset of each partition of a topic."""
        admin = Admin(self._consumer.cluster)
        partitions = [TopicPartition(topic, each.index) for each in (await admin.describe_topic(topic)).partitions]
        if any(partition not in self._positions for partition in partitions):
            self._stale = True  # the topic has more partitions now
        return {each.partition: end for each, end in (await self._consumer.end_offsets(partitions)).items()}

    async def _assign(self, *, is_first: bool) -> None:
        admin = Admin(self._consumer.cluster)
        partitions = [
            TopicPartition(topic, each.index)
            for topic in self._topics
            for each in (await admin.describe_topic(topic)).partitions
        ]
        begins = await self._consumer.beginning_offsets(partitions)
        ends = await self._consumer.end_offsets(partitions)
        fresh = [partition for partition in partitions if partition not in self._positions]
        # partitions that are added later have nothing that was sent before this began
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
                log.error(
                    "Can't read {topics} on {address}, trying again: {error}",
                    topics=", ".join(self._topics), address=self._bootstrap, error=str(error),
                )  # fmt: skip
                self._stale = True
                await deferLater(self._reactor, _RETRY_SECONDS, lambda: None)

    async def _poll(self) -> None:
        chunks = await self._consumer.poll_chunks(_POLL_SECONDS)
        for partition, records in chunks:
            self._sink.records(partition, records)
            self._positions[partition] = records[-1].offset + 1
        reached = dict.fromkeys(partition for partition, _ in chunks)
        for partition in reached or self._positions:
            self._positions[partition] = await self._consumer.position(partition)
        self._sink.reached({partition: self._positions[partition] for partition in reached or self._positions})

    def _ended(self, failure: Failure) -> None:
        if not (self._stopping and failure.check(CancelledError, PylogdError)):
            log.failure("Unexpected error while reading {topics}", failure, topics=", ".join(self._topics))


class TopicStage:
    """Implements `stages.Stage` on the topics of a cluster."""

    def __init__(
        self, reactor: Any, spec: StageSpec, bootstrap: str, ledger: Ledger, since: Since, now_ms: Callable[[], int],
        *, security: SecurityOptions | None = None, committed: CommittedOffsets | None = None,
    ) -> None:  # fmt: skip
        """committed: the `CommittedOffsets` of a copy. now_ms: the wall clock."""
        self.spec = spec
        self._ledger = ledger
        self._now_ms = now_ms
        self._committed = committed
        self._reader = TopicReader(reactor, bootstrap, ledger.topics, self, since, security)

    def start(self, positions: Mapping[Partition, int] | None) -> Deferred[None]:
        """Begin to read; fires once it is known where each partition begins."""
        return Deferred.fromCoroutine(self._reader.start(positions))

    def ends(self, topic: str) -> Deferred[dict[int, int]]:
        """Fire with the end offset of each partition."""
        return Deferred.fromCoroutine(self._reader.ends(topic))

    def refresh(self) -> Deferred[None]:
        """Look up the committed offsets."""
        return Deferred.fromCoroutine(self._refresh())

    def publish(self, marker: Marker) -> Deferred[None]:  # of a topic, the record is all
        """Do nothing."""
        return succeed(None)

    async def _refresh(self) -> None:
        if self._committed is not None:
            self._ledger.committed[self.spec.name] = await self._committed.committed(self._ledger.topics)

    def stop(self) -> Deferred[None]:
        """Stop reading."""
        return Deferred.fromCoroutine(self._reader.stop())

    # What the reader passes on

    def records(self, partition: TopicPartition, records: Sequence[Record]) -> None:
        """Count records."""
        counted = Counted()
        skip = self._ledger.skip(self.spec.name, partition.topic)
        rows = ((record.offset, record.headers) for record in records)
        counted.count(partition.partition, rows, self._ledger.options.width_ms, self._now_ms(), skip)
        reached = {partition.partition: records[-1].offset + 1}
        self._ledger.add(self.spec.name, partition.topic, counted, reached)

    def reached(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note the offsets that were reached."""
        for (topic, partition), offset in positions.items():
            self._ledger.add(self.spec.name, topic, Counted(), {partition: offset})

    def deleted(self, topic: str, *, rewound: bool) -> None:
        """Note that messages were not counted."""
        if rewound:
            self._ledger.rewind(self.spec.name, topic)
        self._ledger.trim(self.spec.name, topic, self._now_ms())


class ReportsReader:
    """Reads the audit topic for the ledger."""

    def __init__(
        self, reactor: Any, bootstrap: str, topic: str, ledger: Ledger, since: Since,
        security: SecurityOptions | None = None,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._topic = topic
        self._reader = TopicReader(reactor, bootstrap, [topic], self, since, security)

    async def start(self, positions: Mapping[int, int] | None) -> None:
        """Begin to read at these offsets; None: at the start that the service's options name."""
        found = None if positions is None else {(self._topic, each): offset for each, offset in positions.items()}
        await self._reader.start(found)

    async def ends(self) -> dict[int, int]:
        """Return the end offset of each partition."""
        return await self._reader.ends(self._topic)

    async def stop(self) -> None:
        """Stop reading."""
        await self._reader.stop()

    def records(self, partition: TopicPartition, records: Sequence[Record]) -> None:
        """Add reports."""
        for record in records:
            try:
                self._ledger.report(Report.decode(record.value), partition.partition, record.offset)
            except InvalidReport as error:
                self._ledger.invalid += 1
                log.warn(
                    "Ignoring the record at offset {offset} of {partition}: {error}",
                    offset=record.offset, partition=str(partition), error=str(error),
                )  # fmt: skip
        self.reached({partition: records[-1].offset + 1})

    def reached(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note the offsets that were reached."""
        for partition, offset in positions.items():
            self._ledger.reports_positions[partition.partition] = offset

    def deleted(self, topic: str, *, rewound: bool) -> None:
        """Do nothing: messages without a report make their window unknown."""


class GroupOffsets:
    """Implements `stages.CommittedOffsets` on what a consumer group has committed on the source's cluster.

    So mirrors tell it that read their source as a group and commit what their target has acknowledged.
    """

    def __init__(self, admin: Admin, group: str) -> None:
        self._admin = admin
        self._group = group

    def committed(self, topics: Collection[str]) -> Deferred[Mapping[Partition, int]]:
        """Fire with the group's offsets."""
        return Deferred.fromCoroutine(self._look_up(topics))

    async def _look_up(self, topics: Collection[str]) -> Mapping[Partition, int]:
        found = await self._admin.group_offsets(self._group)
        return {
            (each.topic, each.partition): committed.offset
            for each, committed in found.items()
            if each.topic in topics
        }  # fmt: skip
