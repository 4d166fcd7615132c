"""Write high watermarks to disk, so that a restarted replica can serve committed records at once.

Strategy: every `replica.high.watermark.checkpoint.interval.ms`, and at a stop, the high watermarks of all replicated
partitions are written to `replication-offset-checkpoint` in each data directory, if any has moved. After a crash the
written values may be too low. This does no harm: a leader computes its high watermark again, and followers learn it
from their leader.

Must not know: roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.broker.replica.disk_calls import DiskCalls

if TYPE_CHECKING:
    from pylogd.broker.log.manager import LogManager
    from pylogd.broker.replica.partition import Partition

log = Logger()


class HighWatermarkCheckpoint:
    """Writes high watermarks.

    partitions: the replicated partitions.
    seconds: the time between two writes.
    """

    def __init__(
        self,
        logs: LogManager,
        partitions: Mapping[tuple[str, int], Partition],
        clock: IReactorTime,
        disk_calls: DiskCalls,
        seconds: float,
    ) -> None:
        self._logs = logs
        self._partitions = partitions
        self._clock = clock
        self._disk_calls = disk_calls
        self._seconds = seconds
        self._timer: IDelayedCall | None = None
        self._written: dict[tuple[str, int], int] = {}
        self._stopped = False

    def watch(self) -> None:
        """Start to write periodically, since there are replicated partitions now."""
        if self._timer is None and not self._stopped:
            self._timer = self._clock.callLater(self._seconds, self._due)

    def stop(self) -> Deferred[None]:
        """Write a last time. Fires when that is done."""
        self._stopped = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        return self.write()

    def write(self) -> Deferred[None]:
        """Write the high watermarks if any has moved. The Deferred never fails."""
        offsets = {key: partition.high_watermark for key, partition in self._partitions.items()}
        if offsets == self._written:
            done: Deferred[None] = Deferred()
            done.callback(None)
            return done
        self._written = offsets
        writes = [
            self._disk_calls.at(part, self._logs.checkpoint_high_watermarks, offsets, part).addErrback(self._failed)
            for part in self._disk_calls.parts
        ]
        return writes[0] if len(writes) == 1 else DeferredList(writes).addCallback(lambda _: None)

    def _due(self) -> None:
        self.write().addBoth(self._again)

    def _again(self, _: object) -> None:
        self._timer = None
        if self._partitions:
            self.watch()

    def _failed(self, failure: Failure) -> None:
        self._written = {}
        log.error("Could not write the high watermark checkpoint: {error}", error=failure.value)
