"""Writes the in-sync sets of partitions that this broker leads to the metadata.

Strategy: changes are collected while a write is in progress, and then written together. All changes of a topic are one
versioned write. If another broker has changed one of the topics meanwhile, nothing is written: the changes are checked
against the present states, and written again if they are still valid. When the brokers of a rack return, all leaders
write at the same time, to the same topics. So each leader waits for a different time before the next attempt, and then
writes fewer topics together, so that more writes succeed.

Rules: only the leader of a partition changes its in-sync set, in the leader epoch in which it leads, and only from the
state that it knows. A broker may join only if it is alive, not stopping, and not before the time that a smooth
expansion sets (`PartitionState.latest_until_ms`). It joins in the broker epoch in which it was seen to be caught up:
the write fails if it has registered again since (KIP-903).

Must not know: why a replica is in sync or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from pylogd.base.deferreds import all_of
from pylogd.base.errors import PylogdError
from pylogd.broker.metadata.changes import ChangeFeed
from pylogd.broker.metadata.cluster import Cluster
from pylogd.broker.metadata.configs import ATTEMPTS
from pylogd.broker.metadata.eligibility import with_isr
from pylogd.broker.metadata.errors import FencedLeader, IneligibleReplica, StalePartition, TopicError, UnknownTopic
from pylogd.broker.metadata.image import IsrChange, PartitionState, Topic, TopicUpdate
from pylogd.broker.metadata.layout import broker_epoch_path
from pylogd.broker.metadata.topics import TopicRegistry
from pylogd.store.errors import BadVersion, NoNode
from pylogd.store.interfaces import Check, Operation
from pylogd.store.paths import BROKER_EPOCHS, TOPICS

Outcome = PartitionState | PylogdError

#: If another broker's write has prevented a write, each part of the next attempt has this many times fewer topics.
_FEWER_TOPICS: Final = 4


class _PendingCall(NamedTuple):
    changes: list[IsrChange]
    done: Deferred[list[Outcome]]


class IsrWriter:
    """Makes one broker's changes to in-sync sets."""

    def __init__(
        self,
        topics: TopicRegistry,
        cluster: Cluster,
        feed: ChangeFeed,
        now_ms: Callable[[], int],
        min_insync: Callable[[Topic], int],
    ) -> None:
        """Arguments:

        now_ms: the wall clock, in ms since 1970.
        min_insync: returns a topic's `min.insync.replicas`.
        """
        self._topics = topics
        self._min_insync = min_insync
        self._cluster = cluster
        self._feed = feed
        self._now_ms = now_ms
        self._waiting: list[_PendingCall] = []
        self._busy = False

    def alter(self, changes: Sequence[IsrChange]) -> Deferred[list[Outcome]]:
        """Write in-sync sets as the leader of their partitions.

        Fires with an outcome for each change, in order: the new state once the look-ups have it, or the error. After
        `FencedLeader`, `StalePartition`, `IneligibleReplica` and `UnknownTopic` the partition has to be checked again.
        After a `StoreError` the write may or may not have been done.
        """
        done: Deferred[list[Outcome]] = Deferred()
        self._waiting.append(_PendingCall(list(changes), done))
        if not self._busy:
            self._busy = True
            Deferred.fromCoroutine(self._run())
        return done

    async def _run(self) -> None:
        while self._waiting:
            calls, self._waiting = self._waiting, []
            try:
                outcomes = await self._write([change for call in calls for change in call.changes])
            except Exception:
                for call in calls:
                    call.done.errback(Failure())
                continue
            for call in calls:
                mine, outcomes = outcomes[: len(call.changes)], outcomes[len(call.changes) :]
                call.done.callback(mine)
        self._busy = False

    async def _write(self, changes: list[IsrChange]) -> list[Outcome]:
        outcomes: list[Outcome] = [StalePartition("the topic is being changed by another request, try again")] * len(
            changes
        )
        left = list(range(len(changes)))
        for attempt in range(ATTEMPTS):
            left, updates, guards = self._check_all(changes, left, outcomes)
            if not left:
                break
            together = -(-len(updates) // _FEWER_TOPICS**attempt)
            parts = [updates[start : start + together] for start in range(0, len(updates), together)]
            writes = [Deferred.fromCoroutine(self._write_part(part, guards)) for part in parts]
            try:
                conflicts = [path for path in await all_of(writes) if path is not None]
                if any(path.startswith(BROKER_EPOCHS) for path in conflicts):
                    await self._cluster.look_again()
                if conflicts:
                    await self._feed.back_off(attempt)
                    await self._feed.catch_up()
            except PylogdError as error:
                return _fail(outcomes, left, error)
            # The next round finds that the changes are made, or what prevents them.
        return outcomes

    async def _write_part(self, updates: Sequence[TopicUpdate], guards: Sequence[Operation]) -> str | None:
        """Write the states of some topics. Return the path of a node that another broker has changed, or None."""
        try:
            await self._topics.write_states(updates, guards=guards)
        except (BadVersion, NoNode) as error:
            return error.path
        except StalePartition:  # another part was read back, and with it the write of another broker
            return TOPICS
        return None

    def _check_all(
        self, changes: Sequence[IsrChange], left: Sequence[int], outcomes: list[Outcome]
    ) -> tuple[list[int], list[TopicUpdate], list[Operation]]:
        """Check the changes with the indexes `left`. Put outcomes of changes that are done or refused into `outcomes`.

        Returns the indexes of the changes to write, the updates that write them, and the operations to do before:
        checks of the broker epochs of joining brokers.
        """
        still = []
        joining: dict[int, int] = {}  # broker epochs by node id
        topics: dict[str, tuple[Topic, dict[int, PartitionState]]] = {}
        for position in left:
            change = changes[position]
            try:
                topic, states = topics.get(change.topic) or (self._find(change), {})
                before = _state(topic, states, change.index)
                after = self._changed_state(topic, before, change)
            except TopicError as error:
                outcomes[position] = error
                continue
            if after is before:
                outcomes[position] = before
            else:
                states[change.index] = after
                topics[change.topic] = topic, states
                still.append(position)
                new = (node for node in after.isr if node not in before.isr)
                joining.update((node, self._cluster.brokers[node].epoch) for node in new)
        updates = [TopicUpdate(topic, _with(topic.partitions, states)) for topic, states in topics.values()]
        guards: list[Operation] = [
            Check(broker_epoch_path(node), epoch) for node, epoch in sorted(joining.items()) if epoch >= 0
        ]
        return still, updates, guards

    def _find(self, change: IsrChange) -> Topic:
        topic = self._topics.get(change.topic)
        if topic is None or topic.topic_id != change.topic_id or not 0 <= change.index < len(topic.partitions):
            raise UnknownTopic(f"there is no partition {change.topic}-{change.index} of that id")
        return topic

    def _changed_state(self, topic: Topic, state: PartitionState, change: IsrChange) -> PartitionState:
        """Return the state after the change, or `state` itself if the change is already made. Raises a TopicError."""
        if state.leader != self._cluster.node_id or state.leader_epoch != change.leader_epoch:
            raise FencedLeader(f"broker {state.leader} leads in leader epoch {state.leader_epoch}")
        if state.partition_epoch == change.partition_epoch + 1 and state.isr == change.isr:
            return state
        if state.partition_epoch != change.partition_epoch:
            raise StalePartition(f"the partition epoch is {state.partition_epoch}, not {change.partition_epoch}")
        if state.leader not in change.isr:
            raise IneligibleReplica("the leader can't leave the in-sync set")
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
            raise IneligibleReplica(f"broker {broker} has reported its replica as offline, or its volume as full")
        if live.epoch != epoch:
            raise IneligibleReplica(
                f"broker {broker} was caught up in broker epoch {epoch}, but is in epoch {live.epoch} now"
            )
        until = state.latest_until_ms
        if broker in state.adding and until is not None and until > self._now_ms():
            raise IneligibleReplica(f"broker {broker} has only the newest records: consumers still need the others")


def _state(topic: Topic, states: Mapping[int, PartitionState], index: int) -> PartitionState:
    return states.get(index) or topic.partitions[index]


def _with(before: Sequence[PartitionState], states: Mapping[int, PartitionState]) -> tuple[PartitionState, ...]:
    after = list(before)
    for index, state in states.items():
        after[index] = state
    return tuple(after)


def _fail(outcomes: list[Outcome], left: Sequence[int], error: PylogdError) -> list[Outcome]:
    for position in left:
        outcomes[position] = error
    return outcomes
