"""A broker's parts without a network: real settings, metadata, logs and replicas, on a fake clock and file system."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from twisted.internet.defer import Deferred, fail, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Clock

from pylogd.base.errors import BrokerUnavailable
from pylogd.base.limits.expressions import Matches
from pylogd.broker.api import HANDLERS
from pylogd.broker.api.context import BrokerParts, RequestContext
from pylogd.broker.api.dispatch import ask_self
from pylogd.broker.controller.admin import PartitionAdmin
from pylogd.broker.groups import GroupCoordinator
from pylogd.broker.isolation.disk_meter import DiskMeter, DiskSampler
from pylogd.broker.isolation.disks import ALWAYS, OFF, DiskOptions, Disks
from pylogd.broker.isolation.laggards import LaggardThrottle
from pylogd.broker.isolation.workers import Workers
from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.log.files import RealFileSystem
from pylogd.broker.log.manager import LogManager
from pylogd.broker.metadata.image import Broker, Endpoint, Topic, TopicUpdate
from pylogd.broker.metadata.service import Metadata
from pylogd.broker.quotas.clients import ClientQuotas
from pylogd.broker.replica.configs import log_config
from pylogd.broker.replica.partition import Partition
from pylogd.broker.replica.service import Replicas
from pylogd.broker.replica.smooth_expansion import SmoothJoins
from pylogd.broker.security.authentication import Authentication
from pylogd.broker.security.peers import PeerClaim, Peers
from pylogd.broker.security.service import Security
from pylogd.broker.telemetry.service import Telemetry
from pylogd.broker.transactions.service import Transactions
from pylogd.config import Settings
from pylogd.credentials.principal import ANONYMOUS
from pylogd.store.consumers import committed_offsets
from pylogd.wire import schema
from pylogd.wire.fast.compiled import KnownShape
from pylogd.wire.fast.known_fetch import KnownFetch
from pylogd.wire.fast.known_session import KnownSessionFetch
from pylogd.wire.records import Record, decode_batch, encode_batch, iter_batches
from tests.fakes.filesystem import MemoryFileSystem
from tests.fakes.metadata import InlineStore, result_of
from tests.fakes.workers import HeldWorkers, PooledWorkers

NODE = 1
NOW_MS = 1_700_000_000_000
START_SECONDS = 1000.0  # start of the monotonic clock


class Threads:
    """Run work for threads at once, or on request if `hold` is set."""

    def __init__(self) -> None:
        self.hold = False
        self.held: list[tuple[Deferred[Any], Callable[[], Any]]] = []

    def __call__(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        if not self.hold:
            return maybeDeferred(function, *args)
        done: Deferred[Any] = Deferred()
        self.held.append((done, lambda: function(*args)))
        return done

    def release(self) -> None:
        """Run all held work, including work added meanwhile."""
        while self.held:
            done, work = self.held.pop(0)
            maybeDeferred(work).chainDeferred(done)


class FakeConnection:
    """A client's connection as handlers see it."""

    authentication: Authentication | None = None
    host = "127.0.0.1"
    port = 50_000
    listener = "PLAINTEXT"
    principal = ANONYMOUS
    on_lost: Callable[[], object] | None = None
    claim: PeerClaim | None = None
    software = ("", "")
    authenticated = True
    produce_shape: KnownShape | None = None
    known_fetch: KnownFetch | KnownSessionFetch | None = None

    def __init__(self) -> None:
        self.muted: list[float] = []
        self.bounded = True

    def lift_element_bounds(self) -> None:
        self.bounded = False

    def receive_tokens(self, step: Callable[[bytes], object]) -> None:
        raise AssertionError("only SaslHandshake of version 0 asks for bare frames")

    def mute(self, seconds: float) -> None:
        self.muted.append(seconds)

    def finish(self) -> None:
        raise AssertionError("only authentication closes connections")


class Trusting(Peers):
    """Takes every client for the broker that it says it is."""

    def __init__(self) -> None:
        super().__init__(dict)

    def proven(self, claim: PeerClaim | None, node_id: int) -> bool:
        return True


