"""The one broker of the cluster that acts when brokers come and go. It is elected, and fenced when the next one is.

Strategy: `election` decides which broker is the controller. The registries tell the controller about changes of brokers
and topics. All changes that arrive in one turn of the reactor, or while a write is under way, are decided together and
written as one batch.

Rules:
- Nothing is kept in memory that the next controller could need. The metadata has the decisions, and the incarnations of
  brokers for which they were made.
- A decision is made from the registries as they are when it is written. If the metadata has changed since, the write
  fails, the registries catch up, and the decision is made again. Decisions on very many partitions are made in slices,
  between which the reactor serves others.
- A broker that stops announces this in the metadata (`stop_leading`), and continues until it leads nothing that another
  broker can lead.

Must not know: the rules themselves (`decisions`), requests, logs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.broker.controller import decisions, internal
from pylogd.broker.controller.decisions import Snapshot
from pylogd.broker.controller.election import RETRY_SECONDS, Election
from pylogd.broker.controller.machines import WORK, WorkEvent, WorkState
from pylogd.broker.controller.misplaced import MisplacedReport
from pylogd.broker.controller.timers import Timers
from pylogd.broker.metadata.cluster import Cluster
from pylogd.broker.metadata.eligibility import min_insync_of
from pylogd.broker.metadata.errors import StalePartition
from pylogd.broker.metadata.image import NO_LEADER, PartitionState, Topic, TopicChange, TopicUpdate
from pylogd.broker.metadata.layout import decode_incarnations, encode_incarnations
from pylogd.broker.metadata.topics import TopicRegistry
from pylogd.config import Settings
from pylogd.store.errors import CorruptMetadata, NodeError, StoreError
from pylogd.store.interfaces import IMetadataStore, Node, SessionState, SetData
from pylogd.store.paths import CONTROLLER_EPOCH, INCARNATIONS

log = Logger()

#: After this many partitions others get their turn of the reactor.
_SLICE_PARTITIONS: Final = 4000
#: Changed topics are written when there are this many.
_WRITE_TOPICS: Final = 500
#: The most writes that are sent before the first of them is answered. In a large cluster ZooKeeper answers a write only
#: after many brokers' reads of earlier writes. That takes up to three times as long as the decisions of the next write.
_WRITES_AT_ONCE: Final = 8
#: The settings that affect which brokers may lead.
_ELECTION_SETTINGS = ("unclean.leader.election.enable", "min.insync.replicas")


class Writes:
    """Writes that run concurrently, at most `most` of them.

    any_begun: whether any write was begun.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._under_way: deque[Deferred[None]] = deque()
        self._failures: list[Failure] = []
        self.any_begun = False

    async def may_begin(self) -> None:
        """Wait until another write may begin. Once one has failed, wait for all and raise its error."""
        while len(self._under_way) >= self._most and not self._failures:
            await self._under_way.popleft()
        if self._failures:
            await self.done()

    def begin(self, write: Coroutine[Deferred[Any], Any, None]) -> None:
        """Begin a write."""
        self.any_begun = True
        self._under_way.append(Deferred.fromCoroutine(write).addErrback(self._failures.append))

    async def done(self) -> None:
        """Wait for all writes. Raises the error of the first one that failed."""
        while self._under_way:
            await self._under_way.popleft()
        if self._failures:
            self._failures[0].raiseException()


class _DecidedIncarnations:
    """The incarnations of brokers for which decisions were made, as the metadata store has them.

    known: the incarnation of each broker, by its id.
    """

    __slots__ = ("_is_readable", "_version", "known")

    def __init__(self) -> None:
        self.known: dict[int, int] = {}
        self._version = 0
        self._is_readable = True

    def read(self, node: Node, otherwise: Mapping[int, int]) -> None:
        """Note what is in the node. If it can't be read, `otherwise` counts, and replaces it with the next write."""
        self._version = node.stat.version
        try:
            self.known, self._is_readable = decode_incarnations(node.data), True
        except CorruptMetadata as error:
            log.error("{error}. It is replaced by what this broker read from it last", error=str(error))
            self.known, self._is_readable = dict(otherwise), False

    def write(self, known: dict[int, int]) -> list[SetData]:
        """Return the write that makes `known` what is in the node; an empty list if it is that already."""
        if known == self.known and self._is_readable:
            return []
        return [SetData(INCARNATIONS, encode_incarnations(known), self._version)]

    def written(self, known: dict[int, int]) -> None:
        """Note that the write was made."""
        self.known, self._version, self._is_readable = known, self._version + 1, True


