"""Writes of appends in the threads of their disk, so that a disk that hangs does not stop the broker.

Strategy: an append enters the write queue of its topic and disk, or is refused at once if the queue is full. When it is
its partition's turn, the append is prepared together with those after it, written in the queue's thread, and committed
(`log.append.staged`). A partition has at most one write under way.

Rules:
- A refusal is QueueFull, a NotEnoughReplicas. It means that nothing was appended. Clients try again after their
  back-off. Unlike after a storage error, they don't ask for metadata each time (librdkafka: RETRY and MSG_NOT_PERSISTED
  without REFRESH; Java: retriable, but not an InvalidMetadataException).
- Batches that an idempotent producer sent after a refused one are refused too, until that one is sent again. Otherwise
  they would be out of order. If the producer is not known yet, they would count as its first batches.
- If a disk has queues only while it is slow, a partition is written at once again when none of its appends waits and
  none of its refused batches is missing. So its appends keep their order at each switch.
- The role may change while a write is under way. The write is then committed as if it had ended before the change.

Must not know: requests, error codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pylogd.base.errors import PylogdError
from pylogd.broker.log.append.result import AppendResult
from pylogd.broker.log.append.staged import AppendRequest, StagedAppend, prepare, wait_to_begin
from pylogd.broker.log.errors import StorageError, StorageFailure
from pylogd.broker.log.producers import MAX_SEQUENCE
from pylogd.broker.log.transactions import TransactionTerms
from pylogd.broker.log.validator import AppendOrigin, Inspections
from pylogd.broker.replica.errors import FencedLeaderEpoch, PartitionOffline, QueueFull
from pylogd.store.paths import INTERNAL_TOPICS
from pylogd.wire.exceptions import InvalidRecordBatch
from pylogd.wire.records import parse_header

if TYPE_CHECKING:
    from pylogd.broker.isolation.disks import Disks
    from pylogd.broker.isolation.write_queue import WriteQueue
    from pylogd.broker.log.log import Log
    from pylogd.broker.replica.partition import Partition
    from pylogd.wire.records import Buffer

#: The outcome of an append.
Outcome = AppendResult | Exception

#: For how many seconds batches that were sent after a refused one may still arrive: Kafka's `request.timeout.ms`.
_IN_FLIGHT_SECONDS = 30.0
_MOST_REFUSALS = 10_000


class WaitingAppend:
    """An append that waits to be written.

    inspections: the inspections of its records, once they were made.
    own: whether the records are the broker's own.
    follows: for records that were fetched from a leader, the leader epoch of the fetch; None for all others.
    terms: describes the transaction of transactional batches and markers.
    """

    __slots__ = ("acks_all", "follows", "inspections", "own", "records", "terms")

    def __init__(
        self, records: Buffer, acks_all: bool, *, own: bool, follows: int | None, terms: TransactionTerms | None = None
    ) -> None:
        self.records = records
        self.acks_all = acks_all
        self.own = own
        self.follows = follows
        self.terms = terms
        self.inspections: Inspections | None = None


class StagedWrites:
    """Writes appends in the threads of `disks`.

    appended: called after each write with the partition and the log that was appended to.
    adaptive: whether only appends to slow disks are staged.
    """

    def __init__(
        self,
        disks: Disks,
        appended: Callable[[Partition, Log], object],
        storage_failed: Callable[[StorageError], object],
        seconds: Callable[[], float],
    ) -> None:
        """Arguments:

        storage_failed: called with errors of the storage.
        seconds: a monotonic clock.
        """
        self.adaptive = disks.adaptive
        #: Called when `any_wanted` may have changed.
        self.on_change: Callable[[], object] = lambda: None
        disks.on_paces = self._paces_seen
        self._disks = disks
        self._appended = appended
        self._storage_failed = storage_failed
        self._refusals = _Refusals(seconds)

    def _queue_of(self, partition: Partition) -> WriteQueue:
        disk = self._disks.at(partition.log.directory)
        return disk.control if partition.topic in INTERNAL_TOPICS else disk.queue_of(partition.topic)

    @property
    def any_wanted(self) -> bool:
        """Whether an append may have to be staged although no earlier append to its partition waits.

        It does not cover a log that a thread is rolling or truncating at the moment; such a log holds `Log.writing`.
        """
        return self._disks.any_queued or bool(self._refusals.by_partition)

    def _paces_seen(self) -> None:
        self._refusals.expire()
        self.on_change()

    def wanted(self, partition: Partition) -> bool:
        """Return whether an append to a partition must be staged although no earlier append to the partition waits."""
        try:
            log = partition.log
        except PartitionOffline:
            return False
        if log.writing.locked() or (self._refusals.by_partition and partition in self._refusals):
            return True
        return self._disks.any_queued and self._disks.at(log.directory).queued

    def refusal(self, partition: Partition, records: Buffer) -> QueueFull | None:
        """Return the error that refuses an append before its batches are checked; None if it may enter the queue.

        The error is not raised here: with a traceback only the garbage collector could free it, which at thousands of
        refusals a second would slow down all clients.
        """
        if not partition.leading:
            return None  # the client has to be told that first
        queue = self._queue_of(partition)
        if self._refusals.refuse(partition, records):
            return QueueFull(
                "an earlier batch of the same producer was refused; send both batches again", queue.refuse()
            )
        if queue.takes(len(records)):
            return None
        self._refusals.note(partition, records)
        self.on_change()
        return QueueFull(
            f"not appended: {queue.requests} appends with {queue.bytes} bytes wait for the disk ({queue.name})",
            queue.refuse(),
        )

    def enter(self, partition: Partition, size: int) -> Callable[[], object]:
        """Count an append of `size` bytes as waiting; return the function to call when it was answered.

        Raises PartitionOffline.
        """
        queue = self._queue_of(partition)
        queue.enter(size)
        return lambda: queue.leave(size)

    async def write(self, partition: Partition, appends: Sequence[WaitingAppend]) -> Sequence[Outcome]:
        """Write the first append, together with the following ones that fit. Return their results.

        If the first one is refused, it raises the errors of `Partition.append`.
        """
        log = partition.log
        disk = self._disks.at(log.directory)
        queue = self._queue_of(partition)
        if not log.writing.acquire(blocking=False):  # another thread truncates or rolls the log
            await queue.writer.run(wait_to_begin, log)
        try:
            staged = prepare(log, _requests(partition, appends))
            try:
                if staged.size:
                    await self._disks.write(disk, queue, staged.write)
                staged.commit()
            except StorageError as error:
                return self._failed(staged, error)
        finally:
            log.writing.release()
        if appends[0].follows is None:
            partition.appended_to(log)
        self._appended(partition, log)
        return staged.results

    def _failed(self, staged: StagedAppend, error: StorageError) -> Sequence[Outcome]:
        if isinstance(error, StorageFailure):
            staged.fail(error)
            self._storage_failed(error)
        return [error] * len(staged.results)


def _requests(partition: Partition, appends: Sequence[WaitingAppend]) -> list[AppendRequest]:
    """Return the appends, from the first on, that the partition accepts now. Raises an error if it accepts none."""
    requests: list[AppendRequest] = []
    for append in appends:
        try:
            requests.append(_request(partition, append))
        except PylogdError:
            if not requests:
                raise
            break
    return requests


def _request(partition: Partition, append: WaitingAppend) -> AppendRequest:
    epoch = partition.leader_epoch
    if append.follows is not None:
        if append.follows != epoch or partition.leading:
            raise late_batches(append.follows, partition)
        return AppendRequest(append.records, epoch, AppendOrigin.REPLICATION)
    partition.check_append(append.acks_all)
    origin = AppendOrigin.COORDINATOR if append.own else AppendOrigin.CLIENT
    return AppendRequest(append.records, epoch, origin, append.inspections, append.terms)


def late_batches(epoch: int, partition: Partition) -> FencedLeaderEpoch:
    """Return the error for a leader's batches that arrive after its leader epoch has ended."""
    return FencedLeaderEpoch(f"records of leader epoch {epoch} came too late, it is {partition.leader_epoch} now")


