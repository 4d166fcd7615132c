"""Moves of replicas and maintenance of a broker by the console, on real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pylogd.client import Admin, NewTopic, Producer
from pylogd.credentials.passwords import add_user
from tests.clusters import BrokerCluster
from tests.consoles import ConsoleProcess, Visitor
from tests.zookeeper import ZooKeeper

_RECORDS = 400
_VALUE = bytes(range(256)) * 40


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[BrokerCluster]:
    made = BrokerCluster(tmp_path, zookeeper.connect, 2)
    yield made
    faults = made.close()
    assert not faults, "\n".join(faults)


@pytest.fixture
def visitor(cluster: BrokerCluster, tmp_path: Path) -> Iterator[Visitor]:
    """An operator, who has no need to be an administrator."""
    config, users = tmp_path / "console.toml", tmp_path / "users"
    config.write_text(f'[clusters.main]\nbootstrap = "{cluster.bootstrap}"\n[roles]\noperator = ["user:ada"]\n')
    add_user(users, "ada", "correct horse")
    process = ConsoleProcess(
        tmp_path / "console.log", "--config", str(config), "--users", str(users), "--allow-writes"
    )  # fmt: skip
    made = Visitor(process.url)
    made.submit("/login", user="ada", password="correct horse")
    yield made
    process.stop()


def replicas(cluster: BrokerCluster, node: int | None = None) -> list[list[int]]:
    """Return the replicas of both partitions, as a broker has heard of them."""
    return [sorted(one.replicas) for one in cluster.partitions("moved", node)]


def all_have_heard(cluster: BrokerCluster, wanted: list[list[int]]) -> bool:
    """Return whether each broker has heard of these replicas: the console may ask any of them."""
    return all(replicas(cluster, node) == wanted for node in cluster.ports)


def test_a_move_is_throttled_shown_cancelled_and_made(cluster: BrokerCluster, visitor: Visitor) -> None:
    first, second = sorted(cluster.brokers)
    topic = NewTopic("moved", assignments={0: [first], 1: [first]})
    cluster.ask(lambda admin: admin.create_topics([topic]))
    with Producer(cluster.bootstrap) as producer:
        for number in range(_RECORDS):
            producer.send("moved", _VALUE, partition=number % 2)
    visitor.until("/c/main/topics", "moved")
    form = {"topic": "moved", "brokers": str(second)}
    plan = visitor.submit("/c/main/reassign", **form, throttle="20000")
    assert "moved-0" in plan and "--throttle 20000" in plan and replicas(cluster) == [[first], [first]]
    assert "2 partitions of moved begin to move" in visitor.confirm("/c/main/reassign", **form, throttle="20000")
    page = visitor.until("/c/main/reassignments", "moved-0")
    assert "% of" in page or "%: " in page or "not known" in page
    visitor.until("/c/main/reassignments", "%: ")
    assert "at most 10,000 bytes" in visitor.confirm("/c/main/throttle", rate="10000")

    def rates(admin: Admin) -> set[str | None]:
        names = ["leader.replication.throttled.rate", "follower.replication.throttled.rate"]
        return {one.value for one in admin.describe_configs("broker", str(second), names)}

    cluster.until(lambda: cluster.ask(rates) == {"10000"}, "the throttle")
    assert "2 moves were cancelled" in visitor.confirm("/c/main/cancel-moves")
    cluster.until(lambda: all_have_heard(cluster, [[first], [first]]), "the replicas as they were")
    cluster.until(lambda: not cluster.ask(rates) & {"10000", "20000"}, "that the throttle is gone")
    assert "begin to move" in visitor.confirm("/c/main/reassign", **form, throttle="")
    cluster.until(lambda: replicas(cluster) == [[second], [second]], "the replicas where they are wanted")
    assert visitor.get("/c/main/set-quota") and visitor.status == 403, "an operator is no administrator"


def test_a_broker_is_taken_out_of_service_and_back(cluster: BrokerCluster, visitor: Visitor) -> None:
    first, second = sorted(cluster.brokers)
    cluster.ask(lambda admin: admin.create_topic("kept", 6, 2))
    cluster.wait_for_isr("kept", 2)

    def leaders() -> set[int]:
        return {one.leader for one in cluster.partitions("kept")}

    cluster.until(lambda: leaders() == {first, second}, "that both lead")
    visitor.until("/c/main/topics", "kept")
    path = f"/c/main/brokers/{first}/maintenance"
    plan = visitor.submit(path, do="begin")
    assert f"pylogd brokers maintenance enable {first}" in plan and leaders() == {first, second}
    assert "it can be restarted" in visitor.confirm(path, do="begin")
    cluster.until(lambda: leaders() == {second}, "that the other leads everything")
    visitor.until("/c/main/brokers", "cordoned")
    assert "more partitions" in visitor.confirm(path, do="end")
    cluster.until(lambda: leaders() == {first, second}, "that both lead again")
