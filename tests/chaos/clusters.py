"""A cluster for faults: ZooKeeper and brokers, with links that can be cut and a small disk if the machine has them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from pylogd.local.zookeeper import LocalZooKeeper
from tests.chaos.links import STORE, Links
from tests.chaos.nemesis import SMALL_DISK_NODE, ChaosCluster

_DISK_MIB = 64


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
