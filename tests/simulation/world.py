"""Simulated time, network and brokers: real controllers, registries, replica managers, fetchers, handlers and logs.

All randomness comes from one seed, and everything that happens is an event in one queue, so that a seed determines the
history. Simulated are time, threads, the network between brokers (delays, cuts in one or both directions, lost
connections), ZooKeeper (`store`), the disk (a file system in memory) and processes (kills, pauses, losses of power).
Everything else is real.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

from twisted.internet.defer import Deferred, fail, maybeDeferred
from twisted.internet.error import AlreadyCalled, AlreadyCancelled
from twisted.internet.interfaces import IReactorTime

from pylogd.base.errors import BrokerUnavailable
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import REGISTRATIONS
from pylogd.broker.controller.admin import PartitionAdmin
from pylogd.broker.controller.controller import Controller
from pylogd.broker.log.manager import LogManager
from pylogd.broker.metadata.image import Broker, Endpoint
from pylogd.broker.metadata.service import Metadata
from pylogd.broker.quotas.clients import ClientQuotas
from pylogd.broker.replica.admission import admit
from pylogd.broker.replica.configs import log_config
from pylogd.broker.replica.replication import Replication
from pylogd.broker.replica.service import Replicas
from pylogd.broker.security.peers import SOFTWARE_NAME, BrokerSecret, Peers, read_claim
from pylogd.config import Settings
from pylogd.credentials.principal import ANONYMOUS
from tests.simulation.disks import SimFiles, change_pace, make_disks, tell_of_writes
from tests.simulation.store import SimStore, SimTree, slowly

_EPOCH_MS = 1_700_000_000_000
_FETCH = 1
FETCH_VERSION = 17


class Call:
    """An `IDelayedCall`."""

    __slots__ = ("_args", "_function", "_state", "_time", "clock")

    def __init__(self, clock: SimClock, time: float, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.clock, self._time, self._function, self._args = clock, time, function, args
        self._state = "active"

    def active(self) -> bool:
        return self._state == "active"

    def getTime(self) -> float:
        return self._time

    def cancel(self) -> None:
        if self._state == "called":
            raise AlreadyCalled
        if self._state == "cancelled":
            raise AlreadyCancelled
        self._state = "cancelled"

    def due(self) -> None:
        """Run the call, unless its process is paused."""
        if self._state == "active" and not self.clock.dead:
            if self.clock.paused:
                self.clock.held.append(self)
            else:
                self._state = "called"
                self._function(*self._args)


class SimTime:
    """The queue of all events."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: SimClock | None = None  # the clock of the last event
        self._queue: list[tuple[float, int, Call]] = []
        self._number = 0

    def add(self, call: Call) -> None:
        self._number += 1
        heapq.heappush(self._queue, (call.getTime(), self._number, call))

    def step(self) -> bool:
        """Run the next event. Return whether there was one."""
        if not self._queue:
            return False
        time, _, call = heapq.heappop(self._queue)
        self.now = max(self.now, time)
        self.ran = call.clock
        call.due()
        return True


class SimClock:
    """The clock of a process. None of its calls run while the process is paused or dead."""

    def __init__(self, time: SimTime) -> None:
        self._time = time
        self.paused = False
        self.dead = False
        self.held: list[Call] = []

    def seconds(self) -> float:
        return self._time.now

    def callLater(self, delay: float, function: Callable[..., Any], *args: Any) -> Call:
        call = Call(self, self._time.now + delay, function, args)
        self._time.add(call)
        return call

    def resume(self) -> None:
        """Resume the process. Calls that became due meanwhile are due now."""
        self.paused = False
        held, self.held = self.held, []
        for call in held:
            self._time.add(call)


class Network:
    """The links between processes. A message on a cut link waits, as with TCP, until the link or connection changes."""

    def __init__(self, time: SimTime, rng: Random) -> None:
        self.clock = SimClock(time)
        self.delay = slowly(rng, 0.0005, 0.05)
        self._cut: set[tuple[int, int]] = set()
        self._stuck: list[tuple[int, int, Callable[[], None]]] = []

    def cut(self, source: int, target: int) -> None:
        """Cut the direction from `source` to `target`."""
        self._cut.add((source, target))

    def heal(self) -> None:
        """Restore every link, and deliver waiting messages."""
        self._cut.clear()
        stuck, self._stuck = self._stuck, []
        for source, target, deliver in stuck:
            self.send(source, target, deliver)

    def send(self, source: int, target: int, deliver: Callable[[], None]) -> None:
        def arrive() -> None:
            if (source, target) in self._cut:
                self._stuck.append((source, target, deliver))
            else:
                deliver()

        self.clock.callLater(self.delay(), arrive)


