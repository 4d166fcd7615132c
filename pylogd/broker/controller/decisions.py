"""The rules of leader elections and in-sync sets: pure functions over a snapshot of the metadata.

Strategy: one function, `settle`, returns the state that a partition should have, whatever happened before: a broker
failed, returned, returned unnoticed, is stopping, or a reassignment is done. So an event is only a reason to check
again. One pass decides for all partitions, and a pass over its own result changes nothing.

Rules:
- A leader is elected from the in-sync set; if no broker of it is alive, from the eligible replicas
  (`metadata.eligibility`). If both are empty, the last known leader leads with the records that its disk has kept.
  Another replica may lead only if the topic allows unclean elections. It is then the only one in sync, and none is
  eligible.
- A broker that has re-registered since the last decisions is treated as failed: it leaves every in-sync set that has
  other live members. If it continues to lead, the leader epoch is raised, so that its followers see where their logs
  diverge. The broker itself has reported its lost copies before it registered.
- If all in-sync replicas fail, the in-sync set is kept and the partition stays offline until one of them returns.
- A broker that is stopping is not elected and leaves the in-sync sets; it leads only while no other broker can.
- A replica that its broker reports as offline (its log directory has failed) is neither in sync nor eligible, since
  nobody knows what the failed disk has kept. A replica on a full volume is treated like one on a stopping broker. But
  if no other replica has space, it stays in sync, and may be elected, since it can be read.
- Epochs only grow. A partition with one replica keeps its leader epoch: no other log can diverge from it.
- A leader adds the replicas of a reassignment to the in-sync set. When all target replicas are in sync, the others are
  removed.

Must not know: stores, time, who carries the decisions out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_not

from pylogd.broker.metadata.eligibility import led_by, with_isr, withdraw
from pylogd.broker.metadata.image import NO_LEADER, Broker, PartitionState, Topic, TopicUpdate


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The live brokers, in the form that decisions need.

    brokers: the live brokers, by id.
    known: the incarnations, by id, that earlier decisions took into account.
    steady: ids of the brokers that have not re-registered since.
    open: ids of those in `steady` that may be elected and be in sync.
    full: ids of brokers whose replica of the partition in question is on a full volume; see `of`.
    offline: ids of brokers whose replica of this partition is offline. They are in none of the others; see `of`.
    """

    brokers: Mapping[int, Broker]
    known: Mapping[int, int] = field(default_factory=dict)
    steady: frozenset[int] = field(init=False)
    open: frozenset[int] = field(init=False)
    full: frozenset[int] = frozenset()
    offline: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        numbers = {node: broker.incarnation for node, broker in self.brokers.items()}
        steady = frozenset(node for node, number in numbers.items() if self.known.get(node, number) == number)
        object.__setattr__(self, "steady", steady)
        given = frozenset(node for node in steady if not self.brokers[node].stopping)
        object.__setattr__(self, "open", given - self.full)

    def of(self, topic_id: bytes, index: int) -> Snapshot:
        """Return the snapshot for decisions about one partition, with `full` and `offline` set."""
        key = topic_id, index
        with_outages = [(node, broker.outages) for node, broker in self.brokers.items() if broker.outages]
        offline = frozenset(node for node, outages in with_outages if key in outages.offline)
        full = frozenset(node for node, outages in with_outages if key in outages.full) - offline
        if not offline and not full:
            return self
        brokers = {node: broker for node, broker in self.brokers.items() if node not in offline}
        return replace(self, brokers=brokers, full=full, offline=offline)

    @property
    def incarnations(self) -> dict[int, int]:
        """The value of `known` after decisions on this snapshot have been written."""
        return {node: broker.incarnation for node, broker in sorted(self.brokers.items())}

    def may_lead(self, node: int) -> bool:
        """Return whether a broker may be elected if there is no better one."""
        broker = self.brokers.get(node)
        return broker is not None and not broker.stopping


def settle_all(
    snapshot: Snapshot, topics: Iterable[Topic], unclean: frozenset[str], min_insync: Callable[[Topic], int]
) -> list[TopicUpdate]:
    """Return the updates of all topics with a partition whose state should change.

    unclean: names of topics that allow unclean elections.
    min_insync: returns a topic's `min.insync.replicas`.
    """
    outages = any(broker.outages for broker in snapshot.brokers.values())
    given = snapshot.open
    updates: list[TopicUpdate] = []
    for topic in topics:
        allowed, least = topic.name in unclean, min_insync(topic)
        if outages:
            after = [
                settle(state, snapshot.of(topic.topic_id, state.index), allowed, least) for state in topic.partitions
            ]
        else:
            after = [
                _usual(state, given, least) or settle(state, snapshot, allowed, least) for state in topic.partitions
            ]
        _add_update(updates, topic, after)
    return updates


