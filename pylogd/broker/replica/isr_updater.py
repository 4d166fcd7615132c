"""Remove lagging followers from the in-sync sets of partitions led here, and add followers that have caught up.

Strategy: a follower is added when it fetches and has caught up. Followers that lag are removed by a timer, whose
interval is half of `replica.lag.time.max.ms`, at most a second. It looks only at partitions that changed since all
in-sync followers were caught up, and is off while there are none. In both cases the partition proposes a new set, the
metadata is written with the version on which the proposal is based, and the new set counts when it comes back as a
state of the partition. Proposals that are made in one turn of the reactor, or while a write is in progress, are written
together.

Rules: a proposal stays until a newer state of the partition is known, since a write without an answer may have been
done. It is written again once a second. A proposal that is refused because the replica may not join is withdrawn if
every write of it was answered. Otherwise the present set is written: that makes a newer state, and any write that is
still in progress fails by its version.

Source: KIP-497.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.errors import PylogdError
from pylogd.broker.metadata.errors import IneligibleReplica, TopicError
from pylogd.broker.metadata.image import IsrChange, PartitionState
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.purgatory import OperationState, Watcher
from pylogd.broker.replica.roles import Role

log = Logger()

RETRY_SECONDS = 1.0

AlterIsr = Callable[[Sequence[IsrChange]], "Deferred[Any]"]
"""Writes changes; fires with a list that has, for each change, the new PartitionState or the error."""


class IsrUpdater(Watcher):
    """Keeps in-sync sets up to date. It watches every partition that may have followers, under the partition's key."""

    state = OperationState.WAITING
    shrinks = expands = 0  # how many written sets had fewer replicas, and how many had more

    def __init__(
        self,
        alter: AlterIsr,
        clock: IReactorTime,
        partitions: Mapping[tuple[str, int], Partition],
        written: Callable[[Partition, PartitionState | None], object],
        most_lag: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        """Watch partitions.

        alter: writes in-sync sets.
        partitions: the partitions that may have followers.
        written: called with a partition and its new state after a write, or with None after a proposal was withdrawn.
        most_lag: returns `replica.lag.time.max.ms`, in seconds.
        now_ms: the wall clock, for smooth expansions.
        """
        self._alter = alter
        self._clock = clock
        self._partitions = partitions
        self._written = written
        self._most_lag = most_lag
        self._now_ms = now_ms
        # Keys of partitions where a follower may lag, or a proposal is not decided.
        self._unsettled: dict[Hashable, None] = {}
        self._proposed: dict[tuple[str, int], Partition] = {}  # the partitions whose proposals are to be written
        self._refused: dict[tuple[str, int], float] = {}  # when a replica was last refused, in seconds
        self._writing = False
        self._stopped = False
        self._flush: IDelayedCall | None = None
        self._look: IDelayedCall | None = None

    def try_complete(self, key: Hashable) -> bool:
        """Note that a partition has changed."""
        self._unsettled[key] = None
        if self._look is None:
            self._look_later()
        return False

    def fail(self, error: Exception) -> bool:
        """Do nothing, since no caller waits for this watcher."""
        return False

    def stop(self) -> None:
        """Stop proposing and writing."""
        for call in (self._look, self._flush):
            if call is not None and call.active():
                call.cancel()
        self._look = self._flush = None
        self._proposed.clear()
        self._stopped = True

    def _pause(self) -> float:
        return min(self._most_lag() / 2, RETRY_SECONDS)

    def _look_later(self) -> None:
        if self._look is None and not self._stopped:
            self._look = self._clock.callLater(self._pause(), self._look_again)

    def _look_again(self) -> None:
        self._look = None
        self.look()
        if self._unsettled:
            self._look_later()

    def look(self) -> None:
        """Propose to remove lagging followers, and write undecided proposals again."""
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
                    self._propose(partition, pending.isr)
                continue
            lagging = partition.lagging(now, most)
            if lagging:
                lost += len(lagging)
                self._propose(partition, tuple(node_id for node_id in partition.isr if node_id not in lagging))

        if lost:
            log.info("{count} replicas can't keep up: removing them from their in-sync sets", count=lost)

    def follower_came(self, partition: Partition, node_id: int) -> None:
        """Propose to add a follower that has fetched, if it has caught up."""
        state = partition.state
        if state is None or not partition.may_join(node_id):
            return
        until = state.latest_until_ms
        refused = self._refused.get(partition.key)
        if refused is not None and self._clock.seconds() - refused < RETRY_SECONDS:
            return  # each of its fetches would propose it again
        if until is not None and node_id in state.adding and self._now_ms() < until:
            return
        self._propose(partition, (*partition.isr, node_id))

    def _propose(self, partition: Partition, isr: tuple[int, ...]) -> None:
        partition.propose_isr(isr, self._clock.seconds())
        self._proposed[partition.key] = partition
        self._unsettled[partition.key] = None
        self._look_later()
        self._later()

    def _later(self) -> None:
        if not self._writing and not self._stopped and self._flush is None and self._proposed:
            self._flush = self._clock.callLater(0, self._write)

    def _write(self) -> None:
        self._flush = None
        proposed = [
            partition
            for partition in self._proposed.values()
            if partition.role is Role.LEADING and partition.pending_isr is not None
        ]
        self._proposed.clear()
        if not proposed:
            return
        sizes = [len(partition.isr) for partition in proposed]
        changes = [_change(partition) for partition in proposed]
        self._writing = True
        done = maybeDeferred(self._alter, changes)
        done.addCallback(self._done, proposed, sizes).addErrback(self._failed, proposed)

    def _done(
        self, results: Sequence[PartitionState | BaseException], proposed: list[Partition], sizes: list[int]
    ) -> None:
        """Apply the results of a write.

        sizes: the sizes of the in-sync sets before the write; partitions may have the new sets already.
        """
        self._writing = False
        for partition, result, size in zip(proposed, results, sizes, strict=True):
            if isinstance(result, PartitionState):
                self.shrinks += len(result.isr) < size
                self.expands += len(result.isr) > size
                self._written(partition, result)
                continue
            if not isinstance(result, TopicError):
                partition.unanswered_isr()  # after an error of the store the set may have been written
                log.warn(
                    "Could not write the in-sync set of {partition!r}, retrying: {error}",
                    partition=partition,
                    error=result,
                )
            elif isinstance(result, IneligibleReplica) and partition.pending_isr is not None:
                self._refused[partition.key] = self._clock.seconds()
                if partition.pending_isr.unanswered:
                    self._propose(partition, partition.isr)
                else:
                    partition.withdraw_isr()
                    self._written(partition, None)
        self._later()

    def _failed(self, failure: Failure, proposed: list[Partition]) -> None:
        self._writing = False
        if not failure.check(PylogdError):
            log.failure("Unexpected error while writing in-sync sets", failure)
        for partition in proposed:
            partition.unanswered_isr()
        log.warn("Could not write changes of in-sync sets, retrying: {error}", error=failure.value)
        self._later()


def _change(partition: Partition) -> IsrChange:
    assert partition.state is not None and partition.pending_isr is not None
    return IsrChange(
        partition.topic, partition.topic_id, partition.index, partition.leader_epoch,
        partition.state.partition_epoch, partition.pending_isr.isr, partition.pending_isr.epochs,
    )  # fmt: skip
