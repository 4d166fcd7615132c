"""One planner behind all who place and move replicas: random clusters with dead, cordoned, decommissioned and labelled
brokers, racks, machines, full disks and limits of partitions.

Each plan is accepted by the check that brokers make (`PartitionAdmin.move`, on a real metadata store), honours labels,
machines and racks, moves no more than it has to, and never moves onto a broker that may get nothing. What a client
learns of the brokers is what the brokers know, so that each caller has the same plan.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from unittest import mock

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, succeed

from pylogd.base.placement.errors import PlacementImpossible
from pylogd.base.placement.layout import Assigned, Layout, refusals
from pylogd.base.placement.leading import leads_again, led_by_others
from pylogd.base.placement.moves import empty, relabel, spread
from pylogd.broker.api.describe_cluster import describe_cluster
from pylogd.broker.controller import internal
from pylogd.broker.controller.admin import PartitionAdmin
from pylogd.broker.controller.decisions import Snapshot
from pylogd.broker.metadata.assignment import assign_replicas, check_assignment
from pylogd.broker.metadata.errors import InvalidPartitions, InvalidReplicationFactor
from pylogd.broker.metadata.image import Broker, Endpoint, Outages, PartitionState, Topic, TopicUpdate
from pylogd.broker.metadata.labels import candidates, label_of, with_label
from pylogd.cli import brokers as cli_brokers
from pylogd.cli import reassign as cli_reassign
from pylogd.cli import topics as cli_topics
from pylogd.client import TopicPartition
from pylogd.client.core.admin.calls import Question
from pylogd.client.core.admin.move_operations import ClusterLayout
from pylogd.client.core.admin.operations import Operations
from pylogd.client.core.metadata import Metadata
from pylogd.config import Settings
from pylogd.services.console.actions import cluster as console
from pylogd.services.console.answers import Refused
from pylogd.store.paths import OFFSETS_TOPIC
from pylogd.wire.messages import (
    APIS,
    describe_configs,
    list_partition_reassignments,
    metadata,
)
from pylogd.wire.messages import describe_cluster as cluster_messages
from pylogd.wire.schema import response_codec
from tests.commands import run_command

T = TypeVar("T")
LABELS = ("online", "logs")
NODES = range(1, 9)
TOPICS = ("a", "b", "c")
Targets = Mapping[TopicPartition, Sequence[int]]


@dataclass
class Cluster:
    """A cluster as its brokers know it. live: of `known`, those that live. limits: their rooms."""

    known: dict[int, Broker]
    live: frozenset[int]
    topics: dict[str, Topic]
    rooms: dict[int, int]
    written: list[TopicUpdate] = field(default_factory=list)

    @property
    def brokers(self) -> dict[int, Broker]:
        return {node: self.known[node] for node in self.live}

    def room_on(self, node: int) -> int | None:
        return self.rooms.get(node)

    @property
    def layout(self) -> ClusterLayout:
        """The layout as the brokers know it."""
        partitions = {
            TopicPartition(topic.name, one.index): Assigned(one.target, one.removing)
            for topic in self.topics.values() for one in topic.partitions
        }  # fmt: skip
        labels = {name: label_of(topic.configs) for name, topic in self.topics.items() if label_of(topic.configs)}
        return Layout(candidates(self.brokers, self.room_on), partitions, labels)

    def move(self, targets: Targets, labels: Mapping[str, str] | None = None) -> dict[tuple[str, int], Any]:
        """Ask a broker to move partitions; return its outcomes."""

        def write(updates: Sequence[TopicUpdate], **_: Any) -> Deferred[None]:
            self.written.extend(updates)
            return succeed(None)

        topics = SimpleNamespace(
            get=self.topics.get, unreadable={}, write_states=write, keeps_state=lambda _: False, all=self.topics.values
        )
        cluster = SimpleNamespace(brokers=self.brokers, known=self.known, acknowledged={})
        admin = PartitionAdmin(cast(Any, cluster), cast(Any, topics), self.room_on, lambda: 0)
        outcomes: list[Any] = []
        admin.move({(at[0], at[1]): list(nodes) for at, nodes in targets.items()}, labels=labels or {}).addBoth(
            outcomes.append
        )
        assert isinstance(outcomes[0], dict), outcomes
        return outcomes[0]


def broker_of(draw: st.DrawFn, node: int, racks: Sequence[str | None]) -> Broker:
    """Draw a broker."""
    outages = Outages(
        full=draw(st.sampled_from([frozenset(), frozenset(), frozenset({(bytes(16), 0)})])),
        cordoned=draw(st.sampled_from([False, False, False, True])),
    )
    return Broker(
        node, (Endpoint("PLAINTEXT", "h", 9000 + node),), draw(st.sampled_from(racks)), outages=outages,
        labels=tuple(sorted(draw(st.sets(st.sampled_from(LABELS))))), host_id=draw(st.sampled_from([None, "m", "n"])),
    )  # fmt: skip


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Generate a cluster with topics that were placed at any time, by any rule, some of them on the move."""
    racks: list[str | None] = draw(st.sampled_from([[None], ["r"], ["r", "s"], ["r", "s", "t"], ["r", None]]))
    known = {node: broker_of(draw, node, racks) for node in NODES}
    live = draw(st.sets(st.sampled_from(NODES), min_size=1))
    topics = {}
    for name in draw(st.lists(st.sampled_from(TOPICS), min_size=1, unique=True)):
        count = draw(st.integers(1, 3))
        replicas = st.lists(st.sampled_from(NODES), min_size=count, max_size=count, unique=True).map(tuple)
        states = [PartitionState.initial(*one) for one in enumerate(draw(st.lists(replicas, min_size=1, max_size=6)))]
        if draw(st.booleans()):
            target = draw(replicas)
            before = states[0].replicas
            removing = tuple(node for node in before if node not in target)
            adding = tuple(node for node in target if node not in before)
            states[0] = PartitionState(0, (*target, *removing), before, before[0], adding=adding, removing=removing)
        configs = with_label({}, draw(st.sampled_from(("", "", *LABELS))))
        topics[name] = Topic(name, name.encode() * 16, tuple(states), configs)
    rooms = draw(st.dictionaries(st.sampled_from(NODES), st.integers(0, 3), max_size=3))
    return Cluster(known, frozenset(live), topics, rooms)


