"""Fetch record batches: choose the broker of each partition, make requests, and apply the answers.

Strategy: each broker gets one request at a time, for all partitions that are read from it. An answer is kept as bytes;
only batch headers are read, to know the next offset, so that the next request is in flight before the first record of
this answer is decoded. Partitions take turns in being first in a request, because a full answer leaves the last
partitions out. A leader may name a preferred replica (KIP-392), from which the partition is read for a while; after an
error of that replica the leader is asked again. A request names each partition's leader epoch, so that a broker with
another epoch refuses it. A position is checked before it is used with a new leader epoch (`validation`, KIP-320).

Rules: for each broker at most one answer is kept and one request in flight. All answers together have at most
`buffer_bytes`, or one larger batch. A partition's generation shows whether its position was changed meanwhile; then the
fetched batches are dropped. No I/O, no clock, no threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError, error_for
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.call import Call
from pylogd.client.core.consumer.fetch_session import (
    FINAL_EPOCH,
    SESSION_ERRORS,
    FetchSession,
    PartitionKey,
    PartitionRequest,
)
from pylogd.client.core.consumer.options import ConsumerOptions
from pylogd.client.core.errors import CorruptRecords
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.model import Partition, TopicPartition
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from pylogd.wire.records import BatchHeader, ControlType, control_type, decode_batch, iter_batches
from pylogd.wire.values import ZERO_UUID

TOPIC_IDS_FROM = 13  # since this version of Fetch
UNKNOWN_EPOCH = -1  # an unknown leader epoch
_CONSUMER = -1
_NO_REPLICA = -1
_NO_END = 1 << 63
_PREFERRED_SECONDS = 300.0  # a preferred replica is used for this time before the leader is asked again
_LEAST_BYTES = 64 * 1024  # no request is sent with less space than this in the buffers
_NUMBERS = count(1)


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Waits and sizes, like Kafka's fetch.* settings. `read_committed` leaves out records of aborted transactions."""

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
    """The next fetch of a partition, at `offset`.

    offset_epoch: the leader epoch of the record before `offset`.
    leader_epoch, topic_id: the log is known to have both under this leader epoch, if the topic still has this id.
    validating: whether a newer leader is being asked if its log has them.
    error: the error of the last answer, until it has been handled.
    """

    partition: TopicPartition
    offset: int
    generation: int
    offset_epoch: int = UNKNOWN_EPOCH
    leader_epoch: int = UNKNOWN_EPOCH
    topic_id: bytes = ZERO_UUID
    validating: bool = False
    high_watermark: int = -1
    not_before: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)
    error: PylogdError | None = None
    paused: bool = False
    in_flight: FetchInFlight | None = None
    preferred_replica: int = _NO_REPLICA
    preferred_until: float = 0.0


@dataclass(slots=True, eq=False)
class FetchedBatches:
    """Whole batches of one partition, as views of the answer's bytes. Records before `offset` were not requested.

    aborted: tells which batches to skip, if records of aborted transactions are left out.
    size: in bytes; it counts against the buffers.
    """

    fetch: PartitionFetch
    generation: int
    offset: int
    batches: Iterator[tuple[BatchHeader, memoryview]]
    size: int
    aborted: AbortedTransactions | None = None


@dataclass(slots=True, eq=False)
class FetchInFlight:
    """A request to a broker. `by_answer` has its partitions by topic (name or id) and number, as answers name them."""

    node: int
    max_bytes: int
    fetches: list[tuple[PartitionFetch, int]]
    session: FetchSession
    by_answer: dict[PartitionKey, tuple[PartitionFetch, int]] = field(default_factory=dict)


