"""The cluster: its id, and its live brokers.

Strategy: a broker is live while its ephemeral node exists; `registrations` keeps the table of live brokers up to date,
and `own_registration` has this broker's node. If another broker takes that node while this broker's session is lost,
this one has to stop (`on_ousted`).

Must not know: topics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.deferreds import all_of
from pylogd.broker.metadata.change_notes import Change
from pylogd.broker.metadata.changes import ChangeFeed
from pylogd.broker.metadata.image import Broker, id_to_text, new_id
from pylogd.broker.metadata.layout import (
    decode_cluster_id,
    decode_incarnations,
    encode_cluster_id,
)
from pylogd.broker.metadata.own_registration import OwnRegistration
from pylogd.broker.metadata.registrations import Registrations
from pylogd.broker.metadata.staggering import share
from pylogd.store.errors import (
    ConnectionLost,
    CorruptMetadata,
    NodeExists,
    NodeIdInUse,
    NoNode,
    SessionExpired,
)
from pylogd.store.interfaces import IMetadataStore, SessionState
from pylogd.store.paths import BROKERS, CLUSTER_ID, INCARNATIONS, PARENTS

log = Logger()

#: The controller's id while no controller is known.
NO_CONTROLLER: Final = -1
#: In a cluster of at most this many brokers all read at once which brokers have come and gone.
AT_ONCE: Final = 16
#: The brokers of a larger cluster spread these reads. The average time between two brokers, in seconds, is the time in
#: which a server answers with the names of a thousand brokers.
_APART_SECONDS: Final = 0.000_25

ClusterListener = Callable[[], None]


class Cluster:
    """What this broker knows about its cluster.

    cluster_id: 22 characters, empty before `start`.
    controller_id: the controller's node id, or `NO_CONTROLLER`.
    generation: counts the changes of `brokers`.
    acknowledged: the incarnations of brokers, by id, that the controller has taken into account.
    own: the registration of this broker.
    """

    def __init__(
        self, store: IMetadataStore, node_id: int, feed: ChangeFeed, clock: IReactorTime | None = None,
        patience: float = 0.0,
    ) -> None:  # fmt: skip
        """A registration waits up to `patience` seconds of `clock` until an earlier one with this node id has ended."""
        self._store = store
        self.node_id = node_id
        self.own = OwnRegistration(store, node_id, feed, clock, patience)
        self._brokers: dict[int, Broker] = {}
        self._known: dict[int, Broker] = {}
        self._registrations = Registrations(store, self._changed)
        self._clock = clock
        self._listeners: list[ClusterListener] = []
        self._forget: Callable[[], None] | None = None
        self._following: IDelayedCall | None = None  # the call that reads which brokers have come and gone
        self.cluster_id = ""
        self.controller_id = NO_CONTROLLER
        self.generation = 0
        self.acknowledged: Mapping[int, int] = MappingProxyType({})
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

    def register(self, broker: Broker) -> Deferred[None]:
        """Register this broker, now and after every loss of the session. Fails with `NodeIdInUse`."""
        assert broker.node_id == self.node_id
        return Deferred.fromCoroutine(self._register(self.own.register(broker)))

    async def _register(self, registering: Awaitable[None]) -> None:
        await registering
        await self._reload()

    @property
    def epoch(self) -> int:
        """The epoch of this broker's registration (KIP-903), -1 before the first."""
        return self.own.epoch

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

    async def _reload(self) -> None:
        await self._registrations.read_all()
        self._apply()

    async def _follow(self) -> None:
        await self._registrations.follow()
        self._apply()

    def _apply(self) -> None:
        """Apply the registrations that were read."""
        ours = self._registrations.found.get(self.node_id)
        if ours is not None and self.own.is_ousted_by(ours.owner):
            self._oust(self.own.in_use(ours.broker))
        found = {node: one.broker for node, one in self._registrations.found.items() if not one.broker.fenced}
        if found != self._brokers:
            self._brokers = found
            self._known.update(found)
            self.generation += 1
            self._tell()

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()

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
        work = self._register(self.own.register_again()) if self.own.is_lost else self._resume()
        Deferred.fromCoroutine(work).addErrback(self._failed)

    async def _resume(self) -> None:
        """Read the brokers after the connection was restored. If need be, write our labels and addresses again.

        If this is still the session in which this broker registered and read all brokers, only changes are read.
        """
        same = self.own.is_current
        await (self._follow() if same else self._reload())
        found = self._brokers.get(self.node_id) if same else None
        ours = self.own.broker
        if found and ours and (found.labels, found.endpoints) != (ours.labels, ours.endpoints):
            await self.own.publish()

    def _oust(self, error: NodeIdInUse) -> None:
        log.error("{error}", error=str(error))
        self.own.forget()
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