def check(
    cluster: Cluster,
    planned: Mapping[TopicPartition, Sequence[int]],
    labels: Mapping[str, str] | None = None,
    maintained: int = -1,
) -> int:
    """Check a plan against the rules and the brokers' own check; return how many replicas it copies.

    maintained: the broker that a maintenance begins of.
    """
    layout = cluster.layout
    current = layout.current
    changed = {at: nodes for at, nodes in planned.items() if tuple(nodes) != current[at]}
    assert not refusals(layout, changed, labels)
    outcomes = cluster.move(changed, labels)
    assert not any(outcomes.values()), outcomes
    copies: Counter[int] = Counter()
    for at, nodes in changed.items():
        label = {**layout.labels, **(labels or {})}.get(at[0], "")
        assert len(set(nodes)) == len(nodes)
        for node in set(nodes) - set(current[at]):
            found = cluster.known[node]
            assert node in cluster.live and not found.outages.cordoned and (not label or label in found.labels)
            if node not in layout.partitions[at].leaving:
                copies[node] += 1
        if nodes[0] not in current[at] or nodes[0] != current[at][0]:
            assert not cluster.known[nodes[0]].outages.cordoned or all(
                node not in cluster.live or cluster.known[node].outages.cordoned for node in nodes if node != maintained
            ), "no cordoned broker becomes the preferred leader"
    for node, count in copies.items():
        assert count <= cluster.rooms.get(node, count)
    return sum(copies.values())


def apply(cluster: Cluster, planned: Targets, label: str | None = None) -> Cluster:
    """Return the cluster after the moves of a plan."""
    topics = {}
    for name, topic in cluster.topics.items():
        states = [
            PartitionState.initial(one.index, tuple(planned.get(TopicPartition(name, one.index), one.target)))
            for one in topic.partitions
        ]
        topics[name] = Topic(name, topic.topic_id, tuple(states), topic.configs)
    return Cluster(cluster.known, cluster.live, topics, {})


