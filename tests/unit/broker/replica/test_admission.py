"""A restarting broker first removes its lost copies from in-sync sets."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from twisted.internet.defer import Deferred, maybeDeferred

from pylogd.broker.log.manager import LogManager
from pylogd.broker.metadata.image import NO_LEADER, Broker, Endpoint, PartitionState, TopicUpdate
from pylogd.broker.metadata.layout import decode_broker
from pylogd.broker.replica.admission import admit
from pylogd.store.paths import BROKERS
from tests.fakes.filesystem import MemoryFileSystem
from tests.fakes.metadata import InlineStore, result_of
from tests.unit.broker.metadata.conftest import Peer


class Machine:
    """Broker 2 with one disk, which crashes and restarts, and broker 1 on the same metadata store."""

    def __init__(self, folder: Path) -> None:
        self.store = InlineStore(folder / "metadata.sqlite")
        result_of(self.store.start())
        self.other = Peer(self.store, 1)
        self.fs = MemoryFileSystem()
        self.boot = 1
        self.paths = ["/a"]
        result_of(self.store.ensure(f"{BROKERS}/2"))
        self.start()

    def start(self) -> None:
        """Restart, and create the logs of partitions that have a replica here."""
        result_of(self.store.delete(f"{BROKERS}/2"))
        self.peer = Peer(self.store, 2, registers=False)
        self.logs = LogManager(
            self.paths, fs=self.fs, now_ms=lambda: 0, seconds=lambda: 0.0, node_id=2, recovery_threads=1,
            boot_id=str(self.boot),
        )  # fmt: skip
        self.logs.load()
        broker = Broker(2, (Endpoint("PLAINTEXT", "a", 1),))
        self.fenced: list[bool] = []
        registered = self.peer.cluster.register

        def register(broker: Broker) -> Deferred[None]:
            self.fenced.append(broker.fenced)
            return registered(broker)

        self.peer.cluster.register = register  # type: ignore[method-assign]
        result_of(Deferred.fromCoroutine(admit(self.peer.cluster, self.peer.topics, self.logs, broker, maybeDeferred)))
        for topic in self.peer.topics.all():
            for state in topic.partitions:
                if 2 in state.replicas and not state.lost and len(self.logs.healthy) == len(self.paths):
                    self.logs.create(topic.name, state.index, topic.topic_id)

    def make(self, name: str, replicas: tuple[int, ...], **fields: object) -> None:
        """Create a topic of one partition with a state, and its log if it has a replica here."""
        topic = result_of(self.other.topic_admin.create_topic(name, assignment={0: replicas}))
        state = replace(topic.partitions[0], partition_epoch=1, **fields)  # type: ignore[arg-type]
        result_of(self.other.topics.write_states([TopicUpdate(topic, (state,))]))
        self.logs.create(name, 0, topic.topic_id)

    def state(self, name: str) -> PartitionState:
        """Return a partition's state as the other broker knows it."""
        found = self.other.topics.get(name)
        assert found is not None
        return found.partitions[0]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_killed_broker_keeps_its_place_in_sync(machine: Machine) -> None:
    machine.make("t", (1, 2))
    before = machine.state("t")
    machine.fs.kill()
    machine.start()
    assert machine.fenced == [False]
    assert machine.state("t") == before


def test_an_empty_disk_is_neither_in_sync_nor_eligible(machine: Machine) -> None:
    machine.make("t", (1, 2), isr=(2,), elr=(1,), leader=NO_LEADER, last_known_leader=2)
    machine.make("alone", (2,))
    machine.fs = MemoryFileSystem()
    gone = machine.logs.directory_ids
    machine.start()
    assert machine.fenced == [True]
    assert (machine.state("t").isr, machine.state("t").elr) == ((), (1,))
    alone = machine.state("alone")
    assert (alone.leader, alone.isr, alone.lost) == (NO_LEADER, (), tuple(gone))
    found = machine.other.cluster.brokers[2]
    assert not found.fenced
    assert found.directories == tuple(machine.logs.directory_ids)
    # The next start finds no lost copies.
    machine.fs.kill()
    machine.start()
    assert machine.fenced == [False]
    assert machine.state("alone") == alone


def test_a_machine_that_lost_its_power_is_neither_in_sync_nor_eligible(machine: Machine) -> None:
    machine.make("t", (1, 2), leader=2)
    machine.make("alone", (2,))
    machine.fs.lose_power()
    machine.boot += 1
    machine.start()
    state = machine.state("t")
    assert (state.leader, state.isr, state.last_known_elr, state.last_known_leader) == (NO_LEADER, (1,), (2,), 2)
    assert machine.state("alone").leader == 2  # no other replica has more records
    machine.fs.kill()
    machine.start()
    assert machine.fenced == [False]


def test_a_crash_before_all_is_written_forgets_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.make("t", (1, 2), leader=2)
    machine.fs = MemoryFileSystem()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("pylogd.broker.replica.admission._correct_state", die)
        with pytest.raises(KeyboardInterrupt):
            machine.start()
    assert 2 not in machine.other.cluster.brokers
    node = result_of(machine.store.get(f"{BROKERS}/2"))
    assert decode_broker(f"{BROKERS}/2", node.data).fenced
    assert machine.state("t").isr == (1, 2)
    machine.fs.kill()
    machine.start()
    assert machine.fenced == [True]
    assert machine.state("t").isr == (1,)


def test_a_directory_that_is_put_back_has_what_was_lost_with_it(machine: Machine) -> None:
    machine.make("t", (2,))
    machine.logs.close()
    machine.paths = ["/b"]
    machine.start()
    assert machine.state("t").lost
    machine.logs.close()
    machine.paths = ["/b", "/a"]
    machine.start()
    state = machine.state("t")
    assert (state.lost, state.last_known_elr, state.last_known_leader) == ((), (2,), 2)


def test_a_directory_that_fails_at_the_start_is_not_lost(machine: Machine) -> None:
    """Its id can't be read, but its copies may return with it."""
    machine.logs.close()
    machine.paths = ["/a", "/b"]
    machine.start()
    machine.make("t", (1, 2), leader=2)
    machine.make("alone", (2,))
    both = machine.logs.directory_ids
    for failed in machine.paths:
        states = machine.state("t"), machine.state("alone")
        machine.fs.kill()
        with machine.fs.failing("open", errno.EIO, path=f"{failed}/", lasting=True):
            machine.start()
        assert machine.logs.healthy == [path for path in machine.paths if path != failed]
        assert machine.fenced == [False]
        assert set(machine.other.cluster.brokers[2].directories) == both
        assert (machine.state("t"), machine.state("alone")) == states
    machine.fs.kill()
    machine.start()
    assert machine.fenced == [False]
    assert (machine.state("t"), machine.state("alone")) == states


def test_a_lost_copy_stays_lost_while_its_directory_fails_at_the_start(machine: Machine) -> None:
    machine.make("t", (2,))
    machine.logs.close()
    machine.paths = ["/b"]
    machine.start()
    lost = machine.state("t")
    assert lost.lost
    machine.logs.close()
    machine.paths = ["/b", "/a"]
    with machine.fs.failing("open", errno.EIO, path="/a/", lasting=True):
        machine.start()
    assert machine.state("t") == lost
    machine.fs.kill()
    machine.start()
    assert (machine.state("t").lost, machine.state("t").last_known_elr) == ((), (2,))


def test_a_log_that_was_never_made_is_not_lost(machine: Machine) -> None:
    result_of(machine.other.topic_admin.create_topic("t", assignment={0: (2, 1)}))
    before = machine.state("t")
    machine.fs.kill()
    machine.start()
    assert machine.state("t") is before
