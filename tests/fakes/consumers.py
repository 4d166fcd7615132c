"""A group of consumers in simulated time on a simulated ZooKeeper, with a checker that sees all of them.

The checker fails if two consumers may fetch a partition at the same time, paused ones included, since they may resume
at any moment; if reading starts after the last processed offset; and if an unprocessed offset is committed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from twisted.internet.defer import Deferred

from pylogd.client.core.errors import ClientError, Closed
from pylogd.client.core.model import TopicPartition
from pylogd.client.zookeeper.coordinator import Coordinator, GroupSettings
from pylogd.client.zookeeper.events import Assigned, Revoked
from pylogd.client.zookeeper.registries import GroupPaths, Subscription
from pylogd.client.zookeeper.states import CoordinatorState
from pylogd.store.paths import topic_path
from tests.fakes.simulation import ProcessTime, SimulatedTime
from tests.fakes.zookeeper import FakeZooKeeper

GROUP = "g"


@dataclass(frozen=True, slots=True)
class Pace:
    """How slow things are, in seconds: a hop, a watch's call besides, and the caller's stopping, each at most."""

    hop: float = 0.02
    lag: float = 0.5
    stopping: float = 0.3
    work: float = 0.25


class SimulatedConsumer:
    """A consumer process: fetches what it is assigned as long as it may, and is slow to stop."""

    def __init__(self, group: SimulatedGroup, number: int, subscription: Subscription) -> None:
        self.group = group
        self.number = number
        self.subscription = subscription
        self.process = ProcessTime(group.time)
        self.store = group.zookeeper.store(self.process, group.settings.session_timeout)
        self.positions: dict[TopicPartition, int] = {}
        self.failures: list[BaseException] = []
        self.leaving = False
        self._registrations = 0
        self.coordinator = Coordinator(
            self.store, self.process, GROUP, subscription, self, group.settings, new_name=self._name, rng=group.rng
        )

    def _name(self) -> str:
        self._registrations += 1
        return f"c{self.number:03d}-{self._registrations}"

    def start(self) -> None:
        self.store.start().addCallback(self._started)
        self._work_later()

    def _started(self, _: object) -> None:
        if self.leaving:
            self.store.close()
        else:
            self.coordinator.start().addErrback(lambda failure: failure.trap(Closed))

    def leave(self) -> None:
        self.leaving = True
        if self.coordinator.state is not CoordinatorState.CLOSED:
            self.coordinator.close().addCallback(lambda _: self.store.close())

    @property
    def alive(self) -> bool:
        return not self.process.dead and not self.leaving

    def on_assigned(self, event: Assigned) -> None:
        for partition, offset in event.offsets.items():
            self.group.expect(partition not in self.positions, f"{partition} was assigned twice")
            self.positions[partition] = offset or 0
        self._judge()

    def on_revoked(self, event: Revoked) -> Deferred[None] | None:
        self.group.expect(set(event.partitions) <= set(self.positions), "revoked without being assigned")
        stopped: Deferred[None] = Deferred()
        self.process.callLater(self.group.rng.uniform(0, self.group.pace.stopping), self._stop, event, stopped)
        return stopped

    def on_failed(self, error: BaseException) -> None:
        self.group.expect(isinstance(error, ClientError), repr(error))
        self.failures.append(error)

    def _stop(self, event: Revoked, stopped: Deferred[None]) -> None:
        last = {p: self.positions.pop(p) for p in event.partitions}
        if event.lost or self.group.rng.random() < 0.5:
            self.coordinator.store_offsets(last)
            stopped.callback(None)
        else:
            self.coordinator.commit(last).addErrback(lambda _: None).chainDeferred(stopped)

    def _work_later(self) -> None:
        self.process.callLater(self.group.rng.uniform(0.1, 1) * self.group.pace.work, self._work)

    def _work(self) -> None:
        if self.coordinator.may_fetch:
            self._judge()
            for partition in self.positions:
                count = self.group.rng.randrange(10)
                self.group.process(partition, self.positions[partition], count)
                self.positions[partition] += count
            self.coordinator.store_offsets(self.positions)
        if not self.leaving or self.positions:
            self._work_later()

    def _judge(self) -> None:
        if not self.coordinator.may_fetch:
            return
        for other in self.group.consumers:
            if other is not self and not other.process.dead and other.coordinator.may_fetch:
                both = self.positions.keys() & other.positions.keys()
                self.group.expect(not both, f"{self.number} and {other.number} both fetch {both}")


class SimulatedGroup:
    """The world: time, ZooKeeper, topics, consumers, and what was processed of each partition."""

    def __init__(self, rng: random.Random, pace: Pace | None = None, settings: GroupSettings | None = None) -> None:
        self.rng = rng
        self.pace = pace or Pace()
        self.settings = settings or GroupSettings(commit_interval=1.0)
        self.time = SimulatedTime()
        self.zookeeper = FakeZooKeeper(
            self.time,
            rng,
            delay=lambda: rng.uniform(0.02, 1) * self.pace.hop,
            lag=lambda: rng.random() ** 3 * self.pace.lag,
        )
        self.topics: dict[str, int] = {}
        self.consumers: list[SimulatedConsumer] = []
        self.processed: dict[TopicPartition, int] = {}
        self.objections: list[str] = []

    def set_partitions(self, topic: str, count: int) -> None:
        self.topics[topic] = count
        document = {"version": 1, "partitions": {str(index): [1] for index in range(count)}}
        self.zookeeper.put(topic_path(topic), json.dumps(document).encode())

    def change_brokers(self) -> None:
        self.zookeeper.put(f"/brokers/ids/{self.rng.randrange(10**6)}", b"{}")

    def join(self, subscription: Subscription) -> SimulatedConsumer:
        consumer = SimulatedConsumer(self, len(self.consumers), subscription)
        self.consumers.append(consumer)
        consumer.start()
        return consumer

    @property
    def living(self) -> list[SimulatedConsumer]:
        return [consumer for consumer in self.consumers if consumer.alive]

    def process(self, partition: TopicPartition, offset: int, count: int) -> None:
        known = self.processed.get(partition, 0)
        self.expect(offset <= known, f"{partition}: read from {offset} on, but nobody has read {known}")
        self.processed[partition] = max(known, offset + count)

    def heal(self) -> None:
        for consumer in self.consumers:
            consumer.process.thaw()
            consumer.store.heal()

    def wanted(self) -> set[TopicPartition]:
        """What should have an owner: the partitions of topics that somebody living subscribes to."""
        topics = {t for consumer in self.living for t in consumer.subscription.streams(self.topics)}
        return {TopicPartition(topic, index) for topic in topics for index in range(self.topics.get(topic, 0))}

    def settled(self) -> bool:
        """Whether everything has one owner that fetches it, and nobody is about to change that."""
        owned: list[TopicPartition] = []
        for consumer in self.living:
            if consumer.coordinator.state is not CoordinatorState.OWNING or not consumer.coordinator.may_fetch:
                return False
            owned += consumer.positions
        return len(owned) == len(set(owned)) and set(owned) == self.wanted() and self._even()

    def _even(self) -> bool:
        """Whether the streams of one topic have the same number of partitions, give or take one."""
        for topic, count in self.topics.items():
            takers = [(c, c.subscription.streams(self.topics).get(topic, 0)) for c in self.living]
            streams = sum(number for _, number in takers)
            for consumer, number in takers:
                has = sum(partition.topic == topic for partition in consumer.positions)
                if number and not number * (count // streams) <= has <= number * -(-count // streams):
                    return False
        return True

    def run_until(self, condition: Callable[[], bool], limit: float) -> float:
        """Let time pass until the condition holds; how long it took. It has to within `limit` seconds."""
        since = self.time.seconds()
        while not condition():
            passed = self.time.seconds() - since
            assert passed < limit, f"not within {limit} s: {self.describe()}"
            self.time.run(0.02)
        return self.time.seconds() - since

    def describe(self) -> str:
        lines = [
            f"{c.number}: {c.coordinator.state.name} {sorted(map(str, c.positions))} may={c.coordinator.may_fetch}"
            for c in self.living
        ]
        return "; ".join(lines)

    def committed(self) -> dict[TopicPartition, int]:
        """The offsets in the tree."""
        prefix = GroupPaths(GROUP).offsets + "/"
        found = {}
        for path, node in self.zookeeper.leader.tree.nodes.items():
            topic, _, index = path.removeprefix(prefix).partition("/")
            if path.startswith(prefix) and index:
                found[TopicPartition(topic, int(index))] = int(node.data)
        return found

    def expect(self, holds: bool, otherwise: str) -> None:
        """Object, unless it holds. Nothing is raised here: it would be the fault of whoever is called just then."""
        if not holds:
            self.objections.append(f"at {self.time.seconds():.3f} s: {otherwise}")

    def check(self) -> None:
        """What must hold at any time."""
        assert not self.objections, self.objections[0]
        for partition, offset in self.committed().items():
            assert offset <= self.processed.get(partition, 0), f"{partition}: {offset} is committed, not processed"