@given(clusters(), st.integers(1, 3), st.booleans())
def test_spreading(cluster: Cluster, factor: int, all_as_before: bool) -> None:
    layout = cluster.layout
    try:
        planned = spread(layout, factor=None if all_as_before else factor)
    except PlacementImpossible:
        assume(False)
    check(cluster, planned)
    for at, nodes in planned.items():
        before = layout.current[at]
        kept = [node for node in before if node in layout.brokers.keepers(layout.label(at))]
        cordoned = set(layout.brokers.cordoned)
        assert all_as_before is False or cordoned & set(kept) <= set(nodes), "a cordoned broker is left alone"
        machines = layout.brokers.machines
        if not cluster.rooms and not cordoned:
            most = machines(layout.brokers.keepers(layout.label(at)))
            assert machines(nodes) == min(len(nodes), most), "replicas share a machine only if there are too few"
    if not cluster.rooms:
        after = apply(cluster, planned)
        again = spread(after.layout)
        assert {at: set(nodes) for at, nodes in again.items()} == {at: set(nodes) for at, nodes in planned.items()}


@given(clusters(), st.sampled_from(NODES))
def test_emptying(cluster: Cluster, node: int) -> None:
    layout = cluster.layout
    try:
        planned = empty(layout, node)
    except PlacementImpossible:
        assume(False)
    affected = {at for at, one in layout.partitions.items() if node in one.replicas}
    assert planned.keys() == affected
    assert check(cluster, planned) <= len(affected), "no other replica moves"
    for at, nodes in planned.items():
        assert node not in nodes and set(layout.current[at]) - {node} <= set(nodes)
        assert len(nodes) == len(layout.current[at])


@given(clusters(), st.sampled_from(("", *LABELS)), st.data())
def test_relabelling(cluster: Cluster, label: str, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(cluster.topics)))
    alone = Cluster(cluster.known, cluster.live, {name: cluster.topics[name]}, cluster.rooms)
    try:
        planned = relabel(alone.layout, name, label)
    except PlacementImpossible:
        assume(False)
    copies = check(alone, planned, {name: label})
    may_stay = set(alone.layout.brokers.keepers(label))
    assert all(set(nodes) <= may_stay for nodes in planned.values())
    if all(set(nodes) <= may_stay for nodes in alone.layout.current.values()):
        bound = spread(alone.layout) if label_of(cluster.topics[name].configs) == label else None
        assert bound is None or bound == planned
    assert copies <= sum(map(len, planned.values()))


@given(clusters(), st.sampled_from(NODES))
def test_maintenance(cluster: Cluster, node: int) -> None:
    layout = cluster.layout
    for planned in (led_by_others(layout, node), leads_again(layout, node)):
        assert all(set(nodes) == set(layout.current[at]) for at, nodes in planned.items()), "nothing is copied"
    begun = led_by_others(layout, node)
    assert check(cluster, begun, maintained=node) == 0
    assert all(nodes[-1] == node for nodes in begun.values())
    during = apply(cluster, begun)
    during.known = {**cluster.known, node: cordoned(cluster.known[node])}
    try:
        planned = spread(during.layout)
    except PlacementImpossible:
        assume(False)
    before = during.layout.current
    assert not any(nodes[0] == node != before[at][0] for at, nodes in planned.items() if len(nodes) > 1), "not undone"


def cordoned(broker: Broker) -> Broker:
    """Return a broker after it was cordoned."""
    return Broker(
        broker.node_id, broker.endpoints, broker.rack, outages=Outages(full=broker.outages.full, cordoned=True),
        labels=broker.labels, host_id=broker.host_id,
    )  # fmt: skip


@given(clusters(), st.integers(1, 12), st.integers(1, 4), st.sampled_from(("", *LABELS)), st.integers(0, 100))
def test_new_partitions(cluster: Cluster, partitions: int, factor: int, label: str, start: int) -> None:
    brokers = cluster.layout.brokers
    try:
        made = assign_replicas(brokers, partitions, factor, label=label, start=start)
    except (InvalidReplicationFactor, InvalidPartitions):
        assume(False)
    assert check_assignment(dict(enumerate(made)), brokers, label_at=lambda _: label) == made, (
        "the check of assignments accepts it"
    )
    counts = Counter(node for nodes in made for node in nodes)
    assert all(count <= cluster.rooms.get(node, count) for node, count in counts.items())


