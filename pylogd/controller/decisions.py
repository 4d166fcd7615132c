"""Who leads a partition, and who is in sync after brokers came and went: pure functions over a snapshot of the tree.

Strategy: one function takes a partition's state to the state that it should have (`settle`), whatever happened before:
a broker died, came back, came back unnoticed, is stopping, a reassignment is done. So an event is nothing but a reason
to look again, one pass decides for all partitions, and a pass over its own result changes nothing.

Rules:
- A leader comes from the in-sync set; if nobody of it is alive, from the eligible replicas (`metadata.eligibility`); if
  nobody is in either, the last known leader leads on with what its disk kept. Only where the topic allows unclean
  elections another replica may lead; it is then the only one in sync, and nobody is eligible.
- A broker that registered anew since the last decisions has died in between, even if nobody saw it. It leaves the
  in-sync sets, unless nobody else alive is in one; where it leads on, it does so in a new leader epoch, so that its
  followers see where their logs part. What it has lost it has said itself before it registered.
- The last of an in-sync set stay in it when they die: one of them has to lead next.
- A broker that is stopping is given nothing, leads on only where nobody else can, and follows nobody.
- A replica that its broker reports as offline (its log directory has failed) is neither in sync nor eligible: what a
  disk that failed has kept is not known. One on a full volume is treated as on a stopping broker, but it stays in sync,
  and may be elected, where nobody with room is left: it can be read.
- Epochs only grow. A partition with one replica keeps its leader epoch: nobody's log can part from its own.
- Replicas that are added join the in-sync set by their leader's word; when all that are to stay are in sync, the others
  are dropped.

Must not know: stores, time, who carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pylogd.metadata.eligibility import led_by, with_isr, withdraw
from pylogd.metadata.image import NO_LEADER, Broker, PartitionState, Topic, TopicUpdate


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The brokers as the decisions see them.

    `brokers`: those alive, by id. `known`: their incarnations that earlier decisions took into account, by id.
    `steady`: those alive that did not die in between. `open`: those of them that may be given something.
    `full`: those whose replica of the partition at hand is on a full volume; `offline`: those alive whose replica of it
    is offline, which are left out of the others; see `of`.
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
        """The brokers as decisions about one partition see them: without those whose replica of it is offline."""
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
        """What is `known` once decisions over this snapshot have been written."""
        return {node: broker.incarnation for node, broker in sorted(self.brokers.items())}

    def may_lead(self, node: int) -> bool:
        """Whether a broker may be made a leader, if only because nobody else can be."""
        broker = self.brokers.get(node)
        return broker is not None and not broker.stopping


def settle_all(
    snapshot: Snapshot, topics: Iterable[Topic], unclean: frozenset[str], min_insync: Callable[[Topic], int]
) -> list[TopicUpdate]:
    """Every topic of which a partition should have another state. `unclean`: names of those that allow unclean
    elections. `min_insync`: a topic's `min.insync.replicas`.
    """

    def change(topic: Topic, state: PartitionState) -> PartitionState:
        seen = snapshot.of(topic.topic_id, state.index) if outages else snapshot
        return settle(state, seen, topic.name in unclean, partial(min_insync, topic))

    outages = any(broker.outages for broker in snapshot.brokers.values())
    return updates_of(topics, change)


def settle(
    state: PartitionState, snapshot: Snapshot, unclean: bool = False, min_insync: Callable[[], int] = lambda: 1
) -> PartitionState:
    """The state that a partition should have; the state itself if that is it.

    `min_insync`: its topic's `min.insync.replicas`, asked for where it matters.
    """
    usual = not (state.adding or state.removing or state.elr or state.last_known_elr)
    if usual and state.leader in snapshot.open and snapshot.open.issuperset(state.isr):
        return state
    after = _finish_move(_fail_over(_without_offline(state, snapshot), snapshot, unclean, min_insync()), snapshot)
    if after is state or after == state:
        return state
    # However many steps it took, it is one change.
    leader_epoch = min(after.leader_epoch, state.leader_epoch + 1)
    return replace(after, leader_epoch=leader_epoch, partition_epoch=state.partition_epoch + 1)


def prefer(state: PartitionState, snapshot: Snapshot) -> PartitionState | None:
    """The state with the preferred leader leading; None if that one can't."""
    preferred = state.replicas[0]
    if preferred not in state.isr or preferred not in snapshot.open:
        return None
    return state if state.leader == preferred else led_by(state, preferred)


def elect_unclean(state: PartitionState, snapshot: Snapshot) -> PartitionState | None:
    """The state with somebody leading, in sync before or not; None if no replica is alive."""
    if state.leader in snapshot.brokers:
        return state
    # Whoever may be eligible stays so: the controller, which knows the topic's settings, says when it is over.
    after = settle(state, snapshot, unclean=True, min_insync=lambda: len(state.replicas))
    return None if after.leader == NO_LEADER else after


def imbalanced(snapshot: Snapshot, topics: Sequence[Topic], percentage: int) -> list[TopicUpdate]:
    """Preferred leaders for the partitions of every broker that leads too few of those that it should.

    `percentage`: how many of a hundred partitions that prefer a broker may be led by others. Partitions whose replicas
    are being moved are left alone.
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
    """The state at the beginning of a reassignment to `target`, which takes the place of one that is under way.

    To go back to where one began is to cancel it. None if no replica that stays is in sync and could lead.
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
    """The replicas that a partition had before the reassignment under way."""
    return tuple(node for node in state.replicas if node not in state.adding)


def updates_of(topics: Iterable[Topic], change: Callable[[Topic, PartitionState], PartitionState]) -> list[TopicUpdate]:
    """Every topic that `change` makes something else of, partition by partition."""
    updates = []
    for topic in topics:
        after = [change(topic, state) for state in topic.partitions]
        if any(new is not old for new, old in zip(after, topic.partitions, strict=True)):
            updates.append(TopicUpdate(topic, tuple(after)))
    return updates


def _without_offline(state: PartitionState, snapshot: Snapshot) -> PartitionState:
    """The state once nobody counts on copies in failed log directories: they may lack their end when they are back."""
    for node in snapshot.offline:
        state = withdraw(state, node, kept=True)
    return state


def _fail_over(state: PartitionState, snapshot: Snapshot, unclean: bool, min_insync: int) -> PartitionState:
    if len(state.replicas) == 1 and state.leader in snapshot.brokers:
        return state
    staying = tuple(node for node in state.isr if node in snapshot.open)
    if not staying:  # full volumes alone have it: they serve reads
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
    """Who leads next: of those in sync the first replica with room on its volume that did not die in between, or the
    first; then likewise of those that are eligible; then the last known leader, if nobody is in sync or eligible and it
    has its copy still.
    """
    for candidates in (state.isr, state.elr):
        alive = [node for node in state.replicas if node in candidates and snapshot.may_lead(node)]
        alive.sort(key=lambda node: (node in snapshot.full, node not in snapshot.steady))
        if alive:
            return alive[0]
    if state.leader in snapshot.brokers:
        return state.leader  # it is stopping, and came back unnoticed before that
    last = state.last_known_leader
    if not state.isr and not state.elr and last in state.last_known_elr and snapshot.may_lead(last):
        return last
    return None


def _choose_unclean(state: PartitionState, snapshot: Snapshot) -> int | None:
    """The first replica alive, one that was eligible once before the others."""
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
