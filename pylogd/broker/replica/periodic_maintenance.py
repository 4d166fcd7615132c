"""Periodic work on all logs: retention, rolling by age, flushing and checkpoints.

A round does all that is due, in a thread. The next round does not start before it has ended. The interval of rounds is
the shortest of the intervals in the settings below. If disks have their own threads, each data directory has its own
rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.broker.log.errors import StorageError
from pylogd.broker.replica.disk_calls import DiskCalls
from pylogd.broker.replica.partition import Partition
from pylogd.config import Settings

if TYPE_CHECKING:
    from pylogd.broker.log.manager import LogManager

log = Logger()

_INTERVALS = (
    "log.retention.check.interval.ms",
    "log.flush.scheduler.interval.ms",
    "log.flush.offset.checkpoint.interval.ms",
)


class PeriodicMaintenance:
    """Runs `LogManager.tick` at intervals.

    partitions: the hosted partitions, by (topic, index).
    log_start_moved: called with each partition whose log start has moved.
    """

    def __init__(
        self,
        logs: LogManager,
        partitions: Mapping[tuple[str, int], Partition],
        log_start_moved: Callable[[Partition], object],
        settings: Settings,
        clock: IReactorTime,
        disk_calls: DiskCalls,
    ) -> None:
        self._logs = logs
        self._partitions = partitions
        self._log_start_moved = log_start_moved
        self._settings = settings
        self._disk_calls = disk_calls
        self._rounds = [LoopingCall(self._round, part) for part in disk_calls.parts]
        for rounds in self._rounds:
            rounds.clock = clock
        self._ended: list[Deferred[LoopingCall]] = []

    def start(self) -> None:
        """Begin the first round after one interval."""
        interval_ms = min(self._settings.integer(name) for name in _INTERVALS)
        self._ended = [rounds.start(interval_ms / 1000, now=False) for rounds in self._rounds]

    async def stop(self) -> None:
        """Start no more rounds. Return when the present ones have ended."""
        for rounds in self._rounds:
            if rounds.running:
                rounds.stop()
        for ended in self._ended:
            await ended

    def _round(self, part: str | None) -> Deferred[Any]:
        return self._disk_calls.at(part, self._logs.tick, part).addCallback(self.moved).addErrback(self._failed)

    def moved(self, keys: Sequence[tuple[str, int]]) -> None:
        """Announce that the log starts of these partitions have moved."""
        for key in keys:
            partition = self._partitions.get(key)
            if partition is not None:
                self._log_start_moved(partition)

    def _failed(self, failure: Failure) -> None:
        if not failure.check(StorageError):  # other errors are expected of a data directory that was given up
            log.failure("Unexpected error in housekeeping (retention, checkpoints)", failure)
