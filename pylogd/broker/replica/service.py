"""The parts of the replica package together, as a broker creates, starts and stops them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from pylogd.broker.replica.configs import HostedConfig
from pylogd.broker.replica.disk_calls import DiskCalls, InThread
from pylogd.broker.replica.flushing import Flushers
from pylogd.broker.replica.high_watermark_checkpoint import HighWatermarkCheckpoint
from pylogd.broker.replica.hosting import PartitionHosting
from pylogd.broker.replica.isr_updater import AlterIsr, IsrUpdater
from pylogd.broker.replica.manager import ReplicaManager
from pylogd.broker.replica.partition_registry import PartitionRegistry
from pylogd.broker.replica.periodic_maintenance import PeriodicMaintenance
from pylogd.broker.replica.replication_throttle import ReplicaThrottle, ReplicationQuota
from pylogd.broker.replica.session_cache import FetchSessions
from pylogd.broker.replica.storage_failures import StorageFailures
from pylogd.broker.replica.waiting import PartitionWaits
from pylogd.config import Settings

if TYPE_CHECKING:
    from pylogd.broker.isolation.disks import Disks
    from pylogd.broker.log.manager import LogManager
    from pylogd.broker.metadata.image import PartitionState
    from pylogd.broker.metadata.topics import TopicRegistry
    from pylogd.broker.replica.partition import Partition


class Replicas:
    """A broker's replicas.

    partitions: finds partitions.
    manager: appends, and waits for replicas.
    hosting: hosts partitions.
    housekeeping: maintains logs.
    clock: times all waits.
    now_ms: the wall clock, for times in the metadata.
    disks: the threads of the disks; None if disks do not have their own threads.
    fetch_waits: the fetches that wait for records.
    fetch_sessions: the fetch sessions of clients.
    isr_updater: updates the in-sync sets of partitions led here.
    throttle: tells which replicas replicate at a limited rate.
    """

    def __init__(
        self,
        logs: LogManager,
        topics: TopicRegistry,
        alter_isr: AlterIsr,
        settings: Settings,
        clock: IReactorTime,
        node_id: int,
        in_thread: InThread,
        *,
        now_ms: Callable[[], int],
        disks: Disks | None = None,
    ) -> None:
        """Make the parts. The class describes the arguments."""
        integer = settings.integer
        disk_calls = self.disk_calls = DiskCalls(in_thread, disks)
        self.partitions = PartitionRegistry()
        self._waits = PartitionWaits(clock)
        failures = StorageFailures(logs)
        self._flushers = self._make_flushers(settings, clock, failures)
        configs: dict[str, HostedConfig] = {}
        quota = ReplicationQuota(lambda: integer("leader.replication.throttled.rate"), clock.seconds)
        self.isr_updater = IsrUpdater(
            alter_isr, clock, self.partitions.replicated, self._isr_written,
            lambda: integer("replica.lag.time.max.ms") / 1000, now_ms,
        )  # fmt: skip
        self.throttle = ReplicaThrottle(configs, node_id, quota)
        self.fetch_waits = self._waits.fetches
        self.fetch_sessions = self._make_fetch_sessions(settings, clock)
        self.manager = ReplicaManager(
            logs, self._waits, self._flushers, failures, in_thread, disk_calls=disk_calls, seconds=clock.seconds,
            disks=disks,
        )  # fmt: skip
        seconds = integer("replica.high.watermark.checkpoint.interval.ms") / 1000
        self._watermarks = HighWatermarkCheckpoint(logs, self.partitions.replicated, clock, disk_calls, seconds)
        self.hosting = PartitionHosting(
            logs, topics, settings, node_id, disk_calls, registry=self.partitions, replicas=self.manager,
            isr_updater=self.isr_updater, flushers=self._flushers, failures=failures, watermarks=self._watermarks,
            configs=configs,
        )  # fmt: skip
        self.housekeeping = PeriodicMaintenance(
            logs, self.partitions.by_name, self._waits.check, settings, clock, disk_calls)  # fmt: skip

    def _make_flushers(self, settings: Settings, clock: IReactorTime, failures: StorageFailures) -> Flushers:
        return Flushers(
            clock, self.disk_calls, settings.integer("background.threads"), self._waits.check, failures.report,
            self.partitions.by_name,
        )  # fmt: skip

    def _make_fetch_sessions(self, settings: Settings, clock: IReactorTime) -> FetchSessions[Any]:
        return FetchSessions(
            settings.integer("max.incremental.fetch.session.cache.slots"), lambda: int(clock.seconds() * 1000),
            self.fetch_waits, settings.integer("max.incremental.fetch.session.cache.partitions"),
        )  # fmt: skip

    def _isr_written(self, partition: Partition, state: PartitionState | None) -> None:
        self.hosting.isr_written(partition, state)

    def resize(self, threads: int, /) -> None:
        """Use a part of `threads` for flushes from now on (`background.threads`)."""
        self._flushers.resize(threads)

    def start(self) -> Deferred[None]:
        """Host the partitions in the topic registry, and begin the housekeeping.

        The logs must be loaded and the registry started. Fires when every partition is hosted.
        """
        return Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        await self.hosting.start()
        self.housekeeping.start()

    def stop(self) -> Deferred[None]:
        """End the housekeeping, end every wait as if its time were up, and finish the topic changes under way.

        The logs stay open; their owner closes them.
        """
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        self.hosting.unsubscribe()
        self.isr_updater.stop()
        self._flushers.close()
        self._waits.expire_all()
        await self.housekeeping.stop()
        await self.hosting.settle_all()
        await self._watermarks.stop()
