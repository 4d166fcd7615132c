"""A large cluster in one process: the real registries and controller of each broker, on simulated time.

Real are the metadata of each broker (registration, change feed, topics, in-sync writes), its controller and its part in
elections. Simulated are time, ZooKeeper (`store`) and the copying of records: a broker that comes back is caught up
after `CATCH_UP_SECONDS`, and the leaders then write it into the in-sync sets, as they do when a follower has caught up.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from pylogd.config import Settings
from pylogd.controller.controller import Controller
from pylogd.metadata.image import Broker, Endpoint, IsrChange, PartitionState
from pylogd.metadata.interfaces import Create
from pylogd.metadata.layout import PARENTS, TOPICS, Assignment, encode_states, encode_topic, state_path, topic_path
from pylogd.metadata.service import Metadata
from tests.scale.store import Latencies, ScaleStore, Server
from tests.simulation.world import SimClock, SimTime

REPLICAS: Final = 3
RACKS: Final = 3
CATCH_UP_SECONDS: Final = 1.0
_EPOCH_MS: Final = 1_700_000_000_000


class Member:
    """A broker, without its logs: everything by which it learns of the cluster and decides about it."""

    def __init__(self, cluster: LargeCluster, node_id: int) -> None:
        self.node_id = node_id
        self.alive = True
        self.ready = False
        self.time = SimClock(cluster.time)
        clock = cast(IReactorTime, self.time)
        settings = Settings({"node.id": node_id, "log.dirs": "/data"})
        timeout = settings.integer("zookeeper.session.timeout.ms") / 1000
        self.store = ScaleStore(cluster.server, clock, cluster.server_clock, timeout)
        self.metadata = Metadata(settings, cast(Any, self.store), clock)
        self.controller = Controller(
            self.store, self.metadata.cluster, self.metadata.topics, settings, clock,
            lambda: _EPOCH_MS + int(clock.seconds() * 1000),
        )  # fmt: skip
        self.failures: list[Any] = []
        self._rack = f"rack{node_id % RACKS}"

    def start(self) -> None:
        """Register and take part in elections; `ready` once the controller has accepted this broker."""
        Deferred.fromCoroutine(self._start()).addErrback(self.failures.append)

    async def _start(self) -> None:
        await self.metadata.start()
        host = f"broker-{self.node_id}.example.org"
        broker = Broker(self.node_id, (Endpoint("PLAINTEXT", host, 9092),), rack=self._rack)
        await self.metadata.cluster.register(broker)
        await self.controller.start()
        await self.metadata.cluster.until_accepted()
        self.ready = True

    def kill(self) -> None:
        """Kill the process, whose session then expires."""
        self.alive = self.ready = False
        self.time.dead = True
        self.store.vanish()

    def stop(self) -> Deferred[None]:
        """Stop as SIGTERM does: hand leadership over, then end the session."""
        return Deferred.fromCoroutine(self._stop()).addErrback(self.failures.append)

    async def _stop(self) -> None:
        await self.controller.stop_leading()
        await self.controller.stop()
        await self.metadata.stop()
        self.alive = self.ready = False

    def readmit(self, node: int) -> None:
        """Write a broker that has caught up into the in-sync sets of the partitions that this one leads."""
        topics, epoch = self.metadata.topics, self.metadata.cluster.brokers[node].epoch
        changes = [
            IsrChange(topic.name, topic.topic_id, state.index, state.leader_epoch, state.partition_epoch,
                      (*state.isr, node), {node: epoch})
            for topic in topics.all()
            for state in topic.partitions
            if state.leader == self.node_id and node in state.replicas and node not in state.isr
        ]  # fmt: skip
        if changes:
            self.metadata.isr_writer.alter(changes).addErrback(self.failures.append)


class LargeCluster:
    """Brokers 1 to `count` with `partitions` partitions of three replicas, in topics of equal size.

    processor: real seconds of processor time by broker since the last `reset`.
    """

    def __init__(self, count: int, topics: int, partitions: int, latencies: Latencies) -> None:
        self.time = SimTime()
        self.server_clock = cast(IReactorTime, SimClock(self.time))
        self.server = Server(self.server_clock, latencies)
        self.members: dict[int, Member] = {}
        self.processor: Counter[int] = Counter()
        self._of_clock: dict[SimClock, int] = {}
        self.count = count
        self._make_topics(topics, partitions)

    def _make_topics(self, topics: int, partitions: int) -> None:
        """Write the topics' nodes, as they are some time after their creation."""
        tree = self.server.tree
        session = tree.open(cast(Any, None), 1e9)
        made = {"/"}
        for parent in PARENTS:
            for end in [at for at, letter in enumerate(parent) if letter == "/" and at] + [len(parent)]:
                if parent[:end] not in made:
                    made.add(parent[:end])
                    tree.multi([Create(parent[:end])], session)
        if TOPICS not in made:
            tree.multi([Create(TOPICS)], session)
        each = partitions // topics
        for number in range(topics):
            name, topic_id = f"topic-{number:05}", number.to_bytes(16, "big")
            replicas = [self._replicas(number * each + index) for index in range(each)]
            states = tuple(PartitionState.initial(index, nodes) for index, nodes in enumerate(replicas))
            tree.multi(
                [
                    Create(topic_path(name), encode_topic(Assignment(topic_id, replicas))),
                    Create(state_path(name, topic_id), encode_states(1, states)),
                ],
                session,
            )

    def _replicas(self, number: int) -> tuple[int, ...]:
        """Return the brokers of a partition: neighbours are in different racks."""
        return tuple(1 + (number + step) % self.count for step in range(min(REPLICAS, self.count)))

    def start(self, nodes: Iterable[int]) -> None:
        """Start brokers."""
        for node in nodes:
            member = self.members[node] = Member(self, node)
            self._of_clock[member.time] = node
            member.start()

    def live(self) -> list[Member]:
        """Return the brokers that run."""
        return [member for member in self.members.values() if member.alive]

    def reset(self) -> None:
        """Count from now on."""
        self.server.reset()
        self.processor.clear()

    def run(self, until: Callable[[], bool], seconds: float, look: float = 0.02) -> float:
        """Let time pass until a condition holds, looked at every `look` seconds; return how many seconds it took.

        Raises AssertionError after `seconds`, or if a broker failed.
        """
        begun = next_look = self.time.now
        while True:
            if self.time.now >= next_look:
                if until():
                    return self.time.now - begun
                next_look = self.time.now + look
                self.server_clock.callLater(look, lambda: None)  # so that there is something to look after
            assert self.time.now < begun + seconds, f"not within {seconds} s"
            before = time.process_time()
            assert self.time.step(), "nothing will ever happen"
            ran = self._of_clock.get(cast(SimClock, self.time.ran))
            if ran is not None:
                self.processor[ran] += time.process_time() - before  # type: ignore[assignment]
            failed = self.members[ran].failures if ran is not None else []
            assert not failed, failed[0]

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        end = self.time.now + seconds
        self.run(lambda: self.time.now >= end, seconds + 1)

    # -- what is looked at

    def all_ready(self) -> bool:
        """Whether every running broker has been accepted."""
        return all(member.ready for member in self.live())

    def controller(self) -> Member | None:
        """Return the broker that is the controller."""
        return next((member for member in self.live() if member.controller.active), None)

    def led(self) -> bool:
        """Whether a controller knows a live leader of every partition."""
        found = self.controller()
        if found is None:
            return False
        alive = {member.node_id for member in self.live()}
        return all(state.leader in alive for topic in found.metadata.topics.all() for state in topic.partitions)

    def all_know(self) -> bool:
        """Whether every partition has a leader, and every broker has the metadata that says so."""
        if not self.led():
            return False
        found = self.controller()
        assert found is not None
        version = found.metadata.feed._seen
        alive = {member.node_id for member in self.live()}
        return all(
            member.metadata.feed._seen >= version and member.metadata.cluster.brokers.keys() <= alive
            for member in self.live()
        )

    def all_in_sync(self) -> bool:
        """Whether every replica on a running broker is in sync."""
        found = self.controller()
        alive = {member.node_id for member in self.live()}
        return found is not None and all(
            alive.intersection(state.replicas) <= set(state.isr)
            for topic in found.metadata.topics.all()
            for state in topic.partitions
        )
