"""Upgrade a cluster under load, broker by broker, and back again, and write UPGRADE.md: `make upgrade`.

Strategy: three brokers of an earlier commit serve idempotent producers of two clients, transactions and a group. One
after the other is stopped and started with the wheel of this checkout; then one after the other goes back. After each
step both versions have to agree on what the cluster is, and topics are made through each broker. At the end every
acknowledged record has to be there once, in order.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pylogd.base.errors import PylogdError
from pylogd.client import Admin, Cluster
from pylogd.local.broker import BrokerProcess
from pylogd.local.cluster import LocalBrokers
from pylogd.local.zookeeper import LocalZooKeeper
from tests.packages.roots import CACHE, CHECKOUT, run
from tests.packages.workload import COMMITTED, PARTITIONS, TOPIC, Load, loaded, verify
from tests.pages import circumstances, write_page

#: Before metrics, tables by the mirror, and much of what release 0.1.0 has.
OLD: Final = "e03a1244"
OLD_NAME, NEW_NAME = "old", "new"
_STEP_SECONDS: Final = 180.0


class MixedCluster(LocalBrokers):
    """Brokers that each run one of two versions."""

    def __init__(self, folder: Path, connect: str, versions: Mapping[str, Path]) -> None:
        super().__init__(folder, connect, 3, {"min.insync.replicas": "2", "default.replication.factor": "3"})
        self._versions = versions
        self.runs = dict.fromkeys(self.ports, OLD_NAME)

    def launch(self, node: int, settings: Mapping[str, str]) -> BrokerProcess:
        return BrokerProcess(
            self.folder / f"broker{node}", self.folder / f"broker{node}.log", settings, port=self.ports[node],
            prefix=("env", f"--chdir={self.folder}", f"PYTHONPATH={self._versions[self.runs[node]]}"), wait=False,
        )  # fmt: skip

    def change(self, node: int, version: str) -> float:
        """Restart a broker with a version, as an operator would. Return the seconds until all replicas are in sync."""
        started = time.monotonic()
        if (code := self.stop(node)) != 0:
            raise RuntimeError(f"broker {node} stopped with exit code {code}")
        self.runs[node] = version
        self.start(node)
        self.until_in_sync()
        self.check_version(node)
        return time.monotonic() - started

    def check_version(self, node: int) -> None:
        """Make sure that a broker has loaded its compiled functions from its version's folder. Raises RuntimeError."""
        loaded = Path(f"/proc/{self.brokers[node].pid}/maps").read_text()
        if str(self._versions[self.runs[node]]) not in loaded:
            raise RuntimeError(f"broker {node} does not run the {self.runs[node]} version")

    def until_in_sync(self) -> None:
        """Wait until all brokers say that all replicas are in sync. Raises TimeoutError."""

        def in_sync() -> bool:
            views = [self.view(node) for node in self.ports]
            return all(view == views[0] for view in views) and all(
                len(isr) == len(replicas) for _, _, _, replicas, isr in views[0]
            )

        until(in_sync, "all replicas in sync, in the eyes of all brokers")

    def view(self, node: int) -> list[tuple[str, int, int, tuple[int, ...], tuple[int, ...]]]:
        """Return what one broker says of all partitions."""
        with Cluster(self.address(node)) as cluster:
            admin = Admin(cluster)
            return sorted(
                (topic.name, one.index, one.leader, tuple(sorted(one.replicas)), tuple(sorted(one.isr)))
                for topic in admin.list_topics()
                for one in admin.describe_topic(topic.name).partitions
            )

    def make_topic(self, name: str, node: int, partitions: int = 1) -> None:
        with Cluster(self.address(node)) as cluster:
            Admin(cluster).create_topic(name, partitions, 3)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _STEP_SECONDS
    while True:
        try:
            if condition():
                return
        except (PylogdError, OSError):
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_STEP_SECONDS:.0f} s in vain for {what}")
        time.sleep(0.1)


