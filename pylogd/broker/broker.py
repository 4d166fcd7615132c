"""One broker: connect its parts, start them and stop them in order.

Start: lock the directories and load the logs (in threads), open the metadata store, bind the listeners, register, wait
until the controller has handled the registration, host the partitions, and only then accept connections, because a
restarted broker must not go on leading its earlier partitions as if nothing had happened.

Stop: hand over leaderships that other brokers can take, stop listening, end waiting requests, let replies leave for at
most `controlled.shutdown.drain.ms`, then close the store, which ends the registration, and the logs, which marks the
stop as clean.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, TimeoutError, fail, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd import __version__
from pylogd.base.clock import timed, wall_ms
from pylogd.base.errors import BrokerUnavailable
from pylogd.base.limits.expressions import Matches
from pylogd.base.limits.shares import FairWork
from pylogd.base.threads import ThreadPool
from pylogd.broker.api.context import BrokerParts
from pylogd.broker.api.dispatch import AuditingDispatcher, Dispatcher, ask_self
from pylogd.broker.api.first_requests import build_following_codecs, build_opening_codecs
from pylogd.broker.api.metering import charge_connection
from pylogd.broker.controller.admin import PartitionAdmin
from pylogd.broker.controller.controller import Controller
from pylogd.broker.groups import GroupCoordinator
from pylogd.broker.listening import Listeners
from pylogd.broker.log.files import FileSlice, FileSystem
from pylogd.broker.metadata.image import Broker as BrokerInfo
from pylogd.broker.metadata.service import Metadata, open_store
from pylogd.broker.net.page_cache import read_ahead
from pylogd.broker.net.request_handler import RequestHandler
from pylogd.broker.net.sender import Slice
from pylogd.broker.net.work_meter import WorkMeter
from pylogd.broker.quotas.clients import ClientQuotas
from pylogd.broker.replica.admission import admit
from pylogd.broker.replica.configs import follow_settings
from pylogd.broker.replica.disk_calls import DiskCalls
from pylogd.broker.replica.outages import OutageReporter
from pylogd.broker.replica.replication import Replication
from pylogd.broker.replica.selector import RackAwareSelector
from pylogd.broker.replica.service import Replicas
from pylogd.broker.replica.smooth_expansion import SmoothJoins
from pylogd.broker.security.peers import SOFTWARE_NAME
from pylogd.broker.security.plugins import make_principal_builder, warn_unless_brokers_may_follow
from pylogd.broker.security.service import Security
from pylogd.broker.storage import Storage
from pylogd.broker.telemetry.service import Telemetry
from pylogd.broker.transactions.service import Transactions
from pylogd.config import Listener, Settings
from pylogd.config.metadata_store import has_peers
from pylogd.link.client import BrokerConnection, connect
from pylogd.store.consumers import committed_offsets
from pylogd.store.errors import NodeIdInUse, StoreError

log = Logger()

#: The number of threads that check credentials.
_LOGIN_THREADS = 4
#: The seconds that a controller may take to handle a new broker, in addition to the time to notice a dead broker.
_ACCEPT_SECONDS = 10


class _Threads:
    """The threads of a broker, besides those of disks and logs.

    general: for calls that may wait for a disk, or that take long.
    checks: for checks of data directories. Python's queue wakes two threads if more wait.
    logins: for checks of credentials. They are separate, so that logins do not delay the disks.
    """

    def __init__(self, reactor: Any, most: int) -> None:
        self.general = ThreadPool(reactor, most, "pylogd")
        self.checks = ThreadPool(reactor, 1, "pylogd-check")
        self.logins = ThreadPool(reactor, _LOGIN_THREADS, "pylogd-sasl")

    def run(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """Run `function` in a general thread. Return a Deferred of its result."""
        return self.general.defer(timed(function), *args)

    def stop(self) -> None:
        """End the threads when their work is done."""
        for pool in (self.general, self.checks, self.logins):
            pool.stop()


class Broker:
    """One broker.

    parts: what handlers use.
    storage: the data directories.
    metadata: topics, settings and brokers, as the metadata store has them.
    security: who clients are, and what they may do.
    outages: tells the cluster which replicas are offline.
    listening: the listeners.
    dispatchers: the dispatcher of each listener.
    on_end: called with the reason if the broker can't continue. Its owner stops it then.
    """

    _starting: Deferred[None] | None = None
    _stopping: Deferred[None] | None = None
    _leaving: Deferred[None] | None = None  # pending while other brokers take over leaderships
    _may_hand_over = True

    def __init__(
        self, settings: Settings, reactor: Any, fs: FileSystem | None = None, open_files: int = sys.maxsize
    ) -> None:
        """Make the parts.

        fs: the file system of the logs; None for the operating system's.
        open_files: the most files that the process may have open.
        """
        self.settings = settings
        self._reactor = reactor
        self._threads = _Threads(reactor, settings.integer("background.threads"))
        self.on_end: Callable[[str], object] = log.critical
        self.storage = Storage(settings, reactor, self.in_thread, fs, open_files)
        self.storage.on_directory_failed = self._directory_failed
        self.metadata = metadata = Metadata(settings, open_store(settings, reactor), reactor)
        metadata.cluster.on_ousted = self._ousted
        self.security = Security(settings, metadata, reactor, wall_ms)
        self.replica_parts = Replicas(
            self.storage.logs, metadata.topics, metadata.isr_writer.alter, settings, reactor, self.node_id,
            self.in_thread, now_ms=wall_ms, disks=self.storage.disks,
        )  # fmt: skip
        self.outages = self._make_outages()
        self.storage.on_directory_full = self.outages.changed
        self.replication = Replication(
            self.replica_parts.manager, self.replica_parts.partitions, self.replica_parts.throttle, self.connect,
            settings, reactor, self.node_id, lambda: metadata.cluster.epoch,
        )  # fmt: skip
        self.controller = Controller(metadata.store, metadata.cluster, metadata.topics, settings, reactor, wall_ms)
        self._transactions = Transactions(
            self.replica_parts, metadata, settings, reactor, wall_ms, self.connect,
            lambda message: ask_self(self.parts, message),
        )  # fmt: skip
        self.dispatchers: list[Dispatcher] = []
        logins = FairWork(self._threads.logins.defer, _LOGIN_THREADS)
        self.listening = Listeners(
            settings, reactor, partial(self._make_handler, logins), self._read_ahead, self.in_thread,
            partial(make_principal_builder, settings),
        )  # fmt: skip
        self.parts = self._make_parts()
        self._limit_clients()
        self._undo: list[Callable[[], Any]] = []  # what a stop has to undo, in the order of the start

    def _make_outages(self) -> OutageReporter:
        calls = DiskCalls(self._threads.checks.defer, self.storage.disks)
        return OutageReporter(
            self.replica_parts.partitions, self.storage.logs, self.metadata.cluster.own.report_outages, self._reactor,
            calls, self.settings.integer("log.dir.check.interval.ms") / 1000,
        )  # fmt: skip

    def _make_parts(self) -> BrokerParts:
        settings, metadata, replicas, reactor = self.settings, self.metadata, self.replica_parts, self._reactor
        cluster, topics = metadata.cluster, metadata.topics
        by_rack = settings.text("replica.selector.class") is not None
        partition_admin = PartitionAdmin(cluster, topics, metadata.topic_admin.room_on, wall_ms)
        expressions = Matches(self.in_thread, topics.names)
        topics.subscribe(lambda change: expressions.changed() if change.of_names else None)
        return BrokerParts(
            settings, reactor, metadata, topics, cluster, self.storage.logs, replicas.partitions, replicas.manager,
            replicas.hosting, replicas.fetch_waits, replicas.fetch_sessions,
            replica_selector=RackAwareSelector(lambda: cluster.brokers) if by_rack else None,
            replica_throttle=replicas.throttle,
            isr_updater=replicas.isr_updater,
            partition_admin=partition_admin,
            smooth_joins=SmoothJoins(
                replicas.partitions, cluster, topics, self.connect, partial(committed_offsets, metadata.store),
                partition_admin.release, reactor, wall_ms,
            ),
            groups=GroupCoordinator(replicas, metadata, settings, reactor, wall_ms, self.in_thread),
            expressions=expressions,
            transactions=self._transactions.coordinator,
            verifier=self._transactions.verifier,
            client_quotas=ClientQuotas(metadata.entity_configs, settings, reactor.seconds),
            laggards=self.storage.laggards,
            telemetry=Telemetry(metadata.client_metrics, settings, reactor.seconds, self.in_thread),
            security=self.security,
            authorizer=self.security.authorizer,
            in_thread=self.in_thread,
            advertised=self.listening.advertised,
        )  # fmt: skip

    def _limit_clients(self) -> None:
        """Apply quotas of clients to connections."""
        quotas = self.parts.client_quotas
        self.listening.connections.admit_address = quotas.admit_connection

        def quotas_changed(_active: bool) -> None:
            """Measure the work for connections only while a quota limits it."""
            meter = WorkMeter(quotas.seconds, lambda: quotas.handled, partial(charge_connection, self.parts))
            self.listening.measure_work(meter if quotas.times_requests else None)

        quotas.subscribe(quotas_changed)

    async def _make_handler(self, logins: FairWork, listener: Listener) -> RequestHandler:
        """Return the handler of a listener's requests. `logins` runs checks of credentials."""
        audit = self.security.audit
        dispatcher = Dispatcher(self.parts) if audit is None else AuditingDispatcher(self.parts, audit)
        self.dispatchers.append(dispatcher)
        if not listener.protocol.sasl:
            return dispatcher
        from pylogd.broker.api.authentication_gate import guarded  # noqa: PLC0415 - imports all mechanisms of SASL

        values = self.settings.for_listener(listener.name)
        return await guarded(dispatcher, values, self.security.scram_users, self._reactor, logins, wall_ms)

    @property
    def node_id(self) -> int:
        """The broker's node id."""
        return self.settings.integer("node.id")

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The bound listeners; empty before the start."""
        return self.listening.bound

    def read_certificates(self) -> None:
        """Read the certificate files of all listeners again if they have changed; new connections use them."""
        self.listening.read_certificates()

    def in_thread(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """Run `function` in one of the broker's threads. Return a Deferred of its result."""
        return self._threads.run(function, *args)

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
        storage, security, parts = self.storage, self.security, self.parts
        self._undo.append(self._threads.stop)
        codecs = self.in_thread(build_opening_codecs)
        if security.audit is not None:
            await self.in_thread(security.audit.start)
            self._undo.append(partial(self.in_thread, security.audit.stop))
        await storage.start()
        self._undo.append(storage.stop)
        await self.metadata.start()
        self._undo.append(self.metadata.stop)
        await security.start()
        self._undo.append(security.stop)
        await self.in_thread(storage.logs.adopt_cluster_id, self.metadata.cluster.cluster_id)
        self._undo.append(self._drain)
        self._undo.append(self.listening.stop)
        await self._bind()
        await self._register()
        parts.groups.start()
        self._transactions.start()
        await self.replica_parts.start()
        self._follow_settings()
        storage.laggards.start()
        self._undo.append(storage.laggards.stop)
        self.outages.start()
        self._undo.append(self.outages.stop)
        storage.cleaners.start()
        self._undo.append(partial(self.in_thread, storage.cleaners.stop))
        self.replication.start(self.metadata.cluster.cluster_id)
        self._undo.append(self.replication.stop)
        parts.smooth_joins.start()
        self._undo.append(parts.smooth_joins.stop)
        self._undo.append(self._hand_over)
        await codecs
        self.listening.accept()
        self.in_thread(build_following_codecs)

    async def _bind(self) -> None:
        await self.listening.bind()
        self.metadata.broker_configs.check = self.listening.check
        self.listening.on_moved = self._moved
        ours = self.listening.principal_between_brokers() if has_peers(self.settings) else None
        if ours is not None:
            warn_unless_brokers_may_follow(self.security.authorizer, ours, "127.0.0.1")

    def connect(self, node_id: int) -> Deferred[BrokerConnection]:
        """Return a connection to another broker, by its listener for brokers."""
        found = self.metadata.cluster.brokers.get(node_id)
        if found is None:
            return fail(BrokerUnavailable(f"broker {node_id} is not registered"))
        name = self.settings.inter_broker_listener.name
        endpoint = found.endpoint(name)
        if endpoint is None:
            return fail(BrokerUnavailable(f"broker {node_id} has no listener {name} (inter.broker.listener.name)"))
        return connect(
            self._reactor, endpoint.host, endpoint.port, client_id=f"pylogd-broker-{self.node_id}",
            timeout=self.settings.integer("replica.socket.timeout.ms") / 1000,
            software=(SOFTWARE_NAME, self.security.secret.software_version(__version__, self.node_id)),
            security=self.listening.between_brokers,
        )  # fmt: skip

    async def _register(self) -> None:
        """Register this broker, and wait until the controller (perhaps this broker) has handled the registration."""
        logs, disks, cluster = self.storage.logs, self.storage.disks, self.metadata.cluster
        broker = BrokerInfo(
            self.node_id, self.listening.endpoints, self.settings.text("broker.rack"),
            directory_id=logs.directory_id, partition_limit=logs.partition_limit,
            proof=self.security.secret.digest, outages=self.outages.at_registration(),
            labels=self.settings.words("broker.labels"), host_id=self.settings.text("host.id"),
        )  # fmt: skip
        self.metadata.live_by(self.controller.is_stuck, None if disks is None else disks.stand_still)
        await admit(cluster, self.metadata.topics, logs, broker, self.in_thread)
        self._undo.append(self.controller.stop)
        await self.controller.start()
        seconds = 2 * self.settings.integer("zookeeper.session.timeout.ms") / 1000 + _ACCEPT_SECONDS
        try:
            await cluster.until_accepted().addTimeout(seconds, self._reactor)
        except TimeoutError:
            log.warn("The controller has not admitted this broker for {seconds:.0f} s: starting without it",
                     seconds=seconds)  # fmt: skip

    def _directory_failed(self, keys: list[tuple[str, int]]) -> None:
        logs = self.storage.logs
        self.replica_parts.hosting.went_offline(keys)
        self.outages.changed()  # even without partitions, since all other directories may be cordoned
        if not logs.healthy and logs.directories:
            self.on_end(f"the last data directory has failed: {logs.directories[-1].failure}")

    def _follow_settings(self) -> None:
        resized = (self._threads.general, self.storage.disks, self.replica_parts)
        self._undo.append(follow_settings(self.settings, self.storage.cleaners, self.storage.logs, resized))
        self._undo.append(self.settings.subscribe(self._settings_changed))

    def _settings_changed(self, names: frozenset[str]) -> None:
        if "cordoned.log.dirs" in names:
            self.outages.changed()
        if "broker.labels" in names:
            self.metadata.cluster.own.set_labels(self.settings.words("broker.labels")).addErrback(_not_written)

    def _moved(self) -> None:  # the addresses of the listeners have changed
        self.metadata.cluster.own.set_labels(endpoints=self.listening.endpoints).addErrback(_not_written)

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
            self.storage.logs.cancel_load()
            self._starting.cancel()  # the cancelled start undoes its steps
            await _when_done(self._starting)
        await self._undo_all()

    async def _undo_all(self) -> None:
        while self._undo:
            undo = self._undo.pop()
            try:
                await maybeDeferred(undo)
            except Exception:
                log.failure("Unexpected error while stopping a part of the broker; the stop continues")

    async def _hand_over(self) -> None:
        """Hand over this broker's leaderships to other brokers, if there are any, within the configured time."""
        others = [broker for node, broker in self.metadata.cluster.brokers.items() if node != self.node_id]
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
        self.parts.groups.stop()
        self._transactions.stop()
        await self.replica_parts.stop()
        await self.listening.drain(self.settings.integer("controlled.shutdown.drain.ms") / 1000)

    def abort_connections(self) -> None:
        """Close every connection at once, without sending outstanding replies, and stop handing over leaderships."""
        self._may_hand_over = False
        if self._leaving is not None:
            self._leaving.cancel()
        self.listening.abort()


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
