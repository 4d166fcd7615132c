"""A disk of one broker of three hangs: its leaders move, everything else goes on, and nothing acknowledged is lost.

With write queues only the leaders on that disk move. With the default settings, the broker whose only disk hangs stands
still, in a write: to the cluster it is dead, also as the controller, until the disk is back.

A real hang, by FIFREEZE, where the host allows it; elsewhere writes and syncs that do not return (LD_PRELOAD).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bench.lab.cgroups import Unavailable
from bench.lab.disks import check_tools, make_disk
from pylogd.client import Consumer, Producer
from pylogd.client.blocking.producer import Delivery
from pylogd.client.core.model import Partition
from pylogd.local.broker import BrokerProcess
from tests import preload
from tests.clusters import PATIENCE_SECONDS, BrokerCluster
from tests.commands import Outcome, run_command
from tests.preload import Preload
from tests.zookeeper import ZooKeeper

SICK = 1
DISK_BYTES = 96 << 20
LONGEST = 240.0
SETTINGS = {
    "min.insync.replicas": "2", "log.write.queues": "always", "log.dir.failure.timeout.ms": "2000",
    "internal.segment.bytes": "65536",
}  # fmt: skip
#: Two partitions of each topic: broker 1 has one of them in each of its directories. It leads those of the first topic.
TOPICS: Mapping[str, tuple[int, ...]] = {"led": (1, 2, 3), "followed": (2, 3, 1)}
PLACES = tuple((topic, index) for topic in TOPICS for index in range(2))
MORE = 40


class HangingCluster(BrokerCluster):
    """Broker 1 has a second data directory, whose disk can hang."""

    def __init__(self, folder: Path, connect: str, second: Path, faults: Preload | None) -> None:
        self.second = second
        self._faults = faults
        super().__init__(folder, connect, 3, SETTINGS)

    def launch(self, node: int, settings: Mapping[str, str]) -> BrokerProcess:
        if node != SICK:
            return super().launch(node, settings)
        return BrokerProcess(
            self.folder / "broker1", self.folder / "broker1.log", settings, ["--data", str(self.second)],
            port=self.ports[node], prefix=self._faults.prefix if self._faults is not None else [], wait=False,
        )  # fmt: skip

    def on_the_sick_disk(self, topic: str) -> int:
        """Return the partition of a topic that is in the second directory."""
        (found,) = (index for index in range(2) if (self.second / f"{topic}-{index}").exists())
        return found

    def reopen(self) -> Outcome:
        """Ask broker 1 to use the second directory again."""
        return run_command("cluster", "reopen", str(SICK), str(self.second), "-b", self.address(SICK))


class Writers(threading.Thread):
    """Writes numbered records to all partitions with acks=all, one after the other to each, until `stop`."""

    def __init__(self, servers: str) -> None:
        super().__init__(daemon=True)
        self._servers = servers
        self._stopping = threading.Event()
        self.acknowledged: dict[tuple[str, int], list[bytes]] = {place: [] for place in PLACES}
        self.errors: list[Exception] = []

    def run(self) -> None:
        """Write until the end; then wait for what is under way."""
        try:
            with Producer(self._servers, acks="all", delivery_timeout=PATIENCE_SECONDS, linger_ms=0.0) as producer:
                waiting: dict[tuple[str, int], tuple[bytes, Delivery]] = {}
                number = 0
                while not self._stopping.wait(0.002):
                    for place in PLACES:
                        if place in waiting and not self._done(place, *waiting[place]):
                            continue
                        value, number = b"%d" % number, number + 1
                        waiting[place] = value, producer.send(place[0], value * 50, partition=place[1])
                for place, (value, delivery) in waiting.items():
                    delivery.result(PATIENCE_SECONDS)
                    self.acknowledged[place].append(value)
        except Exception as error:
            self.errors.append(error)

    def _done(self, place: tuple[str, int], value: bytes, delivery: Delivery) -> bool:
        if not delivery.done:
            return False
        delivery.result(0)
        self.acknowledged[place].append(value)
        return True

    def stop(self) -> None:
        """End, once everything is acknowledged."""
        self._stopping.set()
        self.join(PATIENCE_SECONDS)
        assert not self.errors, self.errors

    def wait_for_more(self, cluster: BrokerCluster) -> None:
        """Wait until so many more records of each partition were acknowledged."""
        before = {place: len(values) for place, values in self.acknowledged.items()}
        for place, count in before.items():

            def more(place: tuple[str, int] = place, count: int = count) -> bool:
                assert not self.errors, self.errors
                return len(self.acknowledged[place]) >= count + MORE

            cluster.until(more, f"{MORE} more records of {place}")


#: A directory, the faults of the broker that has it, and what makes its disk hang inside a `with` block.
SickDisk = tuple[Path, Preload | None, Callable[[], AbstractContextManager[None]]]


@contextmanager
def frozen_file_system(folder: Path) -> Iterator[SickDisk]:
    """Yield a directory on a disk of its own, and what freezes that. Raises Unavailable."""
    check_tools()
    disk = make_disk(folder, "sick", DISK_BYTES)
    try:
        with disk.frozen(LONGEST):
            pass
        yield disk.mount / "data", None, partial(disk.frozen, LONGEST)
    finally:
        disk.remove()


@contextmanager
def calls_that_hang(folder: Path) -> Iterator[SickDisk]:
    """Yield a directory below which writes and syncs can hang, the faults, and what lets them hang."""
    second = folder / "sick"
    faults = Preload(folder, "sick", failing=second)

    @contextmanager
    def hanging() -> Iterator[None]:
        faults.hang(True)
        try:
            yield
        finally:
            faults.hang(False)

    yield second, faults, hanging


@pytest.fixture
def sick_disk(tmp_path: Path) -> Iterator[SickDisk]:
    with ExitStack() as stack:
        try:
            yield stack.enter_context(frozen_file_system(tmp_path))
        except Unavailable as reason:
            if preload.why_not():
                pytest.skip(f"no disk can be frozen here: {reason}; {preload.why_not()}")
            yield stack.enter_context(calls_that_hang(tmp_path))


def test_a_disk_that_hangs_moves_its_leaders(sick_disk: SickDisk, tmp_path: Path, zookeeper: ZooKeeper) -> None:
    with ExitStack() as stack:
        second, faults, hanging = sick_disk
        cluster = HangingCluster(tmp_path, zookeeper.connect, second, faults)
        stack.callback(cluster.kill_all)
        for topic, replicas in TOPICS.items():
            create_topic(cluster, topic, replicas)
        bad = cluster.on_the_sick_disk("led")
        writers = Writers(cluster.bootstrap)
        writers.start()
        writers.wait_for_more(cluster)
        with hanging():
            moved = wait_for(cluster, "led", bad, "that another broker leads", lambda one: one.leader in (2, 3))
            assert set(moved.isr) == {2, 3}
            writers.wait_for_more(cluster)
            stays = cluster.partitions("led", SICK)[1 - bad]
            assert (stays.leader, set(stays.isr)) == (SICK, {1, 2, 3})
            assert f"threads are stuck in calls to {second}" in cluster.log(SICK)
            assert cluster.reopen().returncode == 1
            assert "calls to it have not returned yet: its disk still hangs" in cluster.log(SICK)
        cluster.until(lambda: cluster.reopen().returncode == 0, "that the directory is in use again")
        for topic in TOPICS:
            cluster.wait_for_isr(topic, 3)
        writers.wait_for_more(cluster)
        writers.stop()
        cluster.ask(lambda admin: admin.elect_leaders([("led", bad)]))
        wait_for(cluster, "led", bad, "that broker 1 leads again", lambda one: one.leader == SICK)
        for place, values in writers.acknowledged.items():
            assert [value[: len(value) // 50] for value in read(cluster, place, len(values))] == values
        faults_found = cluster.close()
        assert not faults_found, "\n".join(faults_found)


class DefaultCluster(BrokerCluster):
    """Broker 1 has one data directory, whose disk can hang; it is the controller, since it starts first."""

    def __init__(self, folder: Path, connect: str, directory: Path, faults: Preload | None) -> None:
        self._directory = directory
        self._faults = faults
        super().__init__(folder, connect, 3)

    def launch(self, node: int, settings: Mapping[str, str]) -> BrokerProcess:
        if node != SICK:
            return super().launch(node, settings)
        return BrokerProcess(
            self._directory, self.folder / "broker1.log", settings, port=self.ports[node],
            prefix=self._faults.prefix if self._faults is not None else [], wait=False,
        )  # fmt: skip

    def controller(self, node: int) -> int:
        """Return which broker is the controller, as a broker says."""
        return self.ask(lambda admin: admin.describe_cluster(), node).controller


def test_a_controller_that_stands_still_in_a_write_is_replaced(
    sick_disk: SickDisk, tmp_path: Path, zookeeper: ZooKeeper
) -> None:
    """Its session must not outlive its work, which kazoo's thread knows nothing of."""
    directory, faults, hanging = sick_disk
    with ExitStack() as stack:
        cluster = DefaultCluster(tmp_path, zookeeper.connect, directory, faults)
        stack.callback(cluster.kill_all)
        create_topic(cluster, "t", (SICK, 2, 3))
        assert cluster.controller(2) == SICK
        producer = stack.enter_context(Producer(cluster.bootstrap, acks="all", delivery_timeout=PATIENCE_SECONDS))
        for value in (b"first", b"second"):
            producer.send("t", value, partition=0).result(PATIENCE_SECONDS)
        with hanging():
            late = producer.send("t", b"late", partition=0)  # into the write that hangs, then to another leader
            cluster.until(lambda: cluster.controller(2) in (2, 3), "that another broker is the controller")
            wait_for(cluster, "t", 0, "that another broker leads", lambda one: one.leader in (2, 3), (2, 3))
            late.result(PATIENCE_SECONDS)
            cluster.kill(3)
            cluster.until(lambda: cluster.controller(2) == 2, "that the last broker is the controller")
            wait_for(cluster, "t", 0, "that a death is handled", lambda one: (one.leader, *one.isr) == (2, 2), (2,))
        cluster.start(3)
        cluster.wait_for_isr("t", 3)
        assert "This process stood still, or could do no work, for" in cluster.log(SICK)
        assert read(cluster, ("t", 0), 3)[:3] == [b"first", b"second", b"late"]
        producer.close()
        faults_found = cluster.close()
        assert not faults_found, "\n".join(faults_found)


