"""The administrator's operations on the leaders and replicas of partitions, for all faces (see `operations`).

Strategy: `layout` reads everything that a plan depends on, and `placement` makes the plan. `begin_moves` checks the
whole plan by the same rule as the brokers, and only then sets the cordon, the throttles and the assignments. If a
broker refuses a part of the plan because the cluster has changed meanwhile, all changes are undone.

Rules: a refused plan has changed nothing. Setting or removing a cordon ends when all live brokers know of it, so that
the next plan takes it into account. For maintenance, all data directories of a broker are cordoned, so that it gets no
new replicas. The broker becomes the last replica of the partitions that prefer it as their leader
(`placement.leading`); then the preferred leaders are elected. Its replicas stay on the broker.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError, error_for
from pylogd.base.placement.errors import PlacementImpossible
from pylogd.base.placement.layout import Assigned, Layout, refusals
from pylogd.client.core.admin.calls import Calls, ask, change, refresh, send
from pylogd.client.core.admin.cluster_operations import ClusterOperations, ResourceKind
from pylogd.client.core.admin.offsets import leader_of
from pylogd.client.core.admin.visibility import (
    Probe,
    TopicState,
    configured,
    cordoning,
    tells,
    topics_probe,
    until_shown,
)
from pylogd.client.core.metadata import check
from pylogd.client.core.model import ActiveProducer, EligibleReplicas, Reassignment, TopicPartition
from pylogd.wire.messages import alter_partition_reassignments as alter
from pylogd.wire.messages import describe_producers as producers
from pylogd.wire.messages import describe_topic_partitions as describe
from pylogd.wire.messages import elect_leaders as elect
from pylogd.wire.messages import list_partition_reassignments as listing

ClusterLayout = Layout[TopicPartition]


class MovesRefused(PylogdError):
    """A plan was refused, and nothing was changed.

    reasons: the reason for each refused partition.
    """

    def __init__(self, reasons: Mapping[TopicPartition, str], count: int) -> None:
        """`count` is the number of partitions of the plan."""
        self.reasons = dict(reasons)
        some = "; ".join(f"{at}: {why}" for at, why in sorted(reasons.items())[:3])
        super().__init__(f"{len(reasons)} of {count} moves are not possible. Nothing was changed: {some}")
        self.summary = f"{len(reasons)} of {count} moves are not possible. Nothing was changed"


PartitionOutcome = dict[TopicPartition, KafkaError | None]
_PREFERRED, _UNCLEAN = 0, 1
_PAGE = 2000  # the most partitions in an answer
_TOPIC, _OWN, _LABEL = 2, 1, "placement.label"  # the topics' setting for labels, and its codes
#: The setting of a broker that lists its data directories which get no new replicas.
CORDONED: Final = "cordoned.log.dirs"
#: The value of `CORDONED` that means all data directories.
EVERY_DIRECTORY: Final = "*"
#: Settings of brokers: the bytes per second that each may send and copy.
RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
#: Settings of topics: the replicas that are throttled.
THROTTLED: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
#: The value of `THROTTLED` for all replicas.
ALL_REPLICAS: Final = "*"


class MoveOperations(ClusterOperations):
    """Operations on the leaders and replicas of partitions."""

    _timeout_ms: int

    async def layout(self, topics: Iterable[str] | None = None) -> ClusterLayout:
        """Return the live brokers, and the replicas and labels of topics, or of all with the internal ones.

        Raises KafkaError, also for a topic that does not exist.
        """
        names = None if topics is None else list(dict.fromkeys(topics))
        if names is not None and not names:
            return Layout((await self.describe_cluster()).placement, {})
        found = await self._calls.call(lambda: refresh(self._calls, names))
        partitions = {
            TopicPartition(topic.name, one.index): Assigned(one.replicas)
            for topic in sorted(found, key=lambda topic: topic.name)
            for one in topic.partitions
        }
        moving = await self.reassignments(None if names is None else list(partitions))
        for at, move in moving.items():
            if at in partitions:
                stay = tuple(node for node in move.replicas if node not in move.removing)
                partitions[at] = Assigned(stay, move.removing)
        labels = await self.topic_labels(topic.name for topic in found)
        brokers = (await self.describe_cluster()).placement
        return Layout(brokers, partitions, {name: label for name, label in labels.items() if label})

    async def begin_moves(
        self,
        targets: Mapping[TopicPartition, Sequence[int]],
        *,
        throttle: int | None = None,
        latest_wait: float | None = None,
        labels: Mapping[str, str] | None = None,
        cordon: int | None = None,
    ) -> None:
        """Begin to move each partition's replicas to these brokers, the preferred leader first: all, or none.

        throttle: bytes per second of these topics that each broker may copy; None leaves the throttles unchanged.
        latest_wait, labels: see `reassign`.
        cordon: the broker that is emptied; it gets no new replicas from now on.

        Raises `MovesRefused` if the plan is refused, KafkaError if the client may not request it. Then nothing has
        changed. If it is unknown whether the moves have begun, because the answer is lost or late, the cordon and the
        throttles stay.
        """
        layout = await self.layout({at.topic for at in targets})
        if wrong := refusals(layout, targets, labels or {}):
            raise MovesRefused(wrong, len(targets))
        undo: list[tuple[ResourceKind, str, dict[str, str | None]]] = []
        begun: list[TopicPartition] = []
        asked = False
        try:
            if cordon is not None and cordon in layout.brokers.live:
                undo.append(("broker", str(cordon), await self._own_settings("broker", str(cordon), [CORDONED])))
                await self.cordon(cordon)
            if throttle is not None and targets:
                for broker in layout.brokers.live:
                    undo.append(("broker", str(broker), await self._own_settings("broker", str(broker), RATES)))
                for topic in sorted({at.topic for at in targets}):
                    undo.append(("topic", topic, await self._own_settings("topic", topic, THROTTLED)))
                await self.throttle({at.topic for at in targets}, throttle)
            wanted: dict[TopicPartition, Sequence[int] | None] = {**targets}
            asked = True
            outcome = await self.reassign(wanted, latest_wait=latest_wait, labels=labels) if wanted else {}
            begun = [at for at, error in outcome.items() if error is None]
            if failed := {at: str(error) for at, error in outcome.items() if error is not None}:
                raise MovesRefused(failed, len(targets))
        except PylogdError as error:
            if not asked or _is_refusal(error):
                await self._undo(undo, layout, begun)
            raise

    async def throttle(self, topics: Iterable[str], rate: int) -> None:
        """Limit what each broker copies of topics to `rate` bytes per second, while replicas are not in sync."""
        for broker in (await self.describe_cluster()).brokers:
            await self.alter_configs("broker", str(broker.node_id), dict.fromkeys(RATES, str(rate)))
        for topic in sorted(set(topics)):
            await self.alter_configs("topic", topic, dict.fromkeys(THROTTLED, ALL_REPLICAS))

    async def unthrottle(self, topics: Iterable[str]) -> None:
        """Remove the throttles that `throttle` set, if there are any."""
        for topic in sorted(set(topics)):
            if any(value is not None for value in (await self._own_settings("topic", topic, THROTTLED)).values()):
                await self.alter_configs("topic", topic, dict.fromkeys(THROTTLED))
        for broker in (await self.describe_cluster()).brokers:
            name = str(broker.node_id)
            if any(value is not None for value in (await self._own_settings("broker", name, RATES)).values()):
                await self.alter_configs("broker", name, dict.fromkeys(RATES))

    async def throttle_rate(self) -> int | None:
        """Return the lowest rate, in bytes per second, that `throttle` has set for a live broker; None if there is
        none.
        """
        brokers = [one.node_id for one in (await self.describe_cluster()).brokers]
        own = [await self._own_settings("broker", str(node), RATES) for node in brokers]
        return min((int(value) for one in own for value in one.values() if value is not None), default=None)

    async def cordon(self, broker: int, directories: Sequence[str] = (), *, cordoned: bool = True) -> Sequence[str]:
        """Cordon or uncordon data directories of a broker; by default all. Return the directories that were given.

        Returns when all brokers know whether the broker takes new replicas. Raises `PlacementImpossible` for a
        directory that the broker does not have; KafkaError.
        """
        found = {one.path: one for one in await self.describe_log_dirs([broker])}
        chosen = [os.path.normpath(path) for path in directories]
        if unknown := [path for path in chosen if path not in found]:
            raise PlacementImpossible(
                f"broker {broker} has no data directory {', '.join(unknown)}: it has {', '.join(sorted(found))}"
            )
        before = {path: one.cordoned for path, one in found.items()}
        after = {**before, **dict.fromkeys(chosen or before, cordoned)}
        await self.alter_configs("broker", str(broker), {CORDONED: cordon_value(before, chosen, cordoned)})
        usable = [path for path, one in found.items() if one.error is None]
        await self._until_cordoned(broker, bool(usable) and all(after[path] for path in usable))
        return chosen

    async def _until_cordoned(self, broker: int, cordoned: bool) -> None:
        """Wait until all brokers tell whether a broker takes new replicas. Kafka's brokers do not."""
        if await self.describe_configs("broker", str(broker), ["broker.labels"]):
            await until_shown(self._calls, cordoning(broker, cordoned))

    async def _own_settings(self, kind: ResourceKind, name: str, keys: Collection[str]) -> dict[str, str | None]:
        """Return the values of settings that were set at run time; None for those that were not."""
        own = {
            one.name: one.value for one in await self.describe_configs(kind, name, list(keys))
            if one.source == kind or (kind == "broker" and one.source == "broker, at run time")
        }  # fmt: skip
        return {key: own.get(key) for key in keys}

    async def _undo(
        self,
        settings: Sequence[tuple[ResourceKind, str, Mapping[str, str | None]]],
        before: ClusterLayout,
        begun: Collection[TopicPartition],
    ) -> None:
        """Restore settings and replicas, as far as the cluster allows it."""
        former: dict[TopicPartition, Sequence[int] | None] = {}
        for at in begun:
            one = before.partitions[at]
            former[at] = one.replicas if one.leaving else None
        if former:
            with suppress(PylogdError):
                outcome = await self.reassign(former)
                # Without new replicas a move is done at once: there is no reassignment to cancel.
                late: dict[TopicPartition, Sequence[int] | None] = {
                    at: before.partitions[at].replicas for at, error in outcome.items()
                    if error is not None and error.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
                }  # fmt: skip
                if late:
                    await self.reassign(late)
        for kind, name, values in reversed(settings):
            with suppress(PylogdError):
                await self.alter_configs(kind, name, values)
                if CORDONED in values:
                    node = int(name)
                    found: list[Any] = await self.describe_log_dirs([node])
                    usable = [one for one in found if one.error is None]
                    await self._until_cordoned(node, bool(usable) and all(one.cordoned for one in usable))

    async def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, unclean: bool = False
    ) -> PartitionOutcome:
        """Elect the preferred replica as the leader of partitions, or of all partitions with None.

        Return the outcome of each partition; with None, of each partition that needed an election.

        unclean: whether to elect any live replica where a partition has no leader; committed records may be lost.
        """
        asked = None
        if partitions is not None:
            asked = [elect.TopicPartitions(topic, indexes) for topic, indexes in _by_topic(partitions).items()]
        kind = _UNCLEAN if unclean else _PREFERRED
        request = elect.ElectLeadersRequest(kind, asked, timeout_ms=self._timeout_ms)
        response: elect.ElectLeadersResponse = await change(self._calls, request, lambda r: [r.error_code])
        check(response.error_code)
        outcome = {
            TopicPartition(topic.topic, one.partition_id): _error(one.error_code, one.error_message)
            for topic in response.replica_election_results
            for one in topic.partition_result
        }
        elected = [at for at, error in outcome.items() if error is None]
        if elected:
            await until_shown(self._calls, _led(self._calls, elected))
        return outcome

    async def eligible_replicas(self, topics: Iterable[str]) -> dict[TopicPartition, EligibleReplicas]:
        """Return the eligible leader replicas (KIP-966) of the partitions of topics; partitions without any are left
        out. Raises KafkaError; UnsupportedByBroker if the broker does not support them.
        """
        found: dict[TopicPartition, EligibleReplicas] = {}
        cursor = None
        asked = [describe.TopicRequest(name) for name in sorted(topics)]
        while asked:
            request = describe.DescribeTopicPartitionsRequest(asked, _PAGE, cursor)
            response: describe.DescribeTopicPartitionsResponse = await ask(self._calls, request)
            for topic in response.topics:
                check(topic.error_code, topic.name)
                for one in topic.partitions:
                    eligible = tuple(one.eligible_leader_replicas or ()), tuple(one.last_known_elr or ())
                    if any(eligible):
                        found[TopicPartition(topic.name or "", one.partition_index)] = EligibleReplicas(*eligible)
            after = response.next_cursor
            if after is None:
                break
            cursor = describe.Cursor(after.topic_name, after.partition_index)
        return found

    async def describe_producers(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, list[ActiveProducer]]:
        """Return the idempotent producers that the leader of each partition remembers, by producer id. Raises
        KafkaError for the first partition that has an error.
        """
        wanted = [TopicPartition(*one) for one in partitions]
        found: dict[TopicPartition, list[ActiveProducer]] = {}

        async def attempt() -> None:
            by_leader: dict[int, list[tuple[str, int]]] = {}
            for one in wanted:
                if one not in found:
                    by_leader.setdefault(await leader_of(self._calls, one), []).append(one)
            for leader, led in by_leader.items():
                named = [producers.TopicRequest(topic, indexes) for topic, indexes in _by_topic(led).items()]
                response: producers.DescribeProducersResponse = await send(
                    self._calls, producers.DescribeProducersRequest(named), leader
                )
                found.update(_producers(response))

        await self._calls.call(attempt)
        return found

    async def reassign(
        self,
        targets: Mapping[tuple[str, int], Sequence[int] | None] | Mapping[TopicPartition, Sequence[int] | None],
        *,
        latest_wait: float | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> PartitionOutcome:
        """Start to move each partition's replicas to these brokers, the preferred leader first. None cancels the move
        in progress and restores the earlier replicas. Return the outcome of each partition.

        `latest_wait` (only pylogd): new replicas do not copy existing records. They start at the latest offset. They
        join the in-sync set when every consumer group has read up to that offset, or after `latest_wait` seconds.

        `labels` (only pylogd): new labels of topics, by name; "" for no label. A topic's label changes together with
        the moves. All of its partitions must be on, or be moved to, brokers that carry the label. Otherwise each of
        them has an error, none is moved, and the label is unchanged.
        """
        topics = [
            alter.ReassignableTopic(topic, [
                alter.ReassignablePartition(index, None if brokers is None else list(brokers))
                for (name, index), brokers in targets.items() if name == topic
            ], placement_label=(labels or {}).get(topic))
            for topic in _by_topic(targets)
        ]  # fmt: skip
        request = alter.AlterPartitionReassignmentsRequest(timeout_ms=self._timeout_ms, topics=topics)
        if latest_wait is not None:
            request.latest_wait_ms = int(latest_wait * 1000)
        response: alter.AlterPartitionReassignmentsResponse = await change(
            self._calls, request, lambda r: [r.error_code]
        )
        check(response.error_code, response.error_message)
        outcome = {
            TopicPartition(topic.name, one.partition_index): _error(one.error_code, one.error_message)
            for topic in response.responses
            for one in topic.partitions
        }
        begun = [at for at, error in outcome.items() if error is None]
        if begun:
            await until_shown(self._calls, _moving(begun))
        for name in {at.topic for at in begun} & set(labels or ()):
            await until_shown(self._calls, configured(_TOPIC, name, [_LABEL], _OWN, ()))
        return outcome

    async def reassignments(
        self, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the reassignments in progress, of all partitions or of some."""
        asked = None
        if partitions is not None:
            named = _by_topic(partitions)
            asked = [listing.ListPartitionReassignmentsTopics(topic, indexes) for topic, indexes in named.items()]
        request = listing.ListPartitionReassignmentsRequest(self._timeout_ms, asked)
        response: listing.ListPartitionReassignmentsResponse = await ask(self._calls, request)
        check(response.error_code, response.error_message)
        return {
            TopicPartition(topic.name, one.partition_index): Reassignment(
                tuple(one.replicas), tuple(one.adding_replicas), tuple(one.removing_replicas)
            )
            for topic in response.topics
            for one in topic.partitions
        }


def _is_refusal(error: PylogdError) -> bool:
    """Return whether an error tells for certain what was done, or that nothing was done."""
    if isinstance(error, KafkaError):
        return error.code is not ErrorCode.REQUEST_TIMED_OUT
    return isinstance(error, MovesRefused)


def _led(calls: Calls, partitions: Iterable[TopicPartition]) -> Probe:
    """Return the probe that shows elected leaders."""
    wanted = _by_topic(partitions)

    def expected(name: str, state: TopicState) -> bool:
        return all(index < len(state.leaders) and state.leaders[index] >= 0 for index in wanted.get(name, ()))

    return topics_probe(calls, wanted, expected)


def _moving(partitions: Iterable[TopicPartition]) -> Probe:
    """Return the probe that shows that reassignments have begun, have ended, or were cancelled."""
    asked = [listing.ListPartitionReassignmentsTopics(name, indexes) for name, indexes in _by_topic(partitions).items()]
    request = listing.ListPartitionReassignmentsRequest(topics=asked)

    def read(
        response: listing.ListPartitionReassignmentsResponse,
    ) -> dict[TopicPartition, tuple[tuple[int, ...], ...]] | None:
        if not tells(response.error_code):
            return None
        return {
            TopicPartition(topic.name, one.partition_index): (
                tuple(one.replicas), tuple(one.adding_replicas), tuple(one.removing_replicas)
            )
            for topic in response.topics
            for one in topic.partitions
        }  # fmt: skip

    return Probe(listing.ListPartitionReassignmentsRequest, lambda _: request, read)


def _by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, index in partitions:
        found.setdefault(topic, []).append(index)
    return found


def _producers(response: producers.DescribeProducersResponse) -> Iterator[tuple[TopicPartition, list[ActiveProducer]]]:
    for topic in response.topics:
        for answer in topic.partitions:
            check(answer.error_code, answer.error_message)
            yield TopicPartition(topic.name, answer.partition_index), sorted(map(_active, answer.active_producers))


def _active(one: producers.ProducerState) -> ActiveProducer:
    return ActiveProducer(
        one.producer_id, one.producer_epoch, one.last_sequence, one.last_timestamp, one.coordinator_epoch,
        one.current_txn_start_offset, one.awaited_until_ms,
    )  # fmt: skip


def _error(code: int, message: str | None) -> KafkaError | None:
    return KafkaError(error_for(code), message) if code else None


def cordon_value(directories: Mapping[str, bool], chosen: Collection[str], cordoned: bool) -> str:
    """Return the value of `CORDONED` after a change.

    directories: whether each of the broker's directories is cordoned now.
    chosen: the directories to change; empty for all.
    cordoned: whether they are cordoned afterwards.
    """
    if not chosen:
        return EVERY_DIRECTORY if cordoned else ""
    after = {**directories, **dict.fromkeys(chosen, cordoned)}
    return ",".join(sorted(path for path, holds in after.items() if holds))
