"""Take a broker out of service for a while, and back, like `pylogd brokers maintenance`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.base.placement.layout import Assigned, Layout
from pylogd.base.placement.leading import leads_again, led_by_others
from pylogd.client.core.admin.move_operations import CORDONED, EVERY_DIRECTORY
from pylogd.client.core.model import ClusterDescription, TopicPartition
from pylogd.services.console.actions.steps import Action, Field, Plan, command
from pylogd.services.console.answers import PageRequest, Refused
from pylogd.services.console.clusters import WatchedCluster
from pylogd.services.console.sample import Sample

Placement = dict[TopicPartition, tuple[int, ...]]

_BEGIN, _END = "begin", "end"
_LOOK_SECONDS: Final = 0.5
_PATIENCE: Final = 15.0
#: A broker's answer if no election is needed.
_AS_WANTED: Final = (ErrorCode.ELECTION_NOT_NEEDED,)


class Maintenance(Action):
    """Begin or end the maintenance of a broker."""

    path = "/brokers/{node}/maintenance"
    name = "broker maintenance"
    heading = "Maintenance of broker {node}"
    after = "/brokers/{node}"
    section = "brokers"

    def fields(self, cluster: WatchedCluster, asked: PageRequest) -> list[Field]:
        """Return a field to choose between begin and end. Raises Refused if the broker is not live."""
        node = _node(cluster, asked)
        cordoned = any(one.cordoned for one in cluster.sampler.last.brokers[node].directories)
        hint = "begin: it leads nothing and gets no new replicas, then it can be restarted; end: it leads again"
        return [Field("do", "Maintenance", "choice", _END if cordoned else _BEGIN, hint, choices=(_BEGIN, _END))]

    async def plan(self, cluster: WatchedCluster, asked: PageRequest) -> Plan:
        """Return the changes of leaders, by the last sample. The broker checks everything else."""
        node, do = _node(cluster, asked), asked.form.get("do", "")
        if do not in (_BEGIN, _END):
            raise Refused(422, "Choose to begin or to end the maintenance.")
        change = await cluster.in_thread(_change, cluster.sampler.last, node, do)
        cordon = {CORDONED: EVERY_DIRECTORY if do == _BEGIN else ""}
        await cluster.admin.alter_configs("broker", str(node), cordon, validate_only=True)

        async def run() -> str:
            await cluster.admin.begin_moves(change.targets, cordon=node if do == _BEGIN else None)
            await _reordered(cluster, change.targets)
            if do == _END:
                await cluster.admin.cordon(node, cordoned=False)
            failed = await _elect(cluster, change.elected)
            if do == _END:
                return f"Broker {node} may get new replicas, and leads {len(change.targets)} more partitions."
            if failed:
                raise KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, _still(node, failed))
            return f"Broker {node} gets no new replicas, and others lead what it led: it can be restarted."

        rows = [(f"broker {node}: new replicas", "as they come", "none" if do == _BEGIN else "as they come")]
        line = command(cluster, "brokers", "maintenance", "enable" if do == _BEGIN else "disable", node)
        return Plan(line, run, ("What", "Now", "Then"), rows + change.rows, change.warning)


class _Change(NamedTuple):
    """The changes of a maintenance.

    targets: the replicas of partitions in their new order.
    elected: the partitions that get another leader.
    """

    targets: Placement
    elected: Collection[TopicPartition]
    rows: list[tuple[str, str, str]]
    warning: str


def _change(sample: Sample, node: int, do: str) -> _Change:
    """Return the changes, by a sample that must not change. It takes seconds with 200,000 partitions: use a thread."""
    current = {
        TopicPartition(name, index): Assigned(tuple(replicas))
        for name, topic in sorted(sample.topics.items())
        for index, replicas in enumerate(topic.replicas)
    }
    layout = Layout(
        ClusterDescription(None, -1, tuple(one.broker for one in sample.brokers.values())).placement, current
    )
    targets = (led_by_others if do == _BEGIN else leads_again)(layout, node)
    rows = [
        (str(place), f"{_leader(sample, place)} leads", f"{nodes[0]} leads") for place, nodes in sorted(targets.items())
    ]
    if do == _END:
        return _Change(targets, targets, rows, "")
    return _Change(targets, {*targets, *_leads(sample, node)}, rows, _warning(sample, node))


def _node(cluster: WatchedCluster, asked: PageRequest) -> int:
    """Return the broker's id. Raises Refused if it is not live."""
    text = asked.parts["node"]
    node = int(text) if text.isdecimal() and len(text) < 10 else -1
    if node not in cluster.sampler.last.brokers:
        raise Refused(404, f"There is no broker {text} in the last sample.")
    return node


def _leader(sample: Sample, place: TopicPartition) -> str:
    leader = sample.topics[place.topic].leaders[place.partition]
    return str(leader) if leader >= 0 else "nobody"


def _warning(sample: Sample, node: int) -> str:
    """Return the partitions without another in-sync replica, which can't be used while a broker is down."""
    alone = [
        f"{name}-{index}"
        for name, topic in sample.topics.items()
        for index, isr in enumerate(topic.isr)
        if isr == (node,)
    ]
    if not alone:
        return ""
    some = ", ".join(alone[:5]) + (", ..." if len(alone) > 5 else "")
    return f"{len(alone)} partitions have no other replica in sync, and can't be used while it is down: {some}."


def _leads(sample: Sample, node: int) -> list[TopicPartition]:
    """Return the partitions that a broker leads and another broker could lead."""
    return [
        TopicPartition(name, index)
        for name, topic in sample.topics.items()
        for index, leader in enumerate(topic.leaders)
        if leader == node and len(topic.isr[index]) > 1
    ]


async def _reordered(cluster: WatchedCluster, targets: Placement) -> None:
    """Wait until the new order of partitions' replicas is in effect. Raises PylogdError."""
    if not targets:
        return
    end = cluster.seconds() + _PATIENCE
    while targets.keys() & (await cluster.admin.reassignments()).keys() and cluster.seconds() < end:
        await cluster.pause(_LOOK_SECONDS)


async def _elect(cluster: WatchedCluster, targets: Collection[TopicPartition]) -> Mapping[TopicPartition, KafkaError]:
    """Elect the preferred leaders. Return the partitions that still have another leader, with the reason."""
    if not targets:
        return {}
    outcome = await cluster.admin.elect_leaders(targets)
    return {at: error for at, error in outcome.items() if error is not None and error.code not in _AS_WANTED}


def _still(node: int, failed: Mapping[TopicPartition, KafkaError]) -> str:
    place, error = min(failed.items(), key=lambda one: one[0])
    return f"broker {node} still leads {len(failed)} partitions; {place}: {error}"
