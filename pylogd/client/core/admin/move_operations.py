"""The administrator's operations that move replicas, for all faces (see `operations`).

Strategy: `layout` reads everything that a plan depends on, and `placement` makes the plan. `begin_moves` checks the
whole plan by the same rule as the brokers, and only then sets the cordon, the throttles and the assignments. If a
broker refuses a part of the plan because the cluster has changed meanwhile, all changes are undone.

Rules: a refused plan has changed nothing. Setting or removing a cordon ends when all live brokers know of it, so that
the next plan takes it into account.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.base.placement.checks import refusals
from pylogd.base.placement.errors import PlacementImpossible
from pylogd.base.placement.layout import Assigned, Layout
from pylogd.client.core.admin.calls import refresh
from pylogd.client.core.admin.cluster_operations import ClusterOperations
from pylogd.client.core.admin.config_operations import ConfigOperations, ResourceKind
from pylogd.client.core.admin.cordons import CORDONED, cordon_value
from pylogd.client.core.admin.label_operations import LabelOperations
from pylogd.client.core.admin.partition_operations import PartitionOperations
from pylogd.client.core.admin.throttle_settings import ALL_REPLICAS, RATES, THROTTLED
from pylogd.client.core.admin.visibility import cordoning, until_shown
from pylogd.client.core.model import TopicPartition

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


class MoveOperations(ConfigOperations, ClusterOperations, PartitionOperations, LabelOperations):
    """Operations that move replicas."""

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


def _is_refusal(error: PylogdError) -> bool:
    """Return whether an error tells for certain what was done, or that nothing was done."""
    if isinstance(error, KafkaError):
        return error.code is not ErrorCode.REQUEST_TIMED_OUT
    return isinstance(error, MovesRefused)
