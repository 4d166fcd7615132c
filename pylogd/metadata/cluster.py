"""The cluster: its id, its live brokers, and the producer ids that it hands out.

Strategy: a broker is live while its ephemeral node exists; one watch on the children of `/brokers/ids` keeps the table
of live brokers up to date. Producer ids are taken from the tree in blocks: a block is written as taken, with the
version that was read, before its first id is handed out, so no id is ever given twice, by any broker, over any crash.

A broker that was killed may come back before its session has expired: its old registration is then in the way. Who
holds the lock of the same data directory knows that the old process is dead, and removes it. Any other registration
under this broker's number is another broker's, and refuses this one; one that comes while this broker's own session is
lost ousts it (`on_ousted`).

Must not know: topics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from twisted.internet.defer import Deferred, DeferredLock, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.metadata.changes import ChangeFeed
from pylogd.metadata.errors import BadVersion, ConnectionLost, NodeExists, NodeIdInUse, NoNode, SessionExpired
from pylogd.metadata.image import Broker, Outages, id_to_text, new_id
from pylogd.metadata.interfaces import Create, IMetadataStore, NodeStat, Operation, SessionState, SetData, WatchEvent
from pylogd.metadata.layout import (
    BROKERS,
    CLUSTER_ID,
    INCARNATIONS,
    PARENTS,
    PRODUCER_IDS,
    Change,
    CorruptMetadata,
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
from pylogd.metadata.together import all_of

log = Logger()

#: Producer ids taken from the tree at a time (Kafka's size).
PRODUCER_ID_BLOCK: Final = 1000
#: "No broker", as the controller.
NO_CONTROLLER: Final = -1
#: Between two looks at whether an earlier session of this broker has ended.
_LOOK_SECONDS: Final = 0.5

ClusterListener = Callable[[], None]


class Cluster:
    """What this broker knows of its cluster.

    cluster_id: 22 characters, empty before `start`. controller_id: the broker that is the controller, `NO_CONTROLLER`
    while none is known. generation: counts the changes of `brokers`. acknowledged: by id, the incarnations of brokers
    that the controller has taken into account.
    """

    def __init__(
        self, store: IMetadataStore, node_id: int, feed: ChangeFeed, clock: IReactorTime | None = None,
        patience: float = 0.0,
    ) -> None:  # fmt: skip
        """A registration waits `patience` seconds of `clock` for an earlier one of this number to go."""
        self._store = store
        self._feed = feed
        self.node_id = node_id
        self._brokers: dict[int, Broker] = {}
        self._self: Broker | None = None
        self._registered_in = 0
        self._registering = False
        self._watched = False
        self._next_id, self._ids_end = 0, 0
        self._id_lock = DeferredLock()
        self._clock = clock
        self._patience = patience
        self._listeners: list[ClusterListener] = []
        self._forget: Callable[[], None] | None = None
        self.cluster_id = ""
        self.controller_id = NO_CONTROLLER
        self.generation = 0
        self.acknowledged: Mapping[int, int] = MappingProxyType({})
        #: Told why, once another broker has this one's number: this one is no member of the cluster any more.
        self.on_ousted: Callable[[NodeIdInUse], object] = lambda _: None
        feed.add(self)

    @property
    def brokers(self) -> Mapping[int, Broker]:
        """The live brokers by id."""
        return MappingProxyType(self._brokers)

    def subscribe(self, listener: ClusterListener) -> Callable[[], None]:
        """Call `listener` after each change of the live brokers; returns the undoing."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def start(self) -> Deferred[None]:
        """Learn, or make up, the cluster's id, and learn the live brokers."""
        return Deferred.fromCoroutine(self._start())

    def stop(self) -> None:
        """Follow the tree no longer. The broker's own node ends with the store's session."""
        if self._forget is not None:
            self._forget()
            self._forget = None

    def controller_changed(self, controller: int) -> None:
        """Another broker is the controller."""
        self.controller_id = controller

    def former_directories(self) -> Deferred[frozenset[str]]:
        """The ids of the data directories in which the tree says that this broker may have replicas."""
        return Deferred.fromCoroutine(self._read_epoch()).addCallback(lambda found: found[1])

    def register(self, broker: Broker) -> Deferred[None]:
        """Make this broker known, from now on and after every loss of the session. Fails with `NodeIdInUse`.

        One that is `fenced` is no live broker before `unfence`; until then the tree remembers its former directories.
        """
        assert broker.node_id == self.node_id
        self._self = broker
        return Deferred.fromCoroutine(self._register(broker, self._clock))

    def unfence(self) -> Deferred[None]:
        """Make the broker that is registered a live one. Fails with `BadVersion` or `NoNode` if it is not any more."""
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
        """Say that this broker is stopping; fires when it knows so itself. Fails with `NoNode` if it is unknown."""
        assert self._self is not None
        self._self = replace(self._self, stopping=True)
        path = f"{BROKERS}/{self.node_id}"
        write = self._feed.write([SetData(path, encode_broker(self._self))], [path])
        return Deferred.fromCoroutine(write).addCallback(lambda _: None)

    def report_outages(self, outages: Outages) -> Deferred[None]:
        """Say which replicas of this broker are offline or full, from now on and after every loss of the session.

        Fires when this broker knows it from the tree itself. Fails with the store's errors.
        """
        if self._self is None:
            return succeed(None)  # ousted: nobody asks this broker for its replicas any more
        self._self = replace(self._self, outages=outages)
        path = f"{BROKERS}/{self.node_id}"
        write = self._feed.write([SetData(path, encode_broker(self._self))], [path])
        return Deferred.fromCoroutine(write).addCallback(lambda _: None)

    @property
    def accepted(self) -> bool:
        """Whether the controller has taken this broker, as it is registered now, into account."""
        found = self._brokers.get(self.node_id)
        return found is not None and self.acknowledged.get(self.node_id) == found.incarnation

    def until_accepted(self) -> Deferred[None]:
        """Fires once `accepted`."""
        done: Deferred[None] = Deferred(lambda _: undo())

        def look() -> None:
            if self.accepted and not done.called:
                undo()
                done.callback(None)

        undo = self.subscribe(look)
        look()
        return done

    async def look_again(self) -> None:
        """Read who lives, sooner than a watch tells."""
        await self._reload()

    async def reload(self, store: IMetadataStore) -> None:
        """Read all that changes here by a write. Who lives is heard by a watch."""
        await self.refresh(store, Change([BROKERS, INCARNATIONS]))

    async def refresh(self, store: IMetadataStore, change: Change) -> None:
        """The same, as far as the change is about it."""
        paths = change.paths
        if INCARNATIONS in paths:
            try:
                self.acknowledged = decode_incarnations((await store.get(INCARNATIONS)).data)
            except NoNode:
                self.acknowledged = {}
            except CorruptMetadata as error:
                log.error("{error}. What it said before stays; the controller writes it anew", error=str(error))
        if any(path.startswith(BROKERS) for path in paths):
            await self._reload()
        if INCARNATIONS in paths:
            self._tell()

    def next_producer_id(self) -> Deferred[int]:
        """An id that no producer has had."""
        result: Deferred[int] = self._id_lock.run(lambda: Deferred.fromCoroutine(self._take_id()))
        return result

    async def _start(self) -> None:
        await all_of(self._store.ensure(path) for path in PARENTS)  # at once: together they share a commit
        proposal = id_to_text(new_id())
        try:
            await self._store.create(CLUSTER_ID, encode_cluster_id(proposal))
            self.cluster_id = proposal
        except NodeExists:
            self.cluster_id = decode_cluster_id((await self._store.get(CLUSTER_ID)).data)
        self._forget = self._store.on_session(self._session)
        await self._reload()

    async def _register(self, broker: Broker, clock: IReactorTime | None) -> None:
        """With a clock, an earlier registration may take its time to go."""
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
        """Make the broker's node; the epoch of the registration."""
        path = f"{BROKERS}/{broker.node_id}"
        epoch_path = broker_epoch_path(broker.node_id)
        while True:
            epoch, former = await self._read_epoch()
            broker = replace(broker, epoch=epoch + 1)
            directories = encode_directories(former.union(broker.directories) if broker.fenced else broker.directories)
            count: Operation = Create(epoch_path, directories) if epoch < 0 else SetData(epoch_path, directories, epoch)
            try:
                await self._store.multi([count, Create(path, encode_broker(broker), ephemeral=True)])
                return broker.epoch
            except BadVersion:
                continue
            except NodeExists as error:
                if error.path == path and await self._take_over(path, replace(broker, epoch=epoch), clock):
                    return epoch

    async def _read_epoch(self) -> tuple[int, frozenset[str]]:
        """The epoch of this broker's last registration, and the data directories that it may have replicas in."""
        path = broker_epoch_path(self.node_id)
        try:
            node = await self._store.get(path)
        except NoNode:
            return -1, frozenset()
        return node.stat.version, decode_directories(path, node.data)

    async def _take_over(self, path: str, broker: Broker, clock: IReactorTime | None) -> bool:
        """There is a registration: whether it is ours now, else it has gone. Raises `NodeIdInUse` if it stays."""
        try:
            node = await self._store.get(path)
        except NoNode:
            return False
        if node.stat.owner == self._store.session_id:
            await self._store.set(path, encode_broker(broker))
            return True
        other = decode_broker(path, node.data)
        if broker.directory_id is not None and other.directory_id == broker.directory_id:
            log.info("the registration that this broker's former process left behind goes")
            with suppress(NoNode, BadVersion):
                await self._store.delete(path, node.stat.version)
        else:
            await self._wait_for_end(path, node.stat, other, clock)
        return False

    async def _wait_for_end(self, path: str, held: NodeStat, other: Broker, clock: IReactorTime | None) -> None:
        """Return once the node of another session is gone: after a crash of this broker ZooKeeper keeps it for the
        session's timeout. Raises `NodeIdInUse` if it stays, or if there is another one.
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
            await _sleep(clock, _LOOK_SECONDS)
            stat = await self._store.exists(path)

    def _in_use(self, other: Broker) -> NodeIdInUse:
        return NodeIdInUse(
            f"another broker with node.id {self.node_id} is alive in this cluster, at {other.host}:{other.port}: "
            "give one of the two another node.id and an empty data directory, or stop it"
        )

    async def _reload(self) -> None:
        if not self._watched:
            self._watched = True
            await self._store.children(BROKERS, self._changed)
        nodes = await self._store.children_data(BROKERS)
        found = {}
        for name, node in nodes.items():
            try:
                broker = decode_broker(f"{BROKERS}/{name}", node.data, node.stat.created)
            except CorruptMetadata as error:
                log.error("a broker is passed over: {error}", error=str(error))
            else:
                if not broker.fenced:
                    found[broker.node_id] = broker
                registered = self._registered_in == self._store.session_id
                if broker.node_id == self.node_id and registered and node.stat.owner != self._registered_in:
                    self._oust(self._in_use(broker))
        if found != self._brokers:
            self._brokers = found
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
            try:
                block = encode_producer_block(self.node_id, start, end - 1)
                await self._store.set(PRODUCER_IDS, block, node.stat.version)
            except BadVersion:
                continue
            self._next_id, self._ids_end = start, end
        self._next_id += 1
        return self._next_id - 1

    def _changed(self, _: WatchEvent) -> None:
        self._watched = False
        if self._forget is not None:
            Deferred.fromCoroutine(self._reload()).addErrback(self._failed)

    def _session(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED:
            return
        self._watched = False
        registered = self._registering or self._registered_in == self._store.session_id
        again = self._self is not None and not registered
        # Nobody is waited for now: whoever came in the meantime is served by others as the broker of this number.
        work = self._register(self._self, None) if again and self._self is not None else self._reload()
        Deferred.fromCoroutine(work).addErrback(self._failed)

    def _oust(self, error: NodeIdInUse) -> None:
        log.error("{error}", error=str(error))
        self._self, self._registered_in = None, 0
        self.on_ousted(error)

    def _failed(self, failure: Failure) -> None:
        self._watched = False
        if self._forget is None:
            return  # it was under way when this was stopped
        if isinstance(failure.value, NodeIdInUse):
            self._oust(failure.value)
            return
        if failure.check(ConnectionLost, SessionExpired):
            log.warn("can't read the brokers of the cluster for now: {error}", error=failure.getErrorMessage())
            return
        log.failure("can't follow the brokers of the cluster", failure=failure)


def _sleep(clock: IReactorTime, seconds: float) -> Deferred[None]:
    done: Deferred[None] = Deferred(lambda _: later.cancel())
    later = clock.callLater(seconds, done.callback, None)
    return done
