"""Where a consumer is in each partition, what to fetch next, and what has come.

Strategy: one request at a time to each broker, for all partitions that are read from it. A reply is kept as the bytes
that came; only batch headers are read, to know where to go on, so that the next request is in flight before the first
record of this reply is decoded. Partitions take turns in being first in a request, because a full reply starves the
last ones. A leader may point to a nearer replica (KIP-392); that one is read from for a while, and any trouble with it
leads back to the leader.

Rules: at most one reply of each broker is kept and one in flight, and all of them together hold no more than
`buffer_bytes`, or a batch that is larger. A partition whose position was changed meanwhile is told by its generation,
and what was fetched for it is dropped. No I/O, no clock, no threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pylogd.client.core.backoff import Backoff
from pylogd.client.core.call import Call
from pylogd.client.core.consumer.options import ConsumerOptions
from pylogd.client.core.errors import CorruptRecords
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.model import TopicPartition
from pylogd.errors import ErrorCode, KafkaError, PylogdError, error_for
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from pylogd.wire.records import BatchHeader, ControlType, control_type, decode_batch, iter_batches
from pylogd.wire.values import ZERO_UUID

PURPOSE = "fetch"
TOPIC_IDS_FROM = 13  # the version of Fetch
_CONSUMER = -1
_NOBODY = -1
_NEAR_SECONDS = 300.0  # for how long a nearer replica is used before the leader is asked again
_LEAST_ROOM = 64 * 1024  # with less room in the buffers than this it is not worth asking


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Waits and sizes as Kafka's fetch.* settings. `read_committed`: leave out what transactions took back."""

    min_bytes: int = 1
    max_wait_ms: int = 500
    max_bytes: int = 16 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024
    buffer_bytes: int = 64 * 1024 * 1024
    rack: str = ""
    read_committed: bool = False

    @classmethod
    def of(cls, options: ConsumerOptions) -> FetchSettings:
        """Return the settings that a consumer's options ask for."""
        return cls(
            options.fetch_min_bytes, options.fetch_max_wait_ms, options.fetch_max_bytes, options.partition_max_bytes,
            options.buffer_bytes, options.client_rack or "", options.read_committed,
        )  # fmt: skip


@dataclass(slots=True, eq=False)
class PartitionFetch:
    """Where the fetcher is in a partition. `error` is what its last answer said, until somebody deals with it."""

    partition: TopicPartition
    offset: int
    generation: int
    high_watermark: int = -1
    not_before: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)
    error: PylogdError | None = None
    paused: bool = False
    in_flight: FetchInFlight | None = None
    near: int = _NOBODY
    near_until: float = 0.0


@dataclass(slots=True, eq=False)
class FetchedBatches:
    """Batches of one partition, whole, as views of the reply's bytes. Records before `offset` were not asked for.

    `aborted` is for `AbortedTransactions.skips`, where transactions matter. `size` in bytes counts against the buffers.
    """

    fetch: PartitionFetch
    generation: int
    offset: int
    batches: Iterator[tuple[BatchHeader, memoryview]]
    size: int
    aborted: AbortedTransactions | None = None


@dataclass(slots=True, eq=False)
class FetchInFlight:
    """A fetch request to a broker: its partitions with their generations, and the bytes that it may bring.

    `by_answer` finds a partition of the answer, by topic (name or id) and number.
    """

    node: int
    room: int
    fetches: list[tuple[PartitionFetch, int]]
    by_answer: dict[tuple[str | bytes, int], tuple[PartitionFetch, int]] = field(default_factory=dict)


