"""Elect the controller: the broker that holds the ephemeral node `/controller`.

Strategy: the broker that creates the node is the controller. The same write increments `/controller_epoch`, and every
write of a controller checks that node's version, so writes of a former controller fail in the store. Every broker
watches the node, and tries to create it when it is gone. In a large cluster a broker waits a little before. Then most
brokers find the node of another broker by a single read, and hundreds of brokers do not try at the same time.

Must not know: what a controller does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.broker.controller.machines import NODE, TERM, NodeEvent, NodeState, TermEvent, TermState
from pylogd.broker.controller.timers import Timers
from pylogd.broker.metadata.layout import decode_controller, decode_controller_epoch, encode_controller
from pylogd.broker.metadata.staggering import share
from pylogd.store.errors import BadVersion, CorruptMetadata, NodeExists, NoNode, StoreError
from pylogd.store.interfaces import Check, Create, Delete, EventType, IMetadataStore, Node, SetData, WatchEvent
from pylogd.store.paths import CONTROLLER, CONTROLLER_EPOCH, INCARNATIONS

log = Logger()

#: Seconds before the controller's node is read again after an error.
RETRY_SECONDS = 1.0
#: In a cluster of at most this many brokers all try to become the controller at the same time.
AT_ONCE: Final = 16
#: In a larger cluster, the average time between the attempts of two brokers, in seconds.
_APART_SECONDS: Final = 0.001
#: The most seconds over which attempts are spread, however many brokers there are.
MOST_SPREAD_SECONDS: Final = 2.0


class Election:
    """One broker's part in the elections.

    epoch: the controller epoch of this broker's latest term, 0 before the first.
    """

    def __init__(
        self,
        store: IMetadataStore,
        node_id: int,
        timers: Timers,
        now_ms: Callable[[], int],
        *,
        elected: Callable[[], object],
        deposed: Callable[[], object],
        found: Callable[[int], object],
        brokers: Callable[[], int],
    ) -> None:
        """Make the part.

        now_ms: the wall clock, for the time stamp of the election.
        brokers: returns how many brokers may be elected.
        elected: called when a term of this broker begins.
        deposed: called when a term of this broker ends.
        found: called with the controller's id whenever its node was read.
        """
        self.epoch = 0
        self._epoch_version = 0
        self._store = store
        self._node_id = node_id
        self._timers = timers
        self._now_ms = now_ms
        self._elected = elected
        self._deposed = deposed
        self._found = found
        self._brokers = brokers
        self._last_created = 0  # the transaction that created the last controller's node that was read
        self._term = TERM.machine()
        self._node = NODE.machine()

    @property
    def active(self) -> bool:
        """Whether this broker is the controller."""
        return self._term.state is TermState.ACTIVE

    @property
    def running(self) -> bool:
        """Whether this broker takes part."""
        return self._term.state is not TermState.STOPPED

    @property
    def guard(self) -> Check:
        """The condition of a controller's write: no other controller was elected."""
        return Check(CONTROLLER_EPOCH, self._epoch_version)

    def start(self) -> Deferred[None]:
        """Take part. Fires when a controller is known."""
        self._term.handle(TermEvent.START)
        return self.look()

    def stop(self) -> Deferred[None]:
        """Stop taking part. An active controller deletes its node, so that the next one is elected at once."""
        active = self.active
        self._end_term(TermEvent.STOP, "this broker stops")
        return Deferred.fromCoroutine(self._resign()) if active else succeed(None)

    async def _resign(self) -> None:
        with suppress(StoreError):  # otherwise the node is deleted with the session
            await self._store.multi([self.guard, Delete(CONTROLLER)])

    def depose(self, reason: str) -> None:
        """End this broker's term, if it is the controller. `reason` is for the operator."""
        if self.active:
            self._end_term(TermEvent.DEPOSED, reason)

    def _end_term(self, event: TermEvent, reason: str) -> None:
        active = self.active
        self._term.handle(event)
        if active:
            log.info("this broker is no longer the controller: {why}", why=reason)
            self._deposed()

    # -- the controller's node

    def look(self) -> Deferred[None]:
        """Read who is the controller, and become it if nobody is. If a read is under way, read again afterwards."""
        self._timers.cancel("look")
        busy = self._node.state is not NodeState.WATCHED
        self._node.handle(NodeEvent.CHANGED)
        return succeed(None) if busy else Deferred.fromCoroutine(self._look()).addErrback(self._look_failed)

    async def _look(self) -> None:
        try:
            while self.running:
                if self._node.state is NodeState.OUTDATED:
                    self._node.handle(NodeEvent.READ_AGAIN)
                if await self._read() and self._node.state is NodeState.READING:
                    return
        finally:
            self._node.handle(NodeEvent.DONE)

    async def _read(self) -> bool:
        """Read the controller's node, and try to create it if it is gone. Return whether the controller is known."""
        try:
            node = await self._store.get(CONTROLLER, self._node_changed)
        except NoNode:
            self.depose("its node is gone")
            await self._create_node()
            return False
        session = self._store.session_id
        ours = node.stat.owner == session
        self._last_created = node.stat.created
        if ours and not self.active:
            await self._store.ensure(INCARNATIONS)
            # No other controller can have incremented the epoch while the node is ours.
            epoch = await self._store.get(CONTROLLER_EPOCH)
            if self._store.session_id != session:
                return False
            self.epoch, self._epoch_version = _epoch_of(epoch), epoch.stat.version
        self._note_controller(decode_controller(node.data), ours)
        return True

    def _look_failed(self, failure: Failure) -> None:
        if not self.running:
            return
        log.error("Can't determine the controller, retrying: {error}", error=failure.getErrorMessage())
        self._timers.later("look", RETRY_SECONDS, self.look)

    async def _create_node(self) -> None:
        try:
            node = await self._store.get(CONTROLLER_EPOCH)
        except NoNode:  # the cluster's first election
            await self._store.ensure(CONTROLLER_EPOCH)
            node = await self._store.get(CONTROLLER_EPOCH)
        epoch = _epoch_of(node) + 1
        create = Create(CONTROLLER, encode_controller(self._node_id, self._now_ms()), ephemeral=True)
        increment = SetData(CONTROLLER_EPOCH, str(epoch).encode(), node.stat.version)
        with suppress(NodeExists, BadVersion):  # another broker was first
            await self._store.multi([create, increment])

    def _node_changed(self, event: WatchEvent) -> None:
        if not self.running:
            return
        seconds = 0.0 if self.active or event.type is not EventType.DELETED else self._turn()
        if seconds:
            self._timers.later("look", seconds, self.look)
        else:
            self.look()

    def _turn(self) -> float:
        """Return after how many seconds this broker tries to become the controller; 0 in a small cluster.

        The order of the brokers changes with each controller, and does not depend on which of them are alive.
        """
        brokers = self._brokers()
        if brokers <= AT_ONCE:
            return 0.0
        return min(brokers * _APART_SECONDS, MOST_SPREAD_SECONDS) * share(self._node_id, self._last_created)

    def _note_controller(self, controller: int, ours: bool) -> None:
        if not self.running:
            return
        if not ours:
            self.depose(f"broker {controller} is")
        elif not self.active:
            self._term.handle(TermEvent.ELECTED)
            log.info("this broker is the controller, epoch {epoch}", epoch=self.epoch)
            self._elected()
        self._found(controller)


def _epoch_of(node: Node) -> int:
    """Return the controller epoch that a node holds. If it can't be read, return one that is not below it.

    Every election writes the node once, so the node's version is at least the epoch.
    """
    try:
        return decode_controller_epoch(node.data)
    except CorruptMetadata as error:
        log.error(
            "{error}. The number of times that it was written, {version}, is used as the controller epoch",
            error=str(error), version=node.stat.version,
        )  # fmt: skip
        return node.stat.version
