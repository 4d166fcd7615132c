"""Elections and reassignments that clients ask for; any broker can do them.

Strategy: `decisions` computes the new states from what this broker knows, and they are written with the versions that
it knows. If the metadata has changed since, the write fails, the broker catches up, and they are computed again. So it
doesn't matter which broker does it, and no request is forwarded. If this broker did not know yet that another one had
failed, the controller corrects the state, since it looks at every topic that changes.

Rules: each partition of a request has its own outcome. A reassignment is answered once it has begun.

Must not know: requests, who the controller is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from twisted.internet.defer import Deferred

from pylogd.controller import decisions
from pylogd.controller.decisions import Snapshot
from pylogd.errors import PylogdError
from pylogd.metadata.cluster import Cluster
from pylogd.metadata.configs import ATTEMPTS
from pylogd.metadata.errors import (
    BadVersion,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    IneligibleReplica,
    InvalidChange,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoNode,
    NoReassignmentInProgress,
    PreferredLeaderNotAvailable,
    StalePartition,
    TopicError,
    UnknownTopic,
)
from pylogd.metadata.image import NO_LEADER, PartitionState, Topic, TopicUpdate
from pylogd.metadata.together import Pause, without_pause
from pylogd.metadata.topics import TopicRegistry

#: (topic name, partition)
Key = tuple[str, int]
Outcomes = dict[Key, PylogdError | None]
_Change = Callable[[PartitionState, Snapshot], PartitionState]


class PartitionAdmin:
    """Elects leaders and moves replicas on behalf of clients."""

    def __init__(
        self,
        cluster: Cluster,
        topics: TopicRegistry,
        room_on: Callable[[int], int | None],
        now_ms: Callable[[], int],
    ) -> None:
        """`room_on`: as `TopicAdmin.room_on`. `now_ms`: the wall clock, ms since 1970."""
        self._cluster = cluster
        self._topics = topics
        self._room_on = room_on
        self._now_ms = now_ms

    def elect(
        self, partitions: Sequence[Key] | None, *, unclean: bool, pause: Pause = without_pause
    ) -> Deferred[Outcomes]:
        """Elect the preferred leaders; with `unclean`, any live replica of partitions without a leader.

        partitions: None for all that need it. pause: awaited for each partition. Fires with an outcome for each: None,
        `ElectionNotNeeded`, `PreferredLeaderNotAvailable`, `EligibleLeadersNotAvailable` or `UnknownTopic`.
        """
        change = self._elect_unclean if unclean else self._elect_preferred
        if partitions is None:
            partitions = [
                (topic.name, state.index)
                for topic in self._topics.all()
                for state in topic.partitions
                if (state.leader == NO_LEADER if unclean else state.leader != state.replicas[0])
            ]
        return Deferred.fromCoroutine(self._change(dict.fromkeys(partitions, change), pause))

    def move(
        self,
        targets: Mapping[Key, Sequence[int] | None],
        *,
        latest_wait_ms: int | None = None,
        keep_factor: bool = False,
        pause: Pause = without_pause,
    ) -> Deferred[Outcomes]:
        """Begin to move each partition to other replicas, or cancel its reassignment if the target is None.

        latest_wait_ms: for a smooth expansion: added replicas begin with the latest offset, and join the in-sync set
        when every group has read that far, or after this time. Refused for internal and compacted topics, whose state
        would be lost. keep_factor: refuse to change the number of replicas. pause: awaited for each partition.

        Fires with an outcome for each: None, `InvalidReplicaAssignment`, `IneligibleReplica` for a cordoned broker,
        `InvalidReplicationFactor`, `NoReassignmentInProgress`, `UnknownTopic` or `InvalidChange`.
        """
        until = None if latest_wait_ms is None else self._now_ms() + latest_wait_ms
        return Deferred.fromCoroutine(self._move(targets, until, keep_factor, pause))

    async def _move(
        self, targets: Mapping[Key, Sequence[int] | None], until: int | None, keep_factor: bool, pause: Pause
    ) -> Outcomes:
        refused: Outcomes = {}
        changes: dict[Key, _Change] = {}
        needs_all: dict[str, bool] = {}
        for key, target in targets.items():
            await pause()
            name = key[0]
            if until is not None and name not in needs_all:
                needs_all[name] = self._needs_all(name)
            if until is not None and target is not None and needs_all[name]:
                refused[key] = InvalidChange(
                    f'topic "{name}" is internal or compacted: replicas that begin with the latest offset would lose '
                    "its state; move it without that"
                )
            else:
                changes[key] = self._mover(target, until, keep_factor)
        return await self._change(changes, pause) | refused

    def _needs_all(self, name: str) -> bool:
        topic = self._topics.get(name)
        return topic is not None and self._topics.keeps_state(topic)

    def release(self, partitions: Iterable[Key]) -> Deferred[Outcomes]:
        """Let replicas that began with the latest offset join the in-sync set; fires with an outcome for each."""
        return Deferred.fromCoroutine(self._change(dict.fromkeys(partitions, _release), without_pause))

    async def _change(self, changes: Mapping[Key, _Change], pause: Pause) -> Outcomes:
        outcomes: Outcomes = dict.fromkeys(changes)
        left = list(changes)
        for _ in range(ATTEMPTS):
            left, updates = await self._compute(left, changes, outcomes, pause)
            if not left:
                return outcomes
            try:
                await self._topics.write_states(updates)
                return outcomes
            except (BadVersion, NoNode, StalePartition):
                await self._topics.catch_up()
        late = InvalidChange("the topic is being changed by others, try again")
        return {**outcomes, **dict.fromkeys(left, late)}

    async def _compute(
        self, keys: Sequence[Key], changes: Mapping[Key, _Change], outcomes: Outcomes, pause: Pause
    ) -> tuple[list[Key], list[TopicUpdate]]:
        """Return the partitions that have to be written, and the updates. Put errors into `outcomes`.

        A topic that changes during a pause is no longer the one of its update, so that `write_states` refuses it.
        """
        found: dict[str, tuple[Topic, dict[int, PartitionState]]] = {}
        left = []
        for key in keys:
            await pause()
            name, index = key
            topic = found[name][0] if name in found else self._topics.get(name)
            try:
                if topic is None or not 0 <= index < len(topic.partitions):
                    raise UnknownTopic(f"there is no partition {name[:249]}-{index}")
                if name in self._topics.unreadable:
                    raise InvalidChange(f"the topic can't be changed: {self._topics.unreadable[name]}")
                before = topic.partitions[index]
                after = changes[key](before, self._snapshot.of(topic.topic_id, index))
            except TopicError as error:
                outcomes[key] = error
                continue
            if after is not before:
                found.setdefault(name, (topic, {}))[1][index] = after
                left.append(key)
        updates = [
            TopicUpdate(topic, tuple(states.get(state.index, state) for state in topic.partitions))
            for topic, states in found.values()
        ]
        return left, updates

    @property
    def _snapshot(self) -> Snapshot:
        return Snapshot(self._cluster.brokers, self._cluster.acknowledged)

    def _elect_preferred(self, state: PartitionState, snapshot: Snapshot) -> PartitionState:
        if state.leader == state.replicas[0]:
            raise ElectionNotNeeded(f"broker {state.leader}, the preferred leader, leads already")
        after = decisions.prefer(state, snapshot)
        if after is None:
            raise PreferredLeaderNotAvailable(f"broker {state.replicas[0]} is not alive and in sync")
        return after

    def _elect_unclean(self, state: PartitionState, snapshot: Snapshot) -> PartitionState:
        after = decisions.elect_unclean(state, snapshot)
        if after is state:
            raise ElectionNotNeeded(f"broker {state.leader} leads")
        if after is None:
            raise EligibleLeadersNotAvailable("no replica is alive")
        return after

    def _mover(self, target: Sequence[int] | None, until: int | None, keep_factor: bool) -> _Change:
        def move(state: PartitionState, snapshot: Snapshot) -> PartitionState:
            before = decisions.origin(state)
            if target is None:
                if not state.moving:
                    raise NoReassignmentInProgress("no replica of the partition is being moved")
            else:
                self._check(target, state)
                if keep_factor and len(target) != len(before):
                    raise InvalidReplicationFactor(f"the partition has {len(before)} replicas, not {len(target)}")
            after = decisions.move(state, before if target is None else target, snapshot, until)
            if after is None:
                raise InvalidReplicaAssignment("none of those replicas is in sync and could lead")
            return after

        return move

    def _check(self, target: Sequence[int], state: PartitionState) -> None:
        if not target or len(set(target)) < len(target):
            raise InvalidReplicaAssignment(f"replicas have to be different brokers, at least one: {list(target)}")
        for broker in target:
            if broker not in state.replicas and broker not in self._cluster.brokers:
                raise InvalidReplicaAssignment(f"broker {broker} is not alive")
            if broker not in state.replicas and self._cluster.brokers[broker].outages.cordoned:
                raise IneligibleReplica(
                    f"broker {broker} is cordoned: it takes no new replicas while all of its data directories are in "
                    "cordoned.log.dirs"
                )
            if broker not in state.replicas and self._room_on(broker) == 0:
                raise InvalidReplicaAssignment(
                    f"broker {broker} already has as many partitions as its limit of open files allows"
                )


def _release(state: PartitionState, _: Snapshot) -> PartitionState:
    if not state.latest_until_ms:
        return state
    return replace(state, latest_until_ms=0, partition_epoch=state.partition_epoch + 1)