class SimConnection:
    """A connection from a process to a broker. Requests and responses arrive in order."""

    host, port, listener = "sim", 0, "PLAINTEXT"
    principal = ANONYMOUS
    authentication: Any = None
    software = ("", "")

    def __init__(self, world: Any, clock: SimClock, source: SimBroker, target: SimBroker) -> None:
        self._world = world
        self._clock = clock
        self._source = source.node_id
        self._target = target
        self._boot = target.boots
        self._out: list[tuple[Any, int, Deferred[Any]]] = []
        self._replies: dict[int, Any] = {}
        self._sent = self._handled = self._answered = 0
        self._arrived: dict[int, Any] = {}
        self._waiting: dict[int, Deferred[Any]] = {}
        self.claim = source.claim
        self.on_lost: Callable[[], object] | None = None
        self.closed = False
        target.connections.append(self)

    def _forget(self, number: int) -> None:
        self._waiting.pop(number, None)

    def request(self, message: Any, *, timeout: float | None = None) -> Deferred[Any]:
        if self.closed:
            return fail(BrokerUnavailable("the connection is closed"))
        number = self._sent
        self._sent += 1
        done: Deferred[Any] = Deferred(lambda _: self._forget(number))
        self._waiting[number] = done
        self._world.network.send(self._source, self._target.node_id, lambda: self._arrive(number, message))
        if timeout is not None:
            self._clock.callLater(timeout, self._late, number)
        return done

    def _late(self, number: int) -> None:
        if number in self._waiting:
            self.lost()

    def _arrive(self, number: int, message: Any) -> None:
        self._arrived[number] = message
        while self._handled in self._arrived:
            message, handled = self._arrived.pop(self._handled), self._handled
            self._handled += 1
            self._target.run(self._boot, self._handle, handled, message)

    def _handle(self, number: int, message: Any) -> None:
        if self.closed:
            return
        highest = FETCH_VERSION if message.API_KEY == _FETCH else REGISTRATIONS[message.API_KEY].last
        context = RequestContext(cast(Any, self._target), self, highest, "sim")
        maybeDeferred(REGISTRATIONS[message.API_KEY].handler, context, message).addCallbacks(
            lambda response: self._reply(number, response), self._world.fault
        )

    def _reply(self, number: int, response: Any) -> None:
        _freeze(response)
        self._world.network.send(self._target.node_id, self._source, lambda: self._return(number, response))

    def _return(self, number: int, response: Any) -> None:
        self._replies[number] = response
        while self._answered in self._replies:
            done = self._waiting.pop(self._answered, None)
            answer = self._replies.pop(self._answered)
            self._answered += 1
            if done is not None and not self.closed:
                self._clock.callLater(0, done.callback, answer)

    def mute(self, seconds: float) -> None:
        """Do what quotas ask for; there are none."""
        raise NotImplementedError

    def finish(self) -> None:
        """Do what authentication asks for; there is none."""
        raise NotImplementedError

    def lift_element_bounds(self) -> None:
        """Do nothing: requests come as objects, which nothing bounds."""

    def receive_tokens(self, step: Callable[[bytes], Any]) -> None:
        """Do what authentication asks for; there is none."""
        raise NotImplementedError

    def lost(self) -> None:
        """Break the connection."""
        if not self.closed:
            self.closed = True
            if self.on_lost is not None:
                self._target.run(self._boot, self.on_lost)
            waiting, self._waiting = self._waiting, {}
            for done in waiting.values():
                self._clock.callLater(0, done.errback, BrokerUnavailable("the connection is lost"))

    def close(self) -> None:
        self.lost()


def _freeze(response: Any) -> None:
    """Copy the file slices of a response, since the log may change before it arrives."""
    for topic in getattr(response, "responses", ()):
        for data in getattr(topic, "partitions", ()):
            if data.records is not None and not isinstance(data.records, (bytes, memoryview)):
                data.records = data.records.read()


