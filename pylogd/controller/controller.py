"""The one broker of the cluster that acts when brokers come and go: elected, fenced, followed by the next.

Strategy: whoever makes the ephemeral node `/controller` is it; the same write counts `/controller_epoch` up, and every
write of a controller checks that node's version, so what a former one still sends fails in the store. Every broker
watches the node, and tries for it when it goes. What happens (brokers, topics) is heard from the registries; all that
came in one turn of the reactor, or while a write was under way, is decided together and written as one batch.

Rules:
- Nothing is kept in memory that the next controller could need: what was decided stands in the tree, the incarnations
  of brokers that it was decided for with it.
- A decision stands on the registries as they are when it is written: if the tree has moved on, the write fails, the
  registries catch up, and it is decided anew.
- A broker that stops says so in the tree (`stop_leading`), and goes on until it leads nothing that another can lead.

Must not know: the rules themselves (`decisions`), requests, logs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.config import Settings
from pylogd.controller import decisions, internal
from pylogd.controller.decisions import Snapshot
from pylogd.metadata.cluster import Cluster
from pylogd.metadata.eligibility import min_insync_of
from pylogd.metadata.errors import BadVersion, NodeError, NodeExists, NoNode, StalePartition, StoreError
from pylogd.metadata.image import NO_LEADER, TopicChange, TopicUpdate
from pylogd.metadata.interfaces import Check, Create, Delete, IMetadataStore, Node, SessionState, SetData, WatchEvent
from pylogd.metadata.layout import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    INCARNATIONS,
    CorruptMetadata,
    decode_controller,
    decode_controller_epoch,
    decode_incarnations,
    encode_controller,
    encode_incarnations,
)
from pylogd.metadata.topics import TopicRegistry

log = Logger()

#: Seconds before something that the store did not do is tried again, when no news of it comes first.
RETRY_SECONDS = 1.0


class Controller:
    """One broker's share in the controller: it is `active` on one broker of the cluster at a time.

    epoch: of this broker's own term, the last one if it is over; 0 before the first.
    """

    def __init__(
        self, store: IMetadataStore, cluster: Cluster, topics: TopicRegistry, settings: Settings, clock: IReactorTime,
        now_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        """`now_ms` is the wall clock, for the time stamp of the election."""
        self.active = False
        self.epoch = 0
        self._store = store
        self._cluster = cluster
        self._topics = topics
        self._settings = settings
        self._clock = clock
        self._now_ms = now_ms
        self._epoch_version = 0
        self._known: dict[int, int] = {}
        self._known_version = 0
        self._known_unreadable = False
        self._running = False
        self._campaigning = False
        self._campaign_again = False
        self._dirty: dict[str, None] = {}  # names of topics, in order
        self._all_dirty = False
        self._working = False
        self._calls: dict[str, IDelayedCall] = {}
        self._undo: list[Callable[[], object]] = []
        self._leaving: list[Deferred[None]] = []

    # -- life

    def start(self) -> Deferred[None]:
        """Take part. The registries have to be started and this broker registered. Fires when a controller is known."""
        self._running = True
        self._undo = [
            self._cluster.subscribe(self._brokers_changed),
            self._topics.subscribe(self._topic_changed),
            self._store.on_session(self._session),
            self._settings.subscribe(self._settings_changed),
        ]
        return self._campaign()

    def stop(self) -> Deferred[None]:
        """Take no more part. An active controller ends its term, so that the next need not wait for its session."""
        self._running = False
        for undo in self._undo:
            undo()
        self._undo = []
        for call in self._calls.values():
            call.cancel()
        self._calls = {}
        if not self.active:
            return succeed(None)
        self._end_term("this broker stops")
        return Deferred.fromCoroutine(self._resign())

    async def _resign(self) -> None:
        with suppress(StoreError):  # then it goes with the session
            await self._store.multi([Check(CONTROLLER_EPOCH, self._epoch_version), Delete(CONTROLLER)])

    def stop_leading(self) -> Deferred[None]:
        """Say that this broker is stopping; fires once it leads nothing, and is in sync with nobody, that others can do
        without it. The caller decides how long to wait for that.
        """
        return Deferred.fromCoroutine(self._stop_leading())

    async def _stop_leading(self) -> None:
        await self._cluster.mark_stopping()
        while self._running and self._to_hand_over():
            wait: Deferred[None] = Deferred()
            self._leaving.append(wait)
            await wait

    def _to_hand_over(self) -> bool:
        node = self._cluster.node_id
        snapshot = self._snapshot()
        least = {topic.name: partial(min_insync_of, self._settings, topic) for topic in self._topics.all()}
        return any(
            decisions.settle(state, snapshot.of(topic.topic_id, state.index), min_insync=least[topic.name]) is not state
            for topic in self._topics.all()
            for state in topic.partitions
            if node in state.isr and topic.name not in self._topics.unreadable
        )

    # -- election

    def _campaign(self) -> Deferred[None]:
        """See who is the controller, or become it. One look at a time; a call meanwhile makes for another."""
        if self._campaigning:
            self._campaign_again = True
            return succeed(None)
        self._campaigning = True
        return Deferred.fromCoroutine(self._look()).addErrback(self._look_failed)

    async def _look(self) -> None:
        try:
            while self._running:
                self._campaign_again = False
                try:
                    node = await self._store.get(CONTROLLER, self._vacant)
                except NoNode:
                    self._end_term("its node is gone")
                    await self._seize()
                    continue
                session = self._store.session_id
                ours = node.stat.owner == session
                if ours and not self.active:
                    # Nobody else can have counted it up while the controller's node is ours.
                    epoch = await self._store.get(CONTROLLER_EPOCH)
                    if self._store.session_id != session:
                        continue
                    self.epoch, self._epoch_version = _epoch_of(epoch), epoch.stat.version
                self._seen(decode_controller(node.data), ours)
                if not self._campaign_again:
                    return
        finally:
            self._campaigning = False

    def _look_failed(self, failure: Failure) -> None:
        if not self._running:
            return
        log.error("Can't determine the controller, retrying: {error}", error=failure.getErrorMessage())
        self._later("campaign", RETRY_SECONDS, self._campaign)

    async def _seize(self) -> None:
        await self._store.ensure(CONTROLLER_EPOCH)
        await self._store.ensure(INCARNATIONS)
        node = await self._store.get(CONTROLLER_EPOCH)
        epoch = _epoch_of(node) + 1
        mine = encode_controller(self._cluster.node_id, self._now_ms())
        count_up = SetData(CONTROLLER_EPOCH, str(epoch).encode(), node.stat.version)
        with suppress(NodeExists, BadVersion):  # another broker was quicker
            await self._store.multi([Create(CONTROLLER, mine, ephemeral=True), count_up])

    def _vacant(self, _: WatchEvent) -> None:
        if self._running:
            self._campaign()

    def _seen(self, controller: int, ours: bool) -> None:
        if ours and not self.active:
            log.info("this broker is the controller, epoch {epoch}", epoch=self.epoch)
            self.active = True
            self._all_dirty = True
            self._wake()
            self._balance_later()
        elif not ours:
            self._end_term(f"broker {controller} is")
        self._cluster.controller_changed(controller)

    def _end_term(self, why: str) -> None:
        if self.active:
            log.info("this broker is no longer the controller: {why}", why=why)
            self.active = False
            self._cancel("balance")

    def _session(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._end_term("its session expired")
        elif state is SessionState.CONNECTED:
            self._all_dirty = True
            self._campaign()
            self._wake()

    # -- what happens

    def _brokers_changed(self) -> None:
        self._all_dirty = True
        self._wake()
        self._look_again_later()

    def _topic_changed(self, change: TopicChange) -> None:
        if change.after is not None:
            self._dirty[change.after.name] = None
            self._wake()
        self._look_again_later()

    def _settings_changed(self, names: frozenset[str]) -> None:
        if not names.isdisjoint(("unclean.leader.election.enable", "min.insync.replicas")):
            self._all_dirty = True
            self._wake()

    def _look_again_later(self) -> None:
        """Have a broker that is stopping see what is left, once for all that comes in a turn."""
        if self._leaving:
            self._later("leaving", 0, self._look_again)

    def _look_again(self) -> None:
        waiting, self._leaving = self._leaving, []
        for wait in waiting:
            wait.callback(None)

    # -- what is done

    def _wake(self) -> None:
        """Decide in the next turn, when all that belongs to one event has come."""
        if self.active and not self._working:
            self._later("work", 0, self._work)

    def _work(self) -> None:
        if not self._working:
            self._working = True
            Deferred.fromCoroutine(self._run()).addErrback(self._work_failed)

    async def _run(self) -> None:
        try:
            while self.active and (self._dirty or self._all_dirty):
                await self._round()
        finally:
            self._working = False

    async def _round(self) -> None:
        if self._all_dirty:
            # Also what the one before decided, and for whom, is read again: it may have been somebody else.
            await self._topics.catch_up()
            self._learn_known(await self._store.get(INCARNATIONS))
        dirty, everything = self._dirty, self._all_dirty
        self._dirty, self._all_dirty = {}, False
        topics = self._topics.all() if everything else list(filter(None, map(self._topics.get, dirty)))
        snapshot = self._snapshot()
        unclean = frozenset(topic.name for topic in topics if self._allows_unclean(topic.configs))
        updates = decisions.settle_all(snapshot, topics, unclean, partial(min_insync_of, self._settings))
        settled = {update.before.name for update in updates}  # what they become, they are looked at for again
        updates += internal.grow(snapshot, [topic for topic in topics if topic.name not in settled], self._settings)
        known = snapshot.incarnations
        try:
            await self._write(updates, known if everything else self._known)
        except (NodeError, StalePartition) as error:
            self._all_dirty = True
            if isinstance(error, NodeError) and error.path == CONTROLLER_EPOCH:
                self._end_term("another one has been elected")
                self._campaign()
        except BaseException:
            self._all_dirty = True
            raise

    def _learn_known(self, node: Node) -> None:
        self._known_version = node.stat.version
        try:
            self._known, self._known_unreadable = decode_incarnations(node.data), False
        except CorruptMetadata as error:
            log.error("{error}. It is replaced by what this broker read from it last", error=str(error))
            self._known, self._known_unreadable = dict(self._cluster.acknowledged), True

    async def _write(self, updates: list[TopicUpdate], known: dict[int, int]) -> None:
        changed = known != self._known or self._known_unreadable
        last = [SetData(INCARNATIONS, encode_incarnations(known), self._known_version)] if changed else []
        if not updates and not last:
            return
        guard = Check(CONTROLLER_EPOCH, self._epoch_version)
        await self._topics.write_states(updates, self.epoch, [guard], last)
        if last:
            self._known, self._known_version, self._known_unreadable = known, self._known_version + 1, False
        _report(updates)

    def _work_failed(self, failure: Failure) -> None:
        if not self._running:
            return
        if failure.check(StoreError):
            log.warn("The controller could not write its decisions, retrying: {error}", error=failure.getErrorMessage())
        else:
            log.failure("Unexpected error in the controller, retrying", failure=failure)
        self._later("work", RETRY_SECONDS, self._work)

    def _snapshot(self) -> Snapshot:
        return Snapshot(dict(self._cluster.brokers), self._known if self.active else self._cluster.acknowledged)

    def _allows_unclean(self, configs: Mapping[str, str]) -> bool:
        own = configs.get("unclean.leader.election.enable")
        return self._settings.flag("unclean.leader.election.enable") if own is None else own == "true"

    # -- preferred leaders

    def _balance_later(self) -> None:
        seconds = self._settings.integer("leader.imbalance.check.interval.seconds")
        self._later("balance", seconds, self._balance)

    def _balance(self) -> None:
        busy = self._working or self._all_dirty  # then it comes too early, and comes again
        if self.active and not busy and self._settings.flag("auto.leader.rebalance.enable"):
            percentage = self._settings.integer("leader.imbalance.per.broker.percentage")
            updates = decisions.imbalanced(self._snapshot(), self._topics.all(), percentage)
            if updates:
                log.info("Electing preferred leaders in {count} topics", count=len(updates))
                Deferred.fromCoroutine(self._write(updates, self._known)).addErrback(self._balance_failed)
        self._balance_later()

    def _balance_failed(self, failure: Failure) -> None:
        failure.trap(StoreError, StalePartition)
        log.info("Preferred leaders were not elected, since topics changed: {error}", error=str(failure.value))

    def _later(self, name: str, seconds: float, function: Callable[[], object]) -> None:
        """Call `function` once, the sooner of this time and that of an earlier call by the same name."""
        pending = self._calls.get(name)
        if pending is not None:
            if pending.getTime() <= self._clock.seconds() + seconds:
                return
            pending.cancel()

        def call() -> None:
            del self._calls[name]
            function()

        self._calls[name] = self._clock.callLater(seconds, call)

    def _cancel(self, name: str) -> None:
        call = self._calls.pop(name, None)
        if call is not None:
            call.cancel()


def _epoch_of(node: Node) -> int:
    """Return the controller epoch that a node holds, or one that is not below it if it can't be read.

    Every election writes the node once, so its version is at least the epoch.
    """
    try:
        return decode_controller_epoch(node.data)
    except CorruptMetadata as error:
        log.error(
            "{error}. The number of times that it was written, {version}, is used as the controller epoch",
            error=str(error), version=node.stat.version,
        )  # fmt: skip
        return node.stat.version


def _report(updates: list[TopicUpdate]) -> None:
    """Say what was done: one line for a batch."""
    moved = alone = offline = 0
    for before, after in updates:
        for old, new in zip(before.partitions, after, strict=True):
            moved += old.leader != new.leader
            offline += new.leader == NO_LEADER
            alone += len(new.isr) == 1 and len(new.replicas) > 1
    if updates:
        log.info(
            "{topics} topics written: {moved} partitions have another leader, {offline} have none, {alone} have one "
            "replica in sync",
            topics=len(updates), moved=moved, offline=offline, alone=alone,
        )  # fmt: skip