class Parts(BrokerParts):
    """A started broker without network, which provides `pylogd.broker.api.context.BrokerParts`."""

    def __init__(self, directory: Path, **settings: object) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.settings = Settings({"node.id": NODE, "log.dirs": "/data", **named})
        self.node_id = NODE
        self.time = Clock()
        self.time.advance(START_SECONDS)
        self.wall_step_ms = 0  # how far the wall clock has been set forward
        self.clock = cast(IReactorTime, self.time)
        self.fs = MemoryFileSystem()
        self.threads = Threads()
        self.disks = self._make_disks(named="log.write.queues" in named)
        self.metadata = Metadata(self.settings, InlineStore(directory / "metadata.sqlite"))
        self.security = Security(self.settings, self.metadata, self.clock, self.now_ms)
        self.security.peers = Trusting()
        self.authorizer = self.security.authorizer
        self.replica_selector = None
        self.in_thread = self.threads
        self.advertised = self._advertised
        self.cluster = self.metadata.cluster
        self.topics = self.metadata.topics
        self.topic_admin = self.metadata.topic_admin
        self.telemetry = Telemetry(self.metadata.client_metrics, self.settings, self.time.seconds, self.in_thread)
        self.client_quotas = ClientQuotas(self.metadata.entity_configs, self.settings, self.time.seconds)
        self.disk_use = DiskSampler(DiskMeter(), lambda: self.logs.healthy, self.clock, self.in_thread)
        self.laggards = LaggardThrottle(self.settings, self.disk_use, self.clock)
        self.verifier = None
        self.partition_admin = PartitionAdmin(self.cluster, self.topics, self.topic_admin.room_on, self.now_ms)
        self.connection = FakeConnection()
        self.replica_parts: Replicas
        self.expressions = Matches(self.in_thread, self.topics.names)
        self.topics.subscribe(lambda change: self.expressions.changed() if change.of_names else None)
        self.transaction_parts: Transactions
        self.boot()
        result_of(self.metadata.start())
        result_of(self.cluster.register(Broker(NODE, (Endpoint("PLAINTEXT", "localhost", 9092),), "r1")))
        self.cluster.controller_changed(NODE)
        result_of(self.replica_parts.start())

    def boot(self) -> None:
        """Create logs and replicas from the file system, as a start does."""
        if hasattr(self, "groups"):
            self.groups.stop()
            self.transaction_parts.stop()
        self.logs = LogManager(
            self.settings.words("log.dirs"), config=log_config(self.settings, {}), fs=self.fs, now_ms=self.now_ms,
            seconds=self.time.seconds, node_id=NODE, recovery_threads=1,
            cordoned=lambda: self.settings.cordoned_directories, staged_appends=self.disks is not None,
        )  # fmt: skip
        if self.disks is not None and self.disks.adaptive:
            self.logs.storage.appended = self.disks.wrote
        self.logs.on_directory_failed = self._directory_failed
        self.logs.load()
        self.replica_parts = Replicas(
            self.logs, self.topics, self.metadata.isr_writer.alter, self.settings, self.clock, NODE, self.threads,
            now_ms=self.now_ms, disks=self.disks,
        )  # fmt: skip
        self.replicas = self.replica_parts.manager
        self.partitions = self.replica_parts.partitions
        self.hosting = self.replica_parts.hosting
        self.fetch_waits, self.fetch_sessions = self.replica_parts.fetch_waits, self.replica_parts.fetch_sessions
        self.isr_updater, self.replica_throttle = self.replica_parts.isr_updater, self.replica_parts.throttle
        self.smooth_joins = SmoothJoins(
            self.partitions, self.cluster, self.topics, self._connect,
            partial(committed_offsets, self.metadata.store), self.partition_admin.release, self.clock, self.now_ms,
        )  # fmt: skip
        self.groups = GroupCoordinator(self.replica_parts, self.metadata, self.settings, self.clock, self.now_ms)
        self.groups.start()
        self.transaction_parts = Transactions(
            self.replica_parts, self.metadata, self.settings, self.clock, self.now_ms, self._connect,
            partial(ask_self, self),
        )  # fmt: skip
        self.transactions = self.transaction_parts.coordinator
        self.transaction_parts.start()

    @staticmethod
    def _connect(node_id: int) -> Deferred[Any]:
        return fail(BrokerUnavailable(f"there is no broker {node_id}"))

    def _make_disks(self, *, named: bool) -> Disks | None:
        """Make the disks. named: whether the test is about them; if not, `threads` makes their calls."""
        if self.settings.text("log.write.queues") == OFF:
            return None
        integer = self.settings.integer
        options = DiskOptions(
            integer("log.write.queues.per.dir"), integer("log.write.queue.max.requests"),
            integer("log.write.queue.max.bytes"), 2, integer("log.dir.failure.timeout.ms") / 1000,
            self.settings.text("log.write.queues") == ALWAYS,
        )  # fmt: skip
        self.hung: list[str] = []

        def workers(name: str, most: int, **arguments: Any) -> Workers:
            if named or not name.startswith("pylogd-disk-"):
                return HeldWorkers(name, most, **arguments)
            return PooledWorkers(name, most, self.threads, **arguments)

        return Disks(
            self.settings.words("log.dirs"), options, self.clock, lambda function, *args: function(*args),
            lambda path, _seconds: self.hung.append(path), workers,
        )  # fmt: skip

    def _directory_failed(self, path: str, keys: list[tuple[str, int]]) -> None:
        if self.disks is not None:
            self.disks.failed(path, StorageFailure(path, OSError(errno.EIO, "offline")))
        self.hosting.went_offline(keys)

    def close(self) -> None:
        """Stop all, and see that nothing is left behind."""
        self.threads.hold = False
        self.threads.release()
        self.groups.stop()
        self.transaction_parts.stop()
        result_of(self.replica_parts.stop())
        assert not len(self.replicas.fetch_waits)
        assert not len(self.replicas.append_waits)
        assert not self.time.getDelayedCalls()
        self.logs.close()
        result_of(self.metadata.stop())

    @staticmethod
    def _advertised(listener: str) -> tuple[str, int]:
        assert listener == "PLAINTEXT"
        return "localhost", 9092

    def now_ms(self) -> int:
        return NOW_MS + self.wall_step_ms + round((self.time.seconds() - START_SECONDS) * 1000)

    # -- requests

    def ask(self, request: Any, version: int) -> Any:
        """What the handler returns: a response, encoded or not, a Deferred, or None."""
        return HANDLERS[request.API_KEY](RequestContext(self, self.connection, version, "test"), request)

    def call(self, request: Any, version: int | None = None) -> Any:
        """The response, which must be there, and which must be one that the wire can carry in that version."""
        if version is None:
            version = schema.schema_versions(request.API_KEY)[1]
        answer = self.ask(request, version)
        if isinstance(answer, Deferred):
            answer = result_of(answer)
        answer = decoded(answer, request.API_KEY, version)
        if answer is not None:
            schema.response_codec(request.API_KEY, version).encode(answer)
        return answer

    # -- helpers

    def create(self, name: str, partitions: int = 1, **configs: Any) -> Topic:
        """Make a topic; its settings with underscores for dots."""
        named = {key.replace("_", "."): value for key, value in configs.items()}
        topic = result_of(self.topic_admin.create_topic(name, partitions=partitions, configs=named))
        result_of(self.hosting.settled(name))
        return topic

    def set_state(self, name: str, partition: int = 0, **fields: Any) -> Partition:
        """Make fields of a partition's state something else, as if a controller had."""
        found = self.partitions.by_name[name, partition]
        assert found.state is not None
        fields.setdefault("partition_epoch", found.state.partition_epoch + 1)
        self.hosting.refresh(found, replace(found.state, **fields))
        return found

    def move_away(self, name: str, partition: int = 0, **fields: Any) -> None:
        """Write a partition's state to the metadata, with replicas on other brokers only; this one removes its own."""
        topic = self.topics.get(name)
        assert topic is not None
        states = list(topic.partitions)
        fields.setdefault("partition_epoch", states[partition].partition_epoch + 1)
        states[partition] = replace(states[partition], **fields)
        result_of(self.topics.write_states([TopicUpdate(topic, tuple(states))]))
        result_of(self.hosting.settled(name))

    def append(self, name: str, *values: bytes, partition: int = 0) -> None:
        """Append one batch past the handlers."""
        to = self.partitions.by_name[name, partition]
        to.log.open()
        self.replicas.append(to, batch(*values, now_ms=self.now_ms()), False)


class RealParts(Parts):
    """The broker's parts on real files: a fetch is answered by sendfile."""

    def boot(self) -> None:
        self.fs = RealFileSystem()  # type: ignore[assignment]
        super().boot()


def decoded(answer: Any, api_key: int, version: int) -> Any:
    """What a handler returned; where it has encoded its response by itself, the response."""
    return schema.response_codec(api_key, version).decode(memoryview(answer)) if isinstance(answer, bytes) else answer


def batch(*values: bytes, now_ms: int = NOW_MS, **fields: Any) -> bytes:
    """A record batch with these values."""
    return encode_batch([(None, value, now_ms, ()) for value in values or (b"v",)], **fields)


def records_in(data: Any) -> list[Record]:
    """The records in a response's field, a file slice or bytes."""
    raw = data if isinstance(data, bytes) else data.read()
    return [record for header, view in iter_batches(raw, allow_partial=True) for record in decode_batch(view, header)]
