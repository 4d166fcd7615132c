"""Failed, full and cordoned log directories: found by a periodic check, and reported to the cluster.

Strategy: a broker's registration names the replicas that its disks keep from serving (`metadata.image.Outages`), as
Kafka's brokers tell their controller of failed log directories (KIP-112, KIP-858), and whether it takes new replicas
(KIP-1066). The controller then moves leaders away and removes the replicas from in-sync sets; see
`controller.decisions`. A failure shows whenever a directory is used. Besides, a thread checks each directory every
`log.dir.check.interval.ms`, so that a failure under idle replicas is found too. Disks with their own threads are
checked in these.

Rules: changes at the same time are reported together. A report that the store refused is sent again until it is stored.
The check costs a `stat` of each directory; only every tenth one writes a byte, which is left to the page cache. Must
not know: why a directory failed, what the cluster makes of a report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.broker.log.errors import StorageError
from pylogd.broker.metadata.image import Outages
from pylogd.broker.replica.disk_calls import DiskCalls
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.roles import Role
from pylogd.store.errors import NodeError, StoreError

if TYPE_CHECKING:
    from pylogd.broker.log.manager import LogManager
    from pylogd.broker.replica.partition_registry import PartitionRegistry

log = Logger()

#: Seconds before a report that failed is sent again.
RETRY_SECONDS = 1.0
#: Every how many checks a check also writes to the directory.
_WRITING = 10


class OutageReporter:
    """Finds outages of this broker's log directories and reports them.

    report: reports outages, and returns a Deferred.
    seconds: the time between two checks of the directories.
    """

    def __init__(
        self,
        partitions: PartitionRegistry,
        logs: LogManager,
        report: Callable[[Outages], Deferred[None]],
        clock: IReactorTime,
        disk_calls: DiskCalls,
        seconds: float,
    ) -> None:
        self._partitions = partitions
        self._logs = logs
        self._report = report
        self._clock = clock
        self._disk_calls = disk_calls
        self._seconds = seconds
        self._reported = Outages()
        self._sending = False
        self._call: IDelayedCall | None = None
        self._running = False
        self._checks = 0
        self._next_check: IDelayedCall | None = None
        self._checking: dict[str | None, Deferred[None]] = {}  # the checks under way

    def at_registration(self) -> Outages:
        """Return the offline replicas for the broker's registration, before its partitions are hosted.

        `start` reports later ones.
        """
        self._reported = Outages(cordoned=self._logs.cordoned)
        return self._reported

    def start(self) -> None:
        """Report the present outages, and each change. The partitions must be hosted."""
        self._running = True
        self._partitions.subscribe(self._partition_changed)
        self.changed()
        self._check_later()

    def stop(self) -> Deferred[None]:
        """Stop checking and reporting. Fires when a check under way is done."""
        self._running = False
        for call in (self._call, self._next_check):
            if call is not None:
                call.cancel()
        self._call = self._next_check = None
        return DeferredList(list(self._checking.values())).addCallback(lambda _: None)

    def changed(self) -> None:
        """Report in the next turn of the reactor, together with other changes until then."""
        if self._running and self._call is None:
            self._call = self._clock.callLater(0, self._send)

    def _partition_changed(self, partition: Partition) -> None:
        key = partition.topic_id, partition.index
        if partition.role is Role.OFFLINE or key in self._reported.offline or key in self._reported.full:
            self.changed()

    def outages(self) -> Outages:
        """Return the present outages, without the copies that were lost with a directory; see `PartitionState`."""
        partitions, lost = self._partitions.by_name, self._partitions.awaiting_directory
        full = filter(None, map(partitions.get, self._logs.in_full_directories))
        return Outages(
            frozenset(
                (one.topic_id, one.index)
                for one in partitions.values()
                if one.role is Role.OFFLINE and one.key not in lost
            ),
            frozenset((one.topic_id, one.index) for one in full),
            cordoned=self._logs.cordoned,
        )  # fmt: skip

    def _send(self) -> None:
        self._call = None
        if self._sending:
            return  # once that is done, changes are searched again
        found = self.outages()
        if found == self._reported:
            return
        self._sending = True
        self._report(found).addCallbacks(self._sent, self._not_sent, callbackArgs=(found,))

    def _sent(self, _: None, found: Outages) -> None:
        self._sending = False
        self._reported = found
        if found:
            log.warn(
                "reported to the cluster: {offline} replicas of this broker are offline, {full} are on full volumes",
                offline=len(found.offline), full=len(found.full),
            )  # fmt: skip
        else:
            log.info("reported to the cluster: no replica of this broker is offline or on a full volume{cordoned}",
                     cordoned="; all data directories are cordoned" if found.cordoned else "")  # fmt: skip
        self.changed()

    def _not_sent(self, failure: Failure) -> None:
        self._sending = False
        if not self._running:
            return
        if failure.check(StoreError, NodeError):
            log.warn("Can't report offline replicas to the cluster, retrying: {error}", error=failure.getErrorMessage())
        else:
            log.failure("Unexpected error while reporting offline replicas to the cluster, retrying", failure)
        if self._call is None:
            self._call = self._clock.callLater(RETRY_SECONDS, self._send)

    def _check_later(self) -> None:
        self._next_check = self._clock.callLater(self._seconds, self._check)

    def _check(self) -> None:
        self._checks += 1
        for part in self._disk_calls.parts:
            if part not in self._checking:
                write = self._checks % _WRITING == 0
                check = self._checking[part] = self._disk_calls.at(part, self._logs.check_directories, write, part)
                check.addErrback(self._check_failed).addCallback(self._checked, part)
        self._check_later()

    def _check_failed(self, failure: Failure) -> None:
        if not failure.check(StorageError):  # other errors are expected of a data directory that was given up
            log.failure("Could not check the log directories", failure)

    def _checked(self, _: None, part: str | None) -> None:
        del self._checking[part]