def installed(commit: str | None, folder: Path) -> Path:
    """Install the wheel of a commit, or of this checkout, into a folder. Its dependencies are those of this Python."""
    if commit is None:
        run(["sh", CHECKOUT / "packages" / "build-wheels.sh", sys.executable, folder / "wheel"])
    else:
        source = folder / "source"
        source.mkdir(parents=True)
        run(["git", "archive", "--output", folder / "source.tar", commit], folder=CHECKOUT)
        run(["tar", "-xf", folder / "source.tar", "-C", source])
        run(["sh", "tools/build-wheel.sh", sys.executable, folder / "wheel"], folder=source)
    (wheel,) = (folder / "wheel").glob("*.whl")
    run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder / "site", wheel])
    shutil.rmtree(folder / "source", ignore_errors=True)
    return folder / "site"


def change_all(cluster: MixedCluster, load: Load) -> list[str]:
    """Upgrade each broker, then go back with each. Return a row of the page for each step."""
    rows = []
    for version in (NEW_NAME, OLD_NAME):
        for node in cluster.ports:
            for told in (load.librdkafka, load.own, load.transactions):
                told.pause = 0.0
            seconds = cluster.change(node, version)
            for through in cluster.ports:
                cluster.make_topic(f"{version}-{node}-through-{through}", through)
            cluster.until_in_sync()
            pauses = [told.pause for told in (load.librdkafka, load.own, load.transactions)]
            runs = ", ".join(cluster.runs.values())
            cells = [f"broker {node} to {version}", runs, *(f"{value:.1f}" for value in (seconds, *pauses))]
            row = f"| {' | '.join(cells)} |"
            print(row, flush=True)
            rows.append(row)
    return rows


def keep(cluster: Path) -> None:
    """Keep the logs of the brokers, and what they stored, for whoever looks for the fault."""
    kept = CACHE / "upgrade-faults"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(cluster, kept)
    print(f"the brokers' directories and logs are kept in {kept}")


def page(commit: str, rows: list[str], load: Load, faults: list[str]) -> list[str]:
    return [
        "# Rolling upgrades", "", "Written by `make upgrade`.", "", circumstances(), "",
        f"Three brokers of commit {commit} are upgraded to this checkout one after the other, and then go back. "
        "Meanwhile librdkafka and pylogd's client produce, idempotent and with acks=all, a producer commits "
        "transactions, and a group of two consumers reads. After each step topics are made through each broker, and "
        "all brokers have to describe all partitions alike, with all replicas in sync.",
        "", "Seconds until all replicas are in sync again; the longest time without an acknowledgement, in seconds, of "
        "librdkafka's producer, pylogd's and the transactions:", "",
        "| step | brokers 1, 2, 3 run | in sync after | librdkafka | pylogd | transactions |",
        "| --- | --- | --- | --- | --- | --- |",
        *rows, "",
        f"Acknowledged: {len(load.librdkafka.numbers)} records by librdkafka, {len(load.own.numbers)} by pylogd's "
        f"client, {len(load.transactions.numbers)} in transactions. " + (
            "Each is there once, in order, and the group has read all that is not in transactions. "
            "No producer had an error."
            if not faults else f"FAULTS: {'; '.join(faults)}."
        ),
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", default=OLD, help="the commit to upgrade from")
    parser.add_argument("--results", type=Path, help="the page to write")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pylogd-upgrade-") as name:
        folder = Path(name)
        versions = {OLD_NAME: installed(options.old, folder / "old"), NEW_NAME: installed(None, folder / "new")}
        (folder / "cluster").mkdir()
        with LocalZooKeeper(folder / "zookeeper", sync=False) as zookeeper:
            cluster = MixedCluster(folder / "cluster", zookeeper.hosts, versions)
            try:
                for node in cluster.ports:
                    cluster.start(node)
                cluster.make_topic(TOPIC, 1, PARTITIONS)
                cluster.make_topic(COMMITTED, 1)
                cluster.until_in_sync()
                with loaded(cluster.bootstrap) as load:
                    rows = change_all(cluster, load)
                faults = verify(cluster.bootstrap, load)
            finally:
                ended = cluster.close()
        if faults:
            keep(folder / "cluster")
    lines = page(options.old, rows, load, faults + ended)
    print("\n".join(lines))
    if options.results:
        write_page(options.results, lines)
    return 1 if faults or ended else 0


if __name__ == "__main__":
    sys.exit(main())
