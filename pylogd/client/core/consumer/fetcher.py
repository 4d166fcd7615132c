"""Where a consumer is in each partition, what to fetch next, and what has come: the pure half of a fetcher.

Strategy: one request at a time to each broker, for all partitions that are read from it. A reply is kept as the bytes
that came; only batch headers are read, to know where to go on, so that the next request is under way before the first
record of this reply is decoded. Partitions take turns in being first in a request, because a full reply starves the
last ones. A leader may point to a nearer replica (KIP-392); that one is read from for a while, and any trouble with it
leads back to the leader.

Rules: at most one reply of each broker is kept and one under way, and all of them together hold no more than
`buffer_bytes`, or a batch that is larger. A partition whose position was changed meanwhile is told by its generation,
and what was fetched for it is dropped. No I/O, no clock, no threads; both faces of the client use it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pylogd.client.core.backoff import Backoff
from pylogd.client.core.errors import CorruptRecords
from pylogd.client.core.model import TopicPartition
from pylogd.errors import KafkaError, PylogdError, error_for
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from pylogd.wire.records import BatchHeader, ControlType, control_type, decode_batch, iter_batches

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


@dataclass(slots=True, eq=False)
class Place:
    """Where the fetcher is in a partition. `error` is what its last answer said, until somebody deals with it."""

    partition: TopicPartition
    offset: int
    generation: int
    high_watermark: int = -1
    not_before: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)
    error: PylogdError | None = None
    paused: bool = False
    asked: Asked | None = None
    near: int = _NOBODY
    near_until: float = 0.0


@dataclass(slots=True, eq=False)
class Fetched:
    """Batches of one partition, whole, as views of the reply's bytes. Records before `offset` were not asked for.

    `aborted` is for `Aborted.skips`, where transactions matter. `size` in bytes counts against the buffers.
    """

    place: Place
    generation: int
    offset: int
    batches: Iterator[tuple[BatchHeader, memoryview]]
    size: int
    aborted: Aborted | None = None


@dataclass(slots=True, eq=False)
class Asked:
    """A fetch request under way to a broker: the places by topic (name or id) and partition, and their generations."""

    node: int
    room: int
    places: dict[tuple[str | bytes, int], tuple[Place, int]]


class Aborted:
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


class Fetching:
    """The partitions in `places`, what was asked for them, and what came and nobody has taken yet."""

    def __init__(self, settings: FetchSettings) -> None:
        """Nothing is fetched until there are places."""
        self.settings = settings
        self.places: dict[TopicPartition, Place] = {}
        self._ready: deque[Fetched] = deque()
        self._held = 0  # bytes that came and are not used up
        self._expected = 0  # bytes that may come
        self._generation = 0
        self._busy: set[int] = set()
        self._nodes: set[int] = set()

    # Places

    def move(self, partition: TopicPartition, offset: int) -> None:
        """Fetch a partition from `offset` on. What was fetched of it before is dropped."""
        before = self.places.get(partition)
        self.drop(partition)
        self._generation += 1
        place = self.places[partition] = Place(partition, offset, self._generation)
        if before is not None:
            place.paused, place.near, place.near_until = before.paused, before.near, before.near_until

    def drop(self, partition: TopicPartition) -> None:
        """Fetch a partition no more."""
        if self.places.pop(partition, None) is not None and self._ready:
            for fetched in [fetched for fetched in self._ready if fetched.place.partition == partition]:
                self._ready.remove(fetched)
                self.used(fetched)

    def pause(self, partition: TopicPartition, paused: bool) -> None:
        """Fetch no more of a partition for now, and keep what has come."""
        self.places[partition].paused = paused

    def failed_place(self) -> Place | None:
        """A place whose last answer was an error that nobody dealt with yet."""
        for place in self.places.values():
            if place.error is not None:
                return place
        return None

    # What has come

    @property
    def ready(self) -> bool:
        """Whether `take` has something."""
        return any(not fetched.place.paused for fetched in self._ready)

    def take(self) -> Fetched | None:
        """The next batches that have come, if any have. `used` has to follow when they are used up or dropped."""
        for fetched in self._ready:
            if not fetched.place.paused:
                self._ready.remove(fetched)
                return fetched
        return None

    def used(self, fetched: Fetched) -> None:
        """The batches are not needed any more: their bytes no longer count."""
        self._held -= fetched.size
        fetched.size = 0

    # Asking

    def due(self, now: float) -> list[Place]:
        """The places to ask for now, if their broker has no request under way."""
        return [
            place
            for place in self.places.values()
            if place.asked is None and place.error is None and not place.paused and place.not_before <= now
        ]

    def next_time(self, now: float) -> float | None:
        """When a place that waits after an error is due again."""
        times = [p.not_before for p in self.places.values() if p.not_before > now and not p.paused and p.error is None]
        return min(times, default=None)

    def by_node(
        self, places: Iterable[Place], leader_of: Callable[[TopicPartition], int], now: float
    ) -> dict[int, list[Place]]:
        """Places by the broker to ask, of those that have no request under way. What `leader_of` raises, they fail
        with.
        """
        found: dict[int, list[Place]] = {}
        for place in places:
            try:
                node = place.near if now < place.near_until else leader_of(place.partition)
            except PylogdError as error:
                self.fail(place, error, now)
                continue
            self._nodes.add(node)
            if node not in self._busy:
                found.setdefault(node, []).append(place)
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

    def ask(
        self, node: int, places: list[Place], version: int, topic_ids: Mapping[str, bytes]
    ) -> tuple[FetchRequest, Asked]:
        """The request for some places, to be sent now; `answered` or `failed` has to follow."""
        settings, room = self.settings, self.room
        request = FetchRequest(
            replica_id=_CONSUMER,
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=room,
            isolation_level=int(settings.read_committed),
            rack_id=settings.rack,
        )
        by_id = version >= TOPIC_IDS_FROM
        topics: dict[str, FetchTopic] = {}
        asked = Asked(node, room, {})
        for place in places:
            name, index = place.partition
            key = topic_ids[name] if by_id else name
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = FetchTopic(topic_id=topic_ids[name]) if by_id else FetchTopic(name)
            topic.partitions.append(
                FetchPartition(
                    partition=index,
                    fetch_offset=place.offset,
                    partition_max_bytes=min(room, settings.partition_max_bytes),
                )
            )
            asked.places[key, index] = place, place.generation
            place.asked = asked
        request.topics = list(topics.values())
        self._busy.add(node)
        self._expected += room
        return request, asked

    # Answers

    def answered(self, asked: Asked, response: FetchResponse, now: float) -> None:
        """Sort the answers of a reply by partition."""
        if response.error_code:
            self.failed(asked, KafkaError(error_for(response.error_code)), now)
            return
        places = self._landed(asked)
        for topic in response.responses:
            for answer in topic.partitions:
                found = asked.places.get((topic.topic or topic.topic_id, answer.partition_index))
                if found is not None and self.current(*found):
                    self._answer(asked.node, found[0], answer, now)
        for place in places:  # whoever was asked for goes behind those that were not
            self.places[place.partition] = self.places.pop(place.partition)

    def failed(self, asked: Asked, error: PylogdError, now: float) -> None:
        """There is no answer, or none of use: so it is for all places that were asked for."""
        for place in self._landed(asked):
            self.fail(place, error, now)

    def fail(self, place: Place, error: PylogdError, now: float) -> None:
        """Something went wrong with a place: it pauses, and somebody has to look at its `error`."""
        place.not_before = now + place.backoff.next()
        if place.near_until > now:  # not worth a word: the leader will do
            place.near_until = 0.0
        else:
            place.error = error

    def _landed(self, asked: Asked) -> list[Place]:
        self._busy.discard(asked.node)
        self._expected -= asked.room
        for place, _ in asked.places.values():
            place.asked = None
        return [place for place, generation in asked.places.values() if self.current(place, generation)]

    def current(self, place: Place, generation: int) -> bool:
        """Whether a place still is where it was."""
        return self.places.get(place.partition) is place and place.generation == generation

    def _answer(self, node: int, place: Place, answer: PartitionData, now: float) -> None:
        if answer.error_code:
            error = error_for(answer.error_code)
            self.fail(place, KafkaError(error, f"{place.partition}: {error.text}"), now)
            return
        if answer.preferred_read_replica != _NOBODY and answer.preferred_read_replica != node:
            place.near, place.near_until = answer.preferred_read_replica, now + _NEAR_SECONDS
        place.high_watermark = answer.high_watermark
        place.backoff.reset()
        records = answer.records
        if not isinstance(records, bytes | memoryview) or not len(records):
            return
        batches: list[tuple[BatchHeader, memoryview]] = []
        try:
            batches.extend(iter_batches(records, allow_partial=True))  # keeps what came before an error
        except InvalidRecordBatch as damage:
            if not batches:
                topic, partition = place.partition
                self.fail(place, CorruptRecords(topic, partition, place.offset, None, str(damage)), now)
        if batches:
            aborted = Aborted(answer.aborted_transactions or ()) if self.settings.read_committed else None
            size = len(records)
            self._held += size
            self._ready.append(Fetched(place, place.generation, place.offset, iter(batches), size, aborted))
            place.offset = max(place.offset, batches[-1][0].next_offset)
