"""Operators cordon data directories and brokers of a running cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pylogd.base.errors import ErrorCode, KafkaError
from tests.clusters import BrokerCluster
from tests.commands import Outcome, run_command
from tests.integration.conftest import StartBroker
from tests.zookeeper import ZooKeeper


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[BrokerCluster]:
    made = BrokerCluster(tmp_path, zookeeper.connect, 3)
    yield made
    faults = made.close()
    assert not faults, "\n".join(faults)


def command(cluster: BrokerCluster, *words: str) -> str:
    """Return the output of `pylogd cluster`."""
    done = run_command("cluster", *words, "-b", cluster.bootstrap)
    assert done.returncode == 0, done.stderr
    return done.stdout


def create(cluster: BrokerCluster, name: str, factor: int) -> ErrorCode:
    try:
        cluster.ask(lambda admin: admin.create_topic(name, 6, factor))
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def test_a_cordoned_broker_keeps_its_replicas_and_gets_no_others(cluster: BrokerCluster) -> None:
    nodes = sorted(cluster.brokers)
    cordoned, others = nodes[-1], set(nodes[:-1])
    cluster.ask(lambda admin: admin.create_topic("before", 1, 3))
    cluster.wait_for_isr("before", 3)
    command(cluster, "cordon", str(cordoned))
    names = iter(range(1000))
    cluster.until(
        lambda: create(cluster, f"probe-{next(names)}", 3) is ErrorCode.INVALID_REPLICATION_FACTOR,
        "that the cluster knows of it",
    )
    assert create(cluster, "after", 2) is ErrorCode.NONE
    assert {node for one in cluster.partitions("after") for node in one.replicas} == others
    (refused,) = cluster.ask(lambda admin: admin.reassign({("after", 0): nodes})).values()
    assert isinstance(refused, KafkaError) and refused.code is ErrorCode.INELIGIBLE_REPLICA
    assert len(cluster.partitions("before")[0].isr) == 3
    states = {int(line.split()[0]): line.split()[-1] for line in command(cluster).splitlines()}
    assert states == {**dict.fromkeys(others, "online"), cordoned: "cordoned"}
    cluster.restart(cordoned)  # the setting is kept in the metadata
    assert create(cluster, "too-many", 3) is ErrorCode.INVALID_REPLICATION_FACTOR, "it registers as cordoned"
    command(cluster, "uncordon", str(cordoned))
    cluster.until(lambda: create(cluster, f"probe-{next(names)}", 3) is ErrorCode.NONE, "that it takes replicas again")


def test_single_directories_are_cordoned_and_uncordoned(start_broker: StartBroker, tmp_path: Path) -> None:
    first, second = tmp_path / "broker", tmp_path / "second"
    broker = start_broker(arguments=["--data", str(second)])

    def run(*words: str) -> Outcome:
        return run_command("cluster", *words, "-b", broker.address)

    def states() -> list[str]:
        return [line.split()[-1] for line in run().stdout.splitlines()]

    assert run("cordon", "1", str(first)).returncode == run("cordon", "1", f"{first}/").returncode == 0
    assert states() == ["cordoned", "online"]
    run("cordon", "1")
    assert states() == ["cordoned", "cordoned"]
    run("uncordon", "1", str(second))
    assert states() == ["cordoned", "online"], "also where all were cordoned"
    wrong = run("cordon", "1", "/nowhere")
    assert wrong.returncode == 1 and str(second) in wrong.stderr
    run("uncordon", "1")
    assert states() == ["online", "online"]
