"""The cluster: its id, its live brokers, and the producer ids that it hands out.

Strategy: a broker is live while its ephemeral node exists; `registrations` keeps the table of live brokers up to date.
Producer ids are taken from the metadata store in blocks: a block is written as taken before
its first id is handed out, so no id is ever given twice, by any broker, across any crash.

A broker that was killed may restart before its session has expired: then its old registration still exists. If it names
the data directory whose lock this process holds, the old process is dead, and the registration is removed. Any other
registration with this broker's node id belongs to another broker, and this one is refused. If it is made while this
broker's session is lost, this broker has to stop (`on_ousted`).

Must not know: topics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Final, TypeVar

from twisted.internet.defer import Deferred, DeferredLock, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.deferreds import all_of
from pylogd.broker.metadata.change_notes import Change
from pylogd.broker.metadata.changes import ChangeFeed
from pylogd.broker.metadata.errors import ProducerIdsExhausted
from pylogd.broker.metadata.feature_levels import RANGES
from pylogd.broker.metadata.image import Broker, Endpoint, Outages, id_to_text, new_id
from pylogd.broker.metadata.layout import (
    broker_epoch_path,
    decode_broker,
    decode_cluster_id,
    decode_directories,
    decode_incarnations,
    decode_producer_block_end,
    encode_broker,
    encode_cluster_id,
    encode_directories,
    encode_producer_block,
)
from pylogd.broker.metadata.registrations import Registrations, announcement
from pylogd.broker.metadata.staggering import share, sleep
from pylogd.store.errors import (
    BadVersion,
    ConnectionLost,
    CorruptMetadata,
    NodeExists,
    NodeIdInUse,
    NoNode,
    SessionExpired,
)
from pylogd.store.interfaces import Create, IMetadataStore, NodeStat, Operation, SessionState, SetData
from pylogd.store.paths import BROKERS, CLUSTER_ID, INCARNATIONS, PARENTS, PRODUCER_IDS

log = Logger()

#: How many producer ids are taken from the tree at a time (Kafka's size).
PRODUCER_ID_BLOCK: Final = 1000
_LAST_PRODUCER_ID: Final = (1 << 63) - 1
#: The controller's id while no controller is known.
NO_CONTROLLER: Final = -1
#: Seconds between two checks whether an earlier session of this broker has ended.
_LOOK_SECONDS: Final = 0.5
#: In a cluster of at most this many brokers all read at once which brokers have come and gone.
AT_ONCE: Final = 16
#: The brokers of a larger cluster spread these reads. The average time between two brokers, in seconds, is the time in
#: which a server answers with the names of a thousand brokers.
_APART_SECONDS: Final = 0.000_25

ClusterListener = Callable[[], None]
T = TypeVar("T")


class Cluster:
    """What this broker knows about its cluster.

    cluster_id: 22 characters, empty before `start`.
    controller_id: the controller's node id, or `NO_CONTROLLER`.
    generation: counts the changes of `brokers`.
    acknowledged: the incarnations of brokers, by id, that the controller has taken into account.
    features: the features that this broker registers.
    """

    def __init__(
        self, store: IMetadataStore, node_id: int, feed: ChangeFeed, clock: IReactorTime | None = None,
        patience: float = 0.0,
    ) -> None:  # fmt: skip
        """A registration waits up to `patience` seconds of `clock` until an earlier one with this node id has ended."""
        self._store = store
        self._feed = feed
        self.node_id = node_id
        self._brokers: dict[int, Broker] = {}
        self._known: dict[int, Broker] = {}
        self._self: Broker | None = None
        self._registered_in = 0
        self._registering = False
        self._registrations = Registrations(store, self._changed)
        self._next_id, self._ids_end = 0, 0
        self._id_lock = DeferredLock()
        self._clock = clock
        self._patience = patience
        self._label_writes = 0  # how many `set_labels` are under way
        self._label_waiters: list[Deferred[None]] = []
        self._listeners: list[ClusterListener] = []
        self._forget: Callable[[], None] | None = None
        self._following: IDelayedCall | None = None  # the call that reads which brokers have come and gone
        self.cluster_id = ""
        self.controller_id = NO_CONTROLLER
        self.generation = 0
        self.acknowledged: Mapping[int, int] = MappingProxyType({})
        self.features = RANGES
        #: Called with the reason when another broker has registered this node id: this broker has to stop.
        self.on_ousted: Callable[[NodeIdInUse], object] = lambda _: None
        feed.add(self)

    @property
    def brokers(self) -> Mapping[int, Broker]:
        """The live brokers, by id."""
        return MappingProxyType(self._brokers)

    @property
    def known(self) -> Mapping[int, Broker]:
        """The last registration of each broker that was live since this one started, by id."""
        return self._known

    def subscribe(self, listener: ClusterListener) -> Callable[[], None]:
        """Call `listener` after each change of the live brokers; return a function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def start(self) -> Deferred[None]:
        """Read the cluster's id, or create it, and read the live brokers."""
        return Deferred.fromCoroutine(self._start())

    def stop(self) -> None:
        """Stop following changes. This broker's registration ends with the store's session."""
        if self._forget is not None:
            self._forget()
            self._forget = None
        if self._following is not None:
            self._following.cancel()
            self._following = None

    def controller_changed(self, controller: int) -> None:
        """Note which broker is the controller."""
        self.controller_id = controller

    def former_directories(self) -> Deferred[frozenset[str]]:
        """Return the ids of data directories in which this broker may have replicas, as of its last registration."""
        return Deferred.fromCoroutine(self._read_epoch()).addCallback(lambda found: found[1])

    def register(self, broker: Broker) -> Deferred[None]:
        """Register this broker, now and after every loss of the session. Fails with `NodeIdInUse`.

        A `fenced` broker is not live before `unfence`. Until then its former data directories also stay registered.
        """
        assert broker.node_id == self.node_id
        self._self = broker = replace(broker, features=self.features)
        return Deferred.fromCoroutine(self._register(broker, self._clock))

    def unfence(self) -> Deferred[None]:
        """Make the registered broker live. Fails with `BadVersion` or `NoNode` if the registration has ended."""
        assert self._self is not None
        epoch = self._self.epoch
        self._self = replace(self._self, fenced=False, epoch=epoch + 1)
        path = f"{BROKERS}/{self.node_id}"
        write = self._feed.write(
            [
                SetData(path, encode_broker(self._self)),
                SetData(broker_epoch_path(self.node_id), encode_directories(self._self.directories), epoch),
            ],
            [path],
        )
        return Deferred.fromCoroutine(write).addCallback(lambda _: None)

    @property
    def epoch(self) -> int:
        """The epoch of this broker's registration (KIP-903), -1 before the first."""
        return -1 if self._self is None else self._self.epoch

    def mark_stopping(self) -> Deferred[None]:
        """Tell the cluster that this broker is stopping. Fires when this was read back. Fails with `NoNode`."""
        assert self._self is not None
        self._self = replace(self._self, stopping=True)
        return Deferred.fromCoroutine(self._publish(self._self))

    def set_labels(self, labels: tuple[str, ...] | None = None, endpoints: Sequence[Endpoint] = ()) -> Deferred[None]:
        """Tell the cluster the labels (`broker.labels`) or addresses that this broker has from now on.

        Fires when this was read back. Fails with the store's errors. If the connection to the store is lost meanwhile,
        the registration is written again when the connection is restored.
        """
        ours = self._self
        if ours is None or (labels in (None, ours.labels) and tuple(endpoints) in ((), ours.endpoints)):
            return succeed(None)
        labels, endpoints = ours.labels if labels is None else labels, tuple(endpoints) or ours.endpoints
        ours = self._self = replace(ours, labels=labels, endpoints=endpoints)
        self._label_writes += 1
        return Deferred.fromCoroutine(self._publish(ours)).addBoth(self._labels_written)

    def _labels_written(self, result: T) -> T:
        self._label_writes -= 1
        if not self._label_writes:
            waiting, self._label_waiters = self._label_waiters, []
            for one in waiting:
                one.callback(None)
        return result

    def labels_settled(self) -> Deferred[None]:
        """Return a Deferred that fires when no change by `set_labels` is being written; it never fails."""
        if not self._label_writes:
            return succeed(None)
        done: Deferred[None] = Deferred()
        self._label_waiters.append(done)
        return done

    def report_outages(self, outages: Outages) -> Deferred[None]:
        """Tell the cluster which replicas of this broker are offline or full, now and after every loss of the session.

        Fires when this was read back. Fails with the store's errors.
        """
        if self._self is None:
            return succeed(None)  # another broker has this node id
        self._self = replace(self._self, outages=outages)
        return Deferred.fromCoroutine(self._publish(self._self))

    async def _publish(self, broker: Broker) -> None:
        """Replace the content of this broker's registration."""
        path = f"{BROKERS}/{self.node_id}"
        await self._feed.write([SetData(path, encode_broker(broker))], [path])

    @property
    def accepted(self) -> bool:
        """Whether the controller has taken this broker's present registration into account."""
        found = self._brokers.get(self.node_id)
        return found is not None and self.acknowledged.get(self.node_id) == found.incarnation

    def until_accepted(self) -> Deferred[None]:
        """Return a Deferred that fires once the broker is `accepted`."""
        done: Deferred[None] = Deferred(lambda _: undo())

        def look() -> None:
            if self.accepted and not done.called:
                undo()
                done.callback(None)

        undo = self.subscribe(look)
        look()
        return done

    async def look_again(self) -> None:
        """Read the live brokers without waiting for the watch."""
        await self._reload()

    async def reload(self, store: IMetadataStore) -> None:
        """Read the brokers and their acknowledged incarnations."""
        await self.refresh(store, Change([BROKERS, INCARNATIONS]))

    async def refresh(self, store: IMetadataStore, change: Change) -> None:
        """Read again the nodes that a write has changed. The watch tells about brokers that come and go."""
        paths = change.paths
        if INCARNATIONS in paths:
            try:
                self.acknowledged = decode_incarnations((await store.get(INCARNATIONS)).data)
            except NoNode:
                self.acknowledged = {}
            except CorruptMetadata as error:
                log.error(
                    "{error}. Its earlier content stays in use; the controller writes the node again", error=str(error)
                )
        if BROKERS in paths:
            await self._reload()
        elif named := [path.removeprefix(f"{BROKERS}/") for path in paths if path.startswith(f"{BROKERS}/")]:
            await self._registrations.read(named)
            self._apply()
        if INCARNATIONS in paths:
            await self._read_newer()
            self._tell()

    async def _read_newer(self) -> None:
        """Read the registrations of which the controller knows a newer one than this broker does."""
        found = self._registrations.found
        newer = [
            str(node) for node, incarnation in self.acknowledged.items()
            if node in found and found[node].broker.incarnation < incarnation
        ]  # fmt: skip
        if newer:
            await self._registrations.read(newer)
            self._apply()

    def next_producer_id(self) -> Deferred[int]:
        """Return a Deferred of an id that no producer has had."""
        result: Deferred[int] = self._id_lock.run(lambda: Deferred.fromCoroutine(self._take_id()))
        return result

    async def _start(self) -> None:
        await all_of(self._store.ensure(path) for path in PARENTS)  # concurrently, so that they share a commit
        proposal = id_to_text(new_id())
        try:
            await self._store.create(CLUSTER_ID, encode_cluster_id(proposal))
            self.cluster_id = proposal
        except NodeExists:
            self.cluster_id = decode_cluster_id((await self._store.get(CLUSTER_ID)).data)
        self._forget = self._store.on_session(self._session)
        await self._reload()

    async def _register(self, broker: Broker, clock: IReactorTime | None) -> None:
        """Register; with a clock, wait for an earlier registration to end."""
        self._registering = True
        try:
            epoch = await self._create(broker, clock)
        finally:
            self._registering = False
        if self._self is not None:
            self._self = replace(self._self, epoch=epoch)
        self._registered_in = self._store.session_id
        await self._reload()

    async def _create(self, broker: Broker, clock: IReactorTime | None) -> int:
        """Create the broker's node; return the broker epoch."""
        path = f"{BROKERS}/{broker.node_id}"
        epoch_path = broker_epoch_path(broker.node_id)
        while True:
            epoch, former = await self._read_epoch()
            broker = replace(broker, epoch=epoch + 1)
            directories = encode_directories(former.union(broker.directories) if broker.fenced else broker.directories)
            increment: Operation = (
                Create(epoch_path, directories) if epoch < 0 else SetData(epoch_path, directories, epoch)
            )
            try:
                create = Create(path, encode_broker(broker), ephemeral=True)
                await self._store.multi([increment, create, announcement(broker.node_id)])
                return broker.epoch
            except BadVersion:
                continue
            except NodeExists as error:
                if error.path == path and await self._take_over(path, replace(broker, epoch=epoch), clock):
                    return epoch

    async def _read_epoch(self) -> tuple[int, frozenset[str]]:
        """Return the epoch of this broker's last registration, and the ids of its data directories then."""
        path = broker_epoch_path(self.node_id)
        try:
            node = await self._store.get(path)
        except NoNode:
            return -1, frozenset()
        return node.stat.version, decode_directories(path, node.data)

    async def _take_over(self, path: str, broker: Broker, clock: IReactorTime | None) -> bool:
        """Return True if an existing registration is this session's, False if it has ended. Raises `NodeIdInUse`."""
        try:
            node = await self._store.get(path)
        except NoNode:
            return False
        if node.stat.owner == self._store.session_id:
            await self._store.multi([SetData(path, encode_broker(broker)), announcement(broker.node_id)])
            return True
        other = decode_broker(path, node.data)
        if broker.directory_id is not None and other.directory_id == broker.directory_id:
            log.info("Removing the registration of this broker's former process")
            with suppress(NoNode, BadVersion):
                await self._store.delete(path, node.stat.version)
        else:
            await self._wait_for_end(path, node.stat, other, clock)
        return False

    async def _wait_for_end(self, path: str, held: NodeStat, other: Broker, clock: IReactorTime | None) -> None:
        """Wait until the node of another session is gone. After a crash ZooKeeper keeps it for the session's timeout.

        Raises `NodeIdInUse` if the node stays, or if a third session has created another one.
        """
        stat: NodeStat | None = held
        deadline = 0.0 if clock is None else clock.seconds() + self._patience
        if clock is not None:
            log.info(
                "{path} is held by another session; waiting up to {seconds:.0f} s for it to end, as after a crash",
                path=path,
                seconds=self._patience,
            )
        while stat is not None:
            if clock is None or stat.created != held.created or clock.seconds() >= deadline:
                raise self._in_use(other)
            await sleep(clock, _LOOK_SECONDS)
            stat = await self._store.exists(path)

    def _in_use(self, other: Broker) -> NodeIdInUse:
        return NodeIdInUse(
            f"another broker with node.id {self.node_id} is alive in this cluster, at {other.host}:{other.port}: "
            "give one of the two another node.id and an empty data directory, or stop it"
        )

    async def _reload(self) -> None:
        await self._registrations.read_all()
        self._apply()

    async def _follow(self) -> None:
        await self._registrations.follow()
        self._apply()

    def _apply(self) -> None:
        """Apply the registrations that were read."""
        ours = self._registrations.found.get(self.node_id)
        registered = self._registered_in == self._store.session_id
        if ours is not None and registered and ours.owner != self._registered_in:
            self._oust(self._in_use(ours.broker))
        found = {node: one.broker for node, one in self._registrations.found.items() if not one.broker.fenced}
        if found != self._brokers:
            self._brokers = found
            self._known.update(found)
            self.generation += 1
            self._tell()

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()

    async def _take_id(self) -> int:
        while self._next_id == self._ids_end:
            node = await self._store.get(PRODUCER_IDS)
            start = decode_producer_block_end(node.data) + 1
            end = start + PRODUCER_ID_BLOCK
            if end - 1 > _LAST_PRODUCER_ID:
                raise ProducerIdsExhausted(
                    f"all producer ids up to {_LAST_PRODUCER_ID} are given out: look at the node {PRODUCER_IDS}"
                )
            try:
                block = encode_producer_block(self.node_id, start, end - 1)
                await self._store.set(PRODUCER_IDS, block, node.stat.version)
            except BadVersion:
                continue
            self._next_id, self._ids_end = start, end
        self._next_id += 1
        return self._next_id - 1

    def _changed(self) -> None:
        """Read which brokers have come and gone. The controller reads at once, others in a large cluster one by one."""
        if self._forget is None or self._following is not None:
            return
        crowd = len(self._brokers) if self.controller_id != self.node_id else 0
        if crowd <= AT_ONCE or self._clock is None:
            self._follow_now()
        else:
            seconds = crowd * _APART_SECONDS * share(self.node_id, self.generation)
            self._following = self._clock.callLater(seconds, self._follow_now)

    def _follow_now(self) -> None:
        self._following = None
        Deferred.fromCoroutine(self._follow()).addErrback(self._failed)

    def _session(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED:
            return
        self._registrations.lose_watches()
        registered = self._registering or self._registered_in == self._store.session_id
        again = self._self is not None and not registered
        # Without a clock, do not wait for another broker that registered this node id meanwhile.
        work = self._register(self._self, None) if again and self._self is not None else self._resume()
        Deferred.fromCoroutine(work).addErrback(self._failed)

    async def _resume(self) -> None:
        """Read the brokers after the connection was restored. If need be, write our labels and addresses again.

        If this is still the session in which this broker registered and read all brokers, only changes are read.
        """
        same = self._registered_in == self._store.session_id
        await (self._follow() if same else self._reload())
        found = self._brokers.get(self.node_id) if same else None
        ours = self._self
        if found and ours and (found.labels, found.endpoints) != (ours.labels, ours.endpoints):
            await self._publish(ours)

    def _oust(self, error: NodeIdInUse) -> None:
        log.error("{error}", error=str(error))
        self._self, self._registered_in = None, 0
        self.on_ousted(error)

    def _failed(self, failure: Failure) -> None:
        self._registrations.lose_watches()
        if self._forget is None:
            return  # it was stopped meanwhile
        if isinstance(failure.value, NodeIdInUse):
            self._oust(failure.value)
            return
        if failure.check(ConnectionLost, SessionExpired):
            log.warn(
                "Can't read the brokers of the cluster until the session is restored: {error}",
                error=failure.getErrorMessage(),
            )
            return
        log.failure("Unexpected error while reading the brokers of the cluster", failure=failure)
