"""Elections and reassignments that clients ask for. Any broker can carry them out.

Strategy: `decisions` computes the new states from what this broker knows, and they are written with the versions that
it knows. If the metadata has changed since, the write fails, the broker catches up, and the states are computed again.
So any broker can do it, and no request is forwarded. If this broker did not know yet that another broker had failed,
the controller corrects the state, since it looks at every topic that changes.

Rules: each partition of a request has its own outcome. A reassignment is answered once it has begun. Replicas are moved
only to brokers that carry the topic's label (`metadata.labels`). A request may change the label of a topic and move its
replicas to brokers with the new label. This is one write, for all of the topic's partitions or for none.

Must not know: requests, who the controller is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from twisted.internet.defer import Deferred, succeed

from pylogd.base.deferreds import Pause, without_pause
from pylogd.base.errors import PylogdError
from pylogd.base.placement.brokers import Why
from pylogd.broker.controller import decisions
from pylogd.broker.controller.decisions import Snapshot
from pylogd.broker.metadata.cluster import Cluster
from pylogd.broker.metadata.configs import ATTEMPTS
from pylogd.broker.metadata.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    IneligibleReplica,
    InvalidChange,
    InvalidConfig,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoReassignmentInProgress,
    OutsideLabel,
    PreferredLeaderNotAvailable,
    StalePartition,
    TopicError,
    UnknownTopic,
)
from pylogd.broker.metadata.image import NO_LEADER, PartitionState, SmoothWait, Topic, TopicUpdate
from pylogd.broker.metadata.labels import candidates, check_within, label_at, label_of, with_label
from pylogd.broker.metadata.layout import broker_epoch_path
from pylogd.broker.metadata.topics import TopicRegistry
from pylogd.config import ConfigError
from pylogd.config.labels import PLACEMENT_LABEL, check_label
from pylogd.store.errors import BadVersion, NodeError, NodeExists, NoNode
from pylogd.store.interfaces import Check, Operation

#: The key of a partition: (topic name, partition).
Key = tuple[str, int]
Outcomes = dict[Key, PylogdError | None]
_Change = Callable[[Topic, PartitionState, Snapshot], PartitionState]


class PartitionAdmin:
    """Elects leaders and moves replicas on behalf of clients."""

    def __init__(
        self,
        cluster: Cluster,
        topics: TopicRegistry,
        room_on: Callable[[int], int | None],
        now_ms: Callable[[], int],
    ) -> None:
        """Arguments:

        room_on: see `TopicAdmin.room_on`.
        now_ms: the wall clock, in ms since 1970.
        """
        self._cluster = cluster
        self._topics = topics
        self._room_on = room_on
        self._now_ms = now_ms
        self.unclean_elections = 0  # unclean elections that clients asked for

    def elect(
        self, partitions: Sequence[Key] | None, *, unclean: bool, pause: Pause = without_pause
    ) -> Deferred[Outcomes]:
        """Elect the preferred leaders; with `unclean`, any live replica of partitions without a leader.

        partitions: None for all partitions that need an election.
        pause: awaited for each partition.

        Fires with an outcome for each partition: None, `ElectionNotNeeded`, `PreferredLeaderNotAvailable`,
        `EligibleLeadersNotAvailable` or `UnknownTopic`.
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
        labels: Mapping[str, str] = MappingProxyType({}),
        pause: Pause = without_pause,
    ) -> Deferred[Outcomes]:
        """Begin to move each partition to other replicas, or cancel its reassignment if the target is None.

        latest_wait_ms: for a smooth expansion: added replicas begin with the latest offset, and join the in-sync set
            when every group has read that far, or after this time. It is refused for internal and compacted topics,
            whose state would be lost.
        keep_factor: whether to refuse to change the number of replicas.
        labels: new labels of topics, by name; "" for none. The topic's setting `placement.label` is changed in the same
            write. All partitions of the topic must then be on, or be moved to, brokers that carry the new label;
            otherwise none is moved and the label stays.
        pause: awaited for each partition.

        Fires with an outcome for each partition: None, `InvalidReplicaAssignment` (also for a broker without the
        topic's label), `IneligibleReplica` for a cordoned broker, `InvalidReplicationFactor`,
        `NoReassignmentInProgress`, `OutsideLabel` for a cancellation that would put replicas back outside the topic's
        label, `UnknownTopic`, `InvalidConfig` for an invalid label, or `InvalidChange`.
        """
        for label in filter(None, labels.values()):
            try:
                check_label(label, PLACEMENT_LABEL.name)
            except ConfigError as error:
                return succeed(dict.fromkeys(targets, InvalidConfig(str(error))))
        until = None if latest_wait_ms is None else self._now_ms() + latest_wait_ms
        return Deferred.fromCoroutine(self._move(targets, until, keep_factor, labels, pause))

    async def _move(
        self,
        targets: Mapping[Key, Sequence[int] | None],
        until: int | None,
        keep_factor: bool,
        labels: Mapping[str, str],
        pause: Pause,
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
                changes[key] = self._mover(target, until, keep_factor, labels.get(name))
        return await self._change(changes, pause, labels) | refused

    def _needs_all(self, name: str) -> bool:
        topic = self._topics.get(name)
        return topic is not None and self._topics.keeps_state(topic)

    def release(self, waits: Mapping[Key, SmoothWait]) -> Deferred[Outcomes]:
        """Let replicas that began with the latest offset join the in-sync set. Fires with an outcome for each.

        An outcome is `StalePartition` if the partition now waits for something else. It is `IneligibleReplica` if a new
        replica's broker has registered again, since the broker may have another log, which begins later.
        """
        return Deferred.fromCoroutine(self._release(waits))

    async def _release(self, waits: Mapping[Key, SmoothWait]) -> Outcomes:
        left, refused = dict(waits), Outcomes()
        while True:
            epochs = {node: epoch for wait in left.values() for node, epoch in wait.epochs.items() if epoch >= 0}
            guards = {broker_epoch_path(node): Check(broker_epoch_path(node), epoch) for node, epoch in epochs.items()}
            changes = {key: partial(_release, wait) for key, wait in left.items()}
            try:
                return await self._change(changes, without_pause, guards=guards) | refused
            except NodeError as error:
                again = next(node for node in epochs if broker_epoch_path(node) == error.path)
                for key in [key for key, wait in left.items() if again in wait.epochs]:
                    del left[key]
                    refused[key] = IneligibleReplica(f"broker {again} has registered again since its replica was seen")

    async def _change(
        self,
        changes: Mapping[Key, _Change],
        pause: Pause,
        labels: Mapping[str, str] = MappingProxyType({}),
        guards: Mapping[str, Operation] = MappingProxyType({}),
    ) -> Outcomes:
        """Change partitions.

        guards: conditions that must hold at the write, by path; otherwise their NodeError is raised.
        """
        outcomes: Outcomes = dict.fromkeys(changes)
        left = list(changes)
        for _ in range(ATTEMPTS):
            left, updates = await self._compute(left, changes, outcomes, labels, pause)
            if not updates:
                return outcomes
            labelled = [topic for topic, _ in updates if topic.name in labels]
            configs = {topic.name: with_label(topic.configs, labels[topic.name]) for topic in labelled}
            try:
                await self._topics.write_states(updates, guards=list(guards.values()), configs=configs)
                self.unclean_elections += decisions.unclean_elections(updates)
                return outcomes
            except (BadVersion, NodeExists, NoNode, StalePartition) as error:
                if isinstance(error, NodeError) and error.path in guards:
                    raise
                await self._topics.catch_up()
        late = InvalidChange("the topic is being changed by another request, try again")
        return {**outcomes, **dict.fromkeys(left, late)}

    async def _compute(
        self,
        keys: Sequence[Key],
        changes: Mapping[Key, _Change],
        outcomes: Outcomes,
        labels: Mapping[str, str],
        pause: Pause,
    ) -> tuple[list[Key], list[TopicUpdate]]:
        """Return the partitions to write, and the updates. Put errors into `outcomes`.

        If a topic changes during a pause, it differs from the topic of its update, so that `write_states` refuses the
        update.
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
                after = changes[key](topic, before, self._snapshot.of(topic.topic_id, index))
            except TopicError as error:
                outcomes[key] = error
                continue
            if after is not before or name in labels:
                found.setdefault(name, (topic, {}))[1][index] = after
                left.append(key)
        updates = [
            TopicUpdate(topic, tuple(states.get(state.index, state) for state in topic.partitions))
            for topic, states in found.values()
        ]
        refused = await self._refused_labels(updates, labels, keys, outcomes, pause) if labels else set()
        left = [key for key in left if key[0] not in refused]
        return left, [update for update in updates if update.before.name not in refused]

    async def _refused_labels(
        self,
        updates: Sequence[TopicUpdate],
        labels: Mapping[str, str],
        keys: Sequence[Key],
        outcomes: Outcomes,
        pause: Pause,
    ) -> set[str]:
        """Return the topics that can't get their new label. Put errors into `outcomes`."""
        by_topic: dict[str, list[Key]] = {}
        for key in keys:
            by_topic.setdefault(key[0], []).append(key)
        refused = set()
        for update in updates:
            await pause()
            name = update.before.name
            if name in labels and self._refuses_label(update, labels[name], by_topic[name], outcomes):
                refused.add(name)
        return refused

    def _refuses_label(self, update: TopicUpdate, label: str, own: Sequence[Key], outcomes: Outcomes) -> bool:
        """Return whether a topic can't get a label with an update. If so, all outcomes of `own` become errors."""
        error = next(filter(None, map(outcomes.get, own)), None)
        for state in update.after:
            try:
                its_own = label_at(with_label(update.before.configs, label), state.index)
                check_within(state.target, its_own, self._cluster.brokers, self._cluster.known)
            except InvalidReplicaAssignment as outside:
                error = error or InvalidReplicaAssignment(f"partition {state.index}: {outside}")
        if error is not None:
            for key in own:
                outcomes[key] = outcomes[key] or InvalidReplicaAssignment(
                    f'the label stays "{label_of(update.before.configs)}", and no partition is moved: {error}'
                )
        return error is not None

    @property
    def _snapshot(self) -> Snapshot:
        return Snapshot(self._cluster.brokers, self._cluster.acknowledged)

    def _elect_preferred(self, _: Topic, state: PartitionState, snapshot: Snapshot) -> PartitionState:
        if state.leader == state.replicas[0]:
            raise ElectionNotNeeded(f"broker {state.leader}, the preferred leader, leads already")
        after = decisions.prefer(state, snapshot)
        if after is None:
            raise PreferredLeaderNotAvailable(f"broker {state.replicas[0]} is not alive and in sync")
        return after

    def _elect_unclean(self, _: Topic, state: PartitionState, snapshot: Snapshot) -> PartitionState:
        after = decisions.elect_unclean(state, snapshot)
        if after is state:
            raise ElectionNotNeeded(f"broker {state.leader} leads")
        if after is None:
            raise EligibleLeadersNotAvailable("no replica is alive")
        return after

    def _mover(
        self, target: Sequence[int] | None, until: int | None, keep_factor: bool, new_label: str | None
    ) -> _Change:
        """Return a function that moves a partition.

        new_label: the label that the topic gets with the move; None to keep its label.
        """

        def move(topic: Topic, state: PartitionState, snapshot: Snapshot) -> PartitionState:
            before = decisions.origin(state)
            configs = topic.configs if new_label is None else with_label(topic.configs, new_label)
            label = label_at(configs, state.index)
            if target is None:
                if not state.moving:
                    raise NoReassignmentInProgress("no replica of the partition is being moved")
                self._check_cancellation(topic, label, [node for node in before if node not in state.target])
            else:
                self._check(target, state, label)
                if keep_factor and len(target) != len(before):
                    raise InvalidReplicationFactor(f"the partition has {len(before)} replicas, not {len(target)}")
            after = decisions.move(state, before if target is None else target, snapshot, until)
            if after is None:
                raise InvalidReplicaAssignment("none of those replicas is in sync and could lead")
            return after

        return move

    def _check_cancellation(self, topic: Topic, label: str, back: Sequence[int]) -> None:
        """Raise `OutsideLabel` if a cancellation would return replicas to brokers, `back`, without the label."""
        try:
            check_within(back, label, self._cluster.brokers, self._cluster.known)
        except InvalidReplicaAssignment as error:
            raise OutsideLabel(
                f'topic "{topic.name}" would have replicas outside its label again: {error}. To undo a change of the '
                f"label, change it back: pylogd topics relabel {topic.name} FORMER-LABEL"
            ) from error

    def _check(self, target: Sequence[int], state: PartitionState, label: str) -> None:
        if not target or len(set(target)) < len(target):
            raise InvalidReplicaAssignment(f"replicas have to be different brokers, at least one: {list(target)}")
        live = self._cluster.brokers
        named = candidates({node: live[node] for node in target if node in live}, self._room_on)
        for node in target:
            if node in state.replicas:
                if node not in state.target:  # it is being removed, and still has a copy
                    check_within([node], label, live, self._cluster.known)
            elif named.obstacle(node, label) is not None:
                obstacle = candidates(live, self._room_on).obstacle(node, label)
                assert obstacle is not None
                raise (IneligibleReplica if obstacle.why is Why.CORDONED else InvalidReplicaAssignment)(obstacle.text)


def _release(wait: SmoothWait, _: Topic, state: PartitionState, __: Snapshot) -> PartitionState:
    if state.latest_until_ms != wait.until_ms or not wait.epochs.keys() >= set(state.adding) - set(state.isr):
        raise StalePartition("the reassignment has been changed since its new replicas were seen")
    return replace(state, latest_until_ms=0, partition_epoch=state.partition_epoch + 1)
