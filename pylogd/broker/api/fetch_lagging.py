"""Fetch while a disk is busy: partitions wait if a consumer lags in them and their records would be read from the disk.

Strategy: `fetch_sparing_disks` replaces `fetch` while a disk is throttled (`isolation.laggards`). It reads like
`fetch`, but for a partition on such a disk it first checks three things: whether the client's offset is far behind the
log's end, whether the kernel's page cache lacks records that would be sent, and whose turn it is. A partition that has
to wait is left out of the answer; the others are answered as usual. If all partitions with records have to wait, the
fetch is held, as if there were no records yet, until it is its turn, until another of its partitions has records, or
until its time is up.

Rules:
- Consumers that keep up never wait, whatever the page cache lacks. Followers never do.
- A fetch is held for as long as its client would wait for records (`max_wait_ms`). It is held for at least 0.1 s, so
  that the client does not ask in a loop, and for at most `most_held`, so that a heartbeat after it on the same
  connection is in time. It is then answered without these records, and its connection keeps its place in the queue.
- `throttle_time_ms` stays 0. If a client is told a time, it sends nothing on that connection for that time, neither a
  heartbeat nor a fetch for partitions that keep up (KIP-219).
- Only a bounded part of a partition is read in its turn, so that the next partition gets its turn soon.

A consumer that continues to read makes the kernel read ahead, by megabytes. Most of its next records are then in memory
already, but came from the disk because of it. So for a while after a miss, all that the consumer reads is counted as
missing too.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sized
from copy import copy
from typing import Any, Final

from twisted.internet.defer import Deferred

from pylogd.base.errors import KafkaError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.fetch import MANY_PARTITIONS, FetchJob, answer_or_wait, fetch
from pylogd.broker.api.fetch_cold import Read
from pylogd.broker.api.fetch_request import replica_id_of, wanted_entries
from pylogd.broker.api.fetch_wait import FetchWait
from pylogd.broker.api.metering import metered_after_wait
from pylogd.broker.api.slices import next_turn
from pylogd.broker.isolation.laggards import DiskThrottle
from pylogd.broker.isolation.throttled_clients import Client
from pylogd.broker.log.errors import ColdRead
from pylogd.broker.log.log import Log
from pylogd.broker.replica.partition import Partition
from pylogd.config import Settings
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse

_LEAST_HELD: Final = 0.1  # seconds
_MOST_HELD: Final = 1.0
_SESSION_SHARE: Final = 6  # a member sends two or three heartbeats in the shortest session timeout


def fetch_sparing_disks(context: RequestContext, request: FetchRequest) -> FetchResponse | Deferred[FetchResponse]:
    """Return the response like `fetch`, but later if all its records are on busy disks and its client lags."""
    if replica_id_of(context, request) >= 0:
        return fetch(context, request)
    try:
        job = ThrottledFetchJob(context, request, *wanted_entries(context, request))
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    if job.to_look_at > MANY_PARTITIONS:
        return Deferred.fromCoroutine(_fetch_many(context, request, job))
    job.read()
    return _answer_or_hold(context, request, job)


async def _fetch_many(context: RequestContext, request: FetchRequest, job: ThrottledFetchJob) -> FetchResponse:
    for _ in job.read_in_steps():
        await next_turn(context)
    answer = _answer_or_hold(context, request, job)
    return await answer if isinstance(answer, Deferred) else answer


def _answer_or_hold(
    context: RequestContext, request: FetchRequest, job: ThrottledFetchJob
) -> FetchResponse | Deferred[FetchResponse]:
    """Return the response after the first read. If all partitions with records have to wait, hold it."""
    if not job.held:
        return answer_or_wait(context, request, job, False)
    min_bytes = min(request.min_bytes, job.max_bytes)
    if job.due or (job.total and job.total >= min_bytes):
        return job.answer()
    wait = _HeldFetch(job, min_bytes)
    seconds = min(max(request.max_wait_ms / 1000, _LEAST_HELD), most_held(context.broker.settings))
    wait.park(context.broker.fetch_waits, seconds)
    for throttle in set(job.held.values()):
        throttle.wait(context.connection, lambda: wait.complete(None))
    return wait.done.addCallback(metered_after_wait(context, request, job.read_and_answer))


def most_held(settings: Settings) -> float:
    """Return the most seconds for which a fetch is held: far less than the shortest session timeout of a group."""
    return min(_MOST_HELD, settings.integer("group.min.session.timeout.ms") / 1000 / _SESSION_SHARE)


class ThrottledFetchJob(FetchJob):
    """Reads for a client's fetch, but leaves out partitions that have to wait.

    held: the throttles of the partitions that have to wait, by partition.
    """

    __slots__ = ("_client", "_connection", "_lag_bytes", "_throttle_of", "held")

    def __init__(self, context: RequestContext, request: FetchRequest, *entries: Any) -> None:
        super().__init__(context, request, *entries)
        self.held: dict[Hashable, DiskThrottle] = {}
        self._connection = connection = context.connection
        self._client = Client(context.client_id or "", connection.principal.name, connection.host)
        self._throttle_of = context.broker.laggards.of
        self._lag_bytes = context.broker.laggards.lag_bytes

    def _begin_read(self) -> None:
        super()._begin_read()
        self.held = {}

    def read_and_answer(self, _: None) -> FetchResponse | Deferred[FetchResponse]:
        """See `FetchJob`."""
        if self.session is not None:
            self.session.wait = None
        self.read()
        return self.answer()

    def _read_limited(self, partition: Partition, wanted: FetchPartition, read: Read) -> Sized | None:
        """Read like `FetchJob`. Return None if the partition has to wait, and only a part if it had to wait."""
        throttle = self._throttle_of(os.path.dirname(partition.log.directory))
        limit = min(self.max_bytes - self.total, wanted.partition_max_bytes)
        if throttle is None or (limit <= 0 and self.total) or not self._lags(partition, wanted.fetch_offset):
            return super()._read_limited(partition, wanted, read)
        key = self._connection, partition.key
        if not _missing(read, wanted.fetch_offset, max(limit, 0)) and not throttle.reads_on(key):
            return super()._read_limited(partition, wanted, read)
        if not throttle.take(self._connection, self._client, f"{partition.topic}-{partition.index}"):
            self.held[partition.key] = throttle
            return None
        part = copy(wanted)
        part.partition_max_bytes = max(min(limit, throttle.most), 0)
        missing = _missing(read, wanted.fetch_offset, part.partition_max_bytes)
        before = self.total
        records = super()._read_limited(partition, part, read)
        throttle.charge(key, self.total - before, missing)
        self.due = True  # its turn is over, and a fetch that waited for more would lose the records
        return records

    def _lags(self, partition: Partition, offset: int) -> bool:
        """Return whether a consumer lags so far that it may have to wait."""
        return offset < partition.high_watermark and is_behind(partition.log, offset, self._lag_bytes)


def is_behind(log: Log, offset: int, most: int) -> bool:
    """Return whether about `most` bytes or more lie between an offset and the end of a log.

    The sizes of the segments after the offset tell this, and in the segment with the offset its distance from the
    segment's ends.
    """
    end, behind = log.log_end_offset, 0
    for segment in reversed(log.segments):
        base = segment.base_offset
        if offset <= base:
            behind += segment.size
        else:
            behind += segment.size * (end - offset) // max(end - base, 1)
        if behind >= most or offset >= base:
            break
        end = base
    return behind >= most


def _missing(read: Read, offset: int, limit: int) -> int:
    """Return how many of the bytes to read are missing in the page cache; `limit` if a look-up needs the disk too."""
    try:
        records = read(offset, limit, min_one=True, allow_cold=False)
    except ColdRead:
        return max(limit, 1)
    return 0 if records is None else records.missing(records.position, records.length)


class _HeldFetch(FetchWait):
    """Waits until it is the turn of a held partition, or until there are enough records of others."""

    __slots__ = ("_held",)

    def __init__(self, job: ThrottledFetchJob, min_bytes: int) -> None:
        super().__init__(job, min_bytes)
        self._held = frozenset(job.held)

    def try_complete(self, key: Hashable) -> bool:
        """See `FetchWait`. News of a held partition is ignored."""
        if key in self._held:
            _, partition, epoch = self.watched[key]
            return (partition.leader_epoch != epoch or not partition.online) and self.complete(None)
        return super().try_complete(key)
