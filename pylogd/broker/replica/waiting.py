"""The waits on partitions: fetches wait for records; appends with acks=all and deletions wait for in-sync replicas.

`purgatory` describes how waiting works. The functions here wait for Deferreds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.purgatory import Operation, Purgatory

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R")


def shield(inner: Deferred[T]) -> Deferred[T]:
    """Return a Deferred with the same result. Cancelling it does not cancel `inner`."""
    outer: Deferred[T] = Deferred()
    inner.addBoth(outer.callback)
    return outer


def branch(source: Deferred[T]) -> Deferred[T]:
    """Return a Deferred that fires with the result of another one, which keeps the result for later callbacks."""
    branched: Deferred[T] = Deferred()

    def passed_on(result: T) -> T:
        branched.callback(result)
        return result

    source.addCallback(passed_on)
    return branched


def then(result: T | Deferred[T], function: Callable[[T], R]) -> R | Deferred[R]:
    """Call `function` with a result, now or when its Deferred fires.

    Return the function's result, or a Deferred of it.
    """
    return result.addCallback(function) if isinstance(result, Deferred) else function(result)


async def unfinished(writes: Mapping[K, Deferred[Any]], clock: IReactorTime, seconds: float) -> list[K]:
    """Wait until all Deferreds have fired, or `seconds` are over. Return the keys of those that have not fired.

    A failure counts as fired, and stays with its Deferred.
    """
    left = dict.fromkeys(writes)
    over: Deferred[None] = Deferred()
    timer = clock.callLater(seconds, over.callback, None)

    def finished(result: Any, key: K) -> Any:
        left.pop(key, None)
        if not left and timer.active():
            timer.cancel()
            over.callback(None)
        return result

    for key, write in writes.items():
        write.addBoth(finished, key)
    await over
    return list(left)


class PendingAppend:
    """An append to the leader's log that is not yet committed.

    committed_at: the high watermark that commits it.
    answer: the caller's answer to its client, kept for the caller.
    """

    __slots__ = ("answer", "committed_at", "leader_epoch", "partition")

    def __init__(self, partition: Partition, committed_at: int, answer: Any) -> None:
        self.partition = partition
        self.committed_at = committed_at
        self.leader_epoch = partition.leader_epoch
        self.answer = answer

    @property
    def committed(self) -> bool:
        """Whether every in-sync replica has it. In another leader epoch the offset may belong to another record."""
        return self.partition.high_watermark >= self.committed_at and not self.gone

    @property
    def short(self) -> bool:
        """Whether too few replicas are in sync for it to be committed soon."""
        return not self.partition.enough_in_sync

    @property
    def gone(self) -> bool:
        """Whether this broker no longer leads the partition in that leader epoch, so it can't be committed here."""
        return self.partition.leader_epoch != self.leader_epoch or not self.partition.leading


class ReplicationWait(Operation[list[PendingAppend]]):
    """Waits until appends are committed.

    The result has the appends that are not committed: the time is up, too few replicas are in sync, or the partition is
    no longer led here.
    """

    __slots__ = ("_appends",)

    def __init__(self, appends: list[PendingAppend]) -> None:
        super().__init__()
        self._appends = appends

    def try_complete(self, key: Hashable) -> bool:
        """Complete when each append is committed or can't be."""
        return self.look()

    def look(self) -> bool:
        """Do the work of `try_complete`."""
        if all(append.committed or append.gone or append.short for append in self._appends):
            return self.complete(self.on_expire())
        return False

    def on_expire(self) -> list[PendingAppend]:
        """Return the appends that are not committed."""
        return [append for append in self._appends if not append.committed]


class LogStartWait(Operation[bool]):
    """Waits until the logs of all in-sync replicas start at `offset` or later. The result says whether they do."""

    __slots__ = ("_epoch", "_offset", "_partition")

    def __init__(self, partition: Partition, offset: int) -> None:
        super().__init__()
        self._partition = partition
        self._epoch = partition.leader_epoch
        self._offset = offset

    def try_complete(self, key: Hashable) -> bool:
        """Complete when all logs do, or with False if this broker no longer leads the partition."""
        partition = self._partition
        if not partition.leading or partition.leader_epoch != self._epoch:
            return self.complete(False)
        return partition.low_watermark >= self._offset and self.complete(True)

    def on_expire(self) -> bool:
        """Return False, since the logs do not start there yet."""
        return False


class PartitionWaits:
    """The operations that wait on partitions, under their keys.

    fetches: operations that wait for records.
    appends: operations that wait for replicas.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self.fetches = Purgatory(clock)
        self.appends = Purgatory(clock)

    def check(self, partition: Partition) -> None:
        """Check the operations that wait on `partition`, since its role, high watermark or log start has changed."""
        self.fetches.check(partition.key)
        self.appends.check(partition.key)

    def expire_all(self) -> None:
        """End every wait as if its time were up."""
        self.appends.expire_all()
        self.fetches.expire_all()
