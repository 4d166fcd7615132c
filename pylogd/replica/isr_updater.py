"""Keeps the in-sync sets of the partitions that this broker leads: out with who lags, in with who caught up.

Strategy: a follower's fetch tells when it may join; a look, every half of `replica.lag.time.max.ms`, tells who has to
leave. It looks at the partitions of which there was news since an in-sync follower last lacked nothing: in the others
nobody can have fallen behind. Both only ask: the metadata is written with the version that the change was worked out
from, and the new set counts when it comes back as a state of the partition. Changes asked for in one turn of the
reactor, or while a write is under way, leave together.

Rules: a change that was asked for stays asked for until a newer state of the partition is known, since a write without
an answer may have been done; it is asked for again once a second. One that is refused because the replica may not join
is taken back at once where every write was answered. Otherwise the set is written as it is: that write is the newer
state, and whatever is still under way fails by its version.

Source: KIP-497.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.metadata.errors import IneligibleReplica, TopicError
from pylogd.metadata.image import IsrChange, PartitionState
from pylogd.replica.partition import Partition
from pylogd.replica.purgatory import OperationState, Watcher
from pylogd.replica.roles import Role

log = Logger()

RETRY_SECONDS = 1.0

AlterIsr = Callable[[Sequence[IsrChange]], "Deferred[Any]"]
"""Writes the changes: a Deferred of a list with, for each, the new PartitionState or the error."""


class IsrUpdater(Watcher):
    """See the module. It watches every partition that may have followers, under its key.

    `written` is told each partition's new state once a write of ours is done, or None where a change was taken back.
    """

    state = OperationState.WAITING

    def __init__(
        self,
        alter: AlterIsr,
        clock: IReactorTime,
        partitions: Mapping[tuple[str, int], Partition],
        written: Callable[[Partition, PartitionState | None], object],
        most_lag: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        """`partitions`: those that may have followers. `most_lag`: `replica.lag.time.max.ms`, in seconds. `now_ms` is
        the wall clock, by which a smooth expansion ends, as the metadata says.
        """
        self._alter = alter
        self._clock = clock
        self._partitions = partitions
        self._written = written
        self._most_lag = most_lag
        self._now_ms = now_ms
        self._unsettled: dict[Hashable, None] = {}  # where a follower may lack something, or a change is asked for
        self._asked: dict[tuple[str, int], Partition] = {}
        self._refused: dict[tuple[str, int], float] = {}  # when a replica was last not to join
        self._writing = False
        self._stopped = False
        self._flush: IDelayedCall | None = None
        self._look: IDelayedCall | None = None

    def watch(self) -> None:
        """There are partitions to look at for followers that lag."""
        if self._look is None and not self._stopped:
            self._look = self._clock.callLater(self._pause(), self._look_again)

    def try_complete(self, key: Hashable) -> bool:
        """There is news of a partition: look at it."""
        self._unsettled[key] = None
        return False

    def fail(self, error: Exception) -> bool:
        """Do nothing: no caller waits for this watcher."""
        return False

    def stop(self) -> None:
        """Ask for nothing more."""
        for call in (self._look, self._flush):
            if call is not None and call.active():
                call.cancel()
        self._look = self._flush = None
        self._asked.clear()
        self._stopped = True

    def _pause(self) -> float:
        return min(self._most_lag() / 2, RETRY_SECONDS)

    def _look_again(self) -> None:
        self._look = None
        if self._partitions:
            self.watch()
            self.look()

    def look(self) -> None:
        """Ask for everybody who lags to leave, and again for what was asked for a while ago."""
        now, most = self._clock.seconds(), self._most_lag()
        lost = 0
        for key in list(self._unsettled):
            partition = self._partitions.get(key)  # type: ignore[call-overload]
            if partition is None or (partition.pending_isr is None and partition.all_caught_up):
                del self._unsettled[key]
                continue
            pending = partition.pending_isr
            if pending is not None:
                if now - pending.asked_at >= RETRY_SECONDS:
                    self._ask(partition, pending.isr)
                continue
            lagging = partition.lagging(now, most)
            if lagging:
                lost += len(lagging)
                self._ask(partition, tuple(node_id for node_id in partition.isr if node_id not in lagging))

        if lost:
            log.info("{count} replicas can't keep up: removing them from their in-sync sets", count=lost)

    def follower_came(self, partition: Partition, node_id: int) -> None:
        """A follower out of sync has fetched: ask for it to join if it may."""
        state = partition.state
        if state is None or not partition.may_join(node_id):
            return
        until = state.latest_until_ms
        refused = self._refused.get(partition.key)
        if refused is not None and self._clock.seconds() - refused < RETRY_SECONDS:
            return  # it asks with every fetch
        if until is not None and node_id in state.adding and self._now_ms() < until:
            return
        self._ask(partition, (*partition.isr, node_id))

    def _ask(self, partition: Partition, isr: tuple[int, ...]) -> None:
        partition.propose_isr(isr, self._clock.seconds())
        self._asked[partition.key] = partition
        self._unsettled[partition.key] = None
        self._later()

    def _later(self) -> None:
        if not self._writing and not self._stopped and self._flush is None and self._asked:
            self._flush = self._clock.callLater(0, self._write)

    def _write(self) -> None:
        self._flush = None
        asked = [
            partition
            for partition in self._asked.values()
            if partition.role is Role.LEADING and partition.pending_isr is not None
        ]
        self._asked.clear()
        if not asked:
            return
        self._writing = True
        done = self._alter([_change(partition) for partition in asked])
        done.addCallbacks(self._done, self._failed, callbackArgs=(asked,), errbackArgs=(asked,))
        done.addErrback(lambda failure: log.failure("Could not apply a change of in-sync sets", failure))

    def _done(self, results: Sequence[PartitionState | BaseException], asked: list[Partition]) -> None:
        self._writing = False
        for partition, result in zip(asked, results, strict=True):
            if isinstance(result, PartitionState):
                self._written(partition, result)
                continue
            if not isinstance(result, TopicError):
                partition.unanswered_isr()  # the store's trouble: nobody knows whether it was written
                log.warn("In-sync set of {partition!r} not written: {error}", partition=partition, error=result)
            elif isinstance(result, IneligibleReplica) and partition.pending_isr is not None:
                self._refused[partition.key] = self._clock.seconds()
                if partition.pending_isr.unanswered:
                    self._ask(partition, partition.isr)
                else:
                    partition.withdraw_isr()
                    self._written(partition, None)
        self._later()

    def _failed(self, failure: Failure, asked: list[Partition]) -> None:
        self._writing = False
        for partition in asked:
            partition.unanswered_isr()
        log.warn("Could not write changes of in-sync sets, retrying: {error}", error=failure.value)
        self._later()


def _change(partition: Partition) -> IsrChange:
    assert partition.state is not None and partition.pending_isr is not None
    return IsrChange(
        partition.topic, partition.topic_id, partition.index, partition.leader_epoch,
        partition.state.partition_epoch, partition.pending_isr.isr, partition.pending_isr.epochs,
    )  # fmt: skip
