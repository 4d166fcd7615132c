"""The faults of brokers: what is done to them, which alerts have to fire, and which may fire besides."""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kazoo.client import KazooClient

from pylogd.base.clock import wall_ms
from pylogd.base.ports import free_ports
from pylogd.broker.metadata.layout import encode_controller
from pylogd.client import NewTopic
from pylogd.local.broker import BrokerProcess
from pylogd.local.zookeeper import LocalZooKeeper
from pylogd.store.paths import CONTROLLER
from pylogd.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from tests.alerts.prometheus import BROKERS
from tests.alerts.scene import Fault, Scene
from tests.chaos.clusters import ChaosCluster
from tests.rawclient import RawClient

NODES: Final = (1, 2, 3)
#: Topics of three replicas, and of one, on the last broker, and a compacted one, on the first.
COPIED, ALONE, COMPACTED = "copied", "alone", "compacted"
_PARTITIONS: Final = 6  # of COPIED
GROUP: Final = "readers"
_SECONDS: Final = 120.0
_KEYS: Final = 300  # of 1,000 bytes each in COMPACTED, which are several segments
_VOLUME_MIB: Final = 256
_MOSTLY: Final = 0.94  # of the volume, to be filled
#: The fault that is left out where no volume can be mounted.
FILLED: Final = "a disk is filled"


@contextmanager
def brokers(folder: Path) -> Iterator[Scene]:
    """Run brokers that can fail."""
    volume = Volume(folder / "broker3-second")
    try:
        with LocalZooKeeper(folder / "zookeeper", sync=False) as store:
            cluster = MonitoredCluster(folder, store.hosts)
            drill = Drill(cluster, store)
            faults = drill.faults()
            if volume.is_mounted:
                faults.append(Fault(FILLED, volume.fill, volume.empty, frozenset({"PylogdDiskNearlyFull"})))
            try:
                yield Scene(BROKERS, cluster.targets, faults)
            finally:
                drill.close()
                cluster.kill_all()
    finally:
        volume.close()


class MonitoredCluster(ChaosCluster):
    """Brokers with two data directories each and with metrics. metrics: their ports, by broker."""

    def __init__(self, folder: Path, connect: str, more: Mapping[str, str] = MappingProxyType({})) -> None:
        """more: settings of all brokers."""
        self.metrics = dict(zip(NODES, free_ports(len(NODES)), strict=True))
        settings = {
            "metrics.group.lag.interval.ms": "1000", "log.dir.failure.timeout.ms": "5000",
            "offsets.topic.num.partitions": "1", "log.write.queues": "slow", **more,
        }  # fmt: skip
        super().__init__(folder, connect, len(NODES), None, True, settings)

    @property
    def targets(self) -> dict[str, int]:
        """The ports of the metrics, by the name that a broker has in Prometheus."""
        return {f"broker{node}": port for node, port in self.metrics.items()}

    def launch(self, node: int, settings: Any) -> BrokerProcess:
        """Run a broker with an HTTP listener for metrics."""
        return super().launch(node, {**settings, "metrics.listener": f"127.0.0.1:{self.metrics[node]}"})


class Traffic:
    """Produces and consumes slowly, in a thread, so that a group stays at the end until `reading` is cleared.

    The group reads the first partition; the others get records in turn, so that all disks have writes.
    """

    def __init__(self, bootstrap: str) -> None:
        self.reading = threading.Event()
        self.reading.set()
        self._ended = threading.Event()
        self._bootstrap = bootstrap
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._ended.set()
        self._thread.join(_SECONDS)

    def _run(self) -> None:
        servers = {"bootstrap.servers": self._bootstrap, "log_level": 0, "socket.timeout.ms": 5000}
        producer = Producer({**servers, "linger.ms": 5, "message.timeout.ms": 300_000})
        consumer = Consumer({**servers, "group.id": GROUP, "enable.auto.commit": False})
        consumer.assign([TopicPartition(COPIED, 0, 0)])
        others = itertools.cycle(range(1, _PARTITIONS))
        try:
            while not self._ended.wait(0.1):
                with suppress(BufferError):
                    for partition in (0, next(others)):
                        producer.produce(COPIED, b"x" * 100, partition=partition)
                producer.poll(0)
                if not self.reading.is_set():
                    continue
                found = [message for message in consumer.consume(1000, 0.05) if not message.error()]
                if found:
                    with suppress(KafkaException):  # the coordinator may be away
                        consumer.commit(message=found[-1], asynchronous=True)
        finally:
            consumer.close()


