"""A large cluster in one process: the real registries and controller of each broker, on simulated time.

Real are the metadata of each broker (registration, change feed, topics, in-sync writes), its controller and its part in
elections. Simulated are time (`clock`), ZooKeeper (`store`) and the copying of records: a broker that comes back has
caught up with one leader after the other within `CATCH_UP_SECONDS`, and each then writes it into its in-sync sets.
"""

from __future__ import annotations

import statistics
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from pylogd.base.placement.brokers import Brokers, Candidate
from pylogd.base.placement.new import place_new
from pylogd.broker.controller.controller import Controller
from pylogd.broker.metadata.feed_machine import FeedState
from pylogd.broker.metadata.image import Broker, Endpoint, IsrChange, PartitionState
from pylogd.broker.metadata.layout import Assignment, encode_states, encode_topic, state_path
from pylogd.broker.metadata.service import Metadata
from pylogd.config import Settings
from pylogd.store.interfaces import Create
from pylogd.store.paths import CHANGES, PARENTS, TOPICS, topic_path
from tests.scale.clock import ScaleClock, ScaleTime, ServerClock
from tests.scale.columns import Column
from tests.scale.store import Latencies, ScaleStore, Server

REPLICAS: Final = 3
RACKS: Final = 3
CATCH_UP_SECONDS: Final = 1.0
_EPOCH_MS: Final = 1_700_000_000_000


def rack_of(node: int) -> str:
    """Return the rack of a broker."""
    return f"rack{node % RACKS}"


class Member:
    """A broker, without its logs: everything by which it learns of the cluster and decides about it."""

    def __init__(self, cluster: LargeCluster, node_id: int) -> None:
        self.node_id = node_id
        self.alive = True
        self.registered = self.ready = False
        self._cluster = cluster
        self.time = ScaleClock(cluster.time)
        clock = cast(IReactorTime, self.time)
        self.settings = settings = Settings({"node.id": node_id, "log.dirs": "/data"})
        timeout = settings.integer("zookeeper.session.timeout.ms") / 1000
        self.store = ScaleStore(cluster.server, clock, cluster.server_clock, timeout)
        self.metadata = Metadata(settings, cast(Any, self.store), clock)
        self.controller = Controller(
            self.store, self.metadata.cluster, self.metadata.topics, settings, clock,
            lambda: _EPOCH_MS + int(clock.seconds() * 1000),
        )  # fmt: skip
        self.failures: list[Any] = []

    def start(self) -> None:
        """Register, take part in elections when all may; `ready` once the controller has accepted this broker."""
        Deferred.fromCoroutine(self._start()).addErrback(self.failures.append)

    async def _start(self) -> None:
        await self.metadata.start()
        host = f"broker-{self.node_id}.example.org"
        broker = Broker(self.node_id, (Endpoint("PLAINTEXT", host, 9092),), rack=rack_of(self.node_id))
        await self.metadata.cluster.register(broker)
        self.registered = True
        await self._cluster.may_elect()
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

    def alter(self, changes: list[IsrChange]) -> None:
        """Write in-sync sets."""
        self.metadata.isr_writer.alter(changes).addErrback(self.failures.append)

    def seed(self, other: Member) -> None:
        """Begin with the topics of another broker, in place of reading each node when this one starts."""
        for part in ("topics", "topic_admin"):
            mine = vars(getattr(self.metadata, part))
            for name, known in vars(getattr(other.metadata, part)).items():
                if type(known) is dict and len(known) == len(other.metadata.topics):
                    positions = self._cluster.positions.setdefault((part, name), {})
                    if not positions:
                        positions.update((key, at) for at, key in enumerate(known))
                    mine[name] = Column(positions, list(known.values()))
                elif isinstance(known, dict):
                    mine[name] = known  # of replicas on each broker: one for all, since no replica moves
        self.metadata.topics.reload = _nothing_new  # type: ignore[method-assign,assignment]


async def _nothing_new(_: object) -> None:
    """Read no topics."""


