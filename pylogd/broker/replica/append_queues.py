"""Appends that wait for their turn, while a thread inspects records, writes them, or opens a log.

Strategy: a partition with such an append has a queue. Later appends to the partition join the queue, so that appends
are done in the order of their arrival. Work for threads is awaited; everything else is done on the reactor's thread.
The queue is removed when it is empty. If appends are written in threads, always or while a disk is slow, every append
passes through here, and appends that wait together are written together (`staged_writes`).

Rules: at most `AT_ONCE` appends are inspected concurrently, since an inspection may need many times the batch's size in
memory. An append is done even if its client has disconnected, since later ones may rely on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, cast

from twisted.internet.defer import Deferred, DeferredSemaphore, fail

from pylogd.base.errors import PylogdError
from pylogd.broker.log.append.result import AppendResult
from pylogd.broker.log.errors import InspectionNeeded, LogAtRest
from pylogd.broker.replica.staged_writes import Outcome, StagedWrites, WaitingAppend

if TYPE_CHECKING:
    from pylogd.broker.log.transactions import TransactionTerms
    from pylogd.broker.log.validator import Inspections
    from pylogd.broker.replica.partition import Partition
    from pylogd.wire.records import Buffer

#: How many appends, of all partitions together, are inspected at the same time.
AT_ONCE = 2


class QueuedAppend(WaitingAppend):
    """An append in a queue.

    at_once: whether a short inspection may be done on the reactor's thread.
    context: the context of its request, to which a thread's time is charged.
    done: the caller's Deferred.
    staged: whether a thread has to write it.
    """

    __slots__ = ("at_once", "context", "done", "staged")

    def __init__(
        self, records: Buffer, acks_all: bool, *, at_once: bool, own: bool, follows: int | None,
        terms: TransactionTerms | None = None,
    ) -> None:  # fmt: skip
        super().__init__(records, acks_all, own=own, follows=follows, terms=terms)
        self.at_once = at_once
        self.context: Context = copy_context()
        self.done: Deferred[AppendResult] = Deferred()
        self.staged = follows is not None

    @property
    def wants_inspection(self) -> bool:
        """Whether a thread must inspect the batch first."""
        return not self.at_once and self.inspections is None


class _Every:
    """Contains every partition."""

    def __contains__(self, partition: object) -> bool:
        return True


class _Staged:
    """Contains the partitions with a waiting append, and those whose appends are currently made by threads."""

    def __init__(self, queues: Mapping[Partition, object], staged: StagedWrites) -> None:
        self._queues = queues
        self._wanted = staged.wanted

    def __contains__(self, partition: object) -> bool:
        return partition in self._queues or self._wanted(cast("Partition", partition))


class AppendQueues:
    """The waiting appends of a broker's partitions.

    taken: the partitions whose further appends must be queued here to keep their order. If all writes are staged, it
        has all partitions.
    on_repeats: called when `repeats` may have changed.
    """

    def __init__(
        self,
        append: Callable[..., AppendResult],
        append_followed: Callable[[Partition, Buffer, int], AppendResult],
        in_thread: Callable[..., Deferred[Any]],
        open_log: Callable[[Partition], Deferred[None]],
        staged: StagedWrites | None = None,
    ) -> None:
        """Queue appends.

        append: the function `ReplicaManager.append`.
        append_followed: appends a leader's batches of a leader epoch.
        in_thread: runs a function in a thread.
        open_log: opens a log at rest.
        staged: writes appends in threads.
        """
        self._queues: dict[Partition, deque[QueuedAppend]] = {}
        self.taken: Container[Partition] = self._queues
        if staged is not None:
            self.taken = _Staged(self._queues, staged) if staged.adaptive else _Every()
        self.on_repeats: Callable[[], object] = lambda: None
        if staged is not None and staged.adaptive:
            staged.on_change = self._repeats_may_differ
        self._append_now, self._append_followed = append, append_followed
        self._in_thread = in_thread
        self._open_log = open_log
        self._staged = staged
        self._slots = DeferredSemaphore(AT_ONCE)

    def _repeats_may_differ(self) -> None:
        self.on_repeats()

    @property
    def repeats(self) -> Container[Partition]:
        """The same as `taken`, for appends that take `Log.writing` themselves. It is cheaper while all disks are quick.

        The object may change; `on_repeats` is called then.
        """
        if self._staged is None or not self._staged.adaptive or self._staged.any_wanted:
            return self.taken
        return self._queues

    def append(
        self, partition: Partition, records: Buffer, acks_all: bool, at_once: bool = True, *, own: bool = False,
        terms: TransactionTerms | None = None,
    ) -> Deferred[AppendResult]:  # fmt: skip
        """Append after the waiting appends, and after an inspection if one is needed.

        at_once: whether a short inspection may be done on the reactor's thread.
        own: whether the records are the broker's own.
        terms: describes the transaction of transactional batches and markers.

        Fails with the errors of `ReplicaManager.append`. Cancelling the Deferred does not cancel the append.
        """
        append = QueuedAppend(records, acks_all, at_once=at_once, own=own, follows=None, terms=terms)
        if self._staged is not None and partition in self.taken:
            refusal = self._staged.refusal(partition, records)
            if refusal is not None:
                return fail(refusal)
            try:
                partition.check_append(acks_all)  # check now, not when the earlier appends have been written
                leave = self._staged.enter(partition, len(records))
            except PylogdError as error:
                return fail(error)
            append.done.addBoth(_left, leave)
            append.staged = True
        return self._add(partition, append)

    def append_fetched(self, partition: Partition, batches: Buffer) -> Deferred[AppendResult]:
        """Append a leader's batches, unchanged, after the waiting appends.

        Fails with the errors of `ReplicaManager.append_fetched`.
        """
        follows = partition.leader_epoch
        return self._add(partition, QueuedAppend(batches, False, at_once=True, own=False, follows=follows))

    def _add(self, partition: Partition, append: QueuedAppend) -> Deferred[AppendResult]:
        queue = self._queues.get(partition)
        if queue is not None:
            queue.append(append)
        else:
            queue = self._queues[partition] = deque([append])
            Deferred.fromCoroutine(self._work_off(partition, queue))
        return append.done

    async def _work_off(self, partition: Partition, queue: deque[QueuedAppend]) -> None:
        while queue:
            outcomes = await self._make(partition, queue)
            made = [queue.popleft() for _ in outcomes]
            if not queue:
                del self._queues[partition]
            for append, outcome in zip(made, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    append.done.errback(outcome)
                else:
                    append.done.callback(outcome)

    async def _make(self, partition: Partition, queue: Sequence[QueuedAppend]) -> Sequence[Outcome]:
        """Make the first append, and the following ones that can be made with it. Return their results."""
        first = queue[0]
        try:
            if first.wants_inspection:
                first.inspections = await self._inspect(partition, first)
            while True:  # settings may change meanwhile, and with them which batches need an inspection
                try:
                    if self._staged is not None and (first.staged or self._staged.wanted(partition)):
                        return await self._staged.write(partition, _ready(queue))
                    return [self._append_one(partition, first)]
                except LogAtRest:
                    await self._open_log(partition)
                except InspectionNeeded:
                    first.inspections = await self._inspect(partition, first)
        except Exception as error:
            return [error]

    def _append_one(self, partition: Partition, append: QueuedAppend) -> AppendResult:
        if append.follows is not None:
            return self._append_followed(partition, append.records, append.follows)
        return self._append_now(
            partition, append.records, append.acks_all, append.inspections, own=append.own, terms=append.terms
        )

    def _inspect(self, partition: Partition, append: QueuedAppend) -> Deferred[Inspections]:
        done: Deferred[Inspections] = self._slots.run(
            append.context.run, self._in_thread, partition.log.inspect, append.records
        )
        return done


def _ready(queue: Sequence[QueuedAppend]) -> list[QueuedAppend]:
    """Return the appends that can be made now, from the first on."""
    ready: list[QueuedAppend] = []
    for append in queue:
        if append.wants_inspection:
            break
        ready.append(append)
    return ready


def _left(result: Any, leave: Callable[[], object]) -> Any:
    leave()
    return result