@given(clusters(), st.integers(1, 4))
def test_internal_topics_grow(cluster: Cluster, factor: int) -> None:
    topic = Topic(OFFSETS_TOPIC, bytes(16), *next((one.partitions, one.configs) for one in cluster.topics.values()))
    updates = internal.grow(Snapshot(cluster.brokers), [topic], Settings({"offsets.topic.replication.factor": factor}))
    for update in updates:
        for before, after in zip(update.before.partitions, update.after, strict=True):
            added = set(after.target) - set(before.target)
            label = label_of(topic.configs)
            assert added <= set(candidates(cluster.brokers).open(label)) and set(before.target) <= set(after.target)


# -- all callers


class Wire:
    """`Calls` of a client, answered by the handlers of a broker, or from what it knows, over the codecs of the wire."""

    request_timeout = 10.0

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.metadata = Metadata([("h", 9001)])

    async def call(self, attempt: Callable[[], Coroutine[Any, Any, Any]], *_: Any) -> Any:
        return await attempt()

    async def send_all(self, questions: Sequence[Question], timeout: float | None = None) -> list[Any]:
        return [await self.send(one) for one in questions]

    async def send(self, question: Question) -> Any:
        version = APIS[question.api.API_KEY].max_version
        request = question.build(version)
        answer = {
            metadata.MetadataRequest: self._metadata,
            cluster_messages.DescribeClusterRequest: self._cluster,
            list_partition_reassignments.ListPartitionReassignmentsRequest: self._moves,
            describe_configs.DescribeConfigsRequest: self._configs,
        }[question.api](request)
        codec = response_codec(question.api.API_KEY, version)
        return codec.decode(b"".join(map(bytes, cast(Any, codec.encode(answer)))))

    def _cluster(self, request: Any) -> Any:
        brokers, asked = self.cluster.brokers, min(self.cluster.live)
        broker = SimpleNamespace(
            cluster=SimpleNamespace(brokers=brokers, controller_id=1, node_id=asked, cluster_id="c"),
            metadata=SimpleNamespace(topic_admin=SimpleNamespace(room_on=self.cluster.room_on)),
            advertised=lambda _: ("h", 9000 + asked),
        )
        return describe_cluster(
            cast(
                Any,
                SimpleNamespace(
                    broker=broker,
                    connection=SimpleNamespace(listener="PLAINTEXT"),
                    may_use_cluster=lambda *_, **__: True,
                ),
            ),
            request,
        )

    def _metadata(self, request: Any) -> Any:
        names = self.cluster.topics if request.topics is None else [one.name for one in request.topics]
        return metadata.MetadataResponse(
            brokers=[metadata.MetadataResponseBroker(node, "h", 9000 + node, None) for node in self.cluster.live],
            topics=[
                metadata.MetadataResponseTopic(name=name, topic_id=topic.topic_id, partitions=[
                    metadata.MetadataResponsePartition(0, one.index, one.leader, 0, list(one.replicas), list(one.isr))
                    for one in topic.partitions
                ])
                for name in names for topic in [self.cluster.topics[name]]
            ],
        )  # fmt: skip

    def _moves(self, request: Any) -> Any:
        messages = list_partition_reassignments
        return messages.ListPartitionReassignmentsResponse(topics=[
            messages.OngoingTopicReassignment(name, [
                messages.OngoingPartitionReassignment(
                    one.index, list(one.replicas), list(one.adding), list(one.removing)
                )
                for one in topic.partitions if one.moving
            ])
            for name, topic in self.cluster.topics.items()
            if request.topics is None or name in [one.name for one in request.topics]
        ])  # fmt: skip

    def _configs(self, request: Any) -> Any:
        messages = describe_configs
        return messages.DescribeConfigsResponse(results=[
            messages.DescribeConfigsResult(
                resource_type=one.resource_type, resource_name=one.resource_name, configs=[
                    messages.DescribeConfigsResourceResult(
                        "placement.label", label_of(self.cluster.topics[one.resource_name].configs)
                    )
                ],
            )
            for one in request.resources
        ])  # fmt: skip


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    raise AssertionError("it waits")


