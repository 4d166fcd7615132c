"""One broker: its parts, wired, started and stopped in order.

Start: lock the directories and load the logs (in threads), open the metadata store, bind the listeners, register, wait
until the controller has taken that into account, host the partitions, and only then accept connections: a broker that
came back must not lead on what it led before it died, as if nothing had happened. Stop: hand over what others can lead,
listen no more, end the waits, let the replies leave for at most `controlled.shutdown.drain.ms`, then close the store,
which ends the registration, and the logs, which marks the stop as clean.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, TimeoutError, fail, maybeDeferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.threadpool import ThreadPool

from pylogd.api.dispatch import Dispatcher
from pylogd.clock import wall_ms
from pylogd.config import Listener, Settings
from pylogd.controller.admin import PartitionAdmin
from pylogd.controller.controller import Controller
from pylogd.errors import BrokerUnavailable
from pylogd.groups import GroupCoordinator
from pylogd.log.compaction.cleaner import Cleaner
from pylogd.log.files import FileSystem, most_partitions
from pylogd.log.log_directory import machine_boot_id
from pylogd.log.manager import LogManager
from pylogd.metadata.consumers import committed_offsets
from pylogd.metadata.errors import NodeIdInUse, StoreError
from pylogd.metadata.image import Broker as BrokerInfo
from pylogd.metadata.image import Endpoint
from pylogd.metadata.service import Metadata, open_store
from pylogd.net.client import BrokerConnection, connect
from pylogd.net.page_cache import read_into_page_cache
from pylogd.net.sender import Slice
from pylogd.net.server import BrokerFactory, ServerLimits
from pylogd.quotas.clients import ClientQuotas
from pylogd.replica.admission import admit
from pylogd.replica.configs import cleaner_config, log_config
from pylogd.replica.outages import OutageReporter
from pylogd.replica.replication import Replication
from pylogd.replica.selector import RackAwareSelector
from pylogd.replica.service import Replicas
from pylogd.replica.smooth import SmoothJoins
from pylogd.security.authorizer import Authorizer

log = Logger()

#: How long a controller may take to deal with a broker that comes, beyond the time in which a dead one is found out.
_ACCEPT_SECONDS = 10


class Broker:
    """The parts of one broker. `BrokerParts` in `pylogd.api.context` says which of them handlers use.

    `fs` is the file system of the logs, by default the operating system's. `open_files` is how many files the process
    may have open; it limits how many partitions the broker takes.
    """

    _starting: Deferred[None] | None = None
    _stopping: Deferred[None] | None = None
    _leaving: Deferred[None] | None = None  # while other brokers take over what this one leads
    _may_hand_over = True
    authorizer: Authorizer | None = None

    def __init__(
        self, settings: Settings, reactor: Any, fs: FileSystem | None = None, open_files: int = sys.maxsize
    ) -> None:
        self.settings = settings
        self.clock = reactor
        self.node_id = settings.integer("node.id")
        self._reactor = reactor
        self._pool = ThreadPool(0, settings.integer("background.threads"), "pylogd")
        self.logs = self._make_logs(fs, most_partitions(open_files))
        self.on_end: Callable[[str], object] = log.critical  # told why the broker can't go on; its owner stops it then
        self.metadata = Metadata(settings, open_store(settings, reactor), reactor)
        self.cluster = self.metadata.cluster
        self.cluster.on_ousted = self._ousted
        self.topics = self.metadata.topics
        self.topic_admin = self.metadata.topic_admin
        self.broker_configs = self.metadata.broker_configs
        self.entity_configs = self.metadata.entity_configs
        self.client_quotas = ClientQuotas(self.entity_configs, settings, reactor.seconds)
        self._make_replicas()
        self.outages = OutageReporter(
            self.partitions, self.logs, self.cluster.report_outages, reactor, self.in_thread,
            settings.integer("log.dir.check.interval.ms") / 1000,
        )  # fmt: skip
        self.replication = Replication(
            self.replicas, self.partitions, self.replica_throttle, self._connect, settings, reactor, self.node_id,
            lambda: self.cluster.epoch,
        )  # fmt: skip
        self.controller = Controller(self.metadata.store, self.cluster, self.topics, settings, reactor, wall_ms)
        self.groups = GroupCoordinator(
            self.replica_parts, self.topics, self.topic_admin, self.cluster, settings, reactor, wall_ms
        )
        self.partition_admin = PartitionAdmin(self.cluster, self.topics, self.topic_admin.room_on, wall_ms)
        self.smooth_joins = SmoothJoins(
            self.partitions, self.cluster, self.topics, self._connect, partial(committed_offsets, self.metadata.store),
            self.partition_admin.release, reactor, wall_ms,
        )  # fmt: skip
        self.cleaner = Cleaner(self.logs, cleaner_config(settings), now_ms=wall_ms)
        self._listen_nowhere()
        self._undo: list[Callable[[], Any]] = []  # what has to be undone at a stop, in order of its doing

    def _make_replicas(self) -> None:
        parts = self.replica_parts = Replicas(
            self.logs, self.topics, self.metadata.isr_writer.alter, self.settings, self.clock, self.node_id,
            self.in_thread, now_ms=wall_ms,
        )  # fmt: skip
        self.partitions, self.hosting, self.replicas = parts.partitions, parts.hosting, parts.manager
        self.fetch_waits, self.fetch_sessions = parts.fetch_waits, parts.fetch_sessions
        self.isr_updater, self.replica_throttle = parts.isr_updater, parts.throttle
        by_rack = self.settings.text("replica.selector.class") is not None
        self.replica_selector = RackAwareSelector(lambda: self.cluster.brokers) if by_rack else None

    def _listen_nowhere(self) -> None:
        self.listeners: tuple[Listener, ...] = ()  # as they were bound
        self._advertised: dict[str, tuple[str, int]] = {}
        self._ports: list[Any] = []
        self._factories: list[BrokerFactory] = []

    def _make_logs(self, fs: FileSystem | None, partition_limit: int) -> LogManager:
        integer = self.settings.integer
        logs = LogManager(
            self.settings.words("log.dirs"), config=log_config(self.settings, {}), fs=fs, now_ms=wall_ms,
            node_id=self.node_id, recovery_threads=integer("num.recovery.threads.per.data.dir"),
            checkpoint_ms=integer("log.flush.offset.checkpoint.interval.ms"), boot_id=machine_boot_id(),
            partition_limit=partition_limit,
        )  # fmt: skip
        logs.on_directory_failed = lambda _path, keys: self._reactor.callFromThread(self._directory_failed, keys)
        logs.on_directory_full = lambda: self._reactor.callFromThread(self._directory_full)
        return logs

    @property
    def cluster_id(self) -> str:
        """The cluster's id, 22 characters."""
        return self.cluster.cluster_id

    def advertised(self, listener: str) -> tuple[str, int]:
        """The (host, port) that a client of `listener` should connect to."""
        return self._advertised[listener]

    def in_thread(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """Run `function` in a thread of the broker's own; its result, or its failure."""
        deferred: Deferred[Any] = deferToThreadPool(self._reactor, self._pool, function, *args)
        return deferred

    # -- start

    def start(self) -> Deferred[None]:
        """Fires once the broker listens; `listeners` says where. Fails, with everything undone, if it can't."""
        self._starting = Deferred.fromCoroutine(self._start())
        return self._starting

    async def _start(self) -> None:
        try:
            await self._start_parts()
        except BaseException:
            await self._undo_all()
            raise

    async def _start_parts(self) -> None:
        self._pool.start()
        self._undo.append(self._stop_pool)
        await self.in_thread(self.logs.load, self._loaded)
        self._undo.append(lambda: self.in_thread(self.logs.close))
        await self.metadata.start()
        self._undo.append(self.metadata.stop)
        await self.in_thread(self.logs.adopt_cluster_id, self.cluster_id)
        self._undo.append(self._drain)
        self._undo.append(self._stop_listening)
        for listener in self.settings.listeners:
            await self._bind(listener)
        await self._register()
        self.groups.start()
        await self.replica_parts.start()
        self.outages.start()
        self._undo.append(self.outages.stop)
        self.cleaner.start()
        self._undo.append(lambda: self.in_thread(self.cleaner.stop))
        self.replication.start(self.cluster_id)
        self._undo.append(self.replication.stop)
        self.smooth_joins.start()
        self._undo.append(self._stop_smooth_joins)
        self._undo.append(self._hand_over)
        for port in self._ports:
            port.startReading()

    def _connect(self, node_id: int) -> Deferred[BrokerConnection]:
        """A connection to another broker, by the listener that clients of our first one use."""
        found = self.cluster.brokers.get(node_id)
        if found is None:
            return fail(BrokerUnavailable(f"broker {node_id} is not registered"))
        endpoint = found.endpoint(self.listeners[0].name) or found.endpoints[0]
        return connect(
            self._reactor, endpoint.host, endpoint.port, client_id=f"pylogd-broker-{self.node_id}",
            timeout=self.settings.integer("replica.socket.timeout.ms") / 1000,
        )  # fmt: skip

    async def _register(self) -> None:
        """Make this broker known, and wait until the controller, which it may become itself, has dealt with that."""
        endpoints = tuple(Endpoint(name, *address) for name, address in self._advertised.items())
        broker = BrokerInfo(
            self.node_id, endpoints, self.settings.text("broker.rack"), directory_id=self.logs.directory_id,
            partition_limit=self.logs.partition_limit,
        )  # fmt: skip
        await admit(self.cluster, self.topics, self.logs, broker, self.in_thread)
        self._undo.append(self.controller.stop)
        await self.controller.start()
        seconds = 2 * self.settings.integer("zookeeper.session.timeout.ms") / 1000 + _ACCEPT_SECONDS
        try:
            await self.cluster.until_accepted().addTimeout(seconds, self._reactor)
        except TimeoutError:
            log.warn("The controller has not admitted this broker for {seconds:.0f} s: starting without it",
                     seconds=seconds)  # fmt: skip

    def _loaded(self, done: int, total: int, name: str) -> None:
        if done == total or done % 100 == 0:  # called in a thread of the loader's
            self._reactor.callFromThread(log.info, "loaded {done} of {total} logs", done=done, total=total)

    async def _bind(self, listener: Listener) -> None:
        factory = BrokerFactory(self._reactor, Dispatcher(self), self._read_ahead, self._limits(), listener.name)
        factory.admit_address = self.client_quotas.admit_connection
        description = listener.endpoint
        if description.startswith("tcp") and "backlog=" not in description:
            description += f":backlog={self.settings.integer('socket.listen.backlog.size')}"
        port = await serverFromString(self._reactor, description).listen(factory)
        port.stopReading()  # connections wait in the backlog until the broker has started
        self._ports.append(port)
        self._factories.append(factory)
        number = getattr(port.getHost(), "port", listener.port)
        bound = Listener(listener.name, listener.host, number, listener.endpoint)
        self.listeners += (bound,)
        self._advertised[listener.name] = self._advertise(bound)

    def _advertise(self, bound: Listener) -> tuple[str, int]:
        for told in self.settings.advertised_listeners:
            if told.name == bound.name:
                return told.host, told.port or bound.port
        return socket.gethostname() if bound.wildcard else bound.host, bound.port

    def _limits(self) -> ServerLimits:
        integer = self.settings.integer
        return ServerLimits(
            max_request_bytes=integer("socket.request.max.bytes"),
            max_in_flight=integer("connection.max.inflight.requests"),
            max_unsent_bytes=integer("connection.max.queued.response.bytes"),
            max_sendfile_bytes=integer("sendfile.max.bytes"),
            max_idle_ms=integer("connections.max.idle.ms"),
            max_connections=integer("max.connections"),
            max_connections_per_host=integer("max.connections.per.ip"),
            send_buffer_bytes=integer("socket.send.buffer.bytes"),
            receive_buffer_bytes=integer("socket.receive.buffer.bytes"),
        )

    def _directory_failed(self, keys: list[tuple[str, int]]) -> None:
        self.hosting.went_offline(keys)
        if not self.logs.healthy and self.logs.directories:
            self.on_end(f"the last data directory has failed: {self.logs.directories[-1].failure}")

    def _directory_full(self) -> None:
        self.outages.changed()

    def _ousted(self, error: NodeIdInUse) -> None:
        """Another broker is the one of this number: serve nobody from now on, and touch nothing of its."""
        self._may_hand_over = False
        Deferred.fromCoroutine(self._stop_listening())
        self.abort_connections()
        self.on_end(f"{error}; this broker stops")

    def _read_ahead(self, source: Slice, position: int, length: int) -> Deferred[Any]:
        return self.in_thread(read_into_page_cache, source, position, length)

    # -- stop

    def stop(self) -> Deferred[None]:
        """Stop serving and close everything; a second call waits for the first. A start under way is cancelled."""
        if self._stopping is None:
            self._stopping = Deferred.fromCoroutine(self._stop())
        return _when_done(self._stopping)

    async def _stop(self) -> None:
        if self._starting is not None and not self._starting.called:
            self.logs.cancel_load()
            self._starting.cancel()  # which undoes what it had done
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
        """Have others lead what this broker leads, if there are others, in the time that the settings give."""
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

    async def _stop_listening(self) -> None:
        ports, self._ports = self._ports, []
        for port in ports:
            await maybeDeferred(port.stopListening)

    async def _drain(self) -> None:
        """End the waits, let the replies leave, and close the connections that are left when the time is up."""
        self.groups.stop()
        await self.replica_parts.stop()
        seconds = self.settings.integer("controlled.shutdown.drain.ms") / 1000
        for factory in self._factories:
            drained = factory.drain()
            abort = self._reactor.callLater(seconds, factory.abort)
            await drained
            if abort.active():
                abort.cancel()

    def abort_connections(self) -> None:
        """Close every connection at once, whatever is still owed on it; hand over no more."""
        if self._leaving is not None:
            self._leaving.cancel()
        for factory in self._factories:
            factory.abort()

    async def _stop_smooth_joins(self) -> None:
        self.smooth_joins.stop()

    async def _stop_pool(self) -> None:
        self._pool.stop()


def _when_done(deferred: Deferred[None]) -> Deferred[None]:
    """Fires with None when `deferred` has, however that ended; its result stays for whoever else looks at it."""
    done: Deferred[None] = Deferred()

    def told(result: Any) -> Any:
        done.callback(None)
        return result

    deferred.addBoth(told)
    return done