class LargeCluster:
    """Brokers 1 to `count` with `partitions` partitions of three replicas, in topics of equal size.

    slowness: see `ScaleTime`. servers: of ZooKeeper.
    """

    def __init__(
        self, count: int, topics: int, partitions: int, latencies: Latencies, slowness: float = 0.0, servers: int = 1
    ) -> None:
        self.time = ScaleTime(slowness)
        self.server_clock = cast(IReactorTime, ServerClock(self.time))
        self.server = Server(self.server_clock, latencies, servers)
        self.members: dict[int, Member] = {}
        self.count = count
        self.positions: dict[tuple[str, str], dict[Any, int]] = {}  # of the keys of seeded brokers' tables of topics
        self._of_clock: dict[object, Member] = {}
        self._found: dict[str, tuple[object, bool]] = {}  # what `_each_partition` found, and when
        self._electing: list[Deferred[None]] | None = []  # brokers that wait for the first election
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
        brokers = Brokers(Candidate(node, rack_of(node)) for node in range(1, self.count + 1))
        copies = min(REPLICAS, self.count)
        for number in range(topics):
            name, topic_id = f"topic-{number:05}", number.to_bytes(16, "big")
            replicas = place_new(brokers, each, copies, start=zlib.crc32(name.encode()))
            states = tuple(PartitionState.initial(index, nodes) for index, nodes in enumerate(replicas))
            tree.multi(
                [
                    Create(topic_path(name), encode_topic(Assignment(topic_id, replicas))),
                    Create(state_path(name, topic_id), encode_states(1, states)),
                ],
                session,
            )

    def start(self, nodes: Iterable[int], seed: Member | None = None) -> None:
        """Start brokers. seed: a broker whose topics they begin with."""
        for node in nodes:
            member = self.members[node] = Member(self, node)
            self._of_clock[member.time] = member
            if seed is not None:
                member.seed(seed)
            member.start()

    def may_elect(self) -> Deferred[None]:
        """Return a Deferred that fires when brokers may elect a controller: from `elect` on, at once."""
        done: Deferred[None] = Deferred()
        if self._electing is None:
            done.callback(None)
        else:
            self._electing.append(done)
        return done

    def elect(self) -> None:
        """Let the brokers elect a controller: once all are there, since it treats missing ones as failed."""
        waiting, self._electing = self._electing or [], None
        for one in waiting:
            one.callback(None)

    def live(self) -> list[Member]:
        """Return the brokers that run."""
        return [member for member in self.members.values() if member.alive]

    def reset(self) -> None:
        """Count from now on."""
        self.server.reset()
        for member in self.members.values():
            member.time.spent = 0.0

    def processor(self) -> tuple[float, float]:
        """Return the processor time since `reset`: of the controller, and of the median of the other live brokers."""
        found = self.controller()
        others = [member.time.spent for member in self.live() if member is not found]
        return (0.0 if found is None else found.time.spent), statistics.median(others or [0.0])

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
            assert self.time.step(), "nothing will ever happen"
            ran = self._of_clock.get(self.time.ran)
            assert ran is None or not ran.failures, ran.failures[0]

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        end = self.time.now + seconds
        self.run(lambda: self.time.now >= end, seconds + 1)

    # -- what is looked at

    def all_registered(self) -> bool:
        """Whether every running broker has registered."""
        return all(member.registered for member in self.live())

    def all_ready(self) -> bool:
        """Whether every running broker has been accepted."""
        return all(member.ready for member in self.live())

    def controller(self) -> Member | None:
        """Return the broker that is the controller."""
        return next((member for member in self.live() if member.controller.active), None)

    def led(self) -> bool:
        """Whether a controller knows a live leader of every partition."""
        return self._each_partition("led", lambda state, alive: state.leader in alive)

    def leaders_know(self) -> bool:
        """Whether every leader that the controller has chosen has read of each partition that it leads."""
        found = self.controller()
        return found is not None and all(
            self._knows(state, topic.name) for topic in found.metadata.topics.all() for state in topic.partitions
        )

    def _knows(self, state: PartitionState, name: str) -> bool:
        """Whether the leader in this state, or a later one, knows that it leads."""
        leader = self.members.get(state.leader)
        topic = leader.metadata.topics.get(name) if leader is not None and leader.alive else None
        return topic is not None and topic.partitions[state.index].leader_epoch >= state.leader_epoch

    def _each_partition(self, what: str, test: Callable[[PartitionState, set[int]], bool]) -> bool:
        """Return whether a test is true of all partitions that a controller knows, and the ids of running brokers."""
        found = self.controller()
        if found is None:
            return False
        alive = {member.node_id for member in self.live()}
        at = found, found.metadata.topics.generation, frozenset(alive)
        if what not in self._found or self._found[what][0] != at:
            topics = found.metadata.topics.all()
            self._found[what] = at, all(test(state, alive) for topic in topics for state in topic.partitions)
        return self._found[what][1]

    def all_know(self) -> bool:
        """Whether every partition has a leader, and every broker has all metadata, follows it, and knows who lives."""
        version = self.server.tree.nodes[CHANGES].stat.version
        live = self.live()
        return self.led() and all(
            member.metadata.feed._seen >= version
            and member.metadata.feed._machine.state is FeedState.WATCHED
            and len(member.metadata.cluster.brokers) == len(live)
            for member in live
        )

    def readmit(self, nodes: Iterable[int]) -> None:
        """Have each leader write brokers that have caught up into its in-sync sets, all of a partition's together."""
        found = self.controller()
        assert found is not None
        epochs = {node: found.metadata.cluster.brokers[node].epoch for node in nodes}
        changes: defaultdict[int, list[IsrChange]] = defaultdict(list)
        for topic in found.metadata.topics.all():
            for state in topic.partitions:
                joining = {node: epochs[node] for node in state.replicas if node in epochs and node not in state.isr}
                if joining:
                    changes[state.leader].append(
                        IsrChange(topic.name, topic.topic_id, state.index, state.leader_epoch, state.partition_epoch,
                                  (*state.isr, *joining), joining)
                    )  # fmt: skip
        for number, (leader, wanted) in enumerate(sorted(changes.items())):
            later = CATCH_UP_SECONDS * number / len(changes)
            self.members[leader].time.callLater(later, self.members[leader].alter, wanted)

    def all_in_sync(self) -> bool:
        """Whether every replica on a running broker is in sync."""
        return self._each_partition(
            "in sync", lambda state, alive: all(node in state.isr for node in state.replicas if node in alive)
        )
