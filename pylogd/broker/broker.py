"""One broker: connect its parts, start them and stop them in order.

Start: lock the directories and load the logs (in threads), open the metadata store, bind the listeners, register, wait
until the controller has handled the registration, host the partitions, and only then accept connections, because a
restarted broker must not go on leading its earlier partitions as if nothing had happened.

Stop: hand over leaderships that other brokers can take, stop listening, end waiting requests, let replies leave for at
most `controlled.shutdown.drain.ms`, then close the store, which ends the registration, and the logs, which marks the
stop as clean.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from functools import cached_property, partial
from threading import Thread
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, TimeoutError, fail
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd import __version__
from pylogd.base.clock import timed, wall_ms
from pylogd.base.errors import BrokerUnavailable
from pylogd.base.limits.expressions import Matches
from pylogd.base.limits.shares import FairWork
from pylogd.base.threads import ThreadPool
from pylogd.broker.api.dispatch import AuditingDispatcher, Dispatcher
from pylogd.broker.api.first_requests import build_following_codecs, build_opening_codecs
from pylogd.broker.api.metering import charge_connection
from pylogd.broker.api.own_requests import ask_self
from pylogd.broker.cache.service import make_block_cache
from pylogd.broker.controller.admin import PartitionAdmin
from pylogd.broker.controller.controller import Controller
from pylogd.broker.groups import GroupCoordinator
from pylogd.broker.isolation.disk_meter import DiskMeter, DiskSampler
from pylogd.broker.isolation.disks import Disks, make_disks
from pylogd.broker.isolation.laggards import LaggardThrottle
from pylogd.broker.listening import Listeners
from pylogd.broker.log.compaction.cleaners import Cleaners
from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.log.files import FileSlice, FileSystem, most_cached_files, most_partitions
from pylogd.broker.log.log_directory import machine_boot_id
from pylogd.broker.log.manager import LogManager
from pylogd.broker.metadata.image import Broker as BrokerInfo
from pylogd.broker.metadata.service import Metadata, open_store
from pylogd.broker.net.page_cache import read_ahead
from pylogd.broker.net.request_handler import RequestHandler
from pylogd.broker.net.sender import Slice
from pylogd.broker.net.work_meter import WorkMeter
from pylogd.broker.quotas.clients import ClientQuotas
from pylogd.broker.replica.admission import admit
from pylogd.broker.replica.busy_disk_write_back import BusyDiskWriteBack
from pylogd.broker.replica.configs import cleaner_config, log_config
from pylogd.broker.replica.disk_calls import DiskCalls
from pylogd.broker.replica.outages import OutageReporter
from pylogd.broker.replica.replication import Replication
from pylogd.broker.replica.selector import RackAwareSelector
from pylogd.broker.replica.service import Replicas
from pylogd.broker.replica.sizes import follow_settings
from pylogd.broker.replica.smooth_expansion import SmoothJoins
from pylogd.broker.security.acl_store import AclStore
from pylogd.broker.security.audit import make_audit_log
from pylogd.broker.security.delegation_tokens import make_tokens
from pylogd.broker.security.peers import SOFTWARE_NAME, BrokerSecret, Peers
from pylogd.broker.security.plugins import make_authorizer, make_principal_builder, warn_unless_brokers_may_follow
from pylogd.broker.security.rules import AclAuthorizer
from pylogd.broker.security.scram_users import StoredUsers
from pylogd.broker.telemetry.service import Telemetry
from pylogd.broker.transactions.service import Transactions
from pylogd.config import Listener, Settings
from pylogd.config.metadata_store import has_peers
from pylogd.link.client import BrokerConnection, connect
from pylogd.store.consumers import committed_offsets
from pylogd.store.errors import NodeIdInUse, StoreError

log = Logger()

#: The number of threads that check credentials. They are separate, so that logins do not delay the disks.
_LOGIN_THREADS = 4
#: The seconds that a controller may take to handle a new broker, in addition to the time to notice a dead broker.
_ACCEPT_SECONDS = 10


class Broker:
    """The parts of one broker. `BrokerParts` in `pylogd.broker.api.context` says which of them handlers use.

    fs: the file system of the logs; by default the operating system's.
    open_files: the most files that the process may have open.
    """

    _starting: Deferred[None] | None = None
    _stopping: Deferred[None] | None = None
    _leaving: Deferred[None] | None = None  # pending while other brokers take over leaderships
    _may_hand_over = True

    def __init__(
        self, settings: Settings, reactor: Any, fs: FileSystem | None = None, open_files: int = sys.maxsize
    ) -> None:
        self.settings = settings
        self.node_id = settings.integer("node.id")
        self.clock = self._reactor = reactor
        self._pool = ThreadPool(reactor, settings.integer("background.threads"), "pylogd")
        self.disks = make_disks(settings, reactor, self._directory_hangs)
        self.logs = self._make_logs(fs, open_files)
        self.disk_use = DiskSampler(DiskMeter(), lambda: self.logs.healthy, reactor, self.in_thread)
        self.laggards = LaggardThrottle(settings, self.disk_use, reactor)
        self.on_end: Callable[[str], object] = log.critical  # told why the broker can't go on; its owner stops it then
        self.metadata = Metadata(settings, open_store(settings, reactor), reactor)
        self.cluster, self.features = self.metadata.cluster, self.metadata.features
        self.cluster.on_ousted = self._ousted
        self.topics, self.topic_admin = self.metadata.topics, self.metadata.topic_admin
        self.broker_configs, self.group_configs = self.metadata.broker_configs, self.metadata.group_configs
        self.client_metrics, self.entity_configs = self.metadata.client_metrics, self.metadata.entity_configs
        self.telemetry = Telemetry(self.client_metrics, settings, reactor.seconds, self.in_thread)
        self._make_authorization(settings)
        self.client_quotas = ClientQuotas(self.entity_configs, settings, reactor.seconds)
        self._make_replicas()
        self._check_pool = ThreadPool(reactor, 1, "pylogd-check")  # Python's queue wakes two threads if more wait
        checks, check_ms = DiskCalls(self._check_pool.defer, self.disks), settings.integer("log.dir.check.interval.ms")
        report = self.cluster.report_outages
        self.outages = OutageReporter(self.partitions, self.logs, report, reactor, checks, check_ms / 1000)
        self.replication = Replication(
            self.replicas, self.partitions, self.replica_throttle, self.connect, settings, reactor, self.node_id,
            lambda: self.cluster.epoch,
        )  # fmt: skip
        self.controller = Controller(self.metadata.store, self.cluster, self.topics, settings, reactor, wall_ms)
        self.groups = GroupCoordinator(self.replica_parts, self.metadata, settings, reactor, wall_ms, self.in_thread)
        self._transactions = Transactions(
            self.replica_parts, self.metadata, settings, reactor, wall_ms, self.connect, partial(ask_self, self)
        )
        self.transactions, self.verifier = self._transactions.coordinator, self._transactions.verifier
        self.partition_admin = PartitionAdmin(self.cluster, self.topics, self.topic_admin.room_on, wall_ms)
        self.smooth_joins = SmoothJoins(
            self.partitions, self.cluster, self.topics, self.connect, partial(committed_offsets, self.metadata.store),
            self.partition_admin.release, reactor, wall_ms,
        )  # fmt: skip
        self.cleaners = Cleaners(self.logs, cleaner_config(settings), self.replica_parts.disk_calls.parts, wall_ms)
        self._make_listeners()
        self._undo: list[Callable[[], Any]] = []  # what a stop has to undo, in the order of the start

    def _make_replicas(self) -> None:
        parts = self.replica_parts = Replicas(
            self.logs, self.topics, self.metadata.isr_writer.alter, self.settings, self.clock, self.node_id,
            self.in_thread, now_ms=wall_ms, disks=self.disks,
        )  # fmt: skip
        self.partitions, self.hosting, self.replicas = parts.partitions, parts.hosting, parts.manager
        self.fetch_waits, self.fetch_sessions = parts.fetch_waits, parts.fetch_sessions
        self.isr_updater, self.replica_throttle = parts.isr_updater, parts.throttle
        if self.block_cache is None:  # the block cache hands over written bytes itself
            BusyDiskWriteBack(self.laggards, self.logs, parts.disk_calls, self._reactor).start()
        by_rack = self.settings.text("replica.selector.class") is not None
        self.replica_selector = RackAwareSelector(lambda: self.cluster.brokers) if by_rack else None

    def _make_authorization(self, settings: Settings) -> None:
        self.authorizer = make_authorizer(settings)
        self.acls: AclStore | None = None
        if isinstance(self.authorizer, AclAuthorizer):
            self.acls = AclStore(self.metadata.store, self.metadata.feed, self.authorizer)
        self.audit = make_audit_log(settings, wall_ms, self._reactor.seconds)

    def _make_listeners(self) -> None:
        self.dispatchers: list[Dispatcher] = []
        self.expressions = Matches(self.in_thread, self.topics.names)
        self.topics.subscribe(lambda change: self.expressions.changed() if change.of_names else None)
        self._login_pool = ThreadPool(self._reactor, _LOGIN_THREADS, "pylogd-sasl")
        self._logins = FairWork(self._login_pool.defer, _LOGIN_THREADS)
        self.delegation_tokens = make_tokens(self.settings, self.metadata.delegation_tokens, wall_ms)
        self.scram_users = StoredUsers(self.metadata.entity_configs, self.delegation_tokens.find)
        self.listening = Listeners(
            self.settings, self._reactor, self._make_handler, self._read_ahead, self.in_thread,
            partial(make_principal_builder, self.settings),
        )  # fmt: skip
        self.listening.connections.admit_address = self.client_quotas.admit_connection
        self.client_quotas.subscribe(self._quotas_changed)

    def _quotas_changed(self, _active: bool) -> None:
        """Measure the work for connections only while a quota limits it."""
        quotas = self.client_quotas
        meter = WorkMeter(quotas.seconds, lambda: quotas.handled, partial(charge_connection, self))
        self.listening.measure_work(meter if quotas.times_requests else None)

    def _make_logs(self, fs: FileSystem | None, open_files: int) -> LogManager:
        integer = self.settings.integer
        failed = lambda failure: self.logs.storage_failed(failure)  # noqa: E731, PLW0108 - the logs are made below
        cache = self.block_cache = make_block_cache(self.settings, self._reactor, failed)
        logs = LogManager(
            self.settings.words("log.dirs"), config=log_config(self.settings, {}), fs=fs, now_ms=wall_ms,
            node_id=self.node_id, recovery_threads=integer("num.recovery.threads.per.data.dir"),
            checkpoint_ms=integer("log.flush.offset.checkpoint.interval.ms"), boot_id=machine_boot_id(),
            partition_limit=most_partitions(open_files), cordoned=lambda: self.settings.cordoned_directories,
            cache=None if cache is None else cache.cache, cached_files=most_cached_files(open_files),
            staged_appends=self.disks is not None,
        )  # fmt: skip
        if self.disks is not None and self.disks.adaptive:
            logs.storage.appended = self.disks.wrote
        logs.on_directory_failed = lambda path, keys: self._reactor.callFromThread(self._directory_failed, path, keys)
        logs.on_directory_full = lambda: self._reactor.callFromThread(self.outages.changed)
        return logs

    @cached_property
    def peers(self) -> Peers:
        """The brokers of the cluster, and how they prove their identity."""
        return Peers(lambda: self.cluster.known)

    @cached_property
    def _secret(self) -> BrokerSecret:
        return BrokerSecret()

    @property
    def cluster_id(self) -> str:
        """The cluster's id, 22 characters."""
        return self.cluster.cluster_id

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The bound listeners; empty before the start."""
        return self.listening.bound

    def advertised(self, listener: str) -> tuple[str, int]:
        """The (host, port) that a client of `listener` should connect to."""
        return self.listening.advertised(listener)

    def read_certificates(self) -> None:
        """Read the certificate files of all listeners again if they have changed; new connections use them."""
        self.listening.read_certificates()

    def in_thread(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """Run `function` in one of the broker's threads. Return a Deferred of its result."""
        return self._pool.defer(timed(function), *args)

    async def _make_handler(self, listener: Listener) -> RequestHandler:
        """Return the handler of a listener's requests."""
        dispatcher = Dispatcher(self) if self.audit is None else AuditingDispatcher(self, self.audit)
        self.dispatchers.append(dispatcher)
        if not listener.protocol.sasl:
            return dispatcher
        from pylogd.broker.api.authentication_gate import guarded  # noqa: PLC0415 - imports all mechanisms of SASL

        values = self.settings.for_listener(listener.name)
        return await guarded(dispatcher, values, self.scram_users, self._reactor, self._logins, wall_ms)

    # -- start

    def start(self) -> Deferred[None]:
        """Start. The Deferred fires once the broker listens on `listeners`. If it can't, all is undone and it fails."""
        self._starting = Deferred.fromCoroutine(self._start())
        return self._starting

    async def _start(self) -> None:
        try:
            await self._start_parts()
        except BaseException:
            await self._undo_all()
            raise

    async def _start_parts(self) -> None:
        self._undo.append(self._stop_pool)
        codecs = self.in_thread(build_opening_codecs)
        if self.audit is not None:
            await self.in_thread(self.audit.start)
            self._undo.append(partial(self.in_thread, self.audit.stop))
        await self.in_thread(self.logs.load, self._loaded)
        self._undo.append(lambda: self.in_thread(self.logs.close))
        if self.block_cache is not None:
            self.block_cache.start()
            self._undo.append(self._stop_block_cache)
        if self.disks is not None:
            self._start_disks(self.disks)
        await self.metadata.start()
        self._undo.append(self.metadata.stop)
        await self.scram_users.start(self.metadata.store)
        self.delegation_tokens.start(self._reactor)
        self._undo.append(partial(_call, self.delegation_tokens.stop))
        await self.in_thread(self.logs.adopt_cluster_id, self.cluster_id)
        self._undo.append(self._drain)
        self._undo.append(self.listening.stop)
        await self.listening.bind()
        self.broker_configs.check = self.listening.check
        self.listening.on_moved = self._moved
        ours = self.listening.principal_between_brokers() if has_peers(self.settings) else None
        if ours is not None:
            warn_unless_brokers_may_follow(self.authorizer, ours, "127.0.0.1")
        await self._register()
        self._start_coordinators()
        await self.replica_parts.start()
        self._follow_settings()
        self.laggards.start()
        self._undo.append(partial(_call, self.laggards.stop))
        self.outages.start()
        self._undo.append(self.outages.stop)
        self.cleaners.start()
        self._undo.append(lambda: self.in_thread(self.cleaners.stop))
        self.replication.start(self.cluster_id)
        self._undo.append(self.replication.stop)
        self.smooth_joins.start()
        self._undo.append(partial(_call, self.smooth_joins.stop))
        self._undo.append(self._hand_over)
        await codecs
        self.listening.accept()
        self.in_thread(build_following_codecs)

    def _start_coordinators(self) -> None:
        self.groups.start()
        self._transactions.start()

    def connect(self, node_id: int) -> Deferred[BrokerConnection]:
        """Return a connection to another broker, by its listener for brokers."""
        found = self.cluster.brokers.get(node_id)
        if found is None:
            return fail(BrokerUnavailable(f"broker {node_id} is not registered"))
        name = self.settings.inter_broker_listener.name
        endpoint = found.endpoint(name)
        if endpoint is None:
            return fail(BrokerUnavailable(f"broker {node_id} has no listener {name} (inter.broker.listener.name)"))
        return connect(
            self._reactor, endpoint.host, endpoint.port, client_id=f"pylogd-broker-{self.node_id}",
            timeout=self.settings.integer("replica.socket.timeout.ms") / 1000,
            software=(SOFTWARE_NAME, self._secret.software_version(__version__, self.node_id)),
            security=self.listening.between_brokers,
        )  # fmt: skip

    async def _register(self) -> None:
        """Register this broker, and wait until the controller (perhaps this broker) has handled the registration."""
        broker = BrokerInfo(
            self.node_id, self.listening.endpoints, self.settings.text("broker.rack"),
            directory_id=self.logs.directory_id, partition_limit=self.logs.partition_limit,
            proof=self._secret.digest, outages=self.outages.at_registration(),
            labels=self.settings.words("broker.labels"), host_id=self.settings.text("host.id"),
        )  # fmt: skip
        self.metadata.live_by(self.controller.is_stuck, None if self.disks is None else self.disks.stand_still)
        await admit(self.cluster, self.topics, self.logs, broker, self.in_thread)
        self._undo.append(self.controller.stop)
        await self.controller.start()
        seconds = 2 * self.settings.integer("zookeeper.session.timeout.ms") / 1000 + _ACCEPT_SECONDS
        try:
            await self.cluster.until_accepted().addTimeout(seconds, self._reactor)
        except TimeoutError:
            log.warn("The controller has not admitted this broker for {seconds:.0f} s: starting without it",
                     seconds=seconds)  # fmt: skip

    def _loaded(self, done: int, total: int) -> None:  # this is called in a thread
        self._reactor.callFromThread(log.info, "loaded {done} of {total} logs", done=done, total=total)

    def _directory_hangs(self, path: str, seconds: float) -> None:
        """Take a data directory offline, because a call has not returned for a number of seconds."""
        reason = f"a call has not returned for {seconds:.1f} s (log.dir.failure.timeout.ms)"
        failure = StorageFailure(path, OSError(errno.ETIMEDOUT, reason))

        def take_offline() -> None:  # in a thread, since threads that wait for the disk may hold locks
            self.logs.storage_failed(failure)
            self._reactor.callFromThread(self._give_up, path)  # the directory may have been offline before

        Thread(target=take_offline, name="pylogd-hang", daemon=True).start()

    def _give_up(self, path: str) -> None:
        """Fail all requests that wait for the disk of an offline data directory."""
        if self.disks is not None:
            stuck = self.disks.failed(path, StorageFailure(path, OSError(errno.EIO, "the data directory is offline")))
            if stuck:
                log.error(
                    "{stuck} threads are stuck in calls to {path}, until its disk answers", stuck=stuck, path=path
                )

    def _directory_failed(self, path: str, keys: list[tuple[str, int]]) -> None:
        self._give_up(path)
        self.hosting.went_offline(keys)
        self.outages.changed()  # even without partitions, since all other directories may be cordoned
        if not self.logs.healthy and self.logs.directories:
            self.on_end(f"the last data directory has failed: {self.logs.directories[-1].failure}")

    def _follow_settings(self) -> None:
        threads = (self._pool, self.disks, self.replica_parts)
        self._undo.append(partial(_call, follow_settings(self.settings, self.cleaners, self.logs, threads)))
        self._undo.append(partial(_call, self.settings.subscribe(self._settings_changed)))

    def _settings_changed(self, names: frozenset[str]) -> None:
        if "cordoned.log.dirs" in names:
            self.outages.changed()
        if "broker.labels" in names:
            self.cluster.set_labels(self.settings.words("broker.labels")).addErrback(_not_written)

    def _moved(self) -> None:  # the addresses of the listeners have changed
        self.cluster.set_labels(endpoints=self.listening.endpoints).addErrback(_not_written)

    def _ousted(self, error: NodeIdInUse) -> None:
        """Stop serving, since another broker has registered this node id, and leave its metadata alone."""
        Deferred.fromCoroutine(self.listening.stop())
        self.abort_connections()
        self.on_end(f"{error}; this broker stops")

    def _read_ahead(self, source: Slice, position: int, length: int) -> Deferred[Any]:
        path = source.file.path if isinstance(source, FileSlice) else None
        return self.replica_parts.disk_calls.at(path, read_ahead, source, position, length)

    # -- stop

    def stop(self) -> Deferred[None]:
        """Stop serving and close everything. A second call waits for the first. A start in progress is cancelled."""
        if self._stopping is None:
            self._stopping = Deferred.fromCoroutine(self._stop())
        return _when_done(self._stopping)

    async def _stop(self) -> None:
        if self._starting is not None and not self._starting.called:
            self.logs.cancel_load()
            self._starting.cancel()  # the cancelled start undoes its steps
            await _when_done(self._starting)
        await self._undo_all()

    async def _undo_all(self) -> None:
        while self._undo:
            undo = self._undo.pop()
            try:
                await undo()
            except Exception:
                log.failure("Unexpected error while stopping a part of the broker; the stop continues")

    async def _hand_over(self) -> None:
        """Hand over this broker's leaderships to other brokers, if there are any, within the configured time."""
        others = [broker for node, broker in self.cluster.brokers.items() if node != self.node_id]
        wanted = self._may_hand_over and self.settings.flag("controlled.shutdown.enable")
        if not wanted or all(broker.stopping for broker in others):
            return
        integer = self.settings.integer
        seconds = integer("controlled.shutdown.max.retries") * integer("controlled.shutdown.retry.backoff.ms") / 1000
        self._leaving = self.controller.stop_leading().addTimeout(seconds, self._reactor)
        try:
            await self._leaving
        except (TimeoutError, CancelledError, StoreError) as error:
            log.warn("Stopping before all leaderships were handed over to other brokers: {error!r}", error=error)

    async def _drain(self) -> None:
        """End waiting requests, let replies leave, and close the remaining connections when the time is over."""
        self.groups.stop()
        self._transactions.stop()
        await self.replica_parts.stop()
        await self.listening.drain(self.settings.integer("controlled.shutdown.drain.ms") / 1000)

    def abort_connections(self) -> None:
        """Close every connection at once, without sending outstanding replies, and stop handing over leaderships."""
        self._may_hand_over = False
        if self._leaving is not None:
            self._leaving.cancel()
        self.listening.abort()

    async def _stop_block_cache(self) -> None:
        assert self.block_cache is not None
        self.block_cache.stop_reports()
        await self.in_thread(self.block_cache.stop_threads)

    def _start_disks(self, disks: Disks) -> None:
        disks.other_calls = self.cleaners.working_at
        disks.start()
        unsubscribe = self.disk_use.subscribe(disks.observe) if disks.adaptive else (lambda: None)

        async def stop() -> None:
            unsubscribe()
            disks.stop()

        self._undo.append(stop)

    async def _stop_pool(self) -> None:
        for pool in (self._pool, self._check_pool, self._login_pool):
            pool.stop()


async def _call(function: Callable[[], object]) -> None:
    function()


def _not_written(failure: Failure) -> None:
    failure.trap(StoreError)
    log.warn("Could not register this broker's new labels (broker.labels) or addresses (listeners); it is retried when "
             "the connection to the metadata store is restored: {error}", error=failure.getErrorMessage())  # fmt: skip


def _when_done(deferred: Deferred[None]) -> Deferred[None]:
    """Return a Deferred that fires with None when `deferred` has fired or failed. `deferred` keeps its result."""
    done: Deferred[None] = Deferred()

    def told(result: Any) -> Any:
        done.callback(None)
        return result

    deferred.addBoth(told)
    return done