class SimBroker:
    """A broker. Its disk is permanent; everything else is created at each `start`. It is also the handlers' broker."""

    host = "sim"
    listener = "PLAINTEXT"
    replica_selector = None
    principal = ANONYMOUS
    authorizer = None
    on_lost: Callable[[], object] | None = None  # of clients, which share a connection that lasts
    transactions: Any  # what some histories add, as the next one
    verifier: Any

    def __init__(self, world: Any, node_id: int, settings: dict[str, Any]) -> None:
        self.world = world
        self.node_id = node_id
        self.fs = SimFiles()
        self.settings = Settings({"node.id": node_id, "log.dirs": "/data", **settings})
        self.boots = self.machine_boots = 0
        self.alive = self.ready = False
        self.connections: list[SimConnection] = []
        self._starts = settings

    def advertised(self, _: str) -> tuple[str, int]:
        return "sim", self.node_id

    def start(self) -> None:
        """Start the process."""
        world = self.world
        self.alive = True
        self.boots += 1
        self.settings = Settings({"node.id": self.node_id, "log.dirs": "/data", **self._starts})
        self.time = SimClock(world.time)
        world.running[self.time] = self
        self.clock = cast(IReactorTime, self.time)
        self.store = SimStore(
            world.tree, self.clock, cast(IReactorTime, world.clock), world.store_delay, world.session_timeout
        )
        self.metadata = Metadata(self.settings, cast(Any, self.store), self.clock)
        self.cluster = self.metadata.cluster
        self._identify()
        self.topics = self.metadata.topics
        self.client_quotas = ClientQuotas(self.metadata.entity_configs, self.settings, self.clock.seconds)
        self.disks = make_disks(self)
        self.logs = LogManager(
            ["/data"], config=log_config(self.settings, {}), fs=self.fs, now_ms=self.now_ms, seconds=self.clock.seconds,
            node_id=self.node_id, recovery_threads=1, boot_id=f"{self.node_id}-{self.machine_boots}",
            staged_appends=self.disks is not None,
        )  # fmt: skip
        change_pace(self)
        self.topic_admin = self.metadata.topic_admin
        self.replica_parts = Replicas(
            self.logs, self.topics, self.metadata.isr_writer.alter, self.settings, self.clock, self.node_id,
            self.in_thread, now_ms=self.now_ms, disks=self.disks,
        )  # fmt: skip
        self.replicas = self.replica_parts.manager
        self.hosting = self.replica_parts.hosting
        self.partitions = self.replica_parts.partitions
        self.fetch_waits, self.fetch_sessions = self.replica_parts.fetch_waits, self.replica_parts.fetch_sessions
        self.isr_updater, self.replica_throttle = self.replica_parts.isr_updater, self.replica_parts.throttle
        self.replication = Replication(
            self.replicas, self.partitions, self.replica_throttle, self._connect, self.settings, self.clock,
            self.node_id, lambda: self.cluster.epoch,
        )  # fmt: skip
        self.partition_admin = PartitionAdmin(self.cluster, self.topics, self.topic_admin.room_on, self.now_ms)
        self.controller = Controller(
            self.metadata.store, self.cluster, self.topics, self.settings, self.clock, self.now_ms
        )
        self._tell_of_appends()
        self.ready = False
        Deferred.fromCoroutine(self._start()).addErrback(self._start_failed, self.boots)

    def _identify(self) -> None:
        """Make what this process proves with that it is this broker, and what it believes others."""
        self._secret = BrokerSecret()
        self.claim = read_claim(SOFTWARE_NAME, self._secret.software_version("1", self.node_id))
        self.security = SimpleNamespace(peers=Peers(lambda: self.cluster.known), audit=None)

    def _tell_of_appends(self) -> None:
        """Report every accepted append to the world."""
        append = self.replicas.append

        def note(partition: Any, *args: Any, **named: Any) -> Any:
            result = append(partition, *args, **named)
            self.world.accepted(self, partition)
            return result

        self.replicas.append = note  # type: ignore[method-assign]
        tell_of_writes(self)

    async def _start(self) -> None:
        self.logs.load()
        await self.metadata.start()
        self.logs.adopt_cluster_id(self.cluster.cluster_id)
        broker = Broker(
            self.node_id, (Endpoint("PLAINTEXT", "sim", 1),), proof=self._secret.digest,
            labels=self.settings.words("broker.labels"),
        )  # fmt: skip
        await admit(self.cluster, self.topics, self.logs, broker, self.in_thread)
        self.world.admitted(self)
        await self.controller.start()
        await self.cluster.until_accepted()
        await self.replica_parts.start()
        self.replication.start(self.cluster.cluster_id)
        self.ready = True

    def _start_failed(self, failure: Any, boot: int) -> None:
        """Try again, as a supervisor does."""
        if self.alive and boot == self.boots:
            self.kill()
            self.world.clock.callLater(0.5, lambda: self.alive or self.start())

    def now_ms(self) -> int:
        """Return the broker's wall clock, which differs from the others': ms since 1970."""
        return int(_EPOCH_MS + self.node_id * self.world.skew_ms + self.world.time.now * 1000)

    def run(self, boot: int, function: Callable[..., Any], *args: Any) -> None:
        """Handle a message, unless the process has been restarted since it was sent."""
        if self.alive and boot == self.boots:
            self.time.callLater(0, lambda: self.ready and function(*args))

    def in_thread(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        seconds = self.world.rng.uniform(0, self.world.thread_seconds)
        self.time.callLater(seconds, lambda: maybeDeferred(function, *args).chainDeferred(done))
        return done

    def _connect(self, node_id: int) -> Deferred[Any]:
        if node_id not in self.cluster.brokers:
            return fail(BrokerUnavailable(f"broker {node_id} is not registered"))
        done: Deferred[Any] = self.world.connect(self.time, self.node_id, node_id)
        return done

    def kill(self, power: bool = False, wipe: bool = False) -> None:
        """Kill the process; with `power` the machine loses power too; `wipe` replaces the disk by an empty one."""
        if not self.alive:
            return
        self.alive = self.ready = False
        self.time.dead = True
        del self.world.running[self.time]
        self.store.vanish()
        if wipe:
            self.fs = SimFiles()
        elif power:
            self.machine_boots += 1
            self.fs.lose_power()
        else:
            self.fs.kill()
        connections, self.connections = self.connections, []
        for connection in connections:
            self.world.clock.callLater(0.001, connection.lost)

    def partition(self, name: str, index: int) -> Any:
        """Return the partition, or None if it is not hosted here."""
        return self.partitions.by_name.get((name, index)) if self.alive and self.ready else None

    def bytes_of(self, name: str, index: int) -> bytes | bytearray:
        """Return the bytes of all segments of a partition, whether the broker runs or not."""
        prefix = f"/data/{name}-{index}/"
        paths = [path for path in self.fs.files if path.endswith(".log") and path.startswith(prefix)]
        if len(paths) == 1:
            return self.fs.files[paths[0]].data
        return b"".join([self.fs.files[path].data for path in sorted(paths)])


class World:
    """The brokers, network, store and time of a history."""

    session_timeout = 1.0
    thread_seconds = 0.003  # how long a call in a thread takes at most
    skew_ms: int = 600_000  # the difference between the wall clocks of one broker and the next
    labels: Mapping[int, str] = MappingProxyType({})  # the labels of brokers, by id

    def __init__(self, seed: int, brokers: int = 3, **settings: Any) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.time = SimTime()
        self.clock = SimClock(self.time)
        self.tree = SimTree()
        self.store_delay = slowly(self.rng)
        self.network = Network(self.time, self.rng)
        self.faults: list[Any] = []
        self.running: dict[SimClock | None, SimBroker] = {}  # by the process's clock
        named = {
            "replica.lag.time.max.ms": 600, "replica.fetch.wait.max.ms": 100, "replica.fetch.backoff.ms": 200,
            "replica.socket.timeout.ms": 400, "min.insync.replicas": 2, "default.replication.factor": 3,
            "auto.leader.rebalance.enable": "true",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }  # fmt: skip
        self.brokers = {
            node: SimBroker(self, node, {**named, "broker.labels": self.labels.get(node, "")})
            for node in range(1, brokers + 1)
        }

    def connect(self, clock: SimClock, source: int, target: int) -> Deferred[Any]:
        """Connect, which takes time and fails if the broker is dead."""
        broker = self.brokers[target]
        done: Deferred[Any] = Deferred()

        def arrive() -> None:
            if broker.alive and broker.ready:
                connection = SimConnection(self, clock, self.brokers[source], broker)

                def arrived() -> None:
                    clock.callLater(0, _fire, done, connection)

                self.network.send(target, source, arrived)
            else:
                clock.callLater(0, _fail, done, BrokerUnavailable(f"broker {target} does not listen"))

        self.network.send(source, target, arrive)
        clock.callLater(0.5, _fail, done, BrokerUnavailable(f"broker {target} can't be reached"))
        return done

    def accepted(self, broker: SimBroker, partition: Any) -> None:
        """Called when a leader has accepted a client's batch."""

    def admitted(self, broker: SimBroker) -> None:
        """Called when a broker has been admitted to the cluster."""

    def fault(self, failure: Any) -> None:
        """Called when a handler raised an unexpected exception."""
        self.faults.append(failure)


def _fire(done: Deferred[Any], result: Any) -> None:
    if not done.called:
        done.callback(result)


def _fail(done: Deferred[Any], error: Exception) -> None:
    if not done.called:
        done.errback(error)
