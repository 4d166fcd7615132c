"""Faults for simulated brokers: crashes, lost disks, pauses, cut links, elections, reassignments.

Kind, victim and time of each fault are drawn from the world's seeded random source. At least one eligible replica keeps
all acknowledged records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from pylogd.base.errors import PylogdError
from pylogd.broker.metadata.layout import decode_broker, decode_states, decode_topic
from pylogd.store.paths import BROKERS, TOPICS
from tests.simulation.world import SimBroker, World

TOPIC = "t"


class TroubledWorld(World):
    """A world with one topic, in which faults are injected until `nemesis_over`."""

    partitions = 2
    nemesis_over = False
    topic_configs: Mapping[str, str] = MappingProxyType({})
    latest_wait_ms: int | None = None  # of reassignments

    def __init__(self, seed: int, brokers: int = 3, **settings: Any) -> None:
        super().__init__(seed, brokers, **settings)
        self.damaged: set[int] = set()  # brokers that lost records and have not been live since
        self.states: tuple[Any, ...] = ()
        self.stored = -1  # the store's transaction in which `states` were read
        self.events: list[str] = []

    def say(self, text: str) -> None:
        """Record an event, for the report of a failure."""
        self.events.append(f"{self.time.now - 1_700_000_000:9.3f} {text}")

    def heal(self) -> None:
        """Connect all links and let paused processes continue."""
        self.network.heal()
        for broker in self.brokers.values():
            if broker.alive:
                if broker.time.paused:
                    self._resume(broker)
                broker.store.heal()

    def read_states(self) -> bool:
        """Read the partitions' states from the store. Return whether they have changed."""
        if self.stored == self.tree.transaction:
            return False
        self.stored = self.tree.transaction
        topic = self.tree.nodes.get(f"{TOPICS}/{TOPIC}")
        if topic is None:
            return False
        assignment = decode_topic(TOPIC, topic.data)
        for name in self.tree.names(f"{TOPICS}/{TOPIC}"):
            states = decode_states(TOPIC, self.tree.nodes[f"{TOPICS}/{TOPIC}/{name}"].data, assignment)[1]
            if states != self.states:
                self.states = states
                self.say(
                    " | ".join(
                        f"{s.index}: {s.leader}@{s.leader_epoch} {s.isr}+{s.elr} of {s.replicas}" for s in states
                    )
                )
                return True
        return False

    def cause_trouble(self) -> None:
        """Inject a fault, and schedule the next one."""
        if not self.nemesis_over:
            trouble = self.rng.choice(self._troubles)
            if trouble in self._harmless or not any(map(self._is_counted_on, self.damaged)):
                trouble(self)
            self.clock.callLater(self.rng.uniform(0.05, 0.8), self.cause_trouble)

    def _alive(self) -> list[SimBroker]:
        return [broker for broker in self.brokers.values() if broker.alive]

    def _kill(self) -> None:
        alive = self._alive()
        if alive:
            broker = self.rng.choice(alive)
            self.say(f"kill {broker.node_id}")
            broker.kill()
            self.clock.callLater(self.rng.uniform(0.01, 2.5), self._start, broker)

    def _start(self, broker: SimBroker) -> None:
        if not broker.alive:
            self.say(f"start {broker.node_id}")
            broker.start()

    def _is_counted_on(self, node: int) -> bool:
        """Return whether the cluster counts the broker as live, since its session has not ended, though it may be dead.

        If the last intact replica is lost meanwhile, only damaged ones are left, which no broker can prevent.
        """
        registration = self.tree.nodes.get(f"{BROKERS}/{node}")
        return registration is not None and not decode_broker(f"{BROKERS}/{node}", registration.data).fenced

    def _spared(self, most: int) -> list[SimBroker]:
        """Return brokers, running or not, whose disks may be lost: others have all acknowledged records."""
        self.read_states()
        chosen: list[int] = []
        for node in self.rng.sample(sorted(self.brokers), self.rng.randint(1, most)):
            if self._may_lose(node, chosen):
                chosen.append(node)
        return [self.brokers[node] for node in chosen]

    def _may_lose(self, node: int, others: Collection[int] = ()) -> bool:
        """Return whether a broker's disk may be lost, together with those of `others`."""
        calm = all(broker.ready and broker.store.up and not broker.time.paused for broker in self.brokers.values())
        without = {*others, node, *self.damaged}
        if not calm and self._is_counted_on(node):
            return False
        return all({*state.isr, *state.elr} - without for state in self.states)

    def _damage(self, broker: SimBroker, **how: bool) -> None:
        self.damaged.add(broker.node_id)
        broker.kill(**how)
        self.clock.callLater(self.rng.uniform(0.01, 2.5), self._start, broker)

    def _cut_power(self) -> None:
        """Let several machines lose their power at the same time."""
        for broker in self._spared(len(self.brokers) - 1):
            self.say(f"cut the power of {broker.node_id}")
            self._damage(broker, power=True)

    def _wipe(self) -> None:
        """Replace a disk by an empty one."""
        for broker in self._spared(2):
            self.say(f"wipe {broker.node_id}")
            self._damage(broker, wipe=True)

    def _pause(self) -> None:
        alive = [broker for broker in self._alive() if not broker.time.paused]
        if alive:
            broker = self.rng.choice(alive)
            self.say(f"pause {broker.node_id}")
            broker.time.paused = True
            clock, session = broker.time, broker.store.session_id

            def expire() -> None:
                if clock.paused:
                    self.tree.expire(session)

            def resume() -> None:
                if clock.paused and clock is broker.time:
                    self._resume(broker)

            self.clock.callLater(self.session_timeout, expire)
            self.clock.callLater(self.rng.uniform(0.05, 2.0), resume)

    def _resume(self, broker: SimBroker) -> None:
        self.say(f"resume {broker.node_id}")
        expired = broker.store.session_id not in self.tree.sessions
        broker.time.resume()
        if expired:
            broker.store.expire()

    def _cut_link(self) -> None:
        source, target = self.rng.sample(sorted(self.brokers), 2)
        both = self.rng.random() < 0.5
        self.say(f"cut {source} {'<->' if both else '->'} {target}")
        self.network.cut(source, target)
        if both:
            self.network.cut(target, source)

    def _isolate(self) -> None:
        node = self.rng.choice(sorted(self.brokers))
        self.say(f"isolate {node}")
        for other in self.brokers:
            if other != node:
                self.network.cut(node, other)
                self.network.cut(other, node)
        if self.rng.random() < 0.5 and self.brokers[node].alive:
            self.brokers[node].store.cut()

    def _heal_links(self) -> None:
        self.say("heal the links")
        self.network.heal()
        for broker in self._alive():
            broker.store.heal()

    def _lose_connections(self) -> None:
        broker = self.rng.choice(list(self.brokers.values()))
        connections, broker.connections = broker.connections, []
        self.say(f"lose {len(connections)} connections of {broker.node_id}")
        for connection in connections:
            connection.lost()

    def _expire(self) -> None:
        alive = self._alive()
        if alive:
            broker = self.rng.choice(alive)
            self.say(f"expire the session of {broker.node_id}")
            broker.store.expire()

    def _cut_store(self) -> None:
        alive = self._alive()
        if alive:
            broker = self.rng.choice(alive)
            self.say(f"cut {broker.node_id} from the store")
            broker.store.cut()

    def _move(self) -> None:
        """Reassign a partition, change the order of its replicas, or cancel a reassignment."""
        ready = [broker for broker in self._alive() if broker.ready and broker.topics.get(TOPIC) is not None]
        if ready:
            broker, index = self.rng.choice(ready), self.rng.randrange(self.partitions)
            target = self.rng.sample(sorted(self.brokers), 3) if self.rng.random() < 0.8 else None
            self.say(f"{broker.node_id} is asked to move {index} to {target}")
            done = broker.partition_admin.move({(TOPIC, index): target}, latest_wait_ms=self.latest_wait_ms)
            done.addCallbacks(lambda _: None, self._not_moved)

    def _elect(self) -> None:
        ready = [broker for broker in self._alive() if broker.ready and broker.topics.get(TOPIC) is not None]
        if ready:
            self.say("preferred leaders are elected")
            done = self.rng.choice(ready).partition_admin.elect(None, unclean=False)
            done.addCallbacks(lambda _: None, self._not_moved)

    def _not_moved(self, failure: Any) -> None:
        if not failure.check(PylogdError):
            self.fault(failure)

    _troubles: tuple[Callable[[Any], None], ...] = (
        _kill, _kill, _cut_power, _wipe, _pause, _pause, _cut_link, _isolate, _heal_links, _heal_links,
        _lose_connections, _expire, _cut_store, _move, _move, _elect,
    )  # fmt: skip

    _harmless: tuple[Callable[[Any], None], ...] = (_wipe, _cut_power, _cut_link, _heal_links, _lose_connections)