class Controller:
    """One broker's controller, which decides while the broker is elected."""

    def __init__(
        self, store: IMetadataStore, cluster: Cluster, topics: TopicRegistry, settings: Settings, clock: IReactorTime,
        now_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        """now_ms: the wall clock, for the time stamp of the election."""
        self._store = store
        self._cluster = cluster
        self._topics = topics
        self._settings = settings
        self._timers = Timers(clock)
        self._election = Election(
            store, cluster.node_id, self._timers, now_ms,
            elected=self._elected, deposed=lambda: self._timers.cancel("balance"), found=cluster.controller_changed,
            brokers=lambda: len(cluster.brokers),
        )  # fmt: skip
        self._work = WORK.machine()
        self._decided = _DecidedIncarnations()
        self._dirty: dict[str, None] = {}  # names of topics to decide on, in order
        self._all_dirty = False
        self._read_brokers = False  # whether to read all registrations, since some may have been replaced unnoticed
        self._misplaced = MisplacedReport()
        self._seconds = clock.seconds
        self._progress = 0.0  # when the decisions under way last made progress
        self._undo: list[Callable[[], object]] = []
        self._leaving: list[Deferred[None]] = []
        # Leaders that this broker elected as the controller and that were not in sync before.
        self.unclean_elections = 0

    @property
    def active(self) -> bool:
        """Whether this broker is the controller."""
        return self._election.active

    @property
    def epoch(self) -> int:
        """The controller epoch of this broker's latest term, 0 before the first."""
        return self._election.epoch

    def is_stuck(self, seconds: float) -> bool:
        """Return whether decisions of this controller are under way and have made no progress for this many seconds.

        This happens if an answer never comes, or after an error of the program. If no other broker has replaced this
        controller after twice that time, it ends its term.
        """
        if not self.active or self._work.state is WorkState.IDLE:
            return False
        idle = self._seconds() - self._progress
        if idle >= 2 * seconds:
            log.error("The controller's decisions have not got on for {idle:.0f} s; it ends its term", idle=idle)
            self._election.depose("its decisions do not get on")
            self._election.look()
            return False
        return idle >= seconds

    # -- start and stop

    def start(self) -> Deferred[None]:
        """Take part in elections. Fires when a controller is known.

        The registries must be started, and this broker must be registered.
        """
        self._undo = [
            self._cluster.subscribe(self._brokers_changed),
            self._topics.subscribe(self._topic_changed),
            self._store.on_session(self._session_changed),
            self._settings.subscribe(self._settings_changed),
        ]
        return self._election.start()

    def stop(self) -> Deferred[None]:
        """Stop taking part. An active controller ends its term, so that the next one is elected at once."""
        for undo in self._undo:
            undo()
        self._undo = []
        self._timers.cancel_all()
        self._work.handle(WorkEvent.STOP)
        return self._election.stop()

    def stop_leading(self) -> Deferred[None]:
        """Announce that this broker is stopping. Fires once other brokers have taken over all that they can take over.

        Then this broker leads no partition, and is in no in-sync set, that can do without it. The caller decides how
        long to wait for that.
        """
        return Deferred.fromCoroutine(self._stop_leading())

    async def _stop_leading(self) -> None:
        await self._cluster.own.mark_stopping()
        while self._election.running and self._to_hand_over():
            wait: Deferred[None] = Deferred()
            self._leaving.append(wait)
            await wait

    def _to_hand_over(self) -> bool:
        node = self._cluster.node_id
        snapshot = self._snapshot()

        def stays(topic: Topic, state: PartitionState) -> bool:
            least = min_insync_of(self._settings, topic)
            return decisions.settle(state, snapshot.of(topic.topic_id, state.index), min_insync=least) is state

        return not all(
            stays(topic, state)
            for topic in self._topics.all()
            for state in topic.partitions
            if node in state.isr and topic.name not in self._topics.unreadable
        )

    # -- what happens

    def _elected(self) -> None:
        self._all_dirty = self._read_brokers = True
        self._wake()
        self._balance_later()

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._election.depose("its session expired")
        elif state is SessionState.CONNECTED:
            self._all_dirty = self._read_brokers = True
            self._election.look()
            self._wake()

    def _brokers_changed(self) -> None:
        self._all_dirty = True
        self._wake()
        self._check_leaving_later()

    def _topic_changed(self, change: TopicChange) -> None:
        if change.after is not None:
            self._dirty[change.after.name] = None
            self._wake()
        self._check_leaving_later()

    def _settings_changed(self, names: frozenset[str]) -> None:
        if not names.isdisjoint(_ELECTION_SETTINGS):
            self._all_dirty = True
            self._wake()

    def _check_leaving_later(self) -> None:
        """Let `stop_leading` check what is left to hand over, once for all changes in a turn of the reactor."""
        if self._leaving:
            self._timers.later("leaving", 0, self._check_leaving)

    def _check_leaving(self) -> None:
        waiting, self._leaving = self._leaving, []
        for wait in waiting:
            wait.callback(None)

    # -- decisions

    def _wake(self) -> None:
        """Decide in the next turn of the reactor, when all changes of one event have arrived."""
        if self.active and self._work.state is WorkState.IDLE:
            self._progress = self._seconds()
        if self.active and self._work.handle(WorkEvent.NEWS) is WorkState.DUE:
            self._timers.later("work", 0, self._begin)

    def _begin(self) -> None:
        self._work.handle(WorkEvent.BEGIN)
        Deferred.fromCoroutine(self._run()).addErrback(self._failed)

    async def _run(self) -> None:
        while self.active and (self._dirty or self._all_dirty):
            self._progress = self._seconds()
            await self._round()
        self._work.handle(WorkEvent.DONE)

    def _failed(self, failure: Failure) -> None:
        if not self._election.running:
            self._work.handle(WorkEvent.DONE)
            return
        if failure.check(StoreError):
            log.warn("The controller could not write its decisions, retrying: {error}", error=failure.getErrorMessage())
        else:
            log.failure("Unexpected error in the controller, retrying", failure=failure)
        self._progress = self._seconds()
        self._work.handle(WorkEvent.FAILED)
        self._timers.later("work", RETRY_SECONDS, self._begin)

    async def _round(self) -> None:
        if self._all_dirty:
            # This includes the last decisions, since the previous controller may have been another broker.
            if self._read_brokers:
                self._read_brokers = False
                await self._cluster.look_again()
            await self._topics.catch_up()
            self._decided.read(await self._store.get(INCARNATIONS), self._cluster.acknowledged)
        self._progress = self._seconds()
        dirty, everything = self._dirty, self._all_dirty
        self._dirty, self._all_dirty = {}, False
        topics = self._topics.all() if everything else list(filter(None, map(self._topics.get, dirty)))
        snapshot = self._snapshot()
        try:
            await self._decide(snapshot, topics, snapshot.incarnations if everything else self._decided.known)
            if everything:
                self._misplaced.look(topics, snapshot.brokers)
        except (NodeError, StalePartition) as error:
            self._all_dirty = True
            if isinstance(error, NodeError) and error.path == CONTROLLER_EPOCH:
                self._election.depose("another one has been elected")
                self._election.look()
        except BaseException:
            self._all_dirty = True
            raise

    async def _decide(self, snapshot: Snapshot, topics: Sequence[Topic], known: dict[int, int]) -> None:
        """Decide on topics and write the decisions, in slices: deciding on 200,000 partitions takes a second.

        If a topic has changed before the write of its slice, it is decided again on the same snapshot. The only write,
        or a last one when all others are done, says that all decisions for `known` have been made. So no write waits
        for the others.
        """
        decided: list[TopicUpdate] = []
        writes = Writes(_WRITES_AT_ONCE)  # decisions continue during writes, so the time of writes is not added
        for some in _slices(topics):
            if decided and len(decided) >= _WRITE_TOPICS:
                await writes.may_begin()
                writes.begin(self._write(self._decide_changed_again(snapshot, decided), self._decided.known))
                decided = []
            decided += self._settle(snapshot, some)
            if some[-1] is not topics[-1]:
                await self._next_turn()
                if not self.active:
                    break
        if writes.any_begun and self.active:
            await writes.may_begin()
            writes.begin(self._write(self._decide_changed_again(snapshot, decided), self._decided.known))
            decided = []
        await writes.done()
        if not self.active:
            return
        await self._write(self._decide_changed_again(snapshot, decided), known)

    def _settle(self, snapshot: Snapshot, topics: Sequence[Topic]) -> list[TopicUpdate]:
        unclean = frozenset(topic.name for topic in topics if self._allows_unclean(topic.configs))
        updates = decisions.settle_all(snapshot, topics, unclean, partial(min_insync_of, self._settings))
        settled = {update.before.name for update in updates}  # their next changes come when they have been written
        return updates + internal.grow(
            snapshot, [topic for topic in topics if topic.name not in settled], self._settings
        )

    def _decide_changed_again(self, snapshot: Snapshot, updates: Sequence[TopicUpdate]) -> list[TopicUpdate]:
        """Return the updates, with new updates for topics that have changed since the decision."""
        same, changed = [], []
        for update in updates:
            now = self._topics.get(update.before.name)
            if now is update.before:
                same.append(update)
            elif now is not None:
                changed.append(now)
        return same + self._settle(snapshot, changed)

    def _next_turn(self) -> Deferred[None]:
        """Return a Deferred that fires in the next turn of the reactor."""
        done: Deferred[None] = Deferred()
        self._timers.later("slice", 0, lambda: done.callback(None))
        return done

    async def _write(self, updates: list[TopicUpdate], known: dict[int, int]) -> None:
        last = self._decided.write(known)
        if not updates and not last:
            return
        await self._topics.write_states(updates, self.epoch, [self._election.guard], last)
        self._progress = self._seconds()
        if last:
            self._decided.written(known)
        _report(updates)
        self.unclean_elections += decisions.unclean_elections(updates)

    def _snapshot(self) -> Snapshot:
        return Snapshot(dict(self._cluster.brokers), self._decided.known if self.active else self._cluster.acknowledged)

    def _allows_unclean(self, configs: Mapping[str, str]) -> bool:
        own = configs.get("unclean.leader.election.enable")
        return self._settings.flag("unclean.leader.election.enable") if own is None else own == "true"

    # -- preferred leaders

    def _balance_later(self) -> None:
        seconds = self._settings.integer("leader.imbalance.check.interval.seconds")
        self._timers.later("balance", seconds, self._balance)

    def _balance(self) -> None:
        busy = self._work.state is WorkState.DECIDING or self._all_dirty  # then leaders are balanced the next time
        if self.active and not busy and self._settings.flag("auto.leader.rebalance.enable"):
            percentage = self._settings.integer("leader.imbalance.per.broker.percentage")
            updates = decisions.imbalanced(self._snapshot(), self._topics.all(), percentage)
            if updates:
                log.info("Electing preferred leaders in {count} topics", count=len(updates))
                Deferred.fromCoroutine(self._write(updates, self._decided.known)).addErrback(self._balance_failed)
        self._balance_later()

    def _balance_failed(self, failure: Failure) -> None:
        failure.trap(StoreError, StalePartition)
        log.info("Preferred leaders were not elected, since topics changed: {error}", error=str(failure.value))


def _slices(topics: Sequence[Topic]) -> Iterator[Sequence[Topic]]:
    """Yield topics in slices of about so many partitions that deciding on a slice takes some milliseconds."""
    start = size = 0
    for end, topic in enumerate(topics, 1):
        size += len(topic.partitions)
        if size >= _SLICE_PARTITIONS or end == len(topics):
            yield topics[start:end]
            start, size = end, 0


def _report(updates: list[TopicUpdate]) -> None:
    """Log in one line what was written."""
    moved = alone = offline = 0
    for before, after in updates:
        for old, new in zip(before.partitions, after, strict=True):
            if old.leader != new.leader:
                moved += 1
            if new.leader == NO_LEADER:
                offline += 1
            if len(new.isr) == 1 and len(new.replicas) > 1:
                alone += 1
    if updates:
        log.info(
            "{topics} topics written: {moved} partitions have another leader, {offline} have none, {alone} have one "
            "replica in sync",
            topics=len(updates), moved=moved, offline=offline, alone=alone,
        )  # fmt: skip
