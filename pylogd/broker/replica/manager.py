"""Operations of requests and followers on hosted partitions: append, truncate, and wait.

Strategy: an append goes to the partition's log and wakes the operations that wait for records. Operations that wait for
other replicas are kept in a purgatory until these have followed. Partitions are added and removed by `replica.hosting`;
they are found in `replica.partition_registry`.

Rules:
- Everything here runs on the reactor's thread; only calls into the log that may wait for a disk go to a thread.
- While a log is truncated, its partition does not change its role: a state that arrives during this time is applied
  afterwards.

Must not know: requests, error codes, the metadata store.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from pylogd.base.limits.shares import FairWork, Share
from pylogd.broker.log.append.direct import BatchRun
from pylogd.broker.log.errors import AppendInTurn, StorageError, StorageFailure
from pylogd.broker.log.validator import AppendOrigin
from pylogd.broker.replica.append_queues import AppendQueues
from pylogd.broker.replica.disk_calls import DiskCalls, InThread
from pylogd.broker.replica.errors import QueueFull
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.staged_writes import StagedWrites, late_batches
from pylogd.broker.replica.verifications import PendingVerifications
from pylogd.broker.replica.waiting import LogStartWait, PartitionWaits, PendingAppend, ReplicationWait

if TYPE_CHECKING:
    from pylogd.broker.isolation.disks import Disks
    from pylogd.broker.log.append.result import AppendResult
    from pylogd.broker.log.log import Log
    from pylogd.broker.log.manager import LogManager
    from pylogd.broker.log.transactions import TransactionTerms
    from pylogd.broker.log.validator import Inspections
    from pylogd.broker.metadata.image import PartitionState
    from pylogd.broker.replica.flushing import Flushers
    from pylogd.broker.replica.purgatory import Purgatory
    from pylogd.broker.replica.storage_failures import StorageFailures
    from pylogd.wire.records import Buffer

_LOOK_UPS = 2  # each may have a batch of up to 128 MB decompressed in memory


class ReplicaManager:
    """Appends to partitions, and waits for their replicas.

    fetch_waits: operations that wait for records, under (topic name, index).
    append_waits: operations that wait for replicas, under (topic name, index).
    became_visible: completes waits on a partition whose high watermark or log start has moved.
    in_thread: runs a function in a thread and returns a Deferred of its result.
    disk_calls: the same for functions that may wait for a disk.
    seconds: a monotonic clock.
    append_in_turn: `append` for batches that a thread has to inspect or write, or that come after such batches; see
        `append_queues`.
    writes_in_threads: whether appends are written in threads, always or sometimes.
    append_queues: the partitions whose further appends need `append_in_turn`.
    repeats_queued: the same, for appends that take `Log.writing` themselves.
    verifications: the requests that wait for a transaction coordinator.
    on_truncated: called with a partition whose log was truncated, and the newest state that arrived meanwhile, if any.
    """

    # What compiled code reads (`api/fast/_repeated.c`):
    fetch_waits: Purgatory
    repeats_queued: Container[Partition]

    def __init__(
        self,
        logs: LogManager,
        waits: PartitionWaits,
        flushers: Flushers,
        failures: StorageFailures,
        in_thread: InThread,
        *,
        disk_calls: DiskCalls,
        seconds: Callable[[], float],
        disks: Disks | None = None,
    ) -> None:
        """disks: their threads write appends; None to write on the reactor's thread."""
        self.fetch_waits, self.append_waits = waits.fetches, waits.appends
        self.became_visible = waits.check
        self.in_thread, self.disk_calls = in_thread, disk_calls
        self._look_ups: dict[str | None, FairWork] = {}  # by data directory
        self.seconds = seconds
        self.on_truncated: Callable[[Partition, PartitionState | None], object] = lambda partition, _: None
        self._logs = logs
        self._flushers = flushers.by_key
        self._storage_failed = failures.report
        #: Partitions whose log is being truncated, each with the newest state that arrived meanwhile.
        self._truncating: dict[Partition, PartitionState | None] = {}
        self.writes_in_threads = disks is not None
        self._staged = None
        if disks is not None:
            self._staged = StagedWrites(disks, self.after_append, failures.report, seconds)
        self._queues = AppendQueues(self.append, self._append_followed, in_thread, self._open_log, self._staged)
        self.append_in_turn, self.append_queues = self._queues.append, self._queues.taken
        self.repeats_queued = self._queues.repeats
        self._queues.on_repeats = self._note_repeats
        self.verifications = PendingVerifications()

    def _note_repeats(self) -> None:
        self.repeats_queued = self._queues.repeats

    # -- appending

    def append(
        self,
        partition: Partition,
        records: Buffer,
        acks_all: bool,
        inspections: Inspections | None = None,
        *,
        own: bool = False,
        terms: TransactionTerms | None = None,
    ) -> AppendResult:
        """Append a client's batches, or the broker's `own`, and wake operations that wait for them.

        terms: describes the transaction of transactional batches and markers.

        Raises the errors of `Partition.append`. After InspectionNeeded, and while the partition is in `append_queues`,
        use `append_in_turn` for a client's batches.
        """
        try:
            result = partition.append(records, acks_all, inspections, own=own, terms=terms)
        except StorageFailure as error:
            self._storage_failed(error)
            raise
        self.after_append(partition, partition.led_log or partition.log)
        return result

    def after_append(self, partition: Partition, log: Log, *, wake: bool = True) -> None:
        """Have the log flushed if a flush is due, and wake the operations that wait for the batches.

        log: the log that was appended to. The partition may be offline when a write in a thread ends.
        wake: whether more than before can be read.
        """
        if log.log_end_offset > partition.flush_at:
            self._flushers[partition.key].appended()
        if wake:
            self.fetch_waits.check(partition.key)

    def refusal(self, partition: Partition, records: Buffer) -> QueueFull | None:
        """Return the error that refuses a client's batches at once; None if they may enter the write queue.

        The error is returned and not raised, since that is cheaper for many.
        """
        return None if self._staged is None else self._staged.refusal(partition, records)

    def append_batches(self, partition: Partition, run: BatchRun, acks_all: bool) -> int:
        """Append a client's batches with one write, up to the first batch that needs the general path.

        Return how many were appended, and wake operations that wait for them. The others are for `append`. Raises
        StorageFailure: nothing was appended.
        """
        try:
            count = partition.append_batches(run, acks_all)
        except StorageFailure as error:
            self._storage_failed(error)
            raise
        if count:
            self.after_append(partition, partition.led_log or partition.log)
        return count

    def append_failed(self, partition: Partition, failure: StorageFailure) -> None:
        """Note that nothing of an append was written. `append_batches` does this itself."""
        log = partition.log
        with log.lock:
            log.write_failures.note(failure, log.log_end_offset, log.storage.seconds())
        self._storage_failed(failure)

    def append_fetched(
        self, partition: Partition, batches: Buffer, leader_hw: int, leader_start: int
    ) -> Deferred[None] | None:
        """Append whole batches from the leader, and wake the requests that wait for them.

        Return a Deferred if a thread has to write the batches, or to open the log first. Raises, or fails with, the
        errors of `Partition.append_fetched`.
        """
        if len(batches) and partition in self.append_queues:
            return self._append_fetched_in_turn(partition, batches, leader_hw, leader_start)
        try:
            moved = partition.append_fetched(batches, leader_hw, leader_start)
        except AppendInTurn:
            return self._append_fetched_in_turn(partition, batches, leader_hw, leader_start)
        except StorageFailure as error:
            self._storage_failed(error)
            raise
        self.after_append(partition, partition.log, wake=moved)
        return None

    def _append_fetched_in_turn(
        self, partition: Partition, batches: Buffer, leader_hw: int, leader_start: int
    ) -> Deferred[None]:
        done = self._queues.append_fetched(partition, batches)
        return done.addCallback(lambda _: self._heard(partition, leader_hw, leader_start))

    def _append_followed(self, partition: Partition, batches: Buffer, epoch: int) -> AppendResult:
        """Append whole batches that a leader sent in the leader epoch `epoch`. Raises FencedLeaderEpoch for another."""
        if epoch != partition.leader_epoch or partition.leading:
            raise late_batches(epoch, partition)
        log = partition.log
        try:
            result = log.append(batches, leader_epoch=epoch, origin=AppendOrigin.REPLICATION, may_inspect=False)
        except StorageFailure as error:
            self._storage_failed(error)
            raise
        self.after_append(partition, log, wake=False)
        return result

    def _open_log(self, partition: Partition) -> Deferred[None]:
        """Open the files of a partition's log that is at rest. Fails with the log's errors."""
        opened: Deferred[None] = self.disk_calls.at(partition.log.directory, partition.log.open)
        return opened.addErrback(self._not_opened)

    def _not_opened(self, failure: Failure) -> Failure:
        if isinstance(failure.value, StorageError):
            self._storage_failed(failure.value)
        return failure

    def _heard(self, partition: Partition, leader_hw: int, leader_start: int) -> None:
        if partition.online and not partition.leading and partition.heard(leader_hw, leader_start):
            self.fetch_waits.check(partition.key)

    def look_up(self, share: Share, path: str | None, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """Search logs for a client in a thread. Few searches run at a time, to leave threads and memory to others.

        share: clients take turns by their shares.
        path: the path of the data directory; None if disks do not have their own threads.

        Fails with Crowded if too many searches wait.
        """
        work = self._look_ups.get(path)
        if work is None:
            call = partial(_in_context, self.disk_calls, path)
            work = self._look_ups[path] = FairWork(call, _LOOK_UPS, for_remembered=0)
        if share.known:
            work.known.add(share.name)
        return work.run(share.name, copy_context().run, function, *args)

    # -- truncating a follower's log

    def truncate(self, partition: Partition, offset: int) -> Deferred[None]:
        """Remove a follower's records from `offset` on. Fails with the log's errors."""
        return self._truncate(partition, self._logs.truncate_to, partition.topic, partition.index, offset)

    def begin_at(self, partition: Partition, offset: int) -> Deferred[None]:
        """Remove all of a follower's records and continue its log at `offset`. Fails with the log's errors."""
        return self._truncate(partition, self._logs.begin_at, partition.topic, partition.index, offset)

    def defer_state(self, partition: Partition, state: PartitionState) -> bool:
        """Keep `state` until the truncation of the partition's log ends; return False if none is under way."""
        if partition not in self._truncating:
            return False
        self._truncating[partition] = state
        return True

    def _truncate(self, partition: Partition, function: Callable[..., Any], *args: Any) -> Deferred[None]:
        self._truncating[partition] = None

        def truncated(result: Any) -> Any:
            state = self._truncating.pop(partition)
            if partition.online:
                partition.truncated()
            self.on_truncated(partition, state)
            if isinstance(result, Failure) and isinstance(result.value, StorageError):
                self._storage_failed(result.value)
            return result if isinstance(result, Failure) else None

        return self.disk_calls.at(partition.log.directory, function, *args).addBoth(truncated)

    # -- waiting for replicas

    def wait_for_replicas(self, appends: list[PendingAppend], timeout_ms: int) -> Deferred[list[PendingAppend]]:
        """Return a Deferred of the appends that are not committed when all others are, or `timeout_ms` have passed."""
        return self.append_waits.watch(
            ReplicationWait(appends), [append.partition.key for append in appends], max(timeout_ms, 0) / 1000
        )

    def wait_for_log_starts(self, partition: Partition, offset: int, timeout_ms: int) -> Deferred[bool]:
        """Wait until the logs of all in-sync replicas start at `offset` or later. Fires with False on timeout."""
        wait = LogStartWait(partition, offset)
        self.append_waits.watch(wait, [partition.key], max(timeout_ms, 0) / 1000)
        # Waiting followers are answered, so that they learn the new start. The replicas may also have reached it
        # already.
        self.became_visible(partition)
        return wait.done


def _in_context(calls: DiskCalls, path: str | None, run: Callable[..., Any], *call: Any) -> Deferred[Any]:
    """Make a call in the context of the request that waits for it. Otherwise it would count for another request."""
    done: Deferred[Any] = run(calls.at, path, *call)
    return done
