"""A cluster for faults: ZooKeeper and brokers, with links that can be cut and a small disk if the machine has them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from pylogd.local.broker import BrokerProcess
from pylogd.local.zookeeper import LocalZooKeeper
from tests.chaos.links import STORE, Links
from tests.clusters import BrokerCluster
from tests.preload import Preload

#: The broker whose first log directory is on a small volume, if volumes can be mounted.
SMALL_DISK_NODE = 1
_DISK_MIB = 64
_PORT = 9092
#: Shorter than the time for which a broker may be cut off.
_SESSION_MS = 4000


class ChaosCluster(BrokerCluster):
    """Brokers with two log directories each, with links and injected faults if the machine supports them."""

    def __init__(
        self, folder: Path, connect: str, size: int, links: Links | None, preload: bool,
        more: Mapping[str, str] = MappingProxyType({}), labels: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """more: settings of all brokers. labels: those of the brokers in turn."""
        self.links = links
        self.faults = {
            node: Preload(
                folder,
                f"broker{node}",
                failing=self.second_of(folder, node),
                disks=[folder / f"broker{node}", self.second_of(folder, node)],
            )
            for node in range(1, size + 1)
            if preload
        }
        settings = {
            "zookeeper.session.timeout.ms": str(_SESSION_MS), "min.insync.replicas": "2",
            "replica.lag.time.max.ms": "4000", "replica.socket.timeout.ms": "4000",
            "log.retention.ms": "-1", "internal.segment.bytes": "262144", "log.roll.jitter.ms": "0",
            "zookeeper.connection.timeout.ms": "30000", "leader.imbalance.check.interval.seconds": "10",
        }  # fmt: skip
        super().__init__(folder, connect, size, {**settings, **more}, labels=labels)

    @staticmethod
    def second_of(folder: Path, node: int) -> Path:
        """Return the second log directory of a broker."""
        return folder / f"broker{node}-second"

    def directories(self, node: int) -> tuple[Path, Path]:
        """Return the log directories of a broker."""
        return self.folder / f"broker{node}", self.second_of(self.folder, node)

    def launch(self, node: int, settings: Mapping[str, str]) -> BrokerProcess:
        """Run a broker with two log directories, in its network namespace and with injected faults if there are any."""
        first, second = self.directories(node)
        prefix = self.faults[node].prefix if self.faults else []
        if self.links is not None:
            self.ports[node] = _PORT
            prefix = [*self.links.prefix(node), *prefix]
        return BrokerProcess(
            first, self.folder / f"broker{node}.log", settings, ["--data", str(second)], port=self.ports[node],
            prefix=prefix, host="127.0.0.1" if self.links is None else self.links.address(node), wait=False,
        )  # fmt: skip

    def address(self, node: int) -> str:
        """One broker's address."""
        return super().address(node) if self.links is None else f"{self.links.address(node)}:{_PORT}"


@contextmanager
def running(
    folder: Path, size: int, links: Links | None, preload: bool, faults: list[str],
    settings: Mapping[str, str] = MappingProxyType({}), labels: Sequence[str] = (),
) -> Iterator[tuple[ChaosCluster, LocalZooKeeper]]:  # fmt: skip
    """Run a cluster, and stop it at the end. What went wrong with its brokers is added to `faults`."""
    disk, options = folder / f"broker{SMALL_DISK_NODE}", {}
    if links is not None:
        options = {"clientPortAddress": "0.0.0.0"}
        disk.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m", "tmpfs", str(disk)]
        subprocess.run(mount, check=True, timeout=30)
    with LocalZooKeeper(folder / "zookeeper", options=options, sync=False) as store:
        connect = store.hosts if links is None else f"{STORE}:{store.port}"
        cluster = ChaosCluster(folder, connect, size, links, preload, settings, labels)
        try:
            yield cluster, store
        finally:
            faults += cluster.close()
            if links is not None:
                links.close()
                subprocess.run(["umount", "-l", str(disk)], check=False, timeout=30)
