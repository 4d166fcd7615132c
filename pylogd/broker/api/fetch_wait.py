"""Wait for records on behalf of a Fetch request: the long poll."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Protocol, TypeAlias

from pylogd.base.errors import PylogdError
from pylogd.broker.api.fetch_cold import Read
from pylogd.broker.replica.committed_read import CommittedRead
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.purgatory import Operation, Purgatory
from pylogd.broker.replica.sessions import FetchSession, SessionPartition, SessionWait
from pylogd.wire.messages.fetch import FetchPartition, PartitionData

Entry: TypeAlias = SessionPartition[FetchPartition]


class WaitingJob(Protocol):
    """The methods of a waiting fetch; see `fetch.FetchJob`."""

    total: int
    follower: int
    committed: bool
    max_bytes: int
    served: list[tuple[Entry, PartitionData]]
    session: FetchSession[FetchPartition] | None

    @property
    def entries(self) -> Iterable[Entry]: ...

    def find(self, key: tuple[Any, int], /) -> Partition | None: ...

    def is_urgent(self, entry: Entry, partition: Partition) -> bool: ...

    def is_throttled(self, partition: Partition) -> bool: ...


class FetchWait(Operation[None], SessionWait):
    """Waits until the partitions of a job have `min_bytes` together, or one of them has an error to report.

    watched: the entry, its partition and the leader epoch, by the key under which the purgatory has the wait. It is
        empty with a session, whose entries are registered themselves and call `look_again`.
    """

    __slots__ = ("_job", "_missing", "_sizes", "watched")

    def __init__(self, job: WaitingJob, min_bytes: int) -> None:
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
        job.served = []  # keep no files open while waiting

    def park(self, waits: Purgatory, seconds: float) -> None:
        """Wait for at most `seconds`. The wait is over at once if a partition has changed since the job read it."""
        session = self._job.session
        if session is None:
            waits.enter(self, self.watched, seconds)
        else:
            session.park(self, seconds)

    def look(self) -> bool:
        """Look at all partitions that may have changed since the job read them."""
        session = self._job.session
        return super().look() if session is None else session.look_at_dirty(self)

    def try_complete(self, key: Hashable) -> bool:
        """Read the one partition that has changed. Return whether the wait is over."""
        entry, partition, epoch = self.watched[key]
        if partition.leader_epoch != epoch or not partition.online:
            return self.complete(None)
        offset, job = entry.wanted.fetch_offset, self._job
        if job.follower >= 0:
            if job.session is not None and job.is_urgent(entry, partition):
                return self.complete(None)
            if job.is_throttled(partition):
                return False
        if self._missing <= 1 and key not in self._sizes:
            return self._end_of(partition) > offset and self.complete(None)
        try:
            read: Read = partition.read if job.follower < 0 else partition.read_for_follower
            if job.committed and job.follower < 0:
                read = CommittedRead(partition)
            limit = min(entry.wanted.partition_max_bytes, job.max_bytes)
            records = read(offset, limit, min_one=True, allow_cold=False)
        except PylogdError:
            return self.complete(None)  # the response will tell the client, since it reads once more
        size = 0 if records is None else len(records)
        self._missing -= size - self._sizes.get(key, 0)
        self._sizes[key] = size
        return self._missing <= 0 and self.complete(None)

    def _end_of(self, partition: Partition) -> int:
        """Return the offset at which the job stops reading a partition."""
        if self._job.follower >= 0:
            return partition.log.log_end_offset
        return partition.last_stable_offset if self._job.committed else partition.high_watermark

    def look_again(self, entry: Entry) -> bool:
        """Do the work of `try_complete` for a session's entry. Its partition is the one at the start of the wait."""
        partition = entry.partition
        if partition is None:
            return False
        self.watched[partition.key] = entry, partition, entry.leader_epoch
        return self.try_complete(partition.key)

    def on_expire(self) -> None:
        """Do nothing: the job answers with the available records."""