class Fetcher:
    """The fetched partitions, the requests for them, and the batches that the reader has not taken yet."""

    def __init__(self, settings: FetchSettings, request_timeout: float) -> None:
        """Nothing is fetched yet. `request_timeout` in seconds is added to the time that the broker may wait."""
        self.settings = settings
        self._timeout = request_timeout + settings.max_wait_ms / 1000
        self.partitions: dict[TopicPartition, PartitionFetch] = {}
        self.ends: Mapping[TopicPartition, int] = {}  # the offsets at which reading ends, if it ends
        self.paused: set[TopicPartition] = set()  # partitions that are neither fetched nor returned
        self._ready: deque[FetchedBatches] = deque()
        self._held = 0  # received bytes that are not used up
        self._expected = 0  # bytes that the answers in flight may have
        self._generation = 0
        self._busy: set[int] = set()
        self._nodes: set[int] = set()
        self._sessions: dict[int, FetchSession] = {}
        self._closed = False
        #: the number of sessions that brokers were asked to close and have not closed yet
        self.closing = 0
        self.leader_changed: list[TopicPartition] = []
        # A connection of their own: an answer that waits for records delays all later answers.
        self._purpose = f"fetch {next(_NUMBERS)}"

    # Partitions

    def move(self, partition: TopicPartition, offset: int, epoch: int = UNKNOWN_EPOCH, *, valid: bool = False) -> None:
        """Fetch a partition from `offset` on; `epoch` is the leader epoch of the record in front of it, if known.

        Batches that were fetched before are dropped. `valid`: the log has this position under the same leader epoch.
        """
        before = self.partitions.get(partition)
        self.drop(partition)
        self._generation += 1
        fetch = self.partitions[partition] = PartitionFetch(partition, offset, self._generation, epoch)
        fetch.paused = partition in self.paused
        if before is not None:
            fetch.preferred_replica, fetch.preferred_until = before.preferred_replica, before.preferred_until
            if valid:
                fetch.leader_epoch, fetch.topic_id = before.leader_epoch, before.topic_id

    def drop(self, partition: TopicPartition) -> None:
        """Stop fetching a partition."""
        if self.partitions.pop(partition, None) is not None and self._ready:
            for fetched in [fetched for fetched in self._ready if fetched.fetch.partition == partition]:
                self._ready.remove(fetched)
                self.used(fetched)

    def pause(self, partition: TopicPartition, paused: bool) -> None:
        """Stop or resume fetching a partition; fetched batches are kept."""
        (self.paused.add if paused else self.paused.discard)(partition)
        if partition in self.partitions:
            self.partitions[partition].paused = paused

    def failed_partition(self) -> PartitionFetch | None:
        """Return a fetch whose last answer was an error that has not been dealt with, or None."""
        for fetch in self.partitions.values():
            if fetch.error is not None:
                return fetch
        return None

    def reset(self) -> None:
        """Drop all requests in flight: their connections are closed, and no answer will arrive."""
        self._busy.clear()
        for session in self._sessions.values():
            session.failed()
        self._expected = 0
        for fetch in self.partitions.values():
            fetch.in_flight = None

    # What was fetched

    @property
    def starved(self) -> bool:
        """Whether the batches of paused partitions fill the buffers, so that nothing can be fetched for others."""
        return self._held > 0 and not self.request_bytes and any(fetch.paused for fetch in self.partitions.values())

    @property
    def ready(self) -> bool:
        """Whether `take` would return batches."""
        return any(not fetched.fetch.paused for fetched in self._ready)

    def take(self) -> FetchedBatches | None:
        """Return the next batches, or None. Call `used` once they are used up or dropped."""
        for fetched in self._ready:
            if not fetched.fetch.paused:
                self._ready.remove(fetched)
                return fetched
        return None

    def used(self, fetched: FetchedBatches) -> None:
        """Record that batches are no longer needed: their bytes no longer count against the buffers."""
        self._held -= fetched.size
        fetched.size = 0

    # Requests

    def due(self, now: float) -> list[PartitionFetch]:
        """Return the partitions that can be fetched now, if their broker has no request in flight."""
        due = [
            fetch
            for fetch in self.partitions.values()
            if fetch.in_flight is None
            and fetch.error is None
            and not fetch.paused
            and not fetch.validating
            and fetch.not_before <= now
        ]
        return [fetch for fetch in due if fetch.offset < self._end(fetch)] if self.ends else due

    def _end(self, fetch: PartitionFetch) -> int:
        return self.ends.get(fetch.partition, _NO_END)

    def next_time(self, now: float) -> float | None:
        """When a fetch that waits after an error is due again."""
        waiting = [fetch for fetch in self.partitions.values() if not fetch.paused and fetch.error is None]
        times = [fetch.not_before for fetch in waiting if fetch.not_before > now]
        return min(times, default=None)

    @property
    def request_bytes(self) -> int:
        """The number of bytes that the next answer may have; 0 while the buffers are full."""
        buffer = self.settings.buffer_bytes
        free = buffer - self._held - self._expected
        if free < _LEAST_BYTES and (self._held or self._expected):
            return 0
        share = buffer // (2 * max(1, len(self._nodes)))  # each broker may have one answer kept and one in flight
        return max(1, min(free, max(share, _LEAST_BYTES), self.settings.max_bytes))

    def calls(self, now: float, metadata: Metadata) -> list[Call]:
        """Return a request to each broker that has a partition to fetch and no request in flight.

        While batches wait to be taken, nothing more is fetched. Partitions of unknown topics are left out, and those
        whose leader has changed until their positions are validated (`take_leader_changed`).
        """
        if self.ready or self._closed:
            return []
        by_node: dict[int, list[PartitionFetch]] = {}
        for fetch in self.due(now):
            if fetch.partition.topic in metadata.topics:
                node = self._node_of(fetch, metadata, now)
                if node is not None and node not in self._busy:
                    by_node.setdefault(node, []).append(fetch)
        calls = []
        for node, fetches in by_node.items():
            if not self.request_bytes:
                break
            calls.append(self._call(node, fetches, metadata))
        return calls

    def _node_of(self, fetch: PartitionFetch, metadata: Metadata, now: float) -> int | None:
        """Return the broker to fetch a partition from; None if it can't be fetched now."""
        if now < fetch.preferred_until:
            self._nodes.add(fetch.preferred_replica)
            return fetch.preferred_replica
        try:
            leader = _leader(metadata, fetch.partition)
        except PylogdError as error:
            self.fail(fetch, error, now)
            return None
        if leader.leader_epoch != fetch.leader_epoch:
            before, fetch.topic_id = fetch.topic_id, metadata.topics[fetch.partition.topic].topic_id
            if before not in (ZERO_UUID, fetch.topic_id):  # the topic was created again, and has other epochs
                fetch.offset_epoch = UNKNOWN_EPOCH
            if UNKNOWN_EPOCH not in (fetch.offset_epoch, leader.leader_epoch):
                fetch.validating = True
                self.leader_changed.append(fetch.partition)
                return None
            fetch.leader_epoch = leader.leader_epoch
        self._nodes.add(leader.leader)
        return leader.leader

    def take_leader_changed(self) -> list[TopicPartition]:
        """Return the partitions whose positions have to be validated before they are fetched again."""
        changed, self.leader_changed = self.leader_changed, []
        return [p for p in changed if (fetch := self.partitions.get(p)) is not None and fetch.validating]

    def _call(self, node: int, fetches: list[PartitionFetch], metadata: Metadata) -> Call:
        session = self._sessions.setdefault(node, FetchSession())
        current = [(fetch, fetch.generation) for fetch in fetches]
        in_flight = FetchInFlight(node, self.request_bytes, current, session)
        for fetch in fetches:
            fetch.in_flight = in_flight
        self._busy.add(node)
        self._expected += in_flight.max_bytes
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
            self._timeout, node, self._purpose, highest=TOPIC_IDS_FROM - 1 if ZERO_UUID in ids.values() else None,
        )  # fmt: skip

    def _request(self, in_flight: FetchInFlight, topic_ids: Mapping[str, bytes], version: int) -> FetchRequest:
        """Make the message with the current offsets, which may have changed while the connection was opened."""
        settings = self.settings
        by_id = version >= TOPIC_IDS_FROM
        most = min(in_flight.max_bytes, settings.partition_max_bytes)
        wanted: dict[PartitionKey, PartitionRequest] = {}
        for fetch, generation in in_flight.fetches:
            if self.current(fetch, generation):
                name, index = fetch.partition
                key = (topic_ids[name] if by_id else name), index
                wanted[key] = PartitionRequest(fetch.offset, fetch.leader_epoch, most)
                in_flight.by_answer[key] = fetch, generation
        if not wanted:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "there is nothing left to fetch")
        session = in_flight.session.request(wanted, version, by_id)
        return FetchRequest(
            replica_id=_CONSUMER,
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=in_flight.max_bytes,
            isolation_level=int(settings.read_committed),
            session_id=session.session_id,
            session_epoch=session.epoch,
            rack_id=settings.rack,
            topics=_topics(session.named),
            forgotten_topics_data=_forgotten(session.forgotten),
        )

    def close(self, is_ready: Callable[[int, str], bool]) -> list[Call]:
        """Stop fetching, and return requests that close the sessions with connected brokers.

        `is_ready` tells whether there is a connection to a broker for a purpose.
        """
        self._closed = True
        sessions = {node: session.close() for node, session in self._sessions.items() if is_ready(node, self._purpose)}
        calls = [self._closing_call(node, session_id) for node, session_id in sessions.items() if session_id]
        self.closing = len(calls)
        return calls

    def _closing_call(self, node: int, session_id: int) -> Call:
        def ended(_: object, __: float) -> None:
            self.closing -= 1

        request = FetchRequest(
            replica_id=_CONSUMER, max_wait_ms=0, min_bytes=0, session_id=session_id, session_epoch=FINAL_EPOCH
        )
        return Call(FetchRequest, lambda _: request, ended, ended, self._timeout, node, self._purpose)

    # Answers

    def answered(self, in_flight: FetchInFlight, response: FetchResponse, now: float) -> None:
        """Apply a broker's answer for each partition."""
        if response.error_code:
            code = error_for(response.error_code)
            if code in SESSION_ERRORS and in_flight.session.incremental:  # fetch again at once, in a new session
                in_flight.session.failed(code)
                self._ended(in_flight)
            else:
                self.failed(in_flight, KafkaError(code), now)
            return
        in_flight.session.succeeded(response.session_id)
        partitions = self._ended(in_flight)
        before = {fetch.partition: fetch.offset for fetch in partitions}
        for topic in response.responses:
            for answer in topic.partitions:
                found = in_flight.by_answer.get((topic.topic or topic.topic_id, answer.partition_index))
                if found is not None and self.current(*found):
                    self._answer(in_flight.node, found[0], answer, now)
        # Brokers serve partitions in the request's order, so partitions that gave records come last in the next
        # request.
        for fetch in sorted(partitions, key=lambda fetch: fetch.offset != before[fetch.partition]):
            self.partitions[fetch.partition] = self.partitions.pop(fetch.partition)

    def failed(self, in_flight: FetchInFlight, error: PylogdError, now: float) -> None:
        """Record a request without a usable answer as a failure of each of its partitions."""
        in_flight.session.failed()
        for fetch in self._ended(in_flight):
            self.fail(fetch, error, now)

    def fail(self, fetch: PartitionFetch, error: PylogdError, now: float) -> None:
        """Record a failed fetch: the partition pauses until its `error` is handled."""
        fetch.not_before = now + fetch.backoff.next()
        if fetch.preferred_until > now:  # the error is not reported: the leader is asked instead
            fetch.preferred_until = 0.0
        else:
            fetch.error = error

    def _ended(self, in_flight: FetchInFlight) -> list[PartitionFetch]:
        self._busy.discard(in_flight.node)
        self._expected -= in_flight.max_bytes
        for fetch, _ in in_flight.fetches:
            fetch.in_flight = None
        return [fetch for fetch, generation in in_flight.fetches if self.current(fetch, generation)]

    def current(self, fetch: PartitionFetch, generation: int) -> bool:
        """Whether a partition is still fetched, and its position was not changed since."""
        return self.partitions.get(fetch.partition) is fetch and fetch.generation == generation

    def _answer(self, node: int, fetch: PartitionFetch, answer: PartitionData, now: float) -> None:
        if answer.error_code:
            error = error_for(answer.error_code)
            self.fail(fetch, KafkaError(error, f"{fetch.partition}: {error.text}"), now)
            return
        if answer.preferred_read_replica not in (_NO_REPLICA, node):
            fetch.preferred_replica, fetch.preferred_until = answer.preferred_read_replica, now + _PREFERRED_SECONDS
        # The end from which the lag is counted. Brokers without transactions send no last stable offset.
        stable = answer.last_stable_offset if self.settings.read_committed else -1
        fetch.high_watermark = answer.high_watermark if stable < 0 else stable
        fetch.backoff.reset()
        records = answer.records
        if not isinstance(records, bytes | memoryview) or not len(records):
            return
        batches: list[tuple[BatchHeader, memoryview]] = []
        try:
            batches.extend(iter_batches(records, allow_partial=True))  # keeps the batches before an error
        except InvalidRecordBatch as damage:
            if not batches:
                topic, partition = fetch.partition
                self.fail(fetch, CorruptRecords(topic, partition, fetch.offset, None, str(damage)), now)
        if self.ends and batches:  # the first batch is kept even if it begins after the end, to move the position there
            end = self._end(fetch)
            batches[1:] = [found for found in batches[1:] if found[0].base_offset < end]
        if batches:
            aborted = AbortedTransactions(answer.aborted_transactions or ()) if self.settings.read_committed else None
            size = len(records)
            self._held += size
            self._ready.append(FetchedBatches(fetch, fetch.generation, fetch.offset, iter(batches), size, aborted))
            last = batches[-1][0]
            fetch.offset = max(fetch.offset, last.next_offset)
            fetch.offset_epoch = last.leader_epoch


