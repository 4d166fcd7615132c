"""Fetch (1), versions 4 to 18: read record batches, and wait for them if the request asks for that.

Behaviour: reads from the batch that contains the offset, up to the high watermark. The first batch of the response is
complete even if it is larger than the limits: `max_bytes` of the request, `fetch.max.bytes` and `partition_max_bytes`.
If there are fewer than `min_bytes`, and there is no error to report, the request waits up to `max_wait_ms`
(`fetch_wait`). Records are slices of segment files; their bytes are not read here. Topics are named, and from version
13 on given by id. Sessions (from version 7 on) are those of KIP-227. A wrong leader epoch gets FENCED_LEADER_EPOCH or
UNKNOWN_LEADER_EPOCH (from version 9 on). A client whose last epoch diverges from the log is told where it diverges
(from version 12 on). A read_committed client reads up to the last stable offset, and gets a list of the aborted
transactions among the records, in the order of their markers (KIP-98).
Fairness: a session serves first the partition that it served longest ago. Without a session the request's order counts,
and its client has to change that order from one request to the next, as all Kafka clients do.
A follower reads up to the log's end and must send its leader's epoch; its offset tells how much it has. Clients that
are not the broker whose id they send (`security.peers`) get CLUSTER_AUTHORIZATION_FAILED.
From version 11 on consumers may read from followers too, up to the high watermark that these know. They are sent to a
replica in their rack if `replica.selector.class` says so (KIP-392). Older consumers get NOT_LEADER_OR_FOLLOWER from
followers.
Batches compressed with zstd are sent to clients below version 10 too. KIP-110 would keep them from these clients, but
Apache Kafka 4.4 does not, and clients that know zstd read them.
A consumer without READ for a topic gets TOPIC_AUTHORIZATION_FAILED for each of its partitions.

Cost: `fast.fetch` answers the most frequent requests. Any other request makes an object for each partition. A request
at the end of the log makes a timer and an entry in the purgatory, and reads again only on news of its partitions. A
request that continues a session reads the partitions that have changed since the last one, and waits for news of any
partition without being registered for each (`replica.sessions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from typing import Any, TypeAlias

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.base.limits.names import MAX_RACK
from pylogd.broker.api.brokers import FETCH_WITH_LEADERS, endpoints_of, leader_elsewhere
from pylogd.broker.api.context import BrokerParts, Connection, RequestContext
from pylogd.broker.api.errors import explain, why_absent
from pylogd.broker.api.fast import fetch as fast
from pylogd.broker.api.fetch_cold import ColdPartition, Read, read_cold
from pylogd.broker.api.fetch_request import broker_epoch_of, named_entries, replica_id_of, wanted_entries
from pylogd.broker.api.fetch_wait import FetchWait
from pylogd.broker.api.metering import answer_waited_fetch, metered_after_wait
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import next_turn
from pylogd.broker.api.statistics import FETCH, STATISTICS
from pylogd.broker.api.traffic import count_served
from pylogd.broker.log.errors import ColdRead
from pylogd.broker.replica.committed_read import CommittedRead
from pylogd.broker.replica.partition import NO_EPOCH, Partition
from pylogd.broker.replica.roles import Role
from pylogd.broker.replica.selector import NO_PREFERENCE
from pylogd.broker.replica.sessions import FetchSession, SessionPartition, TopicKey
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.fast.fetch import NO_DIVERGENCE, NO_LEADER, NO_SNAPSHOT
from pylogd.wire.headers import read_request_header, skip_tagged_fields
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
from pylogd.wire.schema import request_codec

_FIRST_FROM_FOLLOWERS = 11
_FIRST_WITH_LEADER = 12
_FIRST_WITH_TOPIC_ID = 13
_LEADER_ELSEWHERE = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER)
_NO_RECORDS = b""
_LENGTH_SIZE = 4  # bytes before a request
MANY_PARTITIONS = 500  # reading so many partitions takes some milliseconds

_COLD = b"cold"  # stands for records that are still to be read; compared by identity

Entry: TypeAlias = SessionPartition[FetchPartition]
ReadEntry: TypeAlias = Callable[[Entry], "PartitionData | None"]
Find: TypeAlias = Callable[[tuple[Any, int]], "Partition | None"]


@handles(FetchRequest, 4, 18, overlaps=True)
def fetch(context: RequestContext, request: FetchRequest) -> FetchResponse | Deferred[FetchResponse]:
    """Return the response if enough can be read now, or else a Deferred of it, which fires when the wait ends."""
    found = fast.answer(context, request)
    if found.response is not None:
        return found.response
    try:
        job = FetchJob(context, request, *wanted_entries(context, request))
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    if not found.at_end:
        if job.follower < 0 and job.to_look_at > MANY_PARTITIONS:
            return Deferred.fromCoroutine(_fetch_many(context, request, job))
        job.read()
    return answer_or_wait(context, request, job, found.at_end)


async def _fetch_many(context: RequestContext, request: FetchRequest, job: FetchJob) -> FetchResponse:
    """Do the work of `fetch` for many partitions, with turns of the reactor for other connections in between."""
    for _ in job.read_in_steps():
        await next_turn(context)
    answer = answer_or_wait(context, request, job, False)
    return await answer if isinstance(answer, Deferred) else answer


def answer_or_wait(
    context: RequestContext, request: FetchRequest, job: FetchJob, at_end: bool
) -> FetchResponse | Deferred[FetchResponse]:
    """Return the response after the first read.

    at_end: whether there was nothing to read.
    """
    if job.follower >= 0:
        job.record_progress()
    min_bytes = min(request.min_bytes, job.max_bytes)
    if request.max_wait_ms <= 0 or job.due or job.total >= min_bytes:
        return job.read_and_answer(None) if at_end else job.answer()
    wait = FetchWait(job, min_bytes)
    wait.park(context.broker.fetch_waits, request.max_wait_ms / 1000)
    return wait.done.addCallback(metered_after_wait(context, request, job.read_and_answer))


def answer_after_wait(
    broker: BrokerParts, connection: Connection, data: bytes, session: FetchSession[FetchPartition] | None
) -> FetchResponse | Deferred[FetchResponse]:
    """Return the response to a request that has waited on the fast path (`fast.waiting_fetch`), by reading again.

    data: the request's bytes, which begin with its length.
    session: the session that the request has already continued; None for a request without a session.
    """
    frame = memoryview(data)[_LENGTH_SIZE:]
    _, version, _, client_id, at = read_request_header(frame)
    codec = request_codec(FetchRequest.API_KEY, version)
    request: FetchRequest = codec.decode(frame[skip_tagged_fields(frame, at) :])
    context = RequestContext(broker, connection, version, client_id, FetchRequest.API_NAME)

    def answer(_: None) -> FetchResponse | Deferred[FetchResponse]:
        entries = named_entries(request, by_id=True) if session is None else session
        job = FetchJob(context, request, entries, None, False)
        job.session = session  # the session has seen the request: later changes are for the next request
        return job.read_and_answer(None)

    found: FetchResponse | Deferred[FetchResponse] = answer_waited_fetch(context, request, answer)
    return found


class FetchJob:
    """Reads for one fetch request as often as needed, and makes its response once.

    entries: the requested partitions.
    total: how many bytes the last `read` found.
    due: whether the last `read` found something that must be answered at once, such as an error.
    served: the entries, with their data, that the response will have.
    follower: the follower's node id, -1 for any other client.
    rack: the client's rack, if it may be sent to another replica.
    find: returns a partition by its topic, name or id, and its index.
    committed: whether the client is a read_committed client.
    """

    __slots__ = (
        "_broker_epoch", "_by_id", "_cold", "_context", "_now", "_opens_session", "_progress", "_request",
        "committed", "due", "entries", "find", "follower", "max_bytes", "rack", "served", "session", "total",
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
        self.committed = request.isolation_level == fast.READ_COMMITTED
        self._cold: list[ColdPartition] = []
        self.follower = replica_id_of(context, request)
        self.rack = request.rack_id if broker.replica_selector is not None and len(request.rack_id) <= MAX_RACK else ""
        self._progress: list[tuple[Partition, bool]] | None = None
        if self.follower >= 0:
            STATISTICS.follower_fetches += 1
            self._progress = []
            self._now = broker.clock.seconds()
            self._broker_epoch = broker_epoch_of(context, request)
        self.find: Find = broker.partitions.by_id.get if self._by_id else broker.partitions.by_name.get
        self.entries = entries
        if session is not None:
            self._continue_session(session)
        self.max_bytes = min(request.max_bytes, broker.settings["fetch.max.bytes"])
        self.served: list[tuple[Entry, PartitionData]] = []
        self.total = 0
        self.due = False

    def _continue_session(self, session: FetchSession[FetchPartition]) -> None:
        """Have the session look at all its partitions if this fetch sees them differently from the one before."""
        selector = self._context.broker.replica_selector
        live = selector.brokers if self.rack and selector is not None else None
        authorizer = self._context.broker.authorizer
        acls = 0 if authorizer is None else authorizer.version
        session.see((self._context.version, self.follower, self._request.isolation_level, self.rack, live, acls))
        if self.follower >= 0:
            session.fetched_at = self._now

    def read(self) -> None:
        """Read every partition, or those of the session that changed. Add the partitions to report to `served`."""
        self._begin_read()
        self._look_at(self._in_turn())

    def read_in_steps(self) -> Iterator[None]:
        """Do the work of `read`, but yield regularly, so that the caller may let others run."""
        self._begin_read()
        entries = iter(self._in_turn())
        while some := list(islice(entries, MANY_PARTITIONS)):
            self._look_at(some)
            yield

    @property
    def to_look_at(self) -> int:
        """How many partitions `read` would look at."""
        return len(self.entries) if self.session is None else len(self.session.dirty)

    def _begin_read(self) -> None:
        self.served = []
        self._cold = []
        self.total = 0
        self.due = not self.entries

    def _look_at(self, entries: Iterable[Entry]) -> None:
        read: ReadEntry = self._read_for_client if self.follower < 0 else self._read_for_follower
        if self._context.broker.authorizer is not None and self.follower < 0:
            read = self._read_if_allowed
        for entry in entries:
            data = read(entry)
            if data is not None:
                self.served.append((entry, data))

    def read_and_answer(self, _: None) -> FetchResponse | Deferred[FetchResponse]:
        """Read the available records after a wait, and return the response."""
        if self.session is not None:
            self.session.wait = None
        found = fast.answer(self._context, self._request)
        if found.response is not None:
            return found.response
        self.max_bytes = min(self.max_bytes, self._request.max_bytes)  # it is lowered if a quota was set meanwhile
        self.read()
        return self.answer()

    def answer(self) -> FetchResponse | Deferred[FetchResponse]:
        """Return the response after the last `read`; a Deferred if some records have to be read from the disk."""
        if self._cold:
            done = read_cold(self._context.broker.replicas.disk_calls, self._cold)
            return done.addCallback(lambda _: self._respond())
        return self._respond()

    def _in_turn(self) -> Iterable[Entry]:
        return self.entries if self.session is None else self.session.in_turn()

    def _read_if_allowed(self, entry: Entry) -> PartitionData | None:
        """Do the work of `_read_for_client`, if the client may read the topic."""
        name = self._name_of(entry)
        if name is not None and not self._context.may_use_topic(AclOperation.READ, name):
            self.due = True
            return _failed(entry.wanted.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return self._read_for_client(entry)

    def _name_of(self, entry: Entry) -> str | None:
        """Return the name of an entry's topic, None for an id that is unknown here."""
        if not isinstance(entry.topic, bytes):
            return entry.topic
        partition = self.find((entry.topic, entry.wanted.partition))  # a partition may outlive its topic by a moment
        topic = self._context.broker.topics.by_id(entry.topic)
        return partition.topic if partition is not None else None if topic is None else topic.name

    def _read_for_client(self, entry: Entry) -> PartitionData | None:
        wanted = entry.wanted
        partition = self.find((entry.topic, wanted.partition))
        if partition is None:
            return self._absent(entry)
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
                redirect = self._preferred_replica(partition, wanted.fetch_offset)
                if redirect is not None:
                    return redirect
            if self.committed:
                return self._read_committed(entry, partition, log_start)
            records = self._read_limited(partition, wanted, partition.read)
        except PylogdError as error:
            self.due = True
            return self._error(partition, explain(error)[0])
        return self._data_or_none(entry, partition, log_start, records)

    def _read_committed(self, entry: Entry, partition: Partition, log_start: int) -> PartitionData | None:
        """Read for a read_committed client like `_data_or_none`. Raises the errors of `Partition.read`."""
        read = CommittedRead(partition)
        records = self._read_limited(partition, entry.wanted, read)
        data = self._data_or_none(entry, partition, log_start, records)
        if data is not None:
            data.last_stable_offset = read.stable_end
            data.aborted_transactions = fast.named(read.aborted)
        return data

    def _data_or_none(
        self, entry: Entry, partition: Partition, log_start: int, records: Sized | None
    ) -> PartitionData | None:
        """Return the data of a partition; None if the session's client already knows all of it."""
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
        """Have the session skip `entry`, of which there is nothing to report, until there is news of its partition."""
        offset, follower = entry.wanted.fetch_offset, self.follower
        if follower < 0:
            end = partition.last_stable_offset if self.committed else partition.high_watermark
            if end <= offset <= partition.log.log_end_offset:  # an offset after the log's end is an error
                session.settle(entry, None)
        elif offset == partition.log.log_end_offset and follower in partition.isr:
            session.settle(entry, partition.followers.get(follower))

    def _data(self, partition: Partition, log_start: int, records: Sized, diverging: EpochEndOffset) -> PartitionData:
        return PartitionData(
            partition.index, 0, partition.high_watermark, partition.last_stable_offset, log_start, diverging,
            NO_LEADER, NO_SNAPSHOT, fast.NONE_ABORTED if self.committed else None, -1, records,
        )  # fmt: skip

    def _absent(self, entry: Entry) -> PartitionData:
        """Return the answer for a partition that is not on this broker, with its leader if it is known."""
        self.due = True
        broker, key, index = self._context.broker, entry.topic, entry.wanted.partition
        data = _failed(index, why_absent(broker, key, index))
        leader = leader_elsewhere(broker, key, index) if self._context.version >= _FIRST_WITH_LEADER else None
        if leader is not None:
            data.current_leader = LeaderIdAndEpoch(*leader)
        return data

    def _error(self, partition: Partition, code: ErrorCode) -> PartitionData:
        data = _failed(partition.index, code)
        if code in _LEADER_ELSEWHERE and self._context.version >= _FIRST_WITH_LEADER:
            data.current_leader = LeaderIdAndEpoch(partition.leader_id, partition.leader_epoch)
        return data

    def _check_role(self, partition: Partition) -> None:
        if partition.role is not Role.FOLLOWING or self._context.version < _FIRST_FROM_FOLLOWERS:
            partition.check_leading()

    def _preferred_replica(self, partition: Partition, offset: int) -> PartitionData | None:
        """Return the data that directs a consumer to a replica in its rack; None if there is no such replica."""
        selector = self._context.broker.replica_selector
        assert selector is not None
        preferred = selector.preferred(partition, self.rack, offset)
        if preferred == NO_PREFERENCE:
            return None
        self.due = True
        data = self._data(partition, partition.log.log_start_offset, _NO_RECORDS, NO_DIVERGENCE)
        data.preferred_read_replica = preferred
        return data

    def _read_for_follower(self, entry: Entry) -> PartitionData | None:
        """Read one partition for a follower. The requested offset shows how much the follower has."""
        wanted = entry.wanted
        partition = self.find((entry.topic, wanted.partition))
        if partition is None:
            self.due = True
            return _failed(wanted.partition, why_absent(self._context.broker, entry.topic, wanted.partition))
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
            throttled = not idle and self._context.broker.replica_throttle.holds_back(partition, node_id)
            records = None if idle or throttled else self._read_limited(partition, wanted, partition.read_for_follower)
        except PylogdError as error:
            self.due = True
            return self._error(partition, explain(error)[0])
        if self._progress is not None:
            came = self._context.broker.replica_selector is not None and partition.followers[node_id].log_end != offset
            moved = partition.follower_fetched(node_id, offset, wanted.log_start_offset, self._now, self._broker_epoch)
            moved = moved or came
            if moved or node_id not in partition.isr:
                self._progress.append((partition, moved))
        if self.session is not None and self.is_urgent(entry, partition):
            self.due = True
        return self._data_or_none(entry, partition, log_start, records)

    def is_urgent(self, entry: Entry, partition: Partition) -> bool:
        """Return whether a follower should be answered at once, although there are no records.

        It should if its log start differs from the leader's or, if consumers read from followers, its high watermark.
        """
        moved = entry.sent_high_watermark != partition.high_watermark
        return entry.sent_log_start >= 0 and (
            entry.sent_log_start != partition.log.log_start_offset
            or (moved and self._context.broker.replica_selector is not None)
        )

    def is_throttled(self, partition: Partition) -> bool:
        """Return whether the follower gets no records of a partition for now."""
        return self._context.broker.replica_throttle.holds_back(partition, self.follower)

    def record_progress(self) -> None:
        """After a follower's first `read`: wake operations that wait for it, and propose it for the in-sync set."""
        progress, self._progress = self._progress, None
        broker = self._context.broker
        for partition, moved in progress or ():
            if moved:
                broker.replicas.became_visible(partition)
            if self.follower not in partition.isr:
                broker.isr_updater.follower_came(partition, self.follower)

    def _read_limited(self, partition: Partition, wanted: FetchPartition, read: Read) -> Sized | None:
        """Return the records within the limits, None if there are none, or `_COLD` if a thread must read them."""
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
            self.total += max(limit, 1)  # the most that it may take
            self.due = True
            self._cold.append(ColdPartition(partition.log.directory, offset, limit, min_one, read))
            return _COLD
        if records is None:
            return None
        self.total += len(records)
        return records

    def _respond(self) -> FetchResponse:
        session = self.session
        if self._opens_session:
            assert isinstance(self.entries, list)
            session = self._context.broker.fetch_sessions.create(
                self.entries, self._by_id, self.follower >= 0, self._context.connection, self._context.share
            )
        if session is not None:
            for entry, data in self.served:
                if data.error_code:
                    entry.told_error()
                else:
                    entry.told(data.high_watermark, data.log_start_offset)
                session.mark(entry)  # another fetch may have checked it since
                if data.records:
                    session.served(entry)
        count_served(self.served, self.find, self.follower, self._context.broker.replica_throttle)
        response = FetchResponse(0, 0, 0 if session is None else session.session_id, self._by_topic())
        if self.due and self._context.version >= FETCH_WITH_LEADERS:
            response.node_endpoints = self._leaders_named()
        return response

    def _by_topic(self) -> list[FetchableTopicResponse]:
        topics: dict[TopicKey, FetchableTopicResponse] = {}
        for entry, data in self.served:
            key = entry.topic
            topic = topics.get(key)
            if topic is None:
                topics[key] = topic = FetchableTopicResponse(*(("", key) if isinstance(key, bytes) else (key,)))
            topic.partitions.append(data)
        return list(topics.values())

    def _leaders_named(self) -> list[NodeEndpoint]:
        leaders = {data.current_leader.leader_id for _, data in self.served if data.current_leader is not NO_LEADER}
        return [NodeEndpoint(*found) for found in endpoints_of(self._context, leaders)]


def _failed(index: int, code: ErrorCode) -> PartitionData:
    STATISTICS.errors[FETCH, code] += 1
    return PartitionData(
        partition_index=index, error_code=code, high_watermark=-1, diverging_epoch=NO_DIVERGENCE,
        current_leader=NO_LEADER, snapshot_id=NO_SNAPSHOT, aborted_transactions=None, records=_NO_RECORDS,
    )  # fmt: skip
