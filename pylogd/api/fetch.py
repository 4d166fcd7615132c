"""Fetch (1), versions 4 to 18: read record batches, waiting for them if asked to.

Behaviour: reads from the batch that holds the offset, up to the high watermark. The first batch of the response comes
whole even if it is larger than any limit; after it, `max_bytes` of the request (and of `fetch.max.bytes`) and
`partition_max_bytes` hold. With fewer than `min_bytes` there, and no error to report, the request waits up to
`max_wait_ms`. Records are slices of segment files, which nobody here looks into. Topics go by name, from version 13 on
by id. Sessions (version 7 on) are KIP-227's. A leader epoch that isn't ours is FENCED or UNKNOWN (version 9 on), and
a client whose last epoch diverges from the log is told where (version 12 on). read_committed is honoured in that
there are no transactions: nothing is aborted and everything below the high watermark is stable.
Fairness: a session serves first whom it served longest ago; without one the place to start is chosen at random, so
that a client that always asks in the same order starves none of its partitions.
A follower reads up to the log's end, tells by the offset it asks for what it has, and must name its leader's epoch.
From version 11 on consumers may read from followers too, up to the high watermark these know, and are sent to one in
their rack where `replica.selector.class` says so (KIP-392); older ones get NOT_LEADER_OR_FOLLOWER.
Batches compressed with zstd are kept from clients below version 10, which don't know the codec: they get what is before
the first such batch, and UNSUPPORTED_COMPRESSION_TYPE where that is nothing (KIP-110). Kafka's KafkaApis decides by the
topic's `compression.type` alone; here batches are stored as they were produced, whatever the setting, so they decide.
Gaps: none.

This is the hot path: a fetch that can be answered makes one object for each partition; one at the end of the log
makes a timer and an entry in the purgatory, and is looked at again only on news of its partitions. One that goes on
with a session looks at the partitions that have changed since the last, and waits for news of any without being filed
under each (`replica.sessions`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sized
from itertools import chain
from random import randrange
from typing import Any, TypeAlias

from twisted.internet.defer import Deferred

from pylogd.api.brokers import FETCH_WITH_LEADERS, endpoints_of
from pylogd.api.context import RequestContext
from pylogd.api.errors import explain, why_absent
from pylogd.api.fetch_one import NONE_ABORTED, NOTHING_YET, READ_COMMITTED, fetch_one
from pylogd.api.registry import handles
from pylogd.errors import ErrorCode, KafkaError, PylogdError
from pylogd.log.errors import ColdRead
from pylogd.log.files import FileSlice
from pylogd.log.reading import before_codec
from pylogd.replica.partition import NO_EPOCH, Partition, Role
from pylogd.replica.purgatory import Operation
from pylogd.replica.selector import NO_PREFERENCE
from pylogd.replica.sessions import FINAL_EPOCH, INITIAL_EPOCH, FetchSession, SessionPartition, TopicKey
from pylogd.wire.compression import CompressionType
from pylogd.wire.hot_fetch import NO_DIVERGENCE, NO_LEADER, NO_SNAPSHOT
from pylogd.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

_FIRST_WITH_ZSTD = 10
_FIRST_FROM_FOLLOWERS = 11
_FIRST_WITH_LEADER = 12
_FIRST_WITH_TOPIC_ID = 13
_FIRST_WITH_REPLICA_STATE = 15
_LEADER_ELSEWHERE = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER)
_NO_RECORDS = b""

_NO_DATA = PartitionData()
_COLD = b"cold"  # stands for records that are still to be read; compared by identity

Entry: TypeAlias = SessionPartition[FetchPartition]
Read: TypeAlias = Callable[..., "FileSlice | None"]
Find: TypeAlias = Callable[[tuple[Any, int]], "Partition | None"]


@handles(FetchRequest, 4, 18, overlaps=True)
def fetch(context: RequestContext, request: FetchRequest) -> FetchResponse | Deferred[FetchResponse]:
    """Read now if there is enough; otherwise a Deferred that fires when there is, or when the time is up."""
    response = fetch_one(context, request)
    if response is not None and response is not NOTHING_YET:
        return response
    try:
        job = _job(context, request)
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    if response is None:
        job.read()
    if job.follower >= 0:
        job.tell_progress()
    min_bytes = min(request.min_bytes, job.max_bytes)
    if request.max_wait_ms <= 0 or job.due or job.total >= min_bytes:
        return job.answer() if response is None else job.answer_again(None)
    wait = FetchWait(job, min_bytes)
    context.broker.replicas.fetch_waits.watch(wait, wait.watched, request.max_wait_ms / 1000)
    if job.session is not None:
        job.session.wait_with(wait)
    return wait.done.addCallback(job.answer_again)


def _job(context: RequestContext, request: FetchRequest) -> FetchJob:
    """What the request asks for, by itself or together with its session.

    Raises KafkaError for the session's faults, and for a client, as brokers are, that means another cluster.
    """
    if request.cluster_id is not None and request.cluster_id != context.broker.cluster_id:
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID)
    by_id = context.version >= _FIRST_WITH_TOPIC_ID
    sessions = context.broker.replicas.sessions
    epoch = request.session_epoch
    if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        if request.session_id:
            sessions.close(request.session_id)
        entries = [
            SessionPartition(topic.topic_id if by_id else topic.topic, wanted)
            for topic in request.topics
            for wanted in topic.partitions
        ]
        return FetchJob(context, request, entries, None, epoch == INITIAL_EPOCH)
    session: FetchSession[FetchPartition] = sessions.resume(request.session_id, epoch, by_id)
    for gone in request.forgotten_topics_data:
        session.forget(gone.topic_id if by_id else gone.topic, gone.partitions)
    for topic in request.topics:
        for wanted in topic.partitions:
            session.want(topic.topic_id if by_id else topic.topic, wanted)
    if not session.partitions:
        sessions.close(session.session_id)  # the client has dropped all: nothing to be incremental about
        return FetchJob(context, request, [], None, False)
    return FetchJob(context, request, session, session, False)


class FetchJob:
    """One fetch request at work: read as often as needed, answer once.

    total: bytes found by the last `read`. due: whether it found something that must be answered at once.
    follower: the broker that follows, -1 for any other client. rack: the client's, if it may be sent elsewhere.
    """

    __slots__ = (
        "_aborted", "_broker_epoch", "_by_id", "_cold", "_context", "_now", "_opens_session", "_progress", "_request",
        "due", "entries", "find", "follower", "max_bytes", "rack", "served", "session", "total",
    )  # fmt: skip

    def __init__(
        self,
        context: RequestContext,
        request: FetchRequest,
        entries: list[Entry] | FetchSession[FetchPartition],
        session: FetchSession[FetchPartition] | None,
        opens_session: bool,
    ) -> None:
        broker = context.broker
        self._context = context
        self._request = request
        self._by_id = context.version >= _FIRST_WITH_TOPIC_ID
        self.session = session
        self._opens_session = opens_session
        self._aborted = NONE_ABORTED if request.isolation_level == READ_COMMITTED else None
        self._cold: list[ColdPartition] = []
        replicas = broker.replicas
        by_state = context.version >= _FIRST_WITH_REPLICA_STATE
        self.follower = request.replica_state.replica_id if by_state else request.replica_id
        self.rack = request.rack_id and (request.rack_id if replicas.selector is not None else "")
        self._progress: list[tuple[Partition, bool]] | None = None
        if self.follower >= 0:
            self._progress = []
            self._now = replicas.seconds()
            self._broker_epoch = request.replica_state.replica_epoch if by_state else NO_EPOCH
        self.find: Find = replicas.partitions_by_id.get if self._by_id else replicas.partitions.get
        self.entries = entries
        if session is not None:
            self._go_on(session)
        self.max_bytes = min(request.max_bytes, broker.settings["fetch.max.bytes"])
        self.served: list[tuple[Entry, PartitionData]] = []
        self.total = 0
        self.due = False

    def _go_on(self, session: FetchSession[FetchPartition]) -> None:
        """This fetch is the next of `session`: it has all the partitions looked at if it sees them in another way."""
        replicas = self._context.broker.replicas
        live = replicas.selector.brokers if self.rack and replicas.selector is not None else None
        session.see((self._context.version, self.follower, self._request.isolation_level, self.rack, live))
        if self.follower >= 0:
            session.fetched_at = self._now

    def read(self) -> None:
        """Look at every partition, or at those of the session that have changed: fill `served` with what there is to
        say about those of which there is something.
        """
        self.served = served = []
        self._cold = []
        self.total = 0
        self.due = not self.entries
        look = self._look if self.follower < 0 else self._look_for_follower
        for entry in self._in_turn():
            data = look(entry)
            if data is not None:
                served.append((entry, data))

    def answer_again(self, _: None) -> FetchResponse | Deferred[FetchResponse]:
        """The wait is over: read what is there now and answer it."""
        if self.session is not None:
            self.session.wait = None
        response = fetch_one(self._context, self._request)
        if response is not None and response is not NOTHING_YET:
            return response
        self.read()
        return self.answer()

    def answer(self) -> FetchResponse | Deferred[FetchResponse]:
        """The response to the last `read`; a Deferred when a part of it lies on the disk only."""
        if self._cold:
            done = self._context.broker.replicas.in_thread(_read_cold, self._cold)
            return done.addCallback(lambda _: self._respond())
        return self._respond()

    def _in_turn(self) -> Iterable[Entry]:
        if self.session is not None:
            return self.session.in_turn()
        entries = self.entries
        if isinstance(entries, list) and len(entries) > 1:
            start = randrange(len(entries))
            return chain(entries[start:], entries[:start])
        return entries

    def _look(self, entry: Entry) -> PartitionData | None:
        wanted = entry.wanted
        partition = self.find((entry.topic, wanted.partition))
        if partition is None:
            self.due = True
            return _failure(wanted.partition, why_absent(self._context.broker, entry.topic, wanted.partition))
        if self.session is not None:
            self.session.looks_at(entry, partition)
        try:
            if partition.role is not Role.LEADING:
                self._check_role(partition)
            log_start = partition.log.log_start_offset
            if wanted.current_leader_epoch != partition.leader_epoch:
                partition.check_epoch(wanted.current_leader_epoch)
            if wanted.last_fetched_epoch >= 0:
                diverging = partition.divergence(wanted.last_fetched_epoch, wanted.fetch_offset)
                if diverging is not None:
                    self.due = True
                    return self._data(partition, log_start, _NO_RECORDS, EpochEndOffset(*diverging))
            if self.rack and partition.followers:
                elsewhere = self._elsewhere(partition, wanted.fetch_offset)
                if elsewhere is not None:
                    return elsewhere
            records = self._read(partition, wanted, partition.read)
        except PylogdError as error:
            self.due = True
            return self._refusal(partition, explain(error)[0])
        return self._found(entry, partition, log_start, records)

    def _found(self, entry: Entry, partition: Partition, log_start: int, records: Sized | None) -> PartitionData | None:
        if records is None:
            session = self.session
            if session is not None and not entry.is_news(partition.high_watermark, log_start):
                self._settle(session, entry, partition)
                return None
            records = _NO_RECORDS
        data = self._data(partition, log_start, records, NO_DIVERGENCE)
        if records is _COLD:
            self._cold[-1].data = data
        return data

    def _settle(self, session: FetchSession[FetchPartition], entry: Entry, partition: Partition) -> None:
        """There is nothing to say of `entry`: if that stays so until there is news of it, it need not be looked at."""
        offset, follower = entry.wanted.fetch_offset, self.follower
        if follower < 0:
            if partition.high_watermark <= offset <= partition.log.log_end_offset:  # beyond, it is an error to be told
                session.settle(entry, None)
        elif offset == partition.log.log_end_offset and follower in partition.isr:
            session.settle(entry, partition.followers.get(follower))

    def _data(self, partition: Partition, log_start: int, records: Sized, diverging: EpochEndOffset) -> PartitionData:
        high_watermark = partition.high_watermark
        return PartitionData(
            partition.index, 0, high_watermark, high_watermark, log_start, diverging, NO_LEADER, NO_SNAPSHOT,
            self._aborted, -1, records,
        )  # fmt: skip

    def _refusal(self, partition: Partition, code: ErrorCode) -> PartitionData:
        data = _failure(partition.index, code)
        if code in _LEADER_ELSEWHERE and self._context.version >= _FIRST_WITH_LEADER:
            data.current_leader = LeaderIdAndEpoch(partition.leader_id, partition.leader_epoch)
        return data

    def _check_role(self, partition: Partition) -> None:
        if partition.role is not Role.FOLLOWING or self._context.version < _FIRST_FROM_FOLLOWERS:
            partition.check_leading()

    def _elsewhere(self, partition: Partition, offset: int) -> PartitionData | None:
        """The answer that sends a consumer to a replica in its rack, None where there is none."""
        selector = self._context.broker.replicas.selector
        assert selector is not None
        preferred = selector.preferred(partition, self.rack, offset)
        if preferred == NO_PREFERENCE:
            return None
        self.due = True
        data = self._data(partition, partition.log.log_start_offset, _NO_RECORDS, NO_DIVERGENCE)
        data.preferred_read_replica = preferred
        return data

    def _look_for_follower(self, entry: Entry) -> PartitionData | None:
        """`_look` for a broker that follows: what it asks for says what it has."""
        wanted = entry.wanted
        partition = self.find((entry.topic, wanted.partition))
        if partition is None:
            self.due = True
            return _failure(wanted.partition, why_absent(self._context.broker, entry.topic, wanted.partition))
        if self.session is not None:
            self.session.looks_at(entry, partition)
        try:
            partition.check_leading()
            log = partition.log
            log_start = log.log_start_offset
            offset, node_id = wanted.fetch_offset, self.follower
            partition.check_follower(node_id, wanted.current_leader_epoch)
            idle = offset == log.log_end_offset and wanted.last_fetched_epoch in (log.epochs.latest, NO_EPOCH)
            if not idle and wanted.last_fetched_epoch >= 0:
                diverging = partition.divergence(wanted.last_fetched_epoch, offset)
                if diverging is not None:
                    self.due = True
                    return self._data(partition, log_start, _NO_RECORDS, EpochEndOffset(*diverging))
            throttled = not idle and self._context.broker.replicas.throttle.holds_back(partition, node_id)
            records = None if idle or throttled else self._read(partition, wanted, partition.read_for_follower)
        except PylogdError as error:
            self.due = True
            return self._refusal(partition, explain(error)[0])
        if self._progress is not None:
            replicas = self._context.broker.replicas
            came = replicas.selector is not None and partition.followers[node_id].log_end != offset
            moved = partition.follower_fetched(node_id, offset, wanted.log_start_offset, self._now, self._broker_epoch)
            moved = moved or came
            if moved or node_id not in partition.isr:
                self._progress.append((partition, moved))
        if self.session is not None and self.is_urgent(entry, partition):
            self.due = True
        return self._found(entry, partition, log_start, records)

    def is_urgent(self, entry: Entry, partition: Partition) -> bool:
        """Whether a follower should hear at once what is news besides records: that the log starts elsewhere; or, where
        consumers read from followers, what is committed.
        """
        return entry.sent_log_start >= 0 and (
            entry.sent_log_start != partition.log.log_start_offset
            or (
                entry.sent_high_watermark != partition.high_watermark
                and self._context.broker.replicas.selector is not None
            )
        )

    def is_held(self, partition: Partition) -> bool:
        """Whether the follower gets nothing of a partition for now, since its replica is throttled."""
        return self._context.broker.replicas.throttle.holds_back(partition, self.follower)

    def tell_progress(self) -> None:
        """After the first `read` of a follower's fetch: wake who waits for what it has, let it join who is in sync."""
        progress, self._progress = self._progress, None
        replicas = self._context.broker.replicas
        for partition, moved in progress or ():
            if moved:
                replicas.became_visible(partition)
            if self.follower not in partition.isr:
                replicas.isr.follower_came(partition, self.follower)

    def _read(self, partition: Partition, wanted: FetchPartition, read: Read) -> Sized | None:
        """The records within the limits, None if there are none, or `_COLD` if they have to be read in a thread."""
        limit = self.max_bytes - self.total
        if limit > wanted.partition_max_bytes:
            limit = wanted.partition_max_bytes
        min_one = not self.total
        if limit <= 0:
            if not min_one:
                return None
            limit = 0
        offset = wanted.fetch_offset
        try:
            records = read(offset, limit, min_one=min_one, allow_cold=False)
        except ColdRead:
            self.total += max(limit, 1)  # what it will take at most
            self.due = True
            plain = self._context.version < _FIRST_WITH_ZSTD
            self._cold.append(ColdPartition(partition, offset, limit, min_one, read, plain))
            return _COLD
        if records is None:
            return None
        self.total += len(records)
        if self._context.version < _FIRST_WITH_ZSTD:
            self._cold.append(ColdPartition(partition, offset, limit, min_one, read, True))
            return _COLD
        return records

    def _respond(self) -> FetchResponse:
        session = self.session
        if self._opens_session:
            assert isinstance(self.entries, list)
            session = self._context.broker.replicas.sessions.create(self.entries, self._by_id, self.follower >= 0)
        if session is not None:
            for entry, data in self.served:
                if data.error_code:
                    entry.told_error()
                else:
                    entry.told(data.high_watermark, data.log_start_offset)
                session.mark(entry)  # it may have been looked at since
                if data.records:
                    session.served(entry)
        if self.follower >= 0:
            self._count_sent()
        response = FetchResponse(0, 0, 0 if session is None else session.session_id, self._by_topic())
        if self.due and self._context.version >= FETCH_WITH_LEADERS:
            response.node_endpoints = self._leaders_named()
        return response

    def _count_sent(self) -> None:
        for entry, data in self.served:
            partition = self.find((entry.topic, data.partition_index)) if data.records else None
            if partition is not None and data.records:
                self._context.broker.replicas.throttle.note_sent(partition, self.follower, len(data.records))

    def _by_topic(self) -> list[FetchableTopicResponse]:
        topics: dict[TopicKey, FetchableTopicResponse] = {}
        for entry, data in self.served:
            key = entry.topic
            topic = topics.get(key)
            if topic is None:
                topics[key] = topic = (
                    FetchableTopicResponse(topic_id=key) if isinstance(key, bytes) else FetchableTopicResponse(key)
                )
            topic.partitions.append(data)
        return list(topics.values())

    def _leaders_named(self) -> list[NodeEndpoint]:
        leaders = {data.current_leader.leader_id for _, data in self.served if data.current_leader is not NO_LEADER}
        return [NodeEndpoint(*found) for found in endpoints_of(self._context, leaders)]