class Blocking:
    """The blocking face of the administrator's operations."""

    def __init__(self, cluster: Cluster) -> None:
        self._operations = Operations(cast(Any, Wire(cluster)), 10.0)

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **options: at_once(getattr(self._operations, name)(*args, **options))


def command_plan(cluster: Cluster, *words: str) -> dict[TopicPartition, tuple[int, ...]] | None:
    """Return the plan that a command prints, None if it says that there is none."""
    for module in (cli_reassign, cli_brokers, cli_topics):
        assert {"connect", "Admin"} <= vars(module).keys()
    admin = mock.patch.multiple
    made: Any = lambda _: Blocking(cluster)  # noqa: E731
    with (
        admin(cli_reassign, connect=made, Admin=lambda found: found),
        admin(cli_brokers, connect=made, Admin=lambda found: found),
        admin(cli_topics, connect=made, Admin=lambda found: found),
    ):
        done = run_command(*words)
    if done.returncode:
        assert "Error: " in done.stderr
        return None
    found = json.loads(done.stdout)["partitions"]
    return {TopicPartition(one["topic"], one["partition"]): tuple(one["replicas"]) for one in found}


def console_plan(cluster: Cluster, topic: str, nodes: Sequence[int]) -> dict[str, str] | None:
    """Return the plan that the console shows: the replicas of each partition that changes, as text."""

    async def in_thread(function: Callable[[], T]) -> T:
        return function()

    watched = SimpleNamespace(
        admin=Operations(cast(Any, Wire(cluster)), 10.0), in_thread=in_thread,
        options=SimpleNamespace(bootstrap="h:9001"),
        sampler=SimpleNamespace(last=SimpleNamespace(topics={topic: SimpleNamespace(name=topic)})),
    )  # fmt: skip
    form = {"topic": topic, "brokers": ",".join(map(str, nodes))}
    with mock.patch.object(console, "find_topic", lambda *_: SimpleNamespace(name=topic)):
        try:
            made = at_once(console.MoveReplicas().plan(cast(Any, watched), cast(Any, SimpleNamespace(form=form))))
        except Refused:
            return None
    return {row[0]: row[2] for row in made.rows}


@settings(max_examples=25)
@given(clusters(), st.sampled_from(NODES), st.data())
def test_all_callers_have_the_same_plan(cluster: Cluster, node: int, data: st.DataObject) -> None:
    operations = Operations(cast(Any, Wire(cluster)), 10.0)
    layout = at_once(operations.layout())
    assert layout == cluster.layout, "a client knows of brokers and replicas what the brokers know"
    topic = data.draw(st.sampled_from(sorted(cluster.topics)))
    alone = Cluster(cluster.known, cluster.live, {topic: cluster.topics[topic]}, cluster.rooms).layout
    live = sorted(cluster.live)

    def changed(made: Callable[[], Targets], of: ClusterLayout, whole: bool = False) -> Any:
        try:
            return {at: nodes for at, nodes in made().items() if whole or nodes != of.current[at]}
        except PlacementImpossible:
            return None

    expected = changed(lambda: spread(alone), alone)
    assert command_plan(cluster, "reassign", "plan", topic) == expected
    assert command_plan(cluster, "reassign", "plan") == changed(lambda: spread(layout), layout)
    shown = console_plan(cluster, topic, live)
    assert shown == (expected and {str(at): ", ".join(map(str, nodes)) for at, nodes in expected.items()})
    relabelled = changed(lambda: relabel(alone, topic, "logs"), alone, whole=True)
    assert command_plan(cluster, "topics", "relabel", topic, "logs", "--plan") == relabelled
    emptied = command_plan(cluster, "brokers", "decommission", str(node), "--plan")
    known = node in layout.brokers.live or node in layout.dead or any(
        node in one.leaving for one in layout.partitions.values()
    )  # fmt: skip
    assert emptied == (changed(lambda: empty(layout, node), layout, whole=True) if known else None)