def _leader(metadata: Metadata, partition: TopicPartition) -> Partition:
    """Return a partition that has a leader. Raises KafkaError."""
    try:
        found = metadata.partition(partition)
    except KafkaError as error:
        metadata.note(error)
        raise
    if found is None:  # a change of leader was noticed meanwhile
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition}: its leader is not known")
    return found


def _topics(named: Mapping[PartitionKey, PartitionRequest]) -> list[FetchTopic]:
    topics: dict[str | bytes, FetchTopic] = {}
    for (topic, index), wanted in named.items():
        entry = topics.get(topic)
        if entry is None:
            entry = topics[topic] = FetchTopic(topic) if isinstance(topic, str) else FetchTopic(topic_id=topic)
        entry.partitions.append(
            FetchPartition(index, wanted.leader_epoch, wanted.offset, partition_max_bytes=wanted.max_bytes)
        )
    return list(topics.values())


def _forgotten(partitions: Iterable[PartitionKey]) -> list[ForgottenTopic]:
    topics: dict[str | bytes, ForgottenTopic] = {}
    for topic, index in partitions:
        entry = topics.get(topic)
        if entry is None:
            entry = topics[topic] = ForgottenTopic(topic) if isinstance(topic, str) else ForgottenTopic(topic_id=topic)
        entry.partitions.append(index)
    return list(topics.values())


class AbortedTransactions:
    """Tells which batches of an answer belong to aborted transactions (KIP-98)."""

    def __init__(self, transactions: Iterable[Any]) -> None:
        """`transactions` are those of the answer: producer ids, and the first offsets of their transactions."""
        self._ahead = deque(sorted((t.first_offset, t.producer_id) for t in transactions))
        self._producers: set[int] = set()

    def skips(self, header: BatchHeader, batch: memoryview) -> bool:
        """Return whether to skip a batch of an aborted transaction. Batches must be passed in order.

        Raises InvalidRecordBatch.
        """
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
