"""How a leader changes the in-sync sets of its partitions.

Strategy: changes are collected while a write is under way and written together, all of a topic's in one versioned
write. A write that came too late (somebody else has changed the topic) is judged anew against the present states, and
written again if the change still holds.

Rules: only the leader of a partition, in the leader epoch in which it leads, changes its in-sync set, and only from the
state that it knew. A broker joins it only alive, not stopping, and not before its time (`PartitionState`). Nothing has
happened until the Deferred says so. Who joins is the broker, in the broker epoch, that was seen to have all: the write
fails if it has registered anew since (KIP-903).

Must not know: why a replica is in sync or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from pylogd.errors import PylogdError
from pylogd.metadata.changes import ChangeFeed
from pylogd.metadata.cluster import Cluster
from pylogd.metadata.configs import ATTEMPTS
from pylogd.metadata.eligibility import with_isr
from pylogd.metadata.errors import (
    BadVersion,
    FencedLeader,
    IneligibleReplica,
    NoNode,
    StalePartition,
    StoreError,
    TopicError,
    UnknownTopic,
)
from pylogd.metadata.image import IsrChange, PartitionState, Topic, TopicUpdate
from pylogd.metadata.interfaces import Check, Operation
from pylogd.metadata.layout import BROKER_EPOCHS, broker_epoch_path

if TYPE_CHECKING:
    from pylogd.metadata.topics import TopicRegistry

Outcome = PartitionState | PylogdError


class _Asked(NamedTuple):
    changes: list[IsrChange]
    done: Deferred[list[Outcome]]


class IsrWriter:
    """The changes to in-sync sets that one broker makes."""

    def __init__(
        self,
        topics: TopicRegistry,
        cluster: Cluster,
        feed: ChangeFeed,
        now_ms: Callable[[], int],
        min_insync: Callable[[Topic], int],
    ) -> None:
        """`now_ms`: the time of day, ms since 1970. `min_insync`: a topic's `min.insync.replicas`."""
        self._topics = topics
        self._min_insync = min_insync
        self._cluster = cluster
        self._feed = feed
        self._now_ms = now_ms
        self._waiting: list[_Asked] = []
        self._busy = False

    def alter(self, changes: Sequence[IsrChange]) -> Deferred[list[Outcome]]:
        """See `TopicRegistry.alter_isr`."""
        done: Deferred[list[Outcome]] = Deferred()
        self._waiting.append(_Asked(list(changes), done))
        if not self._busy:
            self._busy = True
            Deferred.fromCoroutine(self._run())
        return done

    async def _run(self) -> None:
        while self._waiting:
            asked, self._waiting = self._waiting, []
            try:
                outcomes = await self._write([change for one in asked for change in one.changes])
            except Exception:
                for one in asked:
                    one.done.errback(Failure())
                continue
            for one in asked:
                mine, outcomes = outcomes[: len(one.changes)], outcomes[len(one.changes) :]
                one.done.callback(mine)
        self._busy = False

    async def _write(self, changes: list[IsrChange]) -> list[Outcome]:
        outcomes: list[Outcome] = [StalePartition("the topic is being changed by others, try again")] * len(changes)
        left = list(range(len(changes)))
        for _ in range(ATTEMPTS):
            left, updates, guards = self._judge_all(changes, left, outcomes)
            if not left:
                break
            try:
                await self._topics.write_states(updates, guards=guards)
            except (BadVersion, NoNode) as error:
                try:
                    if error.path.startswith(BROKER_EPOCHS):
                        await self._cluster.look_again()
                    await self._feed.catch_up()
                except StoreError as error:
                    return _fail(outcomes, left, error)
            except PylogdError as error:
                return _fail(outcomes, left, error)
            # Another round finds that the changes have been made, or what has come in between.
        return outcomes

    def _judge_all(
        self, changes: Sequence[IsrChange], left: Sequence[int], outcomes: list[Outcome]
    ) -> tuple[list[int], list[TopicUpdate], list[Operation]]:
        """What is still to be written, by place in `changes`, how, and under which conditions. The others get their
        outcome.
        """
        still = []
        joining: dict[int, int] = {}  # broker epochs
        topics: dict[str, tuple[Topic, dict[int, PartitionState]]] = {}
        for place in left:
            change = changes[place]
            try:
                topic, states = topics.get(change.topic) or (self._find(change), {})
                before = _state(topic, states, change.index)
                after = self._judge(topic, before, change)
            except TopicError as error:
                outcomes[place] = error
                continue
            if after is before:
                outcomes[place] = before
            else:
                states[change.index] = after
                topics[change.topic] = topic, states
                still.append(place)
                new = (node for node in after.isr if node not in before.isr)
                joining.update((node, self._cluster.brokers[node].epoch) for node in new)
        updates = [
            TopicUpdate(topic, tuple(states.get(state.index, state) for state in topic.partitions))
            for topic, states in topics.values()
        ]
        guards: list[Operation] = [
            Check(broker_epoch_path(node), epoch) for node, epoch in sorted(joining.items()) if epoch >= 0
        ]
        return still, updates, guards

    def _find(self, change: IsrChange) -> Topic:
        topic = self._topics.get(change.topic)
        if topic is None or topic.topic_id != change.topic_id or not 0 <= change.index < len(topic.partitions):
            raise UnknownTopic(f"there is no partition {change.topic}-{change.index} of that id")
        return topic

    def _judge(self, topic: Topic, state: PartitionState, change: IsrChange) -> PartitionState:
        """The state after the change; the state itself if the change has been made. Raises why it can't be."""
        if state.leader != self._cluster.node_id or state.leader_epoch != change.leader_epoch:
            raise FencedLeader(f"broker {state.leader} leads in leader epoch {state.leader_epoch}")
        if state.partition_epoch == change.partition_epoch + 1 and state.isr == change.isr:
            return state
        if state.partition_epoch != change.partition_epoch:
            raise StalePartition(f"the partition epoch is {state.partition_epoch}, not {change.partition_epoch}")
        if state.leader not in change.isr:
            raise IneligibleReplica("the leader is in sync with itself")
        for broker in change.isr:
            if broker not in state.isr:
                self._check_may_join(state, broker, change.topic_id, change.epochs.get(broker, -1))
        after = with_isr(state, change.isr, self._min_insync(topic))
        return replace(after, partition_epoch=state.partition_epoch + 1)

    def _check_may_join(self, state: PartitionState, broker: int, topic_id: bytes, epoch: int) -> None:
        if broker not in state.replicas:
            raise IneligibleReplica(f"broker {broker} has no replica of the partition")
        live = self._cluster.brokers.get(broker)
        if live is None or live.stopping:
            raise IneligibleReplica(f"broker {broker} is not alive, or stopping")
        if (topic_id, state.index) in live.outages.offline or (topic_id, state.index) in live.outages.full:
            raise IneligibleReplica(f"broker {broker} has said that its replica is offline, or its disk full")
        if live.epoch != epoch:
            raise IneligibleReplica(f"broker {broker} was seen in broker epoch {epoch}, it is in {live.epoch} now")
        until = state.latest_until_ms
        if broker in state.adding and until is not None and until > self._now_ms():
            raise IneligibleReplica(f"broker {broker} has only the newest records: consumers still need the others")


def _state(topic: Topic, states: Mapping[int, PartitionState], index: int) -> PartitionState:
    return states.get(index) or topic.partitions[index]


def _fail(outcomes: list[Outcome], left: Sequence[int], error: PylogdError) -> list[Outcome]:
    for place in left:
        outcomes[place] = error
    return outcomes