class AbortedTransactions:
    """Which batches of an answer belong to transactions that were aborted (KIP-98)."""

    def __init__(self, transactions: Iterable[Any]) -> None:
        """`transactions` as in the answer: a producer id, and the offset where its transaction begins."""
        self._ahead = deque(sorted((t.first_offset, t.producer_id) for t in transactions))
        self._producers: set[int] = set()

    def skips(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether to leave out this batch, the next one in order. Raises InvalidRecordBatch."""
        while self._ahead and self._ahead[0][0] <= header.last_offset:
            self._producers.add(self._ahead.popleft()[1])
        if header.producer_id not in self._producers:
            return False
        if header.is_control:
            records = decode_batch(batch, header)
            if records and control_type(records[0]) == ControlType.ABORT:
                self._producers.discard(header.producer_id)
            return True
        return header.is_transactional


class Fetcher:
    """The partitions in `partitions`, what was asked for them, and what came and nobody has taken yet."""

    def __init__(self, settings: FetchSettings, request_timeout: float) -> None:
        """Nothing is fetched until there are partitions. `request_timeout` in seconds, beyond the broker's wait."""
        self.settings = settings
        self._timeout = request_timeout + settings.max_wait_ms / 1000
        self.partitions: dict[TopicPartition, PartitionFetch] = {}
        self._ready: deque[FetchedBatches] = deque()
        self._held = 0  # bytes that came and are not used up
        self._expected = 0  # bytes that may come
        self._generation = 0
        self._busy: set[int] = set()
        self._nodes: set[int] = set()

    # Partitions

    def move(self, partition: TopicPartition, offset: int) -> None:
        """Fetch a partition from `offset` on. What was fetched of it before is dropped."""
        before = self.partitions.get(partition)
        self.drop(partition)
        self._generation += 1
        fetch = self.partitions[partition] = PartitionFetch(partition, offset, self._generation)
        if before is not None:
            fetch.paused, fetch.near, fetch.near_until = before.paused, before.near, before.near_until

    def drop(self, partition: TopicPartition) -> None:
        """Fetch a partition no more."""
        if self.partitions.pop(partition, None) is not None and self._ready:
            for fetched in [fetched for fetched in self._ready if fetched.fetch.partition == partition]:
                self._ready.remove(fetched)
                self.used(fetched)

    def pause(self, partition: TopicPartition, paused: bool) -> None:
        """Fetch no more of a partition for now, and keep what has come."""
        self.partitions[partition].paused = paused

    def failed_partition(self) -> PartitionFetch | None:
        """A fetch whose last answer was an error that nobody dealt with yet."""
        for fetch in self.partitions.values():
            if fetch.error is not None:
                return fetch
        return None

    def reset(self) -> None:
        """Forget what is in flight: its connections are gone, and no answer will come."""
        self._busy.clear()
        self._expected = 0
        for fetch in self.partitions.values():
            fetch.in_flight = None

    # What has come

    @property
    def starved(self) -> bool:
        """Whether what came of paused partitions leaves no room for the others."""
        return self._held > 0 and not self.room and any(fetch.paused for fetch in self.partitions.values())

    @property
    def ready(self) -> bool:
        """Whether `take` has something."""
        return any(not fetched.fetch.paused for fetched in self._ready)

    def take(self) -> FetchedBatches | None:
        """The next batches that have come, if any have. `used` has to follow when they are used up or dropped."""
        for fetched in self._ready:
            if not fetched.fetch.paused:
                self._ready.remove(fetched)
                return fetched
        return None

    def used(self, fetched: FetchedBatches) -> None:
        """The batches are not needed any more: their bytes no longer count."""
        self._held -= fetched.size
        fetched.size = 0

    # Asking

    def due(self, now: float) -> list[PartitionFetch]:
        """The partitions to ask for now, if their broker has no request in flight."""
        return [
            fetch
            for fetch in self.partitions.values()
            if fetch.in_flight is None and fetch.error is None and not fetch.paused and fetch.not_before <= now
        ]

    def next_time(self, now: float) -> float | None:
        """When a fetch that waits after an error is due again."""
        waiting = [fetch for fetch in self.partitions.values() if not fetch.paused and fetch.error is None]
        times = [fetch.not_before for fetch in waiting if fetch.not_before > now]
        return min(times, default=None)

    def by_node(
        self, partitions: Iterable[PartitionFetch], leader_of: Callable[[TopicPartition], int], now: float
    ) -> dict[int, list[PartitionFetch]]:
        """Partitions by the broker to ask, of those that have no request in flight. What `leader_of` raises, they fail
        with.
        """
        found: dict[int, list[PartitionFetch]] = {}
        for fetch in partitions:
            try:
                node = fetch.near if now < fetch.near_until else leader_of(fetch.partition)
            except PylogdError as error:
                self.fail(fetch, error, now)
                continue
            self._nodes.add(node)
            if node not in self._busy:
                found.setdefault(node, []).append(fetch)
        return found

    @property
    def room(self) -> int:
        """Bytes that the next request may bring; 0 while the buffers are full."""
        buffer = self.settings.buffer_bytes
        free = buffer - self._held - self._expected
        if free < _LEAST_ROOM and (self._held or self._expected):
            return 0
        share = buffer // (2 * max(1, len(self._nodes)))  # one reply of each broker is kept, one is under way
        return max(1, min(free, max(share, _LEAST_ROOM), self.settings.max_bytes))

    def calls(self, now: float, metadata: Metadata) -> list[Call]:
        """Return a request to each broker that has a partition to fetch and no request in flight.

        While something that came waits to be taken, nothing more is asked for. Partitions of topics that are not known
        are left out until they are.
        """
        if self.ready:
            return []
        known = [fetch for fetch in self.due(now) if fetch.partition.topic in metadata.topics]
        calls = []
        for node, fetches in self.by_node(known, lambda partition: _leader(metadata, partition), now).items():
            if not self.room:
                break
            calls.append(self._call(node, fetches, metadata))
        return calls

    def _call(self, node: int, fetches: list[PartitionFetch], metadata: Metadata) -> Call:
        in_flight = FetchInFlight(node, self.room, [(fetch, fetch.generation) for fetch in fetches])
        for fetch in fetches:
            fetch.in_flight = in_flight
        self._busy.add(node)
        self._expected += in_flight.room
        ids = {name: metadata.topics[name].topic_id for name in {fetch.partition.topic for fetch in fetches}}

        def failed(error: PylogdError, now: float) -> None:
            metadata.note(error)
            self.failed(in_flight, error, now)

        def answered(response: FetchResponse, now: float) -> None:
            self.answered(in_flight, response, now)
            for fetch in fetches:
                if fetch.error is not None:
                    metadata.note(fetch.error)

        return Call(
            FetchRequest, lambda version: self._request(in_flight, ids, version), answered, failed,
            self._timeout, node, PURPOSE, highest=TOPIC_IDS_FROM - 1 if ZERO_UUID in ids.values() else None,
        )  # fmt: skip

    def _request(self, in_flight: FetchInFlight, topic_ids: Mapping[str, bytes], version: int) -> FetchRequest:
        """Make the message, with the offsets of now: the connection may have taken a while."""
        settings, room = self.settings, in_flight.room
        by_id = version >= TOPIC_IDS_FROM
        topics: dict[str, FetchTopic] = {}
        for fetch, generation in in_flight.fetches:
            if not self.current(fetch, generation):
                continue
            name, index = fetch.partition
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = FetchTopic(topic_id=topic_ids[name]) if by_id else FetchTopic(name)
            topic.partitions.append(
                FetchPartition(
                    partition=index,
                    fetch_offset=fetch.offset,
                    partition_max_bytes=min(room, settings.partition_max_bytes),
                )
            )
            in_flight.by_answer[topic_ids[name] if by_id else name, index] = fetch, generation
        if not topics:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "nothing is left to fetch")
        return FetchRequest(
            replica_id=_CONSUMER,
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=room,
            isolation_level=int(settings.read_committed),
            rack_id=settings.rack,
            topics=list(topics.values()),
        )

    # Answers

    def answered(self, in_flight: FetchInFlight, response: FetchResponse, now: float) -> None:
        """Sort the answers of a reply by partition."""
        if response.error_code:
            self.failed(in_flight, KafkaError(error_for(response.error_code)), now)
            return
        partitions = self._ended(in_flight)
        for topic in response.responses:
            for answer in topic.partitions:
                found = in_flight.by_answer.get((topic.topic or topic.topic_id, answer.partition_index))
                if found is not None and self.current(*found):
                    self._answer(in_flight.node, found[0], answer, now)
        for fetch in partitions:  # whoever was asked for goes behind those that were not
            self.partitions[fetch.partition] = self.partitions.pop(fetch.partition)

    def failed(self, in_flight: FetchInFlight, error: PylogdError, now: float) -> None:
        """There is no answer, or none of use: so it is for all partitions that were asked for."""
        for fetch in self._ended(in_flight):
            self.fail(fetch, error, now)

    def fail(self, fetch: PartitionFetch, error: PylogdError, now: float) -> None:
        """Something went wrong with a fetch: it pauses, and somebody has to look at its `error`."""
        fetch.not_before = now + fetch.backoff.next()
        if fetch.near_until > now:  # not worth a word: the leader will do
            fetch.near_until = 0.0
        else:
            fetch.error = error

    def _ended(self, in_flight: FetchInFlight) -> list[PartitionFetch]:
        self._busy.discard(in_flight.node)
        self._expected -= in_flight.room
        for fetch, _ in in_flight.fetches:
            fetch.in_flight = None
        return [fetch for fetch, generation in in_flight.fetches if self.current(fetch, generation)]

    def current(self, fetch: PartitionFetch, generation: int) -> bool:
        """Whether a fetch still is where it was."""
        return self.partitions.get(fetch.partition) is fetch and fetch.generation == generation

    def _answer(self, node: int, fetch: PartitionFetch, answer: PartitionData, now: float) -> None:
        if answer.error_code:
            error = error_for(answer.error_code)
            self.fail(fetch, KafkaError(error, f"{fetch.partition}: {error.text}"), now)
            return
        if answer.preferred_read_replica != _NOBODY and answer.preferred_read_replica != node:
            fetch.near, fetch.near_until = answer.preferred_read_replica, now + _NEAR_SECONDS
        fetch.high_watermark = answer.high_watermark
        fetch.backoff.reset()
        records = answer.records
        if not isinstance(records, bytes | memoryview) or not len(records):
            return
        batches: list[tuple[BatchHeader, memoryview]] = []
        try:
            batches.extend(iter_batches(records, allow_partial=True))  # keeps what came before an error
        except InvalidRecordBatch as damage:
            if not batches:
                topic, partition = fetch.partition
                self.fail(fetch, CorruptRecords(topic, partition, fetch.offset, None, str(damage)), now)
        if batches:
            aborted = AbortedTransactions(answer.aborted_transactions or ()) if self.settings.read_committed else None
            size = len(records)
            self._held += size
            self._ready.append(FetchedBatches(fetch, fetch.generation, fetch.offset, iter(batches), size, aborted))
            fetch.offset = max(fetch.offset, batches[-1][0].next_offset)


def _leader(metadata: Metadata, partition: TopicPartition) -> int:
    try:
        found = metadata.partition(partition)
    except KafkaError as error:
        metadata.note(error)
        raise
    if found is None:  # forgotten since
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition}: its leader is not known")
    return found.leader
