"""Appends whose records have to be inspected in a thread first, and appends that come after them.

Strategy: a partition with such an append has a queue; what clients append to it meanwhile is added to the queue, so
that appends are done in the order in which they came. Each is done on the reactor's thread, with what the thread has
found. The queue is removed when it is empty.

Rules: few are inspected concurrently (`AT_ONCE`), since an inspection may need many times the batch's size in memory.
An append is done even if its client has gone, since later ones may rely on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredSemaphore

from pylogd.log.errors import InspectionNeeded

if TYPE_CHECKING:
    from pylogd.log.append_result import AppendResult
    from pylogd.replica.partition import Partition
    from pylogd.wire.records import Buffer

#: Appends of all partitions that are looked into at the same time.
AT_ONCE = 2

#: Records, acks=all, whether a short inspection may be done on the reactor's thread, the caller's Deferred, and the
#: context of its request, to which the thread's time is charged.
Append = tuple["Buffer", bool, bool, "Deferred[AppendResult]", Context]


class InspectedAppends:
    """The appends of a broker's partitions that wait.

    queues: those of each partition that has any, oldest first.
    """

    def __init__(self, append: Callable[..., AppendResult], in_thread: Callable[..., Deferred[Any]]) -> None:
        """`append`: as `ReplicaManager.append`. `in_thread`: run a function in a thread."""
        self.queues: dict[Partition, deque[Append]] = {}
        self._append = append
        self._in_thread = in_thread
        self._slots = DeferredSemaphore(AT_ONCE)

    def append(
        self, partition: Partition, records: Buffer, acks_all: bool, at_once: bool = True
    ) -> Deferred[AppendResult]:
        """Append after those that wait, and after an inspection if one is needed. Fails as `append` does.

        at_once: whether a short inspection may be done on the reactor's thread. Cancelling the Deferred does not cancel
        the append.
        """
        done: Deferred[AppendResult] = Deferred()
        queue = self.queues.get(partition)
        if queue is not None:
            queue.append((records, acks_all, at_once, done, copy_context()))
        else:
            queue = self.queues[partition] = deque([(records, acks_all, at_once, done, copy_context())])
            Deferred.fromCoroutine(self._work_off(partition, queue))
        return done

    async def _work_off(self, partition: Partition, queue: deque[Append]) -> None:
        while queue:
            records, acks_all, at_once, done, context = queue[0]
            outcome: Any
            try:
                outcome = await self._make(partition, records, acks_all, at_once, context)
            except Exception as error:
                outcome = error
            queue.popleft()
            if not queue:
                del self.queues[partition]
            if isinstance(outcome, Exception):
                done.errback(outcome)
            else:
                done.callback(outcome)

    async def _make(
        self, partition: Partition, records: Buffer, acks_all: bool, at_once: bool, context: Context
    ) -> AppendResult:
        inspections = None
        if not at_once:
            inspections = await self._inspect(partition, records, context)
        while True:  # settings may change meanwhile, and with them what has to be known
            try:
                return self._append(partition, records, acks_all, inspections)
            except InspectionNeeded:
                inspections = await self._inspect(partition, records, context)

    def _inspect(self, partition: Partition, records: Buffer, context: Context) -> Deferred[Any]:
        return self._slots.run(context.run, self._in_thread, partition.log.inspect, records)
