"""Brokers that return without their data: no replica that lacks acknowledged records is elected."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from pylogd.client import NewTopic
from pylogd.local.broker import BrokerProcess, pylogd_command
from tests.clusters import BrokerCluster
from tests.integration.test_failover import read, send

StartCluster = Callable[..., BrokerCluster]


def make(cluster: BrokerCluster, name: str, replicas: tuple[int, ...], **configs: str) -> None:
    """Create a topic of one partition on these brokers, and wait until all replicas are in sync."""
    named = {key.replace("_", "."): value for key, value in configs.items()}
    topic = NewTopic(name, configs=named, assignments={0: replicas})
    outcome = cluster.ask(lambda admin: admin.create_topics([topic]))
    assert outcome[name] is None, outcome[name]
    cluster.wait_for_isr(name, len(replicas))


def start_on(cluster: BrokerCluster, node: int, *directories: Path) -> None:
    """Start a broker with these data directories."""
    settings = {**cluster.settings, "node.id": str(node)}
    log = cluster.folder / f"broker{node}.log"
    data = Path(",".join(map(str, directories)))
    cluster.brokers[node] = BrokerProcess(data, log, settings, port=cluster.ports[node])


def leader(cluster: BrokerCluster, name: str) -> int:
    """Return the leader of partition 0 according to broker 1."""
    return cluster.partitions(name, 1)[0].leader


def test_a_replica_that_lost_its_disk_is_not_elected(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    make(cluster, "t", (2, 3), min_insync_replicas="2")
    send(cluster, "t", range(1000), partitions=1)
    cluster.kill(2)
    cluster.kill(3)
    cluster.wait_for_brokers([1])
    cluster.until(lambda: leader(cluster, "t") == -1, "that nobody leads")
    shutil.rmtree(cluster.folder / "broker3")
    cluster.start(3)
    cluster.wait_for_brokers([1, 3])
    cluster.start(2)
    cluster.wait_for_leaders("t", [2])
    cluster.wait_for_isr("t", 2)
    assert read(cluster, "t", 1000, partitions=1) == list(range(1000))
    cluster.kill(2)
    cluster.wait_for_leaders("t", [3])  # it has been copied
    eligible = cluster.until(lambda: cluster.ask(lambda admin: admin.eligible_replicas(["t"])), "that 2 is eligible")
    assert eligible == {("t", 0): ((2,), ())}
    command = [*pylogd_command(), "cluster", "describe", "--json", "-b", cluster.address(1)]
    described = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert [(one["isr"], one["elr"]) for one in described["under_replicated"]] == [([3], [2])]
    assert "are lost with a data directory" in cluster.log(3)
    cluster.start(2)


def test_killed_replicas_are_elected_after_their_restart(start_cluster: StartCluster) -> None:
    """A kill loses no appended data: the first in-sync or eligible replica to return leads."""
    cluster = start_cluster()
    make(cluster, "t", (1, 2, 3), min_insync_replicas="2")
    send(cluster, "t", range(300), partitions=1)
    cluster.kill_all()
    for node in (3, 1, 2):
        cluster.start(node)
    cluster.wait_for_isr("t", 3)
    assert read(cluster, "t", 300, partitions=1) == list(range(300))


def test_a_partition_waits_for_its_missing_log_directory(start_cluster: StartCluster, tmp_path: Path) -> None:
    """Its only replica is not replaced by an empty log until an operator asks for an unclean election."""
    cluster = start_cluster(size=2)
    first, second = (tmp_path / f"more{number}" for number in (1, 2))
    cluster.stop(2)
    start_on(cluster, 2, cluster.folder / "broker2", first)
    cluster.wait_for_brokers([1, 2])
    names = [f"t{number}" for number in range(4)]
    for name in names:
        make(cluster, name, (2,))
        send(cluster, name, range(10), partitions=1)
    there = [name for name in names if (first / f"{name}-0").exists()]
    assert 0 < len(there) < len(names)
    cluster.stop(2)
    start_on(cluster, 2, cluster.folder / "broker2", second)
    cluster.until(lambda: all((leader(cluster, name) == -1) == (name in there) for name in names), "that some wait")
    assert "Put the directory back" in cluster.log(2)
    cluster.stop(2)
    start_on(cluster, 2, cluster.folder / "broker2", first)
    cluster.until(lambda: all(leader(cluster, name) == 2 for name in names), "that all are led")
    for name in names:
        assert read(cluster, name, 10, partitions=1) == list(range(10))
    # After an unclean election the partition starts empty.
    cluster.stop(2)
    start_on(cluster, 2, cluster.folder / "broker2", second)
    cluster.until(lambda: all((leader(cluster, name) == -1) == (name in there) for name in names), "that some wait")
    cluster.ask(lambda admin: admin.elect_leaders([(name, 0) for name in there], unclean=True))
    cluster.until(lambda: all(leader(cluster, name) == 2 for name in names), "that all are led")
    for name in there:
        send(cluster, name, range(5), partitions=1)
        assert read(cluster, name, 5, partitions=1) == list(range(5))