def create_topic(cluster: BrokerCluster, name: str, replicas: Sequence[int]) -> None:
    """Create a topic with two partitions that both have these replicas, and wait until all are in sync."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    new = NewTopic(name, 2, replica_assignment=[list(replicas)] * 2)
    admin.create_topics([new])[name].result(PATIENCE_SECONDS)
    cluster.wait_for_isr(name, len(replicas))


def wait_for(
    cluster: BrokerCluster, topic: str, index: int, what: str, holds: Callable[[Partition], bool],
    nodes: Sequence[int] = (),
) -> Partition:  # fmt: skip
    """Wait until a partition's metadata is as wanted on these brokers, by default on all; return it."""

    def found() -> Partition | None:
        states = [cluster.partitions(topic, node)[index] for node in nodes or cluster.brokers]
        return states[0] if all(map(holds, states)) else None

    state = cluster.until(found, what)
    assert state is not None
    return state


def read(cluster: BrokerCluster, place: tuple[str, int], count: int) -> list[bytes]:
    """Return the values of all records of a partition, of which at least `count` are expected."""
    values: list[bytes] = []
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning()

        def have_all() -> bool:
            values.extend(record.value or b"" for record in consumer.poll(0.5))
            return len(values) >= count

        cluster.until(have_all, f"{count} records of {place}")
        values.extend(record.value or b"" for record in consumer.poll(0.5))
    return values