class FetchWait(Operation[None]):
    """Waits until the partitions of a job have `min_bytes` together, or one of them has an error to report.

    watched: entry, partition and its leader epoch by the key under which there is news of it; nothing where there is a
        session, whose entries watch by themselves and call `look_again`.
    """

    __slots__ = ("_job", "_missing", "_sizes", "watched")

    def __init__(self, job: FetchJob, min_bytes: int) -> None:
        super().__init__()
        self._job = job
        self._missing = min_bytes - job.total
        self.watched: dict[Hashable, tuple[Entry, Partition, int]] = {}
        self._sizes: dict[Hashable, int] = {}
        for entry in job.entries if job.session is None else ():
            partition = job.find((entry.topic, entry.wanted.partition))
            if partition is not None:
                self.watched[partition.key] = entry, partition, partition.leader_epoch
        if job.total:
            for entry, data in job.served:
                if data.records:
                    found = job.find((entry.topic, data.partition_index))
                    if found is not None:
                        self._sizes[found.key] = len(data.records)
        job.served = []  # don't keep files open while waiting

    def try_complete(self, key: Hashable) -> bool:
        """Look at the partition of which there is news, and at no other."""
        entry, partition, epoch = self.watched[key]
        if partition.leader_epoch != epoch or not partition.online:
            return self.complete(None)
        offset, job = entry.wanted.fetch_offset, self._job
        if job.follower >= 0:
            if job.session is not None and job.is_urgent(entry, partition):
                return self.complete(None)
            if job.is_held(partition):
                return False
        if self._missing <= 1 and key not in self._sizes:
            end = partition.high_watermark if job.follower < 0 else partition.log.log_end_offset
            return end > offset and self.complete(None)
        read = partition.read if job.follower < 0 else partition.read_for_follower
        try:
            limit = min(entry.wanted.partition_max_bytes, job.max_bytes)
            records = read(offset, limit, min_one=True, allow_cold=False)
        except PylogdError:
            return self.complete(None)  # reading again, to answer, will tell the client what is wrong
        size = 0 if records is None else len(records)
        self._missing -= size - self._sizes.get(key, 0)
        self._sizes[key] = size
        return self._missing <= 0 and self.complete(None)

    def look_again(self, entry: Entry) -> bool:
        """`try_complete` for an entry of the job's session, by its partition as it was when the wait began."""
        partition = entry.partition
        if partition is None:
            return False
        self.watched[partition.key] = entry, partition, entry.leader_epoch
        return self.try_complete(partition.key)

    def on_expire(self) -> None:
        """The time is up: the job answers what there is."""


