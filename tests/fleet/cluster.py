"""The fleet's cluster: six brokers with two labels over two racks, with the settings that a user gets by default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pylogd.client.core.model import NewTopic, Partition
from pylogd.local.broker import BrokerProcess
from pylogd.local.zookeeper import LocalZooKeeper
from tests.clusters import BrokerCluster
from tests.fleet.links import StoreLink
from tests.preload import Preload

#: A topic's name, and the number of one of its partitions.
Place = tuple[str, int]

LABELS: Final = ("online", "logs")
RACKS: Final = ("r1", "r2")
SIZE: Final = 6
FACTOR: Final = 3
#: `BrokerCluster` sets a longer session timeout; the fleet has the default.
_NOT_DEFAULT: Final = "zookeeper.session.timeout.ms"


class Fleet(BrokerCluster):
    """Brokers 1 to 3 carry the first label, 4 to 6 the second; racks alternate.

    faults: what can be done to each broker's process. links: the way of each broker to ZooKeeper.
    """

    def __init__(self, folder: Path, store: LocalZooKeeper, chroot: str) -> None:
        self._store_port = store.port
        self._chroot = chroot
        self.links: dict[int, StoreLink] = {}
        self.faults: dict[int, Preload] = {}
        racks = [RACKS[number % 2] for number in range(SIZE)]
        labels = [LABELS[number // (SIZE // 2)] for number in range(SIZE)]
        super().__init__(folder, f"{store.hosts}{chroot}", SIZE, racks=racks, labels=labels)

    def launch(self, node: int, settings: Mapping[str, str]) -> BrokerProcess:
        """Run a broker with its own link to ZooKeeper, with faults that can be switched on."""
        data = self.folder / f"broker{node}"
        if node not in self.links:
            self.links[node] = StoreLink(self._store_port)
            self.faults[node] = Preload(self.folder, f"broker{node}", disks=[data])
        own = {**settings, "zookeeper.connect": f"{self.links[node].hosts}{self._chroot}"}
        own.pop(_NOT_DEFAULT)
        return BrokerProcess(
            data, self.folder / f"broker{node}.log", own, port=self.ports[node],
            prefix=self.faults[node].prefix, wait=False,
        )  # fmt: skip

    def close(self) -> list[str]:
        """Stop the brokers, then their links. Return what went wrong."""
        try:
            return super().close()
        finally:
            for link in self.links.values():
                link.close()

    def create(self, names: Mapping[str, str], partitions: int, factor: int = FACTOR) -> None:
        """Create topics. names: the label of each. Raises KafkaError."""
        new = [NewTopic(name, partitions, factor, {"placement.label": label}) for name, label in names.items()]
        for error in self.ask(lambda admin: admin.create_topics(new)).values():
            if error is not None:
                raise error

    def places(self, node: int | None = None) -> dict[Place, Partition]:
        """Return every partition that is not internal, as a broker, or any, describes it."""
        topics = self.ask(lambda admin: admin.list_topics(), node)
        return {(topic.name, one.index): one for topic in topics for one in topic.partitions}

    def controller(self, node: int | None = None) -> int:
        """Return which broker is the controller, as a broker, or any, says."""
        return self.ask(lambda admin: admin.describe_cluster(), node).controller

    def is_whole(self) -> bool:
        """Return whether all brokers that run describe each partition as in sync, led by its first replica."""
        found, *others = (self.places(node) for node in self.brokers)
        if any(seen != found for seen in others):
            return False
        away = [place for place, one in found.items() if one.leader != one.replicas[0]]
        if any(set(one.isr) != set(one.replicas) for one in found.values()):
            return False
        if away:
            self.ask(lambda admin: admin.elect_leaders(away))
        return not away

    def misplaced(self, labels: Mapping[str, str]) -> list[str]:
        """Return what is wrong with the places of replicas: outside of a label, or in one rack. labels: by topic."""
        faults = []
        for (topic, index), one in self.places().items():
            if any(self.labels[node] != labels[topic] for node in one.replicas):
                faults.append(f"{topic}-{index} has the label {labels[topic]!r}, and replicas on {one.replicas}")
            if len(one.replicas) > 1 and len({self.racks[node] for node in one.replicas}) == 1:
                faults.append(f"{topic}-{index} has all replicas, {one.replicas}, in one rack")
        return faults

    def nodes_of(self, label: str) -> Sequence[int]:
        """Return the brokers with a label."""
        return [node for node, carried in self.labels.items() if carried == label]


@contextmanager
def running(folder: Path, store: LocalZooKeeper, faults: list[str], chroot: str = "/fleet") -> Iterator[Fleet]:
    """Run a fleet, and stop it at the end. What went wrong with its brokers is added to `faults`."""
    fleet = Fleet(folder, store, chroot)
    try:
        yield fleet
    finally:
        faults += fleet.close()