def unclean_elections(updates: Iterable[TopicUpdate]) -> int:
    """Return how many partitions get a leader that was neither in sync nor eligible, so that records may be lost."""
    return sum(
        new.leader not in (old.leader, NO_LEADER, *old.isr, *old.elr)
        for update in updates
        for old, new in zip(update.before.partitions, update.after, strict=False)
    )


def settle(state: PartitionState, snapshot: Snapshot, unclean: bool = False, min_insync: int = 1) -> PartitionState:
    """Return the state that a partition should have, which may be the same object.

    unclean: whether the topic allows unclean elections.
    min_insync: the topic's `min.insync.replicas`.
    """
    if not (snapshot.full or snapshot.offline):
        if len(state.replicas) == 1 and state.leader in snapshot.brokers:
            return state
        known = _usual(state, snapshot.open, min_insync)
        if known is not None:
            return known
    after = _finish_move(_fail_over(_without_offline(state, snapshot), snapshot, unclean, min_insync), snapshot)
    if after is state or after == state:
        return state
    # The steps are one change: epochs grow by one.
    leader_epoch = min(after.leader_epoch, state.leader_epoch + 1)
    return replace(after, leader_epoch=leader_epoch, partition_epoch=state.partition_epoch + 1)


def _usual(state: PartitionState, given: frozenset[int], least: int) -> PartitionState | None:
    """Return the result of `settle` for nearly all partitions, in a fraction of the time; None for the others.

    It handles partitions without a reassignment or eligible replicas, of which enough replicas stay in sync.

    given: the brokers that may be in sync and lead.
    least: `min.insync.replicas`.
    """
    if state.adding or state.removing or state.elr or state.last_known_elr:
        return None
    leader, isr = state.leader, state.isr
    if leader in given and given.issuperset(isr):
        return state
    replicas = state.replicas
    staying = tuple(filter(given.__contains__, isr))
    count = len(staying)
    if not count or (count < least and count < state.effective_min_insync(least)) or len(replicas) == 1:
        return None
    epoch, last, lost = state.leader_epoch, state.last_known_leader, state.lost
    if leader not in staying:
        for leader in replicas:  # the first one that is in sync
            if leader in staying:
                break
        epoch, last, lost = epoch + 1, NO_LEADER, ()
    return PartitionState(
        state.index, replicas, staying, leader, epoch, state.partition_epoch + 1, (), (), state.latest_until_ms,
        (), (), last, lost,
    )  # fmt: skip


def prefer(state: PartitionState, snapshot: Snapshot) -> PartitionState | None:
    """Return the state with the preferred leader elected, or None if it can't lead."""
    preferred = state.replicas[0]
    if preferred not in state.isr or preferred not in snapshot.open:
        return None
    return state if state.leader == preferred else led_by(state, preferred)


def elect_unclean(state: PartitionState, snapshot: Snapshot) -> PartitionState | None:
    """Return the state with any live replica as leader, in sync or not; None if no replica is alive."""
    if state.leader in snapshot.brokers:
        return state
    # Eligible replicas stay eligible. The controller knows the topic's settings and removes them when it may.
    after = settle(state, snapshot, unclean=True, min_insync=len(state.replicas))
    return None if after.leader == NO_LEADER else after


def imbalanced(snapshot: Snapshot, topics: Sequence[Topic], percentage: int) -> list[TopicUpdate]:
    """Return updates that elect preferred leaders, for brokers that lead too few of the partitions that prefer them.

    percentage: the share of the partitions that prefer a broker that others may lead.

    Partitions with a reassignment in progress are left out.
    """
    preferring: dict[int, int] = {}
    elsewhere: dict[int, int] = {}
    for topic in topics:
        for state in topic.partitions:
            preferred = state.replicas[0]
            if not state.moving:
                preferring[preferred] = preferring.get(preferred, 0) + 1
                if state.leader != preferred:
                    elsewhere[preferred] = elsewhere.get(preferred, 0) + 1
    due = {node for node, count in elsewhere.items() if count * 100 > preferring[node] * percentage}
    if not due:
        return []

    def balance(topic: Topic, state: PartitionState) -> PartitionState:
        if state.moving or state.replicas[0] not in due:
            return state
        return prefer(state, snapshot.of(topic.topic_id, state.index)) or state

    return updates_of(topics, balance)