class Drill:
    """The faults of a cluster, and what they need."""

    def __init__(self, cluster: MonitoredCluster, store: LocalZooKeeper) -> None:
        self.cluster = cluster
        self.store = store
        self._busy: threading.Event | None = None
        self._pulse: threading.Thread | None = None
        self._stranger: KazooClient | None = None
        cluster.ask(lambda admin: admin.create_topic(COPIED, _PARTITIONS, 3))
        with RawClient(cluster.address(1)) as client:
            alone = CreatableTopic(ALONE, -1, -1, [CreatableReplicaAssignment(0, [NODES[-1]])])
            assert client.request(CreateTopicsRequest([alone]), 7).topics[0].error_code == 0
        cluster.wait_for_isr(COPIED, 3)
        self.traffic = Traffic(cluster.bootstrap)

    def close(self) -> None:
        """End the traffic."""
        self.traffic.close()

    def faults(self) -> list[Fault]:
        """Return all faults, in the order in which they are tried."""
        cluster = self.cluster
        lost = frozenset({"PylogdUnderReplicated", "PylogdBrokerDown", "PylogdUnderMinIsr"})
        # What is true while brokers are elected, or come back.
        back = frozenset({"PylogdBrokerNotReady", "PylogdNoController", "PylogdReactorLate", "PylogdGroupLags"})
        return [
            Fault("a broker is killed", lambda: cluster.kill(1), lambda: cluster.start(1),
                  frozenset({"PylogdBrokerDown", "PylogdUnderReplicated"}), back),
            Fault("two of three brokers are killed", self._kill_two, self._start_two,
                  frozenset({"PylogdBrokerDown", "PylogdUnderMinIsr"}), back | lost),
            Fault("the broker with the only replica is killed", lambda: cluster.kill(3), lambda: cluster.start(3),
                  frozenset({"PylogdBrokerDown", "PylogdOfflinePartitions"}), back | lost),
            Fault("a broker hangs (SIGSTOP)", lambda: cluster.pause(2), lambda: cluster.resume(2),
                  frozenset({"PylogdBrokerDown", "PylogdUnderReplicated"}), back | {"PylogdMetadataSessionLost"}),
            Fault("ZooKeeper hangs (SIGSTOP)", self.store.pause, self.store.resume,
                  frozenset({"PylogdMetadataSessionLost", "PylogdBrokerNotReady"}), back | lost),
            Fault("a stranger holds the controller's node in ZooKeeper", self._take_controller, self._free_controller,
                  frozenset({"PylogdNoController"}), back),
            Fault("a disk fails (EIO)", lambda: self._disk_fails(True), self._disk_is_repaired,
                  frozenset({"PylogdLogDirOffline"}), back | lost),
            Fault("a disk hangs", lambda: cluster.faults[2].hang(True), self._disk_answers,
                  frozenset({"PylogdLogDirOffline"}), back | lost | {"PylogdDiskSlow"}),
            Fault("a disk is slow (0.3 s for each write)", lambda: cluster.faults[2].slow(True),
                  lambda: cluster.faults[2].slow(False), frozenset({"PylogdDiskSlow"}), back | lost),
            Fault("a segment of a compacted topic is damaged", self._damage, self._give_up_damaged,
                  frozenset({"PylogdCleanerGaveUp"}), back | lost),
            Fault("consumers stop", self.traffic.reading.clear, self.traffic.reading.set,
                  frozenset({"PylogdGroupLags"})),
            Fault("the processor is taken away for most of the time", self._be_busy, self._be_idle,
                  frozenset({"PylogdReactorLate"}), back | lost | {"PylogdMetadataSessionLost", "PylogdDiskSlow"}),
            Fault("all brokers are killed", cluster.kill_all, self._start_all,
                  frozenset({"PylogdNoMetrics", "PylogdBrokerDown"}), back | lost | {"PylogdOfflinePartitions"}),
        ]  # fmt: skip

    def _kill_two(self) -> None:
        self.cluster.kill(1)
        self.cluster.kill(2)

    def _start_two(self) -> None:
        self.cluster.start(1)
        self.cluster.start(2)

    def _start_all(self) -> None:
        for node in NODES:
            self.cluster.start(node, wait=False)
        for node in NODES:
            self.cluster.brokers[node].wait()

    def _take_controller(self) -> None:
        """Put another node in place of the controller's, as a broker does that is elected and then does nothing."""
        stranger = self._stranger = KazooClient(self.store.hosts, timeout=10.0)
        stranger.start(_SECONDS)
        change = stranger.transaction()
        change.delete(CONTROLLER)
        change.create(CONTROLLER, encode_controller(max(NODES) + 1, wall_ms()), ephemeral=True)
        outcome = change.commit()
        assert not any(isinstance(one, Exception) for one in outcome), outcome

    def _free_controller(self) -> None:
        assert self._stranger is not None
        self._stranger.stop()
        self._stranger.close()

    def _disk_fails(self, failing: bool) -> None:
        self.cluster.faults[2].fail(failing)

    def _disk_is_repaired(self) -> None:
        self._disk_fails(False)
        self.cluster.restart(2)

    def _disk_answers(self) -> None:
        self.cluster.faults[2].hang(False)
        self.cluster.kill(2)
        self.cluster.start(2)

    def _damage(self) -> None:
        """Write a topic, flip a byte in the middle of its first segment, and have it compacted from then on."""
        node = NODES[0]
        small = {"internal.segment.bytes": "65536", "min.cleanable.dirty.ratio": "0.01"}
        topic = NewTopic(COMPACTED, configs=small, assignments={0: [node]})
        self.cluster.ask(lambda admin: admin.create_topics([topic]))
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        for number in range(_KEYS):
            producer.produce(COMPACTED, bytes(1000), key=b"%d" % number, partition=0)
            producer.flush(_SECONDS)
        places = [folder / f"{COMPACTED}-0" for folder in self.cluster.directories(node)]
        first = next(place / f"{0:020d}.log" for place in places if place.exists())
        with first.open("r+b") as file:
            file.seek(first.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        compact = {"cleanup.policy": "compact"}
        self.cluster.ask(lambda admin: admin.alter_configs("topic", COMPACTED, compact))

    def _give_up_damaged(self) -> None:
        """Delete the damaged topic. The broker's cleaner has given it up until the next start."""
        self.cluster.ask(lambda admin: admin.delete_topic(COMPACTED))
        self.cluster.restart(NODES[0])

    def _be_busy(self) -> None:
        """Stop broker 2 for half a second again and again."""
        ended = self._busy = threading.Event()
        broker = self.cluster.brokers[2]

        def pulse() -> None:
            while not ended.is_set():
                broker.pause()
                ended.wait(0.5)
                broker.resume()
                ended.wait(0.2)

        self._pulse = threading.Thread(target=pulse, daemon=True)
        self._pulse.start()

    def _be_idle(self) -> None:
        assert self._busy is not None and self._pulse is not None
        self._busy.set()
        self._pulse.join(_SECONDS)


class Volume:
    """A small volume for a data directory, if this process may mount one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_VOLUME_MIB}m", "tmpfs", str(path)]
        done = subprocess.run(mount, capture_output=True, text=True, timeout=60, check=False)
        self.is_mounted = not done.returncode

    def fill(self) -> None:
        """Leave little free."""
        (self.path / "ballast").write_bytes(bytes(int(_VOLUME_MIB * _MOSTLY) << 20))

    def empty(self) -> None:
        """Free it again."""
        (self.path / "ballast").unlink()

    def close(self) -> None:
        """Unmount it."""
        if self.is_mounted:
            subprocess.run(["umount", "-l", str(self.path)], timeout=60, check=False)