class _Refusals:
    """The refused batches of idempotent producers: the earliest one for each partition and producer.

    by_partition: for each producer the time of the refusal, the epoch and the sequence number.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self.by_partition: dict[Partition, dict[int, tuple[float, int, int]]] = {}
        self._count = 0

    def __contains__(self, partition: Partition) -> bool:
        """Whether later batches, sent after a refused batch of a partition, may still arrive."""
        return self._is_awaited(partition)

    def _is_awaited(self, partition: Partition) -> bool:
        known = self.by_partition.get(partition)
        if known is None:
            return False
        if self._seconds() - max(since for since, _, _ in known.values()) <= _IN_FLIGHT_SECONDS:
            return True
        self._forget_all(partition)
        return False

    def expire(self) -> None:
        """Forget refused batches that are so old that no later batch can still be on its way."""
        for partition in list(self.by_partition):
            self._is_awaited(partition)

    def note(self, partition: Partition, records: Buffer) -> None:
        """Remember a batch that was refused."""
        found = _producer(records)
        if found is None:
            return
        producer_id, epoch, sequence = found
        known = self.by_partition.get(partition, {}).get(producer_id)
        if known is not None and known[1] == epoch and not _behind(known[2], sequence):
            return
        if known is None:
            if self._count >= _MOST_REFUSALS:
                self._forget_all(next(iter(self.by_partition)))
            self._count += 1
        self.by_partition.setdefault(partition, {})[producer_id] = self._seconds(), epoch, sequence

    def refuse(self, partition: Partition, records: Buffer) -> bool:
        """Return whether a batch comes after a refused batch that has to be sent again first."""
        found = _producer(records) if partition in self.by_partition else None
        if found is None:
            return False
        producer_id, epoch, sequence = found
        refused = self.by_partition[partition].get(producer_id)
        if refused is None:
            return False
        since, refused_epoch, first = refused
        # The log judges batches that it has or expects next: the refused batch may have been a copy.
        expected = partition.log.producers.next_sequence(producer_id, epoch)
        behind = _behind(sequence, first) and (expected < 0 or _behind(sequence, expected))
        if epoch == refused_epoch and behind and self._seconds() - since <= _IN_FLIGHT_SECONDS:
            return True
        if epoch != refused_epoch or not _behind(first, sequence):
            self._forget(partition, producer_id)
        return False

    def _forget(self, partition: Partition, producer_id: int) -> None:
        del self.by_partition[partition][producer_id]
        self._count -= 1
        if not self.by_partition[partition]:
            del self.by_partition[partition]

    def _forget_all(self, partition: Partition) -> None:
        self._count -= len(self.by_partition.pop(partition))


def _behind(sequence: int, other: int) -> bool:
    """Return whether a sequence number comes after another one; sequence numbers wrap around after the highest."""
    return 0 < ((sequence - other) & MAX_SEQUENCE) <= MAX_SEQUENCE >> 1


def _producer(records: Buffer) -> tuple[int, int, int] | None:
    """Return id, epoch and sequence of the first batch; None if it is not from an idempotent producer."""
    try:
        header = parse_header(records)
    except InvalidRecordBatch:
        return None
    if header.producer_id < 0:
        return None
    return header.producer_id, header.producer_epoch, header.base_sequence