def move(
    state: PartitionState, target: Sequence[int], snapshot: Snapshot, latest_until_ms: int | None = None
) -> PartitionState | None:
    """Return the state with a reassignment to `target` begun, which replaces one that is in progress.

    latest_until_ms: see `PartitionState`.

    A reassignment to its `origin` cancels a reassignment. Returns None if none of the remaining replicas is in sync and
    can lead.
    """
    original = origin(state)
    adding = tuple(node for node in target if node not in original)
    removing = tuple(node for node in original if node not in target)
    replicas = (*target, *removing)
    isr = tuple(node for node in state.isr if node in replicas)
    if not isr:
        return None
    until = latest_until_ms if adding else None
    after = replace(
        state, replicas=replicas, adding=adding, removing=removing, isr=isr, latest_until_ms=until,
        elr=_of(replicas, state.elr), last_known_elr=_of(replicas, state.last_known_elr),
    )  # fmt: skip
    if state.leader not in replicas and state.leader != NO_LEADER:
        successor = next((node for node in replicas if node in isr and snapshot.may_lead(node)), None)
        if successor is None:
            return None
        return led_by(after, successor)
    return state if after == state else replace(after, partition_epoch=state.partition_epoch + 1)


def origin(state: PartitionState) -> tuple[int, ...]:
    """Return the replicas that a partition had before the reassignment in progress."""
    return tuple(node for node in state.replicas if node not in state.adding)


def updates_of(topics: Iterable[Topic], change: Callable[[Topic, PartitionState], PartitionState]) -> list[TopicUpdate]:
    """Apply `change` to every partition. Return the updates of topics of which at least one partition changed."""
    updates: list[TopicUpdate] = []
    for topic in topics:
        _add_update(updates, topic, [change(topic, state) for state in topic.partitions])
    return updates


def _add_update(updates: list[TopicUpdate], topic: Topic, after: Sequence[PartitionState]) -> None:
    """Add the update of a topic if one of its partitions has changed."""
    if any(map(is_not, after, topic.partitions)):
        updates.append(TopicUpdate(topic, tuple(after)))


def _without_offline(state: PartitionState, snapshot: Snapshot) -> PartitionState:
    """Withdraw copies in failed log directories. When they return, their last records may be missing."""
    for node in snapshot.offline:
        state = withdraw(state, node, kept=True)
    return state


def _fail_over(state: PartitionState, snapshot: Snapshot, unclean: bool, min_insync: int) -> PartitionState:
    if len(state.replicas) == 1 and state.leader in snapshot.brokers:
        return state
    staying = tuple(node for node in state.isr if node in snapshot.open)
    if not staying:  # only replicas on full volumes are left, and these can be read
        staying = tuple(node for node in state.isr if node in snapshot.full and node in snapshot.steady)
    if state.leader in snapshot.steady and (state.leader in staying or not staying):
        return with_isr(state, staying or (state.leader,), min_insync)
    leader = _choose(state, snapshot)
    if leader is not None:
        return led_by(with_isr(state, staying if leader in staying else (leader,), min_insync), leader)
    if unclean:
        leader = _choose_unclean(state, snapshot)
    if leader is not None:
        return led_by(replace(state, isr=(leader,), elr=(), last_known_elr=()), leader)
    return state if state.leader == NO_LEADER else led_by(state, NO_LEADER)


def _choose(state: PartitionState, snapshot: Snapshot) -> int | None:
    """Return the next leader, None if there is no clean one.

    It is the first live replica in sync; without one, the first eligible replica. In both cases replicas with space on
    their volume, and those that have not re-registered, go before the others. Otherwise it is the last known leader, if
    that still has its copy.
    """
    for candidates in (state.isr, state.elr):
        alive = [node for node in state.replicas if node in candidates and snapshot.may_lead(node)]
        alive.sort(key=lambda node: (node in snapshot.full, node not in snapshot.steady))
        if alive:
            return alive[0]
    if state.leader in snapshot.brokers:
        return state.leader  # it is stopping, and had re-registered before
    last = state.last_known_leader
    if not state.isr and not state.elr and last in state.last_known_elr and snapshot.may_lead(last):
        return last
    return None


def _choose_unclean(state: PartitionState, snapshot: Snapshot) -> int | None:
    """Return the first live replica. Replicas that were last known to be eligible go before the others."""
    alive = [node for node in state.replicas if snapshot.may_lead(node)]
    alive.sort(key=lambda node: node not in state.last_known_elr)
    return alive[0] if alive else None


def _finish_move(state: PartitionState, snapshot: Snapshot) -> PartitionState:
    if not state.moving or state.leader == NO_LEADER:
        return state
    target = state.target
    if not set(target).issubset(state.isr):
        return state
    after = replace(
        state,
        replicas=target,
        isr=_of(target, state.isr),
        adding=(),
        removing=(),
        latest_until_ms=None,
        elr=(),
        last_known_elr=(),
    )
    if state.leader in target:
        return after
    successor = next((node for node in target if node in snapshot.open), None)
    return state if successor is None else led_by(after, successor)


def _of(replicas: Sequence[int], nodes: Sequence[int]) -> tuple[int, ...]:
    return tuple(node for node in nodes if node in replicas)