class ColdPartition:
    """A read that has to wait for the disk, with the entry of the response that it will fill.

    plain: without batches that are compressed with zstd, and what is behind them.
    """

    __slots__ = ("_plain", "_read", "data", "limit", "min_one", "offset", "partition")

    def __init__(
        self, partition: Partition, offset: int, limit: int, min_one: bool, read: Read, plain: bool = False
    ) -> None:
        self._read = read
        self._plain = plain
        self.partition = partition
        self.offset = offset
        self.limit = limit
        self.min_one = min_one
        self.data = _NO_DATA

    def read(self) -> None:
        """Fill `data`. Runs in a thread; nobody else looks at it meanwhile."""
        self.data.records = _NO_RECORDS
        try:
            records = self._read(self.offset, self.limit, min_one=self.min_one, allow_cold=True)
            if records is not None and self._plain:
                records = before_codec(records, CompressionType.ZSTD)
        except PylogdError as error:
            self.data.error_code = explain(error)[0]
        else:
            if records is not None:
                self.data.records = records


def _read_cold(cold: list[ColdPartition]) -> None:
    for partition in cold:
        partition.read()


def _failure(index: int, code: ErrorCode) -> PartitionData:
    return PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=-1,
        diverging_epoch=NO_DIVERGENCE,
        current_leader=NO_LEADER,
        snapshot_id=NO_SNAPSHOT,
        aborted_transactions=None,
        records=_NO_RECORDS,
    )
